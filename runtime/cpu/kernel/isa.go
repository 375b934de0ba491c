package kernel

import goruntime "runtime"

// isa is one implementation of the inner loops. Loops over vectors take dst first, expect all
// operands to have the length of dst (or of the first operand), and allow dst to be any of the
// sources. Callers have checked lengths.
type isa struct {
	name string

	// rows and cols are the size of the tile that product computes. cols is also the width of the
	// panels in which it expects its right-hand matrix.
	rows, cols int
	// left is how many rows of the left-hand matrix a worker takes at a time, right how many bytes
	// of the packed right-hand matrix: see blockK.
	left, right int

	// product computes c[i*ldc+j] = sum over q of a[i*rsa+q*csa] * b[q*cols+j], or adds it with acc, for i < m <= rows
	// and j < n <= cols. b is one panel of k rows.
	product func(m, n, k int, a []float32, rsa, csa int, b, c []float32, ldc int, acc bool)
	// packRows sets dst[q*width+j] = src[q*ld+j] and packCols dst[q*width+j] = src[j*ld+q], for q <
	// k and j < n. Both clear n <= j < width. k is positive.
	packRows, packCols func(dst, src []float32, ld, k, n, width int)

	// tileProducts, if not nil, replaces product in matrix products: see tiles.go. It computes 32
	// rows and panels times 32 columns of c, or adds to them with acc, from a and b as splitTiles
	// packs them, in steps steps of 32 terms. gap is how many numbers lie between the steps of one
	// panel of b and those of the next. Meanwhile it prefetches next, rate cache lines per step, as
	// segments of lines cache lines, ldNext numbers apart.
	tileProducts func(panels, steps int, a, b []float32, gap int, c []float32, ldc int, acc bool, next []float32, lines, ldNext, rate int)
	// splitTiles packs for each step one tile per part. Word j of row i of a tile is the pair of
	// parts of the numbers src[i*ld+j] and src[i*ld+j+pair]. From one step to the next src moves on
	// by step and dst by six tiles.
	splitTiles func(dst, src []float32, ld, pair, step, steps int)
	// multiplyAdd does rounds times multiplyAddFLOP floating-point operations in registers: the
	// most that product could reach.
	multiplyAdd     func(rounds int)
	multiplyAddFLOP int

	dot  func(a, b []float32) float32
	axpy func(dst, x []float32, s float32) // dst += s*x

	add, mul, max func(dst, a, b []float32)
	scale         func(dst, x []float32, s float32)
	colSum        func(dst, x []float32, rows, ld int) // dst[j] += sum over i of x[i*ld+j]

	sum, maxOf        func(x []float32) float32
	sum64, sumSquares func(x []float32) float64
	sumSquaresAbout   func(x []float32, mean float32) float32              // sum of (x-mean)^2
	expSum            func(dst, x []float32, scale, shift float32) float32 // dst = exp(scale*x - shift); returns its sum
	expMul            func(dst, x []float32, shift, mul float32)           // dst = mul * exp(x - shift)
	softmaxGrad       func(ds, p, dp []float32, delta, scale float32)      // ds = scale * p * (dp - delta)
	gelu, geluTanh    func(y, x []float32)
	geluGrad          func(dx, dy, x []float32)
	geluTanhGrad      func(dx, dy, x []float32)
	swiglu            func(y, gate, up []float32)                                  // y = gate/(1+exp(-gate)) * up
	swigluGrad        func(dgate, dup, dy, gate, up []float32)                     // dgate may be gate and dup up
	rotate            func(lo, hi, a, b, cos, sin []float32)                       // lo = a*cos - b*sin, hi = b*cos + a*sin
	normalize         func(y, x, w, b []float32, mean, rstd float32)               // y = (x-mean)*rstd*w + b
	normGradSums      func(dy, x, w []float32, mean, rstd float32) (g, gx float32) // sums of dy*w and of dy*w*xhat
	normGradRow       func(dx, dy, x, w []float32, mean, rstd, g, gx float32)      // dx = rstd * (dy*w - g - gx*xhat)
	normGradParams    func(dw, db, dy, x []float32, mean, rstd float32)            // dw += dy*xhat, db += dy
	adamw             func(w, m, v, g []float32, c *adamwFactors)
	dropoutFactors    func(dst []float32, block uint64, key *MaskKey, threshold uint32, scale float32)
	addAsFixed        func(dst []int64, x []float32, scale float64) bool // dst += scale*x, rounded; reports whether all fits
	fixedSquares      func(x []float32, scale float64) squareSum

	// Loops over four rows of attention scores, ld apart. Of the first row the first seen elements
	// count, of each row after it one more, but never more than m. Elements beyond them, up to m
	// rounded up to scoreAlign, are cleared. f has dropout factors in rows ldf apart, or is empty.
	maxRows  func(top, x []float32, ld, seen, m int)
	expRows  func(x []float32, ld, seen, m int, scale float32, shifts, sums, f []float32, ldf int)   // x = exp(scale*x - shift), its sums, then x *= f
	gradRows func(p, dp []float32, ld, seen, m int, scale float32, lse, delta, f []float32, ldf int) // p = exp(scale*p - lse), dp = scale*p*(dp*f - delta), then p *= f
	// dropoutRows sets four rows of n factors. Those of row r are for elements start+r*stride and
	// on of the global tensor, and begin scoreAlign elements after the row's begin. It may write 3
	// elements before and dropoutStep+2 after them.
	dropoutRows func(dst []float32, ld, n int, start, stride uint64, key *MaskKey, threshold uint32, scale float32)

	widen, narrow [2]func(wide []float32, half []uint16) // by Format: wide = half, and back
}

// bestISA returns the fastest implementation this processor runs.
func bestISA() isa {
	sets := instructionSets()
	return sets[len(sets)-1]
}

// Arithmetic names how sums and roundings are done here. Machines with different names compute
// numbers that differ in the last bits: vectors sum in another order, and Go fuses products and
// sums only on some architectures.
func Arithmetic() string { return bestISA().name + " on " + goruntime.GOARCH }

// portable is the implementation in plain Go. It is also the reference of the tests.
func portable() isa {
	set := isa{
		name: "portable",
		rows: 4, cols: 16, left: 144, right: 8 << 20,
		product:         productGeneric,
		multiplyAdd:     multiplyAddGeneric,
		multiplyAddFLOP: 2 * 8,
		packRows:        packRowsGeneric,
		packCols:        packColsGeneric,
		dot:             dotGeneric,
		axpy:            axpyGeneric,
		add:             addGeneric,
		mul:             mulGeneric,
		max:             maxGeneric,
		scale:           scaleGeneric,
		colSum:          colSumGeneric,
		sum:             sumGeneric,
		maxOf:           maxOfGeneric,
		sum64:           sum64Generic,
		sumSquares:      sumSquaresGeneric,
		sumSquaresAbout: sumSquaresAboutGeneric,
		expSum:          expSumGeneric,
		expMul:          expMulGeneric,
		softmaxGrad:     softmaxGradGeneric,
		gelu:            geluGeneric,
		geluTanh:        geluTanhGeneric,
		geluGrad:        geluGradGeneric,
		geluTanhGrad:    geluTanhGradGeneric,
		swiglu:          swigluGeneric,
		swigluGrad:      swigluGradGeneric,
		rotate:          rotateGeneric,
		normalize:       normalizeGeneric,
		normGradSums:    normGradSumsGeneric,
		normGradRow:     normGradRowGeneric,
		normGradParams:  normGradParamsGeneric,
		addAsFixed:      addAsFixedGeneric,
		fixedSquares:    fixedSquaresGeneric,
		adamw:           adamwGeneric,
		dropoutFactors:  dropoutFactorsGeneric,
		widen:           [2]func([]float32, []uint16){BF16: widenBF16Generic, F16: widenF16Generic},
		narrow:          [2]func([]float32, []uint16){BF16: narrowBF16Generic, F16: narrowF16Generic},
	}
	set.scoresByRow()
	return set
}
