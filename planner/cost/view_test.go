package cost

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// TestViewsAreNotMoved: a slice of bytes that are already in place takes no time, and a gather in one pass none for
// the share that is in place. Both take time if the parts do not fit.
func TestViewsAreNotMoved(t *testing.T) {
	for _, name := range []string{"cpu", "h100"} {
		c, err := Load(name)
		require.NoError(t, err)
		p := &partition.Plan{PlanNGPUs: 4, RuntimeNGPUs: 4, DP: 4, TP: 1, ZeRO: 1, MicroBatch: 1, Schedule: partition.GPipe, Stages: []partition.Stage{{Last: 1}}}
		mesh := p.Mesh(4)
		m := NewProgram(c, p, mesh)
		dp := mesh.Axis(partition.AxisDP)
		price := func(op ir.Op, rows, columns int, inPlace bool) (Picoseconds, Work) {
			whole := &ir.Value{Type: ir.Type{DType: ir.F32, Shape: []int{rows, columns}}}
			part := &ir.Value{Type: whole.Type}
			part.Spec[dp] = ir.ShardOn(0)
			n := &ir.Node{Op: op, Phase: ir.Update, Attr: ir.CommAttr{Axis: partition.AxisDP}, Args: []*ir.Value{whole}, Results: []*ir.Value{part}}
			if op == ir.OpAllGather {
				n.Args, n.Results = n.Results, n.Args
			}
			in := codegen.Instr{Node: n, InPlace: inPlace}
			time, _ := m.Instr(&in, mesh, ir.Coord{})
			return time, m.WorkOf([]codegen.Instr{in}, mesh, ir.Coord{})
		}
		for _, op := range []ir.Op{ir.OpSlice, ir.OpAllGather} {
			moved, work := price(op, 1<<10, 16, false)
			there, less := price(op, 1<<10, 16, true)
			switch {
			case op == ir.OpSlice:
				require.Zero(t, there)
				require.Zero(t, less)
			case name == "cpu":
				saved := 3 * float64(1<<10*16) / m.together[0] * 1e12
				require.InDelta(t, saved, float64(moved-there), 2)
				require.Equal(t, float64(3*1<<10*16), work.Moved-less.Moved)
			default:
				require.Equal(t, moved, there, "a ring")
			}
			require.Positive(t, moved)
			odd, _ := price(op, 10, 1, true)
			same, _ := price(op, 10, 1, false)
			require.Equal(t, same, odd, "shares of 12 bytes are no views")
		}
	}
}
