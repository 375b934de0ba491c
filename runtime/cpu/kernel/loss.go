package kernel

import "math"

// RowMax sets out[r] to the largest element of row r of x[rows, cols], -Inf where cols is 0.
func RowMax(p *Pool, rows, cols int, out, x []float32) {
	checkLen("RowMax", "out", out, rows)
	checkLen("RowMax", "x", x, rows*cols)
	p = p.orInline()
	p.rowwise(rowMax, rowsTask{out: out, x: x, cols: cols}, grainLight)
}

func rowMax(w *worker, _ *rowsTask, _ int, x []float32) float32 { return w.isa.maxOf(x) }

// RowSumExp sets out[r] to the sum over row r of x[rows, cols] of exp(x - max[r]).
func RowSumExp(p *Pool, rows, cols int, out, x, max []float32) {
	checkLen("RowSumExp", "out", out, rows)
	checkLen("RowSumExp", "x", x, rows*cols)
	checkLen("RowSumExp", "max", max, rows)
	p = p.orInline()
	p.rowwise(rowSumExp, rowsTask{out: out, x: x, max: max, cols: cols}, grainHeavy)
}

func rowSumExp(w *worker, t *rowsTask, r int, x []float32) float32 {
	return w.isa.expSum(w.scratch(len(x)), x, 1, t.max[r])
}

// RowPick sets out[r] to column ids[r]-vLo of row r of x[rows, cols], which is the part of a wider
// matrix from column vLo on. It is 0 if ids[r] is negative or outside that part.
func RowPick(p *Pool, rows, cols int, out, x []float32, ids []int32, vLo int) {
	checkLen("RowPick", "out", out, rows)
	checkLen("RowPick", "x", x, rows*cols)
	checkLen("RowPick", "ids", ids, rows)
	p = p.orInline()
	p.rowwise(rowPick, rowsTask{out: out, x: x, ids: ids, cols: cols, vLo: vLo}, rows*cols)
}

func rowPick(_ *worker, t *rowsTask, r int, x []float32) float32 {
	if id := int(t.ids[r]); id >= 0 && id >= t.vLo && id-t.vLo < len(x) {
		return x[id-t.vLo]
	}
	return 0
}

// rowsTask computes one number per row.
type rowsTask struct {
	f           func(w *worker, t *rowsTask, r int, x []float32) float32
	out, x, max []float32
	ids         []int32
	cols, vLo   int
}

func (t *rowsTask) do(w *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		t.out[r] = t.f(w, t, r, t.x[r*t.cols:(r+1)*t.cols])
	}
}

func (p *Pool) rowwise(f func(*worker, *rowsTask, int, []float32) float32, t rowsTask, grain int) {
	t.f = f
	p.task.rows = t
	p.run(&p.task.rows, len(t.out), rowGrain(t.cols, grain))
}

// NLL sets out[r] to log(sumExp[r]) + max[r] - pick[r], the negative log likelihood of row r's
// target under a softmax. It is 0 if targets[r] is negative, as for padding.
func NLL(p *Pool, out, max, sumExp, pick []float32, targets []int32) {
	rows := len(out)
	checkLen("NLL", "max", max, rows)
	checkLen("NLL", "sumExp", sumExp, rows)
	checkLen("NLL", "pick", pick, rows)
	checkLen("NLL", "targets", targets, rows)
	for r, target := range targets {
		out[r] = 0
		if target >= 0 {
			out[r] = float32(math.Log(float64(sumExp[r])) + float64(max[r]) - float64(pick[r]))
		}
	}
}

// CrossEntropyGrad sets row r of dx[rows, cols] to (exp(x - max[r])/sumExp[r] - onehot(targets[r]))
// * dnll[r], for the part of the logits from column vLo on. It is 0 if targets[r] is negative. dx
// may be x.
func CrossEntropyGrad(p *Pool, rows, cols int, dx, x, max, sumExp []float32, targets []int32, vLo int, dnll []float32) {
	checkLen("CrossEntropyGrad", "dx", dx, rows*cols)
	checkLen("CrossEntropyGrad", "x", x, rows*cols)
	checkLen("CrossEntropyGrad", "max", max, rows)
	checkLen("CrossEntropyGrad", "sumExp", sumExp, rows)
	checkLen("CrossEntropyGrad", "targets", targets, rows)
	checkLen("CrossEntropyGrad", "dnll", dnll, rows)
	p = p.orInline()
	p.task.crossEntropy = crossEntropyGradTask{dx: dx, x: x, max: max, sumExp: sumExp, dnll: dnll, targets: targets, cols: cols, vLo: vLo}
	p.run(&p.task.crossEntropy, rows, rowGrain(cols, grainHeavy))
}

type crossEntropyGradTask struct {
	dx, x, max, sumExp, dnll []float32
	targets                  []int32
	cols, vLo                int
}

func (t *crossEntropyGradTask) do(w *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		dx := t.dx[r*t.cols : (r+1)*t.cols]
		target := int(t.targets[r])
		if target < 0 {
			clear(dx)
			continue
		}
		w.isa.expMul(dx, t.x[r*t.cols:(r+1)*t.cols], t.max[r], t.dnll[r]/t.sumExp[r])
		if j := target - t.vLo; j >= 0 && j < t.cols {
			dx[j] -= t.dnll[r]
		}
	}
}
