package ir

// Fixed point makes a sum independent of its order: integers add associatively, floating-point numbers do not.
// An element of type [Q64] is a 64-bit two's complement integer n that stands for n·2^-frac. The type does not
// carry frac. The ops that make a value from f32, and those that read it, name frac; everything between only
// adds.
//
// An op whose attribute has Frac > 0 computes the results that it can add into (see [Op.Accumulates]) in three
// steps. It computes the term of one sequence, that is one index of the first dimension of its first operand,
// in f32. It rounds that to the nearest multiple of 2^-Frac, ties to even. And it adds the terms of all
// sequences exactly. So the sum over a batch has the same bits however the batch is cut. What does not fit
// (NaN, an infinity, a term or a sum of 2^(63-Frac) or more) is an error, never a wrapped number.

const (
	// GradientFrac is the fraction of gradients: multiples of 2^-50 below 2^13. The contribution of a sequence
	// is off by at most 2^-51 = 4.4e-16, far below AdamW's epsilon of 1e-8. And a run in which a single weight
	// has a gradient of 8192 has diverged.
	GradientFrac = 50
	// LossFrac is the fraction of sums of the loss over tokens: multiples of
	// 2^-32 below 2^31, room for 2^27 tokens of 16 nats each.
	LossFrac = 32
	// SquareFrac is the fraction of the two parts of a sum of squares. The first part of a square is the square
	// rounded to a multiple of 2^-32, the second is the remainder, rounded to a multiple of 2^-64. The sum may
	// reach 2^31, a norm of 46,340.
	SquareFrac = 32
)

// Frac returns the fraction bits of the fixed-point results of an op with the
// given attributes, 0 if its results are f32.
func Frac(attr Attr) int {
	switch a := attr.(type) {
	case MatMulAttr:
		return a.Frac
	case SumToAttr:
		return a.Frac
	case EmbeddingGradAttr:
		return a.Frac
	case LayerNormAttr:
		return a.Frac
	case RMSNormAttr:
		return a.Frac
	}
	return 0
}

// maxFrac leaves one bit before the binary point.
const maxFrac = 62

// resultDType returns the element type of result i of an op.
func resultDType(op Op, attr Attr, declared DType, i int) DType {
	if Frac(attr) > 0 && op.Accumulates(i) {
		return Q64
	}
	return declared
}
