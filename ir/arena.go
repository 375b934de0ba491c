package ir

// Arena allocates nodes and values, many in one allocation: a graph lives and dies
// as a whole. The zero Arena is ready for use.
type Arena struct {
	nodes  slab[Node]
	values slab[Value]
	lists  slab[*Value]
}

// Expect makes room for so many nodes of a training step at once, most of which have one result.
func (a *Arena) Expect(nodes int) {
	a.nodes.expect(nodes)
	a.values.expect(nodes * 5 / 4)
	a.lists.expect(3 * nodes)
}

// Node returns a copy of n with room for its operands and results: nil ones, to be
// filled in.
func (a *Arena) Node(n Node, args, results int) *Node {
	m := &a.nodes.take(1)[0]
	*m = n
	m.Args, m.Results = a.List(args), a.List(results)
	return m
}

// Value returns a copy of v.
func (a *Arena) Value(v Value) *Value {
	w := &a.values.take(1)[0]
	*w = v
	return w
}

// List returns n nil values. It must not be appended to in place: it has no room.
func (a *Arena) List(n int) []*Value {
	if n == 0 {
		return nil
	}
	return a.lists.take(n)
}

// slab hands out pieces of allocations that grow with what was taken before.
type slab[T any] struct {
	free []T
	size int
}

const maxSlab = 512

func (s *slab[T]) expect(n int) { s.free = make([]T, n) }

func (s *slab[T]) take(n int) []T {
	if n > len(s.free) {
		s.size = min(max(16, 2*s.size), maxSlab)
		s.free = make([]T, max(n, s.size))
	}
	piece := s.free[:n:n]
	s.free = s.free[n:]
	return piece
}
