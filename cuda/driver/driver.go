// Package driver gives the backend what it needs of four NVIDIA libraries: the CUDA driver
// ([Driver]), the run-time compiler NVRTC ([Compiler]), matrix products by cuBLASLt ([BLAS]) and
// NCCL ([Collectives]). It finds and loads a library when it is first asked for one, so a program
// that imports this package builds and starts anywhere. Package fake is another implementation, in
// memory, that checks how it is used.
//
// Names are those of the CUDA driver API without the prefix. Calls that take a stream take effect
// later, in the order of the stream. Most methods act on the context that is current on the calling
// thread, so callers lock their goroutine to its thread (runtime.LockOSThread) before SetCurrent.
// The exceptions are [Driver.SetCurrent], [Driver.RetainPrimary] and what takes a device's number.
package driver

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strconv"

	"github.com/autopar/autopar/ir"
)

// Ptr is an address in the memory of a device.
type Ptr uint64

// Handles of a driver. Zero is none.
type (
	Context  uintptr
	Stream   uintptr
	Event    uintptr
	Module   uintptr
	Function uintptr
	Graph    uintptr // as it was captured
	Exec     uintptr // a graph made ready to launch
)

// Attribute is a property of a device, by its number in CUdevice_attribute.
type Attribute int32

// The attributes that are read.
const (
	SharedPerBlockMax Attribute = 97 // bytes of shared memory that a block can have if its function is allowed them
	Multiprocessors   Attribute = 16
	CapabilityMajor   Attribute = 75
	CapabilityMinor   Attribute = 76
)

// FunctionAttribute is a property of a device function, by its number in CUfunction_attribute.
type FunctionAttribute int32

// The function attributes that are used. SharedMax must be set before a launch whose dynamic shared
// memory exceeds 48 KB less the function's static shared memory.
const (
	Registers FunctionAttribute = 4
	SharedMax FunctionAttribute = 8
)

// Dims are the numbers of blocks or threads in each dimension.
type Dims [3]uint32

// Driver is the part of the CUDA driver API that the backend uses. Methods may be called
// from any thread.
type Driver interface {
	// Version is the newest CUDA that the driver runs, 1000*major + 10*minor.
	Version() (int, error)
	DeviceCount() (int, error)
	DeviceName(device int) (string, error)
	// DeviceMemory is the size of a device's memory in bytes.
	DeviceMemory(device int) (int64, error)
	Attribute(device int, a Attribute) (int, error)

	// RetainPrimary returns the primary context of a device, which cuBLASLt and NCCL use too.
	// ReleasePrimary gives it back.
	RetainPrimary(device int) (Context, error)
	ReleasePrimary(device int) error
	SetCurrent(c Context) error
	// MemInfo returns how many bytes of the current device are free and how many there are.
	MemInfo() (free, total int64, err error)

	Alloc(bytes int64) (Ptr, error)
	Free(p Ptr) error
	// AllocHost returns pinned memory, which every device can copy from and to.
	AllocHost(bytes int64) ([]byte, error)
	FreeHost(memory []byte) error

	// Copies of len(src) or len(dst) bytes. Host memory must come from AllocHost, and must not be
	// changed or read until the stream has done the copy.
	CopyToDevice(dst Ptr, src []byte, s Stream) error
	CopyToHost(dst []byte, src Ptr, s Stream) error
	Copy(dst, src Ptr, bytes int64, s Stream) error
	// Set8 sets bytes to a value.
	Set8(dst Ptr, value byte, bytes int64, s Stream) error

	// CreateStream makes a stream that waits for no other stream unless told to.
	CreateStream() (Stream, error)
	DestroyStream(s Stream) error
	// SyncStream returns when all work of the stream is done.
	SyncStream(s Stream) error
	// CreateEvent makes an event. A timed one also stores the time at which it happens.
	CreateEvent(timed bool) (Event, error)
	DestroyEvent(e Event) error
	RecordEvent(e Event, s Stream) error
	// WaitEvent makes later work of the stream wait for the work before the event's last record. An
	// event that was never recorded holds nothing back.
	WaitEvent(s Stream, e Event) error
	// EventDone reports whether all work before the event's last record is done.
	EventDone(e Event) (bool, error)
	// Elapsed returns the milliseconds between two timed events.
	Elapsed(from, to Event) (float32, error)

	LoadModule(image []byte) (Module, error)
	UnloadModule(m Module) error
	ModuleFunction(m Module, name string) (Function, error)
	FunctionAttribute(f Function, a FunctionAttribute) (int, error)
	SetFunctionAttribute(f Function, a FunctionAttribute, value int) error
	// Launch runs a function. Every argument takes one word, low end first, except that the last
	// may be a struct of several words. args must not change before Launch returns.
	Launch(f Function, grid, block Dims, shared uint32, s Stream, args []uint64) error

	// BeginCapture makes a stream record what it is given instead of doing it, until EndCapture of
	// the same stream. Streams that wait for events of the capture take part in it. One thread must
	// make all of these calls.
	BeginCapture(s Stream) error
	EndCapture(s Stream) (Graph, error)
	DestroyGraph(g Graph) error
	Instantiate(g Graph) (Exec, error)
	LaunchGraph(e Exec, s Stream) error
	DestroyExec(e Exec) error
}

// Labeler is a Driver that is told what the next work of a stream is for.
type Labeler interface {
	Label(s Stream, what string)
}

// Compiler compiles device code.
type Compiler interface {
	// Version is that of the compiler, 1000*major + 10*minor.
	Version() int
	// Compile returns the machine code (cubin) of a program for an architecture such as "sm_90a".
	// An error has the compiler's log.
	Compile(name, source, arch string, options []string) ([]byte, error)
}

// GEMM is a matrix product in the terms of BLAS, column-major: c = op(a)·op(b), or that added to c.
// op(a) is MxK, op(b) is KxN, c is MxN. A leading dimension is how many elements apart the columns
// are stored. Sums are taken in f32, and rounded once when c is stored.
type GEMM struct {
	M, N, K          int64
	TransA, TransB   bool
	LDA, LDB, LDC    int64
	TypeA, TypeB, TC ir.DType
	Accumulate       bool
	Epilogue         Epilogue
}

// Epilogue is what else a product computes, with a vector of type TC.
type Epilogue uint8

// The epilogues.
const (
	NoEpilogue Epilogue = iota
	AddBias             // adds a vector of M elements to every column of c
	SumB                // sets a vector of N elements to the sums of the columns of op(b)
)

// BLAS runs matrix products. Several streams of a context may use one at once.
type BLAS interface {
	// Workspace is how many bytes of scratch memory each stream needs.
	Workspace() int64
	// MatMul runs a product on a stream, with the stream's workspace. The first time it chooses the
	// best of several candidates for this kind of product, by timing them on these operands, and
	// waits for the stream, which must not happen during a capture.
	MatMul(g GEMM, a, b, c Ptr, workspace Ptr, s Stream) error
	// With runs a product with its epilogue, either as one call or by apart, which must give the
	// stream the same work as several launches: whichever is faster. The first time it times both
	// and waits for the stream, which must not happen during a capture.
	With(g GEMM, a, b, c, vector Ptr, workspace Ptr, s Stream, apart func() error) error
	Close() error
}

// ID identifies a communicator that is being made (ncclUniqueId).
type ID [128]byte

// Address returns host:port of where the ranks of the communicator meet. NCCL stores it in the ID,
// after a word of 8 bytes, as a sockaddr (struct ncclBootstrapHandle of its bootstrap.h).
func (id ID) Address() string {
	const inet, inet6 = 2, 10
	port := strconv.Itoa(int(binary.BigEndian.Uint16(id[10:])))
	switch binary.NativeEndian.Uint16(id[8:]) {
	case inet:
		return net.JoinHostPort(netip.AddrFrom4([4]byte(id[12:16])).String(), port)
	case inet6:
		return net.JoinHostPort(netip.AddrFrom16([16]byte(id[16:32])).String(), port)
	}
	return "an address that NCCL does not tell"
}

// Collectives is NCCL.
type Collectives interface {
	// Version is 10000*major + 100*minor + patch.
	Version() (int, error)
	// NewID makes the ID of a new communicator. One of its ranks calls it and tells the others.
	NewID() (ID, error)
	// Join makes a rank part of a communicator, on the device of the current context. It returns
	// when all ranks have joined.
	Join(ranks int, id ID, rank int) (Comm, error)
	// GroupStart and GroupEnd enclose calls of one thread that NCCL makes together.
	GroupStart() error
	GroupEnd() error
}

// Comm is a rank's part in a communicator. Operations go to a stream. Numbers of elements are as
// NCCL counts them.
type Comm interface {
	AllReduce(send, recv Ptr, elems int64, d ir.DType, by ir.Reduction, s Stream) error
	ReduceScatter(send, recv Ptr, recvElems int64, d ir.DType, by ir.Reduction, s Stream) error
	AllGather(send, recv Ptr, sendElems int64, d ir.DType, s Stream) error
	Reduce(send, recv Ptr, elems int64, d ir.DType, by ir.Reduction, root int, s Stream) error
	Send(p Ptr, elems int64, d ir.DType, peer int, s Stream) error
	Recv(p Ptr, elems int64, d ir.DType, peer int, s Stream) error
	// Failure returns an error of the device or the network since Join, or nil.
	Failure() error
	// Abort ends operations in progress and the communicator. Close ends an idle communicator. Both
	// wait until the graphs that captured the communicator are destroyed.
	Abort() error
	Close() error
}
