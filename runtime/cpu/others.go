package cpu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/autopar/autopar/runtime"
)

// others are the processes of a world, as one of them sees them. It is nil in a world of one
// process.
//
// Processes of one machine share memory. Each maps the arenas of all of them, and a table of the
// counters. So ranks use each other's arenas and counters as if they were in one process. A link
// between two such processes is used only to wake a parked rank.
//
// A process on another machine gets messages instead, in order: bytes of arenas, and counts. This
// process has an arena for its rank too, as a place for copies of operands.
type others struct {
	runtime.World
	backend *Backend
	self    int     // rank of this process
	local   []int   // ranks on this machine, including this one
	beside  []int   // of those, the ranks that may run on processors of this process, including this one
	links   []*link // by rank

	memory  window         // the arena of this process
	table   window         // of counters
	windows []window       // arenas of other ranks, by rank
	users   sync.WaitGroup // goroutines that use mapped memory: link readers and streams

	mu       sync.Mutex
	counters map[int]*counter   // by id
	inbox    map[place][][]byte // operands that have arrived
}

// place is the collective operand that a message holds.
type place struct{ group, position int }

// The kinds of counters. In the table the counters of a kind have consecutive numbers.
type counterKind uint8

const (
	eventID counterKind = iota // one per stream and rank
	wireID                     // by Transfer.Wire
	groupID                    // by Collective.Group: arrivals, done, and entered by position
)

// How many wires and groups a world has room for. The table is a sparse file: only used counters
// take memory.
const (
	maxWires  = 1 << 20
	maxGroups = 1 << 16
)

// base returns the number of the first counter of a kind, and how many there are.
func (o *others) base(kind counterKind) (first, count int) {
	switch kind {
	case eventID:
		return 0, streams * o.Ranks
	case wireID:
		return streams * o.Ranks, maxWires
	}
	return streams*o.Ranks + maxWires, maxGroups * (2 + o.Ranks)
}

// stride is how many bytes a counter has in the table, in whole cache lines: its count, and for
// each process the smallest count that is waited for there.
func (o *others) stride() int { return (8*(1+o.Ranks) + 63) / 64 * 64 }

// counter returns a counter, which all processes on the machine share.
func (b *Backend) counter(kind counterKind, i int) *counter {
	o := b.others
	if o == nil {
		return newCounter()
	}
	first, count := o.base(kind)
	if i >= count {
		panic(fmt.Sprintf("BUG: cpu: counter %d of kind %d, there are %d", i, kind, count))
	}
	return o.counter(first + i)
}

func (o *others) counter(id int) *counter {
	o.mu.Lock()
	defer o.mu.Unlock()
	c := o.counters[id]
	if c == nil {
		words := make([]atomic.Int64, 1+o.Ranks)
		if o.together() {
			words = unsafe.Slice((*atomic.Int64)(unsafe.Pointer(&o.table.memory[id*o.stride()])), 1+o.Ranks)
		}
		c = &counter{id: id, n: &words[0], least: words[1:], others: o}
		o.counters[id] = c
	}
	return c
}

// meet maps the memory of the processes on this machine, and connects with all processes.
func meet(b *Backend) (*others, error) {
	peers := b.world.Peers
	if peers == nil || peers.World() == 1 {
		return nil, nil
	}
	o := &others{
		World: b.world, backend: b, self: peers.Rank(), local: peers.Local(), links: make([]*link, b.world.Ranks),
		windows: make([]window, b.world.Ranks), counters: map[int]*counter{}, inbox: map[place][][]byte{},
	}
	ctx, cancel := context.WithTimeout(context.Background(), b.world.Timeout)
	defer cancel()
	err := o.mapAll(ctx)
	var conns []net.Conn
	if err == nil {
		conns, err = peers.Connect(ctx) // by then all processes have mapped their memory
	}
	if err != nil {
		return nil, peers.Fail(fmt.Errorf("cpu: rank %d: %w", o.self, errors.Join(err, o.unmap())))
	}
	for rank, conn := range conns {
		if conn != nil {
			o.links[rank] = newLink(b, conn, rank)
		}
	}
	return o, nil
}

// together reports whether there are other processes of the world on this machine.
func (o *others) together() bool { return o != nil && len(o.local) > 1 }

// mapAll maps the arenas of the processes on this machine, and the table of counters, which the
// first of them makes. Both are files without names, which others open through the process that
// holds them. So nothing stays behind when the processes end, in whatever way.
func (o *others) mapAll(ctx context.Context) (err error) {
	if o.together() {
		first, count := o.base(groupID)
		if o.memory, err = newWindow("arena", arenaWindow(o.Ranks)); err != nil {
			return err
		}
		if o.table, err = newWindow("counters", int64(first+count)*int64(o.stride())); err != nil {
			return err
		}
		if err = o.table.resize(int64(first+count) * int64(o.stride())); err != nil {
			return err
		}
	}
	all, err := o.Peers.Gather(ctx, fmt.Appendf(nil, "%d %d %d", os.Getpid(), o.memory.fd(), o.table.fd()))
	if err != nil || !o.together() {
		return err
	}
	for _, rank := range o.local {
		var pid, memory, table int
		if _, err := fmt.Sscan(string(all[rank]), &pid, &memory, &table); err != nil {
			return err
		}
		if rank == o.local[0] && rank != o.self {
			size := int64(len(o.table.memory))
			if err := o.table.close(); err != nil {
				return err
			}
			if o.table, err = openWindow(pid, table, size); err != nil {
				return fmt.Errorf("the counters of rank %d: %w", rank, err)
			}
		}
		if rank == o.self || overlap(os.Getpid(), pid) {
			o.beside = append(o.beside, rank)
		}
		if rank != o.self {
			if o.windows[rank], err = openWindow(pid, memory, int64(len(o.memory.memory))); err != nil {
				return fmt.Errorf("the arena of rank %d: %w", rank, err)
			}
		}
	}
	return nil
}

// share returns how many of the processors on which this process may run are its own, at least one.
// A launcher such as mpirun or srun may have given it some on which no other process runs.
func (o *others) share(processors int) int {
	if !o.together() {
		return processors
	}
	n := len(o.beside)
	return max(1, (processors+n-1-slices.Index(o.beside, o.self))/n)
}

// patience is how long a rank polls for another process before it parks. To be woken takes two
// system calls and a turn of the system's scheduler, which can be milliseconds; and while every
// process has a core of its own, no other can use this one.
const patience = 2 * time.Millisecond

// linger polls a little longer for c to reach n, and reports whether it has. It stops if another
// rank wants the core.
func (o *others) linger(d *Device, c *counter, n int64) bool {
	if !o.together() || len(o.beside) > goruntime.GOMAXPROCS(0) {
		return false
	}
	for start := time.Now(); time.Since(start) < patience && !d.backend.cores.Wanted() && !d.aborted(); {
		if d.pool.Lend(c.n, n) {
			return true
		}
	}
	return false
}

// lookInto gives the device of another process's rank its arena as mapped here, or a place for
// copies.
func (o *others) lookInto(d *Device) error {
	w := &o.windows[d.rank]
	if d.away = !slices.Contains(o.local, d.rank); d.away {
		var err error
		if *w, err = privateWindow(arenaWindow(o.Ranks)); err != nil {
			return o.Peers.Fail(fmt.Errorf("cpu: room for copies of rank %d: %w", d.rank, err))
		}
	}
	d.arenas[runtime.OnDevice] = w.words(len(w.memory) / 4)
	return nil
}

// arena returns n words of shared memory for this process's rank, and keeps their contents.
func (o *others) arena(n int) ([]float32, error) {
	if err := o.memory.resize(4 * int64(n)); err != nil {
		return nil, err
	}
	return o.memory.words(n), nil
}

// leader returns the first member of a collective that is on the same machine as a rank.
func (o *others) leader(c *runtime.Collective, rank int) int {
	for _, m := range c.Members {
		if o.Peers.Machine(m.Rank) == o.Peers.Machine(rank) {
			return m.Rank
		}
	}
	return rank
}

// give sends the operands of a member to the leader of another machine.
func (o *others) give(leader int, c *runtime.Collective, position int) error {
	parts := [][]byte{bytesOf(o.backend.operand(c, position))}
	for _, more := range c.More {
		parts = append(parts, bytesOf(o.backend.operand(more, position)))
	}
	return o.deliver(leader, kindOperand, c.Group, position, parts...)
}

// take copies the operands of a member on another machine, which have arrived, to its arena here.
func (o *others) take(c *runtime.Collective, position int) error {
	at := place{c.Group, position}
	o.mu.Lock()
	message := o.inbox[at][0]
	o.inbox[at] = o.inbox[at][1:]
	o.mu.Unlock()
	message = message[copy(bytesOf(o.backend.operand(c, position)), message):]
	for _, more := range c.More {
		message = message[copy(bytesOf(o.backend.operand(more, position)), message):]
	}
	if len(message) > 0 {
		return fmt.Errorf("cpu: rank %d sends %d bytes too many for %s %s", c.Members[position].Rank, len(message), c.Node.Op, c.Node.Name)
	}
	return nil
}

func (b *Backend) operand(c *runtime.Collective, position int) []float32 {
	m := c.Members[position]
	return b.devices[m.Rank].words(m.In)
}

// put sends a tensor to its place in the arena of a rank on another machine.
func (o *others) put(t *runtime.Transfer, src []float32) error {
	return o.deliver(t.Peer, kindPut, t.Wire, int(t.Remote), bytesOf(src))
}

// deliver sends data to another process. It fails like a wait for that process, or with the first
// failure of the job.
func (o *others) deliver(rank int, kind byte, a, b int, parts ...[]byte) error {
	l := o.links[rank]
	err := l.send(kind, a, b, parts...)
	var late *runtime.WaitError
	if err == nil || errors.Is(err, runtime.ErrAborted) || errors.As(err, &late) {
		return err
	}
	return o.Peers.Lost(rank, l.conn.RemoteAddr(), err)
}

// ring wakes ranks of another process that wait for a count that has been reached.
func (o *others) ring(process int, c *counter, n int64) {
	if !slices.Contains(o.local, process) && !c.answer(process, n) {
		return // its requests may have been answered meanwhile, or be for more
	}
	_ = o.links[process].send(kindCount, c.id, int(n)) // a process that has gone waits for nothing
}

// await asks the process of a rank on another machine to tell when its counter has reached n.
func (o *others) await(rank int, c *counter, n int64) {
	if o != nil && !slices.Contains(o.local, rank) && c.n.Load() < n {
		_ = o.links[rank].send(kindAwait, c.id, int(n)) // a wait for a process that has gone learns of that elsewhere
	}
}

// start starts a goroutine that may use mapped memory.
func (o *others) start(f func()) {
	if o == nil {
		go f()
		return
	}
	o.users.Go(f)
}

// close ends the links. It unmaps memory, and frees other memory of the devices, only when link
// readers and streams have ended: a process that is behind may still ring or send, and a stream may
// still wake ranks it has served. Other work is in progress only if the run has failed; then memory
// stays.
func (o *others) close(failed bool, free func() error) {
	for _, l := range o.links {
		if l != nil {
			l.end(failed)
		}
	}
	if !failed {
		go func() {
			o.users.Wait()
			_ = errors.Join(o.unmap(), free()) // without consequence for a run that has ended
		}()
	}
}

func (o *others) unmap() error {
	errs := []error{o.memory.close(), o.table.close()}
	for i := range o.windows {
		errs = append(errs, o.windows[i].close())
	}
	return errors.Join(errs...)
}

func bytesOf(words []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), 4*len(words))
}
