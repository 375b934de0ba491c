package cuda

import (
	"errors"
	"fmt"
	"slices"

	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/runtime"
)

// A rank makes the same calls in every step, with the same arguments, because an executor makes its
// arguments once. So a device records the calls of each step. When two steps are the same, it
// captures the calls as a CUDA graph. In later steps it only compares each call with the recorded
// ones, and if the whole step is the same it launches the graph at the end. If a call differs, it
// makes the calls of the step so far, late, and goes on call by call.
//
// Inputs vary from step to step, including learning rate and step number. They are uploaded to
// memory beside the arena, and the graph copies them from there.
//
// A step in which a rank waits for another on the host cannot be captured. That is so for transfers
// and collectives of ranks that share a GPU. Nor is a step captured if the process drives several
// GPUs: see System.Together.

// call is one call of a device, without what varies from step to step.
type call struct {
	kind       callKind
	kernel     *runtime.Kernel
	collective *runtime.Collective
	transfer   *runtime.Transfer
	stream     runtime.Stream // the stream that records or waits
	of         runtime.Stream // the stream of the event waited for
	n          int64          // number of that event in the step, or the byte offset of an upload
	bytes      int            // of an upload
}

type callKind uint8

const (
	callLaunch callKind = iota
	callCollective
	callRecord
	callWait
	callUpload
	callExpect
	callSend
	callRecv
)

// maxSequences bounds how many kinds of steps are remembered: training, evaluation, and each with
// the uploads of a first step.
const maxSequences = 6

// sequence is a kind of step: the calls of a rank in it.
type sequence struct {
	calls        []call
	seen         int  // how many steps had these calls
	uncapturable bool // it cannot be captured
	exec         driver.Exec
	inputs       driver.Ptr // device memory that the graph copies inputs from
	sharing      bool       // other ranks take part in it
}

// replay remembers the steps of a device and replays them.
type replay struct {
	*Device
	kept         []*sequence // oldest first
	now          []call      // calls of the current step
	data         [][]byte    // data of its uploads, while its calls are only compared
	live         []*sequence // captured sequences that begin with the calls so far; while there are any, calls are not made
	uncapturable bool        // something in the step cannot be captured
	why          string      // what keeps all steps of this kind from being captured, for the user; or ""
	// base is how many events each stream had at the start of the step.
	base [runtime.Host]int64
}

// do makes a call, or only compares it while the step may be one that was captured.
func (r *replay) do(c call, data []byte) error {
	if len(r.now) == 0 {
		r.begin()
	}
	switch c.kind {
	case callRecord:
		c.n = 0
	case callWait:
		if c.n <= r.base[c.of] { // an event of an earlier step
			if err := r.flush(); err != nil {
				return err
			}
			return r.waitOwn(c.stream, c.of, c.n)
		}
		c.n -= r.base[c.of]
	case callCollective:
		if c.collective.Ran != nil {
			r.why = "every collective is timed"
		}
	case callSend:
		if c.transfer.Ran != nil {
			r.why = "every transfer is timed"
		}
	}
	at := len(r.now)
	r.now = append(r.now, c)
	if len(r.live) == 0 {
		return r.perform(c, data)
	}
	live := r.live[:0]
	for _, s := range r.live {
		if at < len(s.calls) && s.calls[at] == c {
			live = append(live, s)
		}
	}
	r.live = live
	if c.kind == callUpload {
		r.data = append(r.data, slices.Clone(data))
	}
	if len(r.live) == 0 {
		return r.catchUp()
	}
	return nil
}

func (r *replay) begin() {
	r.uncapturable, r.data, r.live = false, nil, nil
	for _, s := range r.kept {
		if s.exec != 0 {
			r.live = append(r.live, s)
		}
	}
	for s, l := range r.streams {
		r.base[s] = l.count()
	}
}

// catchUp makes the calls of the step so far: it is not a step that was captured.
func (r *replay) catchUp() error {
	r.live = nil
	data := r.data
	r.data = nil
	for _, c := range r.now {
		var src []byte
		if c.kind == callUpload {
			src, data = data[0], data[1:]
		}
		if err := r.perform(c, src); err != nil {
			return err
		}
	}
	return nil
}

// flush makes all calls so far, because what follows cannot be captured.
func (r *replay) flush() error {
	r.uncapturable = true
	if len(r.live) == 0 {
		return nil
	}
	if err := r.enter(); err != nil {
		return err
	}
	defer r.leave()
	return r.catchUp()
}

// drop makes all calls so far and forgets them: the host waits in the middle of a step, which no
// graph does.
func (r *replay) drop() error {
	err := r.flush()
	r.now, r.why = r.now[:0], ""
	return err
}

// perform makes a call.
func (r *replay) perform(c call, data []byte) error {
	switch c.kind {
	case callLaunch:
		return r.launch(c.kernel)
	case callCollective:
		return r.collective(c.collective)
	case callRecord:
		return r.record(c.stream)
	case callWait:
		return r.waitOwn(c.stream, c.of, c.n+r.base[c.of])
	case callExpect:
		return r.expect(c.transfer)
	case callSend:
		return r.send(c.transfer)
	case callRecv:
		return r.recv(c.transfer)
	}
	return r.uploadTo(r.arena+driver.Ptr(c.n), data)
}

// end ends the current step. If it was one that is captured, end launches the graph and returns its
// sequence. Otherwise it returns the calls of the step if it may be captured, else nil. They are
// valid until the next call.
func (r *replay) end() (ran *sequence, calls []call, err error) {
	for _, s := range r.live {
		if len(s.calls) == len(r.now) {
			r.now, r.live = r.now[:0], nil
			return s, nil, r.run(s)
		}
	}
	if len(r.live) > 0 {
		if err := r.catchUp(); err != nil {
			return nil, nil, err
		}
	}
	if r.why != "" {
		r.backend.explain(r.why)
	} else if !r.uncapturable {
		calls = r.now
	}
	r.now, r.why = r.now[:0], ""
	return nil, calls, nil
}

// recorded counts the events that calls record on a stream.
func recorded(calls []call, s runtime.Stream) (n int64) {
	for _, c := range calls {
		if c.kind == callRecord && c.stream == s {
			n++
		}
	}
	return n
}

// run uploads the inputs of a step and launches its graph.
func (r *replay) run(s *sequence) error {
	at := s.inputs
	for _, data := range r.data {
		if err := r.uploadTo(at, data); err != nil {
			return err
		}
		at += driver.Ptr(len(data))
	}
	r.label(r.compute, "step", "as a graph")
	if err := r.drv.LaunchGraph(s.exec, r.compute.stream); err != nil {
		return err
	}
	for of, l := range r.streams {
		if err := l.recordOn(r.compute.stream, recorded(s.calls, runtime.Stream(of))); err != nil {
			return err
		}
	}
	return nil
}

// learn remembers the calls of a step that has been made, and captures them the second time they
// occur.
func (r *replay) learn(calls []call) error {
	var s *sequence
	for _, known := range r.kept {
		if slices.Equal(known.calls, calls) {
			s = known
		}
	}
	if s == nil {
		if len(r.kept) == maxSequences {
			if err := r.forget(r.kept[0]); err != nil {
				return err
			}
			r.kept = append(r.kept[:0], r.kept[1:]...)
		}
		s = &sequence{calls: slices.Clone(calls)}
		r.kept = append(r.kept, s)
	}
	s.seen++
	if s.seen < 2 || s.uncapturable || s.exec != 0 {
		return nil
	}
	if err := r.capture(s); err != nil {
		s.uncapturable = true // it is made call by call, as before
		if _, refused := errors.AsType[*driver.Error](err); !refused {
			return err
		}
		r.backend.explain(err.Error())
	}
	return nil
}

// capture makes the graph of a step.
func (r *replay) capture(s *sequence) (err error) {
	bytes := 0
	for _, c := range s.calls {
		bytes += c.bytes
		s.sharing = s.sharing || c.kind == callCollective || c.kind == callSend || c.kind == callRecv
	}
	if bytes > 0 {
		if s.inputs, err = r.drv.Alloc(int64(bytes)); err != nil {
			return err
		}
	}
	if err := r.drv.BeginCapture(r.compute.stream); err != nil {
		return err
	}
	events, err := r.redo(s)
	g, ended := r.drv.EndCapture(r.compute.stream) // even after a failure, or the stream is lost
	for _, e := range events {
		err = errors.Join(err, r.drv.DestroyEvent(e))
	}
	if err = errors.Join(err, ended); err != nil {
		if g != 0 { // NCCL would not end a communicator before it is destroyed
			err = errors.Join(err, r.drv.DestroyGraph(g))
		}
		for wire, messages := range r.expected { // the capture expected them; a step that has ended expects none
			for _, e := range messages {
				err = errors.Join(err, r.drv.DestroyEvent(e))
			}
			delete(r.expected, wire)
		}
		return fmt.Errorf("capturing a step: %w", err)
	}
	s.exec, err = r.drv.Instantiate(g)
	return errors.Join(err, r.drv.DestroyGraph(g))
}

// redo makes the calls of a step on streams that capture. Its events are new ones, which the caller
// destroys.
func (r *replay) redo(s *sequence) (events []driver.Event, err error) {
	made := map[[2]int64]driver.Event{} // by stream and number in the step
	var count [runtime.Host]int64
	at := s.inputs
	for _, c := range s.calls {
		l := r.lane(c.stream)
		switch c.kind {
		case callLaunch:
			err = r.launch(c.kernel)
		case callCollective:
			err = r.lane(c.collective.Stream).groupByNCCL(c.collective)
		case callRecord:
			var e driver.Event
			if e, err = r.drv.CreateEvent(false); err != nil {
				return events, err
			}
			events = append(events, e)
			count[c.stream]++
			made[[2]int64{int64(c.stream), count[c.stream]}] = e
			err = r.drv.RecordEvent(e, l.stream)
		case callWait:
			if e, ok := made[[2]int64{int64(c.of), c.n}]; ok && l != r.lane(c.of) {
				err = r.drv.WaitEvent(l.stream, e)
			}
		case callUpload:
			if c.bytes > 0 {
				err = r.drv.Copy(r.arena+driver.Ptr(c.n), at, int64(c.bytes), r.compute.stream)
				at += driver.Ptr(c.bytes)
			}
		case callExpect, callSend, callRecv:
			err = r.perform(c, nil)
		}
		if err != nil {
			return events, err
		}
	}
	return events, nil
}

// forget frees the graph of a step.
func (r *replay) forget(s *sequence) (err error) {
	if s.exec != 0 {
		err = r.drv.DestroyExec(s.exec)
	}
	if s.inputs != 0 {
		err = errors.Join(err, r.drv.Free(s.inputs))
	}
	s.exec, s.inputs = 0, 0
	return err
}

// forgetAll forgets all steps: addresses have changed, or the device is closed.
func (r *replay) forgetAll() (err error) {
	for _, s := range r.kept {
		err = errors.Join(err, r.forget(s))
	}
	r.kept = nil
	return err
}
