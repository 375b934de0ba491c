// Package checkpoint saves a run so that it can continue under any plan.
//
// A checkpoint is a directory DIR/ckpt/step-NNNNNNNN:
//
//	manifest.json            step, config, plan, and for every tensor its global shape and which file holds which part
//	rank-NNNNN.safetensors   the parts that one rank saved
//
// and DIR/ckpt/latest names the newest. Parts are stored by global position, so it does not matter
// for reading how tensors were cut when they were saved: [Checkpoint.Read] assembles any part of
// any tensor from the files.
//
// [Save] writes a temporary directory, makes it durable, renames it and then replaces latest, each
// by one atomic rename. Whenever the writer is killed, latest leads to a complete checkpoint: the
// new one or the one before.
//
// A [Background] does the same while the run goes on, from a copy in a [Memory]. That memory may
// outlive the process; the one that is started in its place finds there what is [Held].
//
// Reading treats the directory as hostile. [Open] checks the manifest for consistency, and against
// the size, the SHA-256 and the header of every file. The error is an [*Error] that names the file,
// the tensor and the numbers.
//
// Besides, [OpenWeights] and [ExportWeights] exchange weights alone with nanoGPT and HuggingFace's
// GPT-2 and Llama, as one safetensors file. Files of torch.save can be read too, and several files by their
// index. A [Training] is what nanoGPT's ckpt.pt has of a run besides.
package checkpoint

import (
	"fmt"
	"strings"

	"github.com/autopar/autopar/ir"
)

// Reader is a source of tensors by structural name: a [Checkpoint], [Weights] or a [Training].
type Reader interface {
	// Read fills dst with the part slab of a tensor, in row-major order and little-endian, as
	// elements of the given type. Floating-point numbers of another type are converted, rounded to
	// nearest even if bits are lost. slab.Global must be the tensor's shape. The error is an
	// *Error.
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

// overlap reports whether two slabs of one tensor have an element in common. Saving compares all
// parts of a tensor with each other, so it does not allocate.
func overlap(a, b ir.Slab) bool {
	for d := range a.Local {
		if max(a.Offset[d], b.Offset[d]) >= min(a.Offset[d]+a.Local[d], b.Offset[d]+b.Local[d]) {
			return false
		}
	}
	return true
}
