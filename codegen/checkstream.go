package codegen

import (
	"fmt"
	"slices"

	"github.com/autopar/autopar/ir"
)

// checkStreams makes sure that concurrent instructions of a body do not race. Nothing reads the result of an
// asynchronous instruction, or writes a buffer that it reads or writes, before waiting for it. Buckets hold
// collectives of one kind that are independent of each other. And exactly what a step does once runs in the
// last micro-batch only.
func checkStreams(mesh ir.Mesh, s *Stage) error {
	for phase := range ir.NumPhases {
		for _, instrs := range s.runs(phase) {
			var running []*Instr // asynchronous instructions of the task, in order
			done := 0
			for i := range instrs {
				in := &instrs[i]
				fail := s.failing(in)
				if err := s.checkBucket(instrs, i, fail); err != nil {
					return err
				}
				if err := s.checkBeside(mesh, instrs, i); err != nil {
					return err
				}
				if once := in.Node.Phase == ir.Update && phase != ir.Update; once != in.Last {
					return fail(nil, "runs in the last micro-batch only: %v, want %v", in.Last, once)
				}
				if in.Await < 0 || in.Await > len(running) {
					return fail(nil, "waits for %d asynchronous instructions, %d are before it", in.Await, len(running))
				}
				done = max(done, in.Await)
				if !in.Async {
					for _, other := range running[done:] {
						if err := s.collide(in, other, fail); err != nil {
							return err
						}
					}
				} else {
					running = append(running, in)
				}
			}
		}
	}
	if err := checkLate(s); err != nil {
		return err
	}
	if err := checkArrivals(s); err != nil {
		return err
	}
	if err := checkPosted(s); err != nil {
		return err
	}
	return checkLives(s)
}

// checkArrivals makes sure that a message arrives in memory that is free. The sender writes as soon as a slot
// is free, wherever in the micro-batch the receiver stands, or in the update at any time. So nothing may touch
// the buffer before the receive.
func checkArrivals(s *Stage) error {
	touched := map[int]*ir.Node{} // by buffer: the last node that touched it
	for phase := range s.Bodies {
		for i := range s.Bodies[phase].Instrs {
			in := &s.Bodies[phase].Instrs[i]
			if in.Node.Op == ir.OpRecv {
				v, id := in.Node.Results[0], in.Results[0]
				b := &s.Buffers[id]
				switch before := touched[s.base(id)]; {
				case b.View || b.Region != Persist && !b.Region.InFlight() || b.Region == Persist && ir.Phase(phase) != ir.Update:
					return s.failing(in)(v, "arrives in b%d of the %s region, which is not its own until it is received", id, b.Region)
				case before != nil:
					return s.failing(in)(v, "arrives in b%d, perhaps before %s is done with it", id, before.Name)
				case b.Region.InFlight() && b.From > 0:
					return s.failing(in)(v, "arrives in b%d at any time, which is live from %d on only", id, b.From)
				}
			}
			for _, id := range slices.Concat(in.Args, in.Results) {
				touched[s.base(id)] = in.Node
			}
		}
	}
	return nil
}

// failing returns a function that makes the errors of an instruction.
func (s *Stage) failing(in *Instr) func(v *ir.Value, format string, args ...any) error {
	return func(v *ir.Value, format string, args ...any) error {
		e := &CheckError{Rank: -1, Stage: s.Index, Instr: in.Node.Name, Msg: fmt.Sprintf(format, args...)}
		if v != nil {
			e.Value = v.Name()
		}
		return e
	}
}

// checkLate makes sure that later tasks do not disturb an asynchronous instruction of the last micro-batch,
// which nothing awaits before the update. Such tasks are those of other chunks and the later passes of its own
// chunk; no more micro-batches follow in the same pass of the same chunk. Its buffers must also not be reused
// when its task ends.
func checkLate(s *Stage) error {
	type late struct {
		*Instr
		of chunkBody
	}
	using, update := map[int][]late{}, s.beforeUpdate() // using is by buffer
	for phase := range ir.Update {
		for i := range s.Bodies[phase].Instrs {
			in := &s.Bodies[phase].Instrs[i]
			if !in.Async || !in.Last {
				continue
			}
			values := slices.Concat(in.Node.Args, in.Node.Results)
			for k, id := range slices.Concat(in.Args, in.Results) {
				if b := &s.Buffers[id]; b.Region != Persist && !(b.Region == Slot && b.To >= update) {
					return s.failing(in)(values[k], "is in b%d of the %s region, and in use beyond the end of the task", id, b.Region)
				}
				using[s.base(id)] = append(using[s.base(id)], late{in, chunkBody{phase, in.Chunk}})
			}
		}
	}
	for phase := range ir.Update {
		for i := range s.Bodies[phase].Instrs {
			in := &s.Bodies[phase].Instrs[i]
			if in.Async {
				continue
			}
			for _, id := range slices.Concat(in.Args, in.Results) {
				for _, other := range using[s.base(id)] {
					if other.of.chunk == in.Chunk && other.of.phase >= phase {
						continue
					}
					if err := s.collide(in, other.Instr, s.failing(in)); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// checkLives makes sure that buffers are declared live as long as instructions use them: asynchronous
// instructions until they are awaited, and all instructions of a bucket until its end. With [checkLayout], it
// follows that the operands and results of a bucket do not overlap.
func checkLives(s *Stage) error {
	before := 0 // number of instructions in earlier bodies
	for phase := range s.Bodies {
		body := &s.Bodies[phase]
		var ends []int
		for _, instrs := range s.runs(ir.Phase(phase)) {
			first := len(ends)
			for _, end := range lasts(instrs) {
				ends = append(ends, first+end)
			}
		}
		for i, in := range body.Instrs {
			for _, id := range slices.Concat(in.Args, in.Results) {
				b := &s.Buffers[id]
				from, to := i, ends[i]
				if b.Region.throughBodies() {
					from, to = from+before, to+before
				}
				if (b.View || b.Region == Temp) && b.Body != ir.Phase(phase) {
					return &CheckError{Rank: -1, Stage: s.Index, Instr: in.Node.Name, Value: b.Value.Name(),
						Msg: fmt.Sprintf("uses b%d in the %s body, which is of the %s body", id, ir.Phase(phase), b.Body)}
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

// lasts returns for each instruction of a task the last index at which it may still be running. All
// instructions of a bucket end together. It does the same as joined, which the builder uses, independently of
// it.
func lasts(instrs []Instr) []int {
	ends := make([]int, len(instrs))
	var running []int // asynchronous instructions of the task, in order
	done := 0
	for i, in := range instrs {
		if ends[i] = i; in.Posted {
			ends[i] = len(instrs) - 1
		}
		for ; done < min(in.Await, len(running)); done++ {
			ends[running[done]] = i - 1
		}
		if in.Async {
			running = append(running, i)
		}
	}
	for _, i := range running[done:] {
		ends[i] = len(instrs) - 1
	}
	for i, in := range instrs {
		if end := i + in.Beside; end < len(instrs) && ends[i] < end {
			ends[i] = end
		}
	}
	for i := len(ends) - 1; i > 0; i-- {
		if instrs[i].Fused && ends[i-1] < ends[i] {
			ends[i-1] = ends[i]
		}
	}
	return ends
}

// checkBucket checks an instruction of the communication stream or of a bucket.
func (s *Stage) checkBucket(instrs []Instr, i int, fail func(*ir.Value, string, ...any) error) error {
	in := &instrs[i]
	switch {
	case in.Async && !Collective(in.Node.Op):
		return fail(nil, "is %s, which cannot run on the communication stream", in.Node.Op)
	case in.Async && in.Await > 0:
		return fail(nil, "waits for the stream that it runs on")
	case in.Last && !in.Async && in.Node.Op.Class() != ir.Compute:
		return fail(nil, "is communication of the last micro-batch only, and not beside it")
	case !in.Fused:
		return nil
	case i == 0 || !Collective(in.Node.Op) || !Collective(instrs[i-1].Node.Op):
		return fail(nil, "is to be made with the instruction before it, and both are no collectives")
	case in.Await > 0:
		return fail(nil, "waits for the stream when the bucket that it is in has begun")
	}
	with := &instrs[i-1]
	a, b := in.Node.Attr.(ir.CommAttr), with.Node.Attr.(ir.CommAttr)
	if in.Node.Op != with.Node.Op || a.Axis != b.Axis || in.Async != with.Async || in.Last != with.Last {
		return fail(nil, "is to be made with %s, which is another kind of collective", with.Node.Name)
	}
	for k := i - 1; k >= 0; k-- {
		if err := s.collide(in, &instrs[k], fail); err != nil {
			return err
		}
		if !instrs[k].Fused {
			break
		}
	}
	return nil
}

// checkBeside makes sure that the instructions beside a collective are kernels that do not race with it, and
// that an instruction follows that waits for both.
func (s *Stage) checkBeside(mesh ir.Mesh, instrs []Instr, i int) error {
	in := &instrs[i]
	fail := s.failing(in)
	switch {
	case in.Beside == 0:
		return nil
	case in.Beside < 0 || i+in.Beside+1 >= len(instrs):
		return fail(nil, "runs beside the next %d instructions and then is waited for, there are %d", in.Beside, len(instrs)-i-1)
	case !Collective(in.Node.Op):
		return fail(nil, "is %s, which cannot run beside kernels", in.Node.Op)
	case in.Async || in.Fused || instrs[i+1].Fused:
		return fail(nil, "runs beside the next %d instructions, and in a bucket or on the communication stream", in.Beside)
	}
	if after := &instrs[i+in.Beside+1]; after.Last || after.Async || after.Fused {
		return s.failing(after)(nil, "waits for %s, and is not of every micro-batch or on the communication stream", in.Node.Name)
	}
	for k := i + 1; k <= i+in.Beside; k++ {
		other := &instrs[k]
		switch {
		case !launched(other.Node) || other.Beside > 0:
			return s.failing(other)(nil, "is %s, which does not run beside %s", other.Node.Op, in.Node.Name)
		case other.Await > 0 || other.Last:
			return s.failing(other)(nil, "waits for the communication stream, beside %s", in.Node.Name)
		}
		if s.otherParts(mesh, in, other) {
			continue
		}
		if err := s.collide(other, in, s.failing(other)); err != nil {
			return err
		}
	}
	return nil
}

// otherParts reports whether two instructions make different parts of a pair (see pieces.go) and share only the
// buffer between the two, in which they touch the bytes of different sequences.
func (s *Stage) otherParts(mesh ir.Mesh, in, other *Instr) bool {
	if in.Parts == 0 || in.Parts != other.Parts || in.Part == other.Part {
		return false
	}
	shared := 0
	for i, a := range slices.Concat(in.Node.Args, in.Node.Results) {
		for k, b := range slices.Concat(other.Node.Args, other.Node.Results) {
			switch {
			case s.base(slices.Concat(in.Args, in.Results)[i]) != s.base(slices.Concat(other.Args, other.Results)[k]):
			case a != b || !sequenceWise(mesh, a):
				return false
			default:
				shared++
			}
		}
	}
	return shared == 1
}

// collide reports a conflict between an instruction and another one that may be running at the same time. All
// views of one buffer count as that buffer.
func (s *Stage) collide(in, other *Instr, fail func(*ir.Value, string, ...any) error) error {
	for i, id := range in.Args {
		for _, r := range other.Results {
			if s.base(id) == s.base(r) {
				return fail(in.Node.Args[i], "operand %d is read from b%d, into which %s may still be writing", i, id, other.Node.Name)
			}
		}
	}
	for i, id := range in.Results {
		for _, r := range slices.Concat(other.Args, other.Results) {
			if s.base(id) == s.base(r) {
				return fail(in.Node.Results[i], "writes b%d, which %s may still be using", id, other.Node.Name)
			}
		}
	}
	return nil
}
