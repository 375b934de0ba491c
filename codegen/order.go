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
	forwards := passes(ir.Forward, n, k, rounded)
	backwards := passes(ir.Backward, n, k, rounded)
	warm := warmUp(p, position, rounded)
	if !training {
		warm, backwards = len(forwards), nil
	}
	var tasks []Task
	add := func(phase ir.Phase, t Task) {
		if t.MicroBatch < m {
			tasks = append(tasks, Task{Phase: phase, Chunk: t.Chunk, MicroBatch: t.MicroBatch})
		}
	}
	for _, t := range forwards[:warm] {
		add(ir.Forward, t)
	}
	split := training && p.Schedule == partition.ZeroBubble
	for i, b := range backwards {
		if next := warm + i; next < len(forwards) {
			add(ir.Forward, forwards[next])
		}
		add(ir.Backward, b)
		// Later positions have fewer micro-batches in flight, so they can keep
		// those longer: gradients of weights lag by as many as the position.
		if mb := i - position; split && mb >= 0 {
			add(ir.WeightGrad, Task{MicroBatch: mb})
		}
	}
	for mb := max(0, len(backwards)-position); split && mb < m; mb++ {
		add(ir.WeightGrad, Task{MicroBatch: mb})
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

// passes lists the passes of one phase over m micro-batches and k chunks in the
// order of interleaving: n micro-batches at a time go through the first chunk of
// every rank, then through the second.
func passes(phase ir.Phase, n, k, m int) []Task {
	tasks := make([]Task, 0, m*k)
	for first := 0; first < m; first += n {
		for c := range k {
			if phase == ir.Backward {
				c = k - 1 - c
			}
			for mb := first; mb < first+n; mb++ {
				tasks = append(tasks, Task{Phase: phase, Chunk: c, MicroBatch: mb})
			}
		}
	}
	return tasks
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
	live, most := make([]int, p.Chunks()), make([]int, p.Chunks())
	for _, t := range Order(p, position, m, true) {
		switch t.Phase {
		case ir.Forward:
			live[t.Chunk]++
			most[t.Chunk] = max(most[t.Chunk], live[t.Chunk])
		case ir.Backward:
			live[t.Chunk]--
		}
	}
	return most
}

// Room returns how many slots and inboxes each chunk of a position has: as many
// slots as micro-batches are in flight, and one inbox more.
func Room(p *partition.Plan, position, m int, training bool) []Chunk {
	var room []Chunk
	for _, slots := range InFlight(p, position, m, training) {
		room = append(room, Chunk{Slots: slots, Inboxes: min(slots+1, m)})
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
