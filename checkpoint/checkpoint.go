// Package checkpoint saves a run so that any plan can go on with it.
//
// A checkpoint is a directory DIR/ckpt/step-NNNNNNNN:
//
//	manifest.json            step, config, plan, and for every tensor its global shape and which file holds which part
//	rank-NNNNN.safetensors   the parts that one rank saved
//
// and DIR/ckpt/latest names the newest. Parts are stored by global position, so how the tensors were cut when they were
// saved does not matter when they are read: [Checkpoint.Read] assembles any part of any tensor from the files.
//
// [Save] writes into a temporary directory, makes it durable, gives it its name and then replaces latest, each in one
// atomic move. Whenever the writer is killed, latest leads to a complete checkpoint: the new one or the one before.
//
// A [Background] does the same while the run goes on, from a copy in a [Memory], which may outlive the process: then another
// that takes its place finds there what it had [Held].
//
// Reading treats the directory as hostile. [Open] holds the manifest against itself and against the size, the SHA-256
// and the header of every file; what does not fit is an [*Error] that names the file, the tensor and the numbers.
//
// Besides, [OpenWeights] and [ExportWeights] exchange weights alone with nanoGPT and HuggingFace's GPT-2, as one
// safetensors file; files of torch.save are read too.
package checkpoint

import (
	"fmt"
	"strings"

	"github.com/autopar/autopar/ir"
)

// Reader is a source of tensors by their structural names: a [Checkpoint] or [Weights].
type Reader interface {
	// Read fills dst with the part slab of a tensor, in row-major order and little-endian, as elements of the given
	// type. Floating-point numbers of another type are converted, rounded to nearest even where bits are lost. The
	// slab's Global must be the tensor's shape. An *Error says what does not fit.
	Read(name string, dtype ir.DType, slab ir.Slab, dst []byte) error
}

// Error is a checkpoint that cannot be used.
type Error struct {
	File   string // the file or directory at fault
	Tensor string // the tensor at fault, or ""
	Msg    string // what is wrong, with the numbers
	Err    error  // the cause, or nil
}

func (e *Error) Error() string {
	parts := []string{"checkpoint: " + e.File}
	if e.Tensor != "" {
		parts = append(parts, fmt.Sprintf("tensor %q", e.Tensor))
	}
	if e.Msg != "" {
		parts = append(parts, e.Msg)
	}
	if e.Err != nil {
		parts = append(parts, e.Err.Error())
	}
	return strings.Join(parts, ": ")
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

func errorf(file, tensor, format string, args ...any) error {
	return &Error{File: file, Tensor: tensor, Msg: fmt.Sprintf(format, args...)}
}

// intersect returns the part that two slabs of one tensor have in common.
func intersect(a, b ir.Slab) (ir.Slab, bool) {
	out := ir.Slab{Global: a.Global, Offset: make([]int, len(a.Offset)), Local: make([]int, len(a.Local))}
	for d := range a.Local {
		lo := max(a.Offset[d], b.Offset[d])
		hi := min(a.Offset[d]+a.Local[d], b.Offset[d]+b.Local[d])
		if hi <= lo {
			return ir.Slab{}, false
		}
		out.Offset[d], out.Local[d] = lo, hi-lo
	}
	return out, true
}

// runs calls f for every stretch of part that lies together in both slabs that contain it: n elements, at element a of
// slab and element b of other.
func runs(part, slab, other ir.Slab, f func(a, b, n int64)) {
	rank := len(part.Local)
	// Dimensions from inner on are whole in both slabs: they lie together with the one before them.
	inner, n := rank, int64(1)
	for inner > 0 {
		inner--
		n *= int64(part.Local[inner])
		if part.Local[inner] != slab.Local[inner] || part.Local[inner] != other.Local[inner] {
			break
		}
	}
	at := make([]int, inner)
	for {
		f(position(part, slab, at), position(part, other, at), n)
		d := inner - 1
		for ; d >= 0; d-- {
			if at[d]++; at[d] < part.Local[d] {
				break
			}
			at[d] = 0
		}
		if d < 0 {
			return
		}
	}
}

// position returns the index in slab of the element at the given place of part; dimensions without a place are at 0.
func position(part, slab ir.Slab, at []int) int64 {
	p := int64(0)
	for d := range slab.Local {
		i := part.Offset[d] - slab.Offset[d]
		if d < len(at) {
			i += at[d]
		}
		p = p*int64(slab.Local[d]) + int64(i)
	}
	return p
}
