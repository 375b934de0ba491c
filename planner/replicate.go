package planner

import (
	"slices"
	"strings"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// Which modules tensor parallelism leaves whole. A module whose weights all tp ranks hold works on
// each rank's slice of the sequence, if that is sharded. It then exchanges neither its input nor
// its sum, as a split one does with every micro-batch, only the gradients of its weights once a
// step. Attention exchanges tokens for heads if there are enough heads, which is less than
// gathering and reducing (Jacobs et al. 2023, "DeepSpeed Ulysses"); with fewer, every rank does all
// heads, and the projections of its own tokens. Where ranks share the sequences of a micro-batch
// instead (batch parallelism), attention exchanges nothing: with all blocks replicated that is data
// parallelism, with the vocabulary's table and head split over the same ranks. If neither sequence
// nor batch were shared, every rank would do the same.
//
// The price is memory for weights and gradients. (From ZeRO stage 1 on the optimizer's state is
// sharded over these ranks too.) So most of these outlines cannot win. A plan may be faster the
// more of its blocks it recomputes, as these then exchange in a bubble; so in these outlines
// recomputation is not searched: it is as the options say, or none.

// recompute is the recomputation of outlines in which such modules are replicated.
func (o Options) recompute(replicate string) Recompute {
	if replicate != "" && o.Recompute == RecomputeSearched {
		return RecomputeNone
	}
	return o.Recompute
}

// replications lists what may be replicated besides nothing: every set of modules but all of them,
// as names joined by "+".
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
				if p := placementOf(w, -1); !slices.Contains(l.whole, p) {
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

// splitting returns the layout for a degree of tensor parallelism with some modules on a grid, or
// replicated. All others are split as [layouts.find] says.
func (l *layouts) splitting(tp int, x split) []partition.Placement {
	if x.rows > 0 {
		return l.onGrid(tp, x)
	}
	split := l.find(tp)
	if x.batch { // tables that are only looked up, too: nothing else is left to share
		split = l.withTables(split, tp)
	}
	if x.replicate == "" {
		return split
	}
	modules := strings.Split(x.replicate, "+")
	of := func(p partition.Placement) bool { return slices.Contains(modules, p.Module()) }
	all := slices.DeleteFunc(slices.Clone(split), of)
	for _, p := range l.wholes() {
		if of(p) {
			all = append(all, p)
		}
	}
	return all
}

// replications lists what the search tries to replicate in an outline besides nothing. It tries so
// under sequence parallelism, with the ranks of tp in one node, and where it pays: ranks then share
// tokens that they could not share as sequences. Elsewhere tp is there to spare memory, which
// replication takes again.
func (s *searcher) replications(o outline) []string {
	if s.opts.Replicate != "" || s.opts.Policy != AutoDist || !(o.sequence && s.within(o.degrees) && s.pays(o)) {
		return nil
	}
	if s.replicable == nil {
		s.replicable = replications(s.layouts.modules())
	}
	return s.replicable
}

// batched lists what the search replicates over tensor-parallel ranks that share the batch: modules
// of blocks, or what the options say. With all modules of blocks replicated, only the vocabulary is
// not data parallel over all ranks. Each rank must have a sequence.
//
// Unless it is asked for, batch parallelism is searched only where ranks of tp lie in one node,
// without context parallelism, and where a step has at most one token for four symbols of the
// vocabulary. For it exchanges tokens at the vocabulary's table and head in both passes; without it
// their gradients are exchanged twice, possibly beside the computation.
func (s *searcher) batched(d degrees) []split {
	o, replicas := s.opts, s.replicas(outline{degrees: d})
	if o.BatchParallel == "off" || d.tp == 1 || o.TPRows > 1 || replicas*d.tp > s.batch {
		return nil
	}
	if o.BatchParallel == "" {
		tokens := (s.batch + replicas - 1) / replicas * s.contexts.tokens
		if o.Policy != AutoDist || o.SequenceParallel == "on" || d.cp > 1 || !s.within(d) || 4*tokens > s.layouts.vocabulary() {
			return nil
		}
	}
	if s.batchSplits != nil {
		return s.batchSplits
	}
	s.batchSplits = []split{}
	for _, x := range append([]string{""}, replications(s.layouts.modules())...) {
		var searched bool
		switch asked := o.BatchParallel == "on"; {
		case o.Replicate != "":
			searched = x == o.replicate() && (x != "" || asked)
		case asked:
			searched = true
		default:
			searched = slices.Contains(s.layouts.ofBlocks(), x)
		}
		if searched {
			s.batchSplits = append(s.batchSplits, split{replicate: x, batch: true})
		}
	}
	return s.batchSplits
}

// withTables adds placements that split tables over their rows, where there are none.
func (l *layouts) withTables(placed []partition.Placement, tp int) []partition.Placement {
	all := slices.Clone(placed)
	for _, v := range l.tables() {
		p := placementOf(v, 0)
		if v.Type.Shape[0] >= tp && !slices.ContainsFunc(placed, func(q partition.Placement) bool { return q.Match == p.Match }) {
			all = append(all, p)
		}
	}
	return all
}

// vocabulary is how many rows the largest table has that tokens are looked up in, 0 without one.
func (l *layouts) vocabulary() int {
	rows := 0
	for _, v := range l.tables() {
		rows = max(rows, v.Type.Shape[0])
	}
	return rows
}

// tables lists those that tokens of the batch are looked up in.
func (l *layouts) tables() []*ir.Value {
	var all []*ir.Value
	for _, n := range l.graph.Nodes {
		if n.Op == ir.OpEmbedding && n.Phase == ir.Forward && len(n.Results[0].Type.Shape) > 2 && n.Args[0].Def.Op == ir.OpParam {
			all = append(all, n.Args[0])
		}
	}
	return all
}

// ofBlocks lists the sets of modules of blocks.
func (l *layouts) ofBlocks() []string {
	var names []string
	for _, g := range l.groups() {
		if ir.BlockOf(g.weights[0].Def.Name) != "" {
			names = append(names, placementOf(g.weights[0], -1).Module())
		}
	}
	return sets(names)
}

// within reports whether the tensor-parallel ranks of some degrees lie in one node.
func (s *searcher) within(d degrees) bool {
	return s.cluster.Device.Shared || d.tp <= s.cluster.DevicesPerNode
}

// pays reports whether the batch has no sequence for each of dp x tp, or tp is asked for. In the widened space (see
// [searcher.widens]) it is enough that these ranks could not have equal numbers of sequences.
func (s *searcher) pays(o outline) bool {
	ranks := s.replicas(o) * o.tp
	return ranks > s.batch || s.opts.TP > 1 || s.everywhere && s.batch%ranks != 0
}

// splitOf tells how a plan of the search cuts weights, apart from its pins.
func (s *searcher) splitOf(p *partition.Plan) split {
	free := partition.Plan{TPRows: p.TPRows, Placements: p.Placements[min(len(s.opts.Pins), len(p.Placements)):]}
	if p.Rows() > 1 {
		return split{grid: strings.Join(free.OnGrid(), "+"), rows: p.Rows()}
	}
	return split{replicate: strings.Join(free.Replicated(), "+"), batch: p.BatchParallel}
}

// checkReplicate checks that option against the modules there are, and brings the names in their order.
func (s *searcher) checkReplicate() error {
	x, all := s.opts.Replicate, replications(s.layouts.modules())
	if x == "" || x == "none" {
		return nil
	}
	i := slices.IndexFunc(all, func(set string) bool { return slices.Equal(sortedNames(set), sortedNames(x)) })
	if i < 0 {
		return optionErrorf("replicate", "is %q, must be one of %s", x, strings.Join(append([]string{"none"}, all...), ", "))
	}
	s.opts.Replicate = all[i]
	return nil
}

func sortedNames(set string) []string { return slices.Sorted(strings.SplitSeq(set, "+")) }
