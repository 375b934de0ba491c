package ir

import "fmt"

// Op is the kind of a node. Each has one row in opTable.
type Op uint8

// The operations. Gradient operations are ordinary operations: the backward pass
// is part of the same graph.
const (
	OpInvalid Op = iota

	// Leaves.
	OpParam // a value that lives across steps: weights and optimizer state
	OpInput // fed by the caller: for each micro-batch if sharded over time, else once per step
	OpConst // a scalar constant

	// Element-wise and reductions.
	OpAdd        // a + b, b broadcast over a's leading dimensions
	OpAddN       // sum of any number of values of one shape
	OpScale      // x * s for a scalar s
	OpSumTo      // sum over leading dimensions
	OpExpand     // x repeated over the leading dimensions of another value
	OpSum        // sum of all elements
	OpSumSquares // sum of all squared elements
	OpSqrt       // square root of a scalar
	OpClipScale  // min(1, max/(norm+1e-6)) of a scalar norm
	OpCast       // x in another floating-point type

	// Fixed point: see fixed.go.
	OpFromFixed    // the f32 nearest to a fixed-point value
	OpFixedSquares // sum of all squared elements, in two parts
	OpFixedRoot    // square root of such a sum

	// The model.
	OpMatMul
	OpEmbedding
	OpEmbeddingGrad
	OpLayerNorm
	OpLayerNormGrad
	OpRMSNorm
	OpRMSNormGrad
	OpGELU
	OpGELUGrad
	OpSwiGLU
	OpSwiGLUGrad
	OpRoPE    // also its own gradient: a rotation the other way
	OpDropout // also its own gradient: the mask is a function of position
	OpAttention
	OpAttentionGrad
	OpAttentionDecode
	OpKeysValues      // keys and values, extracted from packed queries, keys and values
	OpAttentionKV     // attention of a rank's positions to the keys and values of all positions
	OpAttentionKVGrad // its gradients; those of keys and values are for all positions
	OpJoinQKV         // gradients of queries, and of keys and values, packed into one

	OpRows     // one part of the positions of all sequences
	OpJoinRows // all positions, joined from their parts

	// Softmax cross-entropy, in parts that can each be split over the vocabulary.
	OpRowMax
	OpRowSumExp
	OpRowPick
	OpNLL
	OpCrossEntropyGrad

	// Optimizer.
	OpAdamW
	OpLossScale // the next scale of the loss, from the norm of the scaled gradients

	// Inserted by partition. Each of these changes a value's spec, not the value.
	OpAllReduce     // Partial -> Replicate
	OpAllGather     // Shard -> Replicate
	OpReduceScatter // Partial -> Shard
	OpAllToAll      // Shard(i) -> Shard(j)
	OpSlice         // Replicate -> Shard, no communication
	OpFold          // Replicate -> Shard, no communication: a slice of the folded sequence, see FoldRuns
	OpUnfold        // Replicate -> Replicate, the inverse of fold
	OpToPartial     // Replicate -> Partial, no communication: the value at position 0, zeros elsewhere
	OpAccumulate    // Partial over micro-batches -> Replicate
	OpSend          // to the same mesh position of another stage
	OpRecv
	OpFetch // from the rank's host memory to its device
	OpStash // from the rank's device to its host memory

	numOps
)

// Class groups ops by who executes them and how.
type Class uint8

// The classes.
const (
	Leaf    Class = iota // params, inputs, constants
	Compute              // a kernel on one rank
	Comm                 // inserted by partition
)

// opInfo is a row of the table.
type opInfo struct {
	name  string
	class Class
	// sig is the dimension signature: "x[r* !c] w[!c] b?[!c] -> y[r* !c]".
	//
	//   - A dimension can be split unless it is marked '!'. A name followed by '*' stands for any number of
	//     dimensions.
	//   - An operand may be optional ('?') or repeated ('...').
	//   - The element type follows the name: ':i32', ':f32', ':q64', or ':any' for any floating-point type. All
	//     operands and results without one have the same floating-point type. The op computes in that type,
	//     though kernels sum in f32 and round once. See fixed.go for results that are summed in fixed point.
	//   - If a dimension is split, results that lack it, although some operand has it, are Partial.
	//   - A result dimension that no operand has takes its size from the attributes.
	//   - The dimensions roles and g* are those of attention: see [binder.group].
	sig string
	// reduce is the reduction of results that are Partial because they lack a split dimension.
	reduce Reduction
	// linear lists, as bits, operands in which the op is jointly linear: if all of them are Partial sums and
	// the others replicated, the results are Partial sums.
	linear uint32
	// inPlace says that result 0 may overwrite operand 0, if nothing reads that operand later and the result is
	// no larger.
	inPlace bool
	// accumulates lists, as bits, results that a kernel can add into instead of overwriting.
	accumulates uint32
	// flops is the number of floating-point operations per point of the iteration space, which is the product
	// of all distinct dimensions. Those of RoPE are per element that is rotated.
	flops float64
	// noGrad says that no gradients flow through: leaves, gradient ops, the optimizer.
	noGrad bool
}

const all = ^uint32(0)

var opTable = [numOps]opInfo{
	OpParam: {name: "param", sig: "-> y[d*]", class: Leaf, noGrad: true},
	OpInput: {name: "input", sig: "-> y[d*]", class: Leaf, noGrad: true},
	OpConst: {name: "const", sig: "-> y[]", class: Leaf, noGrad: true},

	OpAdd:        {name: "add", sig: "a[l* s*] b[s*] -> y[l* s*]", class: Compute, linear: all, inPlace: true, flops: 1},
	OpAddN:       {name: "add_n", sig: "x...[d*] -> y[d*]", class: Compute, linear: all, inPlace: true, flops: 1},
	OpScale:      {name: "scale", sig: "x[d*] s:f32[] -> y[d*]", class: Compute, linear: 1, inPlace: true, flops: 1},
	OpSumTo:      {name: "sum_to", sig: "x[l* s*] -> y[s*]", class: Compute, linear: all, accumulates: 1, flops: 1},
	OpExpand:     {name: "expand", sig: "x[s*] like[l* s*] -> y[l* s*]", class: Compute},
	OpSum:        {name: "sum", sig: "x[d*] -> y[]", class: Compute, linear: all, accumulates: 1, flops: 1},
	OpSumSquares: {name: "sum_squares", sig: "x[d*] -> y:f32[]", class: Compute, flops: 2, noGrad: true},
	OpSqrt:       {name: "sqrt", sig: "x:f32[] -> y:f32[]", class: Compute, flops: 1, noGrad: true},
	OpClipScale:  {name: "clip_scale", sig: "norm:f32[] -> y:f32[]", class: Compute, flops: 2, noGrad: true},
	OpCast:       {name: "cast", sig: "x:any[d*] -> y[d*]", class: Compute, linear: all, inPlace: true, accumulates: 1, flops: 1}, // to the type of the attribute

	OpFromFixed:    {name: "from_fixed", sig: "x:q64[d*] -> y[d*]", class: Compute, inPlace: true, flops: 1, noGrad: true},
	OpFixedSquares: {name: "fixed_squares", sig: "x[d*] -> y:q64[!two]", class: Compute, flops: 4, noGrad: true},
	OpFixedRoot:    {name: "fixed_root", sig: "x:q64[!two] -> y[]", class: Compute, flops: 1, noGrad: true},

	// The signature of matmul depends on its form: see MatMulAttr.
	OpMatMul:        {name: "matmul", class: Compute, accumulates: 1, flops: 2},
	OpEmbedding:     {name: "embedding", sig: "table[v c] ids:i32[r*] -> y[r* c]", class: Compute},
	OpEmbeddingGrad: {name: "embedding_grad", sig: "ids:i32[r*] dy[r* c] -> dtable[v c]", class: Compute, linear: 2, accumulates: 1, noGrad: true},
	OpLayerNorm:     {name: "layer_norm", sig: "x[r* !c] w[!c] b?[!c] -> y[r* !c] mean:f32[r*] rstd:f32[r*]", class: Compute, flops: 8},
	OpLayerNormGrad: {name: "layer_norm_grad", sig: "dy[r* !c] x[r* !c] w[!c] mean:f32[r*] rstd:f32[r*] -> dx[r* !c] dw[!c] db?[!c]", class: Compute, accumulates: 6, flops: 14, noGrad: true},
	OpRMSNorm:       {name: "rms_norm", sig: "x[r* !c] w[!c] -> y[r* !c] rstd:f32[r*]", class: Compute, flops: 6},
	OpRMSNormGrad:   {name: "rms_norm_grad", sig: "dy[r* !c] x[r* !c] w[!c] rstd:f32[r*] -> dx[r* !c] dw[!c]", class: Compute, accumulates: 2, flops: 11, noGrad: true},
	OpGELU:          {name: "gelu", sig: "x[d*] -> y[d*]", class: Compute, flops: 12},
	OpGELUGrad:      {name: "gelu_grad", sig: "dy[d*] x[d*] -> dx[d*]", class: Compute, inPlace: true, flops: 20, noGrad: true},
	OpSwiGLU:        {name: "swiglu", sig: "x[r* !two f] -> y[r* f]", class: Compute, flops: 12},
	OpSwiGLUGrad:    {name: "swiglu_grad", sig: "x[r* !two f] dy[r* f] -> dx[r* !two f]", class: Compute, inPlace: true, flops: 18, noGrad: true},
	OpRoPE:          {name: "rope", sig: "qkv[b t !roles h !d] positions:i32[t] -> y[b t !roles h !d]", class: Compute, linear: 1, inPlace: true, flops: 3},
	OpDropout:       {name: "dropout", sig: "x[d*] seed:i32[] step:i32[] -> y[d*]", class: Compute, inPlace: true, flops: 2},

	// Half of the points of both matrix products of causal attention are above the diagonal. So forward takes
	// 4*t/2 operations for each of the b*t*g*h*d points, and backward, with five products instead of two,
	// 10*t/2. A decoded token attends to all of its t keys. See Signature.FLOPs. The queries g of a head are
	// split where all of qkv is present: each part computes the queries of its share of the result.
	OpAttention:       {name: "attention", sig: "qkv[b !t !roles h !d] seed:i32[] step:i32[] -> o[b !t g* h !d] lse:f32[b g* h !t]", class: Compute, flops: 2},
	OpAttentionGrad:   {name: "attention_grad", sig: "do[b !t g* h !d] qkv[b !t !roles h !d] o[b !t g* h !d] lse:f32[b g* h !t] seed:i32[] step:i32[] -> dqkv[b !t !roles h !d]", class: Compute, flops: 5, noGrad: true},
	OpAttentionDecode: {name: "attention_decode", sig: "qkv[b !one !roles h !d] cache[b !t !two h !d] pos:i32[] -> o[b !one !g* h !d] next[b !t !two h !d]", class: Compute, flops: 4, noGrad: true},

	// Attention under context parallelism: the positions t are split, while keys and values of all positions s
	// are present. The fold of t and s balances the causal mask, so each position of t attends to half of s on
	// average, as above.
	OpKeysValues:      {name: "keys_values", sig: "qkv[b t !roles h d] -> kv[b t !two h d]", class: Compute, noGrad: true},
	OpAttentionKV:     {name: "attention_kv", sig: "qkv[b t !roles h !d] kv[b !s !two h !d] seed:i32[] step:i32[] -> o[b t !g* h !d] lse:f32[b !g* h t]", class: Compute, flops: 2, noGrad: true},
	OpAttentionKVGrad: {name: "attention_kv_grad", sig: "do[b t !g* h !d] qkv[b t !roles h !d] kv[b !s !two h !d] o[b t !g* h !d] lse:f32[b !g* h t] seed:i32[] step:i32[] -> dq[b t !g* h !d] dkv[b !s !two h !d]", class: Compute, flops: 5, noGrad: true},
	OpJoinQKV:         {name: "join_qkv", sig: "dq[b t !g* h d] dkv[b t !two h d] -> dqkv[b t !roles h d]", class: Compute, noGrad: true},

	// The loss in slices: see partition.Plan.LossSlices. The positions are split within a rank, not over ranks.
	OpRows:     {name: "rows", sig: "x[b !t d*] -> y[b !s d*]", class: Compute, linear: all, noGrad: true},
	OpJoinRows: {name: "join_rows", sig: "x...[b !s d*] -> y[b !t d*]", class: Compute, linear: all, noGrad: true},

	OpRowMax:           {name: "row_max", sig: "x[r* v] -> max:f32[r*]", class: Compute, reduce: Max, flops: 1},
	OpRowSumExp:        {name: "row_sum_exp", sig: "x[r* v] max:f32[r*] -> sum:f32[r*]", class: Compute, flops: 8},
	OpRowPick:          {name: "row_pick", sig: "x[r* v] targets:i32[r*] -> pick:f32[r*]", class: Compute},
	OpNLL:              {name: "nll", sig: "max:f32[r*] sum:f32[r*] pick:f32[r*] targets:i32[r*] -> nll:f32[r*]", class: Compute, flops: 8},
	OpCrossEntropyGrad: {name: "cross_entropy_grad", sig: "x[r* v] max:f32[r*] sum:f32[r*] targets:i32[r*] dnll:f32[r*] -> dx[r* v]", class: Compute, inPlace: true, flops: 10, noGrad: true},

	OpAdamW:     {name: "adamw", sig: "w[d*] m[d*] v[d*] g:any[d*] clip:f32[] lr:f32[] step:i32[] skipped?:f32[] -> w2[d*] m2[d*] v2[d*]", class: Compute, flops: 14, noGrad: true},
	OpLossScale: {name: "loss_scale", sig: "scale:f32[] good:f32[] skipped:f32[] norm:f32[] -> scale2:f32[] good2:f32[] skipped2:f32[] unscale:f32[]", class: Compute, flops: 4, noGrad: true},

	OpAllReduce:     {name: "all_reduce", sig: "x[d*] -> y[d*]", class: Comm, noGrad: true},
	OpAllGather:     {name: "all_gather", sig: "x[d*] -> y[d*]", class: Comm, noGrad: true},
	OpReduceScatter: {name: "reduce_scatter", sig: "x[d*] -> y[d*]", class: Comm, noGrad: true},
	OpAllToAll:      {name: "all_to_all", sig: "x[d*] -> y[d*]", class: Comm, noGrad: true},
	OpSlice:         {name: "slice", sig: "x[d*] -> y[d*]", class: Comm, noGrad: true},
	OpFold:          {name: "fold", sig: "x[d*] -> y[d*]", class: Comm, noGrad: true},
	OpUnfold:        {name: "unfold", sig: "x[d*] -> y[d*]", class: Comm, noGrad: true},
	OpToPartial:     {name: "to_partial", sig: "x[d*] -> y[d*]", class: Comm, noGrad: true},
	OpAccumulate:    {name: "accumulate", sig: "x[d*] -> y[d*]", class: Comm, noGrad: true},
	OpSend:          {name: "send", sig: "x[d*] -> y[d*]", class: Comm, noGrad: true},
	OpRecv:          {name: "recv", sig: "x[d*] -> y[d*]", class: Comm, noGrad: true},
	OpFetch:         {name: "fetch", sig: "x[d*] -> y[d*]", class: Comm, noGrad: true},
	OpStash:         {name: "stash", sig: "x[d*] -> y[d*]", class: Comm, noGrad: true},
}

// Ops lists every operation.
func Ops() []Op {
	ops := make([]Op, 0, numOps-1)
	for o := OpInvalid + 1; o < numOps; o++ {
		ops = append(ops, o)
	}
	return ops
}

func (o Op) String() string {
	if o > OpInvalid && o < numOps {
		return opTable[o].name
	}
	return fmt.Sprintf("Op(%d)", uint8(o))
}

// ParseOp is the inverse of [Op.String].
func ParseOp(s string) (Op, error) {
	for _, o := range Ops() {
		if opTable[o].name == s {
			return o, nil
		}
	}
	return OpInvalid, fmt.Errorf("ir: unknown op %q", s)
}

// Class returns the op's class.
func (o Op) Class() Class { return opTable[o].class }

// HasGrad reports whether gradients flow through the op, so that autodiff must
// have a rule for it.
func (o Op) HasGrad() bool { return !opTable[o].noGrad }

// InPlace reports whether result 0 may share the buffer of operand 0.
func (o Op) InPlace() bool { return opTable[o].inPlace }

// Renews returns the operand whose next value result i is, for ops that keep state from step to step; the
// result may be written over that operand. It returns -1 for other results.
func (o Op) Renews(i int) int {
	switch {
	case o == OpAdamW, o == OpLossScale && i < 3, o == OpAttentionDecode && i == 1:
		return i
	}
	return -1
}

// Accumulates reports whether a kernel of the op can add result i into its
// buffer instead of overwriting it.
func (o Op) Accumulates(i int) bool { return opTable[o].accumulates&(1<<i) != 0 }
