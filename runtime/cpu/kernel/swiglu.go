package kernel

// SwiGLU sets y[rows, cols] to silu(gate) * up, silu(g) = g/(1 + exp(-g)), for x[rows, 2, cols], whose rows are gate then
// up (Shazeer, "GLU Variants Improve Transformer", 2020). The result is at most 5 units in the last place off for
// gate >= -87, and below 1e-35 |up| beyond.
func SwiGLU(p *Pool, rows, cols int, y, x []float32) {
	checkLen("SwiGLU", "y", y, rows*cols)
	checkLen("SwiGLU", "x", x, 2*rows*cols)
	p = p.orInline()
	p.task.swiglu = swigluTask{y: y, x: x, cols: cols}
	p.run(&p.task.swiglu, rows, rowGrain(cols, grainHeavy))
}

type swigluTask struct {
	y, x []float32
	cols int
}

func (t *swigluTask) do(w *worker, lo, hi int) {
	n := t.cols
	for r := lo; r < hi; r++ {
		x := t.x[2*r*n : 2*(r+1)*n]
		w.isa.swiglu(t.y[r*n:(r+1)*n], x[:n], x[n:])
	}
}

// SwiGLUGrad sets dx[rows, 2, cols] from the gradient dy[rows, cols] of SwiGLU's result and its operand. The part of up is
// at most 5 units in the last place off for gate >= -80, and below 1e-32 |dy| beyond; that of gate, which changes sign, is
// at most 1e-6 |dy up| off. dx may be x.
func SwiGLUGrad(p *Pool, rows, cols int, dx, x, dy []float32) {
	checkLen("SwiGLUGrad", "dx", dx, 2*rows*cols)
	checkLen("SwiGLUGrad", "x", x, 2*rows*cols)
	checkLen("SwiGLUGrad", "dy", dy, rows*cols)
	p = p.orInline()
	p.task.swigluGrad = swigluGradTask{dx: dx, x: x, dy: dy, cols: cols}
	p.run(&p.task.swigluGrad, rows, rowGrain(cols, grainHeavy))
}

type swigluGradTask struct {
	dx, x, dy []float32
	cols      int
}

func (t *swigluGradTask) do(w *worker, lo, hi int) {
	n := t.cols
	for r := lo; r < hi; r++ {
		dx, x := t.dx[2*r*n:2*(r+1)*n], t.x[2*r*n:2*(r+1)*n]
		w.isa.swigluGrad(dx[:n], dx[n:], t.dy[r*n:(r+1)*n], x[:n], x[n:])
	}
}
