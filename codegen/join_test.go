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

// TestJoin: in the update, all collectives of one kind of a block are in one bucket. A chain of reductions has
// one bucket per link, and what belongs to no block has buckets of its own. There are no buckets in a pipeline,
// or where the communication stream has taken the collectives.
func TestJoin(t *testing.T) {
	g := trainGraph(t, 2)
	all := func(op, axis string) []string {
		return []string{op + " " + axis + " rest", op + " " + axis + " h.0", op + " " + axis + " h.1"}
	}
	chain := func(a, b []string) []string {
		var both []string
		for i := range a {
			both = append(both, a[i], b[i])
		}
		return both
	}
	norm := func(axes ...string) []string {
		var some []string
		for _, a := range axes {
			some = append(some, "all_reduce "+a+" rest")
		}
		return some
	}
	for name, c := range map[string]struct {
		set  func(*partition.Plan)
		want []string
	}{
		"ZeRO 0": {func(*partition.Plan) {}, all("all_reduce", "dp")},
		"ZeRO 1": {func(p *partition.Plan) { p.ZeRO = 1 }, slices.Concat(all("reduce_scatter", "dp"), norm("dp"), all("all_gather", "dp"))},
		"groups of ranks": {func(p *partition.Plan) { p.ZeRO, p.DP, p.ZeROGroup, p.PlanNGPUs, p.RuntimeNGPUs = 1, 4, 2, 4, 4 },
			slices.Concat(chain(all("reduce_scatter", "dp"), all("all_reduce", "rep")), norm("dp", "rep"), all("all_gather", "dp"))},
		"sequence parallel": {func(p *partition.Plan) {
			p.ZeRO, p.TP, p.SequenceParallel, p.PlanNGPUs, p.RuntimeNGPUs = 0, 2, true, 4, 4
		}, slices.Concat(norm("dp"), chain(all("all_reduce", "tp")[1:], all("all_reduce", "dp")[1:]), norm("tp", "dp", "tp"))}, // the last norm comes last
		"pipeline": {func(p *partition.Plan) {
			p.PlanNGPUs, p.RuntimeNGPUs, p.Stages = 4, 4, []partition.Stage{{First: 0, Last: 1}, {First: 1, Last: 2}}
		}, nil},
		"overlap": {func(p *partition.Plan) { p.Overlap = true }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			p := plan(2, 1, 1, 2, 2, partition.OneFOneB, false)
			c.set(p)
			prog := generate(t, g, p)
			require.NoError(t, codegen.Check(prog))
			var got []string
			instrs := prog.Stages[0].Bodies[ir.Update].Instrs
			for i, in := range instrs {
				if in.Async || in.Fused || !codegen.Collective(in.Node.Op) {
					continue
				}
				bucket := codegen.Bucket(instrs, i)
				if c.want == nil {
					require.Len(t, bucket, 1)
					continue
				}
				block := in.Node.Block()
				if block == "" {
					block = "rest"
				}
				got = append(got, fmt.Sprintf("%s %s %s", in.Node.Op, in.Node.Attr.(ir.CommAttr).Axis, block))
				for _, with := range bucket {
					require.Equal(t, in.Node.Block(), with.Node.Block())
				}
			}
			require.Equal(t, c.want, got)
		})
	}
}

// TestGradientsAreReducedOnce: the norm reads each gradient in the placement that the optimizer needs. That
// also holds for a small gradient, which it could have whole: context-parallel ranks would then sum it twice.
func TestGradientsAreReducedOnce(t *testing.T) {
	c := model(1)
	c.NHead, c.NKVHead, c.NEmbd, c.Float = 1, 1, 2, ir.BF16
	g, err := gpt.TrainStep(c, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, WeightDecay: .1, GradClip: 1}, batch, 33)
	require.NoError(t, err)
	for _, tp := range []int{1, 2} {
		p := plan(2, 1, 1, 2, 1, partition.OneFOneB, false)
		p.ZeRO, p.CP, p.TP, p.PlanNGPUs, p.RuntimeNGPUs = 2, 2, tp, 4*tp, 4*tp
		p.Placements = []partition.Placement{{Match: `h\.[0-9]+\.attn\.c_attn\.weight`, Spec: "[_,_,_,tp]"}}
		prog := generate(t, g, p)
		require.NoError(t, codegen.Check(prog))
		type sum struct {
			of   *ir.Value
			over string
		}
		made := map[sum]bool{}
		for _, in := range prog.Stages[0].Bodies[ir.Update].Instrs {
			if in.Node.Op != ir.OpAllReduce && in.Node.Op != ir.OpReduceScatter {
				continue
			}
			x := sum{in.Node.Args[0], in.Node.Attr.(ir.CommAttr).Axis}
			for x.of.Def.Op.Class() == ir.Comm && x.of.Def.Phase == ir.Update {
				x.of = x.of.Def.Args[0]
			}
			require.False(t, made[x], in.Node.Name)
			made[x] = true
		}
	}
}

// TestJoinMutants breaks buckets of the update. Each must be refused, and the error must name the place.
func TestJoinMutants(t *testing.T) {
	traced := trainGraph(t, 2)
	const second = "h.1.attn.c_attn/matmul@dw@accumulate_mb@reduce_scatter_dp"
	for name, c := range map[string]struct {
		breakIt func(s *codegen.Stage, instrs []codegen.Instr, at int)
		names   string
	}{
		"operand is free before the bucket ends": {func(s *codegen.Stage, instrs []codegen.Instr, at int) {
			// The operand of the first gather ends with its own gather, as if each instruction of the bucket
			// ended by itself
			for i := range instrs {
				if instrs[i].Node.Op == ir.OpAllGather && len(codegen.Bucket(instrs, i)) > 1 {
					s.Buffers[instrs[i].Args[0]].To = i
					return
				}
			}
		}, "which is live from"},
		"result where another reads": {func(_ *codegen.Stage, instrs []codegen.Instr, at int) {
			// In order it would be right: nothing reads the whole gradient later
			from, to := instrs[at+1].Results[0], instrs[at].Args[0]
			for i := range instrs[at+1:] {
				for _, ids := range [][]int{instrs[at+1+i].Args, instrs[at+1+i].Results} {
					for k := range ids {
						if ids[k] == from {
							ids[k] = to
						}
					}
				}
			}
		}, "which " + second + " may still be using"},
		"with a kernel": {func(_ *codegen.Stage, instrs []codegen.Instr, at int) {
			i := slices.IndexFunc(instrs, func(in codegen.Instr) bool { return in.Node.Op == ir.OpSumSquares })
			instrs[i].Fused = true
		}, "both are no collectives"},
		"before its operand is there": {func(_ *codegen.Stage, instrs []codegen.Instr, at int) {
			i := slices.IndexFunc(instrs, func(in codegen.Instr) bool { return in.Node.Name == "grad_norm/add_n@all_reduce_dp" })
			instrs[i].Fused = true // with the previous instruction
		}, "grad_norm/add_n"},
	} {
		t.Run(name, func(t *testing.T) {
			p := plan(2, 1, 1, 2, 2, partition.OneFOneB, false)
			p.ZeRO = 1
			prog := generate(t, traced, p)
			require.NoError(t, codegen.Check(prog))
			instrs := prog.Stages[0].Bodies[ir.Update].Instrs
			at := slices.IndexFunc(instrs, func(in codegen.Instr) bool { return in.Node.Name == second })
			require.True(t, instrs[at].Fused)
			c.breakIt(prog.Stages[0], instrs, at)
			err := codegen.Check(prog)
			require.ErrorContains(t, err, c.names)
			t.Log(err)
		})
	}
}
