package cuda

import (
	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/cuda/kernel"
	"github.com/autopar/autopar/ir"
)

// Engine runs kernels on one GPU, but for matrix products and copies. Its methods are
// called with the GPU current.
type Engine interface {
	// Check says why kernels cannot be run, if that is known at once, and begins to make them.
	Check(g kernel.Group) error
	// Load waits until all that was checked can be run.
	Load() error
	// Scratch returns the bytes of memory of its own that a group needs while it runs.
	Scratch(g kernel.Group) int64
	// Prepare returns what puts a group on a stream, any number of times.
	Prepare(g kernel.Group, at kernel.Place, scratch driver.Ptr) (func(s driver.Stream) error, error)
	// Reduce sets out to the sums or maxima over the inputs, in order. Two-byte numbers are
	// added in f32 and rounded once; out may be one of the inputs.
	Reduce(s driver.Stream, by ir.Reduction, d ir.DType, out driver.Ptr, in []driver.Ptr, elems int64) error
	// Exceeds sets the integer of 8 bytes at flag to 1 if the magnitude of one of so many
	// fixed-point numbers is greater than a limit, or it stands for a sum that did not fit.
	Exceeds(s driver.Stream, flag, x driver.Ptr, elems, limit int64) error
	// Void turns all of so many fixed-point numbers into a sum that does not fit, unless what
	// is at flag is 0.
	Void(s driver.Stream, flag, x driver.Ptr, elems int64) error
	Close() error
}
