package kernel

import (
	"fmt"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/philox"
	"github.com/autopar/autopar/runtime"
)

// mask returns the parameters of a dropout mask: seed, step, key, threshold and scale. Without
// dropout the threshold is 0.
func (l *list) mask() []any {
	attr, n := l.Node.Attr.(ir.DropoutAttr), len(l.Args)
	return []any{l.arg(n - 2), l.arg(n - 1), philox.OpKey(attr.Key), philox.Threshold(attr.P), float32(1 / (1 - attr.P))}
}

func dropout(l *list) error {
	attr := l.Node.Attr.(ir.DropoutAttr)
	d, err := l.elem(l.Results[0])
	if err != nil {
		return err
	}
	slab := l.Results[0].Slab
	if attr.P == 0 {
		if l.moved(0, 0) {
			return l.move(d.Size(), l.result(0), l.arg(0), Dim{slab.Elems(), 1, 1})
		}
		return nil
	}
	dims, first := within(slab)
	if attr.Fold <= 1 {
		return l.drop(d, dims, first, 0)
	}
	// The rows are those of a folded sequence. The mask is a function of positions, so each run of
	// consecutive positions has a launch.
	along := dims[attr.Dim]
	first -= int64(slab.Offset[attr.Dim]) * along.From
	for _, run := range ir.FoldRuns(slab.Global[attr.Dim], attr.Fold, slab.Offset[attr.Dim], slab.Local[attr.Dim]) {
		dims[attr.Dim].N = int64(run.Len)
		if err := l.drop(d, dims, first+int64(run.Pos)*along.From, int64(run.Row-slab.Offset[attr.Dim])*along.To); err != nil {
			return err
		}
	}
	return nil
}

// within returns the dimensions of a part as it lies in the whole, and the index in the whole of
// its first element.
func within(s ir.Slab) (dims []Dim, first int64) {
	dims = make([]Dim, len(s.Local))
	whole, part := int64(1), int64(1)
	for d := len(dims) - 1; d >= 0; d-- {
		dims[d] = Dim{int64(s.Local[d]), whole, part}
		first += int64(s.Offset[d]) * whole
		whole *= int64(s.Global[d])
		part *= int64(s.Local[d])
	}
	return dims, first
}

// drop launches dropout of the elements that dims gives, from index first of the whole and start of
// the part.
func (l *list) drop(d ir.DType, dims []Dim, first, start int64) error {
	dims = merged(dims)
	if len(dims) > 5 {
		return l.errorf(" of a part with %d runs of dimensions, want at most 5", len(dims))
	}
	run := dims[len(dims)-1].N
	runs, args := int64(1), append([]any{l.result(0), l.arg(0)}, l.mask()...)
	var outer []any
	for i := range 4 {
		n := Dim{N: 1}
		if at := len(dims) - 2 - i; at >= 0 {
			n = dims[at]
		}
		runs *= n.N
		if i < 3 {
			outer = append(outer, n.N)
		}
		outer = append(outer, n.From, n.To)
	}
	args = append(append(args, run, runs, uint64(first), start), outer...)
	l.run("elementwise.cu", "dropout", d, blocks(runs*((run+3)/4), 256), block256, 0, args...)
	return nil
}

// warpRows returns the grid for rows that take a warp each, in blocks of 256 threads.
func warpRows(rows int64) [3]uint32 { return blocks(rows, 8) }

func embedding(l *list) error {
	table := l.Args[0]
	d, err := l.elem(table)
	if err != nil {
		return err
	}
	n := l.Args[1].Slab.Elems()
	l.run("embedding.cu", "embedding", d, warpRows(n), block256, 0, l.result(0), l.arg(0), l.arg(1), n, int64(table.Slab.Local[1]),
		int32(table.Slab.Offset[0]), int32(table.Slab.Local[0]), int32(table.Slab.Global[0]))
	return nil
}

func embeddingGrad(l *list) error {
	table := l.Results[0]
	if table.DType == ir.Q64 {
		return embeddingGradFixed(l)
	}
	d, err := l.elem(table)
	if err != nil {
		return err
	}
	local, cols := int64(table.Slab.Local[0]), int64(table.Slab.Local[1])
	name, rows, ids := "embedding_grad", int64(64), l.Args[0].Slab.Elems()
	if local <= 4096 && ids >= 16*local {
		name, rows = "embedding_grad_few", 8
	}
	grid := blocks(local, rows)
	grid[1] = blocks(cols, 256)[0]
	l.run("embedding.cu", name, d, grid, block256, 0, l.result(0), l.arg(1), l.arg(0), ids, cols,
		int32(table.Slab.Offset[0]), int32(local), l.accum(0))
	return nil
}

// forRows returns the variant of a function of norm.cu for rows of cols elements, and how many packs
// of 16 bytes each lane of a warp then keeps in registers: none if there are too many or the rows are
// not whole packs.
func forRows(name string, d ir.DType, cols int64) (variant string, packs int64) {
	row := cols * d.Size()
	packs = (row + 16*32 - 1) / (16 * 32)
	if row%16 != 0 || packs == 0 || packs > 4 {
		return name, 0
	}
	return fmt.Sprintf("%s_%d", name, packs), packs
}

func norm(l *list) error { return l.norm(l.Kernel, 0, l.arg(0), 0) }

// addNorm is a group: an add, and a norm of its sum.
func addNorm(l *list) error { return l.norm(l.group[1], l.result(0), l.arg(0), l.arg(1)) }

// norm launches layer norm, or RMS norm (which has no mean and bias), of x, or if more is set of x
// + more, which it stores at sum.
func (l *list) norm(k *runtime.Kernel, sum, x, more address) error {
	d, err := l.elem(k.Args[0])
	if err != nil {
		return err
	}
	at := func(t runtime.Tensor) address { return address(l.at(t)) }
	var mean, bias address
	var eps float64
	switch attr := k.Node.Attr.(type) {
	case ir.LayerNormAttr:
		mean, eps = at(k.Results[1]), attr.Eps
	case ir.RMSNormAttr:
		eps = attr.Eps
	}
	if len(k.Args) > 2 {
		bias = at(k.Args[2])
	}
	m, n := rows(k.Args[0])
	name, _ := forRows("norm", d, n)
	l.run("norm.cu", name, d, warpRows(m), block256, 0, at(k.Results[0]), sum, mean, at(k.Results[len(k.Results)-1]), x, more,
		at(k.Args[1]), bias, m, n, float32(eps))
	return nil
}

// normGrad launches the gradient of either norm. In a group, the next kernel adds something to it.
func normGrad(l *list) error {
	d, err := l.elem(l.Args[0])
	if err != nil {
		return err
	}
	var mean address
	rstd := l.arg(3)
	if len(l.Args) > 4 {
		mean, rstd = rstd, l.arg(4)
	}
	dx, more := l.result(0), address(0)
	if len(l.group) > 1 {
		sum := l.group[1]
		dx, more = address(l.at(sum.Results[0])), address(l.at(sum.Args[0]))
		if sum.Node.Args[0] == l.Node.Results[0] {
			more = address(l.at(sum.Args[1]))
		}
	}
	m, n := rows(l.Args[0])
	// some launches the gradient for m rows from row first on. It returns partial sums for weight
	// and bias.
	some := func(first, m int64) (part address, parts int64) {
		row := n * d.Size()
		name, packs := forRows("norm_grad", d, n)
		chunk, threads, shared := max((m+1023)/1024, 8), min(256, (row+16*32-1)/(16*32)*32), 8*n
		if packs > 0 { // 4 warps with as many rows each; about 4 blocks on each multiprocessor of an H100
			chunk, threads, shared = max((m+4*512-1)/(4*512)*4, 8), 128, 2*8*n
		}
		parts = (m + chunk - 1) / chunk
		part = l.temp(4 * 2 * parts * n)
		at := func(a address, bytes int64) address {
			if a == 0 {
				return 0
			}
			return a + address(first*bytes)
		}
		l.run("norm.cu", name, d, blocks(parts, 1), [3]uint32{uint32(threads), 1, 1}, int(shared), at(dx, row), part, at(l.arg(0), row),
			at(l.arg(1), row), at(more, row), l.arg(2), at(mean, 4), at(rstd, 4), m, n, chunk)
		return part, parts
	}
	if ir.Frac(l.Node.Attr) > 0 {
		return l.normGradFixed(some)
	}
	part, parts := some(0, m)
	for i := 1; i < len(l.Results); i++ {
		l.columns(i, part+address(4*int64(i-1)*n), parts, n, 2*n)
	}
	return nil
}

func rope(l *list) error {
	d, err := l.elem(l.Args[0])
	if err != nil {
		return err
	}
	attr, s := l.Node.Attr.(ir.RoPEAttr), l.Args[0].Slab.Local
	inverse, length := int32(0), s[1]
	if attr.Rows {
		length *= s[0]
	}
	if attr.Inverse {
		inverse = 1
	}
	l.run("rope.cu", "rope", d, blocks(int64(s[0]*s[1]), 1), block256, 4*s[4], l.result(0), l.arg(0), l.arg(1), int32(length),
		int32((s[2]-1)*s[3]), int32(s[3]), int32(s[4]), attr.Theta, attr.Factor, attr.Low,
		attr.High, float64(attr.Original), inverse)
	return nil
}

// perRow launches a function of loss.cu, with one block per row of logits.
func (l *list) perRow(name string, args ...any) error {
	d, err := l.elem(l.Args[0])
	if err != nil {
		return err
	}
	m, _ := rows(l.Args[0])
	l.run("loss.cu", name, d, blocks(m, 1), block256, 0, args...)
	return nil
}

func rowMax(l *list) error {
	_, n := rows(l.Args[0])
	return l.perRow("row_max", l.result(0), l.arg(0), n)
}

func rowSumExp(l *list) error {
	_, n := rows(l.Args[0])
	return l.perRow("row_sum_exp", l.result(0), l.arg(0), l.arg(1), n)
}

// rowMaxSumExp is a group: row_max and row_sum_exp.
func rowMaxSumExp(l *list) error {
	_, n := rows(l.Args[0])
	return l.perRow("row_max_sum_exp", l.result(0), address(l.at(l.group[1].Results[0])), l.arg(0), n)
}

func rowPick(l *list) error {
	d, err := l.elem(l.Args[0])
	if err != nil {
		return err
	}
	m, n := rows(l.Args[0])
	first, all := last(l.Args[0])
	l.run("loss.cu", "row_pick", d, blocks(m, 256), block256, 0, l.result(0), l.arg(0), l.arg(1), m, n, first, all)
	return nil
}

// crossEntropyGrad gives each thread 4 times 16 bytes of a row.
func crossEntropyGrad(l *list) error {
	d, err := l.elem(l.Args[0])
	if err != nil {
		return err
	}
	m, n := rows(l.Args[0])
	first, all := last(l.Args[0])
	piece := 4 * 16 * 256 / d.Size()
	pieces := (n + piece - 1) / piece
	l.run("loss.cu", "cross_entropy_grad", d, blocks(m*pieces, 1), block256, 0, l.result(0), l.arg(0), l.arg(1), l.arg(2), l.arg(3), l.arg(4),
		n, first, all, int32(pieces), int32(piece))
	return nil
}
