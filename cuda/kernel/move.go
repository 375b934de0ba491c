package kernel

import (
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// dim is one dimension of a copy: n indexes, whose elements are from apart in the source and to
// apart in the target.
type dim struct{ n, from, to int64 }

// merged merges dimensions (the innermost last) that continue each other. The last dimension of the
// result has contiguous elements.
func merged(dims []dim) []dim {
	out := []dim{{1, 1, 1}}
	for i := len(dims) - 1; i >= 0; i-- {
		d, inner := dims[i], &out[0]
		switch {
		case d.n == 1:
		case d.from == inner.n*inner.from && d.to == inner.n*inner.to:
			inner.n *= d.n
		default:
			out = append([]dim{d}, out...)
		}
	}
	return out
}

// move launches a copy of elements of size bytes, in units as wide as addresses and sizes allow.
// Without a source it clears the target.
func (l *list) move(size int64, to, from address, dims ...dim) error {
	dims = merged(dims)
	all, bits := int64(1), int64(to|from)
	for i, d := range dims {
		all *= d.n
		if i == len(dims)-1 {
			bits |= d.n * size
		} else {
			bits |= (d.from | d.to) * size
		}
	}
	unit := min(16, bits&-bits)
	if all == 0 {
		return nil
	}
	if len(dims) > 5 || all*size/unit >= 1<<32 {
		return l.errorf(" of %d units in %d runs of dimensions, want less than 2^32 in at most 5", all*size/unit, len(dims))
	}
	args := []any{to, from, uint32(dims[len(dims)-1].n * size / unit)}
	for i := range 4 {
		d := dim{n: 1}
		if at := len(dims) - 2 - i; at >= 0 {
			d = dims[at]
		}
		args = append(args, uint32(d.n), d.from*size/unit, d.to*size/unit)
	}
	name := map[int64]string{2: "move_2", 4: "move_4", 8: "move_8", 16: "move_16"}[unit]
	l.run("move.cu", name, ir.F32, blocks(all*size/unit, 256), block256, 0, args...)
	return nil
}

// expand repeats x over y.
func expand(l *list) error {
	n, m := l.Args[0].Slab.Elems(), l.Results[0].Slab.Elems()
	if n == 0 {
		return nil
	}
	return l.move(l.Results[0].DType.Size(), l.result(0), l.arg(0), dim{m / n, 0, n}, dim{n, 1, 1})
}

// slice copies what operand and result have in common: the rank's part of a value that it holds
// more of.
func slice(l *list) error {
	a, b, size := l.Args[0].Slab, l.Results[0].Slab, l.Args[0].DType.Size()
	dims := make([]dim, len(a.Local))
	from, to, fa, fb := int64(0), int64(0), int64(1), int64(1)
	for d := len(dims) - 1; d >= 0; d-- {
		low := max(a.Offset[d], b.Offset[d])
		high := min(a.Offset[d]+a.Local[d], b.Offset[d]+b.Local[d])
		dims[d] = dim{int64(max(0, high-low)), fa, fb}
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
			dim{outer, from * inner, to * inner}, dim{int64(run.Len) * inner, 1, 1})
		if err != nil {
			return err
		}
	}
	return nil
}

// toPartial makes a replicated value a partial sum, of which the first rank holds all and the
// others zeros.
func toPartial(l *list) error {
	all := dim{l.Results[0].Slab.Elems(), 1, 1}
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
	return l.move(t.DType.Size(), l.result(0), l.arg(0), dim{t.Slab.Elems(), 1, 1})
}

// positions returns how many positions a part [B,T,...] has, rowElems how many elements one of them
// has.
func positions(t runtime.Tensor) int64 { return ir.Elems(t.Slab.Local[:2]) }
func rowElems(t runtime.Tensor) int64  { return ir.Elems(t.Slab.Local[2:]) }

// keysValues copies what follows the queries at each position.
func keysValues(l *list) error {
	all, some, size := rowElems(l.Args[0]), rowElems(l.Results[0]), l.Args[0].DType.Size()
	return l.move(size, l.result(0), l.arg(0)+address((all-some)*size), dim{positions(l.Results[0]), all, some}, dim{some, 1, 1})
}

func joinQKV(l *list) error {
	n, size := positions(l.Results[0]), l.Args[0].DType.Size()
	all, queries, some := rowElems(l.Results[0]), rowElems(l.Args[0]), rowElems(l.Args[1])
	if err := l.move(size, l.result(0), l.arg(0), dim{n, queries, all}, dim{queries, 1, 1}); err != nil {
		return err
	}
	return l.move(size, l.result(0)+address(queries*size), l.arg(1), dim{n, some, all}, dim{some, 1, 1})
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
		dim{int64(y.Slab.Local[0]), int64(x.Slab.Local[1]) * row, int64(y.Slab.Local[1]) * row}, dim{int64(n) * row, 1, 1})
}
