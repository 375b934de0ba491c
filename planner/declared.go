package planner

import (
	"fmt"
	"slices"
	"strings"

	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// The declared space: what a certificate is about, as plain nested loops and membership tests. It is
// written independently of the way the search lists the space (space.go), so that a certificate does
// not rest on the search being complete. certify.go checks with [declared.tile] that the regions of a
// certificate cover every cell of it exactly once.

// declared is the space of a [Certificate].
type declared struct {
	opts       Options // as [Options.on] returns them
	cluster    *cost.Cluster
	blocks     int                // to distribute
	batch      int                // sequences
	tokens     int                // of a sequence; 0 without attention
	everywhere bool               // context parallelism of all degrees: see [contexts]
	rates      *cost.Model        // for the levels of the network
	modules    []string           // modules that tensor parallelism may split
	gridded    []string           // those that it may cut in two dimensions
	ofBlocks   []string           // sets of the modules of blocks
	vocabulary int                // rows of the largest table that tokens are looked up in
	slices     []int              // numbers of slices of the loss that the graphs can have besides one
	inParts    func(outline) bool // whether an outline can make anything in parts
	fixed      bool               // sequences cannot be in parts, whatever their length: see [partition.CutSequences]
}

// each calls visit for every outline of the space, with the number of slices of the loss that the
// options have, and in one part.
func (d *declared) each(visit func(outline)) {
	o := d.opts
	for _, unit := range divisors(o.RuntimeNGPUs) {
		if o.PlanNGPUs > 0 && unit != o.PlanNGPUs {
			continue
		}
		for _, dp := range divisors(unit) {
			for _, cp := range divisors(unit / dp) {
				for _, tp := range divisors(unit / dp / cp) {
					for order := range d.cluster.Orders() {
						if cut := (degrees{unit, dp, cp, tp, unit / dp / cp / tp, order}); d.hasDegrees(cut) {
							for _, ranks := range d.rankOrders(cut) {
								d.eachOf(cut, ranks, visit)
							}
						}
					}
				}
			}
		}
	}
}

func (d *declared) replicas(cut degrees) int { return cut.dp * d.opts.RuntimeNGPUs / cut.plan }

// hasDegrees reports whether the degrees are in the space.
func (d *declared) hasDegrees(cut degrees) bool {
	o := d.opts
	for _, x := range [][2]int{{o.DP, cut.dp}, {o.TP, cut.tp}, {o.PP, cut.pp}, {o.CP, cut.cp}} {
		if x[0] > 0 && x[0] != x[1] {
			return false
		}
	}
	if cut.cp > 1 && o.CP == 0 {
		pays := d.everywhere || d.tokens > 8192 || cut.cp*cut.pp*d.replicas(cut) > d.batch
		if o.Policy != AutoDist || d.tokens == 0 || d.tokens%(2*cut.cp) != 0 || !pays {
			return false
		}
	}
	if o.Policy == Megatron {
		within := d.cluster.Device.Shared || d.cluster.DevicesPerNode%cut.tp == 0
		if !within || d.blocks%cut.pp != 0 {
			return false
		}
	}
	return cut.pp <= max(d.blocks, 1) && d.replicas(cut) <= d.batch
}

// rankOrders lists the orders of the axes over the ranks of a unit: those that differ. Where a unit
// may be smaller, data-parallel ranks are not outermost.
func (d *declared) rankOrders(cut degrees) []string {
	o := d.opts
	sizes := map[string]int{"tp": cut.tp, "cp": cut.cp, "dp": cut.dp, "pp": cut.pp}
	if o.RankOrder != "" {
		return []string{partition.RankOrderOf(o.RankOrder, sizes)}
	}
	all := []string{""}
	if o.Policy != AutoDist || len(d.cluster.Pools) > 0 || !d.rates.Hierarchical(o.RuntimeNGPUs) {
		return all
	}
	names := []string{"tp", "cp", "dp", "pp"}
	for i := range 4 * 4 * 4 * 4 {
		order := []string{names[i/64], names[i/16%4], names[i/4%4], names[i%4]}
		text := partition.RankOrderOf(strings.Join(order, "-"), sizes)
		outside := strings.HasSuffix(text, "dp") && o.PlanNGPUs == 0 && o.DP == 0
		if partition.CheckRankOrder(strings.Join(order, "-")) == nil && !slices.Contains(all, text) && !outside && cut.differs(strings.Split(text, "-"), d.rates) {
			all = append(all, text)
		}
	}
	return all
}

// eachOf visits the outlines with some degrees and order of ranks.
func (d *declared) eachOf(cut degrees, ranks string, visit func(outline)) {
	o := d.opts
	for chunks := 1; chunks <= max(1, d.blocks/cut.pp); chunks++ {
		for zero := range 4 {
			for _, group := range d.groups(cut, zero, chunks) {
				for _, offload := range []partition.Offload{partition.OffloadNone, partition.OffloadOptimizer, partition.OffloadParams} {
					for _, sequence := range []bool{false, true} {
						for _, overlap := range []bool{false, true} {
							for _, split := range d.splits(cut, group, ranks, sequence) {
								for _, waits := range d.waits(cut) {
									x := outline{cut, sharding{zero, group, sequence, overlap, offload, o.slices(), 0, split}, chunks, ranks, waits}
									if d.hasChunks(x) && d.hasSharding(x) && len(d.schedules(x)) > 0 {
										visit(x)
									}
								}
							}
						}
					}
				}
			}
		}
	}
}

// waits lists whether stages wait for what they send: as asked for, or both ways on devices that can
// send beside kernels. One stage alone sends nothing.
func (d *declared) waits(cut degrees) []bool {
	switch {
	case cut.pp == 1 || d.opts.OverlapP2P == "on":
		return []bool{false}
	case d.opts.OverlapP2P == "off" || d.cluster.Device.Shared:
		return []bool{true}
	}
	return []bool{false, true}
}

// splits lists how weights may be cut: in one dimension, with modules replicated, or on grids. A
// grid has no more rows than columns, or as many as are asked for, and is in the usual order of
// ranks. It is searched where replication is, and for sixteen ranks or more.
func (d *declared) splits(cut degrees, group int, ranks string, sequence bool) []split {
	var all []split
	for _, replicate := range d.replications(cut, ranks, sequence) {
		all = append(all, split{replicate: replicate})
	}
	o := d.opts
	if o.TPRows > 1 {
		all = nil
	}
	if d.batched(cut, ranks) {
		for _, replicate := range append([]string{""}, replications(d.modules)...) {
			given := o.Replicate != "" && replicate == o.replicate() && (replicate != "" || o.BatchParallel == "on")
			if given || o.Replicate == "" && (o.BatchParallel == "on" || slices.Contains(d.ofBlocks, replicate)) {
				all = append(all, split{replicate: replicate, batch: true})
			}
		}
	}
	many := cut.tp >= 16 || d.fewSequences(cut)
	searched := sequence && many && d.within(cut) && o.TPRows == 0 && o.Policy == AutoDist && (o.Replicate == "" || o.Replicate == "none")
	for rows := 2; rows < cut.tp; rows++ {
		has := rows == o.TPRows || searched && rows*rows <= cut.tp
		if !has || cut.tp%rows != 0 || ranks != "" || cut.cp > 1 && group > 0 {
			continue
		}
		for _, grid := range sets(d.gridded) {
			all = append(all, split{grid: grid, rows: rows})
		}
	}
	return all
}

// replications lists what may be replicated: every set of modules but all of them. That is under
// sequence parallelism, inside a node, with ranks in the usual order or the one that is asked for,
// and where the batch has few sequences for the ranks of dp x tp.
func (d *declared) replications(cut degrees, ranks string, sequence bool) []string {
	switch o := d.opts; {
	case o.Replicate == "none":
		return []string{""}
	case o.Replicate != "" && cut.tp == 1:
		return nil
	case o.Replicate != "":
		return []string{o.Replicate}
	case !d.fewSequences(cut), !sequence, !d.within(cut), o.Policy != AutoDist, ranks != "" && o.RankOrder == "":
		return []string{""}
	}
	return append([]string{""}, replications(d.modules)...)
}

// batched reports whether tensor-parallel ranks may share the batch. Each must have a sequence, and
// ranks are in the usual order or the one that is asked for. Unless batch parallelism is asked for,
// the vocabulary must be four times the tokens of a data-parallel rank, the ranks lie inside a
// node, and there is no context parallelism.
func (d *declared) batched(cut degrees, ranks string) bool {
	o := d.opts
	switch {
	case cut.tp == 1, o.TPRows > 1, o.BatchParallel == "off", ranks != "" && o.RankOrder == "", d.replicas(cut)*cut.tp > d.batch:
		return false
	case o.BatchParallel == "on":
		return true
	}
	tokens := (d.batch + d.replicas(cut) - 1) / d.replicas(cut) * d.tokens
	return o.Policy == AutoDist && cut.cp == 1 && 4*tokens <= d.vocabulary && d.within(cut)
}

// within reports whether tensor-parallel ranks lie inside a node.
func (d *declared) within(cut degrees) bool {
	return cut.tp <= d.cluster.DevicesPerNode || d.cluster.Device.Shared
}

// fewSequences reports whether the batch has no sequence for each rank of dp x tp, in the widened space also not as many for
// each, or whether tp is asked for.
func (d *declared) fewSequences(cut degrees) bool {
	ranks := d.replicas(cut) * cut.tp
	return ranks > d.batch || d.opts.TP > 1 || d.everywhere && d.batch%ranks != 0
}

// hasChunks reports whether the number of chunks per rank is in the space.
func (d *declared) hasChunks(x outline) bool {
	o := d.opts
	if x.chunks == 1 {
		return o.Interleave <= 1 && o.Schedule != partition.Interleaved
	}
	even := d.blocks%(x.pp*x.chunks) == 0
	switch {
	case o.Interleave > 0 && x.chunks != o.Interleave, o.Interleave == 0 && x.chunks != 2 && x.chunks != 4 && !even:
		return false
	case o.Schedule != "" && o.Schedule != partition.Interleaved:
		return false
	case o.Policy == Megatron && !even:
		return false
	}
	return x.pp > 1 && x.pp*x.chunks <= d.blocks
}

// hasSharding reports whether what is sharded beside the model is in the space.
func (d *declared) hasSharding(x outline) bool {
	o, replicas := d.opts, d.replicas(x.degrees)
	different := replicas * x.cp // ranks that train on tokens of their own with the same weights
	if x.batch {
		different *= x.tp
	}
	switch {
	case o.ZeRO != nil && x.zero != *o.ZeRO, x.zero > 0 && different == 1:
		return false
	case o.ZeROGroup > 0 && (x.zero == 0 || replicas%o.ZeROGroup != 0):
		return false
	case x.sequence && (x.tp == 1 || o.SequenceParallel == "off"), !x.sequence && o.SequenceParallel == "on", x.batch && x.sequence, !x.batch && o.BatchParallel == "on":
		return false
	case x.overlap && (o.Overlap == "off" || different == 1 || x.offload.Moves()), !x.overlap && o.Overlap == "on":
		return false
	case o.Offload == "" && d.cluster.Host == nil:
		return !x.offload.Moves()
	}
	return o.Offload == "" || x.offload.String() == o.Offload
}

// groups lists the sizes of ZeRO groups; 0 is all replicas.
func (d *declared) groups(cut degrees, zero, chunks int) []int {
	replicas := d.replicas(cut)
	if g := d.opts.ZeROGroup; g > 0 && zero > 0 {
		if g == replicas {
			g = 0
		}
		return []int{g}
	}
	if zero < 1 || chunks > 1 {
		return []int{0}
	}
	largest, whole := 0, false // inside a node, and with no group in two
	for _, g := range divisors(replicas) {
		inside, apart := true, true
		if perNode := d.cluster.DevicesPerNode; !d.cluster.Device.Shared {
			inside = g*cut.cp*cut.tp <= perNode
			apart = perNode%(g*cut.cp*cut.tp) == 0 || replicas*cut.cp*cut.tp <= perNode
		}
		if g > 1 && g < replicas && inside && (apart || !whole) {
			largest, whole = g, apart
		}
	}
	if largest == 0 {
		return []int{0}
	}
	return []int{0, largest}
}

// schedules lists the schedules of an outline.
func (d *declared) schedules(x outline) []partition.Schedule {
	var all []partition.Schedule
	for _, s := range []partition.Schedule{partition.OneFOneB, partition.GPipe, partition.ZeroBubble, partition.Interleaved, partition.EagerOneFOneB, partition.EagerZeroBubble} {
		switch {
		case (s == partition.Interleaved) != (x.chunks > 1):
		case x.chunks > 1, d.opts.Schedule == s:
			all = append(all, s)
		case d.opts.Schedule == "" && (x.pp > 1 || s == partition.OneFOneB):
			all = append(all, s)
		}
	}
	return all
}

// sliceCounts lists the numbers of slices of the loss of an outline, 0 for one: the number that is
// asked for, or 1 to 16.
func (d *declared) sliceCounts(x outline) []int {
	switch {
	case d.opts.LossSlices > 1:
		return []int{d.opts.LossSlices}
	case d.opts.LossSlices == 1 || d.opts.Policy != AutoDist || x.cp > 1:
		return []int{0}
	}
	return append([]int{0}, d.slices...)
}

// pieceCounts lists the numbers of parts of tensor parallelism of an outline, 0 for one: the number
// that is asked for, or 1, 2 and 4 if tensor parallelism is overlapped on devices that can do so.
func (d *declared) pieceCounts(x outline) []int {
	o := d.opts
	switch {
	case x.tp == 1, o.TPPieces == 1:
		return []int{0}
	case o.TPPieces > 1:
		return []int{o.TPPieces}
	case o.OverlapTP != "on" || o.Policy != AutoDist || d.cluster.Device.Shared || !d.inParts(x):
		return []int{0}
	}
	return []int{0, 2, 4}
}

// ofParts reports whether the pieces of tensor parallelism of an outline are parts of sequences: all ranks
// have the same number of sequences, whose parts start at aligned addresses, have a token for each rank, and as
// many for each context-parallel rank.
func (d *declared) ofParts(x outline) bool {
	most := slices.Max(d.pieceCounts(x))
	if d.fixed || most == 0 || d.tokens == 0 || x.batch || d.batch%(x.dp*(d.opts.RuntimeNGPUs/x.plan)) != 0 {
		return false
	}
	part := d.tokens / most
	return d.tokens%most == 0 && part%(32*x.cp) == 0 && part/x.cp >= x.tp && part%max(1, d.opts.LossSlices) == 0
}

// sizes lists the micro-batch sizes of an outline.
func (d *declared) sizes(x outline) []int {
	replicas := d.replicas(x.degrees)
	local := (d.batch + replicas - 1) / replicas
	fewest := d.batch / replicas
	var all []int
	for n := 1; n <= local; n++ {
		power := n&(n-1) == 0
		asked := d.opts.MicroBatch == 0 && (local <= 16 || power || local%n == 0) || n == min(d.opts.MicroBatch, local)
		if asked && (!x.batch || n >= x.tp) && (!x.overlap || x.zero >= 2 || (local+n-1)/n == (fewest+n-1)/n) {
			all = append(all, n)
		}
	}
	return all
}

// recomputations lists what a stage of n blocks may recompute, with some modules replicated or
// none.
func (d *declared) recomputations(n int, replicate string) []recomputation {
	switch d.opts.recompute(replicate) {
	case RecomputeNone:
		return []recomputation{{}}
	case RecomputePointwise:
		return []recomputation{{pointwise: n}}
	case RecomputeSelective:
		return []recomputation{{selective: n}}
	case RecomputeFull:
		return []recomputation{{full: n}}
	}
	var all []recomputation
	for f := 0; f <= n; f++ {
		all = append(all, recomputation{full: f})
		for k := 1; k <= n-f; k++ {
			all = append(all, recomputation{full: f, selective: k}, recomputation{full: f, pointwise: k})
		}
	}
	return all
}

// plans returns how many plans an outline has for one micro-batch size and schedule: all cuts with
// all recomputation. For large spaces the number is approximate.
func (d *declared) plans(x outline) float64 {
	if x.chunks > 1 || d.opts.Policy == Megatron {
		return 1
	}
	// By number of blocks, the ways to cut them into the stages so far.
	ways := make([]float64, d.blocks+1)
	ways[0] = 1
	for range x.pp {
		next := make([]float64, d.blocks+1)
		for before, w := range ways {
			for n := 1; w > 0 && before+n <= d.blocks; n++ {
				choices := 1.0
				if d.opts.recompute(x.replicate) == RecomputeSearched {
					choices = float64((n + 1) * (n + 1))
				}
				next[before+n] += w * choices
			}
		}
		ways = next
	}
	return ways[d.blocks]
}

// cellTable is the cells of an outline with any numbers of slices of the loss and of parts.
type cellTable struct {
	slices    []int
	pieces    []int
	ofParts   bool // pieces are parts of sequences
	sizes     []int
	schedules []partition.Schedule
	taken     []int // by slices, parts, size and schedule: 1 + the index of the region of the cell, 0 for none yet
}

// nowhere marks a cell that is not in the space.
const nowhere = -1

// has reports whether micro-batches of a size can be made in so many parts.
func (g *cellTable) has(pieces, size int) bool {
	return len(g.pieces) == 1 || pieces == 0 || g.ofParts || size > pieces/2
}

// at returns where the region of a cell is noted, nil if the cell is not in the space.
func (g *cellTable) at(c cell) *int {
	if g == nil {
		return nil
	}
	at := 0
	for _, x := range [][2]int{
		{slices.Index(g.slices, c.slices), len(g.slices)}, {slices.Index(g.pieces, c.pieces), len(g.pieces)},
		{slices.Index(g.sizes, c.size), len(g.sizes)}, {slices.Index(g.schedules, c.schedule), len(g.schedules)},
	} {
		if x[0] < 0 {
			return nil
		}
		at = at*x[1] + x[0]
	}
	if g.taken[at] == nowhere {
		return nil
	}
	return &g.taken[at]
}

// tiling is the space with the region of each cell.
type tiling map[outline]*cellTable

// of returns the table that has the cells of an outline.
func (t tiling) of(o outline) *cellTable {
	o.slices, o.pieces = 0, 0
	return t[o]
}

// tile checks that every cell of the space lies in exactly one region, and that regions have no
// others. It returns which region each is in.
func (d *declared) tile(regions []Region) (tiling, error) {
	space := tiling{}
	d.each(func(x outline) {
		g := &cellTable{slices: d.sliceCounts(x), pieces: d.pieceCounts(x), ofParts: d.ofParts(x), sizes: d.sizes(x), schedules: d.schedules(x)}
		for range g.slices {
			for _, pieces := range g.pieces {
				for _, size := range g.sizes {
					taken := 0
					if !g.has(pieces, size) {
						taken = nowhere
					}
					g.taken = append(g.taken, slices.Repeat([]int{taken}, len(g.schedules))...)
				}
			}
		}
		x.slices, x.pieces = 0, 0
		space[x] = g
	})
	for i := range regions {
		r := &regions[i]
		empty := true
		for c := range r.cells() {
			empty = false
			g := space.of(c.outline)
			if g == nil || !slices.Contains(g.slices, c.slices) || !slices.Contains(g.pieces, c.pieces) {
				return nil, refute(r.line, "the space has no %s", c.text())
			}
			if c.pieces > 0 && g.ofParts != r.ofParts {
				return nil, refute(r.line, "has %s=%d, but %s", piecesKey(r.ofParts), c.pieces, map[bool]string{true: "sequences are in parts there", false: "sequences cannot be in parts there"}[g.ofParts])
			}
			at := g.at(c)
			if at == nil {
				return nil, refute(r.line, "the space has no micro-batches of %d under %s with %s", c.size, c.schedule, c.text())
			}
			if *at > 0 {
				return nil, refute(r.line, "micro-batches of %d under %s with %s are in the region of line %d already", c.size, c.schedule, c.text(), regions[*at-1].line)
			}
			*at = i + 1
		}
		if empty {
			return nil, refute(r.line, "has nothing of the space")
		}
	}
	var gap error
	d.each(func(x outline) {
		g := space.of(x)
		if at := slices.Index(g.taken, 0); at >= 0 && gap == nil {
			x.pieces = g.pieces[at/len(g.schedules)/len(g.sizes)%len(g.pieces)]
			x.slices = g.slices[at/len(g.schedules)/len(g.sizes)/len(g.pieces)]
			gap = refute(0, "no region has micro-batches of %d under %s with %s", g.sizes[at/len(g.schedules)%len(g.sizes)], g.schedules[at%len(g.schedules)], x.text())
		}
	})
	return space, gap
}

// text names an outline in messages.
func (o outline) text() string {
	text := fmt.Sprintf("unit %d, dp %d, cp %d, tp %d, pp %d, chunks %d, zero %d", o.plan, o.dp, o.cp, o.tp, o.pp, o.chunks, o.zero)
	if o.group > 0 {
		text += fmt.Sprintf(" in groups of %d", o.group)
	}
	if o.ranks != "" {
		text += ", ranks in order " + o.ranks
	}
	if o.replicate != "" {
		text += ", " + o.replicate + " replicated"
	}
	if o.rows > 0 {
		text += fmt.Sprintf(", %s on a grid of %d rows", o.grid, o.rows)
	}
	if o.waits {
		text += ", stages that wait for what they send"
	}
	if o.slices > 0 {
		text += fmt.Sprintf(", the loss in %d slices", o.slices)
	}
	if o.pieces > 0 {
		text += fmt.Sprintf(", tp in %d pieces", o.pieces)
	}
	return text + fmt.Sprintf(", %s, overlap %s, offload %s", streamText(o.sequence, o.batch), onOff(o.overlap), o.offload)
}

// divisors lists the divisors of n in increasing order.
func divisors(n int) []int {
	var all []int
	for d := 1; d <= n; d++ {
		if n%d == 0 {
			all = append(all, d)
		}
	}
	return all
}
