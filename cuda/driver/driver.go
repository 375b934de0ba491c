// Package driver is the CUDA driver, its run-time compiler, its matrix products and NCCL
// as the backend needs them: [Driver], [Compiler], [BLAS] and [Collectives]. The
// libraries are found and loaded when [Open] asks for them, so a program that imports
// this package builds and starts anywhere. Package fake is another implementation, in
// memory, that checks how it is used.
//
// Names are those of the CUDA driver API without the prefix. Calls on a stream take
// effect later, in order. Except for [Driver.SetCurrent], [Driver.RetainPrimary] and what takes a device's number,
// every method acts on the context that is current on the calling thread, so callers hold
// on to their thread (runtime.LockOSThread) from SetCurrent on.
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

// Handles of a driver. The zero Stream, Event and so on is none.
type (
	Context  uintptr
	Stream   uintptr
	Event    uintptr
	Module   uintptr
	Function uintptr
	Graph    uintptr // as captured
	Exec     uintptr // a graph made ready to launch
)

// Attribute is a figure of a device, by its number in CUdevice_attribute.
type Attribute int32

// The attributes that are asked for.
const (
	SharedPerBlockMax Attribute = 97 // bytes of shared memory a block can have when its function is told
	Multiprocessors   Attribute = 16
	CapabilityMajor   Attribute = 75
	CapabilityMinor   Attribute = 76
)

// FunctionAttribute is a figure of a device function, by its number in
// CUfunction_attribute.
type FunctionAttribute int32

// The function attributes that are used. SharedMax is set before a launch with more dynamic shared memory than the function's
// static shared memory leaves of 48 KB.
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

	// RetainPrimary returns the primary context of a device, which cuBLASLt and NCCL use
	// too; ReleasePrimary ends the use.
	RetainPrimary(device int) (Context, error)
	ReleasePrimary(device int) error
	SetCurrent(c Context) error
	// MemInfo returns the free and all bytes of the current device.
	MemInfo() (free, total int64, err error)

	Alloc(bytes int64) (Ptr, error)
	Free(p Ptr) error
	// AllocHost returns memory that does not move, which every device can copy from and to.
	AllocHost(bytes int64) ([]byte, error)
	FreeHost(memory []byte) error

	// Copies of len(src) or len(dst) bytes. Host memory is of AllocHost and is not touched
	// before the stream is done with it.
	CopyToDevice(dst Ptr, src []byte, s Stream) error
	CopyToHost(dst []byte, src Ptr, s Stream) error
	Copy(dst, src Ptr, bytes int64, s Stream) error
	// Set8 fills bytes.
	Set8(dst Ptr, value byte, bytes int64, s Stream) error

	// CreateStream makes a stream that waits for no other unless told.
	CreateStream() (Stream, error)
	DestroyStream(s Stream) error
	// SyncStream returns when all work of the stream is done.
	SyncStream(s Stream) error
	// CreateEvent makes an event, with the time at which it happens if asked.
	CreateEvent(timed bool) (Event, error)
	DestroyEvent(e Event) error
	RecordEvent(e Event, s Stream) error
	// WaitEvent holds the stream's later work back until what the event was last recorded
	// after is done. An event that was never recorded holds nothing back.
	WaitEvent(s Stream, e Event) error
	// EventDone reports whether that has happened.
	EventDone(e Event) (bool, error)
	// Elapsed returns the milliseconds between two timed events.
	Elapsed(from, to Event) (float32, error)

	LoadModule(image []byte) (Module, error)
	UnloadModule(m Module) error
	ModuleFunction(m Module, name string) (Function, error)
	FunctionAttribute(f Function, a FunctionAttribute) (int, error)
	SetFunctionAttribute(f Function, a FunctionAttribute, value int) error
	// Launch runs a function. Every argument takes one word, low end first, but the last,
	// which may be a struct of several. args is not to be changed before Launch returns.
	Launch(f Function, grid, block Dims, shared uint32, s Stream, args []uint64) error

	// BeginCapture makes the stream, and those that come to wait for it, note what they are
	// given instead of doing it, until EndCapture of the same stream. All of it is given by
	// one thread.
	BeginCapture(s Stream) error
	EndCapture(s Stream) (Graph, error)
	DestroyGraph(g Graph) error
	Instantiate(g Graph) (Exec, error)
	LaunchGraph(e Exec, s Stream) error
	DestroyExec(e Exec) error
}

// Labeler is a Driver that wants to know what the work is for which a stream is given
// next.
type Labeler interface {
	Label(s Stream, what string)
}

// Compiler compiles device code.
type Compiler interface {
	// Version is that of the compiler, 1000*major + 10*minor.
	Version() int
	// Compile returns the machine code (cubin) of a program for an architecture such as
	// "sm_90a". Errors have the compiler's log.
	Compile(name, source, arch string, options []string) ([]byte, error)
}

// GEMM is a matrix product as BLAS counts: c = op(a)·op(b), or that added to c, with
// columns that lie together. op(a) is MxK, op(b) is KxN, c is MxN; a leading dimension is
// the elements from one column to the next as stored. Sums are taken in f32, and rounded
// once where c is stored.
type GEMM struct {
	M, N, K          int64
	TransA, TransB   bool
	LDA, LDB, LDC    int64
	TypeA, TypeB, TC ir.DType
	Accumulate       bool
	Epilogue         Epilogue
}

// Epilogue is what a product does besides, with a vector of type TC.
type Epilogue uint8

// The epilogues.
const (
	NoEpilogue Epilogue = iota
	AddBias             // adds a vector of M elements to every column of c
	SumB                // sets a vector of N elements to the sums of the columns of op(b)
)

// BLAS runs matrix products. One may be used by several streams of a context at once.
type BLAS interface {
	// Workspace is how many bytes of memory of its own each stream needs.
	Workspace() int64
	// Tune times candidates for a kind of product on these operands, whose result is left
	// alone, and keeps the best. It waits for the stream.
	Tune(g GEMM, a, b, c Ptr, workspace Ptr, s Stream) error
	// MatMul runs a product on a stream, with the stream's workspace. One of a kind that has
	// not been tuned is tuned first, so it is not to be captured.
	MatMul(g GEMM, a, b, c Ptr, workspace Ptr, s Stream) error
	// With runs a product with its epilogue, or apart, which gives the stream the same in
	// several launches: whichever is faster. The first time it times both, waiting for the
	// stream, so that is not to be captured.
	With(g GEMM, a, b, c, vector Ptr, workspace Ptr, s Stream, apart func() error) error
	Close() error
}

// ID names a communicator that is being made.
type ID [128]byte

// Address is where the ranks of the communicator meet, host:port. NCCL keeps it in the name,
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
	// NewID makes the name of a new communicator, for one of its ranks to tell the others.
	NewID() (ID, error)
	// Join makes a rank part of a communicator, on the current context's device. It returns
	// when all have joined.
	Join(ranks int, id ID, rank int) (Comm, error)
	// GroupStart and GroupEnd enclose calls of one thread that are made together.
	GroupStart() error
	GroupEnd() error
}

// Comm is a rank's part in a communicator. Operations go to a stream, and numbers of
// elements are as NCCL counts them.
type Comm interface {
	AllReduce(send, recv Ptr, elems int64, d ir.DType, by ir.Reduction, s Stream) error
	ReduceScatter(send, recv Ptr, recvElems int64, d ir.DType, by ir.Reduction, s Stream) error
	AllGather(send, recv Ptr, sendElems int64, d ir.DType, s Stream) error
	Reduce(send, recv Ptr, elems int64, d ir.DType, by ir.Reduction, root int, s Stream) error
	Send(p Ptr, elems int64, d ir.DType, peer int, s Stream) error
	Recv(p Ptr, elems int64, d ir.DType, peer int, s Stream) error
	// Failure returns what has gone wrong on the device or the network since, or nil.
	Failure() error
	// Abort ends operations in progress and the communicator; Close ends one that is idle. Both wait until the graphs
	// that captured the communicator are destroyed.
	Abort() error
	Close() error
}
