// Package backendtest is the conformance suite of backends. [Run] checks every op and collective of
// a backend against package interp: at odd sizes, on parts of values, in place and accumulating. It
// also checks how the backend waits and fails. [Inject] makes a backend that fails on purpose, for
// tests of executors.
package backendtest

import (
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// Open makes a new backend for one test.
type Open func(t *testing.T) runtime.Backend

// Run checks that a backend keeps the contract of package runtime.
func Run(t *testing.T, open Open) {
	RunAlone(t, open)
	RunFixedPoint(t, open)
	RunTogether(t, open)
}

// RunAlone checks what a single device does.
func RunAlone(t *testing.T, open Open) {
	t.Run("memory", func(t *testing.T) { testMemory(t, open) })
	RunOps(t, open, func(ir.Op, ir.Attr) bool { return false })
	t.Run("wide heads", func(t *testing.T) { RunWideHeads(t, open) })
}

// RunFixedPoint checks that fixed point reports overflows, and sums over ranks.
func RunFixedPoint(t *testing.T, open Open) {
	t.Run("overflow", func(t *testing.T) { testOverflow(t, open) })
	t.Run("fixed all_reduce", func(t *testing.T) { testFixedCollectives(t, open) })
}

// RunTogether checks what devices do together, and how they wait and fail.
func RunTogether(t *testing.T, open Open) {
	t.Run("collectives", func(t *testing.T) { testCollectives(t, open) })
	for _, s := range []runtime.Stream{runtime.Compute, runtime.Transfers} {
		t.Run("transfers on the "+s.String()+" stream", func(t *testing.T) { testTransfers(t, open, s) })
	}
	for _, s := range []runtime.Stream{runtime.Communication, runtime.Exchange} {
		t.Run(s.String()+" stream", func(t *testing.T) { testStream(t, open, s) })
		t.Run(s.String()+" stream failures", func(t *testing.T) { testStreamFailures(t, open, s) })
	}
	t.Run("two streams wait for one", func(t *testing.T) { testWaits(t, open) })
	t.Run("timeouts", func(t *testing.T) { testTimeouts(t, open) })
	t.Run("abort", func(t *testing.T) { testAbort(t, open) })
}

// RunOps checks what a single device computes: the parts of Run about launches. leaveOut selects
// ops to skip.
func RunOps(t *testing.T, open Open, leaveOut func(op ir.Op, attr ir.Attr) bool) {
	t.Run("ops", func(t *testing.T) { testOps(t, open, leaveOut) })
	t.Run("random sizes", func(t *testing.T) { testRandomSizes(t, open, leaveOut) })
	t.Run("grouping", func(t *testing.T) { testGrouping(t, open, leaveOut) })
	t.Run("many ids", func(t *testing.T) { testManyIDs(t, open) })
	t.Run("first moments", func(t *testing.T) { testFirstMoments(t, open) })
	t.Run("accumulate", func(t *testing.T) { testAccumulate(t, open) })
	t.Run("host copies", func(t *testing.T) { testHostCopies(t, open) })
}

// devices opens a world and closes it after the test.
func devices(t *testing.T, open Open, ranks int, timeout time.Duration) ([]runtime.Device, runtime.Backend) {
	t.Helper()
	b := open(t)
	devices, err := b.Open(runtime.World{Ranks: ranks, Timeout: timeout})
	require.NoError(t, err)
	require.Len(t, devices, ranks)
	t.Cleanup(func() {
		for _, d := range devices {
			require.NoError(t, d.Close())
		}
	})
	return devices, b
}

// together runs do for every device at once and returns their errors.
func together(devices []runtime.Device, do func(rank int, d runtime.Device) error) []error {
	errs := make([]error, len(devices))
	done := make(chan struct{})
	for i, d := range devices {
		go func() {
			defer func() { done <- struct{}{} }()
			errs[i] = do(i, d)
		}()
	}
	for range devices {
		<-done
	}
	return errs
}

// arena allocates places in an arena, at multiples of 64 bytes.
type arena struct{ end int64 }

func (a *arena) tensor(dtype ir.DType, slab ir.Slab) runtime.Tensor {
	t := runtime.Tensor{Offset: a.end, DType: dtype, Slab: slab}
	a.end += (t.Bytes() + 63) / 64 * 64
	return t
}

// Load gives devices arenas, and has them prepare for what they exchange, as the executor does when it loads a program.
func Load(devices []runtime.Device, arena int64, exchanges func(rank int) ([]*runtime.Collective, []*runtime.Transfer)) error {
	for rank, d := range devices {
		if p, ok := d.(runtime.Preparer); ok {
			if err := p.Prepare(exchanges(rank)); err != nil {
				return err
			}
		}
	}
	for _, d := range devices {
		if err := d.Alloc(runtime.OnDevice, arena); err != nil {
			return err
		}
	}
	return errors.Join(together(devices, func(_ int, d runtime.Device) (err error) {
		p, more := d.(runtime.Preparer)
		for more && err == nil {
			more, err = p.Join()
		}
		return err
	})...)
}

// All is what devices exchange by a collective of all of them: see [Load].
func All(c runtime.Collective) func(rank int) ([]*runtime.Collective, []*runtime.Transfer) {
	return func(rank int) ([]*runtime.Collective, []*runtime.Transfer) {
		mine := c
		mine.Position = rank
		return []*runtime.Collective{&mine}, nil
	}
}

func bytesOf[E float32 | int32 | int64](x []E) []byte {
	var e E
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), int(unsafe.Sizeof(e))*len(x))
}

func upload(t *testing.T, d runtime.Device, at runtime.Tensor, x []float32) {
	t.Helper()
	require.NoError(t, d.Upload(at.Space, at.Offset, encode(at.DType, x)))
}

func download(t *testing.T, d runtime.Device, at runtime.Tensor) []float32 {
	t.Helper()
	b := make([]byte, at.Bytes())
	require.NoError(t, d.Download(b, at.Space, at.Offset))
	return decode(at.DType, b)
}

// eachRow calls do for every run of a part along its last dimension, with the indices of the run's
// first element in the part and in the whole, and its length.
func eachRow(s ir.Slab, do func(local, global, n int)) {
	rows := len(s.Local) - 1
	if rows < 0 {
		do(0, 0, 1)
		return
	}
	n := s.Local[rows]
	index := make([]int, rows)
	for local := 0; local < int(s.Elems()); local += n {
		global := 0
		for d, i := range index {
			global = global*s.Global[d] + s.Offset[d] + i
		}
		do(local, global*s.Global[rows]+s.Offset[rows], n)
		for d := rows - 1; d >= 0; d-- {
			if index[d]++; index[d] < s.Local[d] {
				break
			}
			index[d] = 0
		}
	}
}

// part returns the elements of a part.
func part[E any](whole []E, s ir.Slab) []E {
	out := make([]E, s.Elems())
	eachRow(s, func(local, global, n int) { copy(out[local:local+n], whole[global:]) })
	return out
}

func random(rng *rand.Rand, n int64) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(rng.NormFloat64())
	}
	return x
}

func testMemory(t *testing.T, open Open) {
	ds, _ := devices(t, open, 1, time.Minute)
	d := ds[0]
	require.NoError(t, d.Alloc(runtime.OnDevice, 1000))
	src := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	require.NoError(t, d.Upload(runtime.OnDevice, 992, src))
	require.NoError(t, d.Alloc(runtime.OnDevice, 100000), "growing")
	require.NoError(t, d.Alloc(runtime.OnDevice, 10), "what is large enough stays")
	dst := make([]byte, 8)
	require.NoError(t, d.Download(dst, runtime.OnDevice, 992))
	require.Equal(t, src, dst, "growing keeps the contents")
	require.NoError(t, d.Upload(runtime.OnDevice, 99992, src), "the end of the arena")

	for _, at := range []int64{-8, 99996, 1 << 40} {
		require.Error(t, d.Upload(runtime.OnDevice, at, src), "at %d", at)
		require.Error(t, d.Download(dst, runtime.OnDevice, at), "at %d", at)
	}
}

// testTransfers passes messages back and forth between two ranks. An event tells each sender that
// the destination is free.
func testTransfers(t *testing.T, open Open, s runtime.Stream) {
	const rounds, elems = 50, 1031
	beside := s != runtime.Compute
	ds, _ := devices(t, open, 2, time.Minute)
	slab := ir.Whole([]int{elems})
	var a arena
	in, out := a.tensor(ir.F32, slab), a.tensor(ir.F32, slab)
	var sends, recvs [2]*runtime.Transfer
	for rank := range ds {
		sends[rank] = &runtime.Transfer{Node: &ir.Node{Op: ir.OpSend, Name: "x@send"}, Wire: rank, Peer: 1 - rank, Local: out, Remote: in.Offset, Stream: s}
		recvs[rank] = &runtime.Transfer{Node: &ir.Node{Op: ir.OpRecv, Name: "x@recv"}, Wire: 1 - rank, Peer: 1 - rank, Local: in}
	}
	require.NoError(t, Load(ds, a.end, func(rank int) ([]*runtime.Collective, []*runtime.Transfer) {
		return nil, []*runtime.Transfer{sends[rank], recvs[rank]}
	}))
	double := addNode(t, []int{elems})
	errs := together(ds, func(rank int, d runtime.Device) error {
		send, recv := sends[rank], recvs[rank]
		// Rank 0 starts with ones; every visit doubles the value.
		k := &runtime.Kernel{Node: double, Args: []runtime.Tensor{in, in}, Results: []runtime.Tensor{out}, Accum: []bool{false}}
		if rank == 0 {
			x := make([]float32, elems)
			for i := range x {
				x[i] = float32(i) * 0x1p-60
			}
			if err := d.Upload(runtime.OnDevice, in.Offset, bytesOf(x)); err != nil {
				return err
			}
		}
		for round := range rounds {
			if rank == 1 || round > 0 {
				if err := d.Recv(recv); err != nil {
					return err
				}
			}
			if beside && round > 0 { // the kernel overwrites what was sent last
				if err := d.Wait(runtime.Compute, runtime.Event{Rank: rank, Stream: s, N: int64(round)}); err != nil {
					return err
				}
			}
			if err := errors.Join(d.Launch(k), d.Record(runtime.Compute)); err != nil {
				return err
			}
			if rank == 0 || round < rounds-1 {
				if beside { // the kernel makes what is sent
					if err := d.Wait(s, runtime.Event{Rank: rank, N: int64(round + 1)}); err != nil {
						return err
					}
				}
				// The destination is free once the peer has read the last message.
				if free := int64(round + rank); free > 0 {
					if err := d.Wait(s, runtime.Event{Rank: 1 - rank, N: free}); err != nil {
						return err
					}
				}
				if err := d.Send(send); err != nil {
					return err
				}
				if beside {
					if err := d.Record(s); err != nil {
						return err
					}
				}
			}
		}
		return d.Wait(runtime.Host, runtime.Event{Rank: rank, N: rounds})
	})
	require.NoError(t, errors.Join(errs...))
	for i, x := range download(t, ds[1], out) {
		require.Equal(t, float32(i)*float32(math.Ldexp(1, 2*rounds-60)), x, "element %d", i)
	}
}

func addNode(t *testing.T, shape []int) *ir.Node {
	g := ir.NewGraph("add")
	typ := ir.Type{DType: ir.F32, Shape: shape}
	a, err := g.Leaf(ir.OpInput, "a", typ, nil)
	require.NoError(t, err)
	n, err := g.Add(ir.OpAdd, nil, "x/add", ir.Forward, a, a)
	require.NoError(t, err)
	return n
}

// testWaits has two streams of a rank wait at the same time for two events of one stream of another rank.
func testWaits(t *testing.T, open Open) {
	const rounds = 6
	ds, _ := devices(t, open, 2, 5*time.Second)
	errs := together(ds, func(rank int, d runtime.Device) error {
		for round := range int64(rounds) {
			if rank == 1 {
				for range 2 {
					time.Sleep(2 * time.Millisecond) // the other waits
					if err := d.Record(runtime.Compute); err != nil {
						return err
					}
				}
				continue
			}
			first := round % 2
			beside, own := runtime.Event{Rank: 1, N: 2*round + 1 + first}, runtime.Event{Rank: 1, N: 2*round + 2 - first}
			if err := errors.Join(d.Wait(runtime.Transfers, beside), d.Record(runtime.Transfers)); err != nil {
				return err
			}
			time.Sleep(time.Millisecond)
			if err := errors.Join(d.Wait(runtime.Compute, own), d.Wait(runtime.Compute, runtime.Event{Stream: runtime.Transfers, N: round + 1})); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, errors.Join(errs...))
}

// testTimeouts checks that every wait ends, and names the ranks waited for.
func testTimeouts(t *testing.T, open Open) {
	const timeout = 300 * time.Millisecond
	waits := map[string]func(d runtime.Device, m *meeting) error{
		"recv":       func(d runtime.Device, m *meeting) error { return d.Recv(m.recv) },
		"event":      func(d runtime.Device, m *meeting) error { return d.Wait(runtime.Compute, runtime.Event{Rank: 1, N: 1}) },
		"collective": func(d runtime.Device, m *meeting) error { return d.Collective(m.collective) },
		"event beside": func(d runtime.Device, m *meeting) error {
			return errors.Join(d.Wait(runtime.Transfers, runtime.Event{Rank: 1, N: 1}), d.Record(runtime.Transfers), d.Wait(runtime.Compute, runtime.Event{Stream: runtime.Transfers, N: 1}))
		},
	}
	for name, wait := range waits {
		t.Run(name, func(t *testing.T) {
			ds, b := devices(t, open, 2, timeout)
			m := newMeeting(t, ds, runtime.Compute)
			defer b.Abort() // as after any failure: what was given to streams waits for rank 1
			start := time.Now()
			err := errors.Join(wait(ds[0], m), ds[0].Record(runtime.Compute), ds[0].Wait(runtime.Host, runtime.Event{Rank: 0, N: 1}))
			var late *runtime.WaitError
			require.ErrorAs(t, err, &late)
			require.Equal(t, []int{1}, late.Ranks)
			require.Less(t, time.Since(start), 20*timeout)
		})
	}
}

// testAbort checks that Abort ends waits in progress and later ones.
func testAbort(t *testing.T, open Open) {
	ds, b := devices(t, open, 2, time.Minute)
	m := newMeeting(t, ds, runtime.Compute)
	go func() {
		time.Sleep(10 * time.Millisecond)
		b.Abort()
	}()
	start := time.Now()
	require.ErrorIs(t, errors.Join(ds[0].Collective(m.collective), ds[0].Record(runtime.Compute), ds[0].Wait(runtime.Host, runtime.Event{Rank: 0, N: 1})), runtime.ErrAborted)
	require.ErrorIs(t, errors.Join(ds[1].Recv(m.recv), ds[1].Record(runtime.Compute), ds[1].Wait(runtime.Host, runtime.Event{Rank: 1, N: 1})), runtime.ErrAborted)
	b.Abort()
	require.Less(t, time.Since(start), 10*time.Second)
}

// meeting is a collective or message at which one rank waits for another.
type meeting struct {
	collective *runtime.Collective // of rank 0
	recv       *runtime.Transfer
}

func newMeeting(t *testing.T, ds []runtime.Device, s runtime.Stream) *meeting {
	t.Helper()
	slab := ir.Whole([]int{5})
	var a arena
	x := a.tensor(ir.F32, slab)
	m := &meeting{
		collective: &runtime.Collective{
			Node:    &ir.Node{Op: ir.OpAllReduce, Name: "x@all_reduce"},
			Members: []runtime.Member{{Rank: 0, In: x, Out: x}, {Rank: 1, In: x, Out: x}},
			Stream:  s,
		},
		recv: &runtime.Transfer{Node: &ir.Node{Op: ir.OpRecv, Name: "x@recv"}, Peer: 1, Local: x},
	}
	require.NoError(t, Load(ds, a.end, func(rank int) ([]*runtime.Collective, []*runtime.Transfer) {
		c, transfer := *m.collective, m.recv
		if c.Position = rank; rank == 1 {
			transfer = &runtime.Transfer{Node: &ir.Node{Op: ir.OpSend, Name: "x@send"}, Local: x}
		}
		return []*runtime.Collective{&c}, []*runtime.Transfer{transfer}
	}))
	return m
}
