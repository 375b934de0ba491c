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

// others are the processes of a world, as one of them sees the others; nil in a world of one.
//
// Processes of one machine share memory: each maps the arenas of all, and a table of the
// counters. So what ranks of one process do to each other's arenas and counters, they do as
// well; a link between any two processes is used only to wake one that has parked. A process
// of another machine gets messages instead, in order: bytes of an arena, and counts. Then the
// arena of its rank that this process has is a place for copies.
type others struct {
	runtime.World
	backend *Backend
	self    int   // rank
	local   []int // ranks of this machine
	beside  []int // of these, who may run on processors of this process, it itself among them
	links   []*link

	memory  window         // of the own arena
	table   window         // of counters
	windows []window       // all that is mapped
	users   sync.WaitGroup // of what is mapped: who reads the links, and the streams

	mu       sync.Mutex
	counters map[int]*counter // by id
	inbox    map[place][][]byte
}

// place is where a message to a collective belongs.
type place struct{ group, position int }

// The kinds of counters. Their numbers follow each other in the table.
type counterKind uint8

const (
	eventID counterKind = iota // streams for each rank
	wireID                     // by Transfer.Wire
	groupID                    // by Collective.Group: arrivals, done, and entered by position
)

// How many wires and groups of ranks a world has room for. The table is a file with holes:
// only what is used takes memory.
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

// stride is the bytes of a counter in the table, in whole lines of cache: its count, and what
// each process waits for.
func (o *others) stride() int { return (8*(1+o.Ranks) + 63) / 64 * 64 }

// counter returns a counter, which all processes of the machine share.
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

// meet maps the memory of the processes of this machine, and connects with all.
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
		conns, err = peers.Connect(ctx) // and by then all have mapped
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

// together reports whether there are other processes on this machine.
func (o *others) together() bool { return o != nil && len(o.local) > 1 }

// mapAll maps the arenas of the processes of this machine, and the table, which the first
// makes. They are files without names, found by the process that holds them: nothing stays
// when the processes end, however they do.
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

// share returns how many of so many processors, all on which this process may run, are its own: at least one. Launchers
// such as mpirun and srun may have given it some where no other runs.
func (o *others) share(processors int) int {
	if !o.together() {
		return processors
	}
	n := len(o.beside)
	return max(1, (processors+n-1-slices.Index(o.beside, o.self))/n)
}

// patience is how long a rank looks for what another process does before it parks. To be woken
// takes two system calls and a turn of the system's scheduler, which can be milliseconds; while
// every process has a core of its own, nobody else has a use for it.
const patience = 2 * time.Millisecond

// linger waits for a moment longer until c has reached n, which it reports, unless the core is
// wanted.
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

// lookInto gives the device of another process's rank its arena as it is seen from here.
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

// arena returns n words of shared memory for the own rank. What was there stays.
func (o *others) arena(n int) ([]float32, error) {
	if err := o.memory.resize(4 * int64(n)); err != nil {
		return nil, err
	}
	return o.memory.words(n), nil
}

// leader returns the first member that is on one machine with a rank.
func (o *others) leader(c *runtime.Collective, rank int) int {
	for _, m := range c.Members {
		if o.Peers.Machine(m.Rank) == o.Peers.Machine(rank) {
			return m.Rank
		}
	}
	return rank
}

// give sends the operands of a member to another machine's leader.
func (o *others) give(leader int, c *runtime.Collective, position int) error {
	parts := [][]byte{bytesOf(o.backend.operand(c, position))}
	for _, more := range c.More {
		parts = append(parts, bytesOf(o.backend.operand(more, position)))
	}
	return o.deliver(leader, kindOperand, c.Group, position, parts...)
}

// take puts the operands of a member of another machine, which have come, in their places.
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

// put sends a tensor to its place in the arena of another machine's rank.
func (o *others) put(t *runtime.Transfer, src []float32) error {
	return o.deliver(t.Peer, kindPut, t.Wire, int(t.Remote), bytesOf(src))
}

// deliver sends what another process needs. It fails as a wait for it does, or with the first failure of the job.
func (o *others) deliver(rank int, kind byte, a, b int, parts ...[]byte) error {
	l := o.links[rank]
	err := l.send(kind, a, b, parts...)
	var late *runtime.WaitError
	if err == nil || errors.Is(err, runtime.ErrAborted) || errors.As(err, &late) {
		return err
	}
	return o.Peers.Lost(rank, l.conn.RemoteAddr(), err)
}

// ring wakes those of another process who wait for a count that has been reached.
func (o *others) ring(process int, c *counter, n int64) {
	if !slices.Contains(o.local, process) && !c.answer(process, n) {
		return // it may have been told meanwhile, and wait for more
	}
	_ = o.links[process].send(kindCount, c.id, int(n)) // who has gone waits for nothing
}

// await asks the process of a rank of another machine to tell when a counter of it has
// reached n.
func (o *others) await(rank int, c *counter, n int64) {
	if o != nil && !slices.Contains(o.local, rank) && c.n.Load() < n {
		_ = o.links[rank].send(kindAwait, c.id, int(n)) // who waits for one that has gone hears of that
	}
}

// start has a goroutine use what is mapped.
func (o *others) start(f func()) {
	if o == nil {
		go f()
		return
	}
	o.users.Go(f)
}

// close ends the links. The memory goes when they and the streams have ended: a process that has not
// come so far may still ring, and a stream wake those it has done its work for, but nobody has work in
// progress unless the run has failed.
func (o *others) close(failed bool) {
	if o == nil {
		return
	}
	for _, l := range o.links {
		if l != nil {
			l.end(failed)
		}
	}
	if !failed {
		go func() {
			o.users.Wait()
			_ = o.unmap() // it is of no consequence for a run that has ended
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
