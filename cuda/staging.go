package cuda

import "github.com/autopar/autopar/cuda/driver"

// staging is pinned memory through which uploads go. Its two halves take turns: one is
// filled while the GPU reads the other.
type staging struct {
	memory []byte
	half   int
	at     int // bytes of the half that are taken
	read   [2]driver.Event
	busy   [2]bool
}

const (
	stagingBytes = 2 << 20
	stagingAlign = 64
)

func (s *staging) open(d *Device) (err error) {
	if s.memory, err = d.drv.AllocHost(stagingBytes); err != nil {
		return err
	}
	for i := range s.read {
		if s.read[i], err = d.drv.CreateEvent(false); err != nil {
			return err
		}
	}
	return nil
}

// take returns up to n bytes that the GPU does not read, at least one. They are read by
// what the compute stream is given next.
func (s *staging) take(d *Device, n int) ([]byte, error) {
	const half = stagingBytes / 2
	if s.at == half {
		if err := d.drv.RecordEvent(s.read[s.half], d.compute.stream); err != nil {
			return nil, err
		}
		s.busy[s.half] = true
		s.half, s.at = 1-s.half, 0
		if s.busy[s.half] {
			if err := d.poll(func() (bool, error) { return d.drv.EventDone(s.read[s.half]) }); err != nil {
				return nil, err
			}
		}
	}
	n = min(n, half-s.at)
	from := s.half*half + s.at
	s.at = min(half, (s.at+n+stagingAlign-1)/stagingAlign*stagingAlign)
	return s.memory[from : from+n], nil
}

func (s *staging) release(drv driver.Driver) (errs []error) {
	if s.memory != nil {
		errs = append(errs, drv.FreeHost(s.memory))
	}
	for _, e := range s.read {
		if e != 0 {
			errs = append(errs, drv.DestroyEvent(e))
		}
	}
	return errs
}
