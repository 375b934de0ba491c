package autopar_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// TestOverlapParity trains with communication beside the kernels, under a random
// sample of the plans of TestParity with data-parallel ranks, uneven micro-batches
// included, and compares each step with one rank.
func TestOverlapParity(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("sample seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	one := trainBatch(t, parityPlan(1, 1, 1, parityBatch, partition.GPipe, false), parityBatch, *paritySteps)
	var plans []*partition.Plan
	for _, n := range []int{2, 3, 4, 8} {
		plans = append(plans, parityPlans(n)...)
	}
	tried := map[int]int{} // by ZeRO stage
	for i, p := range plans {
		if p.DP == 1 && p.TP == 1 || !*parityAll && tried[p.ZeRO] > 0 && rng.IntN(8) > 0 {
			continue
		}
		tried[p.ZeRO]++
		p.Overlap = true
		p.MicroBatch = []int{2, 1, 3}[i%3]
		p.Schedule = []partition.Schedule{partition.OneFOneB, partition.GPipe}[i%2]
		for s := range p.Stages {
			half := (p.Stages[s].Last - p.Stages[s].First + 1) / 2
			p.Stages[s].Recompute = []int{0, half, 0}[i/2%3]
			p.Stages[s].Selective = []int{0, 0, half}[i/2%3]
		}
		prog, exec := trainer(t, p, parityBatch)
		require.NoError(t, codegen.Check(prog))
		got := stepsOf(t, prog, exec, parityBatch, *paritySteps)
		var dLoss, dNorm float64
		for s := range one.loss {
			dLoss = max(dLoss, math.Abs(got.loss[s]-one.loss[s]))
			dNorm = max(dNorm, math.Abs(got.norm[s]-one.norm[s])/one.norm[s])
		}
		if row := fmt.Sprintf("%+v: %.1e %.1e", *p, dLoss, dNorm); !(dLoss <= 1e-5) || !(dNorm <= 1e-6) {
			t.Error(row)
		}
		for r := range exec.Ranks() {
			collectives, bytes := counted(prog, r)
			got := exec.Counters(r)
			require.Equal(t, collectives, got.Collectives, "rank %d of %+v", r, *p)
			require.Equal(t, bytes, got.CollectiveBytes, "rank %d of %+v", r, *p)
		}
	}
	t.Logf("plans by ZeRO stage: %v", tried)
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
			bytes += prog.CommBytes(s, in.Node, task)
		}
	}
	return collectives, bytes
}
