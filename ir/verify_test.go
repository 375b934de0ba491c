package ir_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/irtest"
)

// TestVerifyCatchesCorruption breaks a legal graph in every way that its text
// form cannot express. testdata/verify.txt has the others.
func TestVerifyCatchesCorruption(t *testing.T) {
	const text = `
graph step mesh(dp=2, tp=4)
  %0 = param "w" {init=normal std=0.02} f32[65,24] [tp,_]
  %1 = input "ids" i32[7,33] [dp,_]
  %2 = embedding %0 %1 "e" [dp,_,_]+{tp} // gpt.go:4
  %3 = all_reduce %2 "r" {axis=tp} [dp,_,_]
  output "y" %3
  update %0 <- %0
`
	other, err := ir.Parse("other", text)
	require.NoError(t, err)
	tests := []struct {
		name    string
		corrupt func(g *ir.Graph, w, ids, e, r *ir.Value)
		want    string
	}{
		{"nil node", func(g *ir.Graph, w, ids, e, r *ir.Value) { g.Nodes[2] = nil }, `ir: graph "step": node 2 is nil`},
		{"invalid op", func(g *ir.Graph, w, ids, e, r *ir.Value) { e.Def.Op = 99 }, `node 2 (Op(99) "e"): there is no such op`},
		{"nil operand", func(g *ir.Graph, w, ids, e, r *ir.Value) { e.Def.Args[1] = nil }, `node 2 (embedding "e"): operand 1 is nil`},
		{"operand of another graph", func(g *ir.Graph, w, ids, e, r *ir.Value) { e.Def.Args[0] = other.Nodes[0].Results[0] }, `node 2 (embedding "e"): operand 0 (%0) is not defined before its use`},
		{"order", func(g *ir.Graph, w, ids, e, r *ir.Value) { g.Nodes[2], g.Nodes[3] = g.Nodes[3], g.Nodes[2] }, `node 2 (all_reduce "r"): operand 0 (%2) is not defined before its use`},
		{"removed node", func(g *ir.Graph, w, ids, e, r *ir.Value) { g.Nodes = g.Nodes[1:] }, `node 1 (embedding "e"): operand 0 (%0) is not defined before its use`},
		{"same node twice", func(g *ir.Graph, w, ids, e, r *ir.Value) { g.Nodes = append(g.Nodes, r.Def) }, `node 4 (all_reduce "r"): name is taken by an earlier node`},
		{"name twice", func(g *ir.Graph, w, ids, e, r *ir.Value) { r.Def.Name = "e" }, `node 3 (all_reduce "e"): name is taken by an earlier node`},
		{"name not text", func(g *ir.Graph, w, ids, e, r *ir.Value) { r.Def.Name = "\xff" }, `name is not valid UTF-8`},
		{"ID twice", func(g *ir.Graph, w, ids, e, r *ir.Value) { r.ID = 2 }, `node 3 (all_reduce "r"): result 0 has ID %2, which is a result of "e" too`},
		{"negative ID", func(g *ir.Graph, w, ids, e, r *ir.Value) { r.ID = -1 }, `result 0 has ID -1`},
		{"Def", func(g *ir.Graph, w, ids, e, r *ir.Value) { r.Def = e.Def }, `node 3 (all_reduce "r"): result 0 (%3) does not lead back to its node`},
		{"Index", func(g *ir.Graph, w, ids, e, r *ir.Value) { r.Index = 1 }, `does not lead back to its node: Index is 1`},
		{"nil result", func(g *ir.Graph, w, ids, e, r *ir.Value) { r.Def.Results[0] = nil }, `node 3 (all_reduce "r"): result 0 is nil`},
		{"no result", func(g *ir.Graph, w, ids, e, r *ir.Value) { r.Def.Results = nil }, `node 3 (all_reduce "r"): has 0 results, want 1`},
		{"leaf without result", func(g *ir.Graph, w, ids, e, r *ir.Value) { w.Def.Results = nil }, `node 0 (param "w"): has 0 results, want 1`},
		{"leaf with operand", func(g *ir.Graph, w, ids, e, r *ir.Value) { ids.Def.Args = []*ir.Value{w} }, `node 1 (input "ids"): a leaf has 1 operands`},
		{"result type", func(g *ir.Graph, w, ids, e, r *ir.Value) { e.Type.Shape = []int{7, 33, 25} }, `node 2 (embedding "e"): result 0 (%2) has type f32[7,33,25], inference says f32[7,33,24]`},
		{"operand type", func(g *ir.Graph, w, ids, e, r *ir.Value) { ids.Type.DType = ir.F32 }, `node 2 (embedding "e"): ir: embedding: operand ids is f32, want i32`},
		{"leaf size", func(g *ir.Graph, w, ids, e, r *ir.Value) { w.Type.Shape = []int{65, 0} }, `node 0 (param "w"): result 0 (%0): dimension 1 of f32[65,0] is 0, want at least 1`},
		{"leaf dtype", func(g *ir.Graph, w, ids, e, r *ir.Value) { w.Type.DType = 7 }, `there is no dtype 7`},
		{"phase", func(g *ir.Graph, w, ids, e, r *ir.Value) { r.Def.Phase = 4 }, `there is no phase 4`},
		{"stage", func(g *ir.Graph, w, ids, e, r *ir.Value) { r.Def.Stage = -1 }, `stage is -1`},
		{"position", func(g *ir.Graph, w, ids, e, r *ir.Value) { r.Def.Pos = "gpt.go" }, `position "gpt.go" is not file:line`},
		{"attribute missing", func(g *ir.Graph, w, ids, e, r *ir.Value) { r.Def.Attr = nil }, `attribute is <nil>, want ir.CommAttr`},
		{"attribute of another op", func(g *ir.Graph, w, ids, e, r *ir.Value) { e.Def.Attr = ir.GELUAttr{} }, `attribute is ir.GELUAttr, want <nil>`},
		{"attribute range", func(g *ir.Graph, w, ids, e, r *ir.Value) { w.Def.Attr = ir.ParamAttr{Init: 4} }, `attribute init is 4, want one of zeros, ones, normal, constant`},
		{"attribute NaN", func(g *ir.Graph, w, ids, e, r *ir.Value) { w.Def.Attr = ir.ParamAttr{Std: math.NaN()} }, `attribute std is NaN`},
		{"axis beyond the mesh", func(g *ir.Graph, w, ids, e, r *ir.Value) { w.Spec[2] = ir.ShardOn(0) }, `node 0 (param "w"): result 0 (%0): placement S(0) on axis 2 of a mesh with 2 axes`},
		{"dimension out of range", func(g *ir.Graph, w, ids, e, r *ir.Value) { w.Spec[0] = ir.ShardOn(2) }, `axis dp shards dimension 2 of f32[65,24]`},
		{"placement kind", func(g *ir.Graph, w, ids, e, r *ir.Value) { w.Spec[0].Kind = 3 }, `axis dp: there is no placement kind 3`},
		{"stray dimension", func(g *ir.Graph, w, ids, e, r *ir.Value) { w.Spec[0].Dim = 1 }, `axis dp: placement R has stray fields`},
		{"reduction", func(g *ir.Graph, w, ids, e, r *ir.Value) { e.Spec[1].Reduce = 2 }, `axis tp: there is no reduction 2`},
		{"two reductions", func(g *ir.Graph, w, ids, e, r *ir.Value) { e.Spec[0] = ir.PartialOf(ir.Max) }, `partial by sum over tp and by max over dp`},
		{"rule", func(g *ir.Graph, w, ids, e, r *ir.Value) { ids.Spec = ir.ShardSpec{} }, `node 2 (embedding "e"): axis dp: no rule of embedding has operands [R R] -> results [S(0)]`},
		{"mesh axis size", func(g *ir.Graph, w, ids, e, r *ir.Value) { g.Mesh.Axes[0].Size = 0 }, `mesh axis "dp" has size 0`},
		{"mesh axis name", func(g *ir.Graph, w, ids, e, r *ir.Value) { g.Mesh.Axes[0].Name = "_" }, `mesh axis 0: "_" is not a name`},
		{"mesh axis chunk", func(g *ir.Graph, w, ids, e, r *ir.Value) { g.Mesh.Axes[0].Chunk = -1 }, `mesh axis "dp" has chunk -1`},
		{"mesh axis shares", func(g *ir.Graph, w, ids, e, r *ir.Value) { g.Mesh.Axes[0].Shares = []int{1, 2} }, `mesh axis "dp" has shares [1 2], want 2 from 1 to 32768 without increase`},
		{"foreign output", func(g *ir.Graph, w, ids, e, r *ir.Value) { g.Outputs[0].Value = other.Outputs[0].Value }, `output "y" is not a value of the graph`},
		{"nil output", func(g *ir.Graph, w, ids, e, r *ir.Value) { g.Outputs[0].Value = nil }, `output "y" is not a value of the graph`},
		{"foreign parameter", func(g *ir.Graph, w, ids, e, r *ir.Value) { g.Updates[0].Param = other.Updates[0].Param }, `update 0: the parameter is not a value of the graph`},
		{"nil update", func(g *ir.Graph, w, ids, e, r *ir.Value) { g.Updates[0].New = nil }, `update of %0 "w": the new value is not a value of the graph`},
		{"communication over another axis", func(g *ir.Graph, w, ids, e, r *ir.Value) { r.Def.Attr = ir.CommAttr{Axis: "dp"} }, `axis tp: changes from P(sum) to R, but communicates over dp`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			g, err := ir.Parse("graph", text)
			require.NoError(t, err)
			require.NoError(t, g.Verify())
			tt.corrupt(g, g.Nodes[0].Results[0], g.Nodes[1].Results[0], g.Nodes[2].Results[0], g.Nodes[3].Results[0])
			require.ErrorContains(t, g.Verify(), tt.want)
			_, err = g.MarshalJSON()
			require.Error(t, err)
		})
	}
}

// TestVerifyAfterEdits: a clone and a pruned graph verify.
func TestVerifyAfterEdits(t *testing.T) {
	for seed := range uint64(5) {
		g := irtest.RandomGraph(irtest.Rand(t, seed), 10, true).Graph
		clone, at := g.Clone()
		require.NoError(t, clone.Verify())
		require.Empty(t, irtest.Diff(g, clone))
		for _, n := range g.Nodes {
			for _, r := range n.Results {
				require.NotSame(t, r, at(r))
			}
		}
		clone.Outputs = clone.Outputs[:1]
		clone.Prune()
		require.NoError(t, clone.Verify())
		require.Less(t, len(clone.Nodes), len(g.Nodes))
	}
}

// TestVerifyEveryChangedPlacement changes one placement of a random legal
// partition at a time. Verify must object to nearly all: only a change that turns
// one legal rule of the node and of every user into another passes.
func TestVerifyEveryChangedPlacement(t *testing.T) {
	mesh := ir.Mesh{Axes: []ir.Axis{{Name: "dp", Size: 2}, {Name: "tp", Size: 3}}}
	caught, legal := 0, 0
	for seed := range uint64(4) {
		rng := irtest.Rand(t, seed)
		g := irtest.RandomPartition(rng, irtest.RandomGraph(rng, 6, true).Graph, mesh)
		for _, n := range g.Nodes {
			for _, r := range n.Results {
				was := r.Spec
				a := rng.IntN(len(mesh.Axes))
				r.Spec[a] = []ir.Placement{{}, ir.ShardOn(0), ir.PartialOf(ir.Sum)}[rng.IntN(3)]
				if r.Spec != was {
					if g.Verify() != nil {
						caught++
					} else {
						legal++
					}
				}
				r.Spec = was
			}
		}
		require.NoError(t, g.Verify())
	}
	t.Logf("%d changes caught, %d legal", caught, legal)
	require.Greater(t, caught, 9*legal)
}
