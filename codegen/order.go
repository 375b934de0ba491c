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
	split, lag := training && p.Schedule.SplitsBackward(), WeightLag(p.Schedule, position)
	for i := range backwards {
		if next := warm + i; next < forwards {
			add(pass(ir.Forward, next, n, k))
		}
		add(pass(ir.Backward, i, n, k))
		if mb := i - lag; split && mb >= 0 {
			add(Task{Phase: ir.WeightGrad, MicroBatch: mb})
		}
	}
	for mb := max(0, backwards-lag); split && mb < m; mb++ {
		add(Task{Phase: ir.WeightGrad, MicroBatch: mb})
	}
	return append(tasks, Task{Phase: ir.Update})
}

// WarmUp returns the number of forward passes that a position with one chunk runs before it alternates forward and backward
// passes. Under 1F1B that is the number of positions after it, under an eager schedule twice that (Zhuang et al. MLSys'23).
func WarmUp(s partition.Schedule, positions, position, m int) int {
	after := positions - 1 - position
	switch {
	case s == partition.GPipe:
		return m
	case s.Eager():
		after *= 2
	}
	return min(after, m)
}

// warmUp is [WarmUp] with any number of chunks: with k over n positions it is n(k-1) + 2(n-1-i) at position i (Narayanan et al. SC'21,
// section 2.2).
func warmUp(p *partition.Plan, position, m int) int {
	n, k := p.PP(), p.Chunks()
	if p.Schedule == partition.Interleaved {
		return min(n*(k-1)+2*(n-1-position), m*k)
	}
	return WarmUp(p.Schedule, n, position, m)
}

// WeightLag returns by how many micro-batches the passes for weight gradients of a position lag behind its backward passes, 0 where
// these are one. A later position has fewer micro-batches in flight, so it can keep each of them longer: until all positions keep as
// many.
func WeightLag(s partition.Schedule, position int) int {
	switch s {
	case partition.ZeroBubble:
		return position
	case partition.EagerZeroBubble:
		return 2 * position
	}
	return 0
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
// keeps at once: all m of them under GPipe, and never more than that. Under 1F1B it is one more than the warm-up has, and
// where weight gradients have a pass of their own, as many more as that lags behind.
func InFlight(p *partition.Plan, position, m int, training bool) []int {
	switch {
	case !training:
		return slices.Repeat([]int{1}, p.Chunks())
	case p.Schedule == partition.GPipe:
		return []int{m}
	case p.Schedule != partition.Interleaved:
		return []int{min(m, warmUp(p, position, m)+1+WeightLag(p.Schedule, position))}
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
	case p.Schedule.SplitsBackward():
		return ir.WeightGrad
	}
	return ir.Backward
}
