package driver

import (
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"
)

// dlopen locks the goroutine to its thread: the reason of a failure takes a second call, dlerror,
// which knows only failures of its own thread.
func dlopen(file string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlopen(file, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

func dlsym(handle uintptr, name string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlsym(handle, name)
}

// call calls a function with integers and pointers. Callers convert pointers in the call
// expression, which keeps what they point to alive and in place.
//
//go:uintptrescapes
func (p proc) call(args ...uintptr) int {
	r, _, _ := purego.SyscallN(p.addr, args...)
	return int(int32(r))
}

// callString calls a function of one number that returns a C string.
func (p proc) callString(x int) string {
	r, _, _ := purego.SyscallN(p.addr, uintptr(x))
	return goString(r)
}

// version calls a function without parameters that returns a size_t.
func (p proc) version() int {
	r, _, _ := purego.SyscallN(p.addr)
	return int(r)
}

// goString copies a C string.
func goString(p uintptr) string {
	if p == 0 {
		return ""
	}
	base := *(**byte)(unsafe.Pointer(&p)) // p points to memory that Go does not manage
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(base), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(base, n))
}

// memory returns the bytes at an address that Go does not manage.
func memory(p uintptr, bytes int64) []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&p)), bytes)
}

// uniqueID is ncclUniqueId. It is passed by value: on the stack on amd64, by reference to a copy on
// arm64.
type uniqueID struct{ bytes [128]byte }

// joinFunc declares ncclCommInitRank.
func joinFunc(p proc) func(comm *uintptr, ranks int32, id uniqueID, rank int32) int32 {
	var f func(comm *uintptr, ranks int32, id uniqueID, rank int32) int32
	purego.RegisterFunc(&f, p.addr)
	return f
}

// keep keeps what arguments point to alive until here.
func keep(x any) { runtime.KeepAlive(x) }
