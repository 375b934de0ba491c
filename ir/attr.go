package ir

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
	// Master names the weight of which this state is the copy in full precision:
	// both start as the same number, and the weight is this one rounded.
	Master string
	// Host says that it lives in the host memory of its rank, where only OpFetch
	// reads it and OpStash writes it.
	Host bool
}

// ConstAttr belongs to OpConst.
type ConstAttr struct{ Value float64 }

// MatMulForm says how the operands of a matmul lie. In each form the M, N and K
// stand for groups of dimensions: y[M,N] = sum over K.
type MatMulForm uint8

// The forms: those of a linear layer, its input gradient and weight gradient.
const (
	MatMulNT MatMulForm = iota // a[M,K] b[N,K]: y = x wᵀ
	MatMulNN                   // a[M,K] b[K,N]: dx = dy w
	MatMulTN                   // a[K,M] b[K,N]: dw = dyᵀ x
)

// MatMulAttr belongs to OpMatMul. K is how many dimensions are contracted. With
// Frac, in form TN only, the result is fixed point: see [GradientFrac].
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

// GELUAttr belongs to OpGELU and OpGELUGrad: the tanh approximation or erf.
type GELUAttr struct{ Tanh bool }

// RoPEAttr belongs to OpRoPE. Theta is the base of the angles; Inverse turns the
// other way, which is the gradient.
type RoPEAttr struct {
	Theta   float64
	Inverse bool
}

// DropoutAttr belongs to OpDropout and to attention and its gradient. Key names
// the random stream: the structural name of the forward site, so that gradient
// and recomputation draw the same mask.
type DropoutAttr struct {
	P   float64
	Key string
	// Fold, when not zero, says that the sequence, dimension Dim of dropout's
	// operand, is folded for so many parts: see [FoldRuns]. The mask is that of
	// the positions, not of the rows.
	Fold, Dim int
}

// AdamWAttr belongs to OpAdamW. WeightDecay is 0 for parameters not decayed.
type AdamWAttr struct{ Beta1, Beta2, Eps, WeightDecay float64 }

// CastAttr belongs to OpCast: the floating-point type of the result.
type CastAttr struct{ To DType }

// LossScaleAttr belongs to OpLossScale: after Interval steps in a row with finite
// gradients the scale is multiplied by Growth, after one without by Backoff.
type LossScaleAttr struct {
	Growth, Backoff float64
	Interval        int
}

// RowsAttr belongs to OpRows: part number Part of Parts equal ones.
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
