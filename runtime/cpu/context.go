package cpu

import (
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu/kernel"
)

// Context parallelism: a rank holds rows of a folded sequence (see ir.FoldRuns).

// foldRuns returns the runs of consecutive positions in a part's rows of dimension dim.
func foldRuns(s ir.Slab, dim, parts int) []ir.Run {
	return ir.FoldRuns(s.Global[dim], parts, s.Offset[dim], s.Local[dim])
}

// fold copies the part's rows of a folded sequence from the whole sequence.
func fold(d *Device, k *runtime.Kernel) error {
	attr := k.Node.Attr.(ir.CommAttr)
	x, y, slab := d.arg(k, 0), d.result(k, 0), k.Results[0].Slab
	outer, inner := int(ir.Elems(slab.Local[:attr.Dim])), int(ir.Elems(slab.Local[attr.Dim+1:]))
	from, to := k.Args[0].Slab.Local[attr.Dim]*inner, slab.Local[attr.Dim]*inner
	for _, run := range foldRuns(slab, attr.Dim, attr.Parts) {
		row := (run.Row - slab.Offset[attr.Dim]) * inner
		for b := range outer {
			copy(y[b*to+row:][:run.Len*inner], x[b*from+run.Pos*inner:])
		}
	}
	return nil
}

// unfold copies the rows of a whole folded sequence to the order of positions.
func unfold(d *Device, k *runtime.Kernel) error {
	attr := k.Node.Attr.(ir.CommAttr)
	x, y, slab := d.arg(k, 0), d.result(k, 0), k.Results[0].Slab
	outer, inner := int(ir.Elems(slab.Local[:attr.Dim])), int(ir.Elems(slab.Local[attr.Dim+1:]))
	for _, run := range foldRuns(slab, attr.Dim, attr.Parts) {
		for b := range outer {
			first := b * slab.Local[attr.Dim] * inner
			copy(y[first+run.Pos*inner:][:run.Len*inner], x[first+run.Row*inner:])
		}
	}
	return nil
}

// foldedDropout is dropout of rows of a folded sequence. The mask is a function of positions, so
// each run of consecutive positions is done by itself.
func (d *Device) foldedDropout(k *runtime.Kernel, y, x []float32) {
	attr, slab := k.Node.Attr.(ir.DropoutAttr), k.Results[0].Slab
	outer, inner := slab.Local[:attr.Dim], int(ir.Elems(slab.Local[attr.Dim+1:]))
	part := kernel.Slab{Global: slab.Global, Offset: slices.Clone(slab.Offset), Local: slices.Clone(slab.Local)}
	for i := range outer {
		part.Local[i] = 1
	}
	for _, run := range foldRuns(slab, attr.Dim, attr.Fold) {
		part.Offset[attr.Dim], part.Local[attr.Dim] = run.Pos, run.Len
		for b := range int(ir.Elems(outer)) {
			for i, at := len(outer)-1, b; i >= 0; i-- {
				part.Offset[i] = slab.Offset[i] + at%outer[i]
				at /= outer[i]
			}
			lo := (b*slab.Local[attr.Dim] + run.Row - slab.Offset[attr.Dim]) * inner
			hi := lo + run.Len*inner
			kernel.Dropout(d.pool, y[lo:hi], x[lo:hi], attr.P, d.maskKey(k), part)
		}
	}
}

// keysValues copies what follows the queries at each position.
func keysValues(d *Device, k *runtime.Kernel) error {
	qkv, kv := d.arg(k, 0), d.result(k, 0)
	all, some, rows := rowElems(k.Args[0]), rowElems(k.Results[0]), positions(k.Results[0])
	if rows > 0 {
		kernel.CopyRows(d.pool, rows, some, kv, some, qkv[all-some:], all)
	}
	return nil
}

func joinQKV(d *Device, k *runtime.Kernel) error {
	dqkv, rows := d.result(k, 0), positions(k.Results[0])
	all, queries, some := rowElems(k.Results[0]), rowElems(k.Args[0]), rowElems(k.Args[1])
	if rows > 0 {
		kernel.CopyRows(d.pool, rows, queries, dqkv, all, d.arg(k, 0), queries)
		kernel.CopyRows(d.pool, rows, some, dqkv[queries:], all, d.arg(k, 1), some)
	}
	return nil
}

// positions returns how many positions a part [B,T,...] has, rowElems how many elements one of them
// has.
func positions(t runtime.Tensor) int { return int(ir.Elems(t.Slab.Local[:2])) }
func rowElems(t runtime.Tensor) int  { return int(ir.Elems(t.Slab.Local[2:])) }

// context describes attention of queries qkv to keys and values kv: its shape, the positions of
// both, and the part of the mask.
func (d *Device) context(k *runtime.Kernel, qkv, kv runtime.Tensor) (kernel.AttentionShape, kernel.Context, kernel.DropoutArgs) {
	shape, drop := d.headShape(k, qkv, kv)
	return shape, kernel.Context{Queries: sequenceRuns(k, qkv.Slab), Keys: sequenceRuns(k, kv.Slab)}, drop
}

// sequenceRuns returns the runs of consecutive positions of a sequence in a part [B,T,...] of queries or keys, which may
// have several rows of the batch for it.
func sequenceRuns(k *runtime.Kernel, s ir.Slab) (runs []ir.Run) {
	attr := k.Node.Attr.(ir.DropoutAttr)
	for row := range max(1, attr.Parts) {
		for _, r := range foldRuns(s, 1, attr.Fold) {
			runs = append(runs, ir.Run{Row: row*s.Local[1] + r.Row - s.Offset[1], Pos: row*s.Global[1] + r.Pos, Len: r.Len})
		}
	}
	return runs
}

func attentionKV(d *Device, k *runtime.Kernel) error {
	shape, where, drop := d.context(k, k.Args[0], k.Args[1])
	kernel.AttentionKV(d.pool, d.result(k, 0), d.result(k, 1), d.arg(k, 0), d.arg(k, 1), shape, where, drop)
	return nil
}

func attentionKVGrad(d *Device, k *runtime.Kernel) error {
	shape, where, drop := d.context(k, k.Args[1], k.Args[2])
	kernel.AttentionKVGrad(d.pool, d.result(k, 0), d.result(k, 1), d.arg(k, 0), d.arg(k, 1), d.arg(k, 2), d.arg(k, 3), d.arg(k, 4),
		shape, where, drop)
	return nil
}

// someRows copies some positions of every sequence. joinRows joins such parts.
func someRows(d *Device, k *runtime.Kernel) error {
	some, all := k.Results[0], k.Args[0]
	n, stride := perSequence(some), perSequence(all)
	d.copyPositions(some, n, d.result(k, 0), n, d.arg(k, 0)[min(k.Node.Attr.(ir.RowsAttr).Part*n, len(d.arg(k, 0))):], stride)
	return nil
}

func joinRows(d *Device, k *runtime.Kernel) error {
	stride, at := perSequence(k.Results[0]), 0
	for i, x := range k.Args {
		n := perSequence(x)
		d.copyPositions(x, n, d.result(k, 0)[min(at, len(d.result(k, 0))):], stride, d.arg(k, i), n)
		at += n
	}
	return nil
}

// perSequence returns how many elements of a part belong to one sequence.
func perSequence(t runtime.Tensor) int { return int(ir.Elems(t.Slab.Local[1:])) }

// copyPositions copies n elements of each sequence of a part.
func (d *Device) copyPositions(part runtime.Tensor, n int, to []float32, toStride int, from []float32, fromStride int) {
	if sequences := part.Slab.Local[0]; sequences > 0 && n > 0 {
		kernel.CopyRows(d.pool, sequences, n, to, toStride, from, fromStride)
	}
}
