package cpu

import (
	"fmt"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/philox"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu/kernel"
)

func matMul(d *Device, k *runtime.Kernel) error {
	attr := k.Node.Attr.(ir.MatMulAttr)
	if attr.Frac > 0 {
		return matMulFixed(d, k)
	}
	a, b, y := d.arg(k, 0), d.arg(k, 1), d.result(k, 0)
	// The contracted dimensions are the last of a, or with TN the first.
	switch attr.Form {
	case ir.MatMulNT:
		m, inner := split(k.Args[0], attr.K)
		n, _ := split(k.Args[1], attr.K)
		kernel.MatMulNT(d.pool, m, n, inner, a, b, y, k.Accum[0])
	case ir.MatMulNN:
		m, inner := split(k.Args[0], attr.K)
		_, n := split(k.Args[1], len(k.Args[1].Slab.Local)-attr.K)
		kernel.MatMulNN(d.pool, m, n, inner, a, b, y, k.Accum[0])
	case ir.MatMulTN:
		inner, m := split(k.Args[0], len(k.Args[0].Slab.Local)-attr.K)
		_, n := split(k.Args[1], len(k.Args[1].Slab.Local)-attr.K)
		kernel.MatMulTN(d.pool, m, n, inner, a, b, y, k.Accum[0])
	}
	return nil
}

func embedding(d *Device, k *runtime.Kernel) error {
	table, ids := k.Args[0], d.ints(k.Args[1])
	if err := checkIDs("id", ids, 0, table.Slab.Global[0]); err != nil {
		return err
	}
	kernel.Embedding(d.pool, table.Slab.Local[1], d.result(k, 0), d.floats(table), ids, table.Slab.Offset[0])
	return nil
}

func embeddingGrad(d *Device, k *runtime.Kernel) error {
	if ir.Frac(k.Node.Attr) > 0 {
		return embeddingGradFixed(d, k)
	}
	table, ids := k.Results[0], d.ints(k.Args[0])
	if err := checkIDs("id", ids, 0, table.Slab.Global[0]); err != nil {
		return err
	}
	kernel.EmbeddingGrad(d.pool, table.Slab.Local[1], d.floats(table), d.arg(k, 1), ids, table.Slab.Offset[0], k.Accum[0])
	return nil
}

// checkIDs returns an error for ids outside [lo, hi). On a rank with a part of a table they would
// look like rows of another part.
func checkIDs(what string, ids []int32, lo, hi int) error {
	for i, id := range ids {
		if int(id) < lo || int(id) >= hi {
			return fmt.Errorf("%s %d at index %d is out of range [%d, %d)", what, id, i, lo, hi)
		}
	}
	return nil
}

func layerNorm(d *Device, k *runtime.Kernel) error {
	attr := k.Node.Attr.(ir.LayerNormAttr)
	m, n := rows(k.Args[0])
	var b []float32
	if len(k.Args) > 2 {
		b = d.arg(k, 2)
	}
	kernel.LayerNorm(d.pool, m, n, d.result(k, 0), d.result(k, 1), d.result(k, 2), d.arg(k, 0), d.arg(k, 1), b, float32(attr.Eps))
	return nil
}

func layerNormGrad(d *Device, k *runtime.Kernel) error {
	if ir.Frac(k.Node.Attr) > 0 {
		return layerNormGradFixed(d, k)
	}
	m, n := rows(k.Args[0])
	dw, accum := d.result(k, 1), k.Accum[1]
	var db []float32
	if len(k.Results) > 2 {
		db = d.result(k, 2)
		// The kernel adds to both results or to none.
		switch accum = k.Accum[1] || k.Accum[2]; {
		case !accum:
		case !k.Accum[1]:
			clear(dw)
		case !k.Accum[2]:
			clear(db)
		}
	}
	kernel.LayerNormGrad(d.pool, m, n, d.result(k, 0), dw, db, d.arg(k, 0), d.arg(k, 1), d.arg(k, 2), d.arg(k, 3), d.arg(k, 4), accum)
	return nil
}

func rmsNorm(d *Device, k *runtime.Kernel) error {
	m, n := rows(k.Args[0])
	kernel.RMSNorm(d.pool, m, n, d.result(k, 0), d.result(k, 1), d.arg(k, 0), d.arg(k, 1), float32(k.Node.Attr.(ir.RMSNormAttr).Eps))
	return nil
}

func rmsNormGrad(d *Device, k *runtime.Kernel) error {
	if ir.Frac(k.Node.Attr) > 0 {
		return rmsNormGradFixed(d, k)
	}
	m, n := rows(k.Args[0])
	kernel.RMSNormGrad(d.pool, m, n, d.result(k, 0), d.result(k, 1), d.arg(k, 0), d.arg(k, 1), d.arg(k, 2), d.arg(k, 3), k.Accum[1])
	return nil
}

func gelu(d *Device, k *runtime.Kernel) error {
	kernel.GELU(d.pool, d.result(k, 0), d.arg(k, 0), k.Node.Attr.(ir.GELUAttr).Tanh)
	return nil
}

func geluGrad(d *Device, k *runtime.Kernel) error {
	kernel.GELUGrad(d.pool, d.result(k, 0), d.arg(k, 0), d.arg(k, 1), k.Node.Attr.(ir.GELUAttr).Tanh)
	return nil
}

func swiGLU(d *Device, k *runtime.Kernel) error {
	m, n := rows(k.Results[0])
	kernel.SwiGLU(d.pool, m, n, d.result(k, 0), d.arg(k, 0))
	return nil
}

func swiGLUGrad(d *Device, k *runtime.Kernel) error {
	m, n := rows(k.Args[1])
	kernel.SwiGLUGrad(d.pool, m, n, d.result(k, 0), d.arg(k, 0), d.arg(k, 1))
	return nil
}

func rope(d *Device, k *runtime.Kernel) error {
	attr, shape := k.Node.Attr.(ir.RoPEAttr), attentionShape(k.Args[0], k.Args[0])
	if attr.Rows { // all rows lie one after another, like the positions of one sequence
		shape.B, shape.T = 1, shape.B*shape.T
	}
	kernel.RoPE(d.pool, d.result(k, 0), d.arg(k, 0), d.ints(k.Args[1]), shape, func(i int) float64 { return attr.Frequency(i, shape.D) }, attr.Inverse)
	return nil
}

// maskKey identifies the mask of a dropout op, whose last two operands are seed and step.
func (d *Device) maskKey(k *runtime.Kernel) kernel.MaskKey {
	n := len(k.Args)
	seed, step := d.ints(k.Args[n-2])[0], d.ints(k.Args[n-1])[0]
	return kernel.MaskKey{Seed: uint64(uint32(seed)), Op: philox.OpKey(k.Node.Attr.(ir.DropoutAttr).Key), Step: uint32(step)}
}

func dropout(d *Device, k *runtime.Kernel) error {
	attr := k.Node.Attr.(ir.DropoutAttr)
	x, y, p := d.arg(k, 0), d.result(k, 0), attr.P
	if p == 0 {
		if k.Args[0].Offset != k.Results[0].Offset {
			kernel.Copy(d.pool, y, x)
		}
		return nil
	}
	if attr.Fold > 1 {
		d.foldedDropout(k, y, x)
		return nil
	}
	kernel.Dropout(d.pool, y, x, p, d.maskKey(k), kernel.Slab(k.Results[0].Slab))
	return nil
}

// attentionShape describes attention of packed queries, keys and values [B,...,G+2,NH,D] to keys in
// a tensor [B,T,...,NH,D], which may be the same.
func attentionShape(qkv, keys runtime.Tensor) kernel.AttentionShape {
	s := keys.Slab.Local
	return kernel.AttentionShape{B: s[0], T: s[1], H: s[3], D: s[4], G: qkv.Slab.Local[2] - 2}
}

// headShape is attentionShape of whole sequences, with the part of the mask.
func (d *Device) headShape(k *runtime.Kernel, qkv, keys runtime.Tensor) (kernel.AttentionShape, kernel.DropoutArgs) {
	s, attr, shape := keys.Slab, k.Node.Attr.(ir.DropoutAttr), attentionShape(qkv, keys)
	drop := kernel.DropoutArgs{P: attr.P}
	if drop.P > 0 {
		drop.Key, drop.BatchOffset, drop.HeadOffset, drop.GlobalHeads = d.maskKey(k), s.Offset[0], s.Offset[3], s.Global[3]
	}
	if attr.Parts > 0 {
		shape.B, shape.T, shape.Parts = shape.B/attr.Parts, shape.T*attr.Parts, attr.Parts
		drop.BatchOffset /= attr.Parts
	}
	return shape, drop
}

// only restricts attention to the query groups that its result [B,T,G,NH,D], or a value like it,
// holds.
func only(shape *kernel.AttentionShape, o runtime.Tensor) {
	if s := o.Slab; len(s.Local) == 5 {
		shape.First, shape.Count = s.Offset[2], s.Local[2]
	}
}

func attention(d *Device, k *runtime.Kernel) error {
	shape, drop := d.headShape(k, k.Args[0], k.Args[0])
	only(&shape, k.Results[0])
	kernel.Attention(d.pool, d.result(k, 0), d.result(k, 1), d.arg(k, 0), shape, drop)
	return nil
}

func attentionGrad(d *Device, k *runtime.Kernel) error {
	shape, drop := d.headShape(k, k.Args[1], k.Args[1])
	only(&shape, k.Args[0])
	kernel.AttentionGrad(d.pool, d.result(k, 0), d.arg(k, 0), d.arg(k, 1), d.arg(k, 2), d.arg(k, 3), shape, drop)
	return nil
}

// attentionDecode updates the cache [B,T,2,NH,D] in place. If the new cache has another place it
// copies it there first.
func attentionDecode(d *Device, k *runtime.Kernel) error {
	shape, pos := attentionShape(k.Args[0], k.Args[1]), int(d.ints(k.Args[2])[0])
	if pos < 0 || pos >= shape.T {
		return fmt.Errorf("pos %d is out of range [0, %d)", pos, shape.T)
	}
	if k.Results[1].Offset != k.Args[1].Offset {
		kernel.Copy(d.pool, d.result(k, 1), d.arg(k, 1))
	}
	kernel.AttentionDecode(d.pool, d.result(k, 0), d.arg(k, 0), d.result(k, 1), shape, pos)
	return nil
}

func rowMax(d *Device, k *runtime.Kernel) error {
	m, n := rows(k.Args[0])
	kernel.RowMax(d.pool, m, n, d.result(k, 0), d.arg(k, 0))
	return nil
}

func rowSumExp(d *Device, k *runtime.Kernel) error {
	m, n := rows(k.Args[0])
	kernel.RowSumExp(d.pool, m, n, d.result(k, 0), d.arg(k, 0), d.arg(k, 1))
	return nil
}

func rowPick(d *Device, k *runtime.Kernel) error {
	x, targets := k.Args[0], d.ints(k.Args[1])
	m, n := rows(x)
	if err := checkTargets(targets, x); err != nil {
		return err
	}
	kernel.RowPick(d.pool, m, n, d.result(k, 0), d.arg(k, 0), targets, lastOffset(x))
	return nil
}

// checkTargets returns an error for targets beyond the vocabulary. Negative targets are ignored
// tokens.
func checkTargets(targets []int32, logits runtime.Tensor) error {
	const lowest = -1 << 31
	return checkIDs("target", targets, lowest, logits.Slab.Global[len(logits.Slab.Global)-1])
}

func nll(d *Device, k *runtime.Kernel) error {
	kernel.NLL(d.pool, d.result(k, 0), d.arg(k, 0), d.arg(k, 1), d.arg(k, 2), d.ints(k.Args[3]))
	return nil
}

func crossEntropyGrad(d *Device, k *runtime.Kernel) error {
	x, targets := k.Args[0], d.ints(k.Args[3])
	m, n := rows(x)
	if err := checkTargets(targets, x); err != nil {
		return err
	}
	kernel.CrossEntropyGrad(d.pool, m, n, d.result(k, 0), d.arg(k, 0), d.arg(k, 1), d.arg(k, 2), targets, lastOffset(x), d.arg(k, 4))
	return nil
}
