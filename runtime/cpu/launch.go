package cpu

import (
	"fmt"
	"math"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu/kernel"
)

// launch runs one op.
type launch func(d *Device, k *runtime.Kernel) error

// launches has one entry for each op that needs no other rank.
var launches = [...]launch{
	ir.OpAdd:        add,
	ir.OpAddN:       addN,
	ir.OpScale:      scale,
	ir.OpSumTo:      sumTo,
	ir.OpExpand:     expand,
	ir.OpSum:        sum,
	ir.OpSumSquares: sumSquares,
	ir.OpSqrt:       sqrt,
	ir.OpClipScale:  clipScale,
	ir.OpCast:       cast,

	ir.OpFromFixed:    fromFixed,
	ir.OpFixedSquares: fixedSquares,
	ir.OpFixedRoot:    fixedRoot,

	ir.OpMatMul:          matMul,
	ir.OpEmbedding:       embedding,
	ir.OpEmbeddingGrad:   embeddingGrad,
	ir.OpLayerNorm:       layerNorm,
	ir.OpLayerNormGrad:   layerNormGrad,
	ir.OpRMSNorm:         rmsNorm,
	ir.OpRMSNormGrad:     rmsNormGrad,
	ir.OpGELU:            gelu,
	ir.OpGELUGrad:        geluGrad,
	ir.OpSwiGLU:          swiGLU,
	ir.OpSwiGLUGrad:      swiGLUGrad,
	ir.OpRoPE:            rope,
	ir.OpDropout:         dropout,
	ir.OpAttention:       attention,
	ir.OpAttentionGrad:   attentionGrad,
	ir.OpAttentionDecode: attentionDecode,
	ir.OpKeysValues:      keysValues,
	ir.OpAttentionKV:     attentionKV,
	ir.OpAttentionKVGrad: attentionKVGrad,
	ir.OpJoinQKV:         joinQKV,

	ir.OpRows:     someRows,
	ir.OpJoinRows: joinRows,

	ir.OpRowMax:           rowMax,
	ir.OpRowSumExp:        rowSumExp,
	ir.OpRowPick:          rowPick,
	ir.OpNLL:              nll,
	ir.OpCrossEntropyGrad: crossEntropyGrad,

	ir.OpAdamW:     adamW,
	ir.OpLossScale: lossScale,

	ir.OpSlice:      slice,
	ir.OpFold:       fold,
	ir.OpUnfold:     unfold,
	ir.OpToPartial:  toPartial,
	ir.OpAccumulate: accumulate,
	ir.OpFetch:      copyBetween,
	ir.OpStash:      copyBetween,
}

// Launch runs a kernel on the compute stream.
func (d *Device) Launch(k *runtime.Kernel) error {
	if err := d.Check(k); err != nil {
		return err
	}
	if err := d.enter(); err != nil {
		return err
	}
	defer d.pool.Offer()
	if run := launches[k.Node.Op]; !isHalf(k) {
		return run(d, k)
	} else {
		return d.launchHalf(k, run)
	}
}

// Check implements [runtime.Checker].
func (d *Device) Check(k *runtime.Kernel) error {
	op := k.Node.Op
	if int(op) >= len(launches) || launches[op] == nil {
		return fmt.Errorf("cpu: no kernel for %s", op)
	}
	for i, acc := range k.Accum {
		if acc && !op.Accumulates(i) && op != ir.OpAccumulate {
			return fmt.Errorf("cpu: %s cannot add into result %d", op, i)
		}
	}
	for i, t := range k.Args {
		if !known(t.DType) {
			return fmt.Errorf("cpu: no kernel for %s with operand %d of %s", op, i, t.DType)
		}
	}
	for i, t := range k.Results {
		moved := op == ir.OpFold || op == ir.OpUnfold || op == ir.OpSlice || op == ir.OpRows // it only moves elements, of any type
		if !known(t.DType) || t.DType == ir.I32 && !moved {
			return fmt.Errorf("cpu: no kernel for %s with result %d of %s", op, i, t.DType)
		}
	}
	return nil
}

// known reports whether kernels can read an element type.
func known(d ir.DType) bool { return d.Float() || d == ir.I32 || d == ir.Q64 }

// arg returns the elements of an operand, result those of a result.
func (d *Device) arg(k *runtime.Kernel, i int) []float32    { return d.floats(k.Args[i]) }
func (d *Device) result(k *runtime.Kernel, i int) []float32 { return d.floats(k.Results[i]) }

// rows returns the product of the leading dimensions of a part, and its last dimension.
func rows(t runtime.Tensor) (rows, cols int) { return split(t, 1) }

// split returns how many elements the leading dimensions of a part have, and how many its last n.
func split(t runtime.Tensor, n int) (rows, cols int) {
	at := len(t.Slab.Local) - n
	return int(ir.Elems(t.Slab.Local[:at])), int(ir.Elems(t.Slab.Local[at:]))
}

// lastOffset returns the offset of a part in the last dimension.
func lastOffset(t runtime.Tensor) int { return t.Slab.Offset[len(t.Slab.Offset)-1] }

func add(d *Device, k *runtime.Kernel) error {
	a, b, y := d.arg(k, 0), d.arg(k, 1), d.result(k, 0)
	if len(a) == len(b) {
		kernel.Add(d.pool, y, a, b)
	} else if len(b) > 0 {
		kernel.AddBias(d.pool, len(a)/len(b), len(b), y, a, b)
	}
	return nil
}

func addN(d *Device, k *runtime.Kernel) error {
	if k.Results[0].DType == ir.Q64 {
		return addNFixed(d, k)
	}
	y := d.result(k, 0)
	if len(k.Args) == 1 {
		kernel.Copy(d.pool, y, d.arg(k, 0))
		return nil
	}
	kernel.Add(d.pool, y, d.arg(k, 0), d.arg(k, 1))
	for i := 2; i < len(k.Args); i++ {
		kernel.AddInto(d.pool, y, d.arg(k, i))
	}
	return nil
}

func scale(d *Device, k *runtime.Kernel) error {
	kernel.Scale(d.pool, d.result(k, 0), d.arg(k, 0), d.arg(k, 1)[0])
	return nil
}

func sumTo(d *Device, k *runtime.Kernel) error {
	if ir.Frac(k.Node.Attr) > 0 {
		return sumToFixed(d, k)
	}
	m, n := split(k.Args[0], k.Node.Attr.(ir.SumToAttr).Keep)
	kernel.ColSum(d.pool, m, n, d.result(k, 0), d.arg(k, 0), k.Accum[0])
	return nil
}

// expand repeats x over y. It doubles what is filled.
func expand(d *Device, k *runtime.Kernel) error {
	x, y := d.arg(k, 0), d.result(k, 0)
	for n := copy(y, x); n > 0 && n < len(y); n *= 2 {
		copy(y[n:], y[:n])
	}
	return nil
}

func sum(d *Device, k *runtime.Kernel) error {
	put(d.result(k, 0), kernel.Sum(d.pool, d.arg(k, 0)), k.Accum[0])
	return nil
}

func sumSquares(d *Device, k *runtime.Kernel) error {
	put(d.result(k, 0), float32(kernel.SumSquares(d.pool, d.arg(k, 0))), false)
	return nil
}

func put(y []float32, x float32, accum bool) {
	if accum {
		x += y[0]
	}
	y[0] = x
}

func sqrt(d *Device, k *runtime.Kernel) error {
	d.result(k, 0)[0] = float32(math.Sqrt(float64(d.arg(k, 0)[0])))
	return nil
}

// cast converts a value between types. launchHalf has widened both to f32.
func cast(d *Device, k *runtime.Kernel) error {
	if k.Accum[0] {
		kernel.AddInto(d.pool, d.result(k, 0), d.arg(k, 0))
	} else if k.Args[0].Offset != k.Results[0].Offset {
		kernel.Copy(d.pool, d.result(k, 0), d.arg(k, 0))
	}
	return nil
}

// lossScale is the update of torch.amp.GradScaler: see package interp.
func lossScale(d *Device, k *runtime.Kernel) error {
	a := k.Node.Attr.(ir.LossScaleAttr)
	scale, good, skipped := d.arg(k, 0)[0], d.arg(k, 1)[0], d.arg(k, 2)[0]
	unscale := 1 / scale
	switch norm := float64(d.arg(k, 3)[0]); {
	case math.IsInf(norm, 0) || math.IsNaN(norm):
		scale, good, skipped, unscale = scale*float32(a.Backoff), 0, skipped+1, 0
	case good+1 == float32(a.Interval):
		scale, good = min(scale*float32(a.Growth), max(scale, 1<<126)), 0
	default:
		good++
	}
	for i, x := range [...]float32{scale, good, skipped, unscale} {
		d.result(k, i)[0] = x
	}
	return nil
}

func clipScale(d *Device, k *runtime.Kernel) error {
	norm := float64(d.arg(k, 0)[0])
	d.result(k, 0)[0] = float32(min(1, k.Node.Attr.(ir.ClipAttr).MaxNorm/(norm+1e-6)))
	return nil
}

// adamW updates weight and moments in place. If the new values have other places it copies the old
// ones there first.
func adamW(d *Device, k *runtime.Kernel) error {
	a := k.Node.Attr.(ir.AdamWAttr)
	for i := range k.Results {
		if k.Results[i].Offset != k.Args[i].Offset {
			kernel.Copy(d.pool, d.result(k, i), d.arg(k, i))
		}
	}
	step := float64(d.ints(k.Args[6])[0]) + 1
	if len(k.Args) > 7 {
		if step -= float64(d.arg(k, 7)[0]); !(d.arg(k, 4)[0] > 0) {
			return nil // the loss scaler skips the step
		}
	}
	kernel.AdamW(d.pool, d.result(k, 0), d.result(k, 1), d.result(k, 2), d.arg(k, 3), kernel.AdamWArgs{
		LR: d.arg(k, 5)[0], Eps: float32(a.Eps), WeightDecay: float32(a.WeightDecay), Beta1: a.Beta1, Beta2: a.Beta2,
		BiasCorrection1: float32(1 - math.Pow(a.Beta1, step)),
		BiasCorrection2: float32(1 - math.Pow(a.Beta2, step)),
		GradScale:       d.arg(k, 4)[0],
	})
	return nil
}

// slice copies the rank's part of a value that it holds more of.
func slice(d *Device, k *runtime.Kernel) error {
	if k.Results[0].DType == ir.Q64 {
		copyPart(k, d.fixed(k.Results[0]), d.fixed(k.Args[0]))
	} else {
		copyPart(k, d.result(k, 0), d.arg(k, 0))
	}
	return nil
}

// copyPart copies what two parts of a value have in common, except what is in place.
func copyPart[E element](k *runtime.Kernel, y, x []E) {
	ir.EachRun(k.Args[0].Slab, k.Results[0].Slab, func(from, to, n int) {
		if n > 0 && &y[to] != &x[from] {
			copy(y[to:to+n], x[from:from+n])
		}
	})
}

// toPartial makes a replicated value a partial sum, of which the first rank holds all and the
// others zeros.
func toPartial(d *Device, k *runtime.Kernel) error {
	if y := d.words(k.Results[0]); k.Position > 0 {
		clear(y)
	} else if k.Args[0].Offset != k.Results[0].Offset {
		kernel.Copy(d.pool, y, d.words(k.Args[0]))
	}
	return nil
}

// copyBetween copies a value of any type from one space to the other.
func copyBetween(d *Device, k *runtime.Kernel) error {
	kernel.Copy(d.pool, d.words(k.Results[0]), d.words(k.Args[0]))
	return nil
}

func accumulate(d *Device, k *runtime.Kernel) error {
	if k.Results[0].DType == ir.Q64 {
		return accumulateFixed(d, k)
	}
	if k.Accum[0] {
		kernel.AddInto(d.pool, d.result(k, 0), d.arg(k, 0))
	} else {
		kernel.Copy(d.pool, d.result(k, 0), d.arg(k, 0))
	}
	return nil
}
