package kernel

// Embedding sets row r of y[rows, cols] to row ids[r]-vLo of table[localV, cols], which is the part
// of the whole table from row vLo on. It clears rows whose id is outside that part. len(ids) is
// rows.
func Embedding(p *Pool, cols int, y, table []float32, ids []int32, vLo int) {
	checkLen("Embedding", "y", y, len(ids)*cols)
	checkLen("Embedding", "table", table, len(table)/max(cols, 1)*cols)
	p = p.orInline()
	p.task.embedding = embeddingTask{y: y, table: table, ids: ids, cols: cols, vLo: vLo}
	p.run(&p.task.embedding, len(ids), rowGrain(cols, grainLight))
}

type embeddingTask struct {
	y, table  []float32
	ids       []int32
	cols, vLo int
}

func (t *embeddingTask) do(_ *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		y := t.y[r*t.cols : (r+1)*t.cols]
		if at := (int(t.ids[r]) - t.vLo) * t.cols; at >= 0 && at < len(t.table) {
			copy(y, t.table[at:])
		} else {
			clear(y)
		}
	}
}

// EmbeddingGrad adds each row of dy[rows, cols] to row ids[r]-vLo of dtable[localV, cols], in the
// order of the rows, and ignores ids outside the part. Without acc dtable is cleared first.
func EmbeddingGrad(p *Pool, cols int, dtable, dy []float32, ids []int32, vLo int, acc bool) {
	checkLen("EmbeddingGrad", "dy", dy, len(ids)*cols)
	checkLen("EmbeddingGrad", "dtable", dtable, len(dtable)/max(cols, 1)*cols)
	p = p.orInline()
	if !acc {
		clear(dtable)
	}
	p.task.embedGrad = embeddingGradTask{dtable: dtable, dy: dy, ids: ids, cols: cols, vLo: vLo}
	grain := cols
	if len(dy) > grainLight {
		grain = 64 // columns, with all rows, so that no two chunks touch the same element
	}
	p.run(&p.task.embedGrad, cols, grain)
}

type embeddingGradTask struct {
	dtable, dy []float32
	ids        []int32
	cols, vLo  int
}

func (t *embeddingGradTask) do(w *worker, lo, hi int) {
	for r, id := range t.ids {
		if at := (int(id) - t.vLo) * t.cols; at >= 0 && at < len(t.dtable) {
			dst := t.dtable[at+lo : at+hi]
			w.isa.add(dst, dst, t.dy[r*t.cols+lo:r*t.cols+hi])
		}
	}
}
