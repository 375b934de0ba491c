package autopar_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
)

// groupedModels share heads of keys and values: 9 heads in 3 groups, and all in one
// (multi-query). The first is a Llama, the second a GPT.
func groupedModels() []gpt.Config {
	grouped, multiQuery := llamaModel(), parityModel
	grouped.NHead, grouped.NKVHead, grouped.NEmbd = 9, 3, 54
	multiQuery.NKVHead = 1
	return []gpt.Config{grouped, multiQuery}
}

// groupedLayout splits attention by heads of keys and values, each with the queries
// that share it, if there are enough, else by the queries of all groups.
func groupedLayout(c gpt.Config, tp int) []partition.Placement {
	all := layout(tp)
	if c.Activation == gpt.SwiGLU {
		all = llamaLayout(tp)
	}
	var p []partition.Placement
	for _, x := range all {
		switch x.Match {
		case `h\.[0-9]+\.attn\.c_attn\.weight`, `h\.[0-9]+\.attn\.c_attn\.bias`, `h\.[0-9]+\.attn\.c_proj\.weight`:
			if c.KVHeads() < tp {
				continue
			}
		}
		if x.Match == `h\.[0-9]+\.attn\.c_proj\.weight` && c.QueryGroup() > 1 {
			x.Spec = "[_,_,tp,_]"
		}
		p = append(p, x)
	}
	if c.KVHeads() < tp && tp <= c.QueryGroup() {
		p = append(p, partition.Placement{Match: `h\.[0-9]+\.attn\.c_proj\.weight`, Spec: "[_,tp,_,_]"})
	}
	return p
}

// TestParityOfGroupedHeads is TestParity for models whose heads share keys and
// values: a sample of the plans, larger with -parity-all, and those that cut the
// heads of keys and values, unevenly too, by name.
func TestParityOfGroupedHeads(t *testing.T) {
	for _, c := range groupedModels() {
		train := func(p *partition.Plan, steps int) trajectory {
			place(p, groupedLayout(c, p.TP))
			prog, exec := compile(t, stepOf(t, c), p, parityBatch)
			require.NoError(t, exec.InitParams(prog, 1337))
			return stepsOf(t, prog, exec, parityBatch, steps)
		}
		one := train(parityPlan(1, 1, 1, parityBatch, partition.GPipe, false), learningSteps)
		require.Less(t, one.loss[len(one.loss)-1], one.loss[0]-0.01, "it learns")
		plans := sampleOf(t, allParityPlans(), most(200, 3))
		for _, d := range [][4]int{{1, 1, 2, 1}, {1, 1, 3, 1}, {1, 3, 1, 1}, {1, 2, 2, 1}, {1, 2, 3, 1}, {1, 1, 2, 2}, {1, 1, 5, 1}, {2, 1, 4, 1}} {
			p := contextPlan(d[0], d[1], d[2], d[3])
			p.SequenceParallel = p.TP == 3 || p.TP == 4
			plans = append(plans, parityCase{p, "none"})
		}
		for _, x := range plans {
			p := x.plan
			dLoss, dNorm := differences(one, train(p, paritySteps()))
			row := fmt.Sprintf("%s, dp %d, cp %d, tp %d, pp %d, sp %v, zero %d, %s, recompute %s: max |Δloss| %.1e, max rel Δ‖grad‖ %.1e", c.HeadsText(),
				p.DP, p.ContextParallel(), p.TP, p.PP(), p.SequenceParallel, p.ZeRO, p.ScheduleText(), x.recompute, dLoss, dNorm)
			t.Log(row)
			if !(dLoss <= 1e-5) || !(dNorm <= 1e-6) {
				t.Error(row)
			}
		}
	}
}

// TestMoreRanksThanGroups: ranks divide the queries of groups where there are more of
// them than heads of keys and values, forward and backward. A plan that cuts these
// heads into more parts than there are is refused with the numbers.
func TestMoreRanksThanGroups(t *testing.T) {
	multiQuery, p := groupedModels()[1], parityPlan(1, 4, 1, parityBatch, partition.GPipe, false)
	p.Placements = groupedLayout(multiQuery, 4)
	stages, err := partition.Apply(stepOf(t, multiQuery), p, parityBatch)
	require.NoError(t, err)
	seen := 0
	for _, n := range stages.Nodes {
		tp := n.Results[0].Spec.Format(stages.Mesh, len(n.Results[0].Type.Shape))
		switch n.Op {
		case ir.OpAttention:
			require.Equal(t, "[mb,_,tp,_,_]", tp)
			seen++
		case ir.OpAttentionGrad:
			require.Equal(t, "[mb,_,_,_,_]+{tp}", tp)
			seen++
		}
	}
	require.Equal(t, 2*multiQuery.NLayer, seen)

	c := groupedModels()[0]
	p = parityPlan(1, 4, 1, parityBatch, partition.GPipe, false)
	p.Placements = []partition.Placement{{Match: `h\.[0-9]+\.attn\.c_attn\.weight`, Spec: "[_,tp,_,_]"}}
	_, err = partition.Apply(stepOf(t, c), p, parityBatch)
	require.ErrorContains(t, err, "placements: h.0.attn.c_attn.weight: dimension 1 of size 3 cannot be split over 4 ranks")
}
