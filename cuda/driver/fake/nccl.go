package fake

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/ir"
)

// Collectives returns NCCL among the ranks of this process. The work of a communicator runs when
// the streams of all its ranks have come to it, as on GPUs.
func (d *Driver) Collectives() driver.Collectives { return collectives{d} }

type collectives struct{ *Driver }

// commWorld is a communicator, with the work that its ranks have posted.
type commWorld struct {
	ranks  int
	joined int
	posts  map[int64][]*post // by rank, in the order of its calls
	broken bool
}

// post is the work of one group of calls of one rank.
type post struct {
	ops    []commOp
	stream *stream
	entry  *entry
	done   bool
}

// commOp is one call.
type commOp struct {
	op         string
	send, recv Range
	dtype      ir.DType
	by         ir.Reduction
	peer       int // or root
}

// pending is the group of calls that a thread is making, between GroupStart and GroupEnd.
type pending struct {
	depth int
	comm  *comm
	s     driver.Stream
	ops   []commOp
}

// comm is a rank's part in a communicator.
type comm struct {
	*Driver
	world     *commWorld
	rank      int
	seq       int64
	connected map[string]bool // "send" or "recv" and a rank
}

// busy returns an error if a device has work to do. NCCL allocates memory in a call, which may wait for that work, which may wait
// for another rank.
func (d *Driver) busy(call string, device int) error {
	for _, s := range d.order {
		if i := slices.IndexFunc(s.queue, func(e *entry) bool { return e.kind == work }); i >= 0 && s.device == device {
			return fmt.Errorf("fake: %s may wait for %s, which device %d has yet to do", call, s.queue[i].what, device)
		}
	}
	return nil
}

// Version is that of the NCCL that PyTorch 2.11 brings.
func (collectives) Version() (int, error) { return 22809, nil }

func (c collectives) NewID() (id driver.ID, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	binary.NativeEndian.PutUint64(id[:], uint64(len(c.worlds)+1))
	c.worlds[id] = nil
	return id, nil
}

func (c collectives) Join(ranks int, id driver.ID, rank int) (driver.Comm, error) {
	const call = "ncclCommInitRank"
	c.mu.Lock()
	defer c.mu.Unlock()
	device, err := c.device(call)
	if err != nil {
		return nil, err
	}
	if err := c.busy(call, device); err != nil {
		return nil, err
	}
	w, named := c.worlds[id]
	if !named || rank < 0 || rank >= ranks {
		return nil, failed(call, 4, "invalid argument")
	}
	c.joined[device] = append(c.joined[device], id)
	if w == nil {
		w = &commWorld{ranks: ranks, posts: map[int64][]*post{}}
		c.worlds[id] = w
	}
	w.joined++
	c.changed.Broadcast()
	for w.joined < w.ranks {
		c.changed.Wait()
	}
	return &comm{Driver: c.Driver, world: w, rank: rank, connected: map[string]bool{}}, nil
}

// Joined returns the communicators that a device has joined, in order.
func (d *Driver) Joined(device int) []driver.ID {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.joined[device])
}

// JoinedInOrder returns an error unless there is an order of all communicators in which every device has joined its own. Without
// one, ranks that join one after another may wait for each other in a circle.
func (d *Driver) JoinedInOrder() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	left := slices.Clone(d.joined)
	for {
		next := slices.IndexFunc(left, func(ids []driver.ID) bool { return len(ids) > 0 && first(left, ids[0]) })
		if next < 0 {
			break
		}
		id := left[next][0]
		for device, ids := range left {
			if len(ids) > 0 && ids[0] == id {
				left[device] = ids[1:]
			}
		}
	}
	for device, ids := range left {
		if len(ids) > 0 {
			return fmt.Errorf("fake: devices have joined communicators in orders that contradict each other: among the last %d of device %d", len(ids), device)
		}
	}
	return nil
}

// first reports whether no device has left an id but at the front.
func first(left [][]driver.ID, id driver.ID) bool {
	return !slices.ContainsFunc(left, func(ids []driver.ID) bool { return slices.Index(ids, id) > 0 })
}

func (c collectives) GroupStart() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := thread()
	if c.pending[t] == nil {
		c.pending[t] = &pending{}
	}
	c.pending[t].depth++
	return nil
}

func (c collectives) GroupEnd() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pending[thread()]
	if p == nil || p.depth == 0 {
		return failed("ncclGroupEnd", 5, "invalid usage")
	}
	if p.depth--; p.depth > 0 {
		return nil
	}
	delete(c.pending, thread())
	if p.comm == nil {
		return nil
	}
	return p.comm.post(p.s, p.ops)
}

// call makes a call, or adds it to the group.
func (c *comm) call(s driver.Stream, op commOp) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.pending[thread()]
	if p == nil {
		return c.post(s, []commOp{op})
	}
	if p.comm != nil && (p.comm != c || p.s != s) {
		return errors.New("fake: one group of calls to two communicators or streams")
	}
	p.comm, p.s, p.ops = c, s, append(p.ops, op)
	return nil
}

// post puts a group of calls on a stream.
func (c *comm) post(s driver.Stream, ops []commOp) error {
	n := node{what: "NCCL " + ops[0].op, comm: c, do: func() error { return nil }}
	for _, op := range ops {
		n.reads, n.writes = append(n.reads, op.send), append(n.writes, op.recv)
		if err := c.connect(s, op); err != nil {
			return err
		}
	}
	n.meet = func(st *stream, e *entry) {
		seq := c.seq
		c.seq++
		w := c.world
		if w.posts[seq] == nil {
			w.posts[seq] = make([]*post, w.ranks)
		}
		posts := w.posts[seq]
		posts[c.rank] = &post{ops: ops, stream: st, entry: e}
		e.ready = func() bool {
			for _, p := range posts {
				if p == nil || !p.done && (!c.turn(p.stream) || p.stream.queue[0] != p.entry) {
					return w.broken
				}
			}
			return true
		}
		e.run = func() error {
			if posts[c.rank].done || w.broken {
				return nil
			}
			for _, p := range posts {
				p.done = true
			}
			delete(w.posts, seq)
			return c.exchange(posts)
		}
	}
	return c.add(s, n)
}

// connect connects the rank for the first message to or from another, which allocates memory.
func (c *comm) connect(s driver.Stream, op commOp) error {
	wire := fmt.Sprint(op.op, op.peer)
	if op.op != "send" && op.op != "recv" || op.peer == c.rank || c.connected[wire] {
		return nil
	}
	c.connected[wire] = true
	st, err := c.stream("NCCL "+op.op, s)
	if err != nil {
		return err
	}
	return c.busy("NCCL "+op.op, st.device)
}

// exchange moves the data of the matching posts of all ranks. Either all of them are part of graphs
// or none is: NCCL calls that a collective property of an operation (Using NCCL with CUDA Graphs).
func (d *Driver) exchange(posts []*post) error {
	for rank, p := range posts {
		if p.stream.graph != posts[0].stream.graph {
			return fmt.Errorf("fake: the %s of rank 0 or that of rank %d is part of a graph, and the other is not", p.ops[0].op, rank)
		}
	}
	var sums [][]commOp // the collectives, each with the calls of all ranks
	sent := map[[2]int][]commOp{}
	for rank, p := range posts {
		sums = append(sums, nil)
		for _, op := range p.ops {
			switch op.op {
			case "send":
				sent[[2]int{rank, op.peer}] = append(sent[[2]int{rank, op.peer}], op)
			case "recv":
			default:
				sums[rank] = append(sums[rank], op)
			}
		}
	}
	for rank, p := range posts {
		for _, op := range p.ops {
			if op.op != "recv" {
				continue
			}
			wire := [2]int{op.peer, rank}
			if len(sent[wire]) == 0 || sent[wire][0].send.Bytes != op.recv.Bytes {
				return fmt.Errorf("fake: rank %d receives %d bytes of rank %d, which does not send them", rank, op.recv.Bytes, op.peer)
			}
			copy(d.Memory(op.recv), d.Memory(sent[wire][0].send))
			sent[wire] = sent[wire][1:]
		}
	}
	for wire, left := range sent {
		if len(left) > 0 {
			return fmt.Errorf("fake: rank %d sends to rank %d, which does not receive", wire[0], wire[1])
		}
	}
	for k := range sums[0] {
		ops := make([]commOp, len(posts))
		for rank := range posts {
			if len(sums[rank]) != len(sums[0]) || sums[rank][k].op != sums[0][k].op || sums[rank][k].send.Bytes != sums[0][k].send.Bytes {
				return fmt.Errorf("fake: rank %d does not make the %s of rank 0", rank, sums[0][k].op)
			}
			ops[rank] = sums[rank][k]
		}
		d.together(ops)
	}
	return nil
}

// together makes one collective, given the calls of all ranks.
func (d *Driver) together(ops []commOp) {
	whole := make([][]byte, len(ops)) // copies, because results may overwrite operands
	for rank, op := range ops {
		whole[rank] = append([]byte(nil), d.Memory(op.send)...)
	}
	first := ops[0]
	if first.op == "all_gather" {
		for _, op := range ops {
			for from, part := range whole {
				copy(d.Memory(op.recv)[from*len(part):], part)
			}
		}
		return
	}
	sum := whole[0]
	for i := range int64(len(sum)) / first.dtype.Size() {
		combine(first.by, first.dtype, sum, whole, i)
	}
	for rank, op := range ops {
		switch op.op {
		case "all_reduce":
			copy(d.Memory(op.recv), sum)
		case "reduce_scatter":
			copy(d.Memory(op.recv), sum[rank*int(op.recv.Bytes):])
		case "reduce":
			if rank == op.peer {
				copy(d.Memory(op.recv), sum)
			}
		}
	}
}

// combine sets element i of sum, which may be the first of the terms, to the reduction of the
// terms.
func combine(by ir.Reduction, d ir.DType, sum []byte, terms [][]byte, i int64) {
	if d == ir.Q64 {
		var n uint64
		for _, t := range terms {
			n += binary.NativeEndian.Uint64(t[8*i:])
		}
		binary.NativeEndian.PutUint64(sum[8*i:], n)
		return
	}
	size := d.Size()
	acc := d.Read(terms[0][size*i:])
	for _, t := range terms[1:] {
		if x := d.Read(t[size*i:]); by == ir.Max {
			acc = max(acc, x)
		} else {
			acc += x
		}
	}
	d.Write(sum[size*i:], acc)
}

func (c *comm) AllReduce(send, recv driver.Ptr, n int64, d ir.DType, by ir.Reduction, s driver.Stream) error {
	bytes := n * d.Size()
	return c.call(s, commOp{op: "all_reduce", send: Range{send, bytes}, recv: Range{recv, bytes}, dtype: d, by: by})
}

func (c *comm) ReduceScatter(send, recv driver.Ptr, n int64, d ir.DType, by ir.Reduction, s driver.Stream) error {
	bytes := n * d.Size()
	return c.call(s, commOp{op: "reduce_scatter", send: Range{send, bytes * int64(c.world.ranks)}, recv: Range{recv, bytes}, dtype: d, by: by})
}

func (c *comm) AllGather(send, recv driver.Ptr, n int64, d ir.DType, s driver.Stream) error {
	bytes := n * d.Size()
	return c.call(s, commOp{op: "all_gather", send: Range{send, bytes}, recv: Range{recv, bytes * int64(c.world.ranks)}, dtype: d})
}

func (c *comm) Reduce(send, recv driver.Ptr, n int64, d ir.DType, by ir.Reduction, root int, s driver.Stream) error {
	op := commOp{op: "reduce", send: Range{send, n * d.Size()}, dtype: d, by: by, peer: root}
	if root == c.rank {
		op.recv = Range{recv, n * d.Size()}
	}
	return c.call(s, op)
}

func (c *comm) Send(p driver.Ptr, n int64, d ir.DType, peer int, s driver.Stream) error {
	return c.call(s, commOp{op: "send", send: Range{p, n * d.Size()}, peer: peer})
}

func (c *comm) Recv(p driver.Ptr, n int64, d ir.DType, peer int, s driver.Stream) error {
	return c.call(s, commOp{op: "recv", recv: Range{p, n * d.Size()}, peer: peer})
}

// Failure returns nil: the fake network does not fail.
func (c *comm) Failure() error { return nil }

// captured reports whether a graph that is not destroyed has work of the communicator. While there
// is one, NCCL neither closes nor aborts the communicator.
func (c *comm) captured() bool {
	has := func(g *graph) bool {
		return g != nil && slices.ContainsFunc(g.nodes, func(n node) bool { return n.comm == c })
	}
	for _, g := range c.graphs {
		if has(g) {
			return true
		}
	}
	for _, g := range c.execs {
		if has(g) {
			return true
		}
	}
	return slices.ContainsFunc(c.order, func(s *stream) bool { return has(s.capture) })
}

// patience is how long the fake waits where NCCL would wait for ever.
const patience = 10 * time.Second

// Abort drops work in progress, and waits until the graphs that captured the communicator are
// destroyed.
func (c *comm) Abort() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.world.broken = true
	late := false
	timer := time.AfterFunc(patience, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		late = true
		c.changed.Broadcast()
	})
	defer timer.Stop()
	for c.captured() && !late {
		c.changed.Wait()
	}
	return c.end("ncclCommAbort")
}

// Close returns an error where NCCL would wait for ever: it must follow the destruction of graphs.
func (c *comm) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end("ncclCommDestroy")
}

func (c *comm) end(call string) error {
	if c.captured() {
		c.stuck++
		return fmt.Errorf("fake: %s would wait for ever: a graph that captured the communicator is not destroyed", call)
	}
	return nil
}
