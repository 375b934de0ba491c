// Package drivertest is the conformance suite of implementations of [driver.Driver]:
// memory, streams, events and graphs, without device functions.
package drivertest

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/cuda/driver"
)

// Run checks a driver on its first device.
func Run(t *testing.T, d driver.Driver) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	version, err := d.Version()
	require.NoError(t, err)
	require.GreaterOrEqual(t, version, driver.MinCUDA)
	count, err := d.DeviceCount()
	require.NoError(t, err)
	require.Positive(t, count)
	name, err := d.DeviceName(0)
	require.NoError(t, err)
	require.NotEmpty(t, name)
	major, err := d.Attribute(0, driver.CapabilityMajor)
	require.NoError(t, err)
	require.Positive(t, major)
	_, err = d.RetainPrimary(count)
	require.Error(t, err, "there are %d devices", count)

	c, err := d.RetainPrimary(0)
	require.NoError(t, err)
	defer func() { require.NoError(t, d.ReleasePrimary(0)) }()
	require.NoError(t, d.SetCurrent(c))
	for _, part := range []struct {
		name string
		test func(t *testing.T, d driver.Driver)
	}{{"memory", testMemory}, {"streams", testStreams}, {"graphs", testGraphs}, {"capture refuses", testCaptureRefuses}} {
		t.Run(part.name, func(t *testing.T) {
			runtime.LockOSThread()            // a subtest is a goroutine of its own
			t.Cleanup(runtime.UnlockOSThread) // after the cleanups of benches, which need the context
			require.NoError(t, d.SetCurrent(c))
			part.test(t, d)
		})
	}
}

// bench is a stream with memory on both sides.
type bench struct {
	t    *testing.T
	d    driver.Driver
	s    driver.Stream
	at   driver.Ptr
	host []byte
}

const size = 1 << 16

func newBench(t *testing.T, d driver.Driver) *bench {
	b := &bench{t: t, d: d}
	var err error
	b.s, err = d.CreateStream()
	require.NoError(t, err)
	b.at, err = d.Alloc(size)
	require.NoError(t, err)
	b.host, err = d.AllocHost(size)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, d.FreeHost(b.host))
		require.NoError(t, d.Free(b.at))
		require.NoError(t, d.DestroyStream(b.s))
	})
	return b
}

// fill writes new random numbers to the host's memory and returns a copy.
func (b *bench) fill(seed uint64) []byte {
	rng := rand.New(rand.NewPCG(seed, 0))
	for i := range b.host {
		b.host[i] = byte(rng.Uint32())
	}
	return bytes.Clone(b.host)
}

func testMemory(t *testing.T, d driver.Driver) {
	b := newBench(t, d)
	free, total, err := d.MemInfo()
	require.NoError(t, err)
	require.Positive(t, free)
	require.GreaterOrEqual(t, total, free)
	want := b.fill(1)
	require.NoError(t, d.CopyToDevice(b.at, b.host, b.s))
	require.NoError(t, d.Copy(b.at+40000, b.at+100, 1001, b.s))
	require.NoError(t, d.Set8(b.at+7, 0xab, 3, b.s))
	require.NoError(t, d.SyncStream(b.s))
	copy(want[40000:41001], want[100:])
	copy(want[7:], []byte{0xab, 0xab, 0xab})
	clear(b.host)
	require.NoError(t, d.CopyToHost(b.host[5:], b.at+5, b.s))
	require.NoError(t, d.SyncStream(b.s))
	require.Equal(t, want[5:], b.host[5:])
	require.Equal(t, make([]byte, 5), b.host[:5])

	_, err = d.Alloc(total + 1)
	var refused *driver.Error
	require.ErrorAs(t, err, &refused)
	require.True(t, refused.OutOfMemory(), "%v", err)
	require.Error(t, d.Free(b.at+1))
}

// testStreams orders copies on two streams by events.
func testStreams(t *testing.T, d driver.Driver) {
	a, b := newBench(t, d), newBench(t, d)
	var events [2]driver.Event
	for i := range events {
		var err error
		events[i], err = d.CreateEvent(i == 1)
		require.NoError(t, err)
		defer func() { require.NoError(t, d.DestroyEvent(events[i])) }()
	}
	require.NoError(t, d.WaitEvent(a.s, events[0]), "an event that was never recorded holds nothing back")
	for round := range uint64(20) {
		want := a.fill(round)
		require.NoError(t, d.CopyToDevice(a.at, a.host, a.s))
		require.NoError(t, d.RecordEvent(events[0], a.s))
		require.NoError(t, d.WaitEvent(b.s, events[0]))
		require.NoError(t, d.Copy(b.at, a.at, size, b.s))
		require.NoError(t, d.CopyToHost(b.host, b.at, b.s))
		require.NoError(t, d.RecordEvent(events[1], b.s))
		require.NoError(t, d.WaitEvent(a.s, events[1])) // before the next round overwrites it
		for start := time.Now(); ; {
			done, err := d.EventDone(events[1])
			require.NoError(t, err)
			if done {
				break
			}
			require.Less(t, time.Since(start), time.Minute)
		}
		require.Equal(t, want, b.host, "round %d", round)
	}
	timed, err := d.CreateEvent(true)
	require.NoError(t, err)
	defer func() { require.NoError(t, d.DestroyEvent(timed)) }()
	require.NoError(t, d.Copy(b.at, a.at, size, b.s))
	require.NoError(t, d.RecordEvent(timed, b.s))
	require.NoError(t, d.SyncStream(b.s))
	ms, err := d.Elapsed(events[1], timed)
	require.NoError(t, err)
	require.Positive(t, ms)
	_, err = d.Elapsed(events[0], timed)
	require.Error(t, err, "an event without time")
}

// testGraphs captures copies on two streams, and launches them again and again with other contents.
func testGraphs(t *testing.T, d driver.Driver) {
	a, b := newBench(t, d), newBench(t, d)
	fork, err := d.CreateEvent(false)
	require.NoError(t, err)
	join, err := d.CreateEvent(false)
	require.NoError(t, err)
	before := a.fill(1)
	require.NoError(t, d.Set8(b.at, 0, size, b.s))
	require.NoError(t, d.SyncStream(b.s))
	require.NoError(t, d.BeginCapture(a.s))
	require.NoError(t, d.CopyToDevice(a.at, a.host, a.s))
	require.NoError(t, d.RecordEvent(fork, a.s))
	require.NoError(t, d.WaitEvent(b.s, fork))
	require.NoError(t, d.Copy(b.at, a.at, size/2, b.s))
	require.NoError(t, d.RecordEvent(join, b.s))
	require.NoError(t, d.WaitEvent(a.s, join))
	require.NoError(t, d.CopyToHost(b.host, b.at, a.s))
	g, err := d.EndCapture(a.s)
	require.NoError(t, err)
	x, err := d.Instantiate(g)
	require.NoError(t, err)
	require.NoError(t, d.DestroyGraph(g))
	require.NoError(t, d.DestroyEvent(fork))
	require.NoError(t, d.DestroyEvent(join))
	require.NotEqual(t, before[:size/2], b.host[:size/2], "nothing has run")
	for round := range uint64(5) {
		want := a.fill(2 + round)
		require.NoError(t, d.LaunchGraph(x, a.s))
		require.NoError(t, d.SyncStream(a.s))
		require.Equal(t, want[:size/2], b.host[:size/2], "round %d", round)
		require.Equal(t, make([]byte, size/2), b.host[size/2:])
	}
	require.NoError(t, d.DestroyExec(x))
}

// testCaptureRefuses checks what a capture refuses, and that the stream can be used afterwards.
func testCaptureRefuses(t *testing.T, d driver.Driver) {
	a, b := newBench(t, d), newBench(t, d)
	e, err := d.CreateEvent(false)
	require.NoError(t, err)
	require.NoError(t, d.BeginCapture(a.s))
	require.Error(t, d.SyncStream(a.s))
	_, err = d.EndCapture(a.s)
	require.Error(t, err, "a capture in which something failed")

	require.NoError(t, d.BeginCapture(a.s))
	require.NoError(t, d.RecordEvent(e, a.s))
	require.NoError(t, d.WaitEvent(b.s, e))
	require.NoError(t, d.Set8(b.at, 1, 8, b.s))
	_, err = d.EndCapture(a.s)
	require.Error(t, err, "a stream that nobody waits for")
	_, err = d.EndCapture(a.s)
	require.Error(t, err, "no capture")
	require.NoError(t, d.DestroyEvent(e))
	require.NoError(t, d.Set8(a.at, 1, 8, a.s))
	require.NoError(t, d.SyncStream(a.s))
}
