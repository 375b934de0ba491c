package sim_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/partition/partitiontest"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

// TestOverlapHidesCommunication: on GPUs most communication is hidden, if it does not slow down kernels. What it slows
// down is exposed. On ranks that share processors none is hidden, but buckets save latencies.
func TestOverlapHidesCommunication(t *testing.T) {
	c := gpt.DefaultConfig()
	c.NLayer, c.NHead, c.NEmbd, c.BlockSize, c.VocabSize = 4, 8, 512, 512, 513
	g, err := gpt.TrainStep(c, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, GradClip: 1}, 8, 512)
	require.NoError(t, err)
	for zero := range 4 {
		run := func(cluster *cost.Cluster, overlap bool) *sim.Timeline {
			p := &partition.Plan{
				PlanNGPUs: 4, RuntimeNGPUs: 4, DP: 4, TP: 1, MicroBatch: 1, Schedule: partition.OneFOneB, ZeRO: zero, Overlap: overlap,
				Stages: []partition.Stage{{Last: 4}},
			}
			return simulate(t, g, p, 8, cluster)
		}
		gpu, err := cost.Load("a100-80g")
		require.NoError(t, err)
		slowed := run(gpu, true)
		gpu.Device.Efficiency.Beside = 0
		before, now := run(gpu, false), run(gpu, true)
		require.Less(t, now.Step, slowed.Step, "zero %d", zero)
		require.LessOrEqual(t, slowed.Step-now.Step, (now.Breakdown().Communication+now.Breakdown().Overlapped)/5, "zero %d", zero)
		require.Less(t, now.Step, before.Step, "zero %d", zero)
		require.Less(t, now.Breakdown().Communication, before.Breakdown().Communication/2, "zero %d", zero)
		require.Positive(t, now.Breakdown().Overlapped, "zero %d", zero)
		shared := *gpu
		shared.Device.Shared = true
		require.Zero(t, run(&shared, true).Breakdown().Overlapped, "zero %d", zero)
	}
}

// TestOverlapTPHidesCommunication: in the backward pass, tensor-parallel ranks on GPUs hide their collectives behind
// products. On ranks that share processors these take as long as before.
func TestOverlapTPHidesCommunication(t *testing.T) {
	c := gpt.DefaultConfig()
	c.NLayer, c.NHead, c.NEmbd, c.BlockSize, c.VocabSize = 4, 8, 2048, 1024, 512
	g, err := gpt.TrainStep(c, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, GradClip: 1}, 8, 1024)
	require.NoError(t, err)
	gpu, err := cost.Load("a100-80g")
	require.NoError(t, err)
	shared := *gpu
	shared.Device.Shared, shared.Device.Cores = true, 8
	for _, sequence := range []bool{false, true} {
		run := func(cluster *cost.Cluster, beside bool) *sim.Timeline {
			p := &partition.Plan{
				PlanNGPUs: 4, RuntimeNGPUs: 4, DP: 1, TP: 4, MicroBatch: 4, Schedule: partition.OneFOneB, SequenceParallel: sequence, OverlapTP: beside,
				Stages: []partition.Stage{{Last: 4}}, Placements: partitiontest.Megatron(),
			}
			return simulate(t, g, p, 8, cluster)
		}
		before, now := run(gpu, false), run(gpu, true)
		hidden := now.Breakdown().Overlapped
		require.Equal(t, before.Step, now.Step+hidden)
		require.Equal(t, before.Breakdown().Communication, now.Breakdown().Communication+hidden)
		// In a block two sums of four, or four gathers and sums of sequences of ten.
		require.Greater(t, hidden, before.Breakdown().Communication/3)
		require.Equal(t, run(&shared, false).Step, run(&shared, true).Step)
	}
}

// TestPiecesHideCommunication: in parts, tensor-parallel ranks hide collectives behind the products that make their
// operands or need their results, all but one part. With one sequence per micro-batch there is nothing to hide, and
// no cost.
func TestPiecesHideCommunication(t *testing.T) {
	c := gpt.DefaultConfig()
	c.NLayer, c.NHead, c.NEmbd, c.BlockSize, c.VocabSize = 4, 8, 2048, 1024, 512
	g, err := gpt.TrainStep(c, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, GradClip: 1}, 8, 1024)
	require.NoError(t, err)
	gpu, err := cost.Load("a100-80g")
	require.NoError(t, err)
	gpu.Device.Efficiency.MatmulHalf, gpu.Device.Units = 0, 0 // products of all sizes are as efficient
	gpu.Device.Efficiency.Beside = 0                          // and slowed down by nothing
	for _, x := range []struct {
		schedule partition.Schedule
		sequence bool
		share    float64 // of what a block exchanges that is next to a product
	}{
		{partition.OneFOneB, false, 2. / 4},   // the sums of the forward pass; between those of gradients and their products another stands
		{partition.OneFOneB, true, 6. / 10},   // and the gathers before them, and of gradients
		{partition.ZeroBubble, false, 4. / 4}, // the other product is put off
		{partition.ZeroBubble, true, 8. / 10}, // all but what is gathered again for gradients of weights
	} {
		run := func(microBatch, pieces int) *sim.Timeline {
			p := &partition.Plan{
				PlanNGPUs: 4, RuntimeNGPUs: 4, DP: 1, TP: 4, MicroBatch: microBatch, Schedule: x.schedule, SequenceParallel: x.sequence, TPPieces: pieces,
				Stages: []partition.Stage{{Last: 4}}, Placements: partitiontest.Megatron(),
			}
			return simulate(t, g, p, 8, gpu)
		}
		before, now := run(8, 0), run(8, 4)
		hidden := now.Breakdown().Overlapped
		require.InEpsilon(t, 0.75*x.share*float64(before.Breakdown().Communication), float64(hidden), 0.1)
		require.Less(t, now.Step, before.Step-hidden/2)
		require.Greater(t, now.Step, before.Step-hidden) // there is more to launch
		require.Equal(t, run(1, 0).Step, run(1, 4).Step)
	}
}

// TestPostedHidesTransfers: stages on GPUs that do not wait for their sends hide most of them behind other passes. On
// ranks that share processors sends take as long as before, except that ranks may wait less for each other.
func TestPostedHidesTransfers(t *testing.T) {
	c := gpt.DefaultConfig()
	c.NLayer, c.NHead, c.NEmbd, c.BlockSize, c.VocabSize = 8, 8, 2048, 1024, 512
	g, err := gpt.TrainStep(c, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, GradClip: 1}, 16, 1024)
	require.NoError(t, err)
	gpu, err := cost.Load("a10g") // between which bytes are slow
	require.NoError(t, err)
	shared := *gpu
	shared.Device.Shared, shared.Device.Cores = true, 8
	for _, chunks := range []int{1, 2} {
		run := func(cluster *cost.Cluster, posted bool) *sim.Timeline {
			p := &partition.Plan{
				PlanNGPUs: 4, RuntimeNGPUs: 4, DP: 1, TP: 1, MicroBatch: 1, Schedule: partition.OneFOneB, OverlapP2P: posted, Placements: partitiontest.Megatron(),
			}
			if chunks > 1 {
				p.Schedule, p.Interleave = partition.Interleaved, chunks
			}
			for i := range 4 * chunks {
				p.Stages = append(p.Stages, partition.Stage{First: i * 8 / (4 * chunks), Last: (i + 1) * 8 / (4 * chunks)})
			}
			return simulate(t, g, p, 16, cluster)
		}
		before, now := run(gpu, false), run(gpu, true)
		require.Less(t, now.Step, before.Step, "%d chunks", chunks)
		hidden := now.Breakdown().Overlapped
		require.Greater(t, hidden, before.Breakdown().Communication/2, "%d chunks", chunks)
		require.LessOrEqual(t, now.Breakdown().Communication+hidden, before.Breakdown().Communication*11/10)
		require.LessOrEqual(t, run(&shared, true).Step, run(&shared, false).Step)
		require.Zero(t, run(&shared, true).Breakdown().Overlapped)
	}
}

// simulate verifies a plan's program and runs it on a cluster. What each rank does adds up to the step.
func simulate(t *testing.T, g *ir.Graph, p *partition.Plan, batch int, cluster *cost.Cluster) *sim.Timeline {
	t.Helper()
	prog, err := codegen.Compile(g, p, batch, nil)
	require.NoError(t, err)
	require.NoError(t, codegen.Verify(prog, g))
	line, err := sim.Run(prog, cluster, sim.Options{})
	require.NoError(t, err)
	for _, r := range line.Ranks {
		require.Equal(t, line.Step, r.Breakdown.Total())
		require.GreaterOrEqual(t, r.Breakdown.Overlapped, cost.Picoseconds(0))
	}
	return line
}
