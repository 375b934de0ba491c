package cuda

import (
	"errors"

	"github.com/autopar/autopar/cuda/driver"
)

// Time returns how many seconds each of n equal pieces of work takes the GPU. do puts one piece on
// the device's compute stream. Steps of the device must not be graphs ([Options.Eager]). Time waits
// for the work.
func (d *Device) Time(n int, do func() error) (seconds float64, err error) {
	if err := d.enter(); err != nil {
		return 0, err
	}
	defer d.leave()
	var ends [2]driver.Event
	for i := range ends {
		if ends[i], err = d.drv.CreateEvent(true); err != nil {
			return 0, err
		}
		defer func() { err = errors.Join(err, d.drv.DestroyEvent(ends[i])) }()
	}
	if err := d.drv.RecordEvent(ends[0], d.compute.stream); err != nil {
		return 0, err
	}
	for range n {
		if err := do(); err != nil {
			return 0, err
		}
	}
	if err := d.drv.RecordEvent(ends[1], d.compute.stream); err != nil {
		return 0, err
	}
	if err := d.drain(); err != nil {
		return 0, err
	}
	ms, err := d.drv.Elapsed(ends[0], ends[1])
	return float64(ms) / 1e3 / float64(n), err
}

// TimeGraph is [Device.Time] of work that is first captured as a graph, so that the host's part
// does not count. It returns the least of a few launches.
func (d *Device) TimeGraph(n int, do func() error) (seconds float64, err error) {
	if err := d.enter(); err != nil {
		return 0, err
	}
	defer d.leave()
	if err := d.drv.BeginCapture(d.compute.stream); err != nil {
		return 0, err
	}
	for range n {
		if err = do(); err != nil {
			break
		}
	}
	g, ended := d.drv.EndCapture(d.compute.stream) // even after a failure, or the stream is lost
	if err := errors.Join(err, ended); err != nil {
		if g != 0 {
			err = errors.Join(err, d.drv.DestroyGraph(g))
		}
		return 0, err
	}
	exec, err := d.drv.Instantiate(g)
	if err := errors.Join(err, d.drv.DestroyGraph(g)); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, d.drv.DestroyExec(exec)) }()
	const launches = 4 // the first warms up
	launch := func() error { return d.drv.LaunchGraph(exec, d.compute.stream) }
	for i := range launches {
		t, err := d.Time(1, launch)
		if err != nil {
			return 0, err
		}
		if i < 2 || t < seconds {
			seconds = t
		}
	}
	return seconds / float64(n), nil
}

// Held returns how many bytes of the GPU's memory are in use besides the rank's arena: by contexts,
// libraries, scratch memory, and other users of the GPU.
func (d *Device) Held() (int64, error) {
	if err := d.enter(); err != nil {
		return 0, err
	}
	defer d.leave()
	free, total, err := d.drv.MemInfo()
	return total - free - d.arenaBytes, err
}
