// Package runtime executes programs. It defines the contract of a backend, [Device], and the
// [Executor], which drives one device per rank through that rank's schedule. Order, buffers and
// failure handling live here once. A backend only allocates, copies, launches and communicates.
//
// # One step
//
// [Executor.Add] turns every task of a rank (one forward, backward or update pass) into a list of
// actions, each of which is one call of the device with all arguments made (load.go, action.go). A
// step then only goes through the lists (rank.go).
//
// A rank gives its device work for four streams: kernels, and communication that overlaps them.
// Streams order themselves by events alone, as CUDA streams do, so a device may run behind the
// host.
//
// # Terms
//
//   - world: all ranks of a run. A process has all of them or one of them: see [World].
//   - arena: the memory of a rank in one [Space]. Programs of one executor share it.
//   - bucket: collectives that are made together, as one (package codegen).
//   - wire: the connection of one send instruction and its receive instruction: see [Transfer].
//   - late: of devices, to run behind the host, so that the next step can be prepared while one
//     runs: see [Late].
//   - meeting: a transfer that starts when both of its ends have come to it, as those of NCCL do:
//     see [Meeter].
package runtime

import (
	"errors"
	"time"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/launch"
)

// Backend opens the devices of a run.
type Backend interface {
	// Open returns one device for each rank of this process, in order. In a run of several
	// processes every process opens its own devices at the same time.
	Open(world World) ([]Device, error)
	// Abort ends a failed run: every call in which a device waits, now or later, returns
	// [ErrAborted]. It may be called at any time and more than once.
	Abort()
}

// Arithmetic is implemented by a Backend whose kernels depend on the machine. Kernels of different
// names round differently.
type Arithmetic interface{ Arithmetic() string }

// World is what the devices of a run have in common.
type World struct {
	Ranks int
	// Timeout bounds every wait of one device for another.
	Timeout time.Duration
	// Peers are the processes of the run, each with one rank. It is nil if all ranks are in this
	// process.
	Peers *launch.Peers
}

// Here returns the ranks of this process as the half-open range [first, end).
func (w World) Here() (first, end int) {
	if w.Peers == nil {
		return 0, w.Ranks
	}
	return w.Peers.Rank(), w.Peers.Rank() + 1
}

// ErrAborted is returned by the devices of a run that has failed on another rank.
var ErrAborted = errors.New("aborted: the run has failed on another rank")

// Space is one of the two memories of a rank. Each has its own arena.
type Space uint8

// The spaces. Only the ops fetch and stash access the host's.
const (
	OnDevice Space = iota
	OnHost
)

func (s Space) String() string { return [...]string{"device", "host"}[s] }

// Stream is a queue of work of a device. Work on one stream takes effect in order.
type Stream uint8

// The streams.
const (
	Compute       Stream = iota // kernels, transfers, and the collectives that later kernels wait for
	Communication               // collectives of parameters and gradients that overlap kernels
	Exchange                    // collectives of tensor-parallel ranks that overlap the kernels behind them
	Transfers                   // sends to another stage that overlap the rest of the pass
	Host                        // no stream: the caller itself, as an argument of Wait
)

func (s Stream) String() string {
	return [...]string{"compute", "communication", "exchange", "transfers", "host"}[s]
}

// Event is a point in the work of a stream of a rank. It happens when all work before it is done.
// The events of each stream count from 1.
type Event struct {
	Rank   int
	Stream Stream
	N      int64
}

// Device is where one rank computes. It has one arena in each space and four streams. Work on a
// stream takes effect in order, and streams wait for each other only by events. Calls may return
// before their effect. Download returns after it, and so does Wait with stream [Host].
//
// Only one goroutine at a time uses a device. The error of a wait names the ranks waited for. A
// failure on a stream other than Compute is returned, as a [StreamError], by a Wait for a later
// event of that stream.
type Device interface {
	// Alloc makes the arena of a space at least bytes long. Growing it keeps its contents. Alloc is
	// called only while all devices are idle.
	Alloc(space Space, bytes int64) error
	// Upload copies src to a byte offset of an arena. The caller may reuse src when Upload returns.
	Upload(space Space, offset int64, src []byte) error
	// Download copies bytes of an arena to dst, after all work given to the compute stream before.
	Download(dst []byte, space Space, offset int64) error
	// Launch runs a kernel: a compute op, or one of the communication ops that
	// need no other rank (slice, to_partial, accumulate, fetch, stash).
	Launch(k *Kernel) error
	// Collective takes part in a collective. All members of a group make the collectives of that
	// group in the same order.
	Collective(c *Collective) error
	// Send copies a tensor into the arena of the peer, on the stream that t names. An event of the
	// peer has told before that the place is free. The n-th Send on a wire matches the n-th Recv.
	Send(t *Transfer) error
	// Recv holds later work of the compute stream back until the matching Send has arrived.
	Recv(t *Transfer) error
	// Record makes the next event of a stream. It happens when all work given to that stream before
	// is done.
	Record(s Stream) error
	// Wait holds later work of a stream back until an event has happened. With stream Host it
	// blocks the caller.
	Wait(s Stream, e Event) error
	// Close frees the device. It returns even after a failure.
	Close() error
}

// Checker is a Device that can tell before a step whether it can run a kernel. It returns an error
// if it lacks the op, or lacks it for those element types. The executor asks when it loads a
// program.
type Checker interface {
	Check(k *Kernel) error
}

// Hosted is a Device whose arenas lie in host memory that the system allocates on first write. The
// executor asks for these before it loads a program, for those of other devices after.
type Hosted interface {
	// Unwritten is how many bytes the arenas will add to the memory in use once all of them has
	// been written. It assumes that none of it has been written yet.
	Unwritten() int64
}

// Late is a Device that may run behind the host: the host can give it the next step before it has
// finished this one. The executor calls End at the end of a step, where for other devices it waits
// on the Host.
type Late interface {
	Device
	// End ends a step. When all of its work is done, the 4-byte words at these offsets of the
	// device's arena are copied, and the next step may overwrite them.
	End(words []int64) error
	// Last waits for the oldest step that has ended and was not waited for yet, and copies its
	// words to dst, in the order of End's offsets. There are never more than two such steps.
	Last(dst []byte) error
}

// Meeter is a Device whose transfers may be meetings: a Send starts when the peer has said by
// Expect that it is ready for the message. The executor then waits for no event before a Send.
type Meeter interface {
	Device
	// Meets reports whether they are. The answer is the same for all devices of a world.
	Meets() bool
	// Expect marks the point from which on the destination of a later Recv is free. The messages on
	// a wire are expected in order. [codegen.Expects] computes the points.
	Expect(t *Transfer) error
}

// Preparer is a Device that gets what collectives and transfers need before the first step that makes them, while no
// rank computes: memory, code, and what connects it to other ranks.
type Preparer interface {
	// Prepare is told of all collectives and transfers of a program, when the executor loads it and before it grows the
	// arenas.
	Prepare(collectives []*Collective, transfers []*Transfer) error
	// Join connects the device with the next of the groups of ranks that they need, if it is not connected yet, and
	// reports whether more are left. The executor calls it until none is, once all arenas have grown, on all ranks at
	// the same time. The order of groups is the same on all ranks of the world. The error names the group.
	Join() (more bool, err error)
}

// Fuser is a Device that can fuse kernels. While the executor loads a program it tells the device
// of kernels that it will always launch in this order, with nothing between them on the compute
// stream.
type Fuser interface {
	// Fuse is told of a run of kernels that Check has accepted. uses counts for every value of the
	// program how often it is read, as an argument or as an output of the program.
	Fuse(run []*Kernel, uses map[*ir.Value]int) error
}

// Tensor is a dense row-major array in an arena. It holds the part Slab of a global value.
type Tensor struct {
	Space  Space
	Offset int64 // bytes from the start of the arena, a multiple of 64
	DType  ir.DType
	Slab   ir.Slab
}

// Bytes returns the size of the part.
func (t Tensor) Bytes() int64 { return t.Slab.Elems() * t.DType.Size() }

// Kernel is one launch of an op on one rank's parts of its operands. Micro-batches whose tensors lie at the same places share
// one; its slabs are then those of the first of them, and differ from those of the others at most in where rows of the batch lie
// in the whole batch, which this op does not ask. So they share collectives and receives, too.
//
// Where the op allows it (see [ir.Op.InPlace]), result 0 may be at the place of operand 0. AdamW
// and attention_decode update in place: their new values may be at the places of the old ones. All
// other tensors are disjoint.
type Kernel struct {
	Node    *ir.Node // op and attributes
	Args    []Tensor
	Results []Tensor
	// Accum has one entry per result. If true, the kernel adds to what is there instead of
	// overwriting it.
	Accum []bool
	// Position is the rank's coordinate on the mesh axis of a communication op.
	Position int
}

// Member is one rank of a collective, with the places of its tensors in its own arena.
type Member struct {
	Rank    int
	In, Out Tensor
}

// Collective is one rank's view of a collective. Elements of the result that several members hold
// have the same bits on all of them, and the same from run to run.
//
// An all_reduce may have Out at the place of In. An all_gather may have In at its own place within
// Out. Either is so on all members or on none. Otherwise In and Out are disjoint.
type Collective struct {
	Node *ir.Node // op; it is the same for all members
	Attr ir.CommAttr
	// Group numbers the set of ranks and the stream. Collectives of equal ranks on the same stream
	// have the same number in all programs of an executor.
	Group    int
	Members  []Member // in axis order
	Position int      // index of this rank in Members
	// Stream is where the collective runs.
	Stream Stream
	// More are further collectives of the same bucket: of the same op and group, with disjoint
	// tensors. They are made together with this one.
	More []*Collective
	// Ran, if set, is called with the times between which the collective ran.
	Ran func(start, end time.Time)
}

// Transfer is one end of a point-to-point copy.
type Transfer struct {
	Node *ir.Node
	// Wire numbers the connection: one send instruction of one rank to one other.
	Wire  int
	Peer  int    // the other rank
	Local Tensor // read by a Send, filled by a Recv
	// Remote is the byte offset of the destination in the peer's arena. Only a Send has it.
	Remote int64
	// Stream is where a Send runs, Compute or Transfers. A Recv is always on Compute.
	Stream Stream
	// Ran, if set, is called with the times between which a Send on the stream Transfers ran.
	Ran func(start, end time.Time)
}
