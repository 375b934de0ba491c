package kernel

import (
	"fmt"

	"github.com/autopar/autopar/ir/philox"
)

// MaskKey identifies a dropout mask: the seed, the op's key and the training step. See package
// philox.
type MaskKey = philox.Key

// Slab says which part of a global tensor a dense local tensor is: sizes of the global tensor, and
// offset and size of the part, one entry per dimension. The zero value, with no dimensions, means
// the whole tensor.
type Slab struct {
	Global, Offset, Local []int
}

// maxRank is the largest number of dimensions of a Slab.
const maxRank = 6

// dropoutStep is the granularity of isa.dropoutFactors.
const dropoutStep = 32

// dropoutPiece is how many elements have their factors made at a time, so that these stay in the
// first-level cache.
const dropoutPiece = 1024

// Dropout sets y = x/(1-p0) where the mask keeps an element and 0 elsewhere; p0 is the probability
// of dropping one. The mask is a function of key and of the element's row-major index in the global
// tensor, so any cut of the tensor gives the same values. y may be x. Applied to the gradient of y
// with the same key, it gives the gradient of x.
func Dropout(p *Pool, y, x []float32, p0 float64, key MaskKey, slab Slab) {
	checkLen("Dropout", "x", x, len(y))
	p = p.orInline()
	t := &p.task.dropout
	*t = dropoutTask{y: y, x: x, mask: newMask(p0, key)}
	t.locate(slab)
	if t.mask.threshold > 1<<32-1 {
		clear(y) // p0 = 1
		return
	}
	p.run(t, len(y), grainHeavy)
}

// mask is a dropout mask ready for use.
type mask struct {
	key       MaskKey
	threshold uint64 // elements whose bits are below are dropped
	scale     float32
}

func newMask(p float64, key MaskKey) mask {
	return mask{key: key, threshold: philox.Threshold(p), scale: float32(1 / (1 - p))}
}

// factors returns n factors, 0 or scale, for elements start, start+1, ... of the global tensor. buf
// has room for maskRoom(n).
func (m *mask) factors(set *isa, buf []float32, start uint64, n int) []float32 {
	skip := int(start & 3)
	set.dropoutFactors(buf[:(skip+n+dropoutStep-1)&^(dropoutStep-1)], start>>2, &m.key, uint32(m.threshold), m.scale)
	return buf[skip : skip+n]
}

func maskRoom(n int) int { return n + 3 + dropoutStep }

type dropoutTask struct {
	y, x []float32
	mask mask

	// The slab as runs of contiguous global elements. A run has sizes[rank] elements. There are
	// sizes[:rank] runs, strides[d] apart in the global tensor, and the first begins at base.
	rank    int
	sizes   [maxRank]int
	strides [maxRank]uint64
	base    uint64
	run     int
}

// locate sets these fields. It merges dimensions that are whole with the one before.
func (t *dropoutTask) locate(s Slab) {
	rank, n := len(s.Global), 1
	if len(s.Offset) != rank || len(s.Local) != rank || rank > maxRank {
		panic(fmt.Sprintf("BUG: kernel.Dropout: slab has ranks %d, %d, %d, want equal and at most %d",
			rank, len(s.Offset), len(s.Local), maxRank))
	}
	for d := range rank {
		if s.Offset[d] < 0 || s.Local[d] < 0 || s.Offset[d]+s.Local[d] > s.Global[d] {
			panic(fmt.Sprintf("BUG: kernel.Dropout: dimension %d: part [%d, %d) of %d", d, s.Offset[d], s.Offset[d]+s.Local[d], s.Global[d]))
		}
		n *= s.Local[d]
	}
	if rank == 0 {
		t.run = len(t.y)
		return
	}
	checkLen("Dropout", "y", t.y, n)

	stride := uint64(1)
	inner := rank - 1 // the outermost dimension of a contiguous run
	for ; inner > 0 && s.Local[inner] == s.Global[inner]; inner-- {
	}
	t.run = 1
	t.rank = inner
	for d := rank - 1; d >= 0; d-- {
		if d >= inner {
			t.run *= s.Local[d]
		} else {
			t.sizes[d], t.strides[d] = s.Local[d], stride
		}
		t.base += uint64(s.Offset[d]) * stride
		stride *= uint64(s.Global[d])
	}
}

// global returns the global index of the first element of run r.
func (t *dropoutTask) global(r int) uint64 {
	at := t.base
	for d := t.rank - 1; d >= 0; d-- {
		at += uint64(r%t.sizes[d]) * t.strides[d]
		r /= t.sizes[d]
	}
	return at
}

func (t *dropoutTask) do(w *worker, lo, hi int) {
	buf := w.scratch(maskRoom(dropoutPiece))
	for lo < hi {
		r, off := lo/t.run, lo%t.run
		n := min(hi-lo, t.run-off, dropoutPiece)
		f := t.mask.factors(w.isa, buf, t.global(r)+uint64(off), n)
		w.isa.mul(t.y[lo:lo+n], t.x[lo:lo+n], f)
		lo += n
	}
}
