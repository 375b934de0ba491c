package interp

import (
	"fmt"
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/philox"
)

// Tensor is a dense row-major array. For an i32 value, I holds the elements. For a floating-point value F holds
// them, in float64; for a q64 value F holds the numbers that they stand for. The other of the two is nil.
type Tensor struct {
	Shape []int
	F     []float64
	I     []int32
}

// Zeros returns a tensor of zeros.
func Zeros(t ir.Type) Tensor {
	z := Tensor{Shape: slices.Clone(t.Shape)}
	if t.DType == ir.I32 {
		z.I = make([]int32, t.Elems())
	} else {
		z.F = make([]float64, t.Elems())
	}
	return z
}

// Floats returns an f32 tensor of the given elements.
func Floats(elems []float64, shape ...int) Tensor { return Tensor{Shape: shape, F: elems} }

// Ints returns an i32 tensor of the given elements.
func Ints(elems []int32, shape ...int) Tensor { return Tensor{Shape: shape, I: elems} }

// Scalar returns an f32 scalar.
func Scalar(x float64) Tensor { return Tensor{F: []float64{x}} }

// IntScalar returns an i32 scalar.
func IntScalar(x int32) Tensor { return Tensor{I: []int32{x}} }

// Type returns dtype and shape: f32 for all but i32.
func (t Tensor) Type() ir.Type {
	if t.I != nil {
		return ir.Type{DType: ir.I32, Shape: t.Shape}
	}
	return ir.Type{DType: ir.F32, Shape: t.Shape}
}

// rounded returns t rounded to a type of 16 bits; for other types it returns t.
func (t Tensor) rounded(d ir.DType) Tensor {
	if !d.Half() {
		return t
	}
	t.F = slices.Clone(t.F)
	for i, x := range t.F {
		t.F[i] = d.Round(x)
	}
	return t
}

// check returns an error if the tensor is malformed or not of the wanted type.
func (t Tensor) check(want ir.Type) error {
	if got := t.Type(); !slices.Equal(got.Shape, want.Shape) || (got.DType == ir.I32) != (want.DType == ir.I32) {
		return fmt.Errorf("tensor is %s, want %s", got, want)
	}
	if n := int64(len(t.F) + len(t.I)); n != want.Elems() || (t.F != nil && t.I != nil) {
		return fmt.Errorf("tensor of type %s has %d elements, want %d", want, n, want.Elems())
	}
	return nil
}

// InitParam returns the initial value of a parameter: zeros, ones, a constant, or a normal distribution drawn
// by position, so that any part of it can be computed alone. It is rounded to float32, which every backend
// starts from, and from there to the parameter's own type. A master copy starts as its weight does.
func InitParam(name string, attr ir.ParamAttr, t ir.Type, seed uint64) Tensor {
	p := Zeros(t)
	if attr.Master != "" {
		name = attr.Master
	}
	key := philox.Key{Seed: seed, Op: philox.OpKey(name)}
	for i := range p.F {
		switch attr.Init {
		case ir.InitOnes:
			p.F[i] = 1
		case ir.InitConstant:
			p.F[i] = float64(float32(attr.Value))
		case ir.InitNormal:
			p.F[i] = float64(float32(attr.Std * key.Normal(uint64(i))))
		}
	}
	return p.rounded(t.DType)
}

// split returns the number of elements of the leading dimensions of a shape (rows) and of its last n dimensions
// (cols).
func split(shape []int, n int) (rows, cols int) {
	at := len(shape) - n
	return int(ir.Elems(shape[:at])), int(ir.Elems(shape[at:]))
}
