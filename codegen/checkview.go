package codegen

import (
	"fmt"

	"github.com/autopar/autopar/ir"
)

// base returns the buffer that a buffer lies in: itself, or the one that it is a view of.
func (s *Stage) base(id int) int {
	if b := &s.Buffers[id]; b.View {
		return b.Of
	}
	return id
}

// near lists, for each buffer that shares memory with others, those others: its views, or the buffer that it is
// a view of and the other views of that one.
func (s *Stage) near() [][]int {
	views := map[int][]int{}
	for id := range s.Buffers {
		if b := &s.Buffers[id]; b.View && b.Of >= 0 && b.Of < len(s.Buffers) {
			views[b.Of] = append(views[b.Of], id)
		}
	}
	near := make([][]int, len(s.Buffers))
	for of, all := range views {
		near[of] = all
		for _, id := range all {
			near[id] = append(near[id], of)
			for _, other := range all {
				if other != id {
					near[id] = append(near[id], other)
				}
			}
		}
	}
	return near
}

// checkViews makes sure that a view lies in a buffer that is live at least as long, and that on each rank it
// lies exactly where its part of the whole lies: its first and last elements are those of the part, and there
// is no room for others between them.
func checkViews(p *Program, s *Stage) error {
	for id := range s.Buffers {
		b := &s.Buffers[id]
		if !b.View {
			continue
		}
		fail := func(rank int, format string, args ...any) error {
			return &CheckError{Rank: rank, Stage: s.Index, Value: b.Value.Name(), Msg: fmt.Sprintf("b%d ", id) + fmt.Sprintf(format, args...)}
		}
		if b.Of < 0 || b.Of >= len(s.Buffers) || s.Buffers[b.Of].View {
			return fail(-1, "is a view of b%d, which has no place of its own", b.Of)
		}
		whole := &s.Buffers[b.Of]
		switch {
		case !b.Value.Type.Equal(whole.Value.Type):
			return fail(-1, "is a view of b%d: a %s of a %s", b.Of, b.Value.Type, whole.Value.Type)
		case whole.Region != Persist && (whole.Region != b.Region || whole.Body != b.Body || whole.Chunk != b.Chunk || whole.From > b.From || whole.To < b.To):
			return fail(-1, "is a view of b%d, which is not there as long", b.Of)
		}
		for i := range p.Schedules {
			r := &p.Schedules[i]
			if r.Stage != s.Index {
				continue
			}
			for _, t := range r.Tasks {
				if t.Phase != b.Body || t.Chunk != b.Chunk && t.Phase != ir.Update {
					continue
				}
				c := p.At(r, t)
				part, of := p.Slab(b.Value, c), p.Slab(whole.Value, c)
				size, n := b.Value.Type.DType.Size(), part.Elems()
				if n == 0 {
					continue
				}
				if _, ok := Place(of, part); !ok {
					return fail(r.Rank, "is a view of b%d, where its part is not in one piece", b.Of)
				}
				bytes := p.Offset(r, t, id) - p.Offset(r, t, b.Of)
				at := bytes / size
				switch {
				case bytes%align != 0:
					return fail(r.Rank, "begins %d bytes into b%d, not at a multiple of %d", bytes, b.Of, align)
				case at < 0 || at+n > of.Elems():
					return fail(r.Rank, "is elements %d to %d of b%d, which has %d", at, at+n, b.Of, of.Elems())
				case of.GlobalIndex(int(at)) != part.GlobalIndex(0) || of.GlobalIndex(int(at+n-1)) != part.GlobalIndex(int(n-1)):
					return fail(r.Rank, "is not where its part of b%d is", b.Of)
				}
			}
		}
	}
	return nil
}

// aliases makes sure that an instruction writes no memory that it also accesses through another buffer. The
// exception is [Instr.InPlace]: the result of a slice stays where it is in the operand, and the operand of an
// all_gather already is where the result has it.
func (c *code) aliases(in Instr) error {
	n := in.Node
	if in.InPlace {
		if n.Op != ir.OpSlice && n.Op != ir.OpAllGather {
			return c.fail(n, nil, "is %s, which moves something even in place", n.Op)
		}
		whole, part := in.inPlace()
		if b := &c.stage.Buffers[part]; !b.View || b.Of != whole {
			return c.fail(n, nil, "is in place, but b%d is no view of b%d", part, whole)
		}
		for _, x := range []struct {
			buffer int
			v      *ir.Value
		}{{in.Args[0], n.Args[0]}, {in.Results[0], n.Results[0]}} {
			if !c.stage.alike(x.buffer, x.v) {
				return c.fail(n, x.v, "is another part than b%d", x.buffer)
			}
		}
		return nil
	}
	for i, id := range in.Results {
		for _, other := range c.near[id] {
			for k, arg := range in.Args {
				if arg == other {
					return c.fail(n, n.Results[i], "is written to b%d, which shares memory with operand %d in b%d", id, k, arg)
				}
			}
			for k, r := range in.Results {
				if r == other {
					return c.fail(n, n.Results[i], "is written to b%d, which shares memory with result %d in b%d", id, k, r)
				}
			}
		}
	}
	return nil
}
