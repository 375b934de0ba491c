package autopar_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

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
// that share it, if there are enough.
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
	return p
}

// TestParityOfGroupedHeads is TestParity for models whose heads share keys and
// values: a sample of the plans, larger with -parity-all, and those that cut the
// heads of keys and values, unevenly too, by name.
func TestParityOfGroupedHeads(t *testing.T) {
	n := 8
	if *parityAll {
		n = 200
	}
	for _, c := range groupedModels() {
		train := func(p *partition.Plan) trajectory {
			p.Placements = groupedLayout(c, p.TP)
			prog, exec := compile(t, stepOf(t, c), p, parityBatch)
			require.NoError(t, exec.InitParams(prog, 1337))
			return stepsOf(t, prog, exec, parityBatch, *paritySteps)
		}
		one := train(parityPlan(1, 1, 1, parityBatch, partition.GPipe, false))
		require.Less(t, one.loss[len(one.loss)-1], one.loss[0]-0.01, "it learns")
		plans := sampleOf(t, allParityPlans(), n)
		for _, d := range [][4]int{{1, 1, 2, 1}, {1, 1, 3, 1}, {1, 3, 1, 1}, {1, 2, 2, 1}, {1, 2, 3, 1}, {1, 1, 2, 2}} {
			p := contextPlan(d[0], d[1], d[2], d[3])
			p.SequenceParallel = p.TP == 3
			plans = append(plans, parityCase{p, "none"})
		}
		for _, x := range plans {
			p := x.plan
			dLoss, dNorm := differences(one, train(p))
			row := fmt.Sprintf("%s, dp %d, cp %d, tp %d, pp %d, sp %v, zero %d, %s, recompute %s: max |Δloss| %.1e, max rel Δ‖grad‖ %.1e", c.HeadsText(),
				p.DP, p.ContextParallel(), p.TP, p.PP(), p.SequenceParallel, p.ZeRO, p.ScheduleText(), x.recompute, dLoss, dNorm)
			t.Log(row)
			if !(dLoss <= 1e-5) || !(dNorm <= 1e-6) {
				t.Error(row)
			}
		}
	}
}

// TestGroupedHeadsWhole: more ranks than heads of keys and values cannot have some
// each. A plan that says so is refused with the numbers; without, attention is not
// divided (TestParityOfGroupedHeads).
func TestGroupedHeadsWhole(t *testing.T) {
	c := groupedModels()[0]
	p := parityPlan(1, 4, 1, parityBatch, partition.GPipe, false)
	p.Placements = []partition.Placement{{Match: `h\.[0-9]+\.attn\.c_attn\.weight`, Spec: "[_,tp,_,_]"}}
	_, err := partition.Apply(stepOf(t, c), p, parityBatch)
	require.ErrorContains(t, err, "placements: h.0.attn.c_attn.weight: dimension 1 of size 3 cannot be split over 4 ranks")
}
