package kernel

import "github.com/autopar/autopar/ir"

// ops has one entry for each op that needs neither another rank nor a library.
var ops = [...]func(l *list) error{
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

	ir.OpEmbedding:       embedding,
	ir.OpEmbeddingGrad:   embeddingGrad,
	ir.OpLayerNorm:       layerNorm,
	ir.OpLayerNormGrad:   normGrad,
	ir.OpRMSNorm:         rmsNorm,
	ir.OpRMSNormGrad:     normGrad,
	ir.OpGELU:            gelu,
	ir.OpGELUGrad:        gelu,
	ir.OpSwiGLU:          swiGLU,
	ir.OpSwiGLUGrad:      swiGLUGrad,
	ir.OpRoPE:            rope,
	ir.OpDropout:         dropout,
	ir.OpAttention:       attention,
	ir.OpAttentionGrad:   attentionGrad,
	ir.OpAttentionDecode: attentionDecode,
	ir.OpKeysValues:      keysValues,
	ir.OpAttentionKV:     attention,
	ir.OpAttentionKVGrad: attentionGrad,
	ir.OpJoinQKV:         joinQKV,

	ir.OpRowMax:           rowMax,
	ir.OpRowSumExp:        rowSumExp,
	ir.OpRowPick:          rowPick,
	ir.OpNLL:              nll,
	ir.OpCrossEntropyGrad: crossEntropyGrad,

	ir.OpAdamW:     adamW,
	ir.OpLossScale: lossScale,

	ir.OpSlice:      slice,
	ir.OpFold:       fold,
	ir.OpUnfold:     fold,
	ir.OpToPartial:  toPartial,
	ir.OpAccumulate: accumulate,
	ir.OpFetch:      copyBetween,
	ir.OpStash:      copyBetween,
}

// elementwise launches a function of that file on n elements of result 0.
func (l *list) elementwise(name string, args ...any) error {
	d, err := l.elem(l.Results[0])
	if err != nil {
		return err
	}
	l.run("elementwise.cu", name, d, packBlocks(d, l.Results[0].Slab.Elems()), block256, 0, args...)
	return nil
}

func add(l *list) error {
	n, m := l.Args[0].Slab.Elems(), l.Args[1].Slab.Elems()
	if n == m {
		return l.elementwise("add", l.result(0), l.arg(0), l.arg(1), n)
	}
	return l.elementwise("add_rows", l.result(0), l.arg(0), l.arg(1), n, m)
}

func addN(l *list) error {
	if l.Results[0].DType == ir.Q64 {
		return addNFixed(l)
	}
	d, err := l.elem(l.Results[0])
	if err != nil {
		return err
	}
	n := l.Results[0].Slab.Elems()
	if len(l.Args) > MaxInputs {
		return l.errorf(" of %d operands, want at most %d", len(l.Args), MaxInputs)
	}
	var in []uint64
	for i := range l.Args {
		in = append(in, uint64(l.arg(i)))
	}
	if n > 0 {
		l.out = append(l.out, Reduce(d, uint64(l.result(0)), in, n))
	}
	return nil
}

func scale(l *list) error {
	return l.elementwise("scale", l.result(0), l.arg(0), l.arg(1), l.Args[0].Slab.Elems())
}

// gelu is GELU, and its gradient, which has an operand more.
func gelu(l *list) error {
	name, args := "gelu", []any{l.result(0), l.arg(0)}
	if len(l.Args) > 1 {
		name, args = "gelu_grad", append(args, l.arg(1))
	}
	if l.Node.Attr.(ir.GELUAttr).Tanh {
		name += "_tanh"
	} else {
		name += "_erf"
	}
	return l.elementwise(name, append(args, l.Results[0].Slab.Elems())...)
}

func swiGLU(l *list) error {
	_, cols := rows(l.Results[0])
	return l.elementwise("swiglu", l.result(0), l.arg(0), l.Results[0].Slab.Elems(), cols)
}

func swiGLUGrad(l *list) error {
	_, cols := rows(l.Args[1])
	return l.elementwise("swiglu_grad", l.result(0), l.arg(0), l.arg(1), l.Args[1].Slab.Elems(), cols)
}

// cast moves a value between types, by way of scratch memory if in place.
func cast(l *list) error {
	from, err := l.elem(l.Args[0])
	if err != nil {
		return err
	}
	to, err := l.elem(l.Results[0])
	if err != nil {
		return err
	}
	n, y := l.Results[0].Slab.Elems(), l.result(0)
	if !l.moved(0, 0) {
		if from == to {
			return nil
		}
		y = l.temp(n * to.Size())
	}
	l.run("elementwise.cu", "cast_"+from.String(), to, blocks(n, 4*256), block256, 0, y, l.arg(0), n, l.accum(0))
	if y != l.result(0) {
		return l.move(to.Size(), l.result(0), y, dim{n, 1, 1})
	}
	return nil
}

func accumulate(l *list) error {
	if l.Results[0].DType == ir.Q64 {
		return l.addFixed(l.arg(0), l.Accum[0])
	}
	d, err := l.elem(l.Results[0])
	if err != nil {
		return err
	}
	n := l.Results[0].Slab.Elems()
	l.run("elementwise.cu", "cast_"+d.String(), d, blocks(n, 4*256), block256, 0, l.result(0), l.arg(0), n, l.accum(0))
	return nil
}

// columnParts cuts rows into chunks that are summed apart, and returns the grid of that.
func columnParts(d ir.DType, rows, cols int64) (chunk, parts int64, grid [3]uint32) {
	grid = blocks(cols*d.Size(), 16*128)
	parts = max(1, min((rows+31)/32, 512, 4096/max(1, int64(grid[0]))))
	chunk = max(1, (rows+parts-1)/parts)
	parts = (rows + chunk - 1) / chunk
	grid[1] = uint32(parts)
	return chunk, parts, grid
}

var block128 = [3]uint32{128, 1, 1}

// columns adds up parts [parts, apart] of cols elements to a result.
func (l *list) columns(i int, part address, parts, cols, apart int64) {
	l.columnsTo(l.Results[i].DType, l.result(i), part, parts, cols, apart, l.accum(i))
}

func (l *list) columnsTo(d ir.DType, y, part address, parts, cols, apart int64, accum int32) {
	l.run("sum.cu", "columns_last", d, blocks(cols, 32), block256, 0, y, part, parts, cols, apart, accum)
}

func sumTo(l *list) error {
	if ir.Frac(l.Node.Attr) > 0 {
		return sumToFixed(l)
	}
	d, err := l.elem(l.Results[0])
	if err != nil {
		return err
	}
	m, n := split(l.Args[0], l.Node.Attr.(ir.SumToAttr).Keep)
	chunk, parts, grid := columnParts(d, m, n)
	part := l.temp(4 * parts * n)
	l.run("sum.cu", "columns_part", d, grid, block128, 0, part, l.arg(0), m, n, chunk)
	l.columns(0, part, parts, n, n)
	return nil
}

// total adds up all elements, or their squares.
func (l *list) total(part string, accum int32) error {
	d, err := l.elem(l.Args[0])
	if err != nil {
		return err
	}
	n := l.Args[0].Slab.Elems()
	grid := blocks(n, 16*256)
	grid[0] = min(grid[0], 1024)
	parts := l.temp(8 * int64(grid[0]))
	l.run("sum.cu", part, d, grid, block256, 0, parts, l.arg(0), n)
	l.run("sum.cu", "sum_last", l.Results[0].DType, [3]uint32{1, 1, 1}, block256, 0, l.result(0), parts, int32(grid[0]), accum)
	return nil
}

func sum(l *list) error        { return l.total("sum_part", l.accum(0)) }
func sumSquares(l *list) error { return l.total("squares_part", 0) }

// scalar launches a function of that file on one thread.
func (l *list) scalar(name string, args ...any) error {
	one := [3]uint32{1, 1, 1}
	l.run("scalar.cu", name, ir.F32, one, one, 0, args...)
	return nil
}

func sqrt(l *list) error { return l.scalar("square_root", l.result(0), l.arg(0)) }

func clipScale(l *list) error {
	return l.scalar("clip_scale", l.result(0), l.arg(0), l.Node.Attr.(ir.ClipAttr).MaxNorm)
}

func lossScale(l *list) error {
	a := l.Node.Attr.(ir.LossScaleAttr)
	return l.scalar("loss_scale", l.result(0), l.result(1), l.result(2), l.result(3), l.arg(0), l.arg(1), l.arg(2), l.arg(3),
		float32(a.Growth), float32(a.Backoff), float32(a.Interval))
}

func nll(l *list) error {
	n := l.Results[0].Slab.Elems()
	l.run("scalar.cu", "nll", ir.F32, blocks(n, 256), block256, 0, l.result(0), l.arg(0), l.arg(1), l.arg(2), l.arg(3), n)
	return nil
}

func adamW(l *list) error {
	a := l.Node.Attr.(ir.AdamWAttr)
	d, err := l.elem(l.Args[0])
	if err != nil {
		return err
	}
	grad, err := l.elem(l.Args[3])
	if err != nil {
		return err
	}
	var skipped address
	if len(l.Args) > 7 {
		skipped = l.arg(7)
	}
	n := l.Args[0].Slab.Elems()
	l.run("adamw.cu", "adamw_"+grad.String(), d, blocks(n, 4*256), block256, 0, l.result(0), l.result(1), l.result(2),
		l.arg(0), l.arg(1), l.arg(2), l.arg(3), l.arg(4), l.arg(5), l.arg(6), skipped, n,
		a.Beta1, a.Beta2, float32(a.Eps), float32(a.WeightDecay))
	return nil
}
