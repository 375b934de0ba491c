package backendtest

import (
	"errors"
	"sync"

	"github.com/autopar/autopar/runtime"
)

// FaultKind says how a call fails.
type FaultKind uint8

// The kinds of faults.
const (
	Fail  FaultKind = iota // returns ErrInjected
	Panic                  // panics
	Hang                   // does not return, not even after Abort, before Release
)

// Call is a method of a device that can be made to fail.
type Call uint8

// The calls.
const (
	Launch Call = iota
	Collective
	Send
	Recv
	Upload
)

// Fault is the failure of one call of one rank.
type Fault struct {
	Rank int
	Call Call
	At   int // how many calls of this kind succeed before
	Kind FaultKind
}

// ErrInjected is the error of a [Fault] of kind [Fail].
var ErrInjected = errors.New("injected fault")

// Faulty is a backend with one fault.
type Faulty struct {
	runtime.Backend
	fault   Fault
	release chan struct{}
	once    sync.Once
}

// Inject makes a backend fail.
func Inject(b runtime.Backend, f Fault) *Faulty {
	return &Faulty{Backend: b, fault: f, release: make(chan struct{})}
}

// Release lets a hanging call return.
func (b *Faulty) Release() { b.once.Do(func() { close(b.release) }) }

// Open opens the devices and wraps that of the faulty rank.
func (b *Faulty) Open(world runtime.World) ([]runtime.Device, error) {
	devices, err := b.Backend.Open(world)
	if err == nil {
		devices[b.fault.Rank] = &faultyDevice{Device: devices[b.fault.Rank], backend: b}
	}
	return devices, err
}

type faultyDevice struct {
	runtime.Device
	backend *Faulty
	calls   int // of the faulty kind
}

// call fails if it is the turn of this call.
func (d *faultyDevice) call(c Call) error {
	f := d.backend.fault
	if c != f.Call {
		return nil
	}
	if d.calls++; d.calls <= f.At {
		return nil
	}
	switch f.Kind {
	case Panic:
		panic("injected panic")
	case Hang:
		<-d.backend.release
	}
	return ErrInjected
}

func (d *faultyDevice) Upload(space runtime.Space, offset int64, src []byte) error {
	if err := d.call(Upload); err != nil {
		return err
	}
	return d.Device.Upload(space, offset, src)
}

func (d *faultyDevice) Launch(k *runtime.Kernel) error {
	if err := d.call(Launch); err != nil {
		return err
	}
	return d.Device.Launch(k)
}

func (d *faultyDevice) Collective(c *runtime.Collective) error {
	if err := d.call(Collective); err != nil {
		return err
	}
	return d.Device.Collective(c)
}

func (d *faultyDevice) Send(t *runtime.Transfer) error {
	if err := d.call(Send); err != nil {
		return err
	}
	return d.Device.Send(t)
}

func (d *faultyDevice) Recv(t *runtime.Transfer) error {
	if err := d.call(Recv); err != nil {
		return err
	}
	return d.Device.Recv(t)
}
