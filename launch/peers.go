package launch

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// Peers are the processes of a job as one of them sees them. Every process has a connection with
// rank 0, which passes on what concerns all. Methods may be called from any goroutine. Gather and
// Connect must not run concurrently, and all processes must call them in the same order; likewise
// GatherAside.
type Peers struct {
	place Place
	key   string   // of this machine
	hosts []string // by rank: the address at which it can be reached
	keys  []string // by rank: the key of its machine
	conns []*link  // to rank 0; on rank 0 to all others, by rank
	inbox []chan []byte
	aside []chan []byte // for GatherAside

	once   sync.Once
	failed chan struct{}
	err    error         // the failure, once failed is closed
	told   chan struct{} // closed when the others have been told of the failure
	left   chan struct{} // closed when all processes that this one is connected with have said goodbye

	mu      sync.Mutex
	gone    []bool // by rank: it has said goodbye
	staying int    // how many connected processes have not
}

// A PeerError is the failure of another process, with its text. If that was interrupted, the error is a [context.Canceled], too.
type PeerError struct {
	Rank        int
	Msg         string
	Interrupted bool
}

func (e *PeerError) Error() string { return fmt.Sprintf("rank %d has failed: %s", e.Rank, e.Msg) }

// Is reports whether the process was interrupted, if target is [context.Canceled].
func (e *PeerError) Is(target error) bool { return e.Interrupted && target == context.Canceled }

// A LostError is a process that has ended, or cannot be reached, without giving a reason.
type LostError struct {
	Rank int
	Addr string
	Err  error
}

func (e *LostError) Error() string {
	return fmt.Sprintf("rank %d at %s is gone: %v", e.Rank, e.Addr, e.Err)
}

// Unwrap returns the cause.
func (e *LostError) Unwrap() error { return e.Err }

// Rank returns this process's rank.
func (p *Peers) Rank() int { return p.place.Rank }

// World returns the number of processes.
func (p *Peers) World() int { return p.place.World }

// Host returns the address at which a rank can be reached.
func (p *Peers) Host(rank int) string { return p.hosts[rank] }

// Machine returns the first rank that is on the same machine as a rank.
func (p *Peers) Machine(rank int) int { return slices.Index(p.keys, p.keys[rank]) }

// Local returns the ranks on this machine, in order, including this one.
func (p *Peers) Local() []int {
	var ranks []int
	for rank, key := range p.keys {
		if key == p.key {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// LocalRank returns how many ranks on this machine come before this one.
func (p *Peers) LocalRank() int { return slices.Index(p.Local(), p.place.Rank) }

// Gather gives every process the bytes of all, by rank. All processes call it, and none returns
// before the last has called it. After an error, including the end of ctx, the job has failed. If
// ctx ends by its deadline, other ranks than 0 wait somewhat longer: rank 0 knows who is late. So does
// a process that was stopped then.
func (p *Peers) Gather(ctx context.Context, mine []byte) ([][]byte, error) {
	return p.gather(ctx, kindGather, p.inbox, mine)
}

// GatherAside is Gather for work that runs concurrently with the steps. The two are independent of
// each other.
func (p *Peers) GatherAside(ctx context.Context, mine []byte) ([][]byte, error) {
	return p.gather(ctx, kindAside, p.aside, mine)
}

func (p *Peers) gather(ctx context.Context, kind byte, inbox []chan []byte, mine []byte) ([][]byte, error) {
	if p.place.World == 1 {
		return [][]byte{mine}, nil
	}
	if err := p.Err(); err != nil {
		return nil, err // even if messages sent before the failure are here
	}
	start := time.Now()
	if p.place.Rank > 0 {
		p.conns[0].write(kind, mine)
		table, ok := p.receive(ctx, inbox[0])
		if !ok && errors.Is(ctx.Err(), context.DeadlineExceeded) { // rank 0 waits for all, and is to say for whom
			longer, cancel := context.WithTimeout(context.Background(), max(newsDelay, time.Since(start)/4))
			defer cancel()
			table, ok = p.receive(longer, inbox[0])
		}
		if !ok {
			return nil, p.late(ctx, start, []int{0})
		}
		all, err := unpack(table)
		if err != nil {
			return nil, p.Fail(err)
		}
		return all, nil
	}
	all := make([][]byte, p.place.World)
	all[0] = mine
	for rank := 1; rank < p.place.World; rank++ {
		var ok bool
		if all[rank], ok = p.receive(ctx, inbox[rank]); !ok {
			late := []int{rank}
			for other := rank + 1; other < p.place.World; other++ {
				if len(inbox[other]) == 0 {
					late = append(late, other)
				}
			}
			return nil, p.late(ctx, start, late)
		}
	}
	table := pack(all)
	for _, conn := range p.conns[1:] {
		conn.write(kind, table)
	}
	return all, nil
}

// receive waits for the next message of a rank. It returns false if the job fails or ctx ends
// first.
func (p *Peers) receive(ctx context.Context, inbox chan []byte) ([]byte, bool) {
	select {
	case b := <-inbox:
		return b, true
	default:
	}
	select {
	case b := <-inbox:
		return b, true
	case <-p.failed:
	case <-ctx.Done():
		if at, bounded := ctx.Deadline(); bounded && time.Since(at) > newsDelay { // this process was stopped, perhaps with all others
			select {
			case b := <-inbox:
				return b, true
			case <-p.failed:
			case <-time.After(grace):
			}
		}
	}
	return nil, false
}

// late returns the error of a wait that has failed.
func (p *Peers) late(ctx context.Context, start time.Time, ranks []int) error {
	select {
	case <-p.failed:
		return p.err
	default:
	}
	names := make([]string, len(ranks))
	for i, r := range ranks {
		names[i] = fmt.Sprintf("%d at %s", r, p.hosts[r])
	}
	return p.Fail(fmt.Errorf("waited %v for rank %s: %w", time.Since(start).Round(100*time.Millisecond), strings.Join(names, ", "), ctx.Err()))
}

// Failed is closed when the job has failed, here or elsewhere. Err then has the reason.
func (p *Peers) Failed() <-chan struct{} { return p.failed }

// Err returns the first failure that this process has learned of, or nil: the error given to
// [Peers.Fail], a [*PeerError] or a [*LostError].
func (p *Peers) Err() error {
	select {
	case <-p.failed:
		return p.err
	default:
		return nil
	}
}

// Fail tells all processes that this one has failed, unless the job has failed already. It returns
// the first failure.
func (p *Peers) Fail(err error) error {
	p.fail(err, p.place.Rank, err.Error())
	return p.err
}

// newsDelay is how long the news of why a process has ended may take to arrive.
const newsDelay = time.Second

// Lost reports that a connection to another process has broken which [Join] did not make, and
// returns the first failure of the job. A process that ends because of a failure elsewhere has
// passed that on, but over another connection. So Lost waits a moment for such news; if there is
// none, it tells all that the process itself is lost.
func (p *Peers) Lost(rank int, addr net.Addr, err error) error {
	moment := time.NewTimer(newsDelay)
	defer moment.Stop()
	select {
	case <-p.failed:
	case <-moment.C:
		p.lost(rank, addr, err)
	}
	return p.err
}

// lost tells all processes that another has ended without giving a reason, unless the job has
// failed already.
func (p *Peers) lost(rank int, addr net.Addr, err error) {
	lost := &LostError{rank, addr.String(), err}
	p.fail(lost, rank, lost.Error())
}

// fail records the failure of a rank and tells the others.
func (p *Peers) fail(err error, rank int, text string) {
	p.once.Do(func() {
		p.err = err
		close(p.failed)
		kind := kindFail
		if errors.Is(err, context.Canceled) {
			kind = kindInterrupted
		}
		message := news(rank, text)
		for to, conn := range p.conns {
			if conn != nil && to != rank {
				conn.write(kind, message)
			}
		}
		close(p.told)
	})
}

// news is the message that a rank has failed, or was interrupted.
func news(rank int, text string) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(rank)), text...)
}

// leave is how long Close waits for the others.
const leave = 10 * time.Second

// Close says goodbye and waits, for a while, until the others have too. After a failure it only
// waits until all have been told: a process that learns of the failure may get here before the one
// that is still telling others.
func (p *Peers) Close() error {
	if p.place.World == 1 {
		return nil
	}
	if p.place.Rank > 0 && p.Err() == nil {
		p.conns[0].write(kindBye, nil)
	}
	patience := time.NewTimer(leave)
	defer patience.Stop()
	select {
	case <-p.left:
	case <-p.failed:
		select {
		case <-p.told:
		case <-patience.C:
		}
	case <-patience.C:
	}
	var errs []error
	for _, conn := range p.conns {
		if conn == nil {
			continue
		}
		if p.place.Rank == 0 && p.Err() == nil {
			conn.write(kindBye, nil)
		}
		conn.closing.Store(true)
		if err := conn.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// listen receives the messages of a rank until its connection ends.
func (p *Peers) listen(rank int, conn *link) {
	for {
		kind, message, err := conn.read()
		if err != nil {
			p.mu.Lock()
			gone := p.gone[rank]
			p.mu.Unlock()
			if !gone && !conn.closing.Load() {
				p.lost(rank, conn.RemoteAddr(), err)
			}
			return
		}
		switch kind {
		case kindGather, kindAside:
			inbox := p.inbox[rank]
			if kind == kindAside {
				inbox = p.aside[rank]
			}
			select {
			case inbox <- message:
			case <-p.failed:
			}
		case kindBye:
			p.mu.Lock()
			if !p.gone[rank] {
				p.gone[rank] = true
				if p.staying--; p.staying == 0 {
					close(p.left)
				}
			}
			p.mu.Unlock()
		case kindFail, kindInterrupted:
			if len(message) >= 4 {
				of, text := int(binary.BigEndian.Uint32(message)), string(message[4:])
				p.fail(&PeerError{of, text, kind == kindInterrupted}, of, text)
			}
		}
	}
}

// pack joins messages into one, and unpack separates them.
func pack(all [][]byte) []byte {
	var b []byte
	for _, one := range all {
		b = binary.BigEndian.AppendUint32(b, uint32(len(one)))
		b = append(b, one...)
	}
	return b
}

func unpack(b []byte) (all [][]byte, err error) {
	for len(b) > 0 {
		if len(b) < 4 || uint64(binary.BigEndian.Uint32(b)) > uint64(len(b)-4) {
			return nil, errors.New("launch: a message of rank 0 is cut off")
		}
		n := 4 + int(binary.BigEndian.Uint32(b))
		all, b = append(all, b[4:n:n]), b[n:]
	}
	return all, nil
}
