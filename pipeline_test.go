package autopar_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/partition"
)

// TestPipelineParity trains under interleaved, zero-bubble and eager schedules, with
// numbers of micro-batches that are no multiple of the pipeline's depth and the
// token table tied over its ends, and compares each step with one rank (rows 30,
// 31 and 33).
func TestPipelineParity(t *testing.T) {
	one := oneRank(t, paritySteps())
	for _, c := range []struct {
		dp, tp, pp, interleave, micro, zero int
		sequence                            bool
		recompute                           string
		schedule                            partition.Schedule // else interleaved or zero-bubble
	}{
		{dp: 1, tp: 1, pp: 2, interleave: 2, micro: 2},
		{dp: 1, tp: 1, pp: 2, interleave: 3, micro: 1, recompute: "full"},
		{dp: 1, tp: 1, pp: 2, interleave: 4, micro: 5, recompute: "selective"},
		{dp: 1, tp: 1, pp: 4, interleave: 2, micro: 3},
		{dp: 1, tp: 2, pp: 4, interleave: 2, micro: 1, sequence: true},
		{dp: 3, tp: 1, pp: 2, interleave: 2, micro: 1, zero: 1, recompute: "full"},
		{dp: 2, tp: 2, pp: 2, interleave: 3, micro: 2, zero: 2, sequence: true},
		{dp: 2, tp: 1, pp: 4, interleave: 2, micro: 1, zero: 3, recompute: "selective"},
		{dp: 1, tp: 1, pp: 1, micro: 3},
		{dp: 1, tp: 1, pp: 2, micro: 1},
		{dp: 1, tp: 1, pp: 4, micro: 1, recompute: "full"},
		{dp: 1, tp: 1, pp: 3, micro: 2, recompute: "selective"},
		{dp: 1, tp: 2, pp: 3, micro: 2, recompute: "pointwise"},
		{dp: 1, tp: 2, pp: 4, micro: 3, sequence: true, recompute: "full"},
		{dp: 2, tp: 1, pp: 2, micro: 1, zero: 1},
		{dp: 2, tp: 2, pp: 2, micro: 1, zero: 2, recompute: "full"},
		{dp: 3, tp: 1, pp: 2, micro: 1, zero: 3},
		{dp: 1, tp: 1, pp: 2, micro: 3, schedule: partition.EagerOneFOneB},
		{dp: 1, tp: 1, pp: 4, micro: 1, recompute: "full", schedule: partition.EagerOneFOneB},
		{dp: 2, tp: 2, pp: 2, micro: 1, zero: 2, sequence: true, schedule: partition.EagerOneFOneB},
		{dp: 1, tp: 1, pp: 4, micro: 1, schedule: partition.EagerZeroBubble},
		{dp: 1, tp: 2, pp: 3, micro: 2, recompute: "selective", schedule: partition.EagerZeroBubble},
		{dp: 3, tp: 1, pp: 2, micro: 1, zero: 3, schedule: partition.EagerZeroBubble},
	} {
		p := pipelinePlan(c.dp, c.tp, c.pp, c.interleave, c.micro, c.recompute)
		p.ZeRO, p.SequenceParallel = c.zero, c.sequence
		if c.schedule != "" {
			p.Schedule = c.schedule
		}
		name := fmt.Sprintf("%s dp %d tp %d pp %d micro-batch %d zero %d sequence %t recompute %q", p.ScheduleText(), c.dp, c.tp, c.pp, c.micro, c.zero, c.sequence, c.recompute)
		t.Run(name, func(t *testing.T) {
			prog, exec := trainer(t, p, parityBatch)
			require.NoError(t, codegen.Check(prog))
			got := stepsOf(t, prog, exec, parityBatch, paritySteps())
			var dLoss, dNorm float64
			for s := range one.loss {
				dLoss = max(dLoss, math.Abs(got.loss[s]-one.loss[s]))
				dNorm = max(dNorm, math.Abs(got.norm[s]-one.norm[s])/one.norm[s])
			}
			t.Logf("max |Δloss| %.1e, max relative Δ‖grad‖ %.1e", dLoss, dNorm)
			require.LessOrEqual(t, dLoss, 1e-5)
			require.LessOrEqual(t, dNorm, 1e-6)
		})
	}
}

// pipelinePlan is interleaved over so many chunks per rank, or zero-bubble with
// none, in stages as equal as the blocks allow.
func pipelinePlan(dp, tp, pp, interleave, micro int, recompute string) *partition.Plan {
	stages := pp * max(interleave, 1)
	p := parityPlan(dp, tp, stages, micro, partition.ZeroBubble, false)
	p.PlanNGPUs, p.RuntimeNGPUs = dp*tp*pp, dp*tp*pp
	if p.Interleave = interleave; interleave > 0 {
		p.Schedule = partition.Interleaved
	}
	for i := range p.Stages {
		s := &p.Stages[i]
		switch half := (s.Last - s.First + 1) / 2; recompute {
		case "full":
			s.Recompute = half
		case "selective":
			s.Selective = half
		case "pointwise":
			s.Pointwise = half
		}
	}
	return p
}
