package checkpoint

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/half"
)

// masterSuffix ends the name of the copy of a weight in full precision, of which the weight is the rounding.
const masterSuffix = ".master"

// CheckType is an *Error unless the tensor is there and of the given type. Converting is right for weights that begin a
// new run; a run that goes on wants the numbers it had.
func (c *Checkpoint) CheckType(name string, dtype ir.DType) error {
	t := c.find(name)
	if t == nil {
		return errorf(c.Dir, name, "is not among its %d tensors: it was saved in another precision or of another model", len(c.Tensors))
	}
	if t.DType != dtype.String() {
		return errorf(c.Dir, name, "is %s, but the run wants %s: go on with the train.dtype it was saved in, or start a new run from its weights", t.DType, dtype)
	}
	return nil
}

// convert sets dst to the numbers of src, both little-endian floating-point elements.
func convert(dst []byte, to ir.DType, src []byte, from ir.DType) error {
	if to == from {
		copy(dst, src)
		return nil
	}
	if !to.Float() || !from.Float() {
		return fmt.Errorf("%s cannot become %s", from, to)
	}
	in, out := int(from.Size()), int(to.Size())
	for i := range len(src) / in {
		put(dst[i*out:], to, get(src[i*in:], from))
	}
	return nil
}

func get(b []byte, d ir.DType) float32 {
	switch d {
	case ir.BF16:
		return half.FromBF16(binary.LittleEndian.Uint16(b))
	case ir.F16:
		return half.FromF16(binary.LittleEndian.Uint16(b))
	}
	return math.Float32frombits(binary.LittleEndian.Uint32(b))
}

func put(b []byte, d ir.DType, x float32) {
	switch d {
	case ir.BF16:
		binary.LittleEndian.PutUint16(b, half.BF16(x))
	case ir.F16:
		binary.LittleEndian.PutUint16(b, half.F16(x))
	default:
		binary.LittleEndian.PutUint32(b, math.Float32bits(x))
	}
}
