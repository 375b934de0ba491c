package cpu

import (
	"fmt"
	goruntime "runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu/kernel"
)

// BenchmarkCollectives compares the rate at which collectives move memory with that of copying and
// of adding two tensors (the stream triad), with all cores and the same working set, in turns.
// Bytes are those read and written. The shares are of the medians.
func BenchmarkCollectives(b *testing.B) {
	for _, op := range []ir.Op{ir.OpAllReduce, ir.OpReduceScatter, ir.OpAllGather} {
		for _, ranks := range []int{2, 4} {
			for _, bytes := range []int{64 << 10, 10 << 20, 43_000_000} {
				n := bytes / 4 / ranks * ranks
				b.Run(fmt.Sprintf("%s/ranks=%d/bytes=%d", op, ranks, bytes), func(b *testing.B) { benchCollective(b, alone(b), op, ranks, n) })
				if ranks <= goruntime.GOMAXPROCS(0) {
					b.Run(fmt.Sprintf("%s/processes=%d/bytes=%d", op, ranks, bytes), func(b *testing.B) { benchCollective(b, oneMachine(), op, ranks, n) })
				}
			}
		}
	}
}

func alone(b testing.TB) *Backend {
	backend, err := New(Options{})
	require.NoError(b, err)
	return backend
}

func benchCollective(b *testing.B, backend runtime.Backend, op ir.Op, ranks, n int) {
	devices, err := backend.Open(runtime.World{Ranks: ranks, Timeout: time.Minute})
	require.NoError(b, err)
	all, moved, held := collectives(b, devices, op, n)

	cores := goruntime.GOMAXPROCS(0)
	x := make([]float32, held/4)
	third := len(x) / 3
	pool := kernel.NewPool(cores)
	defer pool.Close()
	rates := map[string][]float64{}
	time1 := func(what string, bytes int, f func()) {
		start := time.Now()
		f()
		rates[what] = append(rates[what], float64(bytes)/time.Since(start).Seconds()/1e9)
	}
	repeat := max(1, 32_000_000/n) // so that a turn takes many times as long as starting all ranks, some 80 us
	for b.Loop() {
		time1("copy", repeat*2*4*(len(x)/2), func() {
			for range repeat {
				kernel.Copy(pool, x[:len(x)/2], x[len(x)/2:][:len(x)/2])
			}
		})
		time1("triad", repeat*3*4*third, func() {
			for range repeat {
				kernel.Add(pool, x[:third], x[third:][:third], x[2*third:][:third])
			}
		})
		time1("collective", repeat*moved, func() { makeAll(b, devices, all, repeat) })
	}
	for _, d := range devices {
		require.NoError(b, d.Close())
	}
	median := func(what string) float64 {
		slices.Sort(rates[what])
		return rates[what][len(rates[what])/2]
	}
	b.ReportMetric(median("collective"), "GB/s")
	b.ReportMetric(100*median("collective")/median("copy"), "%copy")
	b.ReportMetric(100*median("collective")/median("triad"), "%triad")
}

// collectives gives the devices arenas with the operands of a collective of n elements. It returns
// the view of each device, the bytes that all must read and write, and the bytes they hold.
func collectives(b testing.TB, devices []runtime.Device, op ir.Op, n int) (all []*runtime.Collective, moved, held int) {
	k := len(devices)
	whole := ir.Slab{Global: []int{n}, Offset: []int{0}, Local: []int{n}}
	node := &ir.Node{Op: op, Name: "bench"}
	var members []runtime.Member
	for r, d := range devices {
		part := ir.Slab{Global: []int{n}, Offset: []int{r * n / k}, Local: []int{n / k}}
		m := runtime.Member{Rank: r, In: runtime.Tensor{DType: ir.F32, Slab: whole}, Out: runtime.Tensor{DType: ir.F32, Slab: whole}}
		switch op {
		case ir.OpAllReduce: // in place
		case ir.OpReduceScatter:
			m.Out.Slab, m.Out.Offset = part, int64(4*n+63)/64*64
		case ir.OpAllGather:
			m.In.Slab, m.In.Offset = part, int64(4*n+63)/64*64
		}
		require.NoError(b, d.Alloc(runtime.OnDevice, m.In.Offset+m.Out.Offset+m.In.Bytes()+m.Out.Bytes()))
		members = append(members, m)
		moved += int(m.Out.Bytes())
		held += int(m.Out.Bytes())
		if op != ir.OpAllReduce {
			held += int(m.In.Bytes())
		}
		if op == ir.OpAllGather {
			moved += int(m.Out.Bytes()) // every member reads all parts
		} else {
			moved += int(m.In.Bytes())
		}
	}
	for r := range devices {
		all = append(all, &runtime.Collective{Node: node, Attr: ir.CommAttr{}, Members: members, Position: r})
	}
	return all, moved, held
}

// makeAll makes the collective a number of times on every device.
func makeAll(b *testing.B, devices []runtime.Device, all []*runtime.Collective, times int) {
	var ranks sync.WaitGroup
	for r, d := range devices {
		ranks.Go(func() {
			for range times {
				if err := d.Collective(all[r]); err != nil {
					b.Error(err)
				}
			}
			if err := d.Wait(runtime.Host, runtime.Event{Rank: r}); err != nil {
				b.Error(err)
			}
		})
	}
	ranks.Wait()
}
