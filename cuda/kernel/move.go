package kernel

import (
	"fmt"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// Dim is one dimension of a copy: N indexes, whose elements are From apart in the source and To
// apart in the target.
type Dim struct{ N, From, To int64 }

// merged merges dimensions (the innermost last) that continue each other. The last dimension of the
// result has contiguous elements.
func merged(dims []Dim) []Dim {
	out := []Dim{{1, 1, 1}}
	for i := len(dims) - 1; i >= 0; i-- {
		d, inner := dims[i], &out[0]
		switch {
		case d.N == 1:
		case d.From == inner.N*inner.From && d.To == inner.N*inner.To:
			inner.N *= d.N
		default:
			out = append([]Dim{d}, out...)
		}
	}
	return out
}

// Move returns the launch that copies elements of size bytes, in at most five dimensions (the innermost
// last, those that continue each other count as one), in units as wide as addresses and sizes allow. Without
// a source it clears the target.
func Move(size int64, to, from uint64, dims ...Dim) (Launch, error) {
	dims = merged(dims)
	all, bits := int64(1), int64(to|from)
	for i, d := range dims {
		all *= d.N
		if i == len(dims)-1 {
			bits |= d.N * size
		} else {
			bits |= (d.From | d.To) * size
		}
	}
	unit := min(16, bits&-bits)
	if len(dims) > 5 || all*size/unit >= 1<<32 {
		return Launch{}, fmt.Errorf("%d units in %d runs of dimensions, want less than 2^32 in at most 5", all*size/unit, len(dims))
	}
	args := []any{address(to), address(from), uint32(dims[len(dims)-1].N * size / unit)}
	for i := range 4 {
		d := Dim{N: 1}
		if at := len(dims) - 2 - i; at >= 0 {
			d = dims[at]
		}
		args = append(args, uint32(d.N), d.From*size/unit, d.To*size/unit)
	}
	name := map[int64]string{2: "move_2", 4: "move_4", 8: "move_8", 16: "move_16"}[unit]
	return launch("move.cu", name+"_f32", blocks(all*size/unit, 256), block256, 0, args...), nil
}

// move adds the launch of a copy, unless there is nothing to copy.
func (l *list) move(size int64, to, from address, dims ...Dim) error {
	for _, d := range dims {
		if d.N == 0 {
			return nil
		}
	}
	m, err := Move(size, uint64(to), uint64(from), dims...)
	if err != nil {
		return l.errorf(" of %w", err)
	}
	l.out = append(l.out, m)
	return nil
}

// expand repeats x over y.
func expand(l *list) error {
	n, m := l.Args[0].Slab.Elems(), l.Results[0].Slab.Elems()
	if n == 0 {
		return nil
	}
	return l.move(l.Results[0].DType.Size(), l.result(0), l.arg(0), Dim{m / n, 0, n}, Dim{n, 1, 1})
}

// slice copies what operand and result have in common: the rank's part of a value that it holds
// more of.
func slice(l *list) error {
	a, b, size := l.Args[0].Slab, l.Results[0].Slab, l.Args[0].DType.Size()
	dims := make([]Dim, len(a.Local))
	from, to, fa, fb := int64(0), int64(0), int64(1), int64(1)
	for d := len(dims) - 1; d >= 0; d-- {
		low := max(a.Offset[d], b.Offset[d])
		high := min(a.Offset[d]+a.Local[d], b.Offset[d]+b.Local[d])
		dims[d] = Dim{int64(max(0, high-low)), fa, fb}
		from += int64(low-a.Offset[d]) * fa
		to += int64(low-b.Offset[d]) * fb
		fa *= int64(a.Local[d])
		fb *= int64(b.Local[d])
	}
	return l.move(size, l.result(0)+address(to*size), l.arg(0)+address(from*size), dims...)
}

// fold copies the part's rows of a folded sequence from the whole sequence. unfold copies all rows
// of the folded sequence to the order of positions.
func fold(l *list) error {
	attr, s, size := l.Node.Attr.(ir.CommAttr), l.Results[0].Slab, l.Results[0].DType.Size()
	outer, inner := ir.Elems(s.Local[:attr.Dim]), ir.Elems(s.Local[attr.Dim+1:])
	from, to := int64(l.Args[0].Slab.Local[attr.Dim]), int64(s.Local[attr.Dim])
	for _, run := range ir.FoldRuns(s.Global[attr.Dim], attr.Parts, s.Offset[attr.Dim], s.Local[attr.Dim]) {
		source, target := run.Pos, run.Row-s.Offset[attr.Dim]
		if l.Node.Op == ir.OpUnfold {
			source, target = run.Row, run.Pos
		}
		err := l.move(size, l.result(0)+address(int64(target)*inner*size), l.arg(0)+address(int64(source)*inner*size),
			Dim{outer, from * inner, to * inner}, Dim{int64(run.Len) * inner, 1, 1})
		if err != nil {
			return err
		}
	}
	return nil
}

// toPartial makes a replicated value a partial sum, of which the first rank holds all and the
// others zeros.
func toPartial(l *list) error {
	all := Dim{l.Results[0].Slab.Elems(), 1, 1}
	switch size := l.Results[0].DType.Size(); {
	case l.Position > 0:
		return l.move(size, l.result(0), 0, all)
	case l.moved(0, 0):
		return l.move(size, l.result(0), l.arg(0), all)
	}
	return nil
}

// copyBetween copies a value from one space to the other. The device can read both addresses.
func copyBetween(l *list) error {
	t := l.Results[0]
	return l.move(t.DType.Size(), l.result(0), l.arg(0), Dim{t.Slab.Elems(), 1, 1})
}

// positions returns how many positions a part [B,T,...] has, rowElems how many elements one of them
// has.
func positions(t runtime.Tensor) int64 { return ir.Elems(t.Slab.Local[:2]) }
func rowElems(t runtime.Tensor) int64  { return ir.Elems(t.Slab.Local[2:]) }

// keysValues copies what follows the queries at each position.
func keysValues(l *list) error {
	all, some, size := rowElems(l.Args[0]), rowElems(l.Results[0]), l.Args[0].DType.Size()
	return l.move(size, l.result(0), l.arg(0)+address((all-some)*size), Dim{positions(l.Results[0]), all, some}, Dim{some, 1, 1})
}

func joinQKV(l *list) error {
	n, size := positions(l.Results[0]), l.Args[0].DType.Size()
	all, queries, some := rowElems(l.Results[0]), rowElems(l.Args[0]), rowElems(l.Args[1])
	if err := l.move(size, l.result(0), l.arg(0), Dim{n, queries, all}, Dim{queries, 1, 1}); err != nil {
		return err
	}
	return l.move(size, l.result(0)+address(queries*size), l.arg(1), Dim{n, some, all}, Dim{some, 1, 1})
}

// someRows copies some positions of every sequence. joinRows joins such parts.
func someRows(l *list) error {
	y := l.Results[0]
	return l.movePositions(0, int64(l.Node.Attr.(ir.RowsAttr).Part*y.Slab.Local[1]), 0, y.Slab.Local[1])
}

func joinRows(l *list) error {
	at := 0
	for i, x := range l.Args {
		if err := l.movePositions(i, 0, int64(at), x.Slab.Local[1]); err != nil {
			return err
		}
		at += x.Slab.Local[1]
	}
	return nil
}

// movePositions copies n positions of every sequence from operand i, starting at first, to the
// result, starting at at.
func (l *list) movePositions(i int, first, at int64, n int) error {
	x, y := l.Args[i], l.Results[0]
	row, size := rowElems(y), y.DType.Size()
	return l.move(size, l.result(0)+address(at*row*size), l.arg(i)+address(first*row*size),
		Dim{int64(y.Slab.Local[0]), int64(x.Slab.Local[1]) * row, int64(y.Slab.Local[1]) * row}, Dim{int64(n) * row, 1, 1})
}
