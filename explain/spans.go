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

// timeline is the spans of a step beside the program that they are of.
type timeline struct {
	prog  *codegen.Program
	nodes map[string]*ir.Node
	// chunks are those of a rank's stages that nodes run in, where it is not the first: what an update is made of lies in
	// none, but may run in the last micro-batch of any.
	chunks map[*ir.Node]int
	ranks  [][]step // by world rank, in order; of those that are not shown none
	// detailed lists the ranks of which every instruction is shown, of the others tasks and transfers; nil if all are.
	detailed []int
	only     []int // the ranks that are shown, nil if all are
	like     []int // by rank, the first that does the same at the same times, where not all are shown
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

// shown reports whether both ends of a transfer are.
func (l *timeline) shown(m message) bool {
	return l.only == nil || slices.Contains(l.only, m.from) && slices.Contains(l.only, m.to)
}

// newTimeline orders the spans of some ranks, or with nil of all, and checks them.
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
			if !l.shown(m) {
				continue // the other end is not there
			}
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
