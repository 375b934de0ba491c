package ir

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// DType is the element type of a value.
type DType uint8

// The element types. All but Q64 take four bytes.
const (
	F32 DType = iota // IEEE 754 binary32
	I32              // token ids, seeds and step numbers
	Q64              // 64-bit fixed point: sums that do not depend on their order, see fixed.go
	numDTypes
)

var dtypeNames = [numDTypes]string{F32: "f32", I32: "i32", Q64: "q64"}

func (d DType) String() string {
	if d < numDTypes {
		return dtypeNames[d]
	}
	return fmt.Sprintf("DType(%d)", uint8(d))
}

// Size returns the bytes of one element.
func (d DType) Size() int64 {
	if d == Q64 {
		return 8
	}
	return 4
}

// ParseDType is the inverse of [DType.String].
func ParseDType(s string) (DType, error) {
	for d, name := range dtypeNames {
		if s == name {
			return DType(d), nil
		}
	}
	return 0, fmt.Errorf("ir: unknown dtype %q (want f32, i32 or q64)", s)
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
// (Forward, Backward) or once per step after the last micro-batch (Update).
type Phase uint8

// The phases, in the order in which they run.
const (
	Forward Phase = iota
	Backward
	Update
	numPhases
)

var phaseNames = [numPhases]string{Forward: "fwd", Backward: "bwd", Update: "upd"}

func (p Phase) String() string {
	if p < numPhases {
		return phaseNames[p]
	}
	return fmt.Sprintf("Phase(%d)", uint8(p))
}

// ParsePhase is the inverse of [Phase.String].
func ParsePhase(s string) (Phase, error) {
	for p, name := range phaseNames {
		if s == name {
			return Phase(p), nil
		}
	}
	return 0, fmt.Errorf("ir: unknown phase %q (want fwd, bwd or upd)", s)
}
