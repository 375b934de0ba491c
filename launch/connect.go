package launch

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"time"
)

// Connect makes a TCP connection between any two processes and returns those of this process by
// rank, nil for itself. All processes call it. The caller closes the connections.
func (p *Peers) Connect(ctx context.Context) ([]net.Conn, error) {
	return p.ConnectWhere(ctx, func(int, int) bool { return true })
}

// ConnectWhere is Connect for the pairs of ranks that wanted selects, which must be the same in all
// processes.
func (p *Peers) ConnectWhere(ctx context.Context, wanted func(a, b int) bool) (conns []net.Conn, err error) {
	conns = make([]net.Conn, p.place.World)
	if p.place.World == 1 {
		return conns, nil
	}
	start := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // a process that is waited for may never come
		select {
		case <-p.failed:
			cancel()
		case <-ctx.Done():
		}
	}()
	defer func() {
		if err == nil {
			return
		}
		for _, conn := range conns {
			if conn != nil {
				conn.Close()
			}
		}
		err = p.Fail(fmt.Errorf("launch: connecting with the others for %.1f s: %w", time.Since(start).Seconds(), err))
	}()
	host := p.hosts[0]
	if p.place.Rank > 0 {
		host = hostOf(p.conns[0].LocalAddr())
	}
	if isLoopback(host) && slices.ContainsFunc(p.hosts[1:], func(other string) bool { return !isLoopback(other) }) {
		host = "" // beside rank 0, but some ranks are on other machines
	}
	listener, err := listen(ctx, net.JoinHostPort(host, "0"))
	if err != nil {
		return conns, err
	}
	defer listener.Close()
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return conns, err
	}
	ports, err := p.Gather(ctx, []byte(port))
	if err != nil {
		return conns, err
	}
	for rank := range p.place.Rank { // of two ranks the lower one listens
		if !wanted(rank, p.place.Rank) {
			continue
		}
		var dialer net.Dialer
		conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(p.hosts[rank], string(ports[rank])))
		if err != nil {
			return conns, fmt.Errorf("rank %d: %w", rank, err)
		}
		conns[rank] = conn
		newLink(conn).write(kindHello, p.place.hello())
	}
	var missing []int
	for rank := p.place.Rank + 1; rank < p.place.World; rank++ {
		if wanted(p.place.Rank, rank) {
			missing = append(missing, rank)
		}
	}
	for len(missing) > 0 {
		conn, err := listener.Accept()
		if err != nil {
			return conns, fmt.Errorf("rank %d at %s has not come: %w", missing[0], p.hosts[missing[0]], cmp.Or(ctx.Err(), err)) // the end of ctx closes the listener
		}
		rank, _, err := p.greet(newLink(conn))
		at := slices.Index(missing, rank)
		if err != nil || at < 0 {
			conn.Close() // it is not a rank of this job
			continue
		}
		conns[rank], missing = conn, slices.Delete(missing, at, at+1)
	}
	_, err = p.Gather(ctx, nil) // so that nobody sends before all connections are there
	return conns, err
}
