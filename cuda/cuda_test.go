package cuda_test

import (
	"bytes"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/cuda"
	"github.com/autopar/autopar/cuda/cudatest"
	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/cuda/driver/fake"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/backendtest"
)

// onFake opens backends on fake drivers, and checks that everything is freed.
func onFake(opts cuda.Options) backendtest.Open {
	seed := uint64(0)
	return func(t *testing.T) runtime.Backend {
		seed++
		d := fake.New(fake.Options{Devices: 8, Seed: seed})
		t.Cleanup(func() { require.Empty(t, d.Leaks()) })
		system, err := cudatest.NewSystem(d)
		require.NoError(t, err)
		return cuda.New(system, opts)
	}
}

// The conformance suite, in parts: with all ranks on one GPU, and with a GPU for each.
func TestAlone(t *testing.T) { backendtest.RunAlone(t, onFake(cuda.Options{})) }
func TestFused(t *testing.T) {
	backendtest.RunFused(t, onFake(cuda.Options{}), func(ir.Op, ir.Attr) bool { return false })
}
func TestFixedPoint(t *testing.T) { backendtest.RunFixedPoint(t, onFake(cuda.Options{Loopback: true})) }
func TestFixedNCCL(t *testing.T)  { backendtest.RunFixedPoint(t, onFake(cuda.Options{})) }
func TestLoopback(t *testing.T)   { backendtest.RunTogether(t, onFake(cuda.Options{Loopback: true})) }
func TestNCCL(t *testing.T)       { backendtest.RunTogether(t, onFake(cuda.Options{})) }

// TestOpenRefuses checks the errors for unusable GPUs, and that everything is freed.
func TestOpenRefuses(t *testing.T) {
	for _, tt := range []struct {
		fakes fake.Options
		opts  cuda.Options
		want  string
	}{
		{fake.Options{Devices: 2}, cuda.Options{}, "the plan has 3 ranks, 2 GPUs are visible"},
		{fake.Options{Devices: 2}, cuda.Options{GPUs: []int{0, 2, 1}}, "GPU 2 is asked for, 2 are visible"},
		{fake.Options{Major: 7, Minor: 5}, cuda.Options{Loopback: true}, "GPU 0 (fake device 0) has compute capability 7.5, want at least 8.0"},
		{fake.Options{Memory: 600}, cuda.Options{Loopback: true}, "rank 2 on GPU 0 (fake device 0): cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY"},
	} {
		d := fake.New(tt.fakes)
		system, err := cudatest.NewSystem(d)
		require.NoError(t, err)
		_, err = cuda.New(system, tt.opts).Open(runtime.World{Ranks: 3, Timeout: time.Minute})
		require.ErrorContains(t, err, tt.want)
		require.Empty(t, d.Leaks())
	}
}

// TestLateMessage: if a message is not sent, between ranks that have met before, the error names
// the instruction that waits for it and the rank that does not send it.
func TestLateMessage(t *testing.T) {
	system, err := cudatest.NewSystem(fake.New(fake.Options{Devices: 2}))
	require.NoError(t, err)
	b := cuda.New(system, cuda.Options{})
	ds, err := b.Open(runtime.World{Ranks: 2, Timeout: 2 * time.Second}) // also for the message that is sent
	require.NoError(t, err)
	x := runtime.Tensor{DType: ir.F32, Slab: ir.Whole([]int{16})}
	sent := &ir.Node{Op: ir.OpSend, Name: "x@send"}
	taken := &ir.Node{Op: ir.OpRecv, Name: "x@recv", Args: []*ir.Value{{Def: sent}}}
	transfers := []*runtime.Transfer{{Node: sent, Peer: 1, Local: x}, {Node: taken, Peer: 0, Local: x}}
	require.NoError(t, backendtest.Load(ds, 64, func(rank int) ([]*runtime.Collective, []*runtime.Transfer) { return nil, transfers[rank : rank+1] }))
	errs := make(chan error, 2)
	for rank, d := range ds {
		require.NoError(t, d.Upload(runtime.OnDevice, 0, make([]byte, 64)))
		go func() {
			transfer := transfers[rank]
			if rank == 1 {
				errs <- errors.Join(d.(runtime.Meeter).Expect(transfer), d.Recv(transfer), d.Recv(transfer),
					d.Record(runtime.Compute), d.Wait(runtime.Host, runtime.Event{Rank: 1, N: 1}))
				return
			}
			errs <- d.Send(transfer)
		}()
	}
	err = errors.Join(<-errs, <-errs)
	var at *runtime.StreamError
	require.ErrorAs(t, err, &at)
	require.Equal(t, taken, at.Node)
	require.Equal(t, runtime.Compute, at.Stream)
	var late *runtime.WaitError
	require.ErrorAs(t, err, &late)
	require.Equal(t, []int{0}, late.Ranks)
	b.Abort()
	for _, d := range ds {
		require.NoError(t, d.Close())
	}
}

// TestEndsWithGraphs: NCCL neither closes nor aborts a communicator while there are graphs that
// captured it. Neither the end of a run nor the report of its failure waits for that.
func TestEndsWithGraphs(t *testing.T) {
	x := runtime.Tensor{DType: ir.F32, Slab: ir.Whole([]int{16})}
	sum := &ir.Node{Op: ir.OpAllReduce, Name: "x"}
	for _, fails := range []bool{false, true} {
		t.Run(map[bool]string{false: "at the end", true: "after a failure"}[fails], func(t *testing.T) {
			d := fake.New(fake.Options{Devices: 2})
			system, err := cudatest.NewSystem(d)
			require.NoError(t, err)
			b := cuda.New(system, cuda.Options{})
			ds, err := b.Open(runtime.World{Ranks: 2, Timeout: time.Minute})
			require.NoError(t, err)
			tell, read, errs := make([]func() error, 2), make([]func() error, 2), make([]error, 2)
			var ranks sync.WaitGroup
			members := []runtime.Member{{Rank: 0, In: x, Out: x}, {Rank: 1, In: x, Out: x}}
			require.NoError(t, backendtest.Load(ds, 64, backendtest.All(runtime.Collective{Node: sum, Members: members})))
			for rank, d := range ds {
				c := &runtime.Collective{Node: sum, Position: rank, Members: members}
				step := d.(runtime.Late)
				tell[rank] = func() error { return errors.Join(d.Collective(c), step.End(nil)) }
				read[rank] = func() error { return step.Last(nil) }
				require.NoError(t, d.Upload(runtime.OnDevice, 0, make([]byte, 64)))
				require.NoError(t, errors.Join(step.End(nil), read[rank]()))
				ranks.Go(func() {
					for range 3 {
						errs[rank] = errors.Join(errs[rank], tell[rank](), read[rank]())
					}
				})
			}
			ranks.Wait()
			require.NoError(t, errors.Join(errs...))
			_, graphs := d.Ran()
			require.Equal(t, 2, graphs, "the third step of each rank")
			if fails {
				require.NoError(t, tell[0]()) // the other rank does not come
				start := time.Now()
				b.Abort()
				require.Less(t, time.Since(start), 5*time.Second)
			}
			for _, d := range ds {
				require.NoError(t, d.Close())
			}
			require.Empty(t, d.Leaks())
		})
	}
}

// TestGraphsEndTogether: when a program is loaded that needs more memory on one rank alone, no rank
// launches the graph of an earlier step: NCCL wants what is part of a graph on one rank to be so on
// all.
func TestGraphsEndTogether(t *testing.T) {
	d := fake.New(fake.Options{Devices: 2})
	system, err := cudatest.NewSystem(d)
	require.NoError(t, err)
	ds, err := cuda.New(system, cuda.Options{}).Open(runtime.World{Ranks: 2, Timeout: time.Minute})
	require.NoError(t, err)
	x := runtime.Tensor{DType: ir.F32, Slab: ir.Whole([]int{16})}
	sum := &ir.Node{Op: ir.OpAllReduce, Name: "x"}
	members := []runtime.Member{{Rank: 0, In: x, Out: x}, {Rank: 1, In: x, Out: x}}
	sums := []*runtime.Collective{{Node: sum, Members: members}, {Node: sum, Position: 1, Members: members}}
	run := func(steps int, arenas ...int64) {
		var ranks sync.WaitGroup
		errs := make([]error, 2)
		require.NoError(t, backendtest.Load(ds, 64, backendtest.All(*sums[0])))
		for rank, d := range ds {
			require.NoError(t, d.Alloc(runtime.OnDevice, arenas[rank]))
			step := d.(runtime.Late)
			require.NoError(t, d.Upload(runtime.OnDevice, 0, make([]byte, 64)))
			require.NoError(t, errors.Join(step.End(nil), step.Last(nil)))
			ranks.Go(func() {
				for range steps {
					errs[rank] = errors.Join(errs[rank], d.Collective(sums[rank]), step.End(nil), step.Last(nil))
				}
			})
		}
		ranks.Wait()
		require.NoError(t, errors.Join(errs...))
	}
	run(4, 64, 64)
	_, graphs := d.Ran()
	require.Equal(t, 4, graphs, "the last two steps of each rank")
	run(3, 1<<20, 64)
	_, graphs = d.Ran()
	require.Equal(t, 6, graphs, "the last step of each rank")
	for _, d := range ds {
		require.NoError(t, d.Close())
	}
	require.Empty(t, d.Leaks())
}

// refusingEvents makes no events while a stream captures.
type refusingEvents struct {
	*fake.Driver
	capturing bool
	refused   int
}

func (d *refusingEvents) BeginCapture(s driver.Stream) error {
	d.capturing = true
	return d.Driver.BeginCapture(s)
}

func (d *refusingEvents) EndCapture(s driver.Stream) (driver.Graph, error) {
	d.capturing = false
	return d.Driver.EndCapture(s)
}

func (d *refusingEvents) CreateEvent(timed bool) (driver.Event, error) {
	if d.capturing {
		d.refused++
		return 0, &driver.Error{Call: "cuEventCreate", Code: 2, Name: "CUDA_ERROR_OUT_OF_MEMORY"}
	}
	return d.Driver.CreateEvent(timed)
}

// TestCaptureFails: a step that cannot be captured is made call by call, although the capture had
// come to where a message is expected. Nothing stays of the capture: NCCL would not close a
// communicator before its graph is destroyed.
func TestCaptureFails(t *testing.T) {
	d := &refusingEvents{Driver: fake.New(fake.Options{Devices: 2})}
	system, err := cudatest.NewSystem(d.Driver)
	require.NoError(t, err)
	system.Driver = d
	var notes []string
	ds, err := cuda.New(system, cuda.Options{Note: func(text string) { notes = append(notes, text) }}).Open(runtime.World{Ranks: 2, Timeout: time.Minute})
	require.NoError(t, err)
	x := runtime.Tensor{DType: ir.F32, Slab: ir.Whole([]int{16})}
	sent := &ir.Node{Op: ir.OpSend, Name: "x@send"}
	sends := &runtime.Transfer{Node: sent, Peer: 1, Local: x}
	takes := &runtime.Transfer{Node: &ir.Node{Op: ir.OpRecv, Name: "x@recv", Args: []*ir.Value{{Def: sent}}}, Local: x}
	step := []func(round byte) error{
		func(round byte) error {
			return errors.Join(ds[0].Upload(runtime.OnDevice, 0, bytes.Repeat([]byte{round}, 64)), ds[0].Send(sends), ds[0].Record(runtime.Compute),
				ds[0].(runtime.Late).End(nil))
		},
		func(byte) error {
			return errors.Join(ds[1].(runtime.Meeter).Expect(takes), ds[1].Record(runtime.Compute), ds[1].Recv(takes), ds[1].(runtime.Late).End(nil))
		},
	}
	require.NoError(t, backendtest.Load(ds, 64, func(rank int) ([]*runtime.Collective, []*runtime.Transfer) {
		return nil, [][]*runtime.Transfer{{sends}, {takes}}[rank]
	}))
	for round := range byte(5) {
		errs := []error{step[0](round), step[1](round)}
		for rank, d := range ds {
			require.NoError(t, errors.Join(errs[rank], d.(runtime.Late).Last(nil)), "rank %d, step %d", rank, round)
		}
		got := make([]byte, 64)
		require.NoError(t, ds[1].Download(got, runtime.OnDevice, 0))
		require.Equal(t, bytes.Repeat([]byte{round}, 64), got, "step %d", round)
	}
	require.Equal(t, 2, d.refused, "one capture of each rank")
	require.Equal(t, []string{"steps are not replayed as CUDA graphs: capturing a step: cuEventCreate: CUDA_ERROR_OUT_OF_MEMORY (2)"}, notes)
	for _, d := range ds {
		require.NoError(t, d.Close())
	}
	require.Empty(t, d.Leaks())
}

// TestTimeGraphFails: the same of work that is captured to be timed.
func TestTimeGraphFails(t *testing.T) {
	d := &refusingEvents{Driver: fake.New(fake.Options{})}
	system, err := cudatest.NewSystem(d.Driver)
	require.NoError(t, err)
	system.Driver = d
	ds, err := cuda.New(system, cuda.Options{Eager: true}).Open(runtime.World{Ranks: 1, Timeout: time.Minute})
	require.NoError(t, err)
	_, err = ds[0].(*cuda.Device).TimeGraph(2, func() error { return ds[0].Record(runtime.Compute) })
	require.ErrorContains(t, err, "cuEventCreate")
	require.NoError(t, ds[0].Close())
	require.Empty(t, d.Leaks())
}

// fragmented is a driver whose free memory has no piece larger than most bytes.
type fragmented struct {
	*fake.Driver
	most int64
}

func (d *fragmented) Alloc(bytes int64) (driver.Ptr, error) {
	if bytes > d.most {
		return 0, &driver.Error{Call: "cuMemAlloc_v2", Code: 2, Name: "CUDA_ERROR_OUT_OF_MEMORY"}
	}
	return d.Driver.Alloc(bytes)
}

// TestFragmentedMemory: if an arena is refused that is smaller than what is free, the error says so, with what is free
// when it is refused. An arena that grows by way of the host is free by then.
func TestFragmentedMemory(t *testing.T) {
	const total, arena = 64 << 20, 40 << 20
	for _, first := range []int64{0, arena} {
		d := &fragmented{fake.New(fake.Options{Memory: total}), arena}
		system, err := cudatest.NewSystem(d.Driver)
		require.NoError(t, err)
		system.Driver = d
		ds, err := cuda.New(system, cuda.Options{}).Open(runtime.World{Ranks: 1, Timeout: time.Minute})
		require.NoError(t, err)
		require.NoError(t, ds[0].Alloc(runtime.OnDevice, first))
		err = ds[0].Alloc(runtime.OnDevice, arena+1<<20)
		var short *cuda.MemoryError
		require.ErrorAs(t, err, &short)
		require.Greater(t, short.Free, short.Needs)
		require.EqualError(t, err, "cuda: 0.04004 GiB are needed in one piece, and GPU 0 (fake device 0) has none of that size, with 0.0625 GiB free of 0.0625 GiB")
		require.NoError(t, ds[0].Close())
		require.Empty(t, d.Leaks())
	}
}

// TestNoRoomForScratch: if an arena leaves no room for the scratch memory of its kernels, the error says how much
// they need, as for an arena.
func TestNoRoomForScratch(t *testing.T) {
	const total, elems = 1 << 20, 1 << 17
	d := fake.New(fake.Options{Memory: total})
	system, err := cudatest.NewSystem(d)
	require.NoError(t, err)
	ds, err := cuda.New(system, cuda.Options{}).Open(runtime.World{Ranks: 1, Timeout: time.Minute})
	require.NoError(t, err)
	x := runtime.Tensor{DType: ir.F32, Slab: ir.Whole([]int{elems})}
	sum := &ir.Node{Op: ir.OpSumSquares, Name: "x"} // the emulator asks for a sixteenth of the operand
	k := &runtime.Kernel{Node: sum, Args: []runtime.Tensor{x}, Results: []runtime.Tensor{{DType: ir.F32, Offset: 4 * elems, Slab: ir.Whole(nil)}}, Accum: []bool{false}}
	require.NoError(t, ds[0].(runtime.Checker).Check(k))
	err = ds[0].Alloc(runtime.OnDevice, total-4096)
	var short *cuda.MemoryError
	require.ErrorAs(t, err, &short)
	require.EqualValues(t, 4*elems/16+16, short.Needs)
	require.Less(t, short.Free, short.Needs)
	require.ErrorContains(t, err, "scratch memory beside the arena: cuda: ")
	require.NoError(t, ds[0].Close())
	require.Empty(t, d.Leaks())
}

// counting counts the calls of NCCL by name.
type counting struct {
	driver.Collectives
	mu    sync.Mutex
	calls map[string]int
}

type countingComm struct {
	driver.Comm
	*counting
}

func (c *counting) Join(ranks int, id driver.ID, rank int) (driver.Comm, error) {
	comm, err := c.Collectives.Join(ranks, id, rank)
	return countingComm{comm, c}, err
}

func (c *counting) count(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[name]++
}

func (c countingComm) ReduceScatter(send, recv driver.Ptr, n int64, d ir.DType, by ir.Reduction, s driver.Stream) error {
	c.count("reduce_scatter")
	return c.Comm.ReduceScatter(send, recv, n, d, by, s)
}

func (c countingComm) AllGather(send, recv driver.Ptr, n int64, d ir.DType, s driver.Stream) error {
	c.count("all_gather")
	return c.Comm.AllGather(send, recv, n, d, s)
}

func (c countingComm) Reduce(send, recv driver.Ptr, n int64, d ir.DType, by ir.Reduction, root int, s driver.Stream) error {
	c.count("reduce")
	return c.Comm.Reduce(send, recv, n, d, by, root, s)
}

func (c countingComm) Send(p driver.Ptr, n int64, d ir.DType, peer int, s driver.Stream) error {
	c.count("send")
	return c.Comm.Send(p, n, d, peer, s)
}
