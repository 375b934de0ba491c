package ir

// Arena allocates nodes and values in batches, since a graph is freed as a whole. The zero Arena is ready for
// use.
type Arena struct {
	nodes  slab[Node]
	values slab[Value]
	lists  slab[*Value]
}

// Expect reserves space for that many nodes of a training step, most of which have one result.
func (a *Arena) Expect(nodes int) {
	a.nodes.expect(nodes)
	a.values.expect(nodes * 5 / 4)
	a.lists.expect(3 * nodes)
}

// Node returns a copy of n with space for its operands and results, which are nil until they are filled in.
func (a *Arena) Node(n Node, args, results int) *Node {
	m := &a.nodes.take(1)[0]
	*m = n
	m.Args, m.Results = a.list(args), a.list(results)
	return m
}

// Value returns a copy of v.
func (a *Arena) Value(v Value) *Value {
	w := &a.values.take(1)[0]
	*w = v
	return w
}

// list returns n nil values. It has no spare capacity: append would copy it.
func (a *Arena) list(n int) []*Value {
	if n == 0 {
		return nil
	}
	return a.lists.take(n)
}

// slab allocates from chunks that grow with what was taken before.
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
