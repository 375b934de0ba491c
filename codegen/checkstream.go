package codegen

import (
	"fmt"

	"github.com/autopar/autopar/ir"
)

// checkStreams makes sure that what runs beside the kernels of a body does not
// disturb them: nothing reads the result of an asynchronous instruction, or
// writes a buffer that it reads or writes, before having waited for it; buckets
// hold collectives of one kind that do not disturb each other; and what runs in
// the last micro-batch only is what the step does once.
func checkStreams(s *Stage) error {
	for phase := range s.Bodies {
		body := &s.Bodies[phase]
		var running []*Instr // asynchronous ones, from the first of the body
		done := 0
		for i := range body.Instrs {
			in := &body.Instrs[i]
			fail := func(v *ir.Value, format string, args ...any) error {
				e := &CheckError{Rank: -1, Stage: s.Index, Instr: in.Node.Name, Msg: fmt.Sprintf(format, args...)}
				if v != nil {
					e.Value = v.Name()
				}
				return e
			}
			if err := checkBucket(body, i, fail); err != nil {
				return err
			}
			if once := in.Node.Phase == ir.Update && ir.Phase(phase) != ir.Update; once != in.Last {
				return fail(nil, "runs in the last micro-batch only: %v, want %v", in.Last, once)
			}
			if in.Await > len(running) {
				return fail(nil, "waits for %d asynchronous instructions, %d are before it", in.Await, len(running))
			}
			done = max(done, in.Await)
			if !in.Async {
				for _, other := range running[done:] {
					if err := collide(in, other, fail); err != nil {
						return err
					}
				}
			} else {
				running = append(running, in)
			}
		}
	}
	return checkLives(s)
}

// checkLives makes sure that buffers are held to be live as long as instructions,
// asynchronous ones until they are waited for and all of a bucket until its end, use
// them: with [checkLayout], what a bucket reads and writes lies apart.
func checkLives(s *Stage) error {
	before := 0 // instructions in earlier bodies
	for phase := range s.Bodies {
		body := &s.Bodies[phase]
		ends := lasts(body)
		for i, in := range body.Instrs {
			for _, id := range append(append([]int{}, in.Args...), in.Results...) {
				b := &s.Buffers[id]
				from, to := i, ends[i]
				if b.Region == Slot || b.Region == Inbox {
					from, to = from+before, to+before
				}
				if b.Region != Persist && b.Region != Host && (b.From > from || b.To < to) {
					return &CheckError{Rank: -1, Stage: s.Index, Instr: in.Node.Name, Value: b.Value.Name(),
						Msg: fmt.Sprintf("uses b%d at %d to %d, which is live from %d to %d only", id, from, to, b.From, b.To)}
				}
			}
		}
		before += len(body.Instrs)
	}
	return nil
}

// lasts returns for each instruction of a body the last position at which it may
// be running: no earlier than any of its bucket.
func lasts(body *Body) []int {
	ends := make([]int, len(body.Instrs))
	var running []int // asynchronous ones, from the first of the body
	done := 0
	for i, in := range body.Instrs {
		ends[i] = i
		for ; done < min(in.Await, len(running)); done++ {
			ends[running[done]] = i - 1
		}
		if in.Async {
			running = append(running, i)
		}
	}
	for _, i := range running[done:] {
		ends[i] = len(body.Instrs) - 1
	}
	for i := len(ends) - 1; i > 0; i-- {
		if body.Instrs[i].Fused && ends[i-1] < ends[i] {
			ends[i-1] = ends[i]
		}
	}
	return ends
}

// checkBucket checks the place of one instruction in its bucket.
func checkBucket(body *Body, i int, fail func(*ir.Value, string, ...any) error) error {
	in := &body.Instrs[i]
	switch {
	case in.Async && !Collective(in.Node.Op):
		return fail(nil, "is %s, which cannot run on the communication stream", in.Node.Op)
	case in.Async && in.Await > 0:
		return fail(nil, "waits for the stream that it runs on")
	case in.Last && !in.Async && in.Node.Op.Class() != ir.Compute:
		return fail(nil, "is communication of the last micro-batch only, and not beside it")
	case !in.Fused:
		return nil
	case i == 0 || !Collective(in.Node.Op) || !Collective(body.Instrs[i-1].Node.Op):
		return fail(nil, "is to be made with the instruction before it, and both are no collectives")
	case in.Await > 0:
		return fail(nil, "waits for the stream when the bucket that it is in has begun")
	}
	with := &body.Instrs[i-1]
	a, b := in.Node.Attr.(ir.CommAttr), with.Node.Attr.(ir.CommAttr)
	if in.Node.Op != with.Node.Op || a.Axis != b.Axis || in.Async != with.Async || in.Last != with.Last {
		return fail(nil, "is to be made with %s, which is another kind of collective", with.Node.Name)
	}
	for k := i - 1; k >= 0; k-- {
		if err := collide(in, &body.Instrs[k], fail); err != nil {
			return err
		}
		if !body.Instrs[k].Fused {
			break
		}
	}
	return nil
}

// collide reports a conflict of an instruction with one that may be running.
func collide(in, other *Instr, fail func(*ir.Value, string, ...any) error) error {
	for i, id := range in.Args {
		for _, r := range other.Results {
			if id == r {
				return fail(in.Node.Args[i], "operand %d is read from b%d, into which %s may still be writing", i, id, other.Node.Name)
			}
		}
	}
	for i, id := range in.Results {
		for _, r := range append(append([]int{}, other.Args...), other.Results...) {
			if id == r {
				return fail(in.Node.Results[i], "writes b%d, which %s may still be using", id, other.Node.Name)
			}
		}
	}
	return nil
}
