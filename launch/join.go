package launch

import (
	"bufio"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// The kinds of messages. A message is a byte for the kind, four bytes for the length, and the rest.
const (
	kindHello  byte = 'h' // who is connecting
	kindGather byte = 'g' // to rank 0 one part, from rank 0 all parts
	kindAside  byte = 'a' // the same for [Peers.GatherAside]
	kindFail   byte = 'f' // the rank that has failed, and the text of the failure
	// The same of a rank that was interrupted.
	kindInterrupted byte = 'i'
	kindBye         byte = 'b' // goodbye; from the host to an agent also how the job has ended

	// Between agents.
	kindStart byte = 's'
	kindStop  byte = 'q' // with how to stop
	kindEnded byte = 'e' // with how the processes have ended
	kindNote  byte = 'n' // what the host does with the machine
	kindLeave byte = 'l' // the agent will not take part in another start
)

// maxMessage bounds what another process can make this one allocate.
const maxMessage = 1 << 26

// writeTimeout bounds the time to send a message, whatever its length.
const writeTimeout = time.Minute

// link is a connection that carries messages.
type link struct {
	net.Conn
	in      *bufio.Reader
	mu      sync.Mutex
	closing atomic.Bool
}

func newLink(conn net.Conn) *link { return &link{Conn: conn, in: bufio.NewReader(conn)} }

// write sends a message. After an error it closes the connection, so that the reader fails too and
// reports it.
func (l *link) write(kind byte, message []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(len(message))), message...)
	_ = l.SetWriteDeadline(time.Now().Add(writeTimeout))
	defer l.SetWriteDeadline(time.Time{})
	if _, err := l.Conn.Write(b); err != nil {
		l.Conn.Close()
	}
}

func (l *link) read() (kind byte, message []byte, err error) {
	var head [5]byte
	if _, err := io.ReadFull(l.in, head[:]); err != nil {
		return 0, nil, err
	}
	n := binary.BigEndian.Uint32(head[1:])
	if n > maxMessage {
		return 0, nil, answer(fmt.Sprintf("who is there does not speak as autopar: a message of %d bytes, want at most %d", n, maxMessage))
	}
	message = make([]byte, n)
	_, err = io.ReadFull(l.in, message)
	return head[0], message, err
}

// ended reports whether the other side has closed a connection on which it is to say nothing yet, or has said that it was
// interrupted.
func (l *link) ended() bool {
	const moment = 10 * time.Millisecond // for news that are on their way
	_ = l.SetReadDeadline(time.Now().Add(moment))
	defer l.SetReadDeadline(time.Time{})
	_, err := l.in.Peek(1)
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// hello identifies a process: a word that distinguishes autopar from other connections, and rank,
// number of processes and number of the start.
func (p Place) hello() []byte {
	return fmt.Appendf(nil, "autopar 1 %d %d %d", p.Rank, p.World, p.Restart)
}

// Join connects the processes of a job. The others try to reach rank 0 again and again until it is
// there. Join returns when all have come, or when ctx ends; the error then says who has not come. A
// process that is alone does not wait.
func Join(ctx context.Context, place Place) (*Peers, error) {
	n := place.World
	p := &Peers{
		place: place, key: machine() + " " + place.Node, hosts: make([]string, n), keys: make([]string, n), conns: make([]*link, n),
		inbox: make([]chan []byte, n), aside: make([]chan []byte, n), failed: make(chan struct{}), told: make(chan struct{}), left: make(chan struct{}), gone: make([]bool, n), staying: n - 1,
	}
	for rank := range p.inbox {
		p.inbox[rank], p.aside[rank] = make(chan []byte, 1), make(chan []byte, 1)
	}
	p.keys[place.Rank] = p.key
	if n == 1 {
		return p, nil
	}
	start := time.Now()
	join := p.come
	if place.Rank == 0 {
		join = p.receiveAll
	}
	if err := join(ctx, start); err != nil {
		for _, conn := range p.conns {
			if conn != nil {
				conn.Close()
			}
		}
		return nil, err
	}
	for rank, conn := range p.conns {
		if conn != nil {
			go p.listen(rank, conn)
		}
	}
	keys, err := p.Gather(ctx, []byte(p.key))
	if err == nil && place.Rank == 0 {
		for rank, key := range keys {
			p.keys[rank] = string(key)
		}
		_, err = p.Gather(ctx, pack(append(keys, hostBytes(p.hosts)...)))
	} else if err == nil {
		var first [][]byte
		if first, err = p.Gather(ctx, nil); err == nil {
			err = p.takeTable(first[0])
		}
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func hostBytes(hosts []string) (b [][]byte) {
	for _, h := range hosts {
		b = append(b, []byte(h))
	}
	return b
}

// takeTable takes the machines and addresses of all ranks from rank 0. Ranks whose address is
// loopback are on rank 0's machine, so they are reached at the address at which this process
// reached rank 0.
func (p *Peers) takeTable(table []byte) error {
	all, err := unpack(table)
	if err != nil || len(all) != 2*p.place.World {
		return p.Fail(fmt.Errorf("launch: rank 0 knows %d ranks, want %d", len(all)/2, p.place.World))
	}
	for rank := range p.keys {
		p.keys[rank] = string(all[rank])
		if rank > 0 {
			if p.hosts[rank] = string(all[p.place.World+rank]); isLoopback(p.hosts[rank]) {
				p.hosts[rank] = p.hosts[0]
			}
		}
	}
	return nil
}

// pause is the time between two attempts to reach rank 0.
const pause = 50 * time.Millisecond

// come connects with rank 0. If it is interrupted before rank 0 has answered, it says so: otherwise rank 0 might find it gone, and
// fail.
func (p *Peers) come(ctx context.Context, start time.Time) error {
	conn, refused, err := reach(ctx, p.place.Addr, p.place.hello(), news(p.place.Rank, context.Canceled.Error()))
	switch {
	case refused:
		return fmt.Errorf("launch: rank %d is turned away by rank 0 at %s: %w", p.place.Rank, p.place.Addr, err)
	case err != nil:
		return fmt.Errorf("launch: rank %d of %d has no answer of rank 0 at %s after %.1f s: %w",
			p.place.Rank, p.place.World, p.place.Addr, time.Since(start).Seconds(), err)
	}
	p.conns[0], p.hosts[0] = conn, hostOf(conn.RemoteAddr())
	p.staying = 1
	return nil
}

// answer is a reply of the other side that is not the one wanted.
type answer string

func (a answer) Error() string { return string(a) }

// reach connects with whoever listens at an address, and tries again while nobody does. refused
// says that the answer is final. If ctx ends, the error includes the last answer that there was,
// even if the last attempt got none. If ctx is canceled, the other side is sent interrupted, unless that is nil.
func reach(ctx context.Context, addr string, hello, interrupted []byte) (conn *link, refused bool, err error) {
	var last answer
	for {
		if conn, refused, err = ask(ctx, addr, hello, interrupted); err == nil || refused {
			return conn, refused, err
		}
		if heard := errors.As(err, &last); !heard && last != "" {
			err = fmt.Errorf("%w, after the answer: %w", err, last)
		}
		select {
		case <-ctx.Done():
			return nil, false, fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-time.After(pause):
		}
	}
}

// ask makes one attempt.
func ask(ctx context.Context, addr string, hello, interrupted []byte) (_ *link, refused bool, err error) {
	var dialer net.Dialer
	tcp, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, false, err
	}
	stop := context.AfterFunc(ctx, func() { _ = tcp.SetReadDeadline(time.Now()) })
	conn := newLink(tcp)
	conn.write(kindHello, hello)
	kind, message, err := conn.read()
	if ended := !stop(); ended && errors.Is(ctx.Err(), context.Canceled) && interrupted != nil {
		conn.write(kindInterrupted, interrupted)
		err = ctx.Err()
	} else if ended && (err == nil || errors.Is(err, os.ErrDeadlineExceeded)) {
		err = errors.New("who is there has taken the connection and says nothing: it waits for others, or is not of this job")
	} else if err == nil && kind != kindHello {
		refused, err = kind == kindFail, answer(message)
	}
	if err != nil {
		tcp.Close()
		return nil, refused, err
	}
	return conn, false, nil
}

// receiveAll accepts every other rank once, and answers all when the last has come.
func (p *Peers) receiveAll(ctx context.Context, start time.Time) error {
	listener, err := p.place.listen(ctx)
	if err != nil {
		return fmt.Errorf("launch: rank 0 cannot listen at %s (MASTER_ADDR, MASTER_PORT): %w", p.place.Addr, err)
	}
	defer listener.Close()
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	if p.hosts[0] = hostOf(listener.Addr()); net.ParseIP(p.hosts[0]).IsUnspecified() {
		p.hosts[0], _, _ = net.SplitHostPort(p.place.Addr)
	}
	for missing := p.place.World - 1; missing > 0; {
		tcp, err := listener.Accept()
		if err != nil {
			var ranks []int
			for rank, conn := range p.conns {
				if rank > 0 && conn == nil {
					ranks = append(ranks, rank)
				}
			}
			return fmt.Errorf("launch: of %d ranks %d did not come to rank 0 at %s after %.1f s, the first of them %d: %w",
				p.place.World, missing, p.place.Addr, time.Since(start).Seconds(), ranks[0], cmp.Or(ctx.Err(), err)) // the end of ctx has closed the listener
		}
		conn := newLink(tcp)
		rank, later, err := p.greet(conn)
		if err == nil && p.conns[rank] != nil {
			if p.conns[rank].ended() { // it may be started again, or have lost its connection
				p.conns[rank].Close()
				p.conns[rank] = nil
				missing++
			} else {
				err = fmt.Errorf("there is a rank %d already, at %s", rank, p.hosts[rank])
			}
		}
		if err != nil { // it is not a rank of this job
			if !later {
				conn.write(kindFail, []byte(err.Error()))
			}
			conn.Close()
			continue
		}
		p.conns[rank], p.hosts[rank] = conn, hostOf(conn.RemoteAddr())
		missing--
	}
	for _, conn := range p.conns[1:] {
		conn.write(kindHello, nil)
	}
	return nil
}

// greet reads who is connecting. later says that it may come again: it has not identified itself in
// time, or it belongs to a start that this process will take part in later.
func (p *Peers) greet(conn *link) (rank int, later bool, err error) {
	const patience = 5 * time.Second
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	defer conn.SetReadDeadline(time.Time{})
	kind, message, err := conn.read()
	if err != nil {
		return 0, true, err
	}
	who := Place{}
	if _, err := fmt.Sscanf(string(message), "autopar 1 %d %d %d", &who.Rank, &who.World, &who.Restart); kind != kindHello || err != nil {
		return 0, false, errors.New("it does not speak as this version of autopar")
	}
	switch {
	case who.World != p.place.World || who.Rank < 0 || who.Rank >= who.World || who.Rank == p.place.Rank:
		return 0, false, fmt.Errorf("rank %d of %d has come to rank %d of %d", who.Rank, who.World, p.place.Rank, p.place.World)
	case who.Restart != p.place.Restart:
		return 0, who.Restart > p.place.Restart, fmt.Errorf("rank %d is of start %d, the job is at %d", who.Rank, who.Restart, p.place.Restart)
	}
	return who.Rank, false, nil
}

// listen listens at an address. It listens on all addresses of this machine if the given one is not
// one of them, or if it is a name that resolves to loopback, as /etc/hosts often has it for a
// machine's own name: others could not reach it there.
func listen(ctx context.Context, addr string) (net.Listener, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", addr)
	host, port, _ := net.SplitHostPort(addr)
	named := err == nil && isLoopback(hostOf(listener.Addr())) && net.ParseIP(host) == nil && host != "localhost"
	if named {
		err = listener.Close()
	}
	if named && err == nil || errors.Is(err, syscall.EADDRNOTAVAIL) {
		return config.Listen(ctx, "tcp", ":"+port)
	}
	return listener, err
}

// listenerVariable tells rank 0 its [Place.Listener]. Only [Agent] sets it.
const listenerVariable = "AUTOPAR_LISTENER_FD"

// listen listens where rank 0 is to.
func (p Place) listen(ctx context.Context) (net.Listener, error) {
	if p.Listener == 0 {
		return listen(ctx, p.Addr)
	}
	file := os.NewFile(uintptr(p.Listener), "listener")
	defer file.Close()
	return net.FileListener(file)
}

// keep keeps a listener for the next rank 0, if a process can be given one, so that nobody else gets its port meanwhile.
func (a *Agent) keep(listener net.Listener) error {
	defer listener.Close()
	file, err := inherited(listener)
	if old := a.listener.Swap(file); old != nil {
		old.Close()
	}
	return err
}

// isLoopback reports whether an address can be reached only from this machine.
func isLoopback(host string) bool { return net.ParseIP(host).IsLoopback() }

func hostOf(addr net.Addr) string {
	host, _, err := net.SplitHostPort(addr.String())
	if err != nil {
		return addr.String()
	}
	return host
}

// machine identifies this machine among those of a job. Processes with the same identity can map
// each other's memory. If the system does not tell, every process is a machine of its own.
func machine() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	pids, err2 := os.Readlink("/proc/self/ns/pid")
	if err != nil || err2 != nil {
		host, _ := os.Hostname()
		return host + " " + strconv.Itoa(os.Getpid())
	}
	return string(boot[:max(0, len(boot)-1)]) + " " + pids
}
