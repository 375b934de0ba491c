package kernel

import (
	"math"

	"github.com/autopar/autopar/ir"
)

// Fixed point, as in package ir: each sequence's term is summed in f32 and then added as an
// integer. A sum that overflows becomes NaN when it is converted to a number.

// addAsFixed returns the launch that adds elems terms in f32 to a fixed-point sum with frac
// fraction bits, or sets the sum to them. A matmul with a fixed-point result does so with the
// product of each sequence.
func addAsFixed(sum, term uint64, elems int64, frac int, add bool) Launch {
	accum := int32(0)
	if add {
		accum = 1
	}
	return launch("fixed.cu", "add_as_fixed_f32", blocks(elems, 256), block256, 0, address(sum), address(term), elems, math.Ldexp(1, frac), accum)
}

// Exceeds returns the launch that sets the 8-byte integer at flag to 1 if any of elems fixed-point
// numbers at x has a magnitude above limit, or is the value that stands for overflow.
func Exceeds(flag, x uint64, elems, limit int64) Launch {
	return launch("fixed.cu", "exceeds_f32", blocks(elems, 256), block256, 0, address(flag), address(x), elems, limit)
}

// Void returns the launch that sets elems fixed-point numbers at x to the value that stands for
// overflow, unless the integer at flag is 0.
func Void(flag, x uint64, elems int64) Launch {
	return launch("fixed.cu", "void_fixed_f32", blocks(elems, 256), block256, 0, address(flag), address(x), elems)
}

// asFixed adds the term of sequence s to result i. The first sequence sets it, unless the kernel
// accumulates.
func (l *list) asFixed(i int, term address, s int) {
	if n := l.Results[i].Slab.Elems(); n > 0 {
		l.out = append(l.out, addAsFixed(uint64(l.result(i)), uint64(term), n, ir.Frac(l.Node.Attr), s > 0 || l.Accum[i]))
	}
}

// eachSequence calls do for every sequence of the first operand, with its range of rows over the
// leading dimensions up to end. If there are no sequences, it clears fixed-point results that do
// not accumulate.
func (l *list) eachSequence(end int, do func(s int, first, rows int64)) error {
	local := l.Args[0].Slab.Local
	rows := ir.Elems(local[1:end])
	for s := range local[0] {
		used := l.used
		do(s, int64(s)*rows, rows)
		if s+1 < local[0] {
			l.used = used // the next sequence uses the same scratch memory
		}
	}
	for i, r := range l.Results {
		if local[0] == 0 && r.DType == ir.Q64 && !l.Accum[i] {
			if err := l.move(8, l.result(i), 0, Dim{r.Slab.Elems(), 0, 1}); err != nil {
				return err
			}
		}
	}
	return nil
}

func sumToFixed(l *list) error {
	d, err := l.elem(l.Args[0])
	if err != nil {
		return err
	}
	keep := l.Node.Attr.(ir.SumToAttr).Keep
	_, n := split(l.Args[0], keep)
	return l.eachSequence(len(l.Args[0].Slab.Local)-keep, func(s int, first, rows int64) {
		chunk, parts, grid := columnParts(d, rows, n)
		part, term := l.temp(4*parts*n), l.temp(4*n)
		l.run("sum.cu", "columns_part", d, grid, block128, 0, part, l.arg(0)+address(first*n*d.Size()), rows, n, chunk)
		l.columnsTo(ir.F32, term, part, parts, n, n, 0)
		l.asFixed(0, term, s)
	})
}

// normGradFixed sums the gradients of weight and bias. some launches the gradient for m rows from
// row first on and returns partial sums [parts,2,n].
func (l *list) normGradFixed(some func(first, m int64) (part address, parts int64)) error {
	_, n := rows(l.Args[0])
	return l.eachSequence(len(l.Args[0].Slab.Local)-1, func(s int, first, m int64) {
		part, parts := some(first, m)
		term := l.temp(4 * n)
		for i := 1; i < len(l.Results); i++ {
			l.columnsTo(ir.F32, term, part+address(4*int64(i-1)*n), parts, n, 2*n, 0)
			l.asFixed(i, term, s)
		}
	})
}

func embeddingGradFixed(l *list) error {
	table := l.Results[0]
	d, err := l.elem(l.Args[1])
	if err != nil {
		return err
	}
	local, cols := int64(table.Slab.Local[0]), int64(table.Slab.Local[1])
	grid := blocks(local, 1)
	grid[1] = blocks(cols, 256)[0]
	l.run("fixed.cu", "embedding_grad_fixed", d, grid, block256, 0, l.result(0), l.arg(1), l.arg(0), l.Args[0].Slab.Elems(), cols,
		int32(table.Slab.Offset[0]), math.Ldexp(1, ir.Frac(l.Node.Attr)), l.accum(0))
	return nil
}

// fromFixed converts fixed point to floating point, as cast does if in place.
func fromFixed(l *list) error {
	d, err := l.elem(l.Results[0])
	if err != nil {
		return err
	}
	convert := func(y, x address, n int64) {
		l.run("fixed.cu", "from_fixed", d, blocks(n, 256), block256, 0, y, x, n, math.Ldexp(1, -l.Node.Attr.(ir.FixedAttr).Frac))
	}
	n, y := l.Results[0].Slab.Elems(), l.result(0)
	if l.moved(0, 0) {
		convert(y, l.arg(0), n)
		return nil
	}
	l.inPlace(ir.Q64.Size(), d.Size(), y, n, scratchMost, convert, func(y, x address, n int64) {
		if failed := l.move(d.Size(), y, x, Dim{n, 1, 1}); err == nil {
			err = failed
		}
	})
	return err
}

func fixedSquares(l *list) error {
	d, err := l.elem(l.Args[0])
	if err != nil {
		return err
	}
	n := l.Args[0].Slab.Elems()
	grid := blocks(n, 16*256)
	grid[0] = min(grid[0], 1024)
	part := l.temp(16 * int64(grid[0]))
	l.run("fixed.cu", "fixed_squares", d, grid, block256, 0, part, l.arg(0), n, math.Ldexp(1, ir.SquareFrac))
	l.run("fixed.cu", "fixed_squares_last", ir.F32, [3]uint32{1, 1, 1}, block256, 0, l.result(0), part, int32(grid[0]))
	return nil
}

func fixedRoot(l *list) error {
	one := [3]uint32{1, 1, 1}
	l.run("fixed.cu", "fixed_root", ir.F32, one, one, 0, l.result(0), l.arg(0), math.Ldexp(1, -ir.SquareFrac))
	return nil
}

// addFixed adds a term to result 0, or sets the result to it.
func (l *list) addFixed(term address, add bool) error {
	n, y := l.Results[0].Slab.Elems(), l.result(0)
	switch {
	case add:
		l.run("fixed.cu", "add_fixed", ir.F32, blocks(n, 256), block256, 0, y, y, term, n)
	case y != term:
		return l.move(8, y, term, Dim{n, 1, 1})
	}
	return nil
}

// addNFixed is addN of fixed-point values.
func addNFixed(l *list) error {
	for i := range l.Args {
		if err := l.addFixed(l.arg(i), i > 0); err != nil {
			return err
		}
	}
	return nil
}
