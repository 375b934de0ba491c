package driver

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/autopar/autopar/ir"
)

// minNCCL is the oldest NCCL, 10000*major + 100*minor + patch.
const minNCCL = 21800

// nccl is NCCL.
type nccl struct {
	getVersion, getUniqueID, groupStart, groupEnd, allReduce, reduceScatter, allGather, reduce, send, recv,
	asyncError, abort, destroy, errorString proc
	joinProc proc
	join     func(comm *uintptr, ranks int32, id uniqueID, rank int32) int32
}

// launchOrder is the variable that makes NCCL (2.26 and newer) start the operations of a GPU's communicators in the order of
// the calls.
const launchOrder = "NCCL_LAUNCH_ORDER_IMPLICIT"

// runtimeConnect is the variable that makes NCCL (2.22 and newer) connect ranks for collectives when a communicator is made
// (0), or when one first runs by an algorithm (1, its default).
const runtimeConnect = "NCCL_RUNTIME_CONNECT"

// NewCollectives loads NCCL for a process that drives so many GPUs. A rank has several communicators in use at a time. Then NCCL
// needs an order of all operations that is the same on all GPUs, or else they may deadlock: each GPU may start, and fill itself
// with, operations that wait for one which another GPU has not started (Using multiple NCCL communicators concurrently). There is
// one, which NCCL is asked to keep: ranks make their calls in an order that completes even if a GPU does the work of all its
// streams in turn.
//
// With several GPUs NCCL is also asked to connect ranks before collectives run. Connecting allocates memory and maps it on other
// GPUs. That may wait for a collective on one of them, which waits for the rank that connects. A process of one GPU leaves it as
// it is: buffers of rings and trees take hundreds of MiB a communicator, used or not.
func NewCollectives(gpus int) (Collectives, error) {
	ask := map[string]string{launchOrder: "1"}
	if gpus > 1 {
		ask[runtimeConnect] = "0"
	}
	for variable, value := range ask {
		if _, said := os.LookupEnv(variable); said {
			continue
		}
		if err := os.Setenv(variable, value); err != nil {
			return nil, err
		}
	}
	lib, err := libNCCL.open([]int{2})
	if err != nil {
		return nil, err
	}
	return newNCCL(lib)
}

func newNCCL(lib *shared) (*nccl, error) {
	var missing error
	find := func(name string) proc { return lib.proc(name, &missing) }
	n := &nccl{
		getVersion: find("ncclGetVersion"), getUniqueID: find("ncclGetUniqueId"), groupStart: find("ncclGroupStart"), groupEnd: find("ncclGroupEnd"),
		allReduce: find("ncclAllReduce"), reduceScatter: find("ncclReduceScatter"), allGather: find("ncclAllGather"), reduce: find("ncclReduce"),
		send: find("ncclSend"), recv: find("ncclRecv"), asyncError: find("ncclCommGetAsyncError"), abort: find("ncclCommAbort"),
		destroy: find("ncclCommDestroy"), errorString: find("ncclGetErrorString"), joinProc: find("ncclCommInitRank"),
	}
	if missing != nil {
		return nil, missing
	}
	n.join = joinFunc(n.joinProc)
	v, err := n.Version()
	if err != nil {
		return nil, err
	}
	if v < minNCCL {
		return nil, lib.tooOld(ltVersion(v), ltVersion(minNCCL))
	}
	return n, nil
}

func (n *nccl) check(p proc, code int) error {
	if code == 0 {
		return nil
	}
	return &Error{Call: p.name, Code: code, Name: n.errorString.callString(code)}
}

func (n *nccl) Version() (int, error) {
	var v int32
	err := n.check(n.getVersion, n.getVersion.call(uintptr(unsafe.Pointer(&v))))
	return int(v), err
}

func (n *nccl) NewID() (ID, error) {
	var id ID
	err := n.check(n.getUniqueID, n.getUniqueID.call(uintptr(unsafe.Pointer(&id))))
	return id, err
}

func (n *nccl) Join(ranks int, id ID, rank int) (Comm, error) {
	c := &ncclComm{nccl: n}
	code := n.join(&c.handle, int32(ranks), uniqueID{id}, int32(rank))
	return c, n.check(n.joinProc, int(code))
}

func (n *nccl) GroupStart() error { return n.check(n.groupStart, n.groupStart.call()) }
func (n *nccl) GroupEnd() error   { return n.check(n.groupEnd, n.groupEnd.call()) }

// ncclComm is a rank's part in a communicator.
type ncclComm struct {
	*nccl
	handle uintptr

	mu    sync.Mutex // held while the communicator ends or is asked for failures
	ended atomic.Bool
}

// end ends the communicator, once.
func (c *ncclComm) end(by proc) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended.Swap(true) {
		return nil
	}
	return c.check(by, by.call(c.handle))
}

// do makes a call that uses the communicator, unless it has ended, as it does when the run fails
// elsewhere.
func (c *ncclComm) do(p proc, args ...uintptr) error {
	if c.ended.Load() {
		return errEnded
	}
	return c.check(p, p.call(args...))
}

var errEnded = errors.New("NCCL: the communicator has ended")

// ncclType is the ncclDataType_t of a type. Fixed-point numbers are added as integers.
func ncclType(d ir.DType) uintptr {
	return map[ir.DType]uintptr{ir.I32: 2, ir.Q64: 4, ir.F16: 6, ir.F32: 7, ir.BF16: 9}[d]
}

// ncclOp is the ncclRedOp_t of a reduction.
func ncclOp(by ir.Reduction) uintptr {
	if by == ir.Max {
		return 2
	}
	return 0
}

func (c *ncclComm) AllReduce(send, recv Ptr, elems int64, d ir.DType, by ir.Reduction, s Stream) error {
	return c.do(c.allReduce, uintptr(send), uintptr(recv), uintptr(elems), ncclType(d), ncclOp(by), c.handle, uintptr(s))
}

func (c *ncclComm) ReduceScatter(send, recv Ptr, recvElems int64, d ir.DType, by ir.Reduction, s Stream) error {
	return c.do(c.reduceScatter, uintptr(send), uintptr(recv), uintptr(recvElems), ncclType(d), ncclOp(by), c.handle, uintptr(s))
}

func (c *ncclComm) AllGather(send, recv Ptr, sendElems int64, d ir.DType, s Stream) error {
	return c.do(c.allGather, uintptr(send), uintptr(recv), uintptr(sendElems), ncclType(d), c.handle, uintptr(s))
}

func (c *ncclComm) Reduce(send, recv Ptr, elems int64, d ir.DType, by ir.Reduction, root int, s Stream) error {
	return c.do(c.reduce, uintptr(send), uintptr(recv), uintptr(elems), ncclType(d), ncclOp(by), uintptr(root), c.handle, uintptr(s))
}

func (c *ncclComm) Send(p Ptr, elems int64, d ir.DType, peer int, s Stream) error {
	return c.do(c.send, uintptr(p), uintptr(elems), ncclType(d), uintptr(peer), c.handle, uintptr(s))
}

func (c *ncclComm) Recv(p Ptr, elems int64, d ir.DType, peer int, s Stream) error {
	return c.do(c.recv, uintptr(p), uintptr(elems), ncclType(d), uintptr(peer), c.handle, uintptr(s))
}

func (c *ncclComm) Failure() error {
	const inProgress = 7
	if !c.mu.TryLock() { // it is ending, which may take any time, or another thread is asking
		return nil
	}
	defer c.mu.Unlock()
	if c.ended.Load() {
		return nil
	}
	var state int32
	if err := c.check(c.asyncError, c.asyncError.call(c.handle, uintptr(unsafe.Pointer(&state)))); err != nil {
		return err
	}
	if state == 0 || state == inProgress {
		return nil
	}
	return fmt.Errorf("NCCL: %s (%d)", c.errorString.callString(int(state)), state)
}

// Abort may be called while another thread waits in an operation. Neither call returns while there
// is a graph that captured the communicator.
func (c *ncclComm) Abort() error { return c.end(c.abort) }
func (c *ncclComm) Close() error { return c.end(c.destroy) }
