package driver

import (
	"fmt"
	"strings"
)

// Error is an error that one of the libraries returned.
type Error struct {
	Call string // such as "cuMemAlloc_v2"
	Code int
	Name string // such as "CUDA_ERROR_OUT_OF_MEMORY", or a message
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Call, e.Name, e.Code) }

// OutOfMemory reports whether the call asked for more memory than there is.
func (e *Error) OutOfMemory() bool {
	const outOfMemory = 2 // CUDA_ERROR_OUT_OF_MEMORY
	return e.Code == outOfMemory && strings.HasPrefix(e.Call, "cuMem")
}

// MissingError says which library is missing or too old, and how to get it.
type MissingError struct {
	Library string // such as "libcuda.so.1 (the NVIDIA driver)"
	Msg     string
}

func (e *MissingError) Error() string { return e.Library + " " + e.Msg }
