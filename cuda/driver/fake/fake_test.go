package fake_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/cuda/driver/drivertest"
	"github.com/autopar/autopar/cuda/driver/fake"
	"github.com/autopar/autopar/ir"
)

func TestDriver(t *testing.T) {
	for seed := range uint64(5) {
		d := fake.New(fake.Options{Seed: seed, Devices: 2})
		drivertest.Run(t, d)
		require.Empty(t, d.Leaks())
	}
}

// table is a fake with two streams, an event and memory.
type table struct {
	*fake.Driver
	s [2]driver.Stream
	e driver.Event
	p driver.Ptr
}

func newTable(t *testing.T, opts fake.Options) *table {
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	d := &table{Driver: fake.New(opts)}
	c, err := d.RetainPrimary(0)
	require.NoError(t, err)
	require.NoError(t, d.SetCurrent(c))
	for i := range d.s {
		d.s[i], err = d.CreateStream()
		require.NoError(t, err)
		d.Label(d.s[i], []string{"first", "second"}[i])
	}
	d.e, err = d.CreateEvent(false)
	require.NoError(t, err)
	d.p, err = d.Alloc(64)
	require.NoError(t, err)
	return d
}

// TestRaces finds accesses without a happens-before relation, names both, and accepts those with
// one.
func TestRaces(t *testing.T) {
	const zero = 0
	for name, tt := range map[string]struct {
		do   func(t *table) error
		race bool
	}{
		"two writes":      {func(d *table) error { return d.Set8(d.p, zero, 8, d.s[1]) }, true},
		"read of a write": {func(d *table) error { return d.Copy(d.p+32, d.p, 8, d.s[1]) }, true},
		"neighbours":      {func(d *table) error { return d.Set8(d.p+8, zero, 8, d.s[1]) }, false},
		"the same stream": {func(d *table) error { return d.Set8(d.p, zero, 8, d.s[0]) }, false},
		"after an event": {func(d *table) error {
			if err := d.RecordEvent(d.e, d.s[0]); err != nil {
				return err
			}
			if err := d.WaitEvent(d.s[1], d.e); err != nil {
				return err
			}
			return d.Set8(d.p, zero, 8, d.s[1])
		}, false},
		"an event from before": {func(d *table) error {
			if err := d.WaitEvent(d.s[1], d.e); err != nil { // recorded before the first write
				return err
			}
			return d.Set8(d.p, zero, 8, d.s[1])
		}, true},
		"after the host waited": {func(d *table) error {
			if err := d.SyncStream(d.s[0]); err != nil {
				return err
			}
			return d.Set8(d.p, zero, 8, d.s[1])
		}, false},
		"after the host waited for another": {func(d *table) error {
			if err := d.SyncStream(d.s[1]); err != nil {
				return err
			}
			return d.Set8(d.p, zero, 8, d.s[1])
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(10) {
				d := newTable(t, fake.Options{Seed: seed})
				require.NoError(t, d.RecordEvent(d.e, d.s[0]))
				require.NoError(t, d.Set8(d.p, 1, 16-8, d.s[0]))
				err := tt.do(d)
				var race *fake.RaceError
				if !tt.race {
					require.NoError(t, err)
					continue
				}
				require.ErrorAs(t, err, &race)
				require.Contains(t, race.First, "first (cuMemsetD8Async), which writes [0, 8)")
				require.Contains(t, race.Second, "second (")
			}
		})
	}
}

// TestReadsMayMeet accepts concurrent reads.
func TestReadsMayMeet(t *testing.T) {
	d := newTable(t, fake.Options{})
	require.NoError(t, d.Copy(d.p+16, d.p, 8, d.s[0]))
	require.NoError(t, d.Copy(d.p+32, d.p, 8, d.s[1]))
	var race *fake.RaceError
	require.ErrorAs(t, d.Set8(d.p, 0, 1, d.s[1]), &race)
}

// TestOrders sees work without an order run both ways, and work in order one way.
func TestOrders(t *testing.T) {
	for _, ordered := range []bool{false, true} {
		seen := map[string]bool{}
		for seed := range uint64(40) {
			d := newTable(t, fake.Options{Seed: seed})
			var ran string
			note := func(what string) func() error { return func() error { ran += what; return nil } }
			require.NoError(t, d.Run(d.s[0], "a", nil, nil, note("a")))
			if ordered {
				require.NoError(t, d.RecordEvent(d.e, d.s[0]))
				require.NoError(t, d.WaitEvent(d.s[1], d.e))
			}
			require.NoError(t, d.Run(d.s[1], "b", nil, nil, note("b")))
			require.NoError(t, d.SyncStream(d.s[0]))
			require.NoError(t, d.SyncStream(d.s[1]))
			seen[ran] = true
		}
		require.True(t, seen["ab"])
		require.Equal(t, !ordered, seen["ba"])
	}
}

// TestWrongUse refuses memory that is not allocated, threads without a context, and waits that
// would never end.
func TestWrongUse(t *testing.T) {
	d := newTable(t, fake.Options{})
	require.ErrorContains(t, d.Set8(d.p+60, 0, 8, d.s[0]), "no memory at")
	require.NoError(t, d.Free(d.p))
	require.ErrorContains(t, d.Set8(d.p, 0, 8, d.s[0]), "no memory at", "after it was freed")
	require.Len(t, d.Leaks(), 3, "a context, streams and an event")

	done := make(chan error)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		_, err := d.Alloc(1)
		done <- err
	}()
	require.ErrorContains(t, <-done, "CUDA_ERROR_INVALID_CONTEXT", "on another thread")

	lib := d.Collectives()
	id, err := lib.NewID()
	require.NoError(t, err)
	comms := make(chan driver.Comm)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		_ = d.SetCurrent(1)    // the context of device 0
		c, _ := lib.Join(2, id, 1)
		comms <- c
	}()
	c, err := lib.Join(2, id, 0)
	require.NoError(t, err)
	<-comms
	p, err := d.Alloc(64)
	require.NoError(t, err)
	require.NoError(t, c.AllReduce(p, p, 4, ir.F32, ir.Sum, d.s[0]))
	require.ErrorContains(t, d.SyncStream(d.s[0]), "would wait for ever", "the other rank does not come")
}

// TestBusy: a call in which NCCL allocates memory is refused while the device has work to do: one that makes a communicator, and the
// first message to another rank. Orders in which devices join communicators are compared.
func TestBusy(t *testing.T) {
	d := newTable(t, fake.Options{Devices: 2})
	second, err := d.RetainPrimary(1)
	require.NoError(t, err)
	lib := d.Collectives()
	join := func(turned bool) (comm driver.Comm) {
		var ids [2]driver.ID
		for i := range ids {
			ids[i], err = lib.NewID()
			require.NoError(t, err)
		}
		other := make(chan error)
		go func() {
			runtime.LockOSThread() // the thread ends with the goroutine
			_ = d.SetCurrent(second)
			at := []int{0, 1}
			if turned {
				at = []int{1, 0}
			}
			for _, i := range at {
				go func() {
					runtime.LockOSThread()
					_ = d.SetCurrent(second)
					_, err := lib.Join(2, ids[i], 1)
					other <- err
				}()
				for len(d.Joined(1))%2 == i^at[0] { // one call after another
					runtime.Gosched()
				}
			}
		}()
		for _, id := range ids {
			comm, err = lib.Join(2, id, 0)
			require.NoError(t, err)
		}
		for range ids {
			require.NoError(t, <-other)
		}
		return comm
	}
	c := join(false)
	require.NoError(t, d.JoinedInOrder())
	join(true)
	require.ErrorContains(t, d.JoinedInOrder(), "contradict each other")

	id, err := lib.NewID()
	require.NoError(t, err)
	require.NoError(t, d.Set8(d.p, 0, 8, d.s[0]))
	_, err = lib.Join(1, id, 0)
	require.ErrorContains(t, err, "fake: ncclCommInitRank may wait for ")
	require.NoError(t, d.Set8(d.p, 0, 8, d.s[0]))
	require.ErrorContains(t, c.Send(d.p, 1, ir.F32, 1, d.s[0]), "fake: NCCL send may wait for ")
}

// TestLost fails every call once the device is lost.
func TestLost(t *testing.T) {
	d := newTable(t, fake.Options{LoseAfter: 2})
	for range 5 {
		_ = d.Set8(d.p, 0, 8, d.s[0])
	}
	require.ErrorContains(t, d.SyncStream(d.s[0]), "the device is lost")
	_, err := d.Alloc(1)
	require.ErrorContains(t, err, "the device is lost")
}

// TestCapturedEvent: an event that was last recorded in a capture is for that capture only, even
// after its end.
func TestCapturedEvent(t *testing.T) {
	d := newTable(t, fake.Options{})
	require.NoError(t, d.BeginCapture(d.s[0]))
	require.NoError(t, d.RecordEvent(d.e, d.s[0]))
	g, err := d.EndCapture(d.s[0])
	require.NoError(t, err)
	require.NoError(t, d.DestroyGraph(g))
	require.ErrorContains(t, d.WaitEvent(d.s[1], d.e), "CUDA_ERROR_CAPTURED_EVENT")
	_, err = d.EventDone(d.e)
	require.ErrorContains(t, err, "CUDA_ERROR_CAPTURED_EVENT")
	require.NoError(t, d.RecordEvent(d.e, d.s[0]))
	require.NoError(t, d.WaitEvent(d.s[1], d.e))
}
