package kernel

import (
	"fmt"

	"github.com/autopar/autopar/ir"
)

// Context says where queries and keys of context-parallel attention lie: Queries are the rows of
// qkv on this rank, Keys all rows of kv, both by position (see ir.FoldRuns).
type Context struct{ Queries, Keys []ir.Run }

// rows returns the number of rows of queries.
func (c Context) rows() int {
	n := 0
	for _, r := range c.Queries {
		n += r.Len
	}
	return n
}

func (c Context) check(function string, shape AttentionShape) {
	n := 0
	for _, r := range c.Keys {
		n += r.Len
	}
	if n != shape.T {
		panic(fmt.Sprintf("BUG: kernel.%s: %d keys in runs, %d positions", function, n, shape.T))
	}
}

// place takes the rows of a context.
func (s *heads) place(c Context) {
	s.queries, s.rows, s.keys = c.Queries, c.rows(), c.Keys
}

// putBack copies gradients in the order of positions to the rows of keys or values.
func (s *heads) putBack(to matrix, by []float32) {
	for _, run := range s.keys {
		for i := range run.Len {
			copy(to.data[(run.Row+i)*to.rs:][:s.D], by[(run.Pos+i)*s.D:][:s.D])
		}
	}
}

// AttentionKV is Attention of the queries of qkv[B,Q,G+2,H,D] to the keys and values of
// kv[B,T,2,H,D]. where gives the positions of the rows of both. It sets o[B,Q,G,H,D] and
// lse[B,G,H,Q]. Tiles above the diagonal are skipped.
func AttentionKV(p *Pool, o, lse, qkv, kv []float32, shape AttentionShape, where Context, drop DropoutArgs) {
	const name = "AttentionKV"
	shape.check(name, drop)
	where.check(name, shape)
	rows, group, parts := where.rows(), shape.group(), shape.parts()
	shape.checkOperands(name, rows, qkv, lse, o)
	checkLen(name, "kv", kv, 2*shape.B*shape.T*shape.H*shape.D)
	p = p.orInline()
	t := &p.task.attention
	*t = attentionTask{
		heads: heads{AttentionShape: shape, drop: drop, mask: newMask(drop.P, drop.Key)}, o: packed{o, rows, group, 0}, lse: lse,
		q: packed{qkv, rows, parts, 0}, k: packed{kv, shape.T, 2, 0}, v: packed{kv, shape.T, 2, 1},
	}
	t.place(where)
	p.run(t, shape.B*shape.H, 1)
}

// AttentionKVGrad sets dq[B,Q,G,H,D] to the gradient of AttentionKV's queries, and dkv[B,T,2,H,D]
// to their contribution to the gradient of all keys and values. The other operands are as in
// AttentionGrad.
func AttentionKVGrad(p *Pool, dq, dkv, do, qkv, kv, o, lse []float32, shape AttentionShape, where Context, drop DropoutArgs) {
	const name = "AttentionKVGrad"
	shape.check(name, drop)
	where.check(name, shape)
	rows, group, parts := where.rows(), shape.group(), shape.parts()
	shape.checkOperands(name, rows, qkv, lse, o, do, dq)
	checkLen(name, "kv", kv, 2*shape.B*shape.T*shape.H*shape.D)
	checkLen(name, "dkv", dkv, len(kv))
	p = p.orInline()
	t := &p.task.attnGrad
	*t = attentionGradTask{
		heads: heads{AttentionShape: shape, drop: drop, mask: newMask(drop.P, drop.Key)}, lse: lse,
		dout: packed{do, rows, group, 0}, o: packed{o, rows, group, 0},
		q: packed{qkv, rows, parts, 0}, k: packed{kv, shape.T, 2, 0}, v: packed{kv, shape.T, 2, 1},
		dq: packed{dq, rows, group, 0}, dk: packed{dkv, shape.T, 2, 0}, dv: packed{dkv, shape.T, 2, 1},
	}
	t.place(where)
	p.run(t, shape.B*shape.H, 1)
}

// CopyRows copies rows of n elements from one tensor to another. The strides are the distances
// between rows.
func CopyRows(p *Pool, rows, n int, to []float32, toStride int, from []float32, fromStride int) {
	p = p.orInline()
	p.task.copyRows = copyRowsTask{n: n, to: to, from: from, toStride: toStride, fromStride: fromStride}
	p.run(&p.task.copyRows, rows, rowGrain(n, grainLight))
}

type copyRowsTask struct {
	n                    int
	to, from             []float32
	toStride, fromStride int
}

func (t *copyRowsTask) do(_ *worker, lo, hi int) {
	for r := lo; r < hi; r++ {
		copy(t.to[r*t.toStride:][:t.n], t.from[r*t.fromStride:])
	}
}
