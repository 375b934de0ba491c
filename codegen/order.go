package codegen

import (
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// Order returns the tasks in one step of a rank at a position of the pipeline that
// runs m micro-batches.
//
// Interleaving is made for a multiple of as many micro-batches as there are
// positions. Other numbers run as the next multiple does, without the tasks of
// the micro-batches that are not there: leaving out tasks makes no rank wait for
// what it did not wait for before.
func Order(p *partition.Plan, position, m int, training bool) []Task {
	n, k := p.PP(), p.Chunks()
	rounded := (m + n - 1) / n * n
	forwards, backwards := rounded*k, rounded*k
	warm := warmUp(p, position, rounded)
	if !training {
		warm, backwards = forwards, 0
	}
	tasks := make([]Task, 0, (m*k+1)*(int(Releases(p, training))+1))
	add := func(t Task) {
		if t.MicroBatch < m {
			tasks = append(tasks, t)
		}
	}
	for i := range warm {
		add(pass(ir.Forward, i, n, k))
	}
	split := training && p.Schedule == partition.ZeroBubble
	for i := range backwards {
		if next := warm + i; next < forwards {
			add(pass(ir.Forward, next, n, k))
		}
		add(pass(ir.Backward, i, n, k))
		// Later positions have fewer micro-batches in flight, so they can keep
		// those longer: gradients of weights lag by as many as the position.
		if mb := i - position; split && mb >= 0 {
			add(Task{Phase: ir.WeightGrad, MicroBatch: mb})
		}
	}
	for mb := max(0, backwards-position); split && mb < m; mb++ {
		add(Task{Phase: ir.WeightGrad, MicroBatch: mb})
	}
	return append(tasks, Task{Phase: ir.Update})
}

// warmUp returns how many forward passes a position runs before it alternates
// forward and backward passes: as many as positions come after it under 1F1B, and
// with k chunks over n positions n(k-1) + 2(n-1-i) at position i (Narayanan et al.
// SC'21, section 2.2).
func warmUp(p *partition.Plan, position, m int) int {
	n, k := p.PP(), p.Chunks()
	switch p.Schedule {
	case partition.GPipe:
		return m
	case partition.Interleaved:
		return min(n*(k-1)+2*(n-1-position), m*k)
	}
	return min(n-1-position, m)
}

// pass returns pass i of one phase over k chunks in the order of interleaving: n
// micro-batches at a time go through the first chunk of every rank, then through the
// second.
func pass(phase ir.Phase, i, n, k int) Task {
	chunk := i / n % k
	if phase == ir.Backward {
		chunk = k - 1 - chunk
	}
	return Task{Phase: phase, Chunk: chunk, MicroBatch: i/(n*k)*n + i%n}
}

// InFlight returns how many micro-batches each chunk of a position keeps the
// activations of at once, at most: all of them under GPipe, as many as there are
// positions from here to the end under 1F1B. Fewer than m micro-batches never need
// more.
func InFlight(p *partition.Plan, position, m int, training bool) []int {
	switch {
	case !training:
		return slices.Repeat([]int{1}, p.Chunks())
	case p.Schedule == partition.GPipe:
		return []int{m}
	case p.Schedule == partition.OneFOneB:
		return []int{min(m, p.PP()-position)}
	case p.Schedule == partition.ZeroBubble:
		return []int{min(m, p.PP())}
	}
	// A chunk keeps the most when its first backward pass begins: then n follow in a row,
	// with no more forward passes between them, and all is as n micro-batches before.
	n, k := p.PP(), p.Chunks()
	most := make([]int, k)
	for c := range most {
		forwards := warmUp(p, position, m*n) + (k-1-c)*n + 1 // of all chunks until then
		most[c] = min(m, forwards/(n*k)*n+min(n, max(0, forwards%(n*k)-c*n)))
	}
	return most
}

// Room returns how many slots and inboxes each chunk of a position has: as many
// slots as micro-batches are in flight, and one inbox more.
func Room(p *partition.Plan, position, m int, training bool) []Chunk {
	slots := InFlight(p, position, m, training)
	room := make([]Chunk, len(slots))
	for c, slots := range slots {
		room[c] = Chunk{Slots: slots, Inboxes: min(slots+1, m)}
	}
	return room
}

// Releases returns the phase whose pass is the last to use the activations of a
// micro-batch.
func Releases(p *partition.Plan, training bool) ir.Phase {
	switch {
	case !training:
		return ir.Forward
	case p.Schedule == partition.ZeroBubble:
		return ir.WeightGrad
	}
	return ir.Backward
}
