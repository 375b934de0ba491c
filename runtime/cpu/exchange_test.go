package cpu

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// TestExchangeOfShortRuns: runs of 64 elements are exchanged by all cores, in units of similar size
// whatever share of the heads a rank has.
func TestExchangeOfShortRuns(t *testing.T) {
	const ranks, threads, rows, width = 4, 2, 256, 64
	heads := ir.Axis{Size: ranks} // six of them
	b, err := New(Options{Threads: threads})
	require.NoError(t, err)
	devices, err := b.Open(runtime.World{Ranks: ranks, Timeout: time.Minute})
	require.NoError(t, err)
	node := &ir.Node{Op: ir.OpAllToAll, Name: "heads"}
	global := []int{rows, 6, width}
	var members []runtime.Member
	for r, d := range devices {
		some := heads.Cut(6, r)
		m := runtime.Member{
			Rank: r,
			In:   runtime.Tensor{DType: ir.F32, Slab: ir.Slab{Global: global, Offset: []int{r * rows / ranks, 0, 0}, Local: []int{rows / ranks, 6, width}}},
			Out:  runtime.Tensor{DType: ir.F32, Slab: ir.Slab{Global: global, Offset: []int{0, some.Off, 0}, Local: []int{rows, some.Len, width}}},
		}
		m.Out.Offset = m.In.Bytes()
		require.NoError(t, d.Alloc(runtime.OnDevice, m.In.Bytes()+m.Out.Bytes()))
		for i := range b.devices[r].words(m.In) {
			b.devices[r].words(m.In)[i] = float32(m.In.Slab.GlobalIndex(i))
		}
		members = append(members, m)
	}
	var all sync.WaitGroup
	for r, d := range devices {
		all.Go(func() {
			if err := d.Collective(&runtime.Collective{Node: node, Members: members, Position: r}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	units := 0
	for r, d := range b.devices {
		for i, x := range d.words(members[r].Out) {
			require.Equal(t, float32(members[r].Out.Slab.GlobalIndex(i)), x, "rank %d", r)
		}
		units = max(units, d.made*d.split)
	}
	require.GreaterOrEqual(t, units, 4*threads, "the two ranks with two heads each would be a third more than half of it")
	for _, d := range devices {
		require.NoError(t, d.Close())
	}
}
