// Package runtime executes programs. It defines the contract of a backend,
// [Device], and the [Executor] that drives one device a rank through its
// schedule. Order, buffers and failure handling live here once; a backend only
// allocates, copies, launches and communicates.
package runtime

import (
	"errors"
	"time"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/launch"
)

// Backend opens the devices of a run.
type Backend interface {
	// Open returns one device for each rank of this process, in order. They share a
	// world, with those of other processes, which open theirs at the same time.
	Open(world World) ([]Device, error)
	// Abort ends a failed run: every call in which a device waits, now or later,
	// returns [ErrAborted]. It may be called at any time and more than once.
	Abort()
}

// Arithmetic is of a Backend whose kernels depend on the machine. Those of another name round differently.
type Arithmetic interface{ Arithmetic() string }

// World is what the devices of a run have in common.
type World struct {
	Ranks int
	// Timeout bounds every wait of a device for another.
	Timeout time.Duration
	// Peers are the processes of the run, with one rank in each; nil when all ranks
	// are in this one.
	Peers *launch.Peers
}

// Here returns the ranks of this process: first, up to but not including end.
func (w World) Here() (first, end int) {
	if w.Peers == nil {
		return 0, w.Ranks
	}
	return w.Peers.Rank(), w.Peers.Rank() + 1
}

// ErrAborted is returned by a device whose run has failed elsewhere.
var ErrAborted = errors.New("aborted: the run has failed on another rank")

// Space is one of the memories of a rank. Each has an arena of its own.
type Space uint8

// The spaces. Only fetch and stash touch the host's.
const (
	OnDevice Space = iota
	OnHost
)

func (s Space) String() string { return [...]string{"device", "host"}[s] }

// Stream is a queue of work of a device.
type Stream uint8

// The streams.
const (
	Compute       Stream = iota // kernels, transfers, and the collectives that kernels wait for
	Communication               // collectives beside them: of parameters, gradients and weights
	Exchange                    // collectives of tensor-parallel ranks beside the kernels that follow them
	Transfers                   // what passes send to another stage while they go on
	Host                        // the caller, for Wait
)

func (s Stream) String() string {
	return [...]string{"compute", "communication", "exchange", "transfers", "host"}[s]
}

// Event is something that happens when the work of a stream of a rank has come so
// far. Events of each stream count from 1.
type Event struct {
	Rank   int
	Stream Stream
	N      int64
}

// Device is where one rank computes. It has one arena of memory in each space and
// four streams of work: what is given to a stream takes effect in order, and the
// streams wait for each other by events only. Calls may return before their effect;
// Download, and Wait of the [Host], return after it.
//
// One goroutine at a time uses a device. Errors of waiting name the ranks waited
// for. A failure on the communication stream is returned by a Wait for a later
// event of it, as a [StreamError].
type Device interface {
	// Alloc makes the arena in a space at least the given number of bytes. Growing
	// it keeps its contents. Alloc is called only while all devices are idle.
	Alloc(space Space, bytes int64) error
	// Upload copies src into an arena at a byte offset. src may be reused when
	// it returns.
	Upload(space Space, offset int64, src []byte) error
	// Download copies bytes of an arena to dst, after all work given to the compute
	// stream before.
	Download(dst []byte, space Space, offset int64) error
	// Launch runs a kernel: a compute op, or one of the communication ops that
	// need no other rank (slice, to_partial, accumulate, fetch, stash).
	Launch(k *Kernel) error
	// Collective takes part in a collective. All members of its group make the
	// same collectives of that group in the same order.
	Collective(c *Collective) error
	// Send copies a tensor into the arena of the peer, which has said by an event
	// that the place is free, on the stream that the transfer says. The n-th Send on a wire matches the n-th Recv.
	Send(t *Transfer) error
	// Recv holds later work back until the matching Send has arrived.
	Recv(t *Transfer) error
	// Record makes the next event of a stream of the rank: it happens when all
	// work given to that stream before is done.
	Record(s Stream) error
	// Wait holds later work of a stream back until an event has happened; of the
	// Host, the caller.
	Wait(s Stream, e Event) error
	// Close frees the device. It returns even after a failure.
	Close() error
}

// Checker is a Device that can tell before a step that it cannot run a kernel: for
// want of the op, or of the op on those element types. The executor asks while it
// loads a program.
type Checker interface {
	Check(k *Kernel) error
}

// Hosted is a Device whose arenas are memory of the host that nobody has yet.
type Hosted interface {
	// Unwritten is how many bytes of memory the arenas take, beside what the system counts as taken, once all of them
	// has been written. It supposes that nothing has.
	Unwritten() int64
}

// Late is a Device whose steps need not be waited for where they end: it can be told the
// next meanwhile. The executor tells it where a step ends, in place of a wait of the Host.
type Late interface {
	Device
	// End ends a step: the words of 4 bytes at these offsets of the device's arena are kept
	// as they are when all of it is done.
	End(words []int64) error
	// Last waits for the oldest step that has ended and was not waited for, and copies its
	// words to dst. At most two are ahead of it.
	Last(dst []byte) error
}

// Meeter is a Device whose transfers may be meetings: a Send starts when the peer has said that
// it expects the message, so that the executor does not wait for an event before it.
type Meeter interface {
	Device
	// Meets reports whether they are, of this device and all others of its world.
	Meets() bool
	// Expect says from where on the place for the message of a later Recv is free. The
	// messages on a wire are expected in their order. See [codegen.Expects] for when.
	Expect(t *Transfer) error
}

// Fuser is a Device that does the work of some kernels together. The executor tells it,
// while it loads a program, of kernels that it will always launch in this order, with
// nothing between them on the compute stream.
type Fuser interface {
	// Fuse is told of kernels that have been checked. uses counts the reads of every value
	// of the program, and the program's outputs.
	Fuse(run []*Kernel, uses map[*ir.Value]int) error
}

// Tensor is a dense row-major array in an arena: part Slab of a global value.
type Tensor struct {
	Space  Space
	Offset int64 // bytes from the start of the arena, a multiple of 64
	DType  ir.DType
	Slab   ir.Slab
}

// Bytes returns the size of the part.
func (t Tensor) Bytes() int64 { return t.Slab.Elems() * t.DType.Size() }

// Kernel is one launch of an op on one rank's parts of its operands.
//
// Where the op allows it (see [ir.Op.InPlace]) result 0 may be at the place of
// operand 0. AdamW and attention_decode update in place: their new values may be
// at the places of the old. All other tensors are disjoint.
type Kernel struct {
	Node    *ir.Node // op and attributes
	Args    []Tensor
	Results []Tensor
	// Accum has one entry per result: add to what is there instead of
	// overwriting it.
	Accum []bool
	// Position is the rank's place on the mesh axis of a communication op.
	Position int
}

// Member is one rank of a collective and where its tensors are in its arena.
type Member struct {
	Rank    int
	In, Out Tensor
}

// Collective is one rank's view of a collective. Elements that several members
// end with have the same bits on all of them, and from run to run. Out may be at
// the place of In in an all_reduce, and In of an all_gather where it comes to in Out, on all
// members or none; otherwise they are disjoint.
type Collective struct {
	Node *ir.Node // op; it is the same for all members
	Attr ir.CommAttr
	// Group numbers the set of ranks: collectives with equal Members ranks have
	// the same number, in every program of an executor.
	Group    int
	Members  []Member // in axis order
	Position int      // of this rank among them
	// Stream is where it is made. Groups of different streams have different numbers.
	Stream Stream
	// More are collectives of the same op and group, of disjoint tensors, that are
	// made together with this one.
	More []*Collective
	// Ran, when set, is told when it was made.
	Ran func(start, end time.Time)
}

// Transfer is one end of a point-to-point copy.
type Transfer struct {
	Node *ir.Node
	// Wire numbers the connection: one sending instruction between two ranks.
	Wire  int
	Peer  int    // the other rank
	Local Tensor // read by a Send, filled by a Recv
	// Remote is the offset in the peer's arena, for a Send.
	Remote int64
	// Stream is where a Send is made: Compute or Transfers. A Recv holds back the compute stream.
	Stream Stream
	// Ran, when set, is told when a Send on the stream Transfers was made.
	Ran func(start, end time.Time)
}
