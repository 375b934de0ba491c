package ir

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/autopar/autopar/ir/half"
)

// DType is the element type of a value.
type DType uint8

// The element types.
const (
	F32  DType = iota // IEEE 754 binary32
	I32               // token ids, seeds and step numbers
	Q64               // 64-bit fixed point: sums that do not depend on their order, see fixed.go
	BF16              // bfloat16: a binary32 cut to 8 bits of precision
	F16               // IEEE 754 binary16
	numDTypes
)

var dtypeNames = [numDTypes]string{F32: "f32", I32: "i32", Q64: "q64", BF16: "bf16", F16: "f16"}

func (d DType) String() string {
	if d < numDTypes {
		return dtypeNames[d]
	}
	return fmt.Sprintf("DType(%d)", uint8(d))
}

// Size returns the bytes of one element.
func (d DType) Size() int64 {
	switch d {
	case Q64:
		return 8
	case BF16, F16:
		return 2
	}
	return 4
}

// Half reports whether the type is one of the 16-bit floating-point types.
func (d DType) Half() bool { return d == BF16 || d == F16 }

// Float reports whether the type is a floating-point type.
func (d DType) Float() bool { return d == F32 || d.Half() }

// Round rounds x to the nearest value of the type, ties to even. It rounds only to 16-bit types: in package
// interp float64 stands for f32.
func (d DType) Round(x float64) float64 {
	switch d {
	case BF16:
		return half.RoundBF16(x)
	case F16:
		return half.RoundF16(x)
	}
	return x
}

// Read returns the number of a floating-point type at the start of b. It is little-endian, as in files and on
// every machine that autopar runs on.
func (d DType) Read(b []byte) float32 {
	switch d {
	case BF16:
		return half.FromBF16(binary.LittleEndian.Uint16(b))
	case F16:
		return half.FromF16(binary.LittleEndian.Uint16(b))
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(b))
}

// Write is the inverse of [DType.Read]. It rounds to nearest, ties to even.
func (d DType) Write(b []byte, x float32) {
	switch d {
	case BF16:
		binary.LittleEndian.PutUint16(b, half.BF16(x))
	case F16:
		binary.LittleEndian.PutUint16(b, half.F16(x))
	default:
		binary.LittleEndian.PutUint32(b, math.Float32bits(x))
	}
}

// ParseDType is the inverse of [DType.String].
func ParseDType(s string) (DType, error) {
	for d, name := range dtypeNames {
		if s == name {
			return DType(d), nil
		}
	}
	return 0, fmt.Errorf("ir: unknown dtype %q (want f32, i32, bf16, f16 or q64)", s)
}

// Type is a dtype and a global shape. A scalar has an empty shape.
type Type struct {
	DType DType
	Shape []int
}

// Elems returns the number of elements.
func (t Type) Elems() int64 { return Elems(t.Shape) }

// Bytes returns the size of the whole (unsharded) value.
func (t Type) Bytes() int64 { return t.Elems() * t.DType.Size() }

// Equal reports whether dtype and shape agree.
func (t Type) Equal(u Type) bool { return t.DType == u.DType && slices.Equal(t.Shape, u.Shape) }

// String prints a type as f32[8,128,64].
func (t Type) String() string {
	var b strings.Builder
	b.WriteString(t.DType.String())
	b.WriteByte('[')
	for i, n := range t.Shape {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(n))
	}
	b.WriteByte(']')
	return b.String()
}

// Elems multiplies the sizes of a shape; the empty shape has one element.
func Elems(shape []int) int64 {
	n := int64(1)
	for _, s := range shape {
		n *= int64(s)
	}
	return n
}

// Phase says when in a training step a node runs: once per micro-batch
// (Forward, Backward, WeightGrad) or once per step after the last micro-batch
// (Update).
type Phase uint8

// The phases, in the order in which they run.
const (
	Forward Phase = iota
	Backward
	// WeightGrad is the part of the backward pass that only computes gradients of parameters, if a schedule
	// runs it separately (Qi et al. 2024).
	WeightGrad
	Update
	NumPhases
)

var phaseNames = [NumPhases]string{Forward: "fwd", Backward: "bwd", WeightGrad: "wgt", Update: "upd"}

func (p Phase) String() string {
	if p < NumPhases {
		return phaseNames[p]
	}
	return fmt.Sprintf("Phase(%d)", uint8(p))
}

// parsePhase is the inverse of [Phase.String].
func parsePhase(s string) (Phase, error) {
	for p, name := range phaseNames {
		if s == name {
			return Phase(p), nil
		}
	}
	return 0, fmt.Errorf("ir: unknown phase %q (want fwd, bwd, wgt or upd)", s)
}
