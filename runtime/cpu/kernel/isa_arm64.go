package kernel

import "golang.org/x/sys/cpu"

// instructionSets returns the implementations this processor runs, the fastest last.
func instructionSets() []isa {
	sets := []isa{portable()}
	if cpu.ARM64.HasASIMD {
		sets = append(sets, neon())
	}
	return sets
}

// neon is the implementation for NEON, which every 64-bit Arm processor of note has. What it leaves in plain Go copies, or
// takes little time.
func neon() isa {
	set := portable()
	set.name = "neon"
	set.rows, set.cols = 6, 16
	set.product = productNEON
	set.multiplyAdd, set.multiplyAddFLOP = multiplyAddNEON, 2*24*4
	set.dot, set.axpy = dotNEON, axpyNEON
	set.add, set.mul, set.max, set.scale, set.colSum = addNEON, mulNEON, maxNEON, scaleNEON, colSumNEON
	set.sum, set.maxOf, set.sum64, set.sumSquares = sumNEON, maxOfNEON, sum64NEON, sumSquaresNEON
	set.sumSquaresAbout = sumSquaresAboutNEON
	set.expSum, set.expMul, set.softmaxGrad = expSumNEON, expMulNEON, softmaxGradNEON
	set.gelu, set.geluTanh, set.geluGrad, set.geluTanhGrad = geluNEON, geluTanhNEON, geluGradNEON, geluTanhGradNEON
	set.swiglu, set.swigluGrad, set.rotate = swigluNEON, swigluGradNEON, rotateNEON
	set.normalize, set.normGradSums, set.normGradRow, set.normGradParams = normalizeNEON, normGradSumsNEON, normGradRowNEON, normGradParamsNEON
	set.adamw = adamwNEON
	set.scoresByRow()
	return set
}
