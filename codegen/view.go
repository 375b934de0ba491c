package codegen

import (
	"slices"

	"github.com/autopar/autopar/ir"
)

// views finds buffers that need no memory of their own because they are part of a larger buffer: shards that
// are gathered into the whole value. Under ZeRO 1 and 2 these are the shards of parameters, or of their rounded
// copies: each rank updates its shard, and an all_gather completes the parameter, in which the shard already
// has its place. The shard is computed there directly, so the all_gather is in place (in NCCL's sense), and if
// the shard was first sliced out of the old parameter, that slice has nothing to do.
//
// From the first instruction that touches the shard until the gather, nothing else may touch the whole; after
// the gather, nothing may touch the shard. [checkViews] and [code.aliases] prove this for every program.
func (s *Stage) views() {
	instrs := s.Bodies[ir.Update].Instrs
	if !slices.ContainsFunc(instrs, func(in Instr) bool { return in.Node.Op == ir.OpAllGather }) {
		return
	}
	touched := make([][]int, len(s.Buffers)) // by buffer: the indices of instructions that touch it, in order
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

// alike reports whether v lies in a buffer in the same way (type and placement) as the value that the buffer
// was made for.
func (s *Stage) alike(buffer int, v *ir.Value) bool {
	b := s.Buffers[buffer].Value
	return v.Type.Equal(b.Type) && v.Spec == b.Spec
}

// settle completes the stage of a [Draft] for the mesh of its program: views that do not fit there become
// ordinary buffers, and Sums gets its region.
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

// inPlace returns the buffers of an instruction that is InPlace: the whole, and the part that is a view of it.
func (in *Instr) inPlace() (whole, part int) {
	if in.Node.Op == ir.OpSlice {
		return in.Args[0], in.Results[0]
	}
	return in.Results[0], in.Args[0]
}

// Idle reports whether an instruction has nothing to do: it slices a part out of a buffer that the part remains
// in.
func (in *Instr) Idle() bool { return in.InPlace && in.Node.Op == ir.OpSlice }

// Moves reports whether an instruction has to move all of the part that it slices out or gathers: it is not
// [Instr.InPlace], or the part does not fit as a view on this mesh.
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

// Fits reports whether a part of a value can be a view of the whole on a mesh: whether on every device the part
// is contiguous in the whole and starts at an aligned address. The answer is one for all ranks of a stage,
// because they share its code.
//
// Not every position has to be tried. An axis cuts a dimension into larger parts followed by smaller ones, so
// there are two sizes, and all parts of one size start at equal distances. So the first two and the last two
// positions of each axis decide for all, unless its parts have shares.
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
		case mesh.Axes[axis].Shares != nil:
			near = n
		case whole.Spec[axis] == part.Spec[axis]:
			near = 1 // where the part begins in the whole depends only on their sizes
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

// Place returns the index, among the elements of a whole that lies in memory, at which its part begins. ok is
// false if the part is not contiguous there. An empty part begins at 0.
func Place(whole, part ir.Slab) (elem int64, ok bool) {
	if part.Elems() == 0 {
		return 0, true
	}
	several := false // whether an earlier dimension of the part has more than one element
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

// Offset returns the byte offset of a buffer, views included, in its arena in a task of a rank.
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
