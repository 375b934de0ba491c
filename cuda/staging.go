package cuda

import "github.com/autopar/autopar/cuda/driver"

// staging is pinned memory that uploads pass through. It has two halves: the host fills one while
// the GPU reads the other.
type staging struct {
	memory []byte
	half   int
	at     int             // bytes of the current half that are in use
	read   [2]driver.Event // recorded when a half was full: it has been read when the event has happened
	busy   [2]bool         // that event was recorded
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

// take returns between 1 and n bytes that the GPU does not read. The next work on the compute
// stream reads them.
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
