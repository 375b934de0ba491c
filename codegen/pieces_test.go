package codegen_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
)

// evenGraph is trainGraph with sequences that start at aligned addresses.
func evenGraph(t testing.TB, layers int) *ir.Graph {
	m := model(layers)
	m.BlockSize, m.NEmbd, m.NHead, m.NKVHead = 16, 48, 3, 3
	g, err := gpt.TrainStep(m, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, WeightDecay: .1, GradClip: 1}, batch, m.BlockSize)
	require.NoError(t, err)
	return g
}

// pieces returns what a body makes in parts: consecutive instructions, with a bar in front of each one that the
// next one runs beside.
func pieces(instrs []codegen.Instr) (all []string) {
	for _, in := range instrs {
		if in.Parts == 0 {
			continue
		}
		text := fmt.Sprintf("%s %d/%d", in.Node.Name, in.Part, in.Parts)
		if in.Beside > 0 {
			text = "| " + text
		}
		all = append(all, text)
	}
	return all
}

// TestAllReduceBeforeAProduct: a sum over tensor-parallel ranks that share a head of keys is made in place
// before a product, and so not in parts.
func TestAllReduceBeforeAProduct(t *testing.T) {
	m := model(2)
	m.BlockSize, m.NEmbd, m.NHead, m.NKVHead, m.Position = 16, 64, 4, 1, gpt.RoPE
	g, err := gpt.TrainStep(m, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8}, batch, m.BlockSize)
	require.NoError(t, err)
	p := plan(1, 4, 1, 2, 2, partition.OneFOneB, false)
	p.TPPieces = 2
	for i, spec := range []string{"[tp,_,_,_]", "[tp,_,_]", "[_,tp,_,_]"} { // sharded by queries of a group, instead of heads of keys
		p.Placements[i].Spec = spec
	}
	prog := generate(t, g, p)
	require.NoError(t, codegen.Check(prog))
	for _, in := range prog.Stages[0].Bodies[ir.Backward].Instrs {
		require.False(t, in.Parts > 0 && in.Node.Op == ir.OpAllReduce && in.Node.Args[0].Def.Op == ir.OpRoPE, in.Node.Name)
	}
}

// TestVerifyAcceptsPieces: programs that make products and collectives in parts are sound and compute the
// traced graph, and communicate the same bytes as without parts.
func TestVerifyAcceptsPieces(t *testing.T) {
	const layers = 4
	g := evenGraph(t, layers)
	for k := range 80 {
		p := tensorParallel(k, layers)
		p.OverlapTP, p.TPPieces = k/3%2 == 0, 2+k%3
		if k >= 64 {
			p = plan(2, 2, 2, 1+k%3, layers, partition.ZeroBubble, false)
			p.ZeRO, p.SequenceParallel, p.Overlap, p.TPPieces = k%4, k/4%2 == 1, k/8%2 == 1, 2+k%3
		}
		name := fmt.Sprintf("%+v", *p)
		prog := generate(t, g, p)
		require.NoError(t, codegen.Check(prog), name)
		var made [ir.NumPhases]int
		for _, st := range prog.Stages {
			for phase := range made {
				made[phase] += len(pieces(st.Bodies[phase].Instrs))
			}
		}
		pairs := 2 * layers // sums after attention and the MLP
		if p.SequenceParallel {
			pairs = 4 * layers // also the gathers before them
		}
		require.Equal(t, pairs*2*p.TPPieces, made[ir.Forward], name)
		switch {
		case p.Schedule == partition.ZeroBubble: // the same collectives for gradients
			require.Equal(t, made[ir.Forward], made[ir.Backward], name)
		case p.SequenceParallel: // at least the first gathers
			require.GreaterOrEqual(t, made[ir.Backward], layers*2*p.TPPieces, name)
		}
		require.Zero(t, made[ir.WeightGrad]+made[ir.Update], name)
		whole := *p
		whole.TPPieces = 0
		without := generate(t, g, &whole)
		for r := range prog.Schedules {
			_, bytes := communicated(prog, r)
			_, same := communicated(without, r)
			require.Equal(t, same, bytes, "%s: rank %d", name, r)
		}
	}
}

// TestPieces: each part of a gather runs beside the part of the product before it, and each part of a product
// beside the sum of the previous part. Values whose sequences do not start at aligned addresses stay whole.
func TestPieces(t *testing.T) {
	p := plan(1, 2, 1, 2, 2, partition.OneFOneB, false)
	p.OverlapTP, p.TPPieces, p.SequenceParallel = true, 3, true
	block := func(g *ir.Graph) []string {
		prog := generate(t, g, p)
		require.NoError(t, codegen.Check(prog))
		var of []string
		for _, name := range pieces(prog.Stages[0].Bodies[ir.Forward].Instrs) {
			if len(of) < 12 {
				of = append(of, name)
			}
		}
		return of
	}
	require.Equal(t, append(
		gathered("h.0.ln_1/layer_norm@all_gather_tp", "h.0.attn.c_attn/matmul"),
		summed("h.0.attn.c_proj/matmul", "h.0.attn.c_proj/matmul@reduce_scatter_tp")...,
	), block(evenGraph(t, 2)))
	require.Empty(t, block(trainGraph(t, 2)))
}

// gathered is what [pieces] returns for a product in three parts and the gather before it.
func gathered(gather, product string) []string {
	return []string{gather + " 0/3", "| " + gather + " 1/3", product + " 0/3", "| " + gather + " 2/3", product + " 1/3", product + " 2/3"}
}

// summed is what it returns for a product in three parts and the sum after it.
func summed(product, sum string) []string {
	return []string{product + " 0/3", "| " + sum + " 0/3", product + " 1/3", "| " + sum + " 1/3", product + " 2/3", sum + " 2/3"}
}

// TestPiecesBackward: with products beside collectives, the backward pass makes in parts the gradient with
// which a block begins, and what a recomputed block gathers and sums again. If no products are delayed, it
// makes all gradients of activations in parts.
func TestPiecesBackward(t *testing.T) {
	m := model(3)
	m.BlockSize, m.NEmbd, m.NHead, m.NKVHead, m.Dropout = 16, 48, 3, 3, 0
	g, err := gpt.TrainStep(m, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, WeightDecay: .1, GradClip: 1}, batch, m.BlockSize)
	require.NoError(t, err)
	backward := func(p *partition.Plan) (of []string) {
		p.TPPieces, p.SequenceParallel = 3, true
		prog := generate(t, g, p)
		require.NoError(t, codegen.Check(prog))
		for _, st := range prog.Stages {
			of = append(of, pieces(st.Bodies[ir.Backward].Instrs)...)
		}
		return of
	}
	p := plan(1, 2, 3, 2, 3, partition.OneFOneB, false)
	p.OverlapTP, p.Stages[2].Recompute = true, 1
	require.Equal(t, slices.Concat(
		gathered("h.1.ln_1/layer_norm@add@recv0@all_gather_tp", "h.0.mlp.c_proj/matmul@dx"),
		gathered("h.2.ln_1/layer_norm@add@recv1@all_gather_tp", "h.1.mlp.c_proj/matmul@dx"),
		gathered("h.2.ln_1/layer_norm@re@all_gather_tp", "h.2.attn.c_attn/matmul@re"),
		summed("h.2.attn.c_proj/matmul@re", "h.2.attn.c_proj/matmul@re@reduce_scatter_tp"),
		gathered("h.2.ln_2/layer_norm@re@all_gather_tp", "h.2.mlp.c_fc/matmul@re"),
		gathered("ln_f/layer_norm@dx@all_gather_tp", "h.2.mlp.c_proj/matmul@dx"),
	), backward(p))
	require.Equal(t, slices.Concat(
		gathered("ln_f/layer_norm@dx@all_gather_tp", "h.2.mlp.c_proj/matmul@dx"),
		summed("h.2.mlp.c_fc/matmul@dx", "h.2.mlp.c_fc/matmul@dx@reduce_scatter_tp"),
		gathered("h.2.ln_2/layer_norm@add@all_gather_tp", "h.2.attn.c_proj/matmul@dx"),
		summed("h.2.attn.c_attn/matmul@dx", "h.2.attn.c_attn/matmul@dx@reduce_scatter_tp"),
	), backward(plan(1, 2, 3, 2, 3, partition.ZeroBubble, false))[48:])
}

// TestPiecesAreChecked: programs in which parts are missing, come in another order or race with each other are
// refused, by the check of soundness or by the proof of equivalence.
func TestPiecesAreChecked(t *testing.T) {
	traced := evenGraph(t, 2)
	// The instructions are gather 0, gather 1 beside product 0, gather 2 beside product 1, product 2.
	for name, m := range map[string]struct {
		breakIt        func(in []codegen.Instr)
		says, computes string // "" if the program computes the graph
	}{
		"a part is missing":             {func(in []codegen.Instr) { in[1].Part = 2 }, "runs part 2 of 3 after 1 of 3", "does not hold the 2 before of"},
		"a part is made twice":          {func(in []codegen.Instr) { in[4].Part = 0 }, "runs part 0 of 3 after 1 of 3", "does not hold the 2 before of"},
		"a part is all":                 {func(in []codegen.Instr) { in[0].Parts = 0 }, "part 1 of 3 after 1 of 0", "does not hold the 1 before of"},
		"it is read before it is there": {func(in []codegen.Instr) { in[2], in[1] = in[1], in[2]; in[2].Beside, in[0].Beside = 0, 1 }, "may still be writing", ""},
		"a part that is not there": {func(in []codegen.Instr) {
			in[1], in[2], in[3], in[4] = in[2], in[4], in[1], in[3]
			in[3].Beside, in[4].Beside = 0, 0
		}, "holds the first 1 parts of it by then", "holds the first 1 parts of it"},
		"the part that is gathered is read": {func(in []codegen.Instr) { in[0].Beside, in[1].Beside, in[1], in[2] = 1, 0, in[2], in[1] }, "may still be writing", ""},
	} {
		for phase, gather := range []string{ir.Forward: "h.1.ln_2/layer_norm@all_gather_tp", ir.Backward: "h.1.mlp/dropout@dx@all_gather_tp"} {
			t.Run(fmt.Sprintf("%s, %s", name, ir.Phase(phase)), func(t *testing.T) {
				p := plan(2, 2, 1, 3, 2, partition.OneFOneB, false)
				p.OverlapTP, p.SequenceParallel, p.TPPieces = true, true, 3
				prog := generate(t, traced, p)
				require.NoError(t, codegen.Check(prog))
				instrs := prog.Stages[0].Bodies[phase].Instrs
				at := slices.IndexFunc(instrs, func(in codegen.Instr) bool { return in.Node.Name == gather })
				m.breakIt(instrs[at : at+6])
				require.ErrorContains(t, codegen.Check(prog), m.says)
				if m.computes == "" {
					require.NoError(t, codegen.CheckEquivalent(prog, traced))
				} else {
					require.ErrorContains(t, codegen.CheckEquivalent(prog, traced), m.computes)
				}
			})
		}
	}
}
