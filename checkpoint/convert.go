package checkpoint

import (
	"fmt"

	"github.com/autopar/autopar/ir"
)

// masterSuffix ends the name of a weight's master copy, the full-precision value that the weight is
// rounded from.
const masterSuffix = ".master"

// CheckType returns an *Error unless the tensor exists and has the given type. Converting weights
// is fine at the start of a new run, but a run that continues needs the same numbers.
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
