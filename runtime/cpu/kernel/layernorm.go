package kernel

import "math"

// LayerNorm sets each row of y[rows, cols] to (x - mean) * rstd * w + b, with mean[rows] the mean of x's row and rstd[rows]
// 1/sqrt(variance + eps), the variance being the mean squared deviation (Ba, Kiros and Hinton, "Layer Normalization", 2016).
// b may be nil. y may be x.
func LayerNorm(p *Pool, rows, cols int, y, mean, rstd, x, w, b []float32, eps float32) {
	checkLen("LayerNorm", "y", y, rows*cols)
	checkLen("LayerNorm", "mean", mean, rows)
	checkLen("LayerNorm", "rstd", rstd, rows)
	checkLen("LayerNorm", "x", x, rows*cols)
	checkLen("LayerNorm", "w", w, cols)
	p = p.orInline()
	if b == nil {
		p.partial = grow(p.partial, cols)
		b = p.partial
		clear(b)
	}
	checkLen("LayerNorm", "b", b, cols)
	p.task.layerNorm = layerNormTask{y: y, mean: mean, rstd: rstd, x: x, w: w, b: b, eps: eps}
	p.run(&p.task.layerNorm, rows, rowGrain(cols, grainLight/2))
}

// RMSNorm sets each row of y[rows, cols] to x * rstd * w, with rstd[rows] 1/sqrt(mean square of x's row + eps) (Zhang and
// Sennrich, "Root Mean Square Layer Normalization", 2019): LayerNorm about zero. y may be x.
func RMSNorm(p *Pool, rows, cols int, y, rstd, x, w []float32, eps float32) {
	checkLen("RMSNorm", "y", y, rows*cols)
	checkLen("RMSNorm", "rstd", rstd, rows)
	checkLen("RMSNorm", "x", x, rows*cols)
	checkLen("RMSNorm", "w", w, cols)
	p = p.orInline()
	p.partial = grow(p.partial, cols)
	clear(p.partial)
	p.task.layerNorm = layerNormTask{y: y, rstd: rstd, x: x, w: w, b: p.partial, eps: eps}
	p.run(&p.task.layerNorm, rows, rowGrain(cols, grainLight/2))
}

type layerNormTask struct {
	y, mean, rstd, x, w, b []float32 // mean is nil for RMS norm, which has none
	eps                    float32
}

func (t *layerNormTask) do(w *worker, lo, hi int) {
	cols := len(t.w)
	for r := lo; r < hi; r++ {
		x := t.x[r*cols : (r+1)*cols]
		var mean float32
		if t.mean != nil {
			mean = w.isa.sum(x) / float32(cols)
			t.mean[r] = mean
		}
		variance := w.isa.sumSquaresAbout(x, mean) / float32(cols)
		rstd := float32(1 / math.Sqrt(float64(variance+t.eps)))
		w.isa.normalize(t.y[r*cols:(r+1)*cols], x, t.w, t.b, mean, rstd)
		t.rstd[r] = rstd
	}
}

// LayerNormGrad sets dx[rows, cols], and sets dw[cols] and db[cols], or adds to them with acc, from
// the gradient dy of LayerNorm's result and its operands and statistics. db may be nil. dx may be
// dy.
func LayerNormGrad(p *Pool, rows, cols int, dx, dw, db, dy, x, w, mean, rstd []float32, acc bool) {
	checkLen("LayerNormGrad", "dx", dx, rows*cols)
	checkLen("LayerNormGrad", "dw", dw, cols)
	if db != nil {
		checkLen("LayerNormGrad", "db", db, cols)
	}
	checkLen("LayerNormGrad", "dy", dy, rows*cols)
	checkLen("LayerNormGrad", "x", x, rows*cols)
	checkLen("LayerNormGrad", "w", w, cols)
	checkLen("LayerNormGrad", "mean", mean, rows)
	checkLen("LayerNormGrad", "rstd", rstd, rows)
	p.orInline().normGrad(cols, dx, dw, db, dy, x, w, mean, rstd, acc)
}

// RMSNormGrad sets dx[rows, cols], and sets dw[cols], or adds to it with acc, from the gradient dy
// of RMSNorm's result and its operands and statistic. dx may be dy.
func RMSNormGrad(p *Pool, rows, cols int, dx, dw, dy, x, w, rstd []float32, acc bool) {
	checkLen("RMSNormGrad", "dx", dx, rows*cols)
	checkLen("RMSNormGrad", "dw", dw, cols)
	checkLen("RMSNormGrad", "dy", dy, rows*cols)
	checkLen("RMSNormGrad", "x", x, rows*cols)
	checkLen("RMSNormGrad", "w", w, cols)
	checkLen("RMSNormGrad", "rstd", rstd, rows)
	p.orInline().normGrad(cols, dx, dw, nil, dy, x, w, nil, rstd, acc)
}

// normGrad is LayerNormGrad, or RMSNormGrad if mean is nil.
func (p *Pool) normGrad(cols int, dx, dw, db, dy, x, w, mean, rstd []float32, acc bool) {
	rows := len(rstd)
	// Each chunk of rows sums its own dw and db; then the sums are added in order.
	chunk := max(32, (rows+63)/64)
	chunks := (rows + chunk - 1) / chunk
	p.partial = grow(p.partial, 2*cols*chunks)
	p.task.normGrad = layerNormGradTask{dx: dx, dy: dy, x: x, w: w, mean: mean, rstd: rstd, partial: p.partial, chunk: chunk}
	p.run(&p.task.normGrad, chunks, max(1, rowGrain(cols, grainLight/2)/chunk))

	if !acc {
		clear(dw)
		clear(db)
	}
	p.isa.colSum(dw, p.partial, chunks, 2*cols)
	if db != nil {
		p.isa.colSum(db, p.partial[min(cols, len(p.partial)):], chunks, 2*cols)
	}
}

type layerNormGradTask struct {
	dx, dy, x, w, mean, rstd []float32 // mean is nil for RMS norm
	partial                  []float32 // dw and db of each chunk
	chunk                    int       // rows
}

func (t *layerNormGradTask) do(w *worker, lo, hi int) {
	cols, rows := len(t.w), len(t.rstd)
	for c := lo; c < hi; c++ {
		dw, db := t.partial[2*c*cols:(2*c+1)*cols], t.partial[(2*c+1)*cols:(2*c+2)*cols]
		clear(dw)
		clear(db)
		for r := c * t.chunk; r < min((c+1)*t.chunk, rows); r++ {
			at, end := r*cols, (r+1)*cols
			dy, x, rstd := t.dy[at:end], t.x[at:end], t.rstd[r]
			var mean float32
			if t.mean != nil {
				mean = t.mean[r]
			}
			w.isa.normGradParams(dw, db, dy, x, mean, rstd)
			g, gx := w.isa.normGradSums(dy, x, t.w, mean, rstd)
			if t.mean == nil {
				g = 0 // no mean was subtracted, so it has no gradient
			}
			w.isa.normGradRow(t.dx[at:end], dy, x, t.w, mean, rstd, g/float32(cols), gx/float32(cols))
		}
	}
}
