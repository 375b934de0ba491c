package backendtest

import (
	"github.com/autopar/autopar/ir"
)

// encode returns x as elements of a floating-point type.
func encode(d ir.DType, x []float32) []byte {
	size := int(d.Size())
	b := make([]byte, size*len(x))
	if d == ir.F32 {
		copy(b, bytesOf(x))
		return b
	}
	for i, v := range x {
		d.Write(b[size*i:], v)
	}
	return b
}

// decode is the inverse of encode.
func decode(d ir.DType, b []byte) []float32 {
	size := int(d.Size())
	x := make([]float32, len(b)/size)
	for i := range x {
		x[i] = d.Read(b[size*i:])
	}
	return x
}

// epsilon returns half the distance from 1 to the next number: the largest relative error of
// rounding.
func epsilon(d ir.DType) float64 {
	switch d {
	case ir.BF16:
		return 1.0 / (1 << 8)
	case ir.F16:
		return 1.0 / (1 << 11)
	}
	return 0
}

// in returns the sample with as many operands of type d as the op's signature allows, and how many
// those are.
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
	switch s.op {
	case ir.OpAttention, ir.OpAttentionGrad, ir.OpAttentionKV, ir.OpAttentionKVGrad:
		if shape := s.args[0].Shape; shape[len(shape)-1] == 64 || shape[len(shape)-1] == 128 {
			best.loose = 4 * epsilon(d) // see RunWideHeads
		}
	}
	return best, most
}
