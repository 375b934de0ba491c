package gpt

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/interp"
)

var adamW = Optimizer{Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.1, GradClip: 1}

func trainStep(t *testing.T, c Config, opt Optimizer, batch, seqLen int) *ir.Graph {
	t.Helper()
	g, err := TrainStep(c, opt, batch, seqLen)
	require.NoError(t, err)
	require.NoError(t, g.Verify())
	return g
}

// odd returns a small model of odd sizes.
func odd(bias bool, dropout float64) Config {
	c := DefaultConfig()
	c.NLayer, c.NHead, c.NEmbd, c.BlockSize, c.VocabSize = 3, 3, 15, 11, 13
	c.FFNHidden, c.Bias, c.Dropout = 17, bias, dropout
	return c
}

// llama returns a small model of odd sizes with Llama's choices.
func llama(bias bool, dropout float64) Config {
	c := odd(bias, dropout)
	c.NEmbd, c.Activation, c.Norm, c.Position, c.TieEmbeddings = 18, SwiGLU, RMSNorm, RoPE, false
	return c
}

func count(g *ir.Graph, phase ir.Phase) (nodes int) {
	for _, n := range g.Nodes {
		if n.Phase == phase && n.Op.Class() == ir.Compute {
			nodes++
		}
	}
	return nodes
}

func TestCounts(t *testing.T) {
	quick, err := Preset("quick")
	require.NoError(t, err)
	configs := []Config{quick, odd(true, 0), odd(false, 0.1), odd(true, 0.1), llama(true, 0), llama(false, 0.1)}
	for choice := range 16 { // each of Llama's choices with and without the others
		c, all := odd(choice%3 == 0, 0.1), llama(false, 0)
		c.NEmbd = all.NEmbd
		if choice&1 != 0 {
			c.Activation = all.Activation
		}
		if choice&2 != 0 {
			c.Norm = all.Norm
		}
		if choice&4 != 0 {
			c.Position = all.Position
		}
		c.TieEmbeddings = choice&8 == 0
		configs = append(configs, c)
	}
	for _, c := range configs {
		g := trainStep(t, c, adamW, 5, 11)
		decay, noDecay := c.ParamGroups()
		weights := decay.Tensors + noDecay.Tensors

		// Per block: two norms, four matmuls, attention, GELU, two residual sums.
		perBlock, ends := 10, 3+2+4+2 // embedding; final norm and head; cross-entropy; sum and scale
		// Backward: 1 each for norms, attention and GELU, two for each matmul, two
		// sums of residual gradients; embeddings and the sum over the batch.
		perBlockBackward, endsBackward := 2+1+1+4*2+2, 3+1+2+3
		tied := 1 // the sum over a tied table's uses
		if c.Position == RoPE {
			// A rotation each way; no places to embed and add, nor to sum their gradient over the batch.
			perBlock, perBlockBackward, ends, endsBackward = perBlock+1, perBlockBackward+1, ends-2, endsBackward-2
		}
		if !c.TieEmbeddings {
			tied = 0
		}
		if c.Bias {
			perBlock += 4
			perBlockBackward += 4
		}
		if c.Dropout > 0 {
			perBlock, ends = perBlock+2, ends+1
			perBlockBackward, endsBackward = perBlockBackward+2, endsBackward+1
		}
		require.Equal(t, c.NLayer*perBlock+ends, count(g, ir.Forward))
		require.Equal(t, c.NLayer*perBlockBackward+endsBackward, count(g, ir.Backward))
		// The tied table's sum; then norm and AdamW.
		require.Equal(t, tied+weights+3+weights, count(g, ir.Update))

		var got [2]ParamGroup
		state := int64(0)
		for _, p := range g.Params() {
			attr := p.Def.Attr.(ir.ParamAttr)
			if attr.State {
				state += p.Type.Elems()
				continue
			}
			group := &got[1]
			if attr.Decay {
				group = &got[0]
			}
			group.Tensors++
			group.Elements += p.Type.Elems()
			adam := g.Find(p.Name() + "/adamw").Attr.(ir.AdamWAttr)
			require.Equal(t, attr.Decay, adam.WeightDecay > 0, p.Name())
		}
		require.Equal(t, [2]ParamGroup{decay, noDecay}, got)
		require.Equal(t, 2*c.NumParams(), state)
		require.Len(t, g.Updates, 3*weights)
	}

	decay, noDecay := quick.ParamGroups()
	require.Equal(t, ParamGroup{18, 802_944}, decay)
	require.Equal(t, ParamGroup{9, 1_152}, noDecay)
}

// The products of the forward pass are the ForwardFLOPs of the formulas, exactly.
func TestFLOPsOfTheGraph(t *testing.T) {
	for _, c := range []Config{odd(true, 0), llama(true, 0), llama(false, 0)} {
		g, err := Logits(c, 1, c.BlockSize)
		require.NoError(t, err)
		products := int64(0)
		for _, n := range g.Nodes {
			if n.Op == ir.OpMatMul {
				args := [][]int{n.Args[0].Type.Shape, n.Args[1].Type.Shape}
				products += int64(ir.SignatureOf(n).FLOPs(args, [][]int{n.Results[0].Type.Shape}))
			}
		}
		scores := 4 * int64(c.NLayer*c.NEmbd) * int64(c.BlockSize*c.BlockSize)
		require.Equal(t, c.ForwardFLOPs().Total()-scores, products)
	}
}

// Nodes come in the order embedding, h.0, ..., head; then back; then the sums of
// squares and the updates in the order of the weights.
func TestBlocksAreContiguous(t *testing.T) {
	g := trainStep(t, odd(true, 0.1), adamW, 5, 7)
	var got []string
	section := ""
	for _, n := range g.Nodes {
		if n.Phase == ir.Update {
			part := n.Name[strings.LastIndexAny(n.Name, "/.@")+1:]
			if n.Op == ir.OpParam {
				part = "adamw" // moments are declared beside their update
			}
			section = part
		} else {
			section = n.Phase.String()
		}
		if entry := section + " " + n.Block(); len(got) == 0 || got[len(got)-1] != entry {
			got = append(got, entry)
		}
	}
	require.Equal(t, []string{
		"fwd ", "fwd h.0", "fwd h.1", "fwd h.2", "fwd ",
		"bwd ", "bwd h.2", "bwd h.1", "bwd h.0", "bwd ",
		"grad ",
		"sum_squares ", "sum_squares h.0", "sum_squares h.1", "sum_squares h.2", "sum_squares ",
		"add_n ", "sqrt ", "clip_scale ",
		"adamw ", "adamw h.0", "adamw h.1", "adamw h.2", "adamw ",
	}, got)
}

// Blocks differ in the number in their names only.
func TestBlocksAreAlike(t *testing.T) {
	g := trainStep(t, odd(true, 0.1), adamW, 5, 7)
	ops := map[string][]string{}
	for _, n := range g.Nodes {
		if b := n.Block(); b != "" {
			ops[b] = append(ops[b], n.Phase.String()+strings.TrimPrefix(n.Name, b))
			require.NotEmpty(t, n.Pos, n.Name)
		}
	}
	require.Len(t, ops, 3)
	require.Equal(t, ops["h.0"], ops["h.1"])
	require.Equal(t, ops["h.0"], ops["h.2"])
}

func TestStepWithoutClip(t *testing.T) {
	opt := adamW
	opt.GradClip = 0
	g := trainStep(t, odd(false, 0), opt, 2, 3)
	require.Nil(t, g.Find("grad_norm/clip_scale"))
	clip := g.Find("wte.weight/adamw").Args[4]
	require.Equal(t, ir.ConstAttr{Value: 1}, clip.Def.Attr)
	require.NotNil(t, g.Output("grad_norm"), "the norm is still reported")
}

func TestDropoutSites(t *testing.T) {
	sites := func(g *ir.Graph) map[string]int {
		keys := map[string]int{}
		for _, n := range g.Nodes {
			if a, ok := n.Attr.(ir.DropoutAttr); ok && a.P > 0 {
				require.Equal(t, 0.1, a.P)
				require.True(t, strings.HasPrefix(n.Name, a.Key), "%s draws from %s", n.Name, a.Key)
				keys[a.Key]++
			}
		}
		return keys
	}
	c := odd(true, 0.1)
	got := sites(trainStep(t, c, adamW, 5, 7))
	require.Len(t, got, 1+3*c.NLayer)
	for key, nodes := range got {
		require.Equal(t, 2, nodes, "%s: once forward, once backward", key)
	}
	for _, key := range []string{"embed/dropout", "h.0.attn/attention", "h.1.attn/dropout", "h.2.mlp/dropout"} {
		require.Contains(t, got, key)
	}

	eval, err := EvalStep(c, 5, 7)
	require.NoError(t, err)
	require.NoError(t, eval.Verify())
	require.Empty(t, sites(eval))
}

// All graphs declare the same weights, so any one's parameters feed the others.
func TestGraphsShareWeights(t *testing.T) {
	c := odd(true, 0.1)
	weights := func(g *ir.Graph, err error) []string {
		require.NoError(t, err)
		require.NoError(t, g.Verify())
		var out []string
		for _, p := range g.Params() {
			if a := p.Def.Attr.(ir.ParamAttr); !a.State {
				out = append(out, p.Name()+" "+p.Type.String())
			}
		}
		return out
	}
	want := weights(TrainStep(c, adamW, 5, 7))
	require.Equal(t, want, weights(EvalStep(c, 5, 7)))
	require.Equal(t, want, weights(Logits(c, 5, 7)))
	require.Equal(t, want, weights(Decode(c, 5, 7)))

	inputs := func(g *ir.Graph, err error) string {
		require.NoError(t, err)
		var names []string
		for _, v := range g.Inputs() {
			names = append(names, v.Name())
		}
		return strings.Join(names, " ")
	}
	require.Equal(t, "ids targets positions seed step lr loss_weight", inputs(TrainStep(c, adamW, 5, 7)))
	require.Equal(t, "ids targets positions loss_weight", inputs(EvalStep(c, 5, 7)))
	require.Equal(t, "ids positions", inputs(Logits(c, 5, 7)))
	require.Equal(t, "ids positions pos", inputs(Decode(c, 5, 7)))
}

// A traced step prints, as text and as JSON, and parses back.
func TestRoundTrip(t *testing.T) {
	g := trainStep(t, odd(true, 0.1), adamW, 5, 7)
	text := g.String()
	parsed, err := ir.Parse("train", text)
	require.NoError(t, err)
	require.Equal(t, text, parsed.String())

	data, err := json.Marshal(g)
	require.NoError(t, err)
	var decoded ir.Graph
	require.NoError(t, json.Unmarshal(data, &decoded))
	require.Equal(t, text, decoded.String())
}

func TestInit(t *testing.T) {
	c := odd(true, 0)
	g := trainStep(t, c, adamW, 1, 1)
	residual := 0.02 / math.Sqrt(2*float64(c.NLayer))
	for _, p := range g.Params() {
		name, want := p.Name(), ir.ParamAttr{Init: ir.InitNormal, Std: 0.02, Decay: true}
		switch {
		case p.Def.Attr.(ir.ParamAttr).State:
			want = ir.ParamAttr{Init: ir.InitZeros, State: true}
		case strings.HasSuffix(name, "bias"):
			want = ir.ParamAttr{Init: ir.InitZeros}
		case strings.Contains(name, "ln_"):
			want = ir.ParamAttr{Init: ir.InitOnes}
		case strings.HasSuffix(name, "c_proj.weight"):
			want.Std = residual
		}
		require.Equal(t, want, p.Def.Attr, name)
	}

	for _, name := range []string{"wte.weight", "h.1.mlp.c_proj.weight"} {
		attr := g.Find(name).Attr.(ir.ParamAttr)
		draws := interp.InitParam(name, attr, ir.Type{Shape: []int{1000, 1000}}, 1337).F
		sum, squares := 0.0, 0.0
		for _, x := range draws {
			sum += x
			squares += x * x
		}
		n := float64(len(draws))
		require.InEpsilon(t, attr.Std, math.Sqrt(squares/n), 0.01, name)
		require.InDelta(t, 0, sum/n, 5*attr.Std/math.Sqrt(n), name)
	}
}

func TestStored(t *testing.T) {
	c := odd(true, 0)
	g := trainStep(t, c, adamW, 1, 1)
	var turned []string
	seen := map[string]bool{}
	for _, p := range g.Params() {
		stored := c.Stored(p.Name(), GPT2)
		if p.Def.Attr.(ir.ParamAttr).State {
			require.Empty(t, stored, p.Name())
			continue
		}
		require.Len(t, stored, 1)
		s, nano := stored[0], c.Stored(p.Name(), NanoGPT)[0]
		require.Equal(t, "transformer."+p.Name(), s.Name)
		require.Equal(t, s.Name, nano.Name)
		require.Equal(t, p.Type.Shape, s.Of)
		require.Equal(t, p.Type.Elems(), ir.Elems(s.Shape), s.Name)
		require.Equal(t, p.Def.Attr.(ir.ParamAttr).Decay, len(s.Shape) == 2, "nanoGPT decays what has two dimensions: %s", s.Name)
		require.False(t, seen[s.Name])
		seen[s.Name] = true
		if !slices.IsSorted(s.Order) {
			turned = append(turned, strings.TrimPrefix(s.Name, "transformer.h.1."))
			require.Equal(t, []int{nano.Shape[1], nano.Shape[0]}, s.Shape)
		}
		require.True(t, slices.IsSorted(nano.Order))
	}
	turned = slices.DeleteFunc(turned, func(s string) bool { return strings.HasPrefix(s, "transformer.") })
	require.Equal(t, []string{"attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"}, turned)

	require.Equal(t, []int{45}, c.Stored("h.2.attn.c_attn.bias", GPT2)[0].Shape)
	require.Equal(t, []int{17, 15}, c.Stored("h.2.mlp.c_proj.weight", GPT2)[0].Shape)
	for _, name := range []string{"lm_head.weight", "h.0.attn.bias", "h.0.attn.masked_bias", "h.0.ln_1", "h.0.ln_f.weight", "ln_1.weight", "weight", ""} {
		require.Empty(t, c.Stored(name, GPT2), "%q", name)
	}
}

// TestStoredLlama: each parameter of a Llama, with grouped queries or without, is in one to three tensors, each element in one.
func TestStoredLlama(t *testing.T) {
	for _, kvHeads := range []int{6, 2, 1} {
		c := Config{
			NLayer: 2, NHead: 6, NKVHead: kvHeads, NEmbd: 24, FFNHidden: 20, BlockSize: 8, VocabSize: 11,
			Activation: SwiGLU, Norm: RMSNorm, Position: RoPE,
		}
		var names []string
		for _, p := range trainStep(t, c, adamW, 1, 1).Params() {
			if p.Def.Attr.(ir.ParamAttr).State {
				continue
			}
			from := 0
			for _, s := range c.Stored(p.Name(), Llama) {
				names = append(names, s.Name)
				require.Equal(t, p.Type.Shape, s.Of, s.Name)
				require.Equal(t, from, s.From)
				from = s.To
				require.Equal(t, ir.Elems(s.Of)/int64(s.Of[0])*int64(s.To-s.From), ir.Elems(s.Shape), s.Name)
				require.Len(t, s.Order, len(s.Of))
			}
			require.Equal(t, p.Type.Shape[0], from, p.Name())
		}
		require.Subset(t, names, []string{
			"model.embed_tokens.weight", "model.layers.1.input_layernorm.weight", "model.layers.1.self_attn.q_proj.weight",
			"model.layers.1.self_attn.k_proj.weight", "model.layers.1.self_attn.v_proj.weight", "model.layers.1.self_attn.o_proj.weight",
			"model.layers.1.post_attention_layernorm.weight", "model.layers.1.mlp.gate_proj.weight", "model.layers.1.mlp.up_proj.weight",
			"model.layers.1.mlp.down_proj.weight", "model.norm.weight", "lm_head.weight",
		})
		require.Len(t, names, 3+9*2)
	}
}

func TestRefusals(t *testing.T) {
	c := odd(false, 0)
	bad := c
	bad.NHead = 4
	badBeta := adamW
	badBeta.Beta2 = 1
	tests := []struct {
		name  string
		build func() (*ir.Graph, error)
		want  string
	}{
		{"config", func() (*ir.Graph, error) { return TrainStep(bad, adamW, 1, 1) }, "n_embd: 15 does not divide by n_head 4"},
		{"optimizer", func() (*ir.Graph, error) { return TrainStep(c, badBeta, 1, 1) }, "beta2 is 1, out of range"},
		{"batch", func() (*ir.Graph, error) { return EvalStep(c, 0, 1) }, "batch of 0 sequences, want at least 1"},
		{"length", func() (*ir.Graph, error) { return Logits(c, 1, 12) }, "sequences of 12 tokens, want 1 to block_size 11"},
		{"no length", func() (*ir.Graph, error) { return Decode(c, 1, 0) }, "sequences of 0 tokens, want 1 to block_size 11"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := tt.build()
			require.ErrorContains(t, err, tt.want)
		})
	}
}

// TestGradientsAreSummedInFloat32: in 16-bit types each use of a weight casts its part of the gradient to f32
// before anything adds it, unless there are no master weights.
func TestGradientsAreSummedInFloat32(t *testing.T) {
	for _, c := range []struct {
		opt  Optimizer
		sum  ir.DType
		grad ir.DType
	}{
		{Optimizer{Eps: 1e-8, GradClip: 1}, ir.F32, ir.BF16},
		{Optimizer{Eps: 1e-8, GradClip: 1, NoMaster: true}, ir.BF16, ir.BF16},
	} {
		cfg := preset(t, "quick")
		cfg.Float = ir.BF16
		g, err := TrainStep(cfg, c.opt, 2, 5)
		require.NoError(t, err)
		require.NoError(t, g.Verify())
		for _, n := range g.Nodes {
			if n.Op != ir.OpAdamW {
				continue
			}
			require.Equal(t, c.grad, n.Args[3].Type.DType, "%s: what ranks exchange", n.Name)
			sum := n.Args[3]
			if sum.Def.Op == ir.OpCast {
				sum = sum.Def.Args[0]
			}
			require.Equal(t, c.sum, sum.Type.DType, "%s: what micro-batches add to", n.Name)
			require.Equal(t, c.sum, n.Args[0].Type.DType, "%s: what is updated", n.Name)
			require.Equal(t, c.sum, n.Results[1].Type.DType, "%s: moments", n.Name)
		}
	}
}
