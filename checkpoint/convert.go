package checkpoint

import (
	"fmt"

	"github.com/autopar/autopar/ir"
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
		to.Write(dst[i*out:], from.Read(src[i*in:]))
	}
	return nil
}
