package cost

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// TestCrowdedPipeline: four stages on two cores get what the waiting ones leave, and
// never more than a core each; updates and machines with a core for every rank are as
// ever.
func TestCrowdedPipeline(t *testing.T) {
	c, err := Load("cpu")
	require.NoError(t, err)
	instr := func(cores, stages, batch int, phase ir.Phase) Picoseconds {
		c.Device.Cores = cores
		c.Device.FLOPS["f32"] = 1e11 / float64(cores) // the same in all
		c.Device.LaunchOverhead = 0
		p := &partition.Plan{PlanNGPUs: 4, RuntimeNGPUs: 4, DP: 4 / stages, TP: 1, MicroBatch: 1, Schedule: partition.OneFOneB, Stages: make([]partition.Stage, stages)}
		mesh := p.Mesh(batch)
		typ := ir.Type{DType: ir.F32, Shape: []int{1 << 20}}
		node := &ir.Node{Op: ir.OpAccumulate, Phase: phase}
		node.Results = []*ir.Value{{Type: typ, Def: node}}
		node.Args = node.Results
		took, _ := NewProgram(c, p, mesh).Instr(&codegen.Instr{Node: node, Accum: make([]codegen.Accum, 1)}, mesh, ir.Coord{})
		return took
	}
	full := instr(4, 4, 6, ir.Forward)
	require.InEpsilon(t, float64(full)*13/18, float64(instr(2, 4, 6, ir.Forward)), 1e-6, "27 forward passes long where all are busy, 19.5 where two share a core")
	require.InEpsilon(t, float64(full)/2, float64(instr(2, 4, 1, ir.Forward)), 1e-6, "one micro-batch: one stage works, on one core")
	require.Equal(t, full, instr(2, 4, 6, ir.Update))
	require.Equal(t, full, instr(2, 1, 24, ir.Forward), "no pipeline, no bubble")
}

// TestBusy: whatever the schedule, a pipeline takes no less than its work does on all
// cores, nor than it would with a core for every rank, nor more than with all busy; and
// the fewer wait, the less they leave.
func TestBusy(t *testing.T) {
	c, err := Load("cpu")
	require.NoError(t, err)
	for cores := 1; cores <= 5; cores++ {
		c.Device.Cores = cores
		for positions := 2; positions <= 6; positions++ {
			m := NewModel(c, 2*positions)
			for batches := 1; batches <= 9; batches++ {
				busy := map[partition.Schedule]float64{}
				for _, s := range []partition.Schedule{partition.GPipe, partition.OneFOneB, partition.ZeroBubble} {
					busy[s] = m.Busy(s, positions, 1, batches)
					require.Equal(t, busy[s], m.Busy(s, positions, 1, batches))
				}
				busy[partition.Interleaved] = m.Busy(partition.Interleaved, positions, 2, batches)
				work := float64(batches) / float64(batches+positions-1) // of GPipe and 1F1B
				least := max(work, float64(cores)/float64(2*positions))
				for s, share := range busy {
					require.LessOrEqual(t, share, 1.0, "%s: %d positions, %d cores, %d micro-batches", s, positions, cores, batches)
					require.GreaterOrEqual(t, share, min(1, least)-1e-9, "%s: %d positions, %d cores, %d micro-batches", s, positions, cores, batches)
				}
				if cores >= 2*positions {
					require.Equal(t, 1.0, busy[partition.OneFOneB])
				}
				if cores == 1 {
					require.InEpsilon(t, work, busy[partition.OneFOneB], 1e-9, "one core is never idle")
				}
			}
		}
	}
}
