// Package kernel holds the device code of the CUDA backend and says what to launch for
// an instruction. The code is CUDA C++ without any header, so that NVRTC compiles it
// wherever there is a driver, and so that the same text compiles for the CPU, where the
// tests run it. Nothing here needs CUDA: the package makes text and numbers.
//
// The semantics are those of package interp and of runtime/cpu: types of two bytes are
// computed in f32 and rounded once, where they are stored; sums are taken in an order
// that depends on sizes alone, without atomics, so results repeat bit for bit; dropout
// masks have the bits of package philox.
package kernel

import (
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// Launch is one run of a device function.
type Launch struct {
	Program string    // file of this package that has it, such as "norm.cu"
	Name    string    // extern "C" name; a variant for a type or size is a name of its own
	Grid    [3]uint32 // blocks
	Block   [3]uint32 // threads
	Shared  uint32    // dynamic shared memory, bytes; may exceed 48 KB, which a function must be told
	Args    []uint64  // one word per parameter, in order: device addresses, and integers and floats as their bits, low end first
	Sizes   []uint8   // bytes of each parameter, 4 or 8
}

// Place says where tensors are: device address of an operand or result, a multiple of 16.
type Place func(t runtime.Tensor) uint64

// Scratch returns how many bytes of scratch memory the launches of k need (16-byte aligned), 0 for most.
func Scratch(k *runtime.Kernel) int64 {
	return 0
}

// Launches returns what runs k in order on one stream, for every op but matmul and those
// that communicate. It returns an error that names op and type when there is no kernel.
func Launches(k *runtime.Kernel, at Place, scratch uint64) ([]Launch, error) {
	return nil, nil
}

// Reduce returns the launch of the loopback collectives: out[i] = sum over the inputs, in
// order, of element i, added in f32 and rounded once. One input is a copy. out may be one
// of the inputs.
func Reduce(dt ir.DType, out uint64, in []uint64, elems int64) Launch {
	return Launch{}
}
