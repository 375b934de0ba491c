package kernel

import "golang.org/x/sys/cpu"

// instructionSets returns the implementations this processor runs, the fastest last.
func instructionSets() []isa {
	sets := []isa{portable()}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		sets = append(sets, avx2())
		if cpu.X86.HasAVX512F && cpu.X86.HasBMI2 {
			sets = append(sets, avx512())
			if cpu.X86.HasAMXTile && cpu.X86.HasAMXBF16 && tilesAllowed() {
				sets = append(sets, amx())
			}
		}
	}
	return sets
}

// avx2 is the implementation for AVX2 and FMA, which processors have from about 2013 on.
func avx2() isa {
	set := isa{
		name: "avx2",
		rows: 6, cols: 16, left: 144, right: 8 << 20,
		product:         productAVX2,
		multiplyAdd:     multiplyAddAVX2,
		multiplyAddFLOP: 2 * 12 * 8,
		packRows:        packRowsAVX2,
		packCols:        packCols,
		dot:             dotAVX2,
		axpy:            axpyAVX2,
		add:             addAVX2,
		mul:             mulAVX2,
		max:             maxAVX2,
		scale:           scaleAVX2,
		colSum:          colSumAVX2,
		sum:             sumAVX2,
		maxOf:           maxOfAVX2,
		sum64:           sum64AVX2,
		sumSquares:      sumSquaresAVX2,
		sumSquaresAbout: sumSquaresAboutAVX2,
		expSum:          expSumAVX2,
		expMul:          expMulAVX2,
		softmaxGrad:     softmaxGradAVX2,
		gelu:            geluAVX2,
		geluTanh:        geluTanhAVX2,
		geluGrad:        geluGradAVX2,
		geluTanhGrad:    geluTanhGradAVX2,
		swiglu:          swigluAVX2,
		swigluGrad:      swigluGradAVX2,
		rotate:          rotateAVX2,
		normalize:       normalizeAVX2,
		normGradSums:    normGradSumsAVX2,
		normGradRow:     normGradRowAVX2,
		normGradParams:  normGradParamsAVX2,
		adamw:           adamwAVX2,
		addAsFixed:      addAsFixedAVX2,
		fixedSquares: func(x []float32, scale float64) squareSum {
			if coarse, fine, small := fixedSquaresAVX2(x, scale); small {
				return squareSum{coarse, fine, true}
			}
			return fixedSquaresGeneric(x, scale)
		},
		dropoutFactors: func(dst []float32, block uint64, key *MaskKey, threshold uint32, scale float32) {
			dropoutFactorsAVX2(dst, block, key.Seed, key.Op, key.Step, threshold, scale)
		},
		widen:  portable().widen,
		narrow: portable().narrow,
	}
	set.scoresByRow()
	set.widen[BF16] = eights(widenBF16AVX2, widenBF16Generic)
	set.narrow[BF16] = eights(narrowBF16AVX2, narrowBF16Generic)
	if cpu.X86.HasF16C {
		set.widen[F16] = eights(widenF16C, widenF16Generic)
		set.narrow[F16] = eights(narrowF16C, narrowF16Generic)
	}
	return set
}

// eights makes a conversion of any length from one for vectors of eight elements and one in Go for
// the rest.
func eights(vectors, rest func(wide []float32, half []uint16)) func(wide []float32, half []uint16) {
	return func(wide []float32, half []uint16) {
		vectors(wide, half)
		done := len(half) &^ 7
		rest(wide[done:], half[done:])
	}
}

// avx512 is avx2 with twice as wide registers, except in functions that take little time.
func avx512() isa {
	set := avx2()
	set.name = "avx512"
	set.rows, set.cols, set.left, set.right = 12, 32, 48, 1<<20
	set.product = productAVX512
	set.axpy, set.add, set.mul, set.max, set.scale = axpyAVX512, addAVX512, mulAVX512, maxAVX512, scaleAVX512
	set.expSum, set.expMul, set.softmaxGrad = expSumAVX512, expMulAVX512, softmaxGradAVX512
	set.maxRows, set.expRows, set.gradRows = maxRowsAVX512, expRowsAVX512, gradRowsAVX512
	set.gelu, set.geluTanh, set.geluGrad, set.geluTanhGrad = geluAVX512, geluTanhAVX512, geluGradAVX512, geluTanhGradAVX512
	set.swiglu, set.swigluGrad, set.rotate = swigluAVX512, swigluGradAVX512, rotateAVX512
	set.normalize, set.normGradSums, set.normGradRow, set.normGradParams = normalizeAVX512, normGradSumsAVX512, normGradRowAVX512, normGradParamsAVX512
	set.adamw = adamwAVX512
	set.dropoutFactors = func(dst []float32, block uint64, key *MaskKey, threshold uint32, scale float32) {
		dropoutFactorsAVX512(dst, block, key.Seed, key.Op, key.Step, threshold, scale)
	}
	set.dropoutRows = func(dst []float32, ld, n int, start, stride uint64, key *MaskKey, threshold uint32, scale float32) {
		if (start|stride)&3 != 0 {
			n += 3 // a row may begin in the middle of a block of random numbers
		}
		dropoutRowsAVX512(dst, ld, n, start, stride, key.Seed, key.Op, key.Step, threshold, scale)
	}
	set.multiplyAdd, set.multiplyAddFLOP = multiplyAddAVX512, 2*12*16
	return set
}

// packCols is isa.packCols: eight columns at a time, and the rest in Go.
func packCols(dst, src []float32, ld, k, n, width int) {
	j := 0
	for ; j+8 <= n; j += 8 {
		packColsAVX2(dst[j:], src[j*ld:], ld, k, width)
	}
	for ; j < width; j++ {
		if j < n {
			for q, v := range src[j*ld : j*ld+k] {
				dst[q*width+j] = v
			}
		} else {
			for q := range k {
				dst[q*width+j] = 0
			}
		}
	}
}

// amx is avx512 with matrix products in the tile registers.
func amx() isa {
	set := avx512()
	set.name = "amx"
	set.tileProducts, set.splitTiles = tileProducts, splitTiles
	return set
}
