package lp

import (
	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/planner/cost"
)

// This file reads the times of a pass from a program's instructions. It cuts the pass into segments at its transfers,
// because only transfers depend on other positions.

// segment is the part of a pass that ends at a transfer, or at the end of the pass.
type segment struct {
	// since says how long after each mark of the pass the segment ends, at least. The marks are the start of the pass
	// and the end of each transfer before the segment. Without a communication stream only the last mark matters; -1
	// means that a mark does not.
	since    []cost.Picoseconds
	transfer *transfer // nil at the end of the pass
}

// transfer is a send or a receive on a wire.
type transfer struct {
	wire   wire
	send   bool
	posted bool             // the position does not wait for it: see [codegen.Instr.Posted]
	time   cost.Picoseconds // its duration
	room   int              // number of micro-batches that the receiver has slots for; 0 for all
}

// wire identifies one of the transfers of a phase from one position to another.
type wire struct {
	phase         ir.Phase
	from, to, nth int
}

// wires returns the wire of every send of a program.
func wires(prog *codegen.Program) map[*ir.Node]wire {
	all := map[*ir.Node]wire{}
	count := map[wire]int{}
	for at, st := range prog.Stages {
		for phase, body := range st.Bodies {
			for i := range body.Instrs {
				if n := body.Instrs[i].Node; n.Op == ir.OpSend {
					w := wire{phase: ir.Phase(phase), from: at, to: n.Attr.(ir.P2PAttr).Stage}
					all[n] = wire{w.phase, w.from, w.to, count[w]}
					count[w]++
				}
			}
		}
	}
	return all
}

// bodyReader prices the passes of a program.
type bodyReader struct {
	prog  *codegen.Program
	price *cost.Program
	wires map[*ir.Node]wire
}

// clock is a time relative to the marks of a pass: the latest of all marks, each plus the entry for it. An entry of
// -1 means that the mark does not matter.
type clock []cost.Picoseconds

func (c clock) plus(t cost.Picoseconds) clock {
	next := make(clock, len(c))
	for i, x := range c {
		next[i] = x
		if x >= 0 {
			next[i] += t
		}
	}
	return next
}

func latest(a, b clock) clock {
	next := make(clock, max(len(a), len(b)))
	for i := range next {
		next[i] = -1
		if i < len(a) {
			next[i] = a[i]
		}
		if i < len(b) {
			next[i] = max(next[i], b[i])
		}
	}
	return next
}

// body follows a rank and its communication stream through a task. The stream does one thing at a time. The rank
// waits for it where an instruction awaits it, and at the end.
func (b *bodyReader) body(s *codegen.Schedule, t codegen.Task) []segment {
	instrs := b.prog.Stages[s.Stage].Run(t)
	at := b.prog.At(s, t)
	var segments []segment
	now, stream := clock{0}, clock{0}
	until, beside := -1, clock(nil) // the first instruction after those that run beside a collective, and when that ends
	done := []clock{nil}            // by number of asynchronous instructions, when the last of them ends
	for i := 0; i < len(instrs); i++ {
		in, bucket := &instrs[i], codegen.Bucket(instrs, i)
		i += len(bucket) - 1
		if !s.Runs(in, t) {
			if in.Async {
				for range bucket {
					done = append(done, done[len(done)-1])
				}
			}
			continue
		}
		time, _ := b.price.Bucket(bucket, b.prog.Mesh, at)
		if i == until {
			now = latest(now, beside)
		}
		if in.Await > 0 && done[in.Await] != nil {
			now = latest(now, done[in.Await])
		}
		switch {
		case in.Beside > 0 && b.price.Overlaps():
			until, beside = i+1+in.Beside, now.plus(time)
			now = now.plus(b.price.Slowed(in.Node, time))
		case in.Async:
			if !b.price.Overlaps() { // ranks share processors: its work takes their time
				now, time = now.plus(time), 0
			}
			stream = latest(stream, now).plus(time)
			now = now.plus(b.price.Slowed(in.Node, time))
			for range bucket {
				done = append(done, stream)
			}
		case in.Node.Op == ir.OpSend || in.Node.Op == ir.OpRecv:
			if in.Posted && !b.price.Overlaps() { // the rank makes the copy itself
				now, time = now.plus(time), 0
			}
			x := &transfer{send: in.Node.Op == ir.OpSend, posted: in.Posted, time: time}
			send := in.Node
			if !x.send {
				send = in.Node.Args[0].Def
			}
			x.wire = b.wires[send]
			_, x.room = b.prog.Stages[x.wire.to].RoomFor(send)
			segments = append(segments, segment{now, x})
			next := make(clock, len(now)+1)
			for k := range now {
				next[k] = -1
			}
			now = next
		default:
			now = now.plus(time)
		}
	}
	return append(segments, segment{since: latest(now, stream)})
}
