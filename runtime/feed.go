package runtime

import (
	"bytes"
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
// rank takes the rows of its micro-batches. Positions are those of one sequence, also where the plan has them for
// each (partition.Plan.SequenceParts).
type Feeds map[string]Array

// input is one input of a program, on all ranks that read it.
type input struct {
	name string
	typ  ir.Type
	data []byte // the array fed to the current step
}

// repeated returns so many copies of an array, one after another, in memory that steps share if they are fed the same.
func (in *input) repeated(one []byte, times int) []byte {
	if len(in.data) == len(one)*times && bytes.Equal(in.data[:len(one)], one) {
		return in.data
	}
	return bytes.Repeat(one, times)
}

// bind checks the feeds of a step and keeps references to them.
func (p *program) bind(feeds Feeds) error {
	for _, in := range p.inputs {
		a, ok := feeds[in.name]
		if !ok {
			return fmt.Errorf("runtime: input %s (%s) is not fed", in.name, in.typ)
		}
		want := in.typ.Bytes()
		if parts := p.src.Plan.SequenceParts; parts > 1 && len(in.typ.Shape) == 2 && int64(len(a.bytes)) == want/int64(in.typ.Shape[0]/parts) {
			a.bytes = in.repeated(a.bytes, in.typ.Shape[0]/parts)
		}
		if a.dtype != in.typ.DType || int64(len(a.bytes)) != want {
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
