package partition_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// TestNormIsReducedOnce: terms of the gradient norm are added up before they are reduced over ranks, for one
// block as for several, so that a program of one block can stand for many.
func TestNormIsReducedOnce(t *testing.T) {
	for _, blocks := range []int{1, 2, 3} {
		p := newPlan(1, 2, partition.Stage{Last: blocks})
		p.Placements = []partition.Placement{{Match: `h\.[0-9]+\.attn\.c_attn\.weight`, Spec: "[_,_,tp,_]"}}
		g, err := partition.Apply(trainGraph(t, blocks), p, batch)
		require.NoError(t, err)
		var reduced []string
		for _, n := range g.Nodes {
			if n.Op == ir.OpAllReduce && n.Phase == ir.Update && n.Results[0].Type.Elems() == 1 {
				reduced = append(reduced, n.Args[0].Name())
			}
		}
		require.Equal(t, []string{"grad_norm/add_n"}, reduced, "%d blocks", blocks)
	}
}
