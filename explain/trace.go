package explain

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
)

// Trace writes a timeline in the Trace Event Format, which Perfetto and
// chrome://tracing open: a process per rank, in it a track of tasks and the
// kernels in them, a track of communication, with overlap another of that beside
// the kernels, and a curve of memory; and arrows from sends to receives, and from
// what makes the operands of a collective beside the kernels to it, and from it to
// what reads its result. spans are those of a run ([runtime.Span]), or with nil the predicted
// ones. They must be a timeline of
// the program: spans of one stream of a rank do not overlap, so that tasks nest them;
// every send has one receive, which does not end before the send begins; and nothing
// begins before its operands are made.
func (r *Report) Trace(w io.Writer, spans []runtime.Span) error {
	if spans == nil {
		var err error
		if spans, err = r.Spans(); err != nil {
			return err
		}
	}
	line, err := newTimeline(r.prog, spans)
	if err != nil {
		return err
	}
	return writeTrace(w, line.events())
}

// TraceBeside writes the spans of a run and the predicted ones as two processes, measured and predicted, with the tracks of
// every rank in each. Both are checked first.
func (r *Report) TraceBeside(w io.Writer, measured []runtime.Span) error {
	predicted, err := r.Spans()
	if err != nil {
		return err
	}
	var all []event
	for process, of := range []struct {
		name  string
		spans []runtime.Span
	}{{"measured", measured}, {"predicted", predicted}} {
		line, err := newTimeline(r.prog, of.spans)
		if err != nil {
			return fmt.Errorf("%s: %w", of.name, err)
		}
		all = append(all, event{Name: "process_name", Kind: "M", Process: process, Args: map[string]any{"name": of.name}})
		for _, e := range line.events() {
			rank := e.Process
			e.Process, e.Thread = process, rank*(streamThread+1)+e.Thread
			if e.ID > 0 {
				e.ID = 2*e.ID + process
			}
			switch e.Kind {
			case "M":
				if e.Name == "process_name" {
					continue
				}
				e.Args = map[string]any{"name": fmt.Sprintf("rank %d %s", rank, e.Args["name"])}
			case "C":
				e.Name = fmt.Sprintf("rank %d %s", rank, e.Name)
			}
			all = append(all, e)
		}
	}
	return writeTrace(w, all)
}

// writeTrace writes events as a file.
func writeTrace(w io.Writer, events []event) error {
	out := bufio.NewWriter(w)
	fmt.Fprint(out, `{"displayTimeUnit":"ms","traceEvents":[`)
	for i, e := range events {
		text, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("explain: %w", err)
		}
		if i > 0 {
			out.WriteByte(',')
		}
		out.WriteByte('\n')
		out.Write(text)
	}
	fmt.Fprint(out, "\n]}\n")
	return out.Flush()
}

// event is one entry of the Trace Event Format. Times are in microseconds.
type event struct {
	Name      string         `json:"name"`
	Category  string         `json:"cat,omitempty"`
	Kind      string         `json:"ph"`
	Process   int            `json:"pid"`
	Thread    int            `json:"tid"`
	Time      micros         `json:"ts"`
	Duration  *micros        `json:"dur,omitempty"`
	ID        int            `json:"id,omitempty"`
	BindPoint string         `json:"bp,omitempty"`
	Args      map[string]any `json:"args,omitempty"`
}

// micros prints a duration as microseconds, exactly.
type micros time.Duration

// MarshalJSON prints at most three decimals, as many as a nanosecond needs.
func (m micros) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, float64(m)/1000, 'f', -1, 64), nil
}

// Threads of a rank.
const (
	computeThread  = 1
	commThread     = 2
	streamThread   = 3
	exchangeThread = 4
)

// timeline is the spans of a step beside the program that they are of.
type timeline struct {
	prog  *codegen.Program
	nodes map[string]*ir.Node
	ranks [][]step // by world rank, in order
}

// step is a span with the node that it runs.
type step struct {
	runtime.Span
	node *ir.Node
	with []*ir.Node // the rest of a bucket
}

// nodes lists what the step runs.
func (s *step) nodes() []*ir.Node { return append([]*ir.Node{s.node}, s.with...) }

// thread returns the track of the step.
func (s *step) thread() int {
	switch {
	case s.Stream == runtime.Communication:
		return streamThread
	case s.Stream == runtime.Exchange:
		return exchangeThread
	case communicates(s.Op):
		return commThread
	}
	return computeThread
}

// task returns the task that a step belongs to.
func (l *timeline) task(s *step) codegen.Task {
	if s.Phase == ir.Update {
		return codegen.Task{Phase: ir.Update}
	}
	_, chunk := l.prog.Plan.Position(s.node.Stage)
	return codegen.Task{Phase: s.Phase, Chunk: chunk, MicroBatch: s.MicroBatch}
}

// message names a transfer from both of its ends.
type message struct {
	send     string
	from, to int
	mb       int
}

func (l *timeline) message(s *step) message {
	sched := &l.prog.Schedules[s.Rank]
	peer := l.prog.Peer(sched, s.node)
	if s.node.Op == ir.OpSend {
		return message{s.Name, s.Rank, peer, s.MicroBatch}
	}
	return message{s.node.Args[0].Def.Name, peer, s.Rank, s.MicroBatch}
}

// events lists everything to draw, by rank and time.
func (l *timeline) events() []event {
	var events []event
	ids := map[message]int{}
	arrows := len(l.ranks) * len(l.prog.Graph.Nodes) * (l.prog.Mesh.Size(partition.AxisMB) + 1) // more than messages
	for rank, steps := range l.ranks {
		events = append(events, l.labels(rank)...)
		add := func(name, category string, thread int, start, end time.Duration, args map[string]any) {
			length := micros(end - start)
			events = append(events, event{Name: name, Category: category, Kind: "X", Process: rank, Thread: thread, Time: micros(start), Duration: &length, Args: args})
		}
		for _, a := range beside(steps) {
			arrows++
			events = append(events, a.events(rank, arrows)...)
		}
		inFlight := make([]int, len(l.prog.Stages[l.prog.Schedules[rank].Stage].Chunks))
		last := codegen.Releases(l.prog.Plan, l.prog.Training())
		for i := 0; i < len(steps); {
			from := i
			t := l.task(&steps[from])
			for i < len(steps) && l.task(&steps[i]) == t {
				i++
			}
			end := steps[from].End
			for k := range steps[from:i] {
				end = max(end, steps[from+k].End)
			}
			add(t.String(), "task", computeThread, steps[from].Start, end, nil)
			if t.Phase == ir.Forward {
				inFlight[t.Chunk]++
			}
			events = append(events, l.memory(rank, inFlight, steps[from].Start))
			if t.Phase == last {
				inFlight[t.Chunk]--
			}
			for k := range steps[from:i] {
				s := &steps[from+k]
				args := map[string]any{"op": s.Op.String(), "task": t.String()}
				if !communicates(s.Op) {
					add(s.Name, "compute", computeThread, s.Start, s.End, args)
					continue
				}
				var bytes int64
				for _, n := range s.nodes() {
					bytes += l.prog.CommBytes(&l.prog.Schedules[rank], &codegen.Instr{Node: n, Part: s.Part, Parts: s.Parts}, t)
				}
				args["bytes"] = strconv.FormatInt(bytes, 10)
				if len(s.with) > 0 {
					args["with"] = s.With
				}
				add(s.Name, "comm", s.thread(), s.Start, s.End, args)
				if s.Op == ir.OpSend || s.Op == ir.OpRecv {
					events = append(events, l.arrow(s, ids))
				}
			}
		}
	}
	return events
}

// memory is a point of the curve of a rank's arena: what is always there, the
// slots and inboxes of the micro-batches in flight, and what bodies use for
// themselves.
func (l *timeline) memory(rank int, inFlight []int, at time.Duration) event {
	st := l.prog.Stages[l.prog.Schedules[rank].Stage]
	saved := int64(0)
	for i, c := range st.Chunks {
		saved += int64(inFlight[i]) * (c.Slot + c.Inbox)
	}
	return event{Name: "arena bytes", Kind: "C", Process: rank, Time: micros(at), Args: map[string]any{
		"1 persistent": st.Persist, "2 saved": saved, "3 temporary": st.Temp,
	}}
}

// labels names the process and threads of a rank.
func (l *timeline) labels(rank int) []event {
	s := &l.prog.Schedules[rank]
	name := fmt.Sprintf("rank %d: stage %d", rank, s.Stage)
	for i, a := range l.prog.Mesh.Axes {
		if !a.Time {
			name += fmt.Sprintf(" %s=%d", a.Name, s.Coord[i])
		}
	}
	labels := []event{
		{Name: "process_name", Kind: "M", Process: rank, Args: map[string]any{"name": name}},
		{Name: "thread_name", Kind: "M", Process: rank, Thread: computeThread, Args: map[string]any{"name": "compute"}},
		{Name: "thread_name", Kind: "M", Process: rank, Thread: commThread, Args: map[string]any{"name": "communication"}},
	}
	if l.prog.Plan.Overlap {
		labels = append(labels, event{Name: "thread_name", Kind: "M", Process: rank, Thread: streamThread, Args: map[string]any{"name": "communication stream"}})
	}
	if l.prog.Plan.OverlapTP || l.prog.Plan.TPPieces > 1 {
		labels = append(labels, event{Name: "thread_name", Kind: "M", Process: rank, Thread: exchangeThread, Args: map[string]any{"name": "exchange stream"}})
	}
	return labels
}

// arrow is the end of a flow from a send to its receive.
func (l *timeline) arrow(s *step, ids map[message]int) event {
	m := l.message(s)
	if ids[m] == 0 {
		ids[m] = len(ids) + 1
	}
	e := event{Name: m.send, Category: "transfer", Process: s.Rank, Thread: commThread, ID: ids[m]}
	if s.Op == ir.OpSend {
		e.Kind, e.Time = "s", micros(s.Start)
	} else {
		e.Kind, e.Time, e.BindPoint = "f", micros(s.End), "e"
	}
	return e
}

// newTimeline orders spans and checks them.
func newTimeline(prog *codegen.Program, spans []runtime.Span) (*timeline, error) {
	l := &timeline{prog: prog, nodes: map[string]*ir.Node{}, ranks: make([][]step, len(prog.Schedules))}
	for _, n := range prog.Graph.Nodes {
		l.nodes[n.Name] = n
	}
	for _, s := range spans {
		n := l.nodes[s.Name]
		if n == nil || s.Rank < 0 || s.Rank >= len(l.ranks) {
			return nil, fmt.Errorf("explain: the timeline has %s on rank %d, the program has not", s.Name, s.Rank)
		}
		x := step{Span: s, node: n}
		for _, name := range s.With {
			if l.nodes[name] == nil {
				return nil, fmt.Errorf("explain: the timeline has %s on rank %d, the program has not", name, s.Rank)
			}
			x.with = append(x.with, l.nodes[name])
		}
		l.ranks[s.Rank] = append(l.ranks[s.Rank], x)
	}
	for _, steps := range l.ranks {
		// Stable: what takes no time keeps its place.
		slices.SortStableFunc(steps, func(a, b step) int { return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.End, b.End)) })
	}
	return l, l.check()
}

// check says where the spans are no timeline of the program: see [Report.Trace].
func (l *timeline) check() error {
	sends, receives := map[message]*step{}, map[message]*step{}
	for rank, steps := range l.ranks {
		ran := map[made]time.Duration{} // when what began before this step ended
		var last [runtime.Host]*step    // of each stream
		for i := range steps {
			s := &steps[i]
			before := last[s.Stream]
			last[s.Stream] = s
			switch {
			case s.End < s.Start:
				return fmt.Errorf("explain: rank %d: %s ends at %s, before it starts at %s", rank, s.Name, s.End, s.Start)
			case before != nil && s.Start < before.End:
				return fmt.Errorf("explain: rank %d: %s starts at %s, inside %s, which ends at %s", rank, s.Name, s.Start, before.Name, before.End)
			}
			if err := l.operands(s, ran); err != nil {
				return err
			}
			for _, n := range s.nodes() {
				if ran[made{n, s.MicroBatch, s.Part + 1}] = s.End; s.Part+1 >= s.Parts {
					ran[made{n, s.MicroBatch, whole}], ran[made{n, anyMicroBatch, whole}] = s.End, s.End
				}
			}
			table := sends
			switch s.Op {
			case ir.OpRecv:
				table = receives
			case ir.OpSend:
			default:
				continue
			}
			m := l.message(s)
			if table[m] != nil {
				return fmt.Errorf("explain: rank %d: %s of micro-batch %d happens twice", rank, s.Name, s.MicroBatch)
			}
			table[m] = s
		}
	}
	return pair(sends, receives)
}

// made is a run of a node, or of one of its parts, counted from 1.
type made struct {
	node *ir.Node
	mb   int
	part int
}

const (
	anyMicroBatch = -1
	whole         = 0
)

// operands checks that what a step reads was made before, in the same
// micro-batch or, for the update, in any.
func (l *timeline) operands(s *step, ran map[made]time.Duration) error {
	if s.Op == ir.OpRecv {
		return nil // its operand is the sender's
	}
	for _, n := range s.nodes() {
		for _, a := range n.Args {
			if err := l.operand(s, n, a, ran); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *timeline) operand(s *step, n *ir.Node, a *ir.Value, ran map[made]time.Duration) error {
	from := made{a.Def, s.MicroBatch, whole}
	// What is done once a step has a phase of its own wherever it runs.
	if n.Phase == ir.Update && (a.Def.Phase != ir.Update || s.Phase == ir.Update) {
		from.mb = anyMicroBatch
	}
	end, done := ran[from]
	if part, made := ran[made{a.Def, s.MicroBatch, s.Part + 1}]; s.Parts > 0 && made {
		end, done = part, true // of other sequences it reads nothing
	}
	switch {
	case done && end <= s.Start:
		return nil
	case a.Def.Op.Class() == ir.Leaf:
		return nil // there before the step
	case folded(a.Def) || a.Def.Op == ir.OpSlice:
		// Done by the kernels that make its operands, or there already.
		for _, b := range a.Def.Args {
			if err := l.operand(s, n, b, ran); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("explain: rank %d: %s of micro-batch %d starts at %s, before its operand %s is made", s.Rank, s.Name, s.MicroBatch, s.Start, a.Name())
}

// folded reports whether a node may have no instruction of its own: sums that
// kernels make by adding into their result.
func folded(n *ir.Node) bool { return n.Op == ir.OpAccumulate || n.Op == ir.OpAddN }

func pair(sends, receives map[message]*step) error {
	for _, m := range sortedMessages(sends) {
		s, r := sends[m], receives[m]
		switch {
		case r == nil:
			return fmt.Errorf("explain: rank %d sends %s of micro-batch %d to rank %d, which never receives it", m.from, m.send, m.mb, m.to)
		case r.End < s.Start:
			return fmt.Errorf("explain: rank %d has received %s of micro-batch %d at %s, before rank %d sends it at %s", m.to, m.send, m.mb, r.End, m.from, s.Start)
		}
	}
	for _, m := range sortedMessages(receives) {
		if sends[m] == nil {
			return fmt.Errorf("explain: rank %d receives %s of micro-batch %d from rank %d, which never sends it", m.to, m.send, m.mb, m.from)
		}
	}
	return nil
}

func sortedMessages(of map[message]*step) []message {
	var ms []message
	for m := range of {
		ms = append(ms, m)
	}
	slices.SortFunc(ms, func(a, b message) int {
		return cmp.Or(cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to), cmp.Compare(a.mb, b.mb), cmp.Compare(a.send, b.send))
	})
	return ms
}
