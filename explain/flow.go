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

// streamFlows lists the arrows to and from steps that run on streams beside the kernels: to such a step from the last to make
// one of its operands, and from it to the first kernel that reads one of its results. steps are those of one rank, in order
// of time.
func streamFlows(steps []step) []flow {
	var flows []flow
	type nodePart struct {
		node *ir.Node
		part int // from 1 if the node runs in parts; 0 is the last run of any part
	}
	made := map[nodePart]*step{} // the last run of a node
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
					m := made[nodePart{node: def}]
					if part := made[nodePart{def, s.Part + 1}]; s.Parts > 0 && part != nil {
						m = part
					}
					if m == nil || m.Stream == s.Stream {
						continue
					}
					if maker == nil || m.End > maker.End {
						maker = m
					}
					if s.Stream == runtime.Compute && !read[m] {
						read[m] = true
						flows = append(flows, flow{name: m.Name, from: m.thread(), to: s.thread(), leaves: m.End, comes: s.Start})
					}
				}
			}
		}
		if s.Stream != runtime.Compute && maker != nil {
			flows = append(flows, flow{name: s.Name, from: maker.thread(), to: s.thread(), leaves: maker.End, comes: s.Start})
		}
		for _, n := range s.nodes() {
			made[nodePart{node: n}], made[nodePart{n, s.Part + 1}] = s, s
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
