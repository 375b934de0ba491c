package export

import (
	"fmt"
	"strings"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
)

// megatron writes a script with arguments of Megatron-LM as of August 2026 (d98e8a64, megatron/training/arguments.py and the
// configurations it is made of). Megatron's pipelines run 1F1B, interleaved or not. Its distributed optimizer is ZeRO 1;
// Megatron-FSDP shards gradients (ZeRO 2) and parameters (ZeRO 3), too.
func (p *plan) megatron(o Options) string {
	p.foreign()
	cfg, m := p.Config, &p.Config.Model
	a := &arguments{}

	a.add("tensor-model-parallel-size", p.TP)
	a.add("pipeline-model-parallel-size", p.PP())
	if cp := p.ContextParallel(); cp > 1 {
		a.add("context-parallel-size", cp)
		a.add("cp-comm-type", "all_gather")
	}
	a.flag(p.SequenceParallel && p.TP > 1, "sequence-parallel")
	p.lack(p.PP() > 1 && p.Schedule != partition.OneFOneB && p.Schedule != partition.Interleaved, "schedule %s: plan with --schedule 1f1b or interleaved", p.Schedule)
	if p.PP() > 1 && (p.Chunks() > 1 || p.most()*len(p.Stages) != m.NLayer) {
		a.add("pipeline-model-parallel-layout", p.layout())
	}
	switch usual, outside := p.numbered(partition.UsualOrder), p.numbered("tp-cp-pp-dp"); {
	case usual:
	case outside:
		a.flag(true, "use-tp-pp-dp-mapping")
	default:
		p.lack(true, "ranks in this order, units outermost: plan with --rank-order tp-cp-dp-pp and one unit")
	}
	a.add("micro-batch-size", p.MicroBatch)
	a.add("global-batch-size", cfg.Batch.Global)
	p.megatronZeRO(a)
	blocks, attention, ok := p.recomputation()
	p.lack(!ok, "another number of recomputed blocks in each stage, or norms and activation functions alone: plan with --recompute full, selective or none")
	switch {
	case attention:
		a.add("recompute-granularity", "selective")
	case blocks > 0:
		a.add("recompute-granularity", "full")
		a.add("recompute-method", "block")
		a.add("recompute-num-layers", blocks)
	}

	p.lack(m.FFN()%p.TP != 0, "an MLP of width %d over %d tensor-parallel ranks: plan with a --tp that divides it", m.FFN(), p.TP)
	cp := p.ContextParallel()
	p.lack(cp > 1 && m.BlockSize%(2*cp) != 0 || p.SequenceParallel && m.BlockSize%(p.TP*cp) != 0,
		"%d tokens, of which context- and sequence-parallel ranks get unequal parts: plan with a --tp and --cp that divide them", m.BlockSize)
	a.add("num-layers", m.NLayer)
	a.add("hidden-size", m.NEmbd)
	a.add("ffn-hidden-size", m.FFN())
	a.add("num-attention-heads", m.NHead)
	if m.KVHeads() != m.NHead {
		a.flag(true, "group-query-attention")
		a.add("num-query-groups", m.KVHeads())
	}
	a.add("seq-length", m.BlockSize)
	a.add("max-position-embeddings", m.BlockSize)
	a.add("make-vocab-size-divisible-by", 1)
	p.note(m.VocabSize%p.TP != 0, "the vocabulary of %d is padded to a multiple of %d", m.VocabSize, p.TP)
	a.add("attention-dropout", m.Dropout)
	a.add("hidden-dropout", m.Dropout)
	if m.Norm == gpt.RMSNorm {
		a.add("normalization", "RMSNorm")
	}
	if m.NormEps > 0 {
		a.add("norm-epsilon", m.NormEps)
	}
	p.note(m.Norm == gpt.LayerNorm && !m.Bias, "LayerNorm has biases")
	if m.Position == gpt.RoPE {
		a.add("position-embedding-type", "rope")
		a.add("rotary-base", int(m.Theta()))
		p.note(m.Theta() != float64(int(m.Theta())), "the base of rope is %d", int(m.Theta()))
		if r := m.Rotation(); r.Factor > 0 {
			a.flag(true, "use-rope-scaling")
			a.add("rope-scaling-factor", r.Factor)
			p.note(r.Low != 1 || r.High != 4 || r.Original != 8192, "the long waves of rope are those that turn once to 4 times in 8192 positions")
		}
	}
	a.flag(!m.TieEmbeddings, "untie-embeddings-and-output-weights")
	a.flag(!m.Bias, "disable-bias-linear")
	a.flag(m.Activation == gpt.SwiGLU, "swiglu")
	a.flag(m.Activation == gpt.GELU, "no-bias-gelu-fusion") // the fused kernel computes the tanh form
	p.note(m.Activation == gpt.GELUTanh && !m.Bias, "GELU is the exact form")

	p.megatronTraining(a)
	a.flag(p.Chunks() > 1 && !p.OverlapP2P && p.PP() > 2, "no-overlap-p2p-communication")
	p.note(p.Chunks() > 1 && !p.OverlapP2P && p.PP() == 2, "stages do not wait for what they send, as in Megatron only 3 positions or more do under interleaved schedules")
	p.note(p.Chunks() == 1 && p.OverlapP2P, "stages wait for what they send, as Megatron has them go on under interleaved schedules alone")
	p.note(p.TP > 1 && !p.OverlapTP, "tensor-parallel ranks communicate beside the products of the backward pass")
	env := ""
	if p.ZeRO < 2 && (p.TP > 1 || p.ContextParallel() > 1) {
		env = "export CUDA_DEVICE_MAX_CONNECTIONS=1\n"
	}
	return "#!/bin/sh\n" + p.header(o,
		"Start it on every node in a checkout of Megatron-LM, with the arguments of data and tokenizer:",
		fmt.Sprintf("  NODE_RANK=0 MASTER_ADDR=HOST sh FILE --data-path ... --tokenizer-type ... (vocabulary %d)", m.VocabSize),
	) + "set -eu\n" + env +
		fmt.Sprintf("exec torchrun --nnodes %d --nproc-per-node %d --node-rank \"${NODE_RANK:-0}\" \\\n", p.machines, p.perNode) +
		"  --master-addr \"${MASTER_ADDR:-127.0.0.1}\" --master-port \"${MASTER_PORT:-29500}\" \\\n  pretrain_gpt.py \\\n" + a.text.String() + "  \"$@\"\n"
}

// megatronZeRO adds the arguments of what data-parallel and context-parallel ranks shard, and of what overlaps.
func (p *plan) megatronZeRO(a *arguments) {
	switch {
	case p.DataParallel()*p.ContextParallel() == 1:
		return
	case p.ZeRO == 1:
		a.flag(true, "use-distributed-optimizer")
		a.flag(p.Overlap, "overlap-param-gather")
	case p.ZeRO >= 2:
		p.lack(p.PP() > 1, "ZeRO %d beside a pipeline: plan with --zero 1", p.ZeRO)
		a.flag(true, "use-distributed-optimizer")
		a.flag(true, "use-megatron-fsdp")
		a.add("data-parallel-sharding-strategy", map[int]string{2: "optim_grads", 3: "optim_grads_params"}[p.ZeRO])
		a.add("ckpt-format", "fsdp_dtensor")
		a.flag(p.Overlap, "overlap-param-gather")
		p.note(!p.Overlap, "Megatron-FSDP %s beside the computation", map[int]string{2: "reduces gradients", 3: "reduces gradients and gathers parameters"}[p.ZeRO])
	}
	if p.Copies() > 1 {
		a.add("num-distributed-optimizer-instances", p.Copies())
	}
	a.flag(p.Overlap, "overlap-grad-reduce")
}

// megatronTraining adds the arguments of the training itself.
func (p *plan) megatronTraining(a *arguments) {
	t, o := &p.Config.Train, &p.Config.Optimizer
	switch t.DType {
	case "bfloat16":
		a.flag(true, "bf16")
	case "float16":
		a.flag(true, "fp16")
		a.flag(true, "accumulate-allreduce-grads-in-fp32") // of bfloat16 it is the default
		a.add("initial-loss-scale", 65536)                 // these are the scaler's of gpt.TrainStep
		a.add("loss-scale-window", 2000)
		a.add("hysteresis", 1)
	}
	p.note(t.DType != "float32" && p.DataParallel() > 1, "gradients are summed over ranks in 4 bytes, not 2")
	p.lack(!t.MasterWeights, "training without master weights")
	a.add("train-iters", t.MaxIters+1)
	a.add("lr", o.LearningRate)
	if o.DecayLR {
		p.lack(o.WarmupIters >= o.LRDecayIters, "a warmup of %d iterations and a decay that ends at %d: plan with optimizer.warmup_iters below optimizer.lr_decay_iters", o.WarmupIters, o.LRDecayIters)
		if o.Schedule != config.Constant { // it is not used then, and Megatron refuses one above lr
			a.add("min-lr", o.MinLR)
		}
		a.add("lr-warmup-iters", o.WarmupIters)
		if o.WarmupIters > 0 && !o.WarmupFromZero {
			a.add("lr-warmup-init", o.LearningRate/(float64(o.WarmupIters)+1))
		}
		a.add("lr-decay-iters", o.LRDecayIters)
	}
	a.add("lr-decay-style", map[bool]string{true: "cosine", false: "constant"}[o.DecayLR && o.Schedule != config.Constant])
	a.add("weight-decay", o.WeightDecay)
	a.add("adam-beta1", o.Beta1)
	a.add("adam-beta2", o.Beta2)
	a.add("adam-eps", o.Eps)
	a.add("clip-grad", o.GradClip)
	a.add("eval-interval", t.EvalInterval)
	a.add("eval-iters", t.EvalIters)
	a.add("log-interval", t.LogInterval)
	a.add("seed", t.Seed)
}

// layout is the value of --pipeline-model-parallel-layout: E is the embedding, t a block and L the loss, with a bar between
// stages.
func (p *plan) layout() string {
	stages := make([]string, len(p.Stages))
	for i, s := range p.Stages {
		if n := s.Last - s.First; n > 0 {
			stages[i] = fmt.Sprintf("t*%d", n)
		}
	}
	stages[0] = strings.TrimSuffix("E,"+stages[0], ",")
	stages[len(stages)-1] = strings.TrimPrefix(stages[len(stages)-1]+",L", ",")
	return strings.Join(stages, "|")
}

// arguments are the arguments of a command, one on each line.
type arguments struct{ text strings.Builder }

func (a *arguments) add(name string, value any) {
	fmt.Fprintf(&a.text, "  --%s %s \\\n", name, Quote(fmt.Sprint(value)))
}

func (a *arguments) flag(when bool, name string) {
	if when {
		fmt.Fprintf(&a.text, "  --%s \\\n", name)
	}
}
