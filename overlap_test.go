package autopar_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// TestOverlapParity trains with communication beside the kernels, under the plans of
// TestParity on several ranks, under every schedule, uneven micro-batches and
// context parallelism included, and compares each step with one rank: a
// sample, or with -parity-all every one.
func TestOverlapParity(t *testing.T) {
	one := oneRank(t, paritySteps())
	plans := slices.DeleteFunc(allParityPlans(), func(c parityCase) bool {
		return c.plan.DP*c.plan.ContextParallel()*c.plan.TP == 1
	})
	plans = sampleOf(t, plans, most(len(plans), 14))
	tried := map[int]int{} // by ZeRO stage
	for _, c := range plans {
		p := c.plan
		tried[p.ZeRO]++
		p.Overlap, p.OverlapTP, p.OverlapP2P = true, p.TP > 1 && !p.Schedule.SplitsBackward(), p.PP() > 1
		prog, exec := trainer(t, p, parityBatch)
		require.NoError(t, codegen.Check(prog))
		got := stepsOf(t, prog, exec, parityBatch, paritySteps())
		dLoss, dNorm := differences(one, got)
		if row := fmt.Sprintf("%+v: %.1e %.1e", *p, dLoss, dNorm); !(dLoss <= 1e-5) || !(dNorm <= 1e-6) {
			t.Error(row)
		}
		for r := range exec.Ranks() {
			collectives, bytes := counted(prog, r)
			got := exec.Counters(r)
			require.Equal(t, collectives, got.Collectives, "rank %d of %+v", r, *p)
			require.Equal(t, bytes, got.CollectiveBytes, "rank %d of %+v", r, *p)
		}
		require.NoError(t, exec.Close())
	}
	t.Logf("plans by ZeRO stage: %v", tried)
}

// TestOverlapTPAlike: what tensor-parallel ranks exchange beside kernels is what they exchange
// between them, to the bit, on the CPU and on GPUs.
func TestOverlapTPAlike(t *testing.T) {
	for i, p := range []*partition.Plan{parityPlan(1, 3, 1, 4, partition.OneFOneB, false), parityPlan(2, 2, 2, 2, partition.GPipe, true), pipelinePlan(1, 2, 2, 2, 3, "")} {
		for _, sequence := range []bool{false, true} {
			p.SequenceParallel, p.ZeRO, p.Overlap = sequence, min(i*2, 3)*min(p.DP-1, 1), i == 1
			var got [2]trajectory
			for k := range got {
				p.OverlapTP = k == 1
				prog, exec := trainer(t, p, parityBatch)
				got[k] = stepsOf(t, prog, exec, parityBatch, most(learningSteps, 3))
				require.NoError(t, exec.Close())
			}
			require.Equal(t, got[0], got[1], "%+v", *p)
		}
	}
}

// TestOverlapRoundsAlike: gradients of 16-bit models that are rounded and reduced beside the
// backward pass are those of the same plan without overlap, to the bit.
func TestOverlapRoundsAlike(t *testing.T) {
	for _, c := range precisions() {
		for zero, p := range []*partition.Plan{parityPlan(2, 1, 2, 2, partition.OneFOneB, false), parityPlan(2, 2, 1, 2, partition.OneFOneB, false)} {
			p.ZeRO, p.SequenceParallel = zero, p.TP > 1
			var got [2]trajectory
			for i := range got {
				p.Overlap = i == 1
				prog, exec := trainerIn(t, c, p, parityBatch)
				got[i] = stepsOf(t, prog, exec, parityBatch, most(learningSteps, 3))
				require.NoError(t, exec.Close())
			}
			require.Equal(t, got[0], got[1], "%s: %+v", c.name, *p)
		}
	}
}

// counted returns the collectives and their bytes that the program of a rank has
// in one step; a bucket is one.
func counted(prog *codegen.Program, rank int) (collectives int, bytes int64) {
	s := &prog.Schedules[rank]
	for _, task := range s.Tasks {
		instrs := prog.Stages[s.Stage].Run(task)
		for i := range instrs {
			in := &instrs[i]
			if !codegen.Collective(in.Node.Op) || prog.Mesh.Size(in.Node.Attr.(ir.CommAttr).Axis) == 1 || !s.Runs(in, task) {
				continue
			}
			if !in.Fused {
				collectives++
			}
			bytes += prog.CommBytes(s, in, task)
		}
	}
	return collectives, bytes
}
