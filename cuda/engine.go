package cuda

import (
	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/cuda/kernel"
	"github.com/autopar/autopar/ir"
)

// Engine runs kernels on one GPU, except for matrix products and copies. The GPU is current in all
// calls.
type Engine interface {
	// Check returns an error if it is clear that a group cannot run, and else starts compiling it.
	Check(g kernel.Group) error
	// CheckExchanges starts compiling what Move launches if moves is set, and what Exceeds and Void launch if sums is set.
	CheckExchanges(moves, sums bool) error
	// Load waits until all that was checked is ready.
	Load() error
	// Scratch returns how many bytes of scratch memory a group needs while it runs.
	Scratch(g kernel.Group) int64
	// Prepare returns a function that launches a group on a stream, any number of times.
	Prepare(g kernel.Group, at kernel.Place, scratch driver.Ptr) (func(s driver.Stream) error, error)
	// Reduce sets out to the sums or maxima of the inputs, added in the order of in. Two-byte
	// numbers are added in f32 and rounded once. out may be one of the inputs.
	Reduce(s driver.Stream, by ir.Reduction, d ir.DType, out driver.Ptr, in []driver.Ptr, elems int64) error
	// Exceeds sets the 8-byte integer at flag to 1 if any of the fixed-point numbers at x has a
	// magnitude above limit, or is the value that stands for overflow.
	Exceeds(s driver.Stream, flag, x driver.Ptr, elems, limit int64) error
	// Void sets all fixed-point numbers at x to the value that stands for overflow, unless the
	// integer at flag is 0.
	Void(s driver.Stream, flag, x driver.Ptr, elems int64) error
	// Move copies elements, in at most five dimensions, of which the last is contiguous.
	Move(s driver.Stream, d ir.DType, to, from driver.Ptr, dims ...kernel.Dim) error
	Close() error
}
