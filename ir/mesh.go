package ir

import (
	"fmt"
	"slices"
	"strings"
)

// MaxAxes is the largest number of axes of a mesh. It makes ShardSpec a comparable array.
const MaxAxes = 5

// Axis is one named axis of a mesh.
type Axis struct {
	Name string
	Size int
	// Chunk, if not zero, cuts a dimension into pieces of Chunk elements, of which the last may be smaller,
	// instead of into Size nearly equal pieces. Micro-batches are cut this way.
	Chunk int
	// Shares, if not nil, are the relative sizes of the Size pieces, which do not increase. Without them all are
	// nearly equal.
	Shares []int
	// Time marks an axis whose positions one device visits one after another (micro-batches), instead of
	// different devices holding them.
	Time bool
}

// Mesh is the grid of devices of one pipeline stage, over which values are placed. Devices are numbered
// row-major: the last device axis varies fastest.
type Mesh struct{ Axes []Axis }

// Axis returns the index of the named axis, or -1.
func (m Mesh) Axis(name string) int {
	for i, a := range m.Axes {
		if a.Name == name {
			return i
		}
	}
	return -1
}

// Size returns the size of the named axis, 1 when the mesh lacks it.
func (m Mesh) Size(name string) int {
	if i := m.Axis(name); i >= 0 {
		return m.Axes[i].Size
	}
	return 1
}

// Devices returns the number of devices: the product of all axes but time.
func (m Mesh) Devices() int {
	n := 1
	for _, a := range m.Axes {
		if !a.Time {
			n *= a.Size
		}
	}
	return n
}

// Coord is a position on every axis of a mesh (time axes included).
type Coord [MaxAxes]int

// Coord returns the position of a device; time axes are at 0.
func (m Mesh) Coord(device int) Coord {
	var c Coord
	for i := len(m.Axes) - 1; i >= 0; i-- {
		if m.Axes[i].Time {
			continue
		}
		c[i] = device % m.Axes[i].Size
		device /= m.Axes[i].Size
	}
	return c
}

// Device is the inverse of [Mesh.Coord].
func (m Mesh) Device(c Coord) int {
	d := 0
	for i, a := range m.Axes {
		if !a.Time {
			d = d*a.Size + c[i]
		}
	}
	return d
}

// Group returns the devices that differ from c only along the given axis, in
// axis order.
func (m Mesh) Group(c Coord, axis int) []int {
	g := make([]int, m.Axes[axis].Size)
	for i := range g {
		c[axis] = i
		g[i] = m.Device(c)
	}
	return g
}

func (m Mesh) String() string {
	parts := make([]string, len(m.Axes))
	for i, a := range m.Axes {
		parts[i] = fmt.Sprintf("%s=%d", a.Name, a.Size)
		if a.Shares != nil {
			parts[i] = a.Name + "=" + SharesText(a.Shares)
		}
		if a.Chunk > 0 {
			parts[i] += fmt.Sprintf("/%d", a.Chunk)
		}
		if a.Time {
			parts[i] += "t"
		}
	}
	return "mesh(" + strings.Join(parts, ", ") + ")"
}

// PlacementKind says how one mesh axis divides a value.
type PlacementKind uint8

// The placements.
const (
	Replicate PlacementKind = iota // every position holds the same elements
	Shard                          // each position holds a slice of dimension Dim
	Partial                        // each position holds a term of a reduction
)

// Reduction is the operation that combines the terms of a Partial value.
type Reduction uint8

// The reductions.
const (
	Sum Reduction = iota
	Max
)

func (r Reduction) String() string {
	if r == Max {
		return "max"
	}
	return "sum"
}

// Placement says how one mesh axis divides one value.
type Placement struct {
	Kind   PlacementKind
	Dim    int8      // the sharded dimension, for Shard
	Reduce Reduction // for Partial
}

// ShardOn returns the placement that shards dimension dim.
func ShardOn(dim int) Placement { return Placement{Kind: Shard, Dim: int8(dim)} }

// PartialOf returns the placement of a value still to be reduced by r.
func PartialOf(r Reduction) Placement { return Placement{Kind: Partial, Reduce: r} }

func (p Placement) String() string {
	switch p.Kind {
	case Shard:
		return fmt.Sprintf("S(%d)", p.Dim)
	case Partial:
		return "P(" + p.Reduce.String() + ")"
	}
	return "R"
}

// ShardSpec holds one Placement per mesh axis. The zero value replicates. It is
// comparable, so it keys maps.
type ShardSpec [MaxAxes]Placement

// HasPartial reports whether any axis is Partial.
func (s ShardSpec) HasPartial() bool {
	for _, p := range s {
		if p.Kind == Partial {
			return true
		}
	}
	return false
}

// Shards reports whether any axis shards dimension dim.
func (s ShardSpec) Shards(dim int) bool { return slices.Contains(s[:], ShardOn(dim)) }

// ShardAxes returns, major first, the axes that shard dimension dim.
func (s ShardSpec) ShardAxes(dim int) []int {
	var axes []int
	for a, p := range s {
		if p.Kind == Shard && int(p.Dim) == dim {
			axes = append(axes, a)
		}
	}
	return axes
}

// Format prints a spec for a value of the given rank: one entry per dimension
// with the axes that shard it joined by '.', then the partial axes, as in
// [dp,_,tp] or [dp,_,_]+{tp}; a max reduction prints as +{tp:max}.
func (s ShardSpec) Format(m Mesh, rank int) string {
	dims := make([]string, rank)
	for d := range dims {
		var names []string
		for _, a := range s.ShardAxes(d) {
			names = append(names, m.Axes[a].Name)
		}
		if len(names) == 0 {
			dims[d] = "_"
		} else {
			dims[d] = strings.Join(names, ".")
		}
	}
	out := "[" + strings.Join(dims, ",") + "]"
	var partial []string
	for a, p := range s {
		if p.Kind == Partial {
			name := m.Axes[a].Name
			if p.Reduce == Max {
				name += ":max"
			}
			partial = append(partial, name)
		}
	}
	if len(partial) > 0 {
		out += "+{" + strings.Join(partial, ",") + "}"
	}
	return out
}

// ParseSpec is the inverse of [ShardSpec.Format]; it returns the rank too.
func ParseSpec(m Mesh, text string) (ShardSpec, int, error) {
	var s ShardSpec
	fail := func(format string, args ...any) (ShardSpec, int, error) {
		return ShardSpec{}, 0, fmt.Errorf("ir: spec %q: %s", text, fmt.Sprintf(format, args...))
	}
	body, rest, ok := strings.Cut(strings.TrimPrefix(text, "["), "]")
	if !strings.HasPrefix(text, "[") || !ok {
		return fail("want [dim,dim,...]")
	}
	place := func(name string, p Placement) error {
		a := m.Axis(name)
		if a < 0 {
			return fmt.Errorf("no axis %q in %s", name, m)
		}
		if s[a] != (Placement{}) {
			return fmt.Errorf("axis %q is used twice", name)
		}
		s[a] = p
		return nil
	}
	rank := 0
	if body != "" {
		for d, entry := range strings.Split(body, ",") {
			rank++
			if entry == "_" {
				continue
			}
			last := -1
			for _, name := range strings.Split(entry, ".") {
				if err := place(name, ShardOn(d)); err != nil {
					return fail("%v", err)
				}
				if m.Axis(name) < last {
					return fail("axes of dimension %d are not in mesh order", d)
				}
				last = m.Axis(name)
			}
		}
	}
	if rest != "" {
		inner, found := strings.CutPrefix(rest, "+{")
		inner, closed := strings.CutSuffix(inner, "}")
		if !found || !closed || inner == "" {
			return fail("want +{axis,...} after the dimensions")
		}
		for _, name := range strings.Split(inner, ",") {
			p := PartialOf(Sum)
			if n, isMax := strings.CutSuffix(name, ":max"); isMax {
				name, p = n, PartialOf(Max)
			}
			if err := place(name, p); err != nil {
				return fail("%v", err)
			}
		}
	}
	return s, rank, nil
}

// SharesText prints the shares of an axis: 3:3:2.
func SharesText(shares []int) string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(shares), " ", ":"), "[]")
}

// Span is a half-open range of one dimension.
type Span struct{ Off, Len int }

// Cut returns part i of size elements cut along the axis, of which none is larger than the one before. Nearly
// equal parts differ by at most one element; parts past the end are empty. With shares each part is rounded
// down, and what is left is given to the first parts, an element each.
func (a Axis) Cut(size, i int) Span {
	switch {
	case a.Chunk > 0:
		off := min(i*a.Chunk, size)
		return Span{off, min(a.Chunk, size-off)}
	case a.Shares != nil:
		return a.cutShares(size, i)
	}
	q, r := size/a.Size, size%a.Size
	return Span{i*q + min(i, r), q + b2i(i < r)}
}

func (a Axis) cutShares(size, i int) Span {
	sum, left := 0, size
	for _, share := range a.Shares {
		sum += share
	}
	for _, share := range a.Shares {
		left -= size * share / sum
	}
	off := min(i, left)
	for _, share := range a.Shares[:i] {
		off += size * share / sum
	}
	return Span{off, size*a.Shares[i]/sum + b2i(i < left)}
}

// Slab is the part of a global value that one position of the mesh holds.
type Slab struct{ Global, Offset, Local []int }

// Elems returns the number of local elements.
func (s Slab) Elems() int64 { return Elems(s.Local) }

// GlobalIndex returns the row-major index in the whole of local element i.
func (s Slab) GlobalIndex(i int) int64 {
	at, stride := int64(0), int64(1)
	for d := len(s.Local) - 1; d >= 0; d-- {
		at += int64(s.Offset[d]+i%s.Local[d]) * stride
		stride *= int64(s.Global[d])
		i /= s.Local[d]
	}
	return at
}

// Whole returns the slab that is all of a shape.
func Whole(shape []int) Slab {
	return Slab{Global: shape, Offset: make([]int, len(shape)), Local: shape}
}

// Local returns the slab of a value of the given global shape and spec at c.
// A dimension sharded by several axes is cut by them in mesh order, the first
// being the coarsest.
func (m Mesh) Local(shape []int, s ShardSpec, c Coord) Slab {
	return m.LocalIn(make([]int, 2*len(shape)), shape, s, c)
}

// LocalIn is [Mesh.Local] without allocation: the slab uses room, which has two numbers for each dimension.
func (m Mesh) LocalIn(room, shape []int, s ShardSpec, c Coord) Slab {
	slab := Slab{Global: shape, Offset: room[:len(shape):len(shape)], Local: room[len(shape):]}
	clear(slab.Offset)
	copy(slab.Local, shape)
	for a, p := range s {
		if p.Kind != Shard {
			continue
		}
		cut := m.Axes[a].Cut(slab.Local[p.Dim], c[a])
		slab.Offset[p.Dim] += cut.Off
		slab.Local[p.Dim] = cut.Len
	}
	return slab
}

// LocalShape appends the sizes of [Mesh.Local] to dims.
func (m Mesh) LocalShape(dims, shape []int, s ShardSpec, c Coord) []int {
	from := len(dims)
	dims = append(dims, shape...)
	for a, p := range s {
		if p.Kind == Shard {
			d := &dims[from+int(p.Dim)]
			*d = m.Axes[a].Cut(*d, c[a]).Len
		}
	}
	return dims
}

// LocalElems returns the number of elements of [Mesh.Local].
func (m Mesh) LocalElems(shape []int, s ShardSpec, c Coord) int64 {
	n := Elems(shape)
	for a, p := range s {
		if p.Kind != Shard {
			continue
		}
		// n counts elements after all axes before a; before is what those leave of the dimension.
		before := shape[p.Dim]
		for outer := range a {
			if s[outer].Kind == Shard && s[outer].Dim == p.Dim {
				before = m.Axes[outer].Cut(before, c[outer]).Len
			}
		}
		if before == 0 {
			return 0
		}
		n = n / int64(before) * int64(m.Axes[a].Cut(before, c[a]).Len)
	}
	return n
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
