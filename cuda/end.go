package cuda

import (
	"fmt"

	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/runtime"
)

// ends are the steps that have ended and were not waited for. Their words are being copied to
// pinned memory.
type ends struct {
	memory []byte // two steps' words
	ring   [2]end
	told   int64 // how many steps have ended
	waited int64 // how many were waited for
}

// end is the end of one step.
type end struct {
	words   int
	event   driver.Event
	sharing bool                // the step is a graph in which other ranks take part
	marked  [runtime.Host]int64 // how many events each stream had at the end of the step
}

// maxWords is how many words a step can keep.
const maxWords = 64

func (e *ends) open(drv driver.Driver) (err error) {
	if e.memory, err = drv.AllocHost(int64(len(e.ring)) * 4 * maxWords); err != nil {
		return err
	}
	for i := range e.ring {
		if e.ring[i].event, err = drv.CreateEvent(false); err != nil {
			return err
		}
	}
	return nil
}

// at returns the end of the n-th step, and its memory.
func (e *ends) at(n int64) (*end, []byte) {
	i := int(n % int64(len(e.ring)))
	return &e.ring[i], e.memory[4*maxWords*i : 4*maxWords*(i+1)]
}

// sharing reports whether a graph in which other ranks take part may be running.
func (e *ends) sharing() bool {
	for n := e.waited; n < e.told; n++ {
		if last, _ := e.at(n); last.sharing {
			return true
		}
	}
	return false
}

func (e *ends) release(drv driver.Driver) (errs []error) {
	if e.memory != nil {
		errs = append(errs, drv.FreeHost(e.memory))
	}
	for _, last := range e.ring {
		if last.event != 0 {
			errs = append(errs, drv.DestroyEvent(last.event))
		}
	}
	return errs
}

// End ends a step and starts copying its words. It returns before they are there.
func (d *Device) End(words []int64) error {
	if len(words) > maxWords || d.ends.told-d.ends.waited == int64(len(d.ends.ring)) {
		return fmt.Errorf("cuda: end of a step with %d words after %d steps that nobody waited for", len(words), d.ends.told-d.ends.waited)
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	var ran *sequence
	var calls []call
	if d.steps != nil {
		var err error
		if ran, calls, err = d.steps.end(); err != nil {
			return err
		}
	}
	if d.backend.meetsOnHost() {
		d.backend.explain("ranks that share a GPU wait for each other on the host")
	} else if d.backend.crowded() {
		d.backend.explain("this process drives several GPUs, whose graphs may wait for each other in NCCL; autopar launch starts one for each")
	}
	last, memory := d.ends.at(d.ends.told)
	d.label(d.compute, "end", "of a step")
	for i, offset := range words {
		if err := d.within(runtime.OnDevice, offset, 4); err != nil {
			return err
		}
		if err := d.drv.CopyToHost(memory[4*i:4*i+4], d.arena+driver.Ptr(offset), d.compute.stream); err != nil {
			return err
		}
	}
	if err := d.drv.RecordEvent(last.event, d.compute.stream); err != nil {
		return err
	}
	last.words, last.sharing = len(words), ran != nil && ran.sharing
	for s := range last.marked {
		last.marked[s] = d.lane(runtime.Stream(s)).count()
	}
	d.ends.told++
	if calls == nil {
		return nil
	}
	return d.steps.learn(calls)
}

// Last waits for the oldest step that was not waited for, and copies its words to dst.
func (d *Device) Last(dst []byte) error {
	last, memory := d.ends.at(d.ends.waited)
	if d.ends.waited == d.ends.told || len(dst) != 4*last.words {
		return fmt.Errorf("cuda: %d bytes of a step are asked for, after %d steps of %d", len(dst), d.ends.waited, d.ends.told)
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.leave()
	if err := d.poll(func() (bool, error) { return d.drv.EventDone(last.event) }); err != nil {
		return err
	}
	for s, n := range last.marked { // at the end of a step the compute stream has waited for all others
		d.lane(runtime.Stream(s)).passed(n)
	}
	d.ends.waited++
	copy(dst, memory)
	return nil
}
