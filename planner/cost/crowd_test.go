package cost

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// TestCrowdedPipeline: four stages get what the waiting ones leave; updates are as ever.
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

// TestBusy: whatever the schedule, a pipeline takes no less than its work does on all
// cores, nor more than with all busy.
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
					for _, s := range []partition.Schedule{partition.GPipe, partition.OneFOneB, partition.ZeroBubble} {
						share := m.Busy(s, positions, 1, batches)
						at := fmt.Sprintf("%s: %d positions, %d cores, %d micro-batches, %v", s, positions, cores, batches, threads)
						require.LessOrEqual(t, share, 1.0, at)
						require.GreaterOrEqual(t, share, work-1e-9, at)
						if s != partition.ZeroBubble && threads == 0 {
							require.InEpsilon(t, work, share, 1e-9, at)
						}
					}
					require.LessOrEqual(t, m.Busy(partition.Interleaved, positions, 2, batches), 1.0)
				}
			}
		}
	}
}
