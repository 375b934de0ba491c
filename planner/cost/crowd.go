package cost

import (
	"math"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// Instr returns the time of an instruction at a position of a mesh, and what
// kind of time it is. The mesh is the program's, or one that differs from it in
// the micro-batch axis. A part that is smaller than the first rank's of the first
// micro-batch takes no longer than that one, whatever tiles it is made of.
func (m *Program) Instr(in *codegen.Instr, mesh ir.Mesh, at ir.Coord) (Picoseconds, Kind) {
	t, kind := m.instr(in, mesh, at)
	if at != (ir.Coord{}) {
		first, _ := m.instr(in, mesh, ir.Coord{})
		t = min(t, first)
	}
	return m.crowded(t, in.Node.Phase, mesh), kind
}

// crowded is the time of work whose price is that of ranks which are all busy. On a
// shared machine with more ranks than cores, the ranks of a pipeline that wait leave
// their part of the cores to the others. Updates come after, on all ranks at once.
func (m *Program) crowded(t Picoseconds, phase ir.Phase, mesh ir.Mesh) Picoseconds {
	if phase == ir.Update {
		return t
	}
	busy := m.Busy(m.plan.PP(), mesh.Size(partition.AxisMB))
	if busy == 1 {
		return t
	}
	return Picoseconds(math.Ceil(float64(t) * busy))
}

// Busy is the share of its time with all ranks busy that the work of a rank takes in a
// pipeline of p stages and m micro-batches. What a rank may take from others is what
// they leave in any case, under the schedule that leaves the least: with forward
// passes, gradients of inputs and gradients of weights of one length a zero-bubble
// schedule works 3m of 3m+p-1 (Qi et al. ICLR'24, section 3), so no plan is predicted
// to take less than the work of all ranks does on all cores. Nobody has more than one.
func (m *Model) Busy(stages, microBatches int) float64 {
	if m.crowd <= 1 || stages == 1 {
		return 1
	}
	work := 3 * float64(microBatches)
	return max(work/(work+float64(stages-1)), 1/m.crowd)
}
