package partition_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// TestEachStepIsItsCollective: between all specs of a two-dimensional value over two axes, every step of the
// path is the op for its change, with the dimensions and the reduction of the placements before and after.
func TestEachStepIsItsCollective(t *testing.T) {
	change := map[ir.Op][2]ir.PlacementKind{
		ir.OpAllReduce:     {ir.Partial, ir.Replicate},
		ir.OpAllGather:     {ir.Shard, ir.Replicate},
		ir.OpReduceScatter: {ir.Partial, ir.Shard},
		ir.OpAllToAll:      {ir.Shard, ir.Shard},
		ir.OpSlice:         {ir.Replicate, ir.Shard},
		ir.OpToPartial:     {ir.Replicate, ir.Partial},
	}
	mesh := ir.Mesh{Axes: []ir.Axis{{Name: "dp", Size: 2}, {Name: "tp", Size: 3}}}
	var specs []ir.ShardSpec
	places := []ir.Placement{{}, ir.ShardOn(0), ir.ShardOn(1), ir.PartialOf(ir.Sum), ir.PartialOf(ir.Max)}
	for _, dp := range places {
		for _, tp := range places {
			specs = append(specs, ir.ShardSpec{dp, tp})
		}
	}
	seen := map[ir.Op]bool{}
	for _, from := range specs {
		for _, to := range specs {
			steps, err := partition.Path(mesh, from, to)
			if err != nil {
				continue // TestPathReachesEverySpec says which specs cannot be reached
			}
			cur := from
			for _, s := range steps {
				seen[s.Op] = true
				axis := mesh.Axis(s.Attr.Axis)
				f, n := cur[axis], s.Spec[axis]
				require.Equal(t, change[s.Op], [2]ir.PlacementKind{f.Kind, n.Kind}, "%s from %s to %s", s.Op, f, n)
				var want ir.CommAttr
				switch s.Op {
				case ir.OpAllReduce:
					want = ir.CommAttr{Reduce: f.Reduce}
				case ir.OpAllGather:
					want = ir.CommAttr{Dim: int(f.Dim)}
				case ir.OpReduceScatter:
					want = ir.CommAttr{Dim: int(n.Dim), Reduce: f.Reduce}
				case ir.OpAllToAll:
					want = ir.CommAttr{Dim: int(f.Dim), To: int(n.Dim)}
				case ir.OpSlice:
					want = ir.CommAttr{Dim: int(n.Dim)}
				}
				want.Axis = s.Attr.Axis
				require.Equal(t, want, s.Attr, "%s from %s to %s", s.Op, f, n)
				cur = s.Spec
			}
		}
	}
	require.Len(t, seen, len(change), "every collective is tried")
}
