package codegen_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
)

// halfGraph is trainGraph in a type of two bytes.
func halfGraph(t *testing.T, layers int, float ir.DType) *ir.Graph {
	c := model(layers)
	c.Float = float
	g, err := gpt.TrainStep(c, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, WeightDecay: .1, GradClip: 1}, batch, 33)
	require.NoError(t, err)
	return g
}

// TestLoneGradientsAreNotCast: in a step of one micro-batch nothing is added to a gradient of two bytes, which goes from
// the backward pass to the update in its own type. Only the table that embedding and head share is a sum of two terms,
// in f32. With several micro-batches all gradients are summed in f32.
func TestLoneGradientsAreNotCast(t *testing.T) {
	for _, float := range []ir.DType{ir.BF16, ir.F16} {
		g := halfGraph(t, 2, float)
		weights := 0
		for _, n := range g.Nodes {
			if n.Op == ir.OpAdamW {
				weights++
			}
		}
		for _, dp := range []int{1, 2} {
			for zero := range 1 + 3*(dp-1) {
				for _, overlap := range []bool{false, dp > 1} {
					for _, microBatch := range []int{batch / dp, 1} {
						p := plan(dp, 1, 1, microBatch, 2, partition.OneFOneB, false)
						p.ZeRO, p.Overlap = zero, overlap
						prog := generate(t, g, p)
						require.NoError(t, codegen.Check(prog))
						want := [2]int{2, 1} // of the shared table
						if !p.Lone(batch) {
							want = [2]int{weights + 1, weights}
						}
						var got [2]int
						for _, body := range prog.Stages[0].Bodies {
							for _, in := range body.Instrs {
								n := in.Node
								if n.Op == ir.OpAdamW {
									require.Equal(t, float, n.Args[3].Type.DType, n.Name)
								}
								if n.Op != ir.OpCast || n.Args[0].Def.Op == ir.OpAdamW {
									continue
								}
								if n.Results[0].Type.DType == ir.F32 {
									got[0]++
								} else {
									got[1]++
								}
							}
						}
						require.Equal(t, want, got, "%s, dp %d, zero %d, overlap %v, micro-batches of %d", float, dp, zero, overlap, microBatch)
					}
				}
			}
		}
	}
}

// TestSeveralMicroBatchesAreSummedWide: a program that sums the gradients of several micro-batches in two bytes does not
// compute the traced graph. With one micro-batch it is the same.
func TestSeveralMicroBatchesAreSummedWide(t *testing.T) {
	g := halfGraph(t, 1, ir.BF16)
	narrow, _ := g.Clone()
	made := map[*ir.Value]*ir.Value{} // by narrowed gradient: the one that was widened
	for _, n := range narrow.Nodes {
		if wide := n.Args; n.Op == ir.OpCast && n.Phase == ir.Update && wide[0].Def.Op == ir.OpCast {
			made[n.Results[0]] = wide[0].Def.Args[0]
		}
		for i, a := range n.Args {
			if from := made[a]; from != nil {
				n.Args[i] = from
			}
		}
	}
	narrow.Prune()
	require.Greater(t, len(made), 10)
	for _, microBatch := range []int{1, batch} {
		p := plan(1, 1, 1, microBatch, 1, partition.OneFOneB, false)
		prog, err := codegen.Compile(narrow, p, batch, nil)
		require.NoError(t, err)
		if err := codegen.CheckEquivalent(prog, g); p.Lone(batch) {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, "misses")
		}
	}
}

// TestLoneGradientAsOutput: a gradient that is not cast in a step of one micro-batch may be an output of the graph, as the cast
// one may.
func TestLoneGradientAsOutput(t *testing.T) {
	g := halfGraph(t, 2, ir.BF16)
	for _, n := range g.Nodes {
		if n.Op == ir.OpAdamW {
			narrow := n.Args[3]
			g.Outputs = append(g.Outputs, ir.Output{Name: "narrow " + n.Name, Value: narrow}, ir.Output{Name: "wide " + n.Name, Value: narrow.Def.Args[0]})
		}
	}
	prog := generate(t, g, plan(1, 1, 1, batch, 2, partition.OneFOneB, false))
	require.NoError(t, codegen.Check(prog))
}
