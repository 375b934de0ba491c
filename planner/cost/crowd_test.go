package cost

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/partition/partitiontest"
)

// TestCrowdedPipeline: four stages use the cores of ranks that wait; the update does not change.
func TestCrowdedPipeline(t *testing.T) {
	c, err := Load("cpu")
	require.NoError(t, err)
	instr := func(cores, stages, batch int, phase ir.Phase) Picoseconds {
		c.Device.Cores = cores
		c.Device.FLOPS["f32"] = 1e11 / float64(cores) // the same in all
		c.Device.LaunchOverhead, c.Device.Fork = 0, 0
		p := &partition.Plan{PlanNGPUs: 4, RuntimeNGPUs: 4, DP: 4 / stages, TP: 1, MicroBatch: 1, Schedule: partition.OneFOneB, Stages: make([]partition.Stage, stages)}
		mesh := p.Mesh(batch)
		typ := ir.Type{DType: ir.F32, Shape: []int{1 << 20}}
		node := &ir.Node{Op: ir.OpAccumulate, Phase: phase}
		node.Results = []*ir.Value{{Type: typ, Def: node}}
		node.Args = node.Results
		took, _ := NewProgram(c, p, mesh).Instr(&codegen.Instr{Node: node, Accum: make([]codegen.Accum, 1)}, mesh, ir.Coord{})
		return took
	}
	c.Device.Efficiency.Threads = 0
	full := instr(4, 4, 6, ir.Update)
	for _, cores := range []int{1, 2, 4, 8} {
		require.InEpsilon(t, float64(full)*6/9, float64(instr(cores, 4, 6, ir.Forward)), 1e-6, "no core is idle: 18 forward passes of 27")
	}
	require.InEpsilon(t, float64(full)/4, float64(instr(2, 4, 1, ir.Forward)), 1e-6, "one micro-batch: one stage works at a time, on all cores")
	c.Device.Efficiency.Threads = 0.8
	require.InEpsilon(t, float64(full)/4/0.8, float64(instr(2, 4, 1, ir.Forward)), 1e-6, "of which it makes four fifths")
	require.Equal(t, full, instr(2, 4, 6, ir.Update))
	require.Equal(t, full, instr(2, 1, 24, ir.Forward), "no pipeline, no bubble")
}

// TestBusy: under every schedule, a pipeline takes at least its work on all cores, and at most its time with all
// ranks busy.
func TestBusy(t *testing.T) {
	c, err := Load("cpu")
	require.NoError(t, err)
	for _, threads := range []float64{0, 0.8} {
		c.Device.Efficiency.Threads = threads
		for cores := 1; cores <= 5; cores++ {
			c.Device.Cores = cores
			for positions := 2; positions <= 6; positions++ {
				m := NewModel(c, 2*positions)
				for batches := 1; batches <= 9; batches++ {
					work := float64(batches) / float64(batches+positions-1) // of GPipe and 1F1B
					for _, s := range []partition.Schedule{partition.GPipe, partition.OneFOneB, partition.ZeroBubble, partition.EagerOneFOneB, partition.EagerZeroBubble} {
						share := m.Busy(s, positions, 1, batches)
						at := fmt.Sprintf("%s: %d positions, %d cores, %d micro-batches, %v", s, positions, cores, batches, threads)
						require.LessOrEqual(t, share, 1.0, at)
						require.GreaterOrEqual(t, share, work-1e-9, at)
						if !s.SplitsBackward() && threads == 0 {
							require.InEpsilon(t, work, share, 1e-9, at)
						}
					}
					require.LessOrEqual(t, m.Busy(partition.Interleaved, positions, 2, batches), 1.0)
				}
			}
		}
	}
}

// TestUnevenShares: on a shared machine the cores of ranks with fewer heads also work for those with more, so that
// each takes the mean. Elsewhere each takes its own time, and so do data-parallel ranks with unequal batches, which
// meet only once a step.
func TestUnevenShares(t *testing.T) {
	const batch = 3
	model := gpt.DefaultConfig()
	model.NLayer, model.NHead, model.NEmbd, model.BlockSize, model.VocabSize = 1, 6, 48, 64, 64
	g, err := gpt.TrainStep(model, gpt.Optimizer{Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, GradClip: 1}, batch, model.BlockSize)
	require.NoError(t, err)
	plan := &partition.Plan{
		PlanNGPUs: 8, RuntimeNGPUs: 8, DP: 2, TP: 4, MicroBatch: 2, Schedule: partition.OneFOneB, Stages: []partition.Stage{{Last: 1}},
		Placements: partitiontest.Megatron(),
	}
	prog, err := codegen.Compile(g, plan, batch, nil)
	require.NoError(t, err)
	instrs := prog.Stages[0].Bodies[ir.Forward].Instrs
	in := &instrs[slices.IndexFunc(instrs, func(in codegen.Instr) bool { return in.Node.Op == ir.OpAttention })]
	shared, apart := NewProgram(two(t), plan, prog.Mesh), NewProgram(round(), plan, prog.Mesh)
	times := func(price func(*codegen.Instr, ir.Mesh, ir.Coord) (Picoseconds, Kind)) (all []Picoseconds) {
		for rank := range plan.RuntimeNGPUs {
			x, _ := price(in, prog.Mesh, prog.Mesh.Coord(rank))
			all = append(all, x)
		}
		return all
	}
	require.Equal(t, times(apart.instr), times(apart.Instr))
	own, got := times(shared.instr), times(shared.Instr)
	for rank := 0; rank < len(got); rank += plan.TP {
		require.Equal(t, []bool{true, true, true}, []bool{own[rank] == own[rank+1], own[rank+1] > own[rank+2], own[rank+2] == own[rank+3]}, "two heads, two, one and one")
		mean := (own[rank] + own[rank+2] + 1) / 2
		require.Equal(t, []Picoseconds{mean, mean, mean, mean}, got[rank:][:plan.TP])
	}
	require.Less(t, got[plan.TP], got[0], "one sequence of three")
}
