package codegen

import (
	"slices"

	"github.com/autopar/autopar/ir"
)

// views finds buffers that need no place of their own: parts of values that are gathered to the whole. So are the shares of
// parameters under ZeRO 1 and 2, or what they are rounded to: a rank makes its share, and the ranks gather them into the
// parameter, where the share has a place already. There it is made; and where it is first cut out of the old parameter, that
// moves nothing either. NCCL calls the gather one in place.
//
// From the first instruction that touches the part to the gather nothing else may touch the whole, and after it nothing the
// part. [checkViews] and [code.aliases] prove it of every program.
func (s *Stage) views() {
	instrs := s.Bodies[ir.Update].Instrs
	if !slices.ContainsFunc(instrs, func(in Instr) bool { return in.Node.Op == ir.OpAllGather }) {
		return
	}
	touched := make([][]int, len(s.Buffers)) // by which instructions, in order
	for i := range instrs {
		in := &instrs[i]
		for _, ids := range [2][]int{in.Args, in.Results} {
			for _, id := range ids {
				if at := touched[id]; len(at) == 0 || at[len(at)-1] != i {
					touched[id] = append(at, i)
				}
			}
		}
	}
	for i := range instrs {
		back := &instrs[i]
		if back.Node.Op != ir.OpAllGather {
			continue
		}
		part, whole := back.Args[0], back.Results[0]
		if s.Buffers[part].Region != Temp || s.Buffers[whole].Region != Persist || s.Buffers[part].View {
			continue
		}
		first, last := touched[part][0], touched[part][len(touched[part])-1]
		cut := instrs[first].Node.Op == ir.OpSlice && instrs[first].Args[0] == whole
		apart := !slices.ContainsFunc(touched[whole], func(at int) bool { return first <= at && at < i && !(at == first && cut) })
		if last != i || !apart || !s.alike(part, back.Node.Args[0]) || !s.alike(whole, back.Node.Results[0]) {
			continue
		}
		all := true
		for _, at := range touched[part][:len(touched[part])-1] {
			for k, id := range instrs[at].Results {
				all = all && (id != part || s.alike(part, instrs[at].Node.Results[k]))
			}
		}
		if !all {
			continue
		}
		s.Buffers[part].View, s.Buffers[part].Of = true, whole
		back.InPlace = true
		instrs[first].InPlace = cut
	}
}

// alike reports whether a value lies in a buffer as the value that the buffer is named for.
func (s *Stage) alike(buffer int, v *ir.Value) bool {
	b := s.Buffers[buffer].Value
	return v.Type.Equal(b.Type) && v.Spec == b.Spec
}

// settle gives up views that do not fit on a mesh, that of the program, and puts sums where they belong on it.
func (s *Stage) settle(mesh ir.Mesh) {
	sums := SumsOn(mesh)
	for id := range s.Buffers {
		b := &s.Buffers[id]
		if b.View && !Fits(mesh, s.Buffers[b.Of].Value, b.Value) {
			b.View, b.Of = false, 0
		}
		if b.Region == Sums {
			b.Region = sums
		}
	}
	for phase := range s.Bodies {
		for i := range s.Bodies[phase].Instrs {
			if in := &s.Bodies[phase].Instrs[i]; in.InPlace {
				whole, part := in.inPlace()
				in.InPlace = s.Buffers[part].View && s.Buffers[part].Of == whole
			}
		}
	}
}

// inPlace returns the buffers of an instruction of which one is a view of the other.
func (in *Instr) inPlace() (whole, part int) {
	if in.Node.Op == ir.OpSlice {
		return in.Args[0], in.Results[0]
	}
	return in.Results[0], in.Args[0]
}

// Idle reports whether an instruction of a program has nothing to do: it cuts out what lies where it belongs.
func (in *Instr) Idle() bool { return in.InPlace && in.Node.Op == ir.OpSlice }

// Moves reports whether an instruction has to move all of the part that it cuts out or gathers, on a mesh: it is not
// [Instr.InPlace], or the part does not fit.
func (in *Instr) Moves(mesh ir.Mesh) bool {
	if !in.InPlace {
		return true
	}
	whole, part := in.Node.Args[0], in.Node.Results[0]
	if in.Node.Op != ir.OpSlice {
		whole, part = part, whole
	}
	return !Fits(mesh, whole, part)
}

// Fits reports whether a part of a value can be a view of the whole on a mesh: if on every device it is in one piece there and
// starts where a tensor may. It is the same for all ranks of a stage, as they share its code.
//
// An axis cuts into larger parts and then smaller ones, so that its first two positions and its last two tell of all: their
// sizes are the two there are, and every part begins as many of those further on as lie before it.
func Fits(mesh ir.Mesh, whole, part *ir.Value) bool {
	size := part.Type.DType.Size()
	at := ir.Coord{}
	room, wholes := make([]int, 2*len(whole.Type.Shape)+2*len(part.Type.Shape)), 2*len(whole.Type.Shape)
	var every func(axis int) bool
	every = func(axis int) bool {
		if axis == len(mesh.Axes) {
			of, its := mesh.LocalIn(room[:wholes], whole.Type.Shape, whole.Spec, at), mesh.LocalIn(room[wholes:], part.Type.Shape, part.Spec, at)
			elems, ok := Place(of, its)
			return ok && elems*size%align == 0
		}
		n, near := mesh.Axes[axis].Size, 2
		switch {
		case part.Spec[axis].Kind != ir.Shard:
			n = 1
		case whole.Spec[axis] == part.Spec[axis]:
			near = 1 // where the part begins in the whole depends on their sizes alone
		}
		defer func(was int) { at[axis] = was }(at[axis])
		for i := 0; i < n; i++ {
			if near <= i && i < n-near {
				i = n - near
			}
			if at[axis] = i; !every(axis + 1) {
				return false
			}
		}
		return true
	}
	return every(0)
}

// Place returns at which element of a whole that lies in memory its part begins; false unless the part is in one piece there.
// An empty part begins at its start.
func Place(whole, part ir.Slab) (elem int64, ok bool) {
	if part.Elems() == 0 {
		return 0, true
	}
	several := false // elements in a dimension before
	for d, n := range part.Local {
		from := part.Offset[d] - whole.Offset[d]
		if from < 0 || from+n > whole.Local[d] || several && n < whole.Local[d] {
			return 0, false
		}
		several = several || n > 1
		elem = elem*int64(whole.Local[d]) + int64(from)
	}
	return elem, true
}

// Offset returns where a buffer lies in its arena in a task of a rank.
func (p *Program) Offset(s *Schedule, t Task, buffer int) int64 {
	st := p.Stages[s.Stage]
	b := &st.Buffers[buffer]
	at := st.Offset(buffer, t.MicroBatch)
	if !b.View {
		return at
	}
	c := p.At(s, t)
	elem, ok := Place(p.Slab(st.Buffers[b.Of].Value, c), p.Slab(b.Value, c))
	if !ok {
		panic("BUG: " + b.Value.Name() + " is no view on this rank")
	}
	return at + elem*b.Value.Type.DType.Size()
}
