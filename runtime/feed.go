package runtime

import (
	"fmt"
	"unsafe"

	"github.com/autopar/autopar/ir"
)

// Array is a dense row-major array of one element type, as the caller feeds it.
type Array struct {
	dtype ir.DType
	bytes []byte
}

// Ints returns x as an array that shares its memory.
func Ints(x ...int32) Array {
	return Array{ir.I32, unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))}
}

// Floats returns x as an array that shares its memory.
func Floats(x ...float32) Array { return Array{ir.F32, floatBytes(x)} }

// Bytes returns the memory of the array.
func (a Array) Bytes() []byte { return a.bytes }

func floatBytes(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}

// Feeds are the inputs of a step, by name. An input of the batch is the whole global batch; each
// rank takes the rows of its micro-batches.
type Feeds map[string]Array

// input is one input of a program, on all ranks that read it.
type input struct {
	name string
	typ  ir.Type
	data []byte // the array fed to the current step
}

// bind checks the feeds of a step and keeps references to them.
func (p *program) bind(feeds Feeds) error {
	for _, in := range p.inputs {
		a, ok := feeds[in.name]
		if !ok {
			return fmt.Errorf("runtime: input %s (%s) is not fed", in.name, in.typ)
		}
		if want := in.typ.Bytes(); a.dtype != in.typ.DType || int64(len(a.bytes)) != want {
			return fmt.Errorf("runtime: input %s is fed %d elements of %s, want %s", in.name, len(a.bytes)/int(a.dtype.Size()), a.dtype, in.typ)
		}
		in.data = a.bytes
	}
	if len(feeds) != len(p.inputs) {
		for name := range feeds {
			if _, ok := p.byName[name]; !ok {
				return fmt.Errorf("runtime: program %s has no input %q", p.src.Graph.Name, name)
			}
		}
	}
	return nil
}
