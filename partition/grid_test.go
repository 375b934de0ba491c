package partition_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// onGrid shards attention and MLP over rows and columns of ranks, and the vocabulary over all of them.
func onGrid() []partition.Placement {
	return []partition.Placement{
		{Match: `h\.[0-9]+\.attn\.c_attn\.weight`, Spec: "[_,tp,_,tpr]"},
		{Match: `h\.[0-9]+\.attn\.c_attn\.bias`, Spec: "[_,tp,_]"},
		{Match: `h\.[0-9]+\.attn\.c_proj\.weight`, Spec: "[tpr,tp,_]"},
		{Match: `h\.[0-9]+\.mlp\.c_fc\.weight`, Spec: "[tp,tpr]"},
		{Match: `h\.[0-9]+\.mlp\.c_fc\.bias`, Spec: "[tp]"},
		{Match: `h\.[0-9]+\.mlp\.c_proj\.weight`, Spec: "[tpr,tp]"},
		{Match: `wte\.weight`, Spec: "[tp.tpr,_]"},
	}
}

// TestGridCollectives: with sequence parallelism, the first products of a module on a grid exchange tokens for
// features over rows and gather tokens over columns, and the reverse at its end. Between its two products it
// sums over rows. Weights stay in place, and their gradients are made in the same placement.
func TestGridCollectives(t *testing.T) {
	p := newPlan(2, 4, partition.Stage{Last: 2})
	p.TPRows, p.SequenceParallel, p.Placements = 2, true, onGrid()
	g, err := partition.Apply(trainGraph(t, 2), p, batch)
	require.NoError(t, err)
	require.NoError(t, g.Verify())
	type collective struct {
		phase ir.Phase
		op    ir.Op
		axis  string
	}
	count := map[collective]int{}
	for _, n := range g.Nodes {
		attr, ok := n.Attr.(ir.CommAttr)
		if ok && n.Phase != ir.Update && n.Block() == "h.1" && attr.Axis != partition.AxisMB {
			require.NotEqual(t, ir.OpParam, n.Args[0].Def.Op, "%s moves a weight", n.Name)
			count[collective{n.Phase, n.Op, attr.Axis}]++
		}
		if n.Op == ir.OpMatMul && n.Phase == ir.Backward && n.Block() == "h.1" && len(n.Results[0].Type.Shape) == 2 && n.Args[0].Type.Shape[0] == batch {
			spec := n.Results[0].Spec.Format(g.Mesh, 2)
			require.Contains(t, []string{"[tp,tpr]+{dp,mb}", "[tpr,tp]+{dp,mb}"}, spec, n.Name)
		}
	}
	// Three heads over two columns leave fewer than one for each of two rows, so every row computes all heads
	// of its columns.
	require.Equal(t, map[collective]int{
		{ir.Forward, ir.OpAllToAll, "tpr"}:      2 + 2, // at the start and at the end
		{ir.Forward, ir.OpAllGather, "tp"}:      2,
		{ir.Forward, ir.OpReduceScatter, "tp"}:  2,
		{ir.Forward, ir.OpReduceScatter, "tpr"}: 2,     // results of the first products
		{ir.Forward, ir.OpAllGather, "tpr"}:     1 + 1, // what attention and the second product read
	}, only(count, func(c collective) bool { return c.phase == ir.Forward }))
	require.Zero(t, count[collective{ir.Backward, ir.OpAllReduce, "tp"}])
	require.Equal(t, 1, count[collective{ir.Backward, ir.OpAllReduce, "tpr"}], "the gradient of what attention makes, of all its heads")
}

func only[K comparable, V any](m map[K]V, keep func(K) bool) map[K]V {
	some := map[K]V{}
	for k, v := range m {
		if keep(k) {
			some[k] = v
		}
	}
	return some
}

// TestNestedSlicesMove: an axis stops sharding a dimension before an outer axis changes, and starts after it,
// so that nothing is gathered only to be sliced again.
func TestNestedSlicesMove(t *testing.T) {
	mesh := ir.Mesh{Axes: []ir.Axis{{Name: "tp", Size: 2}, {Name: "tpr", Size: 3}}}
	for _, x := range []struct {
		from, to string
		want     []ir.Op
	}{
		{"[tp.tpr,_]", "[_,tpr]", []ir.Op{ir.OpAllToAll, ir.OpAllGather}},
		{"[_,tpr]+{tp}", "[tp.tpr,_]", []ir.Op{ir.OpReduceScatter, ir.OpAllToAll}},
		{"[_,_]+{tp,tpr}", "[tp.tpr,_]", []ir.Op{ir.OpReduceScatter, ir.OpReduceScatter}},
	} {
		from, _, err := ir.ParseSpec(mesh, x.from)
		require.NoError(t, err)
		to, _, err := ir.ParseSpec(mesh, x.to)
		require.NoError(t, err)
		steps, err := partition.Path(mesh, from, to)
		require.NoError(t, err)
		var ops []ir.Op
		for _, s := range steps {
			ops = append(ops, s.Op)
		}
		require.Equal(t, x.want, ops, "%s to %s", x.from, x.to)
		require.Equal(t, to, steps[len(steps)-1].Spec)
	}
}
