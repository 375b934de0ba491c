package kernel

const (
	scoreQuad  = 4  // rows of scores that loops of isa take at a time
	scoreAlign = 16 // they clear up to a multiple of this many elements
)

// scoresByRow implements the loops over four rows of scores by loops over one row.
func (set *isa) scoresByRow() {
	maxOf, expSum, mul, softmaxGrad, factors := set.maxOf, set.expSum, set.mul, set.softmaxGrad, set.dropoutFactors
	set.maxRows = func(top, x []float32, ld, seen, m int) {
		for r := range scoreQuad {
			row, _ := scoreRow(x, r, ld, seen, m)
			top[r] = maxOf(row)
		}
	}
	set.expRows = func(x []float32, ld, seen, m int, scale float32, shifts, sums, f []float32, ldf int) {
		for r := range scoreQuad {
			row, rest := scoreRow(x, r, ld, seen, m)
			sums[r] = expSum(row, row, scale, shifts[r])
			if len(f) > 0 {
				mul(row, row, f[r*ldf:][:len(row)])
			}
			clear(rest)
		}
	}
	set.gradRows = func(p, dp []float32, ld, seen, m int, scale float32, lse, delta, f []float32, ldf int) {
		for r := range scoreQuad {
			probs, rest := scoreRow(p, r, ld, seen, m)
			grads, restGrads := scoreRow(dp, r, ld, seen, m)
			clear(rest)
			clear(restGrads)
			expSum(probs, probs, scale, lse[r])
			if len(f) == 0 {
				softmaxGrad(grads, probs, grads, delta[r], scale)
				continue
			}
			kept := f[r*ldf:][:len(probs)]
			mul(grads, grads, kept)
			softmaxGrad(grads, probs, grads, delta[r], scale)
			mul(probs, probs, kept)
		}
	}
	set.dropoutRows = func(dst []float32, ld, n int, start, stride uint64, key *MaskKey, threshold uint32, scale float32) {
		for r := range scoreQuad {
			skip := int(start & 3)
			row := dst[r*ld+scoreAlign-skip:]
			factors(row[:(skip+n+dropoutStep-1)&^(dropoutStep-1)], start>>2, key, threshold, scale)
			start += stride
		}
	}
}

// scoreRow returns the elements of row r that count, and those that are cleared.
func scoreRow(x []float32, r, ld, seen, m int) (row, rest []float32) {
	n := max(0, min(m, seen+r))
	return x[r*ld:][:n], x[r*ld+n : r*ld+scoreLine(m)]
}

// scoreLine rounds up to a multiple of scoreAlign.
func scoreLine(m int) int { return (m + scoreAlign - 1) &^ (scoreAlign - 1) }
