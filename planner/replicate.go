package planner

import (
	"slices"
	"strings"

	"github.com/autopar/autopar/partition"
)

// Tensor parallelism need not split every module. A module whose weights all ranks of tp
// hold works on a slice of the sequence where that is sharded, and exchanges nothing: not
// its input and its sum, as a split one does with every micro-batch, only the gradients of
// its weights, once a step. Attention exchanges tokens for heads if there are enough, which is
// less than to gather and to reduce (Jacobs et al. 2023, "DeepSpeed Ulysses"); with fewer, every
// rank does all of them, and the projections of its tokens. Without sequence parallelism every rank would do the same.
//
// What it costs is memory, so that most of these outlines cannot win. A plan may be faster the
// more of its blocks recompute, which then exchange in a bubble, so that of these outlines not
// all recomputations are searched, but what the options say, or none.

// recompute is what outlines with such modules replicated may recompute.
func (o Options) recompute(replicate string) Recompute {
	if replicate != "" && o.Recompute == RecomputeSearched {
		return RecomputeNone
	}
	return o.Recompute
}

// replications lists what may be replicated of modules, as names joined by "+", beside
// nothing: every set of them but all.
func replications(modules []string) []string {
	all := sets(modules)
	return all[:max(len(all), 1)-1]
}

// sets lists every set of some of the names, joined by "+", that of all last.
func sets(modules []string) []string {
	var all []string
	for set := 1; set < 1<<len(modules); set++ {
		var names []string
		for i, name := range modules {
			if set>>i&1 == 1 {
				names = append(names, name)
			}
		}
		all = append(all, strings.Join(names, "+"))
	}
	return all
}

// wholes lists placements that keep the weights of all modules whole.
func (l *layouts) wholes() []partition.Placement {
	if l.whole == nil {
		for _, g := range l.groups() {
			for _, w := range g.weights {
				if p := splitOf(w, -1); !slices.Contains(l.whole, p) {
					l.whole = append(l.whole, p)
				}
			}
		}
	}
	return l.whole
}

// modules lists those that tensor parallelism may split.
func (l *layouts) modules() []string {
	var names []string
	for _, p := range l.wholes() {
		if name := p.Module(); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// splitting returns the layout for a degree of tensor parallelism with some modules on a
// grid, or replicated: all others are split as [layouts.find] has them.
func (l *layouts) splitting(tp int, x split) ([]partition.Placement, error) {
	if x.rows > 0 {
		return l.onGrid(tp, x)
	}
	split, err := l.find(tp)
	if err != nil || x.replicate == "" {
		return split, err
	}
	modules := strings.Split(x.replicate, "+")
	of := func(p partition.Placement) bool { return slices.Contains(modules, p.Module()) }
	all := slices.DeleteFunc(slices.Clone(split), of)
	for _, p := range l.wholes() {
		if of(p) {
			all = append(all, p)
		}
	}
	return all, nil
}

// replications lists what the search tries to replicate in an outline, beside nothing: with
// sequence parallelism, ranks of tp in one node, and where the batch
// has no sequence for each of dp x tp or tp is asked for. Otherwise tp is there to spare
// memory, which replication takes again.
func (s *searcher) replications(o outline) []string {
	if s.opts.Replicate != "" || s.opts.Policy != AutoDist || !(o.sequence && s.within(o) && s.pays(o)) {
		return nil
	}
	if s.replicable == nil {
		s.replicable = replications(s.layouts.modules())
	}
	return s.replicable
}

// within reports whether the tensor-parallel ranks of an outline lie in one node.
func (s *searcher) within(o outline) bool {
	return s.cluster.Device.Shared || o.tp <= s.cluster.DevicesPerNode
}

// pays reports whether the batch has no sequence for each of dp x tp, or tp is asked for.
func (s *searcher) pays(o outline) bool { return s.replicas(o)*o.tp > s.batch || s.opts.TP > 1 }

// splitOf is how a plan of the search cuts weights, beside its pins.
func (s *searcher) splitOf(p *partition.Plan) split {
	free := partition.Plan{TPRows: p.TPRows, Placements: p.Placements[min(len(s.opts.Pins), len(p.Placements)):]}
	if p.Rows() > 1 {
		return split{grid: strings.Join(free.OnGrid(), "+"), rows: p.Rows()}
	}
	return split{replicate: strings.Join(free.Replicated(), "+")}
}

// checkReplicate checks that option against the modules there are.
func (s *searcher) checkReplicate() error {
	all := replications(s.layouts.modules())
	if x := s.opts.Replicate; x != "" && x != "none" && !slices.Contains(all, x) {
		return optionErrorf("replicate", "is %q, must be one of %s", x, strings.Join(append([]string{"none"}, all...), ", "))
	}
	return nil
}
