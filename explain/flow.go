package explain

import (
	"time"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// flow is an arrow of a timeline between two streams of a rank.
type flow struct {
	name          string
	from, to      int // threads
	leaves, comes time.Duration
}

// beside lists the arrows to and from what runs on a rank's streams beside the kernels:
// from the last that made one of its operands, and to the first that reads one of
// its results.
func beside(steps []step) []flow {
	var flows []flow
	made := map[*ir.Node]*step{}    // the last run of a node
	pending := map[*ir.Node]*step{} // on the stream, not read yet
	read := map[*step]bool{}
	for i := range steps {
		s := &steps[i]
		var maker *step
		for _, n := range s.nodes() {
			if s.Op == ir.OpRecv {
				break
			}
			for _, a := range n.Args {
				for _, d := range makers(a.Def) {
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
			made[n] = s
			delete(pending, n)
			if s.Stream != runtime.Compute {
				pending[n] = s
			}
		}
	}
	return flows
}

// makers lists a node, or where kernels did its work by adding into their result,
// the makers of its operands.
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

// events draws the arrow.
func (f flow) events(rank, id int) []event {
	return []event{
		{Name: f.name, Category: "stream", Kind: "s", Process: rank, Thread: f.from, Time: micros(f.leaves), ID: id},
		{Name: f.name, Category: "stream", Kind: "f", Process: rank, Thread: f.to, Time: micros(f.comes), ID: id, BindPoint: "e"},
	}
}
