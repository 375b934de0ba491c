package gpt

import (
	"fmt"

	"github.com/autopar/autopar/trace"
)

// Optimizer is AdamW with gradient clipping [Loshchilov and Hutter 2019].
type Optimizer struct {
	Beta1, Beta2, Eps float64
	WeightDecay       float64 // of matrices and tables only
	GradClip          float64 // largest global gradient norm; 0 is off
	// NoMaster updates 16-bit weights directly, with moments and sums of gradients in their type, instead of
	// keeping all of these in f32.
	NoMaster bool
}

func (o Optimizer) validate() error {
	for _, v := range []struct {
		name  string
		value float64
		ok    bool
	}{
		{"beta1", o.Beta1, o.Beta1 >= 0 && o.Beta1 < 1},
		{"beta2", o.Beta2, o.Beta2 >= 0 && o.Beta2 < 1},
		{"eps", o.Eps, o.Eps > 0},
		{"weight_decay", o.WeightDecay, o.WeightDecay >= 0},
		{"grad_clip", o.GradClip, o.GradClip >= 0},
	} {
		if !v.ok {
			return fmt.Errorf("gpt: optimizer: %s is %v, out of range", v.name, v.value)
		}
	}
	return nil
}

// TrainStep traces a whole training step on a batch of sequences of seqLen tokens: forward, loss, backward,
// clipping and AdamW.
//
// Inputs: ids and targets i32[B,T] (a negative target is ignored), positions
// i32[T], seed, step i32 (counted from 0), lr f32, and loss_weight f32, which is
// one over the number of targets that count. Outputs: loss, and grad_norm before
// clipping. Updates: every weight and its two moments.
//
// cfg.Float is the type of weights, activations and gradients [Micikevicius et al. 2018]. Unless it is f32 or
// opt.NoMaster is set, AdamW updates an f32 copy of each weight; gradients are summed in f32, and rounded to
// cfg.Float before ranks exchange them. With f16 the loss is multiplied by a scale that adapts itself, and
// there are two more outputs: see [trace.Scaler].
func TrainStep(cfg Config, opt Optimizer, batch, seqLen int) (*trace.Graph, error) {
	if err := opt.validate(); err != nil {
		return nil, err
	}
	if err := cfg.validateBatch(batch, seqLen); err != nil {
		return nil, err
	}
	t := trace.New("train").Float(cfg.Float)
	ids, targets, positions := inputs(t, batch, seqLen)
	random := trace.Stream{Seed: t.Input("seed", trace.I32), Step: t.Input("step", trace.I32)}
	lr, weight := t.Input("lr", trace.F32), t.Input("loss_weight", trace.F32)

	m := fullSequence(cfg, random)
	loss := m.loss(t, ids, targets, positions, weight)
	weights := t.Weights()
	adamw := trace.Optimizer{
		AdamWAttr: trace.AdamWAttr{Beta1: opt.Beta1, Beta2: opt.Beta2, Eps: opt.Eps, WeightDecay: opt.WeightDecay},
		Master:    !opt.NoMaster,
	}
	scaled := loss
	if cfg.Float == trace.F16 {
		adamw.Scaler = t.LossScaler(initialLossScale)
		scaled = t.Scope("loss_scale").Scale(loss, adamw.Scaler.Scale)
	}
	wide := trace.F32
	if opt.NoMaster {
		wide = cfg.Float
	}
	wrt := weights
	if cfg.LoRARank > 0 {
		// Nothing reads the gradient of the first block's input. It is requested so that all blocks are alike,
		// including their recomputation, which starts at this input.
		wrt = append(weights[:len(weights):len(weights)], m.stream)
	}
	grads := t.Grad(scaled, wrt, wide)[:len(weights)]

	t = t.Phase(trace.Update)
	norm, clip := clipped(t, opt.GradClip, adamw.Scaler, weights, grads)
	for i, w := range weights {
		t.AdamW(w, grads[i], clip, lr, random.Step, adamw)
	}
	t.Output("loss", loss)
	t.Output("grad_norm", norm)
	return t.Finish()
}

// initialLossScale is the default of torch.amp.GradScaler.
const initialLossScale = 65536

// clipped returns the global norm of the gradients and the factor that clips them to norm most (0 is off). With
// a scaler the gradients are scaled: norm is that of the unscaled ones, and the factor also undoes the scale.
// In a step that is to be skipped the norm is not finite, and the factor is not positive.
func clipped(t *trace.Tracer, most float64, scaler *trace.Scaler, weights, grads []trace.Tensor) (norm, factor trace.Tensor) {
	at := t.Scope("grad_norm")
	norm = at.GlobalNorm(weights, grads)
	if scaler == nil {
		if most == 0 {
			return norm, at.Const("no_clip", trace.F32, 1)
		}
		return norm, at.ClipScale(norm, most)
	}
	// The defaults of torch.amp.GradScaler.
	unscale := scaler.Step(t.Scope("loss_scale"), norm, trace.LossScaleAttr{Growth: 2, Backoff: 0.5, Interval: 2000})
	norm = at.Scale(norm, unscale)
	if most == 0 {
		return norm, unscale
	}
	return norm, at.Scale(at.ClipScale(norm, most), unscale)
}

// EvalStep traces forward pass and loss without dropout. Inputs: ids, targets, positions and loss_weight as in
// TrainStep. Output: loss.
func EvalStep(cfg Config, batch, seqLen int) (*trace.Graph, error) {
	if err := cfg.validateBatch(batch, seqLen); err != nil {
		return nil, err
	}
	t := trace.New("eval").Float(cfg.Float)
	ids, targets, positions := inputs(t, batch, seqLen)
	weight := t.Input("loss_weight", trace.F32)
	t.Output("loss", withoutDropout(t, cfg).loss(t, ids, targets, positions, weight))
	return t.Finish()
}

// Logits traces the forward pass without dropout. Inputs: ids i32[B,T] and
// positions i32[T]. Output: logits [B,T,V].
func Logits(cfg Config, batch, seqLen int) (*trace.Graph, error) {
	if err := cfg.validateBatch(batch, seqLen); err != nil {
		return nil, err
	}
	t := trace.New("logits").Float(cfg.Float)
	ids := t.Input("ids", trace.I32, batch, seqLen)
	positions := t.Input("positions", trace.I32, seqLen)
	t.Output("logits", withoutDropout(t, cfg).logits(t, ids, positions))
	return t.Finish()
}

// Decode traces the forward pass of one token per sequence. The keys and values of up to maxLen tokens are in
// h.N.attn.cache [B,maxLen,2,KV,D]. Inputs: ids i32[B,1], and the position of the token twice, as positions
// i32[1] and pos i32. Output: logits [B,1,V]. Updates: the caches. Feeding the tokens of a sequence at
// positions 0, 1, 2, ... gives the rows of Logits.
func Decode(cfg Config, batch, maxLen int) (*trace.Graph, error) {
	if err := cfg.validateBatch(batch, maxLen); err != nil {
		return nil, err
	}
	t := trace.New("decode").Float(cfg.Float)
	ids := t.Input("ids", trace.I32, batch, 1)
	positions := t.Input("positions", trace.I32, 1)
	pos := t.Input("pos", trace.I32)
	cfg.Dropout, cfg.LoRADropout = 0, 0
	m := &model{Config: cfg, adapted: cfg.Adapted()}
	m.attention = func(t *trace.Tracer, qkv trace.Tensor) trace.Tensor {
		shape := []int{batch, maxLen, 2, cfg.KVHeads(), cfg.HeadDim()}
		return t.AttentionDecode(qkv, t.Param("cache", shape, trace.ParamAttr{State: true}), pos)
	}
	t.Output("logits", m.logits(t, ids, positions))
	return t.Finish()
}

// loss is the weighted sum of the cross-entropy of every token.
func (m *model) loss(t *trace.Tracer, ids, targets, positions, weight trace.Tensor) trace.Tensor {
	logits := m.logits(t, ids, positions)
	t = t.Scope("loss")
	return t.Scale(t.Sum(t.CrossEntropy(logits, targets)), weight)
}

func inputs(t *trace.Tracer, batch, seqLen int) (ids, targets, positions trace.Tensor) {
	return t.Input("ids", trace.I32, batch, seqLen),
		t.Input("targets", trace.I32, batch, seqLen),
		t.Input("positions", trace.I32, seqLen)
}

// fullSequence returns the model that attends over whole sequences.
func fullSequence(cfg Config, random trace.Stream) *model {
	m := &model{Config: cfg, random: random, adapted: cfg.Adapted()}
	m.attention = func(t *trace.Tracer, qkv trace.Tensor) trace.Tensor {
		return t.Attention(qkv, m.Dropout, m.random)
	}
	return m
}

// withoutDropout returns fullSequence for evaluation: it draws no random numbers.
func withoutDropout(t *trace.Tracer, cfg Config) *model {
	cfg.Dropout, cfg.LoRADropout = 0, 0
	return fullSequence(cfg, trace.Stream{Seed: t.Const("seed", trace.I32, 0), Step: t.Const("step", trace.I32, 0)})
}

// validateBatch checks the configuration together with the size of a batch.
func (c Config) validateBatch(batch, seqLen int) error {
	if err := c.Validate(); err != nil {
		return err
	}
	if batch < 1 {
		return fmt.Errorf("gpt: batch of %d sequences, want at least 1", batch)
	}
	if seqLen < 1 || seqLen > c.BlockSize {
		return fmt.Errorf("gpt: sequences of %d tokens, want 1 to block_size %d", seqLen, c.BlockSize)
	}
	return nil
}
