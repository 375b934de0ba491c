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

// link is a connection with another process, over which both send messages: a byte for the kind,
// two numbers, the bytes that follow and how many those are.
type link struct {
	rank    int
	conn    net.Conn
	done    atomic.Bool   // this process sends no more
	timeout time.Duration // of a wait until the other takes bytes
	stopped chan struct{} // closed when nothing is waited for any more

	mu   sync.Mutex
	head [25]byte
}

// The kinds of messages.
const (
	kindCount   byte = iota // counter a has come to b
	kindAwait               // tell when counter a has come to b
	kindPut                 // over wire a, to offset b of the arena
	kindOperand             // of a collective of group a, of the member at position b
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

// look is how often who sends looks whether the other takes bytes, and whether the run has failed.
const look = 100 * time.Millisecond

// write sends what is in buffers. A message of which the other has taken a part is the last.
func (l *link) write(buffers net.Buffers) error {
	for last := time.Now(); ; {
		if err := l.conn.SetWriteDeadline(time.Now().Add(min(look, l.timeout))); err != nil {
			return err
		}
		n, err := buffers.WriteTo(l.conn)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if n > 0 {
			last = time.Now()
		}
		select {
		case <-l.stopped:
			l.end(true)
			return runtime.ErrAborted
		default:
		}
		if time.Since(last) >= l.timeout {
			l.end(true)
			return &runtime.WaitError{Ranks: []int{l.rank}, After: l.timeout}
		}
	}
}

// end says that nothing more comes. After a failure nothing more is wanted either.
func (l *link) end(failed bool) {
	l.done.Store(true)
	if tcp, ok := l.conn.(*net.TCPConn); ok && !failed {
		_ = tcp.CloseWrite() // the reader closes it when the other has ended, too
		return
	}
	l.conn.Close()
}

// listen takes messages of all links, each in a goroutine, until they end. A link that breaks
// is a failure of the job.
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
				_ = o.Peers.Lost(l.rank, l.conn.RemoteAddr(), err) // it is the job's
			}
			if l.done.Load() {
				l.conn.Close()
			}
		})
	}
}

// read takes messages of a link.
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
			// Not by who reads: a long message on its way there may wait for one on its way here to be read.
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
