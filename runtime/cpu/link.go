package cpu

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/autopar/autopar/runtime"
)

// Messages between processes of a world. Within a machine they only wake ranks that have parked;
// between machines they carry counts and bytes of arenas. See others.go.

// link is a connection with another process. Each message has a kind, two numbers, and a number of
// bytes that follow.
type link struct {
	rank    int
	conn    net.Conn
	done    atomic.Bool   // this process sends no more
	timeout time.Duration // bound on a wait for the other process to receive bytes
	stopped chan struct{} // closed when the run has failed

	mu   sync.Mutex
	head [25]byte
}

// The kinds of messages.
const (
	kindCount   byte = iota // counter a has reached b
	kindAwait               // request: tell me when counter a has reached b
	kindPut                 // a message of wire a, for offset b of the arena
	kindOperand             // operand of a collective of group a, of the member at position b
)

func newLink(b *Backend, conn net.Conn, rank int) *link {
	return &link{conn: conn, rank: rank, timeout: b.world.Timeout, stopped: b.stopped}
}

func (l *link) send(kind byte, a, b int, parts ...[]byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	l.head[0] = kind
	for i, x := range [...]int{a, b, n} {
		binary.LittleEndian.PutUint64(l.head[1+8*i:], uint64(x))
	}
	return l.write(append(net.Buffers{l.head[:]}, parts...))
}

// look is how often a blocked sender checks for progress and for failure of the run.
const look = 100 * time.Millisecond

// write sends buffers. If it fails after a part was received, the link is closed.
func (l *link) write(buffers net.Buffers) error {
	each := min(look, l.timeout)
	for waited := time.Duration(0); ; { // without the time in which this process is stopped
		if err := l.conn.SetWriteDeadline(time.Now().Add(each)); err != nil {
			return err
		}
		n, err := buffers.WriteTo(l.conn)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if waited += each; n > 0 {
			waited = 0
		}
		select {
		case <-l.stopped:
			l.end(true)
			return runtime.ErrAborted
		default:
		}
		if waited >= l.timeout {
			l.end(true)
			return &runtime.WaitError{Ranks: []int{l.rank}, After: l.timeout}
		}
	}
}

// end says that this process sends no more. After a failure it also receives no more.
func (l *link) end(failed bool) {
	l.done.Store(true)
	if tcp, ok := l.conn.(*net.TCPConn); ok && !failed {
		_ = tcp.CloseWrite() // the reader closes the connection when the other process has ended too
		return
	}
	l.conn.Close()
}

// listen receives the messages of all links, each in a goroutine, until they end. A link that
// breaks is a failure of the job.
func (o *others) listen() {
	if o == nil {
		return
	}
	for _, l := range o.links {
		if l == nil {
			continue
		}
		o.start(func() {
			err := o.read(l)
			if !errors.Is(err, io.EOF) && !l.done.Load() {
				_ = o.Peers.Lost(l.rank, l.conn.RemoteAddr(), err) // the job reports it
			}
			if l.done.Load() {
				l.conn.Close()
			}
		})
	}
}

// read receives the messages of a link.
func (o *others) read(l *link) error {
	in := bufio.NewReaderSize(l.conn, 1<<16)
	var head [25]byte
	for {
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return err
		}
		number := func(i int) int { return int(binary.LittleEndian.Uint64(head[1+8*i:])) }
		if err := o.receive(l, in, head[0], number(0), number(1), number(2)); err != nil {
			return err
		}
	}
}

func (o *others) receive(l *link, in io.Reader, kind byte, a, b, n int) error {
	switch kind {
	case kindCount:
		c := o.counter(a)
		for old := c.n.Load(); old < int64(b) && !c.n.CompareAndSwap(old, int64(b)); old = c.n.Load() {
		}
		c.wake()
	case kindAwait:
		c := o.counter(a)
		c.ask(l.rank, int64(b))
		if now := c.n.Load(); now >= int64(b) {
			// Not by the reading goroutine: a long message on its way out may wait for the other
			// side to have a message read here.
			o.start(func() { o.ring(l.rank, c, now) })
		}
	case kindPut:
		o.mu.Lock()
		dst, err := o.backend.devices[o.self].bytes(runtime.OnDevice, int64(b), n)
		o.mu.Unlock()
		if err != nil {
			return err
		}
		if _, err := io.ReadFull(in, dst); err != nil {
			return err
		}
		o.backend.counter(wireID, a).add(1)
	case kindOperand:
		message := make([]byte, n)
		if _, err := io.ReadFull(in, message); err != nil {
			return err
		}
		at := place{a, b}
		o.mu.Lock()
		o.inbox[at] = append(o.inbox[at], message)
		o.mu.Unlock()
		o.backend.counter(groupID, a*(2+o.Ranks)+2+b).add(1)
	default:
		return fmt.Errorf("a message of kind %d", kind)
	}
	return nil
}
