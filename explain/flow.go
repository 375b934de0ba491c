package explain

import (
	"time"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// flow is an arrow of a timeline between two tracks of a rank.
type flow struct {
	name          string
	from, to      int // tracks
	leaves, comes time.Duration
}

// beside lists the arrows to and from steps that run on streams beside the kernels: to such a step from the last to make
// one of its operands, and from it to the first kernel that reads one of its results. steps are those of one rank, in order
// of time.
func beside(steps []step) []flow {
	var flows []flow
	type of struct {
		node *ir.Node
		part int // from 1 if the node runs in parts; 0 is the last run of any part
	}
	made := map[of]*step{}    // the last run of a node
	pending := map[of]*step{} // those of them on other streams, unless the node has run again on the compute stream
	read := map[*step]bool{}
	for i := range steps {
		s := &steps[i]
		var maker *step
		for _, n := range s.nodes() {
			if s.Op == ir.OpRecv {
				break
			}
			for _, a := range n.Args {
				for _, def := range makers(a.Def) {
					d := of{node: def}
					if part := (of{def, s.Part + 1}); s.Parts > 0 && made[part] != nil {
						d = part
					}
					if m := made[d]; m != nil && m.Stream != s.Stream && (maker == nil || m.End > maker.End) {
						maker = m
					}
					if from := pending[d]; from != nil && s.Stream == runtime.Compute && !read[from] {
						read[from] = true
						flows = append(flows, flow{name: from.Name, from: from.thread(), to: s.thread(), leaves: from.End, comes: s.Start})
					}
				}
			}
		}
		if s.Stream != runtime.Compute && maker != nil {
			flows = append(flows, flow{name: s.Name, from: maker.thread(), to: s.thread(), leaves: maker.End, comes: s.Start})
		}
		for _, n := range s.nodes() {
			for _, d := range []of{{node: n}, {n, s.Part + 1}} {
				made[d] = s
				delete(pending, d)
				if s.Stream != runtime.Compute {
					pending[d] = s
				}
			}
		}
	}
	return flows
}

// makers lists the nodes whose instructions may have written a node's result: the node itself, and if kernels may add to its
// result directly, the makers of its operands.
func makers(n *ir.Node) []*ir.Node {
	if !folded(n) {
		return []*ir.Node{n}
	}
	all := []*ir.Node{n}
	for _, a := range n.Args {
		all = append(all, makers(a.Def)...)
	}
	return all
}

// events returns the two ends of the arrow, in the Trace Event Format.
func (f flow) events(rank, id int) []event {
	return []event{
		{Name: f.name, Category: "stream", Kind: "s", Process: rank, Thread: f.from, Time: micros(f.leaves), ID: id},
		{Name: f.name, Category: "stream", Kind: "f", Process: rank, Thread: f.to, Time: micros(f.comes), ID: id, BindPoint: "e"},
	}
}
