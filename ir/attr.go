package ir

import "math"

// Attr holds the compile-time arguments of a node. Attributes are comparable
// structs; an op that takes none has a nil Attr.
type Attr interface{ attr() }

// InitKind says how a parameter starts.
type InitKind uint8

// The initial distributions.
const (
	InitZeros InitKind = iota
	InitOnes
	InitNormal // N(0, Std), position-keyed by the parameter's name
	InitConstant
)

// ParamAttr belongs to OpParam.
type ParamAttr struct {
	Init  InitKind
	Std   float64
	Value float64 // of InitConstant
	// Decay puts the parameter in AdamW's weight-decay group.
	Decay bool
	// State marks optimizer state: it has no gradient and is not a weight.
	State bool
	// Frozen marks a weight that is not trained: it has no gradient and no optimizer state.
	Frozen bool
	// Master names the weight that this state is the full-precision copy of. Both start as the same number; the
	// weight is the copy, rounded.
	Master string
	// Host says that the parameter is kept in the host memory of its rank, where only OpFetch reads it and
	// OpStash writes it.
	Host bool
}

// ConstAttr belongs to OpConst.
type ConstAttr struct{ Value float64 }

// MatMulForm says in which order the operands of a matmul have their dimensions. M, N and K stand for groups of
// dimensions: y[M,N] = sum over K.
type MatMulForm uint8

// The forms: those of a linear layer, of its input gradient and of its weight gradient.
const (
	MatMulNT MatMulForm = iota // a[M,K] b[N,K]: y = x wᵀ
	MatMulNN                   // a[M,K] b[K,N]: dx = dy w
	MatMulTN                   // a[K,M] b[K,N]: dw = dyᵀ x
)

// MatMulAttr belongs to OpMatMul. K is the number of contracted dimensions. With Frac, in form TN only, the
// result is fixed point: see [GradientFrac].
type MatMulAttr struct {
	Form MatMulForm
	K    int
	Frac int
}

// SumToAttr belongs to OpSumTo: the number of trailing dimensions kept. With Frac
// the result is fixed point.
type SumToAttr struct{ Keep, Frac int }

// ClipAttr belongs to OpClipScale.
type ClipAttr struct{ MaxNorm float64 }

// EmbeddingGradAttr belongs to OpEmbeddingGrad: the rows of the table. With Frac
// the result is fixed point.
type EmbeddingGradAttr struct{ Rows, Frac int }

// FixedAttr belongs to OpFromFixed: the fraction bits of its operand.
type FixedAttr struct{ Frac int }

// LayerNormAttr belongs to OpLayerNorm and OpLayerNormGrad. Bias says whether
// the layer has one, and so whether the gradient has a third result. With Frac the
// gradients of weight and bias are fixed point.
type LayerNormAttr struct {
	Eps  float64
	Bias bool
	Frac int
}

// RMSNormAttr belongs to OpRMSNorm and OpRMSNormGrad. With Frac
// the gradient of the weight is fixed point.
type RMSNormAttr struct {
	Eps  float64
	Frac int
}

// GELUAttr belongs to OpGELU and OpGELUGrad. Tanh selects the tanh approximation instead of erf.
type GELUAttr struct{ Tanh bool }

// RoPEAttr belongs to OpRoPE. Theta is the base of the angles. Inverse rotates in the opposite direction, which
// is the gradient.
//
// With Factor, long waves are Factor times as long, as in Llama 3.1 (Llama Team, "The Llama 3 Herd of Models",
// 2024; rope type llama3 of transformers): those that turn at most Low times in Original positions. Those that
// turn at least High times stay as they are, and between the two frequencies change linearly.
//
// With Rows, positions are given for each row of the batch, [b t], and not once for all, [t].
type RoPEAttr struct {
	Theta             float64
	Inverse           bool
	Rows              bool
	Factor, Low, High float64
	Original          int
}

// Frequency returns the angle in radians per position of pair number i of a head that is width wide, forwards.
func (a RoPEAttr) Frequency(i, width int) float64 {
	f := math.Pow(a.Theta, -2*float64(i)/float64(width))
	if a.Factor == 0 {
		return f
	}
	turns := float64(a.Original) * f / (2 * math.Pi)
	short := min(max((turns-a.Low)/(a.High-a.Low), 0), 1)
	return f * (short + (1-short)/a.Factor)
}

// DropoutAttr belongs to OpDropout and to attention and its gradient. Key names the random stream. It is the
// structural name of the forward node, so that gradient and recomputation draw the same mask.
type DropoutAttr struct {
	P   float64
	Key string
	// Fold, if not zero, says that the sequence is folded for that many parts: see [FoldRuns]. For dropout it
	// is dimension Dim of the operand. The mask belongs to positions, not to rows.
	Fold, Dim int
	// Parts, if not zero, says that so many consecutive rows of the batch (dimension 0) are the parts of one
	// sequence. It is of attention and its gradient: dropout's mask is the same either way.
	Parts int
}

// SequenceParts returns the number of consecutive rows of the batch that attention takes for the parts of one sequence, 0
// if each is a sequence.
func SequenceParts(attr Attr) int {
	a, _ := attr.(DropoutAttr)
	return a.Parts
}

// AdamWAttr belongs to OpAdamW. WeightDecay is 0 for parameters not decayed.
type AdamWAttr struct{ Beta1, Beta2, Eps, WeightDecay float64 }

// CastAttr belongs to OpCast: the floating-point type of the result.
type CastAttr struct{ To DType }

// LossScaleAttr belongs to OpLossScale. After Interval consecutive steps with finite gradients the scale is
// multiplied by Growth, after a step without by Backoff.
type LossScaleAttr struct {
	Growth, Backoff float64
	Interval        int
}

// RowsAttr belongs to OpRows: part number Part, from 0, of Parts equal parts.
type RowsAttr struct{ Part, Parts int }

// CommAttr belongs to the ops that partition inserts, except send, recv, fetch and
// stash.
type CommAttr struct {
	Axis    string // the mesh axis over which ranks communicate
	Dim, To int    // the dimension gathered or scattered; To for all_to_all
	Reduce  Reduction
	Parts   int // for fold and unfold: the size of the axis
}

// P2PAttr belongs to OpSend and OpRecv: the other stage.
type P2PAttr struct{ Stage int }

func (ParamAttr) attr()         {}
func (ConstAttr) attr()         {}
func (MatMulAttr) attr()        {}
func (SumToAttr) attr()         {}
func (ClipAttr) attr()          {}
func (EmbeddingGradAttr) attr() {}
func (FixedAttr) attr()         {}
func (LayerNormAttr) attr()     {}
func (RMSNormAttr) attr()       {}
func (GELUAttr) attr()          {}
func (RoPEAttr) attr()          {}
func (DropoutAttr) attr()       {}
func (AdamWAttr) attr()         {}
func (CastAttr) attr()          {}
func (LossScaleAttr) attr()     {}
func (RowsAttr) attr()          {}
func (CommAttr) attr()          {}
func (P2PAttr) attr()           {}
