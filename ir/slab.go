// This file intersects two parts of a value, as runs of elements that are contiguous in both.
// Collectives, transfers between layouts and checkpoints copy run by run.

package ir

import (
	"fmt"
	"math"
)

// MaxSlabDims bounds the dimensions of a value of which parts are copied.
const MaxSlabDims = 8

// EachRun calls do for every maximal run of elements that are contiguous in both parts of a value.
// inA and inB are the indexes of its first element in the two parts, n is its length.
func EachRun(a, b Slab, do func(inA, inB, n int)) { EachRunOf(a, b, 0, math.MaxInt, do) }

// EachRunOf is EachRun for a range of the common elements of both parts alone: numbered in
// row-major order, those in [lo, hi). The range is clipped to those that exist. It returns how many
// common elements there are in all.
func EachRunOf(a, b Slab, lo, hi int, do func(inA, inB, n int)) int {
	rank := len(a.Global)
	if rank == 0 {
		if lo <= 0 && hi > 0 {
			do(0, 0, 1)
		}
		return 1
	}
	if rank > MaxSlabDims {
		panic(fmt.Sprintf("BUG: value of %d dimensions, want at most %d", rank, MaxSlabDims))
	}
	var size, strideA, strideB, index [MaxSlabDims]int
	atA, atB, sa, sb, all := 0, 0, 1, 1, 1
	for i := rank - 1; i >= 0; i-- {
		first := max(a.Offset[i], b.Offset[i])
		size[i] = min(a.Offset[i]+a.Local[i], b.Offset[i]+b.Local[i]) - first
		if size[i] <= 0 {
			return 0
		}
		all *= size[i]
		strideA[i], strideB[i] = sa, sb
		atA += (first - a.Offset[i]) * sa
		atB += (first - b.Offset[i]) * sb
		sa *= a.Local[i]
		sb *= b.Local[i]
	}
	// A dimension that both parts hold whole makes one run with the dimension before it.
	inner, run := rank-1, size[rank-1]
	for ; inner > 0 && size[inner] == a.Local[inner] && size[inner] == b.Local[inner]; inner-- {
		run *= size[inner-1]
	}
	lo, hi = max(lo, 0), min(hi, all)
	for d, before := inner-1, lo/run; d >= 0 && before > 0; d-- {
		index[d] = before % size[d]
		before /= size[d]
		atA, atB = atA+index[d]*strideA[d], atB+index[d]*strideB[d]
	}
	for skip := lo % run; lo < hi; skip = 0 {
		n := min(run-skip, hi-lo)
		do(atA+skip, atB+skip, n)
		lo += n
		for d := inner - 1; d >= 0; d-- {
			atA, atB = atA+strideA[d], atB+strideB[d]
			if index[d]++; index[d] < size[d] {
				break
			}
			atA, atB = atA-size[d]*strideA[d], atB-size[d]*strideB[d]
			index[d] = 0
		}
	}
	return all
}
