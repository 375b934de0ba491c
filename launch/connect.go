package launch

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"time"
)

// Connect makes a TCP connection between any two processes and returns those of this one, by
// rank, nil for its own. All call it. They are the caller's to close.
func (p *Peers) Connect(ctx context.Context) ([]net.Conn, error) {
	return p.ConnectWhere(ctx, func(int, int) bool { return true })
}

// ConnectWhere is Connect for some pairs of ranks, about which all processes agree.
func (p *Peers) ConnectWhere(ctx context.Context, wanted func(a, b int) bool) (conns []net.Conn, err error) {
	conns = make([]net.Conn, p.place.World)
	if p.place.World == 1 {
		return conns, nil
	}
	start := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // who is waited for may never come
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
		host = "" // beside rank 0, with others on other machines
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
	for rank := range p.place.Rank { // the one that comes first listens
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
	missing := 0
	for rank := p.place.Rank + 1; rank < p.place.World; rank++ {
		if wanted(p.place.Rank, rank) {
			missing++
		}
	}
	for ; missing > 0; missing-- {
		conn, err := listener.Accept()
		if err != nil {
			return conns, cmp.Or(ctx.Err(), err) // which closes the listener
		}
		rank, _, err := p.greet(newLink(conn))
		if err != nil || rank < p.place.Rank || conns[rank] != nil {
			conn.Close()
			missing++ // who says something else is no rank
			continue
		}
		conns[rank] = conn
	}
	_, err = p.Gather(ctx, nil) // nobody sends before all are there
	return conns, err
}
