// Package safetensors reads and writes the safetensors file format, in which Hugging Face publishes model weights.
//
// A file is a header length (8 bytes, little-endian), a JSON header of that length, and the tensors' bytes:
//
//	{"__metadata__": {"key": "value"},
//	 "wte.weight": {"dtype": "F32", "shape": [65, 24], "data_offsets": [0, 6240]}, ...}
//
// Elements are little-endian, in row-major order. Offsets count from the end of the header, and the tensors must fill
// the rest of the file exactly: no gap, no overlap, nothing after the last. The format is described at
// https://github.com/huggingface/safetensors.
//
// Reading treats the file as hostile: [Open] checks every number of the header before it is used, so that no read leaves
// the file and no buffer is larger than the file.
package safetensors

import (
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"unicode/utf8"
)

// metadataKey is the one header key that is not a tensor.
const metadataKey = "__metadata__"

// maxHeaderBytes is the longest header accepted, as in the reference implementation.
const maxHeaderBytes = 100_000_000

// ErrNotFound is wrapped by the error of a call that names a tensor which the file does not have.
var ErrNotFound = errors.New("no such tensor")

// A FormatError says that a file's contents, or the contents asked to be written, break the format.
type FormatError struct {
	File   string // path of the file
	Tensor string // name of the tensor at fault, or "" if it is the file as a whole
	Reason string // what is wrong, with the numbers
}

func (e *FormatError) Error() string {
	if e.Tensor == "" {
		return fmt.Sprintf("safetensors: %s: %s", e.File, e.Reason)
	}
	return fmt.Sprintf("safetensors: %s: tensor %q: %s", e.File, e.Tensor, e.Reason)
}

func formatErrorf(file, tensor, format string, args ...any) error {
	return &FormatError{File: file, Tensor: tensor, Reason: fmt.Sprintf(format, args...)}
}

// A DType is an element type by its name in the header.
type DType string

// The element types that a file may hold. Those that neither [Tensor.Float32s] nor [Tensor.Int32s] converts can still be
// read and written as bytes.
const (
	F64    DType = "F64"
	F32    DType = "F32"
	F16    DType = "F16"
	BF16   DType = "BF16"
	F8E4M3 DType = "F8_E4M3"
	F8E5M2 DType = "F8_E5M2"
	I64    DType = "I64"
	I32    DType = "I32"
	I16    DType = "I16"
	I8     DType = "I8"
	U64    DType = "U64"
	U32    DType = "U32"
	U16    DType = "U16"
	U8     DType = "U8"
	Bool   DType = "BOOL"
)

// Size returns the bytes per element, or 0 if d is not an element type of the format.
func (d DType) Size() int {
	switch d {
	case F64, I64, U64:
		return 8
	case F32, I32, U32:
		return 4
	case F16, BF16, I16, U16:
		return 2
	case F8E4M3, F8E5M2, I8, U8, Bool:
		return 1
	}
	return 0
}

// Info describes a tensor without its data.
type Info struct {
	Name  string
	DType DType
	Shape []int // no dimension for a scalar; dimensions may be 0
}

// byteLen returns the bytes that the tensor's data takes. The error is only a reason, for a FormatError to carry.
func (i Info) byteLen() (int64, error) {
	size := i.DType.Size()
	if size == 0 {
		return 0, fmt.Errorf("unknown dtype %q", i.DType)
	}
	for _, d := range i.Shape {
		if d < 0 {
			return 0, fmt.Errorf("shape %v has a negative dimension", i.Shape)
		}
	}
	if slices.Contains(i.Shape, 0) {
		return 0, nil
	}
	n := uint64(size)
	for _, d := range i.Shape {
		hi, lo := bits.Mul64(n, uint64(d))
		if hi != 0 || lo > 1<<62 {
			return 0, fmt.Errorf("shape %v of %s takes more than 2^62 bytes", i.Shape, i.DType)
		}
		n = lo
	}
	return int64(n), nil
}

// validateName reports, as a reason, why name cannot be the name of a tensor.
func validateName(name string) error {
	if name == metadataKey {
		return fmt.Errorf("the name %s is reserved", metadataKey)
	}
	if !utf8.ValidString(name) {
		return fmt.Errorf("the name is not valid UTF-8")
	}
	return nil
}
