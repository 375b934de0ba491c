package cuda_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
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

// numbered returns the elements of a rank's part of a value whose element i is i, plus the rank times so much.
func numbered(s ir.Slab, rank, times int) []byte {
	b := make([]byte, 4*s.Elems())
	for i := range int(s.Elems()) {
		binary.NativeEndian.PutUint32(b[4*i:], math.Float32bits(float32(s.GlobalIndex(i)+int64(rank*times))))
	}
	return b
}

// exchanged makes one collective by NCCL of a value of a shape over ranks, checks the results, and returns how many calls of
// which names it took.
func exchanged(t *testing.T, op ir.Op, attr ir.CommAttr, shape []int, ranks int, more ...[]int) map[string]int {
	t.Helper()
	d := fake.New(fake.Options{Devices: ranks})
	system, err := cudatest.NewSystem(d)
	require.NoError(t, err)
	lib := &counting{Collectives: d.Collectives(), calls: map[string]int{}}
	system.Collectives = func(int) (driver.Collectives, error) { return lib, nil }
	ds, err := cuda.New(system, cuda.Options{Eager: true}).Open(runtime.World{Ranks: ranks, Timeout: time.Minute})
	require.NoError(t, err)

	var collectives []*runtime.Collective
	end := int64(0)
	for _, shape := range append([][]int{shape}, more...) {
		mesh := ir.Mesh{Axes: []ir.Axis{{Name: "x", Size: ranks}}}
		local := func(place ir.Placement, rank int) ir.Slab {
			return mesh.Local(shape, ir.ShardSpec{place}, ir.Coord{rank})
		}
		from, to := ir.Placement{}, ir.Placement{}
		switch op {
		case ir.OpReduceScatter:
			to = ir.ShardOn(attr.Dim)
		case ir.OpAllGather:
			from = ir.ShardOn(attr.Dim)
		case ir.OpAllToAll:
			from, to = ir.ShardOn(attr.Dim), ir.ShardOn(attr.To)
		}
		c := &runtime.Collective{Node: &ir.Node{Op: op, Name: "x"}, Attr: attr}
		bytes := (4*ir.Whole(shape).Elems() + 255) / 256 * 256
		for r := range ranks {
			c.Members = append(c.Members, runtime.Member{Rank: r,
				In: runtime.Tensor{DType: ir.F32, Offset: end, Slab: local(from, r)}, Out: runtime.Tensor{DType: ir.F32, Offset: end + bytes, Slab: local(to, r)}})
		}
		end += 2 * bytes
		collectives = append(collectives, c)
	}
	terms := 0
	if op == ir.OpReduceScatter {
		terms = 1
	}
	of := make([]runtime.Collective, ranks)
	for r := range ds {
		of[r] = *collectives[0]
		of[r].Position = r
		for _, c := range collectives[1:] {
			other := *c
			other.Position = r
			of[r].More = append(of[r].More, &other)
		}
	}
	require.NoError(t, backendtest.Load(ds, end, func(r int) ([]*runtime.Collective, []*runtime.Transfer) { return []*runtime.Collective{&of[r]}, nil }))
	clear(lib.calls)
	var all sync.WaitGroup
	errs := make([]error, ranks)
	for r, d := range ds {
		require.NoError(t, d.Upload(runtime.OnDevice, 0, make([]byte, end)))
		for _, c := range collectives {
			in := c.Members[r].In
			require.NoError(t, d.Upload(runtime.OnDevice, in.Offset, numbered(in.Slab, r, terms)))
		}
		all.Go(func() { errs[r] = errors.Join(d.Collective(&of[r]), d.Download(make([]byte, 4), runtime.OnDevice, 0)) })
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...), "%s %+v of %v and %v over %d ranks, %d bytes", op, attr, shape, more, ranks, *cuda.PackingBytes)
	for r, d := range ds {
		for _, c := range collectives {
			out := c.Members[r].Out
			want, got := numbered(out.Slab, 0, 0), make([]byte, 4*out.Slab.Elems())
			for i := 0; terms > 0 && i < len(want); i += 4 {
				x := math.Float32frombits(binary.NativeEndian.Uint32(want[i:]))
				binary.NativeEndian.PutUint32(want[i:], math.Float32bits(float32(ranks)*x+float32(ranks*(ranks-1)/2)))
			}
			if len(got) > 0 {
				require.NoError(t, d.Download(got, runtime.OnDevice, out.Offset))
			}
			require.Equal(t, want, got, "%s %+v of %v, rank %d of %d", op, attr, shape, r, ranks)
		}
		require.NoError(t, d.Close())
	}
	require.Empty(t, d.Leaks())
	return lib.calls
}

// TestSequencesInOrder: of a value that is cut evenly along the sequence, as between tensor-parallel ranks, NCCL moves
// each of few sequences by one collective, and not by a message or a sum for each pair of ranks. An uneven cut takes more
// calls.
func TestSequencesInOrder(t *testing.T) {
	const ranks, batch, width = 2, 3, 5
	for _, tt := range []struct {
		op     ir.Op
		tokens int
		want   map[string]int
	}{
		{ir.OpAllGather, 4, map[string]int{"all_gather": ranks * batch}},
		{ir.OpAllGather, 3, map[string]int{"send": ranks * batch}},
		{ir.OpReduceScatter, 4, map[string]int{"reduce_scatter": ranks * batch}},
		{ir.OpReduceScatter, 3, map[string]int{"reduce": ranks * ranks * batch}},
	} {
		got := exchanged(t, tt.op, ir.CommAttr{Axis: "x", Dim: 1, Reduce: ir.Sum}, []int{batch, tt.tokens, width}, ranks)
		require.Equal(t, tt.want, got, "%s of %d tokens", tt.op, tt.tokens)
	}
}

// TestRunsArePacked: a value that is cut into many runs moves in as many calls as one that is cut into one each, or in a
// few pieces if packing memory is small, however it is cut.
func TestRunsArePacked(t *testing.T) {
	weight, heads, stream := []int{40, 12}, []int{2, 32, 3, 4, 2}, []int{12, 4, 5}
	for _, tt := range []struct {
		op    ir.Op
		attr  ir.CommAttr
		shape []int
		ranks int
		bytes int64 // of packing memory
		want  map[string]int
	}{
		{ir.OpReduceScatter, ir.CommAttr{Dim: 1}, weight, 2, 1 << 20, map[string]int{"reduce_scatter": 2}},
		{ir.OpReduceScatter, ir.CommAttr{Dim: 1}, weight, 3, 16 + 10*12*4, map[string]int{"reduce_scatter": 3 * 4}},
		{ir.OpReduceScatter, ir.CommAttr{Dim: 1}, weight, 5, 1 << 20, map[string]int{"reduce": 5 * 5}},
		{ir.OpReduceScatter, ir.CommAttr{Dim: 1}, weight, 2, 16 + 12*4 - 1, map[string]int{"reduce_scatter": 2 * 40}}, // no row has room
		{ir.OpAllGather, ir.CommAttr{Dim: 1}, weight, 4, 1 << 20, map[string]int{"all_gather": 4}},
		{ir.OpAllGather, ir.CommAttr{Dim: 1}, stream, 2, 16 + 9*4*5*4, map[string]int{"all_gather": 2 * 2}},
		{ir.OpAllGather, ir.CommAttr{Dim: 1}, stream, 2, 16 + 8*4*5*4, map[string]int{"all_gather": 2 * 12}}, // few at a time
		{ir.OpAllGather, ir.CommAttr{Dim: 1}, weight, 5, 1 << 20, map[string]int{"send": 5 * 4}},
		{ir.OpAllToAll, ir.CommAttr{Dim: 1, To: 3}, heads, 2, 1 << 20, map[string]int{"send": 2}},
		{ir.OpAllToAll, ir.CommAttr{Dim: 1, To: 3}, heads, 3, 1 << 20, map[string]int{"send": 3 * 2}},
		{ir.OpAllToAll, ir.CommAttr{Dim: 3, To: 1}, heads, 4, 1 << 20, map[string]int{"send": 4 * 3}},
		{ir.OpAllToAll, ir.CommAttr{Dim: 3, To: 1}, heads, 4, 16 + 2*4*32*3*4*2/4, map[string]int{"send": 2 * 4 * 3}},     // a sequence at a time
		{ir.OpAllToAll, ir.CommAttr{Dim: 3, To: 1}, heads, 4, 16 + 2*4*32*3*4*2/8, map[string]int{"send": 2 * 2 * 4 * 3}}, // half of the tokens of each rank
		{ir.OpAllToAll, ir.CommAttr{Dim: 1, To: 3}, heads, 4, 16 + 2*4*32*3*4*2/8, map[string]int{"send": 2 * 2 * 4 * 3}},
		{ir.OpAllToAll, ir.CommAttr{Dim: 1, To: 3}, heads, 4, 16 + 2*4*32*3*4*2/8 - 1, map[string]int{"send": 2 * 24 * 4 * 3}}, // few runs in a third of them
		{ir.OpAllToAll, ir.CommAttr{Dim: 0, To: 1}, weight, 3, 1 << 20, map[string]int{"send": 3 * 2}},
	} {
		t.Run(fmt.Sprintf("%s/%d to %d/%d ranks/%d bytes", tt.op, tt.attr.Dim, tt.attr.To, tt.ranks, tt.bytes), func(t *testing.T) {
			defer func(was int64) { *cuda.PackingBytes = was }(*cuda.PackingBytes)
			*cuda.PackingBytes = tt.bytes
			tt.attr.Axis, tt.attr.Reduce = "x", ir.Sum
			require.Equal(t, tt.want, exchanged(t, tt.op, tt.attr, tt.shape, tt.ranks))
		})
	}
}

// TestPacking holds collectives of random values, alone and in buckets, against what they must give.
func TestPacking(t *testing.T) {
	defer func(was int64) { *cuda.PackingBytes = was }(*cuda.PackingBytes)
	r := rand.New(rand.NewPCG(3, 0))
	packed := 0
	for range 150 {
		op := []ir.Op{ir.OpReduceScatter, ir.OpAllGather, ir.OpAllToAll}[r.IntN(3)]
		n, ranks := 2+r.IntN(4), 2+r.IntN(3)
		dims := r.Perm(n)
		shapeOf := func() []int {
			shape := make([]int, n)
			for i := range shape {
				shape[i] = 1 + r.IntN(7)
				if slices.Contains(dims[:2], i) {
					shape[i] += ranks - 1 // no part is empty, which no plan cuts
				}
			}
			return shape
		}
		attr := ir.CommAttr{Axis: "x", Dim: dims[0], Reduce: ir.Sum}
		if op == ir.OpAllToAll {
			attr.To = dims[1]
		}
		var more [][]int
		for range r.IntN(3) {
			more = append(more, shapeOf())
		}
		*cuda.PackingBytes = 16 + 1<<r.IntN(14)
		calls := exchanged(t, op, attr, shapeOf(), ranks, more...)
		if calls["reduce_scatter"]+calls["all_gather"] == ranks*(1+len(more)) {
			packed++
		}
	}
	require.Greater(t, packed, 5)
}
