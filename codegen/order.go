package codegen

import (
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// Order returns the tasks of one step, in order, for a rank at a position of the pipeline that runs m
// micro-batches.
//
// The interleaved schedule is defined for multiples of the pipeline depth. For any other m the tasks are those
// of the next multiple, without the micro-batches that do not exist. That is safe: leaving out tasks makes no
// rank wait for anything that it did not wait for before.
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
		// A later position has fewer micro-batches in flight, so it can keep each of them longer: its
		// weight-gradient passes lag behind its backward passes by its index.
		if mb := i - position; split && mb >= 0 {
			add(Task{Phase: ir.WeightGrad, MicroBatch: mb})
		}
	}
	for mb := max(0, backwards-position); split && mb < m; mb++ {
		add(Task{Phase: ir.WeightGrad, MicroBatch: mb})
	}
	return append(tasks, Task{Phase: ir.Update})
}

// warmUp returns the number of forward passes that a position runs before it alternates forward and backward
// passes. Under 1F1B that is the number of positions after it; with k chunks over n positions it is n(k-1) +
// 2(n-1-i) at position i (Narayanan et al. SC'21, section 2.2).
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

// pass returns pass number i of one phase in the interleaved order over n positions with k chunks each: groups
// of n micro-batches go through the first chunk of every rank, then through the second, and so on.
func pass(phase ir.Phase, i, n, k int) Task {
	chunk := i / n % k
	if phase == ir.Backward {
		chunk = k - 1 - chunk
	}
	return Task{Phase: phase, Chunk: chunk, MicroBatch: i/(n*k)*n + i%n}
}

// InFlight returns, for each chunk of a position, the largest number of micro-batches whose activations it
// keeps at once: all m of them under GPipe, the number of positions from here to the end under 1F1B, and never
// more than m.
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
	// A chunk holds the most when its first backward pass begins. From then on n backward passes follow in a
	// row, with no more than n forward passes between them, and after those the state is that of n
	// micro-batches before.
	n, k := p.PP(), p.Chunks()
	most := make([]int, k)
	for c := range most {
		forwards := warmUp(p, position, m*n) + (k-1-c)*n + 1 // of all chunks until then
		most[c] = min(m, forwards/(n*k)*n+min(n, max(0, forwards%(n*k)-c*n)))
	}
	return most
}

// Room returns the number of slots and inboxes of each chunk of a position: one slot for each micro-batch in
// flight, and one inbox more than that.
func Room(p *partition.Plan, position, m int, training bool) []Chunk {
	slots := InFlight(p, position, m, training)
	room := make([]Chunk, len(slots))
	for c, slots := range slots {
		room[c] = Chunk{Slots: slots, Inboxes: min(slots+1, m)}
	}
	return room
}

// Releases returns the phase of the last pass that reads the saved activations of a micro-batch.
func Releases(p *partition.Plan, training bool) ir.Phase {
	switch {
	case !training:
		return ir.Forward
	case p.Schedule == partition.ZeroBubble:
		return ir.WeightGrad
	}
	return ir.Backward
}
