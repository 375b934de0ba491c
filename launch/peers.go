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

// Peers are the processes of a job, seen from one of them. Every process has a connection
// with rank 0, which passes on what concerns all. Methods may be called from any goroutine,
// but Gather and Connect from one at a time, and in the same order in all processes; so GatherAside.
type Peers struct {
	place Place
	key   string   // of the machine
	hosts []string // by rank: the address by which it is reached
	keys  []string // by rank: of the machine
	conns []*link  // to rank 0, or by rank of all others; nil for oneself
	inbox []chan []byte
	aside []chan []byte // the inbox of GatherAside

	once   sync.Once
	failed chan struct{}
	err    error         // why, once failed is closed
	told   chan struct{} // closed when the others have been told
	left   chan struct{} // closed when all have said goodbye that this one hears of

	mu      sync.Mutex
	gone    []bool // by rank: has said goodbye
	staying int    // how many of those this one hears of have not
}

// A PeerError is the failure of another process, in its own words.
type PeerError struct {
	Rank int
	Msg  string
}

func (e *PeerError) Error() string { return fmt.Sprintf("rank %d has failed: %s", e.Rank, e.Msg) }

// A LostError is a process that has ended, or cannot be reached, without having said why.
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

// Host returns the address by which a rank is reached.
func (p *Peers) Host(rank int) string { return p.hosts[rank] }

// Machine returns the first of the ranks that are on one machine with a rank.
func (p *Peers) Machine(rank int) int { return slices.Index(p.keys, p.keys[rank]) }

// Local returns the ranks on this machine, in order, this one among them.
func (p *Peers) Local() []int {
	var ranks []int
	for rank, key := range p.keys {
		if key == p.key {
			ranks = append(ranks, rank)
		}
	}
	return ranks
}

// LocalRank returns how many ranks before this one are on this machine.
func (p *Peers) LocalRank() int { return slices.Index(p.Local(), p.place.Rank) }

// Gather gives every process the bytes of all, by rank. All call it, and none returns before
// the last has. After an error, which is also that of the end of ctx, the job has failed.
func (p *Peers) Gather(ctx context.Context, mine []byte) ([][]byte, error) {
	return p.gather(ctx, kindGather, p.inbox, mine)
}

// GatherAside is Gather for work beside the steps: the two do not meet, whichever comes first on which rank.
func (p *Peers) GatherAside(ctx context.Context, mine []byte) ([][]byte, error) {
	return p.gather(ctx, kindAside, p.aside, mine)
}

func (p *Peers) gather(ctx context.Context, kind byte, inbox []chan []byte, mine []byte) ([][]byte, error) {
	if p.place.World == 1 {
		return [][]byte{mine}, nil
	}
	if err := p.Err(); err != nil {
		return nil, err // though what the others sent before they heard of it may be here
	}
	start := time.Now()
	if p.place.Rank > 0 {
		p.conns[0].write(kind, mine)
		table, ok := p.receive(ctx, inbox[0])
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

// receive waits for the next message of a rank.
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
	}
	return nil, false
}

// late makes the error of a wait for ranks that has not gone well.
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

// Failed is closed when the job has failed, here or elsewhere: see Err.
func (p *Peers) Failed() <-chan struct{} { return p.failed }

// Err returns the first failure that this process has heard of: what [Peers.Fail] was told, a
// [*PeerError] or a [*LostError]; nil before.
func (p *Peers) Err() error {
	select {
	case <-p.failed:
		return p.err
	default:
		return nil
	}
}

// Fail tells all processes that this one has failed, unless the job has failed already. It
// returns the first failure.
func (p *Peers) Fail(err error) error {
	p.fail(err, p.place.Rank, err.Error())
	return p.err
}

// hearsay is how long a process may take to hear why another has ended.
const hearsay = time.Second

// Lost says that a connection to another process has broken that [Join] did not make, and returns the
// first failure of the job. A process that ends because of a failure elsewhere has passed that on, but over
// another connection: only where nothing is heard for a moment all are told that it is lost itself.
func (p *Peers) Lost(rank int, addr net.Addr, err error) error {
	moment := time.NewTimer(hearsay)
	defer moment.Stop()
	select {
	case <-p.failed:
	case <-moment.C:
		p.lost(rank, addr, err)
	}
	return p.err
}

// lost tells all processes that another has ended without a word, unless the job has failed already.
func (p *Peers) lost(rank int, addr net.Addr, err error) {
	lost := &LostError{rank, addr.String(), err}
	p.fail(lost, rank, lost.Error())
}

// fail notes the failure of a rank and tells the others.
func (p *Peers) fail(err error, rank int, text string) {
	p.once.Do(func() {
		p.err = err
		close(p.failed)
		message := append(binary.BigEndian.AppendUint32(nil, uint32(rank)), text...)
		for to, conn := range p.conns {
			if conn != nil && to != rank {
				conn.write(kindFail, message)
			}
		}
		close(p.told)
	})
}

// leave waits this long for the others.
const leave = 10 * time.Second

// Close says goodbye and waits for the others to, for a while. After a failure it only waits until
// they have been told: who has heard of it may be here before who tells them.
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

// listen takes what a rank sends until its connection ends.
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
		case kindFail:
			if len(message) >= 4 {
				of, text := int(binary.BigEndian.Uint32(message)), string(message[4:])
				p.fail(&PeerError{of, text}, of, text)
			}
		}
	}
}

// pack and unpack make one message of many, and the reverse.
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
