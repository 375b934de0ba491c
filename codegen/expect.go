package codegen

import "github.com/autopar/autopar/ir"

// Expect is a point of a rank's schedule from which on a message may come: the place for it is
// free, and the sender is about to send it.
type Expect struct {
	Task int // index
	// Before is the instruction of the task before which the point lies; nil is its start, or
	// with End its end.
	Before *ir.Node
	End    bool
	// Send, From and MicroBatch say which message it is.
	Send       *ir.Node
	From       int // world rank
	MicroBatch int
}

// Expects returns when each rank expects its messages, in order, for runtimes in which a
// transfer is a meeting: it starts when the receiver expects it and the sender has come to it.
//
// All of it is done in one order that runs the program: that in which [Check] runs it, by rounds
// of a task for each rank. So no rank waits for ever, not even where the receiver does nothing
// else from where it expects a message until it is there.
func Expects(p *Program) ([][]Expect, error) {
	all := make([][]Expect, len(p.Schedules))
	w := newWalker(p)
	w.expect = func(to int, e Expect) { all[to] = append(all[to], e) }
	err := w.run()
	return all, err
}

// tell says that the receiver of what rank r sends next expects it where it stands.
func (w *walker) tell(r int) {
	task, in := w.here(r)
	to := w.prog.Peer(&w.prog.Schedules[r], in.Node)
	e := Expect{Send: in.Node, From: r, MicroBatch: task.MicroBatch}
	_, stands := w.here(to)
	if e.Task = w.at[to].task; stands != nil {
		e.Before = stands.Node
	} else {
		e.End = w.at[to].instr > 0 // its stream goes on
	}
	w.expect(to, e)
}
