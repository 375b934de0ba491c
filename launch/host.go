package launch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"
)

// host, on machine 0, leads the agents of a job through each of its starts. Agents come at any time
// and report when their processes have ended; all else they do on the host's orders.
type host struct {
	*Agent
	listener net.Listener
	events   chan event
	over     chan struct{}   // closed when nobody receives events any more
	agents   sync.WaitGroup  // goroutines that listen to agents
	members  map[int]*member // by number of the machine
	restarts int
	ending   bool // there will be no other start
}

// member is a machine whose agent has connected.
type member struct {
	node    int
	conn    *link
	used    bool // it takes part in the latest start
	running bool // its processes are running
	leaves  bool // it will not take part in another start
	late    bool // its processes are not waited for any longer
}

// event is a message of an agent.
type event struct {
	from *member
	kind byte // kindHello when it comes, 0 when its connection has ended
	text []byte
	err  error
}

// MachineError is the loss of a machine that took part in a job.
type MachineError struct {
	Node int
	Addr string
	Err  error
}

func (e *MachineError) Error() string {
	return fmt.Sprintf("machine %d at %s is gone: %v", e.Node, e.Addr, e.Err)
}

// Unwrap returns the cause.
func (e *MachineError) Unwrap() error { return e.Err }

// lastCall is how long a job that has enough machines waits for more.
const lastCall = 5 * time.Second

func newHost(a *Agent) (*host, error) {
	h := &host{Agent: a, events: make(chan event), over: make(chan struct{}), members: map[int]*member{}}
	addr := a.Addr
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	var err error
	if h.listener, err = listen(context.Background(), addr); err != nil {
		return nil, fmt.Errorf("launch: the agent of machine 0 cannot listen at %s: %w", addr, err)
	}
	go func() {
		for {
			tcp, err := h.listener.Accept()
			if err != nil {
				return
			}
			h.agents.Go(func() { h.greet(newLink(tcp)) })
		}
	}()
	return h, nil
}

// greet reads who is connecting, and then passes on all its messages. An agent that does not
// identify itself in time may come again.
func (h *host) greet(conn *link) {
	const patience = 5 * time.Second
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	kind, text, err := conn.read()
	_ = conn.SetReadDeadline(time.Time{})
	if err != nil {
		conn.Close()
		return
	}
	m, procs := &member{conn: conn}, 0
	_, err = fmt.Sscanf(string(text), "autopar agent 1 %d %d", &m.node, &procs)
	switch {
	case kind != kindHello || err != nil:
		err = errors.New("it is no agent of this version of autopar")
	case m.node < 0 || m.node >= h.Most:
		err = fmt.Errorf("the job has machines 0 to %d", h.Most-1)
	case procs != h.Procs:
		err = fmt.Errorf("it has %d processes, machine 0 has %d", procs, h.Procs)
	}
	if err != nil {
		conn.write(kindFail, []byte(err.Error()))
		conn.Close()
		return
	}
	for e := (event{from: m, kind: kindHello}); ; {
		select {
		case h.events <- e:
		case <-h.over:
			if e.kind == kindHello { // it is no member, whom run would tell how the job has ended
				conn.Close()
				return
			}
		}
		if e.err != nil {
			return
		}
		if e.kind, e.text, e.err = conn.read(); e.err != nil {
			e.kind = 0
		}
	}
}

// run starts the job until it has ended, and tells all agents how.
func (h *host) run() (err error) {
	defer func() {
		close(h.over)
		h.listener.Close()
		for _, m := range h.members {
			m.conn.write(kindBye, outcomeOf(err))
		}
		heard := make(chan struct{})
		go func() {
			h.agents.Wait()
			close(heard)
		}()
		select {
		case <-heard:
		case <-time.After(leave):
		}
	}()
	for number := 0; ; number++ {
		if err := h.gather(); err != nil {
			return err
		}
		if err := h.start(number); err != nil {
			return err
		}
		again, err := h.watch()
		switch {
		case err != nil && (final(err) || h.ending):
			return err
		case err != nil && again: // interrupted too late to save: the next start continues from what was saved before
			h.note("%v, when it was to end", err)
		case err != nil && h.restarts == h.MaxRestarts:
			if h.restarts > 0 {
				err = fmt.Errorf("%w, at restart %d of at most %d", err, h.restarts, h.MaxRestarts)
			}
			return err
		case err != nil:
			h.restarts++
			h.note("%v: restart %d of at most %d", err, h.restarts, h.MaxRestarts)
		case h.ending:
			return context.Canceled
		case !again && h.Again == nil:
			return nil
		case !again:
			if again, err = h.Again(); !again {
				return err
			}
		}
	}
}

// gather waits for machines.
func (h *host) gather() error {
	began := time.Now()
	late := time.After(h.Patience)
	var call <-chan time.Time // once there are enough machines
	for !h.ending && len(h.members) < h.Most {
		if enough := len(h.members) >= h.Least; enough && call == nil {
			call = time.After(lastCall)
		} else if !enough {
			call = nil
		}
		select {
		case e := <-h.events:
			h.attend(e)
		case <-call:
			return nil
		case <-late:
			if call != nil {
				return nil
			}
			return fmt.Errorf("launch: %d of at least %d machines came to machine 0 at %s after %.1f s: machines %v",
				len(h.members), h.Least, h.Addr, time.Since(began).Seconds(), slices.Sorted(maps.Keys(h.members)))
		}
	}
	if h.ending {
		return context.Canceled
	}
	return nil
}

// attend handles machines that come and go. It reports whether another start would have other
// machines than this one.
func (h *host) attend(e event) (changed bool) {
	m := e.from
	switch e.kind {
	case kindHello:
		if h.members[m.node] != nil {
			m.conn.write(kindBye, fmt.Appendf(nil, "there is a machine %d already", m.node)) // the old one may be about to be missed
			m.conn.Close()
			return false
		}
		h.members[m.node] = m
		m.conn.write(kindHello, nil)
		return true
	case kindLeave:
		if h.members[m.node] != m || m.leaves {
			return false
		}
		m.leaves = true
		staying := 0
		for _, other := range h.members {
			if !other.leaves {
				staying++
			}
		}
		if m.node == 0 || staying < h.Least {
			h.ending = true
		}
		if !m.running {
			h.dismiss(m)
		}
		return m.used
	case 0:
		if h.members[m.node] == m {
			delete(h.members, m.node)
			m.conn.Close()
		}
	}
	return false
}

// dismiss lets a machine leave; the job ends or goes on without it.
func (h *host) dismiss(m *member) {
	var err error
	if h.ending {
		err = context.Canceled
	}
	delete(h.members, m.node)
	m.conn.write(kindBye, outcomeOf(err))
}

// start tells the agents to start their processes. If there is no plan for all machines some are left out, those that took part
// before last. These wait for a start that has a place for them.
func (h *host) start(number int) error {
	name := hostOf(h.listener.Addr())
	if h.Addr != "" {
		var err error
		if name, _, err = net.SplitHostPort(h.Addr); err != nil {
			return err
		}
	}
	listener, err := listen(context.Background(), net.JoinHostPort(name, "0"))
	if err != nil {
		return fmt.Errorf("launch: rank 0 cannot listen at %s: %w", name, err)
	}
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		return err
	}
	if err := h.keep(listener); err != nil {
		return err
	}
	nodes := slices.SortedFunc(maps.Keys(h.members), func(a, b int) int {
		if used := h.members[a].used; used != h.members[b].used {
			return map[bool]int{true: -1, false: 1}[used]
		}
		return a - b
	})
	of := Start{Number: number, Restarts: h.restarts, Nodes: len(nodes), Addr: net.JoinHostPort(name, port), Memory: h.MaxRestarts > 0 || h.Least < h.Most}
	for of.Brief, err = h.Brief(of); err != nil; of.Brief, err = h.Brief(of) {
		if of.Nodes == h.Least {
			return err
		}
		of.Nodes--
		m := h.members[nodes[of.Nodes]]
		m.used = false
		text := fmt.Sprintf("machine %d is not used: with %d machines: %v", m.node, of.Nodes+1, err)
		h.note("%s", text)
		m.conn.write(kindNote, []byte(text))
	}
	nodes = nodes[:of.Nodes]
	slices.Sort(nodes)
	for i, node := range nodes {
		of.Node = i
		text, err := json.Marshal(of)
		if err != nil {
			return err
		}
		h.members[node].used, h.members[node].running = true, true
		h.members[node].conn.write(kindStart, text)
	}
	return nil
}

// blame adds to an error of a machine which one it is, unless the error names a rank.
func (h *host) blame(m *member, err error) error {
	var exit *ExitError
	if err == nil || h.Most == 1 || errors.As(err, &exit) {
		return err
	}
	return fmt.Errorf("machine %d at %s: %w", m.node, hostOf(m.conn.RemoteAddr()), err)
}

// watch waits for the end of all processes. If one fails or a machine is gone, the others are ended
// too. If a machine comes or leaves before that, the processes are interrupted, and again says to
// start them again.
func (h *host) watch() (again bool, first error) {
	running := maps.Clone(h.members)
	maps.DeleteFunc(running, func(_ int, m *member) bool { return !m.used })
	stopped := map[byte]bool{}
	stop := func(how byte) {
		if !stopped[how] {
			stopped[how] = true
			for _, m := range running {
				m.conn.write(kindStop, []byte{how})
			}
		}
	}
	ended := func(m *member, err error) {
		m.running = false
		delete(running, m.node)
		if errors.Is(err, context.Canceled) { // a process was interrupted, not by its agent
			h.ending, err = true, nil
			stop(stopGently)
		}
		first = together(first, err)
		if err != nil {
			stop(stopFailed)
		}
	}
	patience := h.Patience + grace
	var late <-chan time.Time // from the first end on
	for len(running) > 0 {
		select {
		case e := <-h.events:
			m := e.from
			if h.attend(e) {
				what, then := "has come", "is started anew from where it is"
				if e.kind == kindLeave {
					what = "leaves"
				}
				if h.ending {
					then = "ends"
				}
				h.note("machine %d %s: the job %s", m.node, what, then)
				again = again || first == nil
				stop(stopGently)
			}
			if running[m.node] != m {
				continue
			}
			switch e.kind {
			case kindEnded:
				ended(m, h.blame(m, readOutcome(e.text)))
				if m.leaves {
					h.dismiss(m)
				}
			case 0:
				if m.late {
					e.err = fmt.Errorf("its processes had not ended %v after the first of the job", patience)
				}
				ended(m, &MachineError{m.node, hostOf(m.conn.RemoteAddr()), e.err})
			}
			if late == nil && !m.running {
				late = time.After(patience)
			}
		case <-late: // the remaining machines are not waited for any longer
			for _, m := range running {
				m.late = true
				m.conn.Close() // this ends listening to it
			}
			late = nil
		}
	}
	return again, first
}
