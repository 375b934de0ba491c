package driver

import "fmt"

// Error is a refusal of one of the libraries.
type Error struct {
	Call string // such as "cuMemAlloc_v2"
	Code int
	Name string // such as "CUDA_ERROR_OUT_OF_MEMORY", or a message
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Call, e.Name, e.Code) }

// outOfMemory is CUDA_ERROR_OUT_OF_MEMORY.
const outOfMemory = 2

// OutOfMemory reports whether the call wanted memory that is not there.
func (e *Error) OutOfMemory() bool { return e.Code == outOfMemory && e.Call != "" }

// MissingError says which library is not there, or is too old, and what to do.
type MissingError struct {
	Library string // such as "libcuda.so.1 (the NVIDIA driver)"
	Msg     string
}

func (e *MissingError) Error() string { return e.Library + " " + e.Msg }
