package backendtest

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// testHostCopies stashes a tensor in the host arena and fetches it back to another place. The two
// arenas grow independently, keep their contents, and do not overlap.
func testHostCopies(t *testing.T, open Open) {
	ds, _ := devices(t, open, 1, time.Minute)
	d := ds[0]
	slab := ir.Whole([]int{5, 7})
	var device, host arena
	x, y := device.tensor(ir.F32, slab), device.tensor(ir.F32, slab)
	h := host.tensor(ir.F32, slab)
	h.Space = runtime.OnHost
	for space, bytes := range []int64{device.end, host.end} {
		require.NoError(t, d.Alloc(runtime.Space(space), bytes))
	}
	want := random(rand.New(rand.NewPCG(1, 1)), slab.Elems())
	upload(t, d, x, want)
	copies := func(op ir.Op, from, to runtime.Tensor) {
		require.NoError(t, d.Launch(&runtime.Kernel{
			Node: &ir.Node{Op: op, Name: "x@" + op.String()},
			Args: []runtime.Tensor{from}, Results: []runtime.Tensor{to}, Accum: []bool{false},
		}))
	}
	copies(ir.OpStash, x, h)
	upload(t, d, x, make([]float32, len(want))) // at the offset of the host tensor, in the other space
	require.NoError(t, d.Alloc(runtime.OnHost, host.end+1<<20), "growing")
	got := make([]float32, len(want))
	require.NoError(t, d.Download(bytesOf(got), runtime.OnHost, h.Offset))
	require.Equal(t, want, got, "stashed")
	copies(ir.OpFetch, h, y)
	require.Equal(t, want, download(t, d, y), "fetched")
	require.Equal(t, make([]float32, len(want)), download(t, d, x))
	require.Error(t, d.Upload(runtime.OnHost, host.end+1<<20, make([]byte, 4)), "past the host arena")
}
