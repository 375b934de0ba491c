package safetensors

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// A Tensor is a tensor in memory.
type Tensor struct {
	Name  string
	DType DType
	Shape []int  // no dimension for a scalar
	Data  []byte // elements in row-major order, little-endian
}

// FromFloat32s returns an F32 tensor that holds a copy of values.
func FromFloat32s(name string, shape []int, values []float32) Tensor {
	data := make([]byte, 0, 4*len(values))
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(v))
	}
	return Tensor{Name: name, DType: F32, Shape: slices.Clone(shape), Data: data}
}

// FromInt32s returns an I32 tensor that holds a copy of values.
func FromInt32s(name string, shape []int, values []int32) Tensor {
	data := make([]byte, 0, 4*len(values))
	for _, v := range values {
		data = binary.LittleEndian.AppendUint32(data, uint32(v))
	}
	return Tensor{Name: name, DType: I32, Shape: slices.Clone(shape), Data: data}
}

// Info returns t without its data.
func (t Tensor) Info() Info {
	return Info{Name: t.Name, DType: t.DType, Shape: t.Shape}
}

// Float32s returns the elements of an F32, F16 or BF16 tensor; every such value is a float32 exactly.
// Other types are an error that names the tensor and its type.
func (t Tensor) Float32s() ([]float32, error) {
	var decode func([]byte) float32
	switch t.DType {
	case F32:
		decode = func(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) }
	case F16:
		decode = func(b []byte) float32 { return float16(binary.LittleEndian.Uint16(b)) }
	case BF16: // the upper half of a float32
		decode = func(b []byte) float32 { return math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16) }
	default:
		return nil, fmt.Errorf("safetensors: tensor %q is %s, want F32, F16 or BF16", t.Name, t.DType)
	}
	return decodeAll(t, decode)
}

// Int32s returns the elements of an I32, I16, I8, U16 or U8 tensor; every such value is an int32 exactly.
// Other types are an error that names the tensor and its type.
func (t Tensor) Int32s() ([]int32, error) {
	var decode func([]byte) int32
	switch t.DType {
	case I32:
		decode = func(b []byte) int32 { return int32(binary.LittleEndian.Uint32(b)) }
	case I16:
		decode = func(b []byte) int32 { return int32(int16(binary.LittleEndian.Uint16(b))) }
	case I8:
		decode = func(b []byte) int32 { return int32(int8(b[0])) }
	case U16:
		decode = func(b []byte) int32 { return int32(binary.LittleEndian.Uint16(b)) }
	case U8:
		decode = func(b []byte) int32 { return int32(b[0]) }
	default:
		return nil, fmt.Errorf("safetensors: tensor %q is %s, want I32, I16, I8, U16 or U8", t.Name, t.DType)
	}
	return decodeAll(t, decode)
}

// decodeAll decodes every element of t.Data, whose length must be what the shape says.
func decodeAll[E float32 | int32](t Tensor, decode func([]byte) E) ([]E, error) {
	if err := t.checkData(); err != nil {
		return nil, fmt.Errorf("safetensors: tensor %q: %w", t.Name, err)
	}
	size := t.DType.Size()
	out := make([]E, len(t.Data)/size)
	for i := range out {
		out[i] = decode(t.Data[i*size:])
	}
	return out, nil
}

// checkData reports, as a reason, a length of Data that disagrees with the shape.
func (t Tensor) checkData() error {
	n, err := t.Info().byteLen()
	if err != nil {
		return err
	}
	if int64(len(t.Data)) != n {
		return fmt.Errorf("%d bytes of data, but shape %v of %s takes %d", len(t.Data), t.Shape, t.DType, n)
	}
	return nil
}

// float16 converts an IEEE 754 binary16 (1 sign, 5 exponent and 10 fraction bits) to the equal float32.
func float16(h uint16) float32 {
	sign := uint32(h>>15) << 31
	exponent := uint32(h>>10) & 0x1f
	fraction := uint32(h) & 0x3ff
	switch exponent {
	case 0: // zero or subnormal: fraction * 2^-24
		magnitude := float32(fraction) * 0x1p-24
		return math.Float32frombits(sign | math.Float32bits(magnitude))
	case 0x1f: // infinity or NaN
		return math.Float32frombits(sign | 0xff<<23 | fraction<<13)
	}
	return math.Float32frombits(sign | (exponent+127-15)<<23 | fraction<<13)
}
