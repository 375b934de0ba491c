package codegen_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
)

// partsBatch is a batch that one, two and three data-parallel ranks share equally.
const partsBatch = 6

// partsGraphs are a step of a GPT-2 with tied tables, of a Llama in 16 bits, and of adapters of a GPT-2.
func partsGraphs(t *testing.T, layers int) (all []*ir.Graph) {
	for i := range 3 {
		m := model(layers)
		m.BlockSize, m.NEmbd, m.NHead, m.NKVHead = 128, 96, 3, 3
		switch i {
		case 1:
			m.Position, m.Norm, m.Activation, m.TieEmbeddings, m.Bias, m.Float = gpt.RoPE, gpt.RMSNorm, gpt.SwiGLU, false, false, ir.BF16
		case 2:
			m.LoRARank, m.LoRAAlpha, m.LoRATargets = 2, 4, "attn.*|mlp.c_fc"
		}
		g, err := gpt.TrainStep(m, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, WeightDecay: .1, GradClip: 1}, partsBatch, m.BlockSize)
		require.NoError(t, err)
		all = append(all, g)
	}
	return all
}

// partsPlan is one of many plans with parts of sequences.
func partsPlan(k, layers int) *partition.Plan {
	p := plan(1+k%3, 2, 1+k/3%2, 1+k/2%2, layers, partition.OneFOneB, false)
	switch k / 4 % 5 {
	case 1:
		p = plan(1+k%3, 2, 2, 1+k/2%2, layers, partition.ZeroBubble, false)
	case 2:
		p = chunked(plan(1+k%3, 2, 4, 1+k%2, layers, partition.OneFOneB, false), 2)
	}
	p.SequenceParallel, p.SequenceParts, p.TPPieces = true, 2+2*(k%2), 2+k/2%3
	p.OverlapTP, p.Overlap = k/3%2 == 0 && p.Schedule != partition.ZeroBubble, k/5%2 == 0
	if p.DP > 1 {
		p.ZeRO = k / 2 % 4
	}
	switch {
	case k%4 == 3:
		p.LossSlices = 2
	case k%6 == 0 || k%10 == 4: // in two parts
		p.CP, p.PlanNGPUs, p.RuntimeNGPUs = 2, 2*p.PlanNGPUs, 2*p.RuntimeNGPUs
	}
	recomputeOne(p, k)
	return p
}

// TestVerifyAcceptsSequenceParts: programs that cut sequences in parts are sound and compute the traced graph. Micro-batches
// of one sequence are made in pieces, and ranks communicate the same bytes as without parts and pieces.
func TestVerifyAcceptsSequenceParts(t *testing.T) {
	const layers = 4
	for i, g := range partsGraphs(t, layers) {
		for k := range 60 {
			p := partsPlan(k, layers)
			if i == 1 {
				p.Placements = slices.DeleteFunc(slices.Clone(p.Placements), func(x partition.Placement) bool { return strings.Contains(x.Match, "bias") })
				for j := range p.Placements {
					if strings.Contains(p.Placements[j].Match, "c_fc") {
						p.Placements[j].Spec = "[_,tp,_]" // gate and up
					}
				}
			}
			name := fmt.Sprintf("%d: %+v", i, *p)
			prog, err := codegen.Compile(g, p, partsBatch, nil)
			require.NoError(t, err, name)
			require.NoError(t, codegen.Verify(prog, g), name)
			made := 0
			for _, st := range prog.Stages {
				made += len(pieces(st.Bodies[ir.Forward].Instrs))
			}
			if i < 2 { // adapters stand between products and collectives
				require.GreaterOrEqual(t, made, 4*layers*2*p.TPPieces, name)
			}
		}
	}
}

// TestVerifyRefusesWrongParts: attention that joins other rows, rotary positions that are not given by row, and another
// number of rows than parts are not what the graph computes.
func TestVerifyRefusesWrongParts(t *testing.T) {
	g := partsGraphs(t, 1)[1]
	for name, c := range map[string]struct {
		op   ir.Op
		bend func(n *ir.Node)
		says string
	}{
		"rows are sequences": {ir.OpAttention, func(n *ir.Node) { n.Attr = ir.DropoutAttr{P: .2, Key: n.Attr.(ir.DropoutAttr).Key} }, "h.0.attn"},
		"more rows":          {ir.OpAttention, func(n *ir.Node) { n.Attr = ir.DropoutAttr{P: .2, Key: n.Attr.(ir.DropoutAttr).Key, Parts: 4} }, "inside of sequences"},
		"fewer in the gradient": {ir.OpAttentionGrad, func(n *ir.Node) {
			n.Attr = ir.DropoutAttr{P: .2, Key: n.Attr.(ir.DropoutAttr).Key, Parts: 1}
		}, "h.0.attn"},
		"whole rows of shared sequences": {ir.OpAttentionKV, func(n *ir.Node) {
			n.Attr = ir.DropoutAttr{P: .2, Key: n.Attr.(ir.DropoutAttr).Key, Fold: 2}
		}, "h.0.attn"},
		"another input": {ir.OpInput, func(n *ir.Node) { n.Name = "targets" }, "targets"},
	} {
		t.Run(name, func(t *testing.T) {
			p := plan(1, 2, 1, 3, 1, partition.OneFOneB, false)
			p.SequenceParts = 2
			p.Placements = nil
			if c.op == ir.OpAttentionKV {
				p.CP, p.PlanNGPUs, p.RuntimeNGPUs = 2, 2*p.PlanNGPUs, 2*p.RuntimeNGPUs
			}
			prog, err := codegen.Compile(g, p, partsBatch, nil)
			require.NoError(t, err)
			require.NoError(t, codegen.CheckEquivalent(prog, g))
			for _, n := range prog.Graph.Nodes {
				if n.Op == c.op && n.Name != "seed" && n.Name != "step" {
					c.bend(n)
					break
				}
			}
			require.ErrorContains(t, codegen.CheckEquivalent(prog, g), c.says)
		})
	}
}
