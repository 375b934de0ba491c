package sim_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

// TestSchedules compares the schedules on the same cut: 1F1B takes no longer than GPipe, in less memory. Interleaved
// 1F1B and zero-bubble have less bubble than 1F1B, and zero-bubble needs little more memory on the first rank (rows
// 30 and 31).
func TestSchedules(t *testing.T) {
	c := gpt.DefaultConfig()
	c.NLayer, c.NHead, c.NEmbd, c.BlockSize, c.VocabSize = 16, 4, 256, 128, 256
	cluster, err := cost.Load("a100-80g")
	require.NoError(t, err)
	for _, pp := range []int{2, 4} {
		for _, m := range []int{pp, 2 * pp, 13} {
			g, err := gpt.TrainStep(c, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, GradClip: 1}, m, 128)
			require.NoError(t, err)
			run := func(schedule partition.Schedule, chunks int) (*codegen.Program, *sim.Timeline) {
				p := &partition.Plan{PlanNGPUs: pp, RuntimeNGPUs: pp, DP: 1, TP: 1, MicroBatch: 1, Schedule: schedule}
				if chunks > 1 {
					p.Interleave = chunks
				}
				for s := range pp * chunks {
					p.Stages = append(p.Stages, partition.Stage{First: s * c.NLayer / (pp * chunks), Last: (s + 1) * c.NLayer / (pp * chunks)})
				}
				prog, err := codegen.Compile(g, p, m, nil)
				require.NoError(t, err)
				require.NoError(t, codegen.Check(prog))
				line, err := sim.Run(prog, cluster, sim.Options{})
				require.NoError(t, err)
				return prog, line
			}
			name := fmt.Sprintf("pp %d, %d micro-batches", pp, m)
			gpipe, slow := run(partition.GPipe, 1)
			plain, line := run(partition.OneFOneB, 1)
			split, zero := run(partition.ZeroBubble, 1)
			_, inter := run(partition.Interleaved, 2)
			t.Logf("%s: bubble gpipe %.1f, 1f1b %.1f, interleaved %.1f, zero-bubble %.1f %% of steps of %d, %d, %d, %d us", name,
				percent(slow), percent(line), percent(inter), percent(zero), slow.Step/1e6, line.Step/1e6, inter.Step/1e6, zero.Step/1e6)
			t.Logf("%s: arena of rank 0 gpipe %d, 1f1b %d, zero-bubble %d", name, gpipe.Stages[0].Arena(), plain.Stages[0].Arena(), split.Stages[0].Arena())
			require.LessOrEqual(t, line.Step, slow.Step, name)
			require.Less(t, bubble(zero), bubble(line), name)
			require.Less(t, zero.Step, line.Step, name)
			require.Less(t, bubble(inter), bubble(line), name)
			require.LessOrEqual(t, plain.Stages[0].Arena(), gpipe.Stages[0].Arena()+plain.Stages[0].Chunks[0].Inbox)
			require.Less(t, float64(split.Stages[0].Arena()), 1.05*float64(plain.Stages[0].Arena()))
		}
	}
}

// bubble is the sum of what all ranks wait.
func bubble(line *sim.Timeline) cost.Picoseconds {
	var sum cost.Picoseconds
	for _, r := range line.Ranks {
		sum += r.Breakdown.Bubble
	}
	return sum
}

// TestEagerSchedules: where a message takes longer than half of what a position does with a micro-batch, eager schedules have less
// bubble, and more micro-batches in memory.
func TestEagerSchedules(t *testing.T) {
	c := gpt.DefaultConfig()
	c.NLayer, c.NHead, c.NEmbd, c.BlockSize, c.VocabSize = 16, 4, 256, 128, 256
	const pp, m = 4, 16
	g, err := gpt.TrainStep(c, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, GradClip: 1}, m, 128)
	require.NoError(t, err)
	run := func(on *cost.Cluster, schedule partition.Schedule) (memory int64, step cost.Picoseconds) {
		p := &partition.Plan{PlanNGPUs: pp, RuntimeNGPUs: pp, DP: 1, TP: 1, MicroBatch: 1, Schedule: schedule, OverlapP2P: true}
		for s := range pp {
			p.Stages = append(p.Stages, partition.Stage{First: s * c.NLayer / pp, Last: (s + 1) * c.NLayer / pp})
		}
		prog, err := codegen.Compile(g, p, m, nil)
		require.NoError(t, err)
		require.NoError(t, codegen.Check(prog))
		line, err := sim.Run(prog, on, sim.Options{})
		require.NoError(t, err)
		return prog.Stages[0].Arena(), line.Step
	}
	for plain, eager := range map[partition.Schedule]partition.Schedule{partition.OneFOneB: partition.EagerOneFOneB, partition.ZeroBubble: partition.EagerZeroBubble} {
		on, err := cost.Load("a100-80g")
		require.NoError(t, err)
		for _, slower := range []float64{1, 2000} {
			on.IntraNode.Bandwidth /= slower
			few, usual := run(on, plain)
			many, ahead := run(on, eager)
			t.Logf("%s: %s and %s in %d and %d bytes, eager", plain, usual, ahead, few, many)
			require.Greater(t, many, few)
			if slower > 1 {
				require.Less(t, float64(ahead), 0.85*float64(usual))
			} else {
				require.Less(t, math.Abs(float64(ahead)/float64(usual)-1), 0.01)
			}
		}
	}
}

func percent(line *sim.Timeline) float64 {
	return 100 * float64(bubble(line)) / float64(line.Step) / float64(len(line.Ranks))
}
