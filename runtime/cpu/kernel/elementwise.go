package kernel

// Chunks of work in elements. A chunk takes some microseconds, a few times as long as handing it to
// a worker.
const (
	grainLight = 16384 // one or two operations per element
	grainHeavy = 4096  // an exponential per element, or a step of AdamW
)

// sumChunk is how many elements a full reduction sums before it adds the sum in float64. It is
// fixed, so that the result does not depend on the number of threads.
const sumChunk = 8192

// Add sets dst = a + b. dst may be a or b.
func Add(p *Pool, dst, a, b []float32) {
	checkLen("Add", "a", a, len(dst))
	checkLen("Add", "b", b, len(dst))
	p = p.orInline()
	p.binary(p.isa.add, dst, a, b, grainLight)
}

// AddInto sets dst += src.
func AddInto(p *Pool, dst, src []float32) {
	checkLen("AddInto", "src", src, len(dst))
	p = p.orInline()
	p.binary(p.isa.add, dst, dst, src, grainLight)
}

// MaxInto sets dst to the larger of dst and src, element by element.
func MaxInto(p *Pool, dst, src []float32) {
	checkLen("MaxInto", "src", src, len(dst))
	p = p.orInline()
	p.binary(p.isa.max, dst, dst, src, grainLight)
}

// Copy sets dst = src.
func Copy(p *Pool, dst, src []float32) {
	checkLen("Copy", "src", src, len(dst))
	p = p.orInline()
	p.unary(copyVector, dst, src, grainLight)
}

func copyVector(dst, src []float32) { copy(dst, src) }

// Scale sets dst = s*x. dst may be x.
func Scale(p *Pool, dst, x []float32, s float32) {
	checkLen("Scale", "x", x, len(dst))
	p = p.orInline()
	p.task.scale = scaleTask{dst: dst, x: x, s: s}
	p.run(&p.task.scale, len(dst), grainLight)
}

type scaleTask struct {
	dst, x []float32
	s      float32
}

func (t *scaleTask) do(w *worker, lo, hi int) { w.isa.scale(t.dst[lo:hi], t.x[lo:hi], t.s) }

// unaryTask applies dst = f(x) element by element.
type unaryTask struct {
	f      func(dst, x []float32)
	dst, x []float32
}

func (t *unaryTask) do(_ *worker, lo, hi int) { t.f(t.dst[lo:hi], t.x[lo:hi]) }

func (p *Pool) unary(f func(dst, x []float32), dst, x []float32, grain int) {
	p.task.unary = unaryTask{f: f, dst: dst, x: x}
	p.run(&p.task.unary, len(dst), grain)
}

// binaryTask applies dst = f(a, b) element by element.
type binaryTask struct {
	f         func(dst, a, b []float32)
	dst, a, b []float32
}

func (t *binaryTask) do(_ *worker, lo, hi int) { t.f(t.dst[lo:hi], t.a[lo:hi], t.b[lo:hi]) }

func (p *Pool) binary(f func(dst, a, b []float32), dst, a, b []float32, grain int) {
	p.task.binary = binaryTask{f: f, dst: dst, a: a, b: b}
	p.run(&p.task.binary, len(dst), grain)
}

// GELU sets y to the Gaussian error linear unit of x: x*Phi(x), or with tanh its approximation in Hendrycks and Gimpel,
// "Gaussian Error Linear Units", 2016, which GPT-2 was trained with. Both are within 6e-7 of their exact value on [-6, 6].
// y may be x.
func GELU(p *Pool, y, x []float32, tanh bool) {
	checkLen("GELU", "x", x, len(y))
	p = p.orInline()
	f := p.isa.gelu
	if tanh {
		f = p.isa.geluTanh
	}
	p.unary(f, y, x, grainHeavy)
}

// GELUGrad sets dx to dy times the derivative of GELU at x. dx may be dy or x.
func GELUGrad(p *Pool, dx, dy, x []float32, tanh bool) {
	checkLen("GELUGrad", "dy", dy, len(dx))
	checkLen("GELUGrad", "x", x, len(dx))
	p = p.orInline()
	f := p.isa.geluGrad
	if tanh {
		f = p.isa.geluTanhGrad
	}
	p.binary(f, dx, dy, x, grainHeavy)
}

// AddBias sets dst[rows, cols] = a[rows, cols] + b[cols] in every row. dst may be a.
func AddBias(p *Pool, rows, cols int, dst, a, b []float32) {
	checkLen("AddBias", "dst", dst, rows*cols)
	checkLen("AddBias", "a", a, rows*cols)
	checkLen("AddBias", "b", b, cols)
	p = p.orInline()
	p.task.addBias = addBiasTask{dst: dst, a: a, b: b}
	p.run(&p.task.addBias, rows, rowGrain(cols, grainLight))
}

type addBiasTask struct{ dst, a, b []float32 }

func (t *addBiasTask) do(w *worker, lo, hi int) {
	cols := len(t.b)
	for r := lo * cols; r < hi*cols; r += cols {
		w.isa.add(t.dst[r:r+cols], t.a[r:r+cols], t.b)
	}
}

// rowGrain returns how many rows of cols elements make a chunk of about grain elements.
func rowGrain(cols, grain int) int { return max(1, grain/max(cols, 1)) }

// ColSum sets dst[cols] to the sum of the rows of x[rows, cols], or adds it to dst with acc.
func ColSum(p *Pool, rows, cols int, dst, x []float32, acc bool) {
	checkLen("ColSum", "dst", dst, cols)
	checkLen("ColSum", "x", x, rows*cols)
	p = p.orInline()
	p.task.colSum = colSumTask{dst: dst, x: x, rows: rows, acc: acc}
	const lines = 64 // columns: whole cache lines
	p.run(&p.task.colSum, cols, (rowGrain(rows, grainLight)+lines-1)/lines*lines)
}

type colSumTask struct {
	dst, x []float32
	rows   int
	acc    bool
}

func (t *colSumTask) do(w *worker, lo, hi int) {
	// Sums of 64 rows are added in turn: short sums round less than one long sum.
	const block = 64
	cols := len(t.dst)
	dst := t.dst[lo:hi]
	if !t.acc {
		clear(dst)
	}
	for i := 0; i < t.rows; i += block {
		w.isa.colSum(dst, t.x[i*cols+lo:], min(block, t.rows-i), cols)
	}
}

// Sum returns the sum of x, accumulated in float64.
func Sum(p *Pool, x []float32) float32 {
	p = p.orInline()
	return float32(p.reduce(p.isa.sum64, x))
}

// SumSquares returns the sum of the squares of x, accumulated in float64.
func SumSquares(p *Pool, x []float32) float64 {
	p = p.orInline()
	return p.reduce(p.isa.sumSquares, x)
}

// reduce adds f of each chunk of x, in order.
func (p *Pool) reduce(f func([]float32) float64, x []float32) float64 {
	chunks := (len(x) + sumChunk - 1) / sumChunk
	p.sums = grow(p.sums, chunks)
	p.task.reduce = reduceTask{f: f, x: x, sums: p.sums}
	p.run(&p.task.reduce, chunks, 4)
	var s float64
	for _, v := range p.sums {
		s += v
	}
	return s
}

type reduceTask struct {
	f    func([]float32) float64
	x    []float32
	sums []float64
}

func (t *reduceTask) do(_ *worker, lo, hi int) {
	for i := lo; i < hi; i++ {
		t.sums[i] = t.f(t.x[i*sumChunk : min((i+1)*sumChunk, len(t.x))])
	}
}
