package kernel

import (
	"math"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// ops has one entry for every op that needs no other rank.
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

	ir.OpMatMul: matMul,

	ir.OpEmbedding:       embedding,
	ir.OpEmbeddingGrad:   embeddingGrad,
	ir.OpLayerNorm:       norm,
	ir.OpLayerNormGrad:   normGrad,
	ir.OpRMSNorm:         norm,
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
	ir.OpUnfold:     fold,
	ir.OpToPartial:  toPartial,
	ir.OpAccumulate: accumulate,
	ir.OpFetch:      copyBetween,
	ir.OpStash:      copyBetween,
}

// elementwise launches a function of elementwise.cu on the n elements of result 0.
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
	if d.Half() && len(l.Args) > MaxInputs { // partial sums would be rounded
		return l.errorf(" of %d operands of %s, want at most %d", len(l.Args), d, MaxInputs)
	}
	var in []uint64
	for i := range l.Args {
		in = append(in, uint64(l.arg(i)))
	}
	for n > 0 && len(in) > 0 {
		k := min(len(in), MaxInputs)
		l.out = append(l.out, Reduce(d, uint64(l.result(0)), in[:k], n))
		if in = in[k:]; len(in) > 0 {
			in = append([]uint64{uint64(l.result(0))}, in...) // the sum so far
		}
	}
	return nil
}

func scale(l *list) error {
	return l.elementwise("scale", l.result(0), l.arg(0), l.arg(1), l.Args[0].Slab.Elems())
}

// gelu launches GELU, and its gradient, which has one operand more.
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

// cast converts values between types, through scratch memory if in place. Of a large one only a part takes that
// way: see castInPlace.
func cast(l *list) error {
	from, err := l.elem(l.Args[0])
	if err != nil {
		return err
	}
	to, err := l.elem(l.Results[0])
	if err != nil {
		return err
	}
	var casts, back casts
	for _, k := range l.group {
		x, y, n := address(l.at(k.Args[0])), address(l.at(k.Results[0])), k.Results[0].Slab.Elems()
		if x == y && from == to {
			continue
		}
		if x == y && n*to.Size() > scratchMost {
			l.castInPlace(from, to, x, n, scratchMost)
			continue
		}
		if x == y {
			x = l.temp(n * to.Size())
			back.add(y, x, n)
			x, y = y, x
		}
		casts.add(y, x, n)
	}
	l.casts(from, to, casts, l.accum(0))
	l.casts(to, to, back, 0)
	return nil
}

// castInPlace is inPlace for a cast.
func (l *list) castInPlace(from, to ir.DType, at address, n, few int64) {
	one := func(d ir.DType, y, x address, n int64) {
		var c casts
		c.add(y, x, n)
		l.casts(d, to, c, 0)
	}
	l.inPlace(from.Size(), to.Size(), at, n, few, func(y, x address, n int64) { one(from, y, x, n) }, func(y, x address, n int64) { one(to, y, x, n) })
}

// inPlace converts n elements at a place from one size to another with few bytes of scratch memory. If they become
// half as large, the results of the first 2k lie where the first k were. So the first ones go through scratch memory,
// from which back copies them, and each launch after that converts as many as are converted already. If they become
// larger, the last half is converted first.
func (l *list) inPlace(from, to int64, at address, n, few int64, convert, back func(y, x address, n int64)) {
	direct := func(low, high int64) { convert(at+address(low*to), at+address(low*from), high-low) }
	first := min(n, few/to/8*8) // a multiple of 16 bytes of either type
	for high := n; to > from && high > first; {
		low := max(first, (high/2+8)/8*8) // at least half
		direct(low, high)
		high = low
	}
	temp := l.temp(first * to)
	convert(temp, at, first)
	back(at, temp, first)
	for low := first; to <= from && low < n; low *= 2 {
		direct(low, min(2*low, n))
	}
}

// casts are the encoded entries Cast of elementwise.cu, and how many blocks they need.
type casts struct {
	words []any
	grid  int64
}

// castsMost is how many tensors one launch can cast.
const castsMost = 120

func (c *casts) add(to, from address, n int64) {
	c.words = append(c.words, to, from, n, c.grid)
	c.grid += (n + 4095) / 4096
}

func (l *list) casts(from, to ir.DType, c casts, accum int32) {
	args := append([]any{accum, int32(len(c.words) / 4)}, filled(c.words, 4*castsMost)...)
	l.run("elementwise.cu", "cast_"+from.String(), to, blocks(c.grid, 1), block256, 0, args...)
}

// filled pads the words of a struct parameter with zeros.
func filled(words []any, n int) []any {
	for len(words) < n {
		words = append(words, int64(0))
	}
	return words
}

func accumulate(l *list) error {
	if l.Results[0].DType == ir.Q64 {
		return l.addFixed(l.arg(0), l.Accum[0])
	}
	d, err := l.elem(l.Results[0])
	if err != nil {
		return err
	}
	var c casts
	c.add(l.result(0), l.arg(0), l.Results[0].Slab.Elems())
	l.casts(d, d, c, l.accum(0))
	return nil
}

// columnParts divides rows into chunks that are summed separately, and returns the grid for that.
func columnParts(d ir.DType, rows, cols int64) (chunk, parts int64, grid [3]uint32) {
	grid = blocks(cols*d.Size(), 16*128)
	parts = max(1, min((rows+31)/32, 512, 4096/max(1, int64(grid[0]))))
	chunk = max(1, (rows+parts-1)/parts)
	parts = (rows + chunk - 1) / chunk
	grid[1] = uint32(parts)
	return chunk, parts, grid
}

var block128 = [3]uint32{128, 1, 1}

// columns adds up partial sums, parts of them, apart elements apart, of cols columns, to result i.
func (l *list) columns(i int, part address, parts, cols, apart int64) {
	l.columnsTo(l.Results[i].DType, l.result(i), part, parts, cols, apart, l.accum(i))
}

func (l *list) columnsTo(d ir.DType, y, part address, parts, cols, apart int64, accum int32) {
	l.run("sum.cu", "columns_last", d, blocks(cols, 32), [3]uint32{512, 1, 1}, 0, y, part, parts, cols, apart, accum)
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

// sumsMost is how many tensors one launch can sum.
const sumsMost = 120

// total sums all elements of each tensor of the group, or their squares.
func (l *list) total(part string, accum int32) error {
	d, err := l.elem(l.Args[0])
	if err != nil {
		return err
	}
	var words []any
	grid := int64(0)
	for _, k := range l.group {
		n := k.Args[0].Slab.Elems()
		many := min(1024, (n+16*256-1)/(16*256))
		words = append(words, address(l.at(k.Args[0])), address(l.at(k.Results[0])), n, grid|many<<32)
		grid += many
	}
	words = filled(words, 4*sumsMost)
	parts := l.temp(8 * grid)
	count := int32(len(l.group))
	l.run("sum.cu", part, d, blocks(grid, 1), block256, 0, append([]any{parts, count}, words...)...)
	l.run("sum.cu", "sum_last", l.Results[0].DType, blocks(int64(count), 1), block256, 0, append([]any{parts, accum}, words...)...)
	return nil
}

func sum(l *list) error        { return l.total("sum_part", l.accum(0)) }
func sumSquares(l *list) error { return l.total("squares_part", 0) }

// scalar launches a function of scalar.cu on one thread.
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

// updatesMost is how many tensors one launch can update.
const updatesMost = 48

// adamW updates the tensors of the group. A cast of a new weight to the type of its gradient may be
// part of it.
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
	copies := map[*ir.Value]address{}
	for _, k := range l.group {
		if k.Node.Op == ir.OpCast {
			copies[k.Node.Args[0]] = address(l.at(k.Results[0]))
		}
	}
	var words []any
	grid, count := int64(0), int32(0)
	for _, k := range l.group {
		if k.Node.Op != ir.OpAdamW {
			continue
		}
		for _, t := range []runtime.Tensor{k.Results[0], k.Results[1], k.Results[2], k.Args[0], k.Args[1], k.Args[2], k.Args[3]} {
			words = append(words, address(l.at(t)))
		}
		n := k.Args[0].Slab.Elems()
		decay := math.Float32bits(float32(k.Node.Attr.(ir.AdamWAttr).WeightDecay))
		words = append(words, copies[k.Node.Results[0]], n, int64(decay)|grid<<32)
		grid += (n + 16383) / 16384
		count++
	}
	args := []any{l.arg(4), l.arg(5), l.arg(6), skipped, a.Beta1, a.Beta2, float32(a.Eps), count}
	l.run("adamw.cu", "adamw_"+grad.String(), d, blocks(grid, 1), block256, 0, append(args, filled(words, 10*updatesMost)...)...)
	return nil
}
