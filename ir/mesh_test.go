package ir_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/irtest"
)

func TestCutIsUneven(t *testing.T) {
	spans := func(a ir.Axis, size int) (out []ir.Span) {
		for i := range a.Size {
			out = append(out, a.Cut(size, i))
		}
		return out
	}
	require.Equal(t, []ir.Span{{0, 17}, {17, 16}, {33, 16}, {49, 16}}, spans(ir.Axis{Size: 4}, 65))
	require.Equal(t, []ir.Span{{0, 2}, {2, 1}}, spans(ir.Axis{Size: 2}, 3))
	require.Equal(t, []ir.Span{{0, 1}, {1, 1}, {2, 0}, {2, 0}}, spans(ir.Axis{Size: 4}, 2))
	require.Equal(t, []ir.Span{{0, 3}, {3, 3}, {6, 1}}, spans(ir.Axis{Size: 3, Chunk: 3}, 7))
	require.Equal(t, []ir.Span{{0, 3}, {3, 0}}, spans(ir.Axis{Size: 2, Chunk: 3}, 3))
	require.Equal(t, []ir.Span{{0, 4}, {4, 2}, {6, 1}}, spans(ir.Axis{Size: 3, Shares: []int{4, 2, 1}}, 7))
	require.Equal(t, []ir.Span{{0, 7}, {7, 4}, {11, 1}}, spans(ir.Axis{Size: 3, Shares: []int{4, 2, 1}}, 12)) // 6.9, 3.4 and 1.7: 2 are left
	require.Equal(t, []ir.Span{{0, 17}, {17, 16}, {33, 16}, {49, 16}}, spans(ir.Axis{Size: 4, Shares: []int{3, 3, 3, 3}}, 65))
	require.Equal(t, []ir.Span{{0, 1}, {1, 1}, {2, 0}, {2, 0}}, spans(ir.Axis{Size: 4, Shares: []int{3, 2, 2, 1}}, 2))
}

// randomMesh may have chunked axes, of which there are then enough pieces, and axes with shares.
func randomMesh(rng *rand.Rand) ir.Mesh {
	var m ir.Mesh
	for a := range 1 + rng.IntN(ir.MaxAxes) {
		axis := ir.Axis{Name: string(rune('a' + a)), Size: 1 + rng.IntN(4)}
		switch kind := rng.IntN(4); {
		case kind == 0:
			axis.Chunk, axis.Size, axis.Time = 2, 4, true
		case kind == 1 && axis.Size > 1:
			for share := 9; len(axis.Shares) < axis.Size; share -= rng.IntN(3) {
				axis.Shares = append(axis.Shares, share)
			}
		}
		m.Axes = append(m.Axes, axis)
	}
	return m
}

// TestLocalTiles: the slabs of all coordinates that differ on a sharding axis
// cover every element exactly once, whatever sizes and axes share a dimension.
func TestLocalTiles(t *testing.T) {
	for seed := range uint64(200) {
		rng := irtest.Rand(t, seed)
		m := randomMesh(rng)
		shape := make([]int, 1+rng.IntN(3))
		for i := range shape {
			shape[i] = 1 + rng.IntN(8)
		}
		var spec ir.ShardSpec
		for a := range m.Axes {
			if d := rng.IntN(len(shape)+1) - 1; d >= 0 {
				spec[a] = ir.ShardOn(d)
			}
		}
		count := make([]int, ir.Elems(shape))
		coords(m, spec, func(c ir.Coord) {
			slab := m.Local(shape, spec, c)
			require.Equal(t, shape, slab.Global)
			for local := range int(slab.Elems()) {
				count[slab.GlobalIndex(local)]++
			}
		})
		for i, n := range count {
			require.Equal(t, 1, n, "element %d of %v, placed %s on %s", i, shape, spec.Format(m, len(shape)), m)
		}
	}
}

// coords visits the positions on the axes that shard, the others at 0.
func coords(m ir.Mesh, spec ir.ShardSpec, visit func(ir.Coord)) {
	var walk func(a int, c ir.Coord)
	walk = func(a int, c ir.Coord) {
		if a == len(m.Axes) {
			visit(c)
			return
		}
		n := 1
		if spec[a].Kind == ir.Shard {
			n = m.Axes[a].Size
		}
		for i := range n {
			c[a] = i
			walk(a+1, c)
		}
	}
	walk(0, ir.Coord{})
}

func TestDevices(t *testing.T) {
	for seed := range uint64(50) {
		m := randomMesh(irtest.Rand(t, seed))
		for d := range m.Devices() {
			c := m.Coord(d)
			require.Equal(t, d, m.Device(c))
			for a, axis := range m.Axes {
				if !axis.Time {
					group := m.Group(c, a)
					require.Len(t, group, axis.Size)
					require.Equal(t, d, group[c[a]])
				}
			}
		}
	}
	m := ir.Mesh{Axes: []ir.Axis{{Name: "dp", Size: 2}, {Name: "mb", Size: 3, Chunk: 2, Time: true}, {Name: "tp", Size: 4}}}
	require.Equal(t, "mesh(dp=2, mb=3/2t, tp=4)", m.String())
	require.Equal(t, 8, m.Devices())
	require.Equal(t, []int{4, 5, 6, 7}, m.Group(m.Coord(6), 2))
	require.Equal(t, []int{2, 6}, m.Group(m.Coord(6), 0))
	require.Equal(t, []int{3, 1}, []int{m.Size("mb"), m.Size("pp")})
}

func TestSpecFormat(t *testing.T) {
	m := ir.Mesh{Axes: []ir.Axis{{Name: "dp", Size: 2}, {Name: "tp", Size: 4}, {Name: "mb", Size: 2, Chunk: 3, Time: true}}}
	sum, tpMax, s0, s2 := ir.PartialOf(ir.Sum), ir.PartialOf(ir.Max), ir.ShardOn(0), ir.ShardOn(2)
	for text, spec := range map[string]ir.ShardSpec{
		"[_,_,_]":             {},
		"[dp,_,tp]":           {s0, s2},
		"[dp.mb,_,_]+{tp}":    {s0, sum, s0},
		"[_,_,_]+{dp,tp:max}": {sum, tpMax},
		"[_,_,dp.tp.mb]":      {s2, s2, s2},
		"[mb,_,dp]+{tp:max}":  {s2, tpMax, s0},
	} {
		require.Equal(t, text, spec.Format(m, 3))
		back, rank, err := ir.ParseSpec(m, text)
		require.NoError(t, err)
		require.Equal(t, spec, back, text)
		require.Equal(t, 3, rank)
	}
	for text, want := range map[string]string{
		"dp":            "want [dim,dim,...]",
		"[dp":           "want [dim,dim,...]",
		"[pp]":          `no axis "pp" in mesh(dp=2, tp=4, mb=2/3t)`,
		"[dp,dp]":       `axis "dp" is used twice`,
		"[tp.dp]":       "axes of dimension 0 are not in mesh order",
		"[_]+{}":        "want +{axis,...} after the dimensions",
		"[_]+dp":        "want +{axis,...} after the dimensions",
		"[dp]+{dp}":     `axis "dp" is used twice`,
		"[_]+{dp:prod}": `no axis "dp:prod" in mesh(dp=2, tp=4, mb=2/3t)`,
		"[,]":           `no axis "" in mesh(dp=2, tp=4, mb=2/3t)`,
	} {
		_, _, err := ir.ParseSpec(m, text)
		require.EqualError(t, err, fmt.Sprintf("ir: spec %q: %s", text, want))
	}
}

// TestSpecRoundTrip formats and parses random specs on random meshes.
func TestSpecRoundTrip(t *testing.T) {
	for seed := range uint64(200) {
		rng := irtest.Rand(t, seed)
		m, rank := randomMesh(rng), rng.IntN(4)
		var spec ir.ShardSpec
		for a := range m.Axes {
			switch d := rng.IntN(rank+3) - 3; {
			case d >= 0:
				spec[a] = ir.ShardOn(d)
			case d == -2:
				spec[a] = ir.PartialOf(ir.Sum)
			case d == -3:
				spec[a] = ir.PartialOf(ir.Max)
			}
		}
		back, gotRank, err := ir.ParseSpec(m, spec.Format(m, rank))
		require.NoError(t, err)
		require.Equal(t, spec, back)
		require.Equal(t, rank, gotRank)
	}
}
