package fake

import (
	"github.com/autopar/autopar/cuda/driver"
)

// graph is the work that streams recorded in a capture, in the order in which it was given.
type graph struct {
	members []*stream // streams that take part in the capture; the first began it
	clocks  []clock   // their vector clocks, which count by their index
	nodes   []node
	spoilt  bool      // by a call that a capture does not allow
	private []*stream // streams on which it runs
	start   *event
	ends    []*event
}

// node is one piece of work of a graph, or the record of an event, or a wait for one.
type node struct {
	stream        int
	kind          kind
	what          string
	reads, writes []Range
	do            func() error
	meet          func(s *stream, e *entry) // makes an entry wait for those of other ranks
	comm          *comm                     // whose work it is
	event         *event
}

// BeginCapture makes a stream record its work.
func (d *Driver) BeginCapture(s driver.Stream) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.device("cuStreamBeginCapture"); err != nil {
		return err
	}
	st, err := d.stream("cuStreamBeginCapture", s)
	if err != nil {
		return err
	}
	if st.capture != nil {
		return failed("cuStreamBeginCapture", 1, "CUDA_ERROR_INVALID_VALUE: captured already")
	}
	(&graph{}).enter(st)
	return nil
}

// enter adds a stream to a capture.
func (g *graph) enter(st *stream) {
	st.capture, st.index = g, len(g.members)
	g.members = append(g.members, st)
	g.clocks = append(g.clocks, nil)
}

// waitCaptured records that a stream waits for an event of the same capture, and adds the stream to
// it.
func (d *Driver) waitCaptured(st *stream, ev *event) error {
	g := ev.capture
	if g == nil || st.capture != nil && st.capture != g {
		return failed("cuStreamWaitEvent", 905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION: "+st.label+" waits for an event outside of the capture")
	}
	if st.capture == nil {
		g.enter(st)
	}
	g.clocks[st.index].join(ev.captured)
	g.nodes = append(g.nodes, node{stream: st.index, kind: wait, event: ev})
	return nil
}

// EndCapture returns the recorded work. The first stream must have waited for all streams that take
// part.
func (d *Driver) EndCapture(s driver.Stream) (driver.Graph, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	st, err := d.stream("cuStreamEndCapture", s)
	if err != nil {
		return 0, err
	}
	g := st.capture
	if g == nil || g.members[0] != st {
		return 0, failed("cuStreamEndCapture", 903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED")
	}
	whole := true
	for i, m := range g.members {
		m.capture = nil
		whole = whole && g.clocks[0].at(i) == g.clocks[i].at(i)
	}
	for _, ev := range d.events {
		if ev.capture == g {
			ev.capture = nil
		}
	}
	d.changed.Broadcast()
	if g.spoilt {
		return 0, failed("cuStreamEndCapture", 901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED")
	}
	if !whole {
		return 0, failed("cuStreamEndCapture", 904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED")
	}
	h := driver.Graph(d.handle())
	d.graphs[h] = g
	return h, nil
}

// DestroyGraph destroys a graph.
func (d *Driver) DestroyGraph(g driver.Graph) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.graphs, g)
	d.changed.Broadcast()
	return nil
}

// Instantiate makes a graph ready to launch, on streams and with events of its own.
func (d *Driver) Instantiate(h driver.Graph) (driver.Exec, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	g, ok := d.graphs[h]
	if !ok {
		return 0, failed("cuGraphInstantiate", 400, "CUDA_ERROR_INVALID_HANDLE")
	}
	e := &graph{start: &event{}}
	for range g.clocks {
		own := d.newStream(g.members[0].device)
		own.graph = true
		e.private, e.ends = append(e.private, own), append(e.ends, &event{})
	}
	own := map[*event]*event{}
	for _, n := range g.nodes {
		if n.event != nil {
			if own[n.event] == nil {
				own[n.event] = &event{}
			}
			n.event = own[n.event]
		}
		e.nodes = append(e.nodes, n)
	}
	x := driver.Exec(d.handle())
	d.execs[x] = e
	return x, nil
}

// LaunchGraph gives the graph's work to its private streams, ordered after what the stream was
// given before and before what it is given later.
func (d *Driver) LaunchGraph(x driver.Exec, s driver.Stream) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := d.device("cuGraphLaunch"); err != nil {
		return err
	}
	g, ok := d.execs[x]
	if !ok {
		return failed("cuGraphLaunch", 400, "CUDA_ERROR_INVALID_HANDLE")
	}
	st, err := d.stream("cuGraphLaunch", s)
	if err != nil {
		return err
	}
	d.launched++
	d.record(st, g.start)
	for _, p := range g.private {
		d.wait(p, g.start)
	}
	for _, n := range g.nodes {
		p := g.private[n.stream]
		switch n.kind {
		case record:
			d.record(p, n.event)
		case wait:
			d.wait(p, n.event)
		default:
			if err := d.issue(p, n); err != nil {
				return err
			}
		}
	}
	for i, p := range g.private {
		d.record(p, g.ends[i])
		d.wait(st, g.ends[i])
		st.queue[len(st.queue)-1].adopts = p
	}
	return nil
}

// DestroyExec drops a graph that was ready to launch.
func (d *Driver) DestroyExec(e driver.Exec) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.execs, e)
	d.changed.Broadcast()
	return nil
}
