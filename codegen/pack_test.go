package codegen

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
)

// TestPack: every buffer lies at the lowest offset that is free throughout its lifetime, given the buffers
// placed before it, which are at least as large.
func TestPack(t *testing.T) {
	const seed = 7
	r := rand.New(rand.NewPCG(seed, 0))
	made := &ir.Value{Def: &ir.Node{Op: ir.OpAdd}}
	shared, tight := 0, 0
	for k := range 300 {
		var buffers []Buffer
		var ids []int
		n := 1 + r.IntN(40)
		for id := range n {
			from := r.IntN(2 * n)
			to := from + r.IntN(2*n-from)
			if r.IntN(2) == 0 {
				to = min(to, from+r.IntN(4))
			}
			size := align * int64(r.IntN(6))
			if r.IntN(3) == 0 {
				size = int64(r.IntN(40 * align))
			}
			buffers, ids = append(buffers, Buffer{Value: made, Size: size, From: from, To: to}), append(ids, id)
		}
		total := pack(buffers, ids)
		require.LessOrEqual(t, total, packedAtMost(buffers, ids), "seed %d case %d: more than the bound", seed, k)
		require.LessOrEqual(t, packedAtLeast(buffers, ids), total, "seed %d case %d: less than the bound", seed, k)
		if packedAtLeast(buffers, ids) == total {
			tight++
		}
		many, all := newOccupancy(buffers, ids), newPlaced(buffers, ids)
		for _, id := range r.Perm(n) { // the order of ids does not matter
			b := &buffers[id]
			require.Equal(t, all.place(alignUp(b.Size), b), many.place(alignUp(b.Size), b), "seed %d case %d: among many", seed, k)
		}
		meet := func(a, b *Buffer) bool { return a.From <= b.To && b.From <= a.To }
		first := func(a, b int) bool { // a is placed before b
			x, y := &buffers[a], &buffers[b]
			if x.Size != y.Size {
				return x.Size > y.Size
			}
			return x.From < y.From || x.From == y.From && a < b
		}
		var end int64
		for id := range buffers {
			b := &buffers[id]
			free := func(at int64) bool {
				for other := range buffers {
					o := &buffers[other]
					if first(other, id) && meet(o, b) && o.Offset < at+alignUp(b.Size) && at < o.Offset+alignUp(o.Size) {
						return false
					}
				}
				return true
			}
			require.True(t, free(b.Offset), "seed %d case %d: buffer %d lies on another", seed, k, id)
			if b.Offset > 0 {
				require.False(t, free(0), "seed %d case %d: buffer %d may lie at 0", seed, k, id)
			}
			for other := range buffers {
				if at := buffers[other].Offset + alignUp(buffers[other].Size); at < b.Offset {
					require.False(t, free(at), "seed %d case %d: buffer %d at %d may lie at %d", seed, k, id, b.Offset, at)
					shared++
				}
			}
			end = max(end, b.Offset+alignUp(b.Size))
		}
		require.Equal(t, end, total, "seed %d case %d", seed, k)
	}
	require.Greater(t, shared, 1000)
	require.Greater(t, tight, 100)
}
