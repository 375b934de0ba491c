package cost

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// TestCrowdedPipeline: four stages on two cores get what the waiting ones leave, so
// that six micro-batches take as long as the work of two cores, and never more than
// a core each; updates and machines with a core for every rank are as ever.
func TestCrowdedPipeline(t *testing.T) {
	c, err := Load("cpu")
	require.NoError(t, err)
	instr := func(cores, stages, batch int, phase ir.Phase) Picoseconds {
		c.Device.Cores = cores
		c.Device.FLOPS["f32"] = 1e11 / float64(cores) // the same in all
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
	require.InEpsilon(t, float64(full)*18/21, float64(instr(2, 4, 6, ir.Forward)), 1e-6, "of 21 turns a rank works in 18")
	require.InEpsilon(t, float64(full)/2, float64(instr(2, 4, 1, ir.Forward)), 1e-6, "one micro-batch: one stage works, on one core")
	require.Equal(t, full, instr(2, 4, 6, ir.Update))
	require.Equal(t, full, instr(2, 1, 24, ir.Forward), "no pipeline, no bubble")
}
