package backendtest

import (
	"encoding/binary"
	"math"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/half"
)

// encode returns x as elements of a floating-point type.
func encode(d ir.DType, x []float32) []byte {
	var b []byte
	for _, v := range x {
		switch d {
		case ir.BF16:
			b = binary.NativeEndian.AppendUint16(b, half.BF16(v))
		case ir.F16:
			b = binary.NativeEndian.AppendUint16(b, half.F16(v))
		default:
			b = binary.NativeEndian.AppendUint32(b, math.Float32bits(v))
		}
	}
	return b
}

// decode is the inverse of encode.
func decode(d ir.DType, b []byte) []float32 {
	x := make([]float32, len(b)/int(d.Size()))
	for i := range x {
		switch d {
		case ir.BF16:
			x[i] = half.FromBF16(binary.NativeEndian.Uint16(b[2*i:]))
		case ir.F16:
			x[i] = half.FromF16(binary.NativeEndian.Uint16(b[2*i:]))
		default:
			x[i] = math.Float32frombits(binary.NativeEndian.Uint32(b[4*i:]))
		}
	}
	return x
}

// epsilon is half the distance from 1 to the next number: what rounding may
// change, in parts of the number.
func epsilon(d ir.DType) float64 {
	switch d {
	case ir.BF16:
		return 1.0 / (1 << 8)
	case ir.F16:
		return 1.0 / (1 << 11)
	}
	return 0
}

// in returns the sample with as many operands of type d as the op's signature
// takes, and how many those are.
func (s sample) in(d ir.DType) (sample, int) {
	best, most := s, 0
	for set := range 1 << len(s.args) {
		args, n := append([]ir.Type(nil), s.args...), 0
		for i := range args {
			if set&(1<<i) != 0 && args[i].DType == ir.F32 {
				args[i].DType = d
				n++
			}
		}
		if _, err := ir.Resolve(s.op, s.attr, args); err == nil && n > most {
			best.args, most = args, n
		}
	}
	return best, most
}
