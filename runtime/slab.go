package runtime

import (
	"fmt"

	"github.com/autopar/autopar/ir"
)

// maxRank bounds the dimensions of a value.
const maxRank = 8

// EachRun calls do for every run of elements that lie together in both parts of
// a value, with their local indexes and number.
func EachRun(a, b ir.Slab, do func(inA, inB, n int)) {
	rank := len(a.Global)
	if rank == 0 {
		do(0, 0, 1)
		return
	}
	if rank > maxRank {
		panic(fmt.Sprintf("BUG: runtime: value of %d dimensions, want at most %d", rank, maxRank))
	}
	var size, strideA, strideB, index [maxRank]int
	atA, atB, sa, sb := 0, 0, 1, 1
	for i := rank - 1; i >= 0; i-- {
		lo := max(a.Offset[i], b.Offset[i])
		size[i] = min(a.Offset[i]+a.Local[i], b.Offset[i]+b.Local[i]) - lo
		if size[i] <= 0 {
			return
		}
		strideA[i], strideB[i] = sa, sb
		atA += (lo - a.Offset[i]) * sa
		atB += (lo - b.Offset[i]) * sb
		sa *= a.Local[i]
		sb *= b.Local[i]
	}
	// Dimensions that both parts hold whole join the run of the one before.
	inner, run := rank-1, size[rank-1]
	for ; inner > 0 && size[inner] == a.Local[inner] && size[inner] == b.Local[inner]; inner-- {
		run *= size[inner-1]
	}
	for {
		do(atA, atB, run)
		d := inner - 1
		for ; d >= 0; d-- {
			atA, atB = atA+strideA[d], atB+strideB[d]
			if index[d]++; index[d] < size[d] {
				break
			}
			atA, atB = atA-size[d]*strideA[d], atB-size[d]*strideB[d]
			index[d] = 0
		}
		if d < 0 {
			return
		}
	}
}
