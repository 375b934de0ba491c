package kernel

import (
	"math"
	"sync/atomic"
)

// Fixed point: an int64 n stands for n*2^-frac (fixed.go in package ir says what it is for).
// Numbers are rounded to nearest, ties to even, and added as integers, so that the order of
// additions does not matter. If a function reports an overflow, its result is meaningless.

// AddAsFixed adds x, in fixed point, to dst. It returns false if an element of x is NaN or
// infinite, if it is 2^(63-frac) or more in magnitude, or if its sum with dst's element is no int64.
func AddAsFixed(p *Pool, dst []int64, x []float32, frac int) bool {
	checkLen("AddAsFixed", "x", x, len(dst))
	p = p.orInline()
	t := &p.task.asFixed
	t.dst, t.x, t.scale = dst, x, math.Ldexp(1, frac)
	t.overflow.Store(false)
	p.run(t, len(dst), grainHeavy)
	return !t.overflow.Load()
}

type asFixedTask struct {
	dst      []int64
	x        []float32
	scale    float64
	overflow atomic.Bool
}

func (t *asFixedTask) do(w *worker, lo, hi int) {
	if !w.isa.addAsFixed(t.dst[lo:hi], t.x[lo:hi], t.scale) {
		t.overflow.Store(true)
	}
}

func addAsFixedGeneric(dst []int64, x []float32, scale float64) bool {
	x = x[:len(dst)]
	ok := true
	for i, v := range x {
		y := float64(v) * scale
		n := int64(math.RoundToEven(y))
		old := dst[i]
		sum := old + n
		// If both have one sign and the sum the other, it has wrapped.
		ok = ok && y < 1<<63 && y > -1<<63 && (old^sum)&(n^sum) >= 0
		dst[i] = sum
	}
	return ok
}

// AddFixed sets dst += src. It returns false if a sum is no int64.
func AddFixed(p *Pool, dst, src []int64) bool {
	checkLen("AddFixed", "src", src, len(dst))
	p = p.orInline()
	t := &p.task.addFixed
	t.dst, t.src = dst, src
	t.overflow.Store(false)
	p.run(t, len(dst), grainLight)
	return !t.overflow.Load()
}

type addFixedTask struct {
	dst, src []int64
	overflow atomic.Bool
}

func (t *addFixedTask) do(_ *worker, lo, hi int) {
	if !addFixed(t.dst[lo:hi], t.src[lo:hi]) {
		t.overflow.Store(true)
	}
}

func addFixed(dst, src []int64) bool {
	src = src[:len(dst)]
	var wrapped int64
	for i, n := range src {
		old := dst[i]
		sum := old + n
		wrapped |= (old ^ sum) & (n ^ sum)
		dst[i] = sum
	}
	return wrapped >= 0
}

// FromFixed sets y to the float32 nearest to x. y may lie over the first half of x's memory.
func FromFixed(y []float32, x []int64, frac int) {
	checkLen("FromFixed", "x", x, len(y))
	scale := float32(math.Ldexp(1, -frac)) // a power of two: nothing is rounded twice
	for i, n := range x {
		y[i] = float32(n) * scale
	}
}

// FixedSquares returns the sum of the squares of x in two parts, multiples of 2^-frac and of
// 2^-2frac. ok is false if a square or the sum is 2^(63-frac) or more.
func FixedSquares(p *Pool, x []float32, frac int) (coarse, fine int64, ok bool) {
	p = p.orInline()
	chunks := (len(x) + sumChunk - 1) / sumChunk
	p.squares = grow(p.squares, chunks)
	p.task.fixedSquares = fixedSquaresTask{x: x, sums: p.squares, scale: math.Ldexp(1, frac)}
	p.run(&p.task.fixedSquares, chunks, 4)
	ok = true
	for _, s := range p.squares {
		sum := coarse + s.coarse
		ok = ok && s.ok && sum >= 0 // the terms are not negative, so a negative sum has wrapped
		coarse = sum
		fine += s.fine // at most half of 2^-frac each: 2^32 elements do not reach 2^63
	}
	return coarse, fine, ok
}

// squareSum is the sum of the squares of one chunk.
type squareSum struct {
	coarse, fine int64
	ok           bool
}

type fixedSquaresTask struct {
	x     []float32
	sums  []squareSum
	scale float64
}

func (t *fixedSquaresTask) do(w *worker, lo, hi int) {
	for i := lo; i < hi; i++ {
		t.sums[i] = w.isa.fixedSquares(t.x[i*sumChunk:min((i+1)*sumChunk, len(t.x))], t.scale)
	}
}

func fixedSquaresGeneric(x []float32, scale float64) squareSum {
	s := squareSum{ok: true}
	for _, v := range x {
		y := float64(v) * float64(v) * scale // exact: 48 bits
		whole := math.RoundToEven(y)
		s.coarse += int64(whole)
		s.fine += int64(math.RoundToEven((y - whole) * scale))
		s.ok = s.ok && y < 1<<63 && s.coarse >= 0
	}
	return s
}
