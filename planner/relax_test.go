package planner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/exact"
	"github.com/autopar/autopar/planner/cost"
)

// TestGradientsAreReducedAsWeightsAreCut: a floor has no gradient reduced in every micro-batch that the program adds up whole, as its
// weight, an adapter that tensor-parallel ranks split, is too narrow to be cut over data-parallel ranks too.
func TestGradientsAreReducedAsWeightsAreCut(t *testing.T) {
	t.Parallel()
	c := llama(tiny(2))
	c.NHead, c.NEmbd, c.LoRARank, c.LoRATargets = 1, 8, 1, "."
	g, err := exact.Sums(step(t, c, 8))
	require.NoError(t, err)
	s := newSearcher(g, 8, cluster(t, "h100"), Options{RuntimeNGPUs: 4})
	o := outline{degrees: degrees{plan: 4, dp: 2, cp: 1, tp: 2, pp: 1}, sharding: sharding{zero: 2}, chunks: 1}
	skel, err := s.skeleton(o)
	require.NoError(t, err)
	mesh := skel.mesh(1)
	price, reduced := s.rates.Program(&skel.plan, mesh), cost.Picoseconds(0)
	for _, in := range skel.of.prog(kept).Stages[0].Bodies[ir.Backward].Instrs {
		if in.Node.Op == ir.OpReduceScatter && skel.of.ofBlock[in.Node] && skel.of.ofWeight[in.Node] {
			time, _ := price.Bucket([]codegen.Instr{in}, mesh, ir.Coord{})
			reduced += time
		}
	}
	require.Positive(t, reduced)
	require.LessOrEqual(t, s.moved(o, s.waysOf(o).places[0], false)[inBlock].weight, reduced)
}
