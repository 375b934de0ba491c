package codegen

import "github.com/autopar/autopar/ir"

// Expect is a point in a rank's schedule from which it expects a message: the place for it is free, and the
// sender is about to send it.
type Expect struct {
	Task int // index in the rank's schedule
	// Before is the instruction of the task before which the point lies. If it is nil, the point is the start
	// of the task, or with End its end.
	Before *ir.Node
	End    bool
	// Send, From and MicroBatch identify the message.
	Send       *ir.Node
	From       int // world rank
	MicroBatch int
}

// Expects returns, by rank, the points at which the rank expects its messages, in order. It is for runtimes in
// which a transfer is a rendezvous: it starts when the receiver expects it and the sender has come to it. It
// returns the errors of [Check]'s search for deadlocks.
//
// All points are taken from one execution order of the whole program: the one in which [Check] runs it, in
// rounds of one task per rank. Such an order exists, so no rank waits for ever, not even if the receiver does
// nothing else between expecting a message and its arrival.
func Expects(p *Program) ([][]Expect, error) {
	all := make([][]Expect, len(p.Schedules))
	w := newWalker(p)
	w.expect = func(to int, e Expect) { all[to] = append(all[to], e) }
	err := w.run()
	return all, err
}

// tell reports that the receiver of what rank r sends next expects it where the receiver stands now.
func (w *walker) tell(r int) {
	task, in := w.here(r)
	to := w.prog.Peer(&w.prog.Schedules[r], in.Node)
	e := Expect{Send: in.Node, From: r, MicroBatch: task.MicroBatch}
	_, stands := w.here(to)
	if e.Task = w.at[to].task; stands != nil {
		e.Before = stands.Node
	} else {
		e.End = w.at[to].instr > 0 // its communication stream is still running
	}
	w.expect(to, e)
}
