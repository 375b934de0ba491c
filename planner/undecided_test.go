package planner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// TestUndecided: floors take for whole what programs of other schedules do not have in parts, and leave in parts the gradient
// with which a block begins.
func TestUndecided(t *testing.T) {
	model := tiny(2)
	model.NHead, model.NEmbd, model.BlockSize, model.Dropout = 4, 128, 32, 0
	g := step(t, model, 8)
	s := newSearcher(g, 8, cluster(t, "h100"), Options{RuntimeNGPUs: 2, TPPieces: 2})
	plan, err := s.template(outline{degrees: degrees{plan: 2, dp: 1, cp: 1, tp: 2, pp: 1}, sharding: sharding{sequence: true, pieces: 2}, chunks: 1})
	require.NoError(t, err)
	plan.MicroBatch, plan.Schedule, plan.OverlapTP, plan.Stages[0].Last = 2, partition.ZeroBubble, false, 2
	prog, err := codegen.Compile(g, &plan, 8, nil)
	require.NoError(t, err)
	instrs := prog.Stages[0].Bodies[ir.Backward].Instrs
	before, after := map[*ir.Node]int{}, map[*ir.Node]int{}
	for _, in := range instrs {
		before[in.Node]++
	}
	for _, in := range (&work{}).undecided(instrs) {
		after[in.Node]++
		require.Equal(t, after[in.Node], in.Part+1, in.Node.Name)
		require.Equal(t, in.Parts > 0 && in.Node.Op.Class() == ir.Comm && in.Part > 0, in.Beside > 0, in.Node.Name)
	}
	inParts := map[string]bool{}
	for n, times := range before {
		require.Contains(t, after, n)
		if after[n] == 2 {
			inParts[n.Name] = true
		} else {
			require.Equal(t, 1, after[n], "%s, %d before", n.Name, times)
		}
	}
	require.Equal(t, map[string]bool{
		"ln_f/layer_norm@dx@all_gather_tp": true, "h.1.mlp.c_proj/matmul@dx": true,
		"h.1.ln_1/layer_norm@add@all_gather_tp": true, "h.0.mlp.c_proj/matmul@dx": true,
	}, inParts)
}
