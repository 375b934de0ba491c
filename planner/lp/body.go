package lp

import (
	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/planner/cost"
)

// segment is a stretch of a pass that ends in a transfer, or at the end of the pass.
type segment struct {
	// since is how long after each mark of the pass the stretch ends at least: after the
	// start of the pass, and after each transfer before the stretch. Without a
	// communication stream only the last counts; -1 means nothing.
	since    []cost.Picoseconds
	transfer *transfer // nil at the end of the pass
}

// transfer is a send, or a receive, of a wire: what goes from one position to another.
type transfer struct {
	wire   wire
	send   bool
	posted bool             // the position goes on: see [codegen.Instr.Posted]
	time   cost.Picoseconds // of it
	room   int              // micro-batches for which the receiver has room; 0 for all
}

// wire numbers the transfers of a phase between two positions.
type wire struct {
	phase         ir.Phase
	from, to, nth int
}

// wires names all transfers of a program.
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

// clock is a time as the latest of the marks of a pass, each with some time added; -1
// where a mark does not matter.
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

// body follows a rank and its communication stream through a task. The stream does one
// thing at a time; the rank waits for it where an instruction awaits it and at the end.
func (b *bodyReader) body(s *codegen.Schedule, t codegen.Task) []segment {
	instrs := b.prog.Stages[s.Stage].Run(t)
	at := b.prog.At(s, t)
	var segments []segment
	now, stream := clock{0}, clock{0}
	until, beside := -1, clock(nil) // the first instruction after what runs beside a collective, and when that ends
	done := []clock{nil}            // what so many asynchronous instructions end with
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
		case in.Async:
			if !b.price.Overlaps() { // ranks share processors: the work of it takes their time
				now, time = now.plus(time), 0
			}
			stream = latest(stream, now).plus(time)
			for range bucket {
				done = append(done, stream)
			}
		case in.Node.Op == ir.OpSend || in.Node.Op == ir.OpRecv:
			if in.Posted && !b.price.Overlaps() { // the rank copies by itself
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
