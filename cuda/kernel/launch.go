// Package kernel holds the device code of the CUDA backend and says what to launch for an
// instruction. The code is CUDA C++ without any header, so that NVRTC compiles it wherever there is
// a driver, and so that the same text compiles for the CPU, where tests run it. Nothing here needs
// CUDA: the package makes text and numbers.
//
// Results are those of package interp and runtime/cpu. Two-byte types are computed in f32 and
// rounded once, where they are stored. Sums are taken in an order that depends on sizes alone,
// without atomics, so results repeat bit for bit. Dropout masks have the bits of package philox. A
// kernel cannot report an error as the CPU does: an id or target out of range makes NaN of its row.
//
// # Files
//
// launch.go encodes launches; ops.go, model.go, attention.go, matmul.go, move.go and fixed.go say
// what each op launches; fuse.go finds kernels that one launch can do; source.go puts programs
// together from the .cu files. Of those, primitives.cu and prelude.cu are part of every program,
// and heads.cu, tiles.cu and q64.cu of some.
package kernel

import (
	"fmt"
	"math"
	"strings"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// Launch is one run of a device function.
type Launch struct {
	Program string    // the argument of [Source]: a file of this package and an element type, such as "norm_bf16.cu"
	Name    string    // extern "C" name; each variant for a type or size has its own
	Grid    [3]uint32 // blocks
	Block   [3]uint32 // threads
	Shared  uint32    // dynamic shared memory in bytes; above 48 KB the function must be allowed it
	Args    []uint64  // one word per parameter, in order: addresses, or the bits of integers and floats, low end first
	Sizes   []uint8   // bytes of each parameter, 4 or 8; a struct is several
}

// Place returns the device address of an operand or result, a multiple of 16.
type Place func(t runtime.Tensor) uint64

// Anywhere is a [Place] for asking what a group launches before its arena exists. Tensors have
// the distances that they have there, because a launch depends on what is in place.
func Anywhere(t runtime.Tensor) uint64 { return 1<<32 + uint64(t.Offset) }

// Scratch returns how many bytes of scratch memory, 16-byte aligned, the launches of a group need.
// Most need none.
func Scratch(g Group) int64 {
	l, err := launches(g, Anywhere, 0)
	if err != nil {
		return 0
	}
	return l.used
}

// Launches returns the launches that run a group, in order on one stream. There are some for every
// op that does not communicate. If there is no kernel, the error names op and type.
func Launches(g Group, at Place, scratch uint64) ([]Launch, error) {
	l, err := launches(g, at, scratch)
	if err != nil {
		return nil, err
	}
	return l.out, nil
}

// Reduce returns the launch for loopback collectives: out[i] is the sum of element i of the inputs,
// at most [MaxInputs], in order. Numbers are added in f32 and rounded once, fixed point is added
// exactly. One input is a copy. out may be one of the inputs.
func Reduce(dt ir.DType, out uint64, in []uint64, elems int64) Launch {
	return reduce("reduce_sum", dt, out, in, elems)
}

// ReduceMax is Reduce with the maximum in place of the sum.
func ReduceMax(dt ir.DType, out uint64, in []uint64, elems int64) Launch {
	return reduce("reduce_max", dt, out, in, elems)
}

// MaxInputs is how many values [Reduce] combines in one launch.
const MaxInputs = 16

func reduce(name string, dt ir.DType, out uint64, in []uint64, elems int64) Launch {
	if len(in) == 0 || len(in) > MaxInputs {
		panic(fmt.Sprintf("BUG: kernel: %s of %d inputs, want 1 to %d", name, len(in), MaxInputs))
	}
	args := []any{address(out), elems, int32(len(in))}
	for i := range MaxInputs {
		var x address
		if i < len(in) {
			x = address(in[i])
		}
		args = append(args, x)
	}
	if dt == ir.Q64 {
		return launch("fixed.cu", "reduce_fixed_f32", blocks(elems, 256), block256, 0, args...)
	}
	return launch("elementwise.cu", name+"_"+dt.String(), packBlocks(dt, elems), block256, 0, args...)
}

// address is a parameter that points to device memory.
type address uint64

var block256 = [3]uint32{256, 1, 1}

// launch encodes the parameters of a launch. The name of the function ends with the element type.
func launch(program, name string, grid, block [3]uint32, shared int, args ...any) Launch {
	l := Launch{Program: typed(program, name[strings.LastIndex(name, "_")+1:]), Name: name, Grid: grid, Block: block, Shared: uint32(shared)}
	for _, a := range args {
		word, size := uint64(0), uint8(8)
		switch a := a.(type) {
		case address:
			word = uint64(a)
		case int64:
			word = uint64(a)
		case uint64:
			word = a
		case float64:
			word = math.Float64bits(a)
		case int32:
			word, size = uint64(uint32(a)), 4
		case uint32:
			word, size = uint64(a), 4
		case float32:
			word, size = uint64(math.Float32bits(a)), 4
		default:
			panic(fmt.Sprintf("BUG: kernel: %s: parameter of type %T", name, a))
		}
		l.Args, l.Sizes = append(l.Args, word), append(l.Sizes, size)
	}
	return l
}

// list collects the launches of a group.
type list struct {
	*runtime.Kernel // the first
	group           Group
	at              Place
	scratch         uint64
	used            int64 // bytes of scratch memory
	out             []Launch
}

func launches(g Group, at Place, scratch uint64) (*list, error) {
	l := &list{Kernel: g[0], group: g, at: at, scratch: scratch}
	op := l.Node.Op
	if !has(op) {
		return nil, l.errorf("")
	}
	for i, acc := range l.Accum {
		if acc && !op.Accumulates(i) && op != ir.OpAccumulate {
			return nil, l.errorf(": it cannot add into result %d", i)
		}
	}
	do := ops[op]
	if len(g) > 1 {
		do = fusions[op].launch
	}
	if err := do(l); err != nil {
		return nil, err
	}
	for _, x := range l.out {
		if g := x.Grid; g[0] >= 1<<31 || g[1] >= 1<<16 || g[2] >= 1<<16 {
			return nil, l.errorf(" of that size: %s would have a grid of %d x %d x %d blocks, a GPU has at most 2147483647 x 65535 x 65535", x.Name, g[0], g[1], g[2])
		}
	}
	return l, nil
}

func (l *list) errorf(format string, args ...any) error {
	return fmt.Errorf("cuda: no kernel for %s"+format, append([]any{l.Node.Op}, args...)...)
}

// elem returns the type of a tensor that must be a floating-point one.
func (l *list) elem(t runtime.Tensor) (ir.DType, error) {
	if !t.DType.Float() {
		return 0, l.errorf(" of %s", t.DType)
	}
	return t.DType, nil
}

// run adds a launch of a function's variant for an element type, unless the grid is empty.
func (l *list) run(program, name string, d ir.DType, grid, block [3]uint32, shared int, args ...any) {
	if grid[0] == 0 || grid[1] == 0 || grid[2] == 0 {
		return
	}
	l.out = append(l.out, launch(program, name+"_"+d.String(), grid, block, shared, args...))
}

func (l *list) arg(i int) address    { return address(l.at(l.Args[i])) }
func (l *list) result(i int) address { return address(l.at(l.Results[i])) }

// temp reserves scratch memory.
func (l *list) temp(bytes int64) address {
	at := l.scratch + uint64(l.used)
	l.used += (bytes + 15) / 16 * 16
	return address(at)
}

// accum returns the parameter that tells a function whether to add to result i.
func (l *list) accum(i int) int32 {
	if l.Accum[i] {
		return 1
	}
	return 0
}

// moved reports whether result i lies at another place than operand j.
func (l *list) moved(i, j int) bool {
	r, a := l.Results[i], l.Args[j]
	return r.Space != a.Space || r.Offset != a.Offset
}

// packBlocks returns the grid that gives each thread, 256 per block, 16 bytes of elems elements.
func packBlocks(d ir.DType, elems int64) [3]uint32 { return blocks(elems*d.Size(), 16*256) }

// blocks returns the grid for n items, each per block.
func blocks(n, each int64) [3]uint32 { return [3]uint32{uint32((n + each - 1) / each), 1, 1} }

// rows returns the product of the leading dimensions of a part, and its last dimension.
func rows(t runtime.Tensor) (rows, cols int64) { return split(t, 1) }

// split returns how many elements the leading dimensions of a part have, and how many its last n.
func split(t runtime.Tensor, n int) (rows, cols int64) {
	at := len(t.Slab.Local) - n
	return ir.Elems(t.Slab.Local[:at]), ir.Elems(t.Slab.Local[at:])
}

// last returns the offset of a part in the last dimension, and the size of that dimension of the
// whole.
func last(t runtime.Tensor) (offset, size int32) {
	d := len(t.Slab.Local) - 1
	return int32(t.Slab.Offset[d]), int32(t.Slab.Global[d])
}

// has reports whether there are launches for an op.
func has(op ir.Op) bool { return int(op) < len(ops) && ops[op] != nil }
