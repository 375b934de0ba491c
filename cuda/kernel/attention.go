package kernel

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// maxWidth is the largest head size for which there is a kernel.
const maxWidth = 256

// heads describes an attention to its kernels: see heads.cu.
type heads struct {
	dtype              ir.DType
	batch, rows        int // of queries, of whole sequences
	parts              int // rows of the batch that are one sequence
	keys, heads, width int // number of keys, of heads of keys and values, and elements of a head
	packed             int // groups of queries in the operand qkv
	first, groups      int // the groups that this rank computes
	q, k, v            address
	rowQ, rowKV        int64 // how far apart rows are, in elements
	params             []any // the parameters HEADS_PARAMS of heads.cu
	tensorCores        bool
}

// part returns how many elements one query, key or value has in all heads.
func (h *heads) part() int64 { return int64(h.heads * h.width) }

// attentionHeads describes the operands: qkv; kv, which is another tensor if keys and values lie
// apart; and o, or a tensor of the same layout.
func (l *list) attentionHeads(qkv, kv, o runtime.Tensor) (*heads, error) {
	d, err := l.elem(qkv)
	if err != nil {
		return nil, err
	}
	apart := l.Node.Op == ir.OpAttentionKV || l.Node.Op == ir.OpAttentionKVGrad
	s, attr := kv.Slab, l.Node.Attr.(ir.DropoutAttr)
	parts := max(1, attr.Parts)
	h := &heads{
		dtype: d, batch: s.Local[0] / parts, keys: s.Local[1] * parts, heads: s.Local[3], width: s.Local[4],
		rows: qkv.Slab.Local[1] * parts, packed: qkv.Slab.Local[2] - 2, parts: parts,
	}
	h.groups = h.packed
	if so := o.Slab; len(so.Local) == 5 && !apart {
		h.first, h.groups = so.Offset[2], so.Local[2]
	}
	if h.width > maxWidth {
		return nil, l.errorf(" with heads of %d elements, want at most %d", h.width, maxWidth)
	}
	size := d.Size()
	h.rowQ = int64(h.packed+2) * h.part()
	h.q = address(l.at(qkv)) + address(int64(h.first)*h.part()*size)
	if apart {
		h.k, h.rowKV = address(l.at(kv)), 2*h.part()
	} else {
		h.k, h.rowKV = address(l.at(qkv))+address(int64(h.packed)*h.part()*size), h.rowQ
	}
	h.v = h.k + address(h.part()*size)
	h.params = []any{
		h.rowQ, h.rowKV, int32(h.rows), int32(h.keys), int32(h.heads), int32(h.groups), int32(h.width), int32(qkv.Slab.Offset[1]),
		int32(attr.Fold), float32(1 / math.Sqrt(float64(h.width))),
	}
	h.params = append(h.params, l.mask()...)
	h.params = append(h.params, int32(h.first), int32(h.packed), int32(s.Offset[3]), int32(s.Global[3]), int32(s.Offset[0]/parts),
		int32(qkv.Slab.Local[1]), int32(s.Local[1]))
	h.tensorCores = d.Half() && (h.width == 64 || h.width == 128)
	return h, nil
}

// grid returns the grid with a block for every tile of n rows, every head and every sequence.
func (h *heads) grid(n, tile, heads int) [3]uint32 {
	return [3]uint32{uint32((n + tile - 1) / tile), uint32(heads), uint32(h.batch)}
}

// class returns the head size for which a kernel without tensor cores is compiled.
func (h *heads) class() int {
	switch {
	case h.width <= 64:
		return 64
	case h.width <= 128:
		return 128
	}
	return maxWidth
}

// tileBytes returns the shared memory of rows tiles with 32 rows of a head, and of probs tiles of
// 32 by 32 probabilities.
func (h *heads) tileBytes(rows, probs int) int { return 4*32*(h.width+1)*rows + 4*32*33*probs }

// attention launches OpAttention and OpAttentionKV.
func attention(l *list) error {
	kv := l.Args[0]
	if l.Node.Op == ir.OpAttentionKV {
		kv = l.Args[1]
	}
	h, err := l.attentionHeads(l.Args[0], kv, l.Results[0])
	if err != nil {
		return err
	}
	args := append([]any{l.result(0), l.result(1), h.q, h.k, h.v}, h.params...)
	queryHeads := h.groups * h.heads
	if h.tensorCores {
		l.run("attention_mma.cu", fmt.Sprintf("attention_mma_%d", h.width), h.dtype, h.grid(h.rows, 128, queryHeads), block256,
			int(h.dtype.Size())*h.width*(128+4*64), args...)
		return nil
	}
	l.run("attention.cu", fmt.Sprintf("attention_%d", h.class()), h.dtype, h.grid(h.rows, 32, queryHeads), block256, h.tileBytes(2, 1), args...)
	return nil
}

// packs returns the binary logarithm of how many threads it takes to read a row of a head 16 bytes
// each, rounded up, at most a warp.
func (h *heads) packs() int {
	packs := (h.width*int(h.dtype.Size()) + 15) / 16
	return min(5, bits.Len(uint(packs-1)))
}

// attentionGrad launches the gradients of both.
func attentionGrad(l *list) error {
	n := len(l.Args) - 3 // index of the log-sums, which come after o and before seed and step
	qkv, kv, o, lse := l.Args[1], l.Args[n-2], l.Args[n-1], l.arg(n)
	h, err := l.attentionHeads(qkv, kv, l.Args[0])
	if err != nil {
		return err
	}
	size := h.dtype.Size()
	dq, rowDQ, dk, rowDKV := l.result(0), int64(h.groups)*h.part(), address(0), 2*h.part()
	if l.Node.Op == ir.OpAttentionKVGrad {
		dk = l.result(1)
	} else {
		// Gradients of queries that other ranks compute are not part of this rank's partial sum.
		if err := l.clearGroups(h, 0, h.first); err != nil {
			return err
		}
		if err := l.clearGroups(h, h.first+h.groups, h.packed); err != nil {
			return err
		}
		dk, rowDQ, rowDKV = dq+address(int64(h.packed)*h.part()*size), h.rowQ, h.rowQ
		dq += address(int64(h.first) * h.part() * size)
	}
	dv := dk + address(h.part()*size)

	queryHeads := h.groups * h.heads
	delta := l.temp(4 * int64(h.batch) * int64(h.rows) * int64(queryHeads))
	split := h.packs()
	some := *h // parts of sequences as if they were whole: so the results lie like log-sums
	some.batch, some.rows = h.batch*h.parts, h.rows/h.parts
	l.run("attention_delta.cu", "attention_delta", h.dtype, some.grid(some.rows<<split, 256, queryHeads), block256, 0,
		delta, l.arg(0), address(l.at(o)), int32(some.rows), int32(queryHeads), int32(h.width), int32(split))
	rest := append([]any{l.arg(0), h.q, h.k, h.v, lse, delta}, h.params...)
	forQueries := append([]any{dq, rowDQ}, rest...)
	forKeys := append([]any{dk, dv, rowDKV}, rest...)
	if h.tensorCores {
		const step = 32
		name, tile, block := "_64", 128, block256
		if h.width == 128 {
			name, tile, block = "_128", 64, block128
		}
		shared := int(size) * h.width * (2*tile + 4*step)
		l.run("attention_mma_grad.cu", "attention_mma_dq"+name, h.dtype, h.grid(h.rows, tile, queryHeads), block, shared, forQueries...)
		l.run("attention_mma_grad.cu", "attention_mma_dkv"+name, h.dtype, h.grid(h.keys, tile, h.heads), block, shared+2*3*4*step, forKeys...)
		return nil
	}
	name := fmt.Sprintf("_%d", h.class())
	l.run("attention_grad.cu", "attention_dq"+name, h.dtype, h.grid(h.rows, 32, queryHeads), block256, h.tileBytes(4, 1), forQueries...)
	l.run("attention_grad.cu", "attention_dkv"+name, h.dtype, h.grid(h.keys, 32, h.heads), block256, h.tileBytes(4, 2)+3*4*32, forKeys...)
	return nil
}

// clearGroups clears the gradients of the queries of groups [from, to), in result 0.
func (l *list) clearGroups(h *heads, from, to int) error {
	size, n := h.dtype.Size(), int64(to-from)*h.part()
	return l.move(size, l.result(0)+address(int64(from)*h.part()*size), 0, Dim{int64(h.batch) * int64(h.rows), 0, h.rowQ}, Dim{n, 1, 1})
}

// attentionDecode updates the cache [B,T,2,NH,D] in place. If the new cache has another place it
// copies it there first.
func attentionDecode(l *list) error {
	qkv, cache := l.Args[0], l.Args[1]
	d, err := l.elem(qkv)
	if err != nil {
		return err
	}
	s, groups := cache.Slab.Local, qkv.Slab.Local[2]-2
	if s[4] > maxWidth {
		return l.errorf(" with heads of %d elements, want at most %d", s[4], maxWidth)
	}
	if l.moved(1, 1) {
		if err := l.move(d.Size(), l.result(1), l.arg(1), Dim{cache.Slab.Elems(), 1, 1}); err != nil {
			return err
		}
	}
	l.run("attention.cu", "attention_decode", d, [3]uint32{uint32(groups * s[3]), uint32(s[0]), 1}, [3]uint32{32, 1, 1}, 0,
		l.result(0), l.result(1), l.arg(0), l.arg(2), int32(s[1]), int32(s[3]), int32(groups), int32(s[4]), float32(1/math.Sqrt(float64(s[4]))))
	return nil
}
