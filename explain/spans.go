package explain

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// This file matches the spans of a step, measured or predicted, with the program that they belong to, and checks
// that the order of events is one that the program allows. trace.go draws the result.

// timeline is the spans of a step with their program.
type timeline struct {
	prog  *codegen.Program
	nodes map[string]*ir.Node
	// chunks has the chunk that a node runs in, if it is not the first. It comes from the instructions, because nodes of
	// the update belong to no chunk but may run in the last micro-batch of any.
	chunks map[*ir.Node]int
	ranks  [][]step // by world rank, each in order of time; empty for ranks that are not shown
	// detailed lists the ranks whose every instruction is drawn; of others only tasks and transfers are. nil means all.
	detailed []int
	only     []int // the ranks that are shown, nil if all are
	like     []int // by rank, the first rank that does the same at the same times; nil if all ranks are shown
}

// step is a span with its node.
type step struct {
	runtime.Span
	node *ir.Node
	with []*ir.Node // the other collectives of a bucket
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
	case s.Stream == runtime.Transfers:
		return transferThread
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
	return codegen.Task{Phase: s.Phase, Chunk: l.chunks[s.node], MicroBatch: s.MicroBatch}
}

// message identifies a transfer: its send and its receive have the same message.
type message struct {
	send     string // name of the send
	from, to int    // ranks
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

// shown reports whether both ends of a transfer are on ranks that are shown.
func (l *timeline) shown(m message) bool {
	return l.only == nil || slices.Contains(l.only, m.from) && slices.Contains(l.only, m.to)
}

// newTimeline returns the timeline of spans on the given ranks, or on all ranks if that is nil. It fails unless they are
// a timeline of the program: spans of one stream of a rank do not overlap, so that tasks nest them; every send has one receive,
// which does not end before the send begins; and nothing begins before its operands are made.
func newTimeline(prog *codegen.Program, spans []runtime.Span, ranks []int) (*timeline, error) {
	l := &timeline{prog: prog, nodes: map[string]*ir.Node{}, chunks: map[*ir.Node]int{}, ranks: make([][]step, len(prog.Schedules)), only: ranks}
	for _, n := range prog.Graph.Nodes {
		l.nodes[n.Name] = n
	}
	for _, st := range prog.Stages {
		for _, body := range st.Bodies {
			for i := range body.Instrs {
				if in := &body.Instrs[i]; in.Chunk > 0 {
					l.chunks[in.Node] = in.Chunk
				}
			}
		}
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
		// Stable, so that spans that take no time keep their order.
		slices.SortStableFunc(steps, func(a, b step) int { return cmp.Or(cmp.Compare(a.Start, b.Start), cmp.Compare(a.End, b.End)) })
	}
	return l, l.check()
}

// check fails if the spans are no timeline of the program.
func (l *timeline) check() error {
	sends, receives := map[message]*step{}, map[message]*step{}
	for rank, steps := range l.ranks {
		ran := map[nodeRun]time.Duration{} // the end of everything that began before this step
		var last [runtime.Host]*step       // of each stream
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
				if ran[nodeRun{n, s.MicroBatch, s.Part + 1}] = s.End; s.Part+1 >= s.Parts {
					ran[nodeRun{n, s.MicroBatch, whole}], ran[nodeRun{n, anyMicroBatch, whole}] = s.End, s.End
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
			if !l.shown(m) {
				continue // the spans do not have its other end
			}
			if table[m] != nil {
				return fmt.Errorf("explain: rank %d: %s of micro-batch %d happens twice", rank, s.Name, s.MicroBatch)
			}
			table[m] = s
		}
	}
	return pair(sends, receives)
}

// nodeRun identifies a run of a node, or of one part of it.
type nodeRun struct {
	node *ir.Node
	mb   int // or anyMicroBatch: the last run so far
	part int // from 1, or whole
}

const (
	anyMicroBatch = -1
	whole         = 0
)

// operands checks that what a step reads was made before it starts: in the same micro-batch, or for the update in any.
func (l *timeline) operands(s *step, ran map[nodeRun]time.Duration) error {
	if s.Op == ir.OpRecv {
		return nil // its operand is on the sending rank: see pair
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

// operand checks one operand of node n, which step s runs.
func (l *timeline) operand(s *step, n *ir.Node, a *ir.Value, ran map[nodeRun]time.Duration) error {
	from := nodeRun{a.Def, s.MicroBatch, whole}
	// The update reads what micro-batches have left. A node of the update that runs in a pass reads other nodes of the update
	// in the same pass.
	if n.Phase == ir.Update && (a.Def.Phase != ir.Update || s.Phase == ir.Update) {
		from.mb = anyMicroBatch
	}
	end, done := ran[from]
	if part, made := ran[nodeRun{a.Def, s.MicroBatch, s.Part + 1}]; s.Parts > 0 && made {
		end, done = part, true // a part reads only the sequences that the same part of its operand made
	}
	switch {
	case done && end <= s.Start:
		return nil
	case a.Def.Op.Class() == ir.Leaf:
		return nil // it exists before the step
	case folded(a.Def) || a.Def.Op == ir.OpSlice:
		// It may have no instruction: the kernels that make its operands add to it, or it is a view of its operand.
		for _, b := range a.Def.Args {
			if err := l.operand(s, n, b, ran); err != nil {
				return err
			}
		}
		return nil
	}
	return fmt.Errorf("explain: rank %d: %s of micro-batch %d starts at %s, before its operand %s is made", s.Rank, s.Name, s.MicroBatch, s.Start, a.Name())
}

// folded reports whether a node may have no instruction of its own, because kernels add to its result directly.
func folded(n *ir.Node) bool { return n.Op == ir.OpAccumulate || n.Op == ir.OpAddN }

// pair checks that every send has a receive, which does not end before the send starts, and that every receive has a send.
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
