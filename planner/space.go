package planner

import (
	"cmp"
	"iter"
	"slices"

	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// The search space above micro-batches and cuts, as the search lists it. An [outline] is a plan
// without micro-batch size, schedule, cut and recomputation: the degrees of the unit and everything
// that is sharded. [searcher.tractsOf] lists outlines in the order of these loops. declared.go
// defines the same space a second time, independently, for the certificate.

// degrees are the sizes of a plan: units of plan devices, each cut into dp x cp x tp x pp. order is
// that of the cluster's pools: see [cost.Cluster.Orders].
type degrees struct{ plan, dp, cp, tp, pp, order int }

// sharding is what is sharded beside the model: what data-parallel ranks would otherwise all hold,
// and the residual stream of tensor-parallel ranks. Its split says how tensor parallelism cuts
// weights.
type sharding struct {
	zero     int
	group    int // over how many data-parallel ranks ZeRO shards, 0 for all; beside these over all context-parallel ones
	sequence bool
	overlap  bool // what sums gradients and gathers parameters runs beside the computation
	offload  partition.Offload
	slices   int // of the loss, 0 for one: see [partition.Plan.LossSlices]
	pieces   int // of tensor parallelism, 0 for one: see [partition.Plan.TPPieces]
	split
}

// outline is a plan without micro-batch size, schedule and cut.
type outline struct {
	degrees
	sharding
	chunks int    // stages per rank; 0 is 1
	ranks  string // as in [partition.Plan.RankOrder]
	waits  bool   // positions wait for what they send: see posted.go. False where there is only one
}

func (o outline) stages() int { return o.pp * max(o.chunks, 1) }

// among reports whether the options and the sharding allow the overlap of an outline.
func (o outline) among(opts Options) bool {
	if !o.overlap {
		return opts.Overlap != "on"
	}
	return opts.Overlap != "off" && o.replicas(opts)*o.cp > 1 && !o.offload.Moves()
}

// replicas is how many ranks train on sequences of their own.
func (o outline) replicas(opts Options) int {
	n := o.dp * (opts.RuntimeNGPUs / o.plan)
	if o.batch {
		n *= o.tp
	}
	return n
}

// sharers is over how many ranks ZeRO shards a weight that all tensor-parallel ranks hold, given over
// how many it shards others. Tensor-parallel ranks are among them if each has its own part of the
// residual stream.
func (o outline) sharers(replicas int) int {
	if (o.sequence || o.batch) && o.replicate != "" && o.rows == 0 {
		return replicas * o.tp
	}
	return replicas
}

// inStep reports whether all data-parallel ranks run equally many micro-batches of a size. With
// overlap below ZeRO stage 2 the search requires it: ranks that run fewer would hold up the
// communication streams of others, which the times of first ranks do not show. From stage 2 on they
// run equally many anyway.
func (o outline) inStep(size, replicas, batch int) bool {
	most, least := (batch+replicas-1)/replicas, batch/replicas
	return !o.overlap || o.zero >= 2 || (most+size-1)/size == (least+size-1)/size
}

// outlines lists the ways to shard beside some degrees, for every number of chunks per rank:
// without interleaving first, and with overlap before without. Ranks are in the usual order or that
// of the options. Modules are replicated as the options say, or as batched says if tensor-parallel
// ranks share the batch; other replication and grids come from [searcher.splits].
func outlines(o Options, d degrees, counts []int, batched []split, c *cost.Cluster) iter.Seq[outline] {
	return func(yield func(outline) bool) {
		for _, chunks := range counts {
			for _, stream := range streams(o, d, batched) {
				of := outline{degrees: d, sharding: stream, chunks: chunks, ranks: o.ranks(d), waits: d.pp > 1 && o.OverlapP2P == "off"}
				of.slices = o.slices()
				for _, of.zero = range of.zeros(o) {
					for _, of.group = range zeroGroups(o, d, of.zero, d.dp*(o.RuntimeNGPUs/d.plan), chunks, c) {
						for _, of.offload = range offloads(o, c) {
							for _, of.overlap = range []bool{true, false} {
								if of.among(o) && !yield(of) {
									return
								}
							}
						}
					}
				}
			}
		}
	}
}

// streams lists how tensor-parallel ranks may share the residual stream: all hold it, or each holds
// a part of every sequence, or each holds some of the sequences, with a way to cut weights.
func streams(o Options, d degrees, batched []split) []sharding {
	var all []sharding
	for _, sequence := range []bool{false, true} {
		asked := o.SequenceParallel == "" || sequence == (o.SequenceParallel == "on")
		if asked && o.BatchParallel != "on" && (d.tp > 1 || !sequence && o.replicate() == "") {
			all = append(all, sharding{sequence: sequence, split: split{replicate: o.replicate()}})
		}
	}
	for _, x := range batched {
		all = append(all, sharding{split: x})
	}
	return all
}

// zeros lists the ZeRO stages that an outline may have.
func (o outline) zeros(opts Options) []int {
	all := []int{0, 1, 2, 3}
	alone := o.replicas(opts)*o.cp == 1
	switch {
	case opts.ZeRO != nil && alone && *opts.ZeRO > 0:
		return nil
	case opts.ZeRO != nil:
		return []int{*opts.ZeRO}
	case alone:
		return all[:1]
	case opts.ZeROGroup > 0:
		return all[1:]
	}
	return all
}

// replicate is the modules that the options replicate.
func (o Options) replicate() string {
	if o.Replicate == "none" {
		return ""
	}
	return o.Replicate
}

// offloads lists what may live in host memory, nothing first.
func offloads(o Options, c *cost.Cluster) []partition.Offload {
	switch {
	case o.Offload == "none" || o.Offload == "" && c.Host == nil:
		return []partition.Offload{partition.OffloadNone}
	case o.Offload == "":
		return []partition.Offload{partition.OffloadNone, partition.OffloadOptimizer, partition.OffloadParams}
	}
	return []partition.Offload{partition.Offload(o.Offload)}
}

// zeroGroups lists the sizes of the groups over which ZeRO shards, 0 for all replicas: all, and the
// largest divisor that lies inside a node, whose rings have fewer hops. If there is one of which nodes
// consist, it is the largest of those: no group is then in two nodes. With interleaving, groups
// are not searched, only taken from the options.
func zeroGroups(o Options, d degrees, zero, replicas, chunks int, c *cost.Cluster) []int {
	if o.ZeROGroup > 0 && zero > 0 {
		return []int{o.ZeROGroup % replicas}
	}
	if chunks > 1 || zero < 1 {
		return []int{0}
	}
	node, ranks := c.DevicesPerNode, d.cp*d.tp // of a replica's stage
	if c.Device.Shared {
		node = replicas * ranks
	}
	most := 0
	for g := min(replicas-1, node/ranks); g >= 2; g-- {
		switch {
		case replicas%g != 0:
		case replicas*ranks <= node || node%(g*ranks) == 0:
			return []int{0, g}
		default:
			most = max(most, g)
		}
	}
	if most > 0 {
		return []int{0, most}
	}
	return []int{0}
}

// allDegrees lists the ways to cut units that the options leave, for a model with so many blocks, a
// global batch and its sequences.
func allDegrees(o Options, blocks, batch int, x contexts, c *cost.Cluster) []degrees {
	var all []degrees
	for plan := 1; plan <= o.RuntimeNGPUs; plan++ {
		if o.RuntimeNGPUs%plan != 0 || o.PlanNGPUs > 0 && plan != o.PlanNGPUs {
			continue
		}
		for _, cp := range x.degrees(o, plan) {
			for _, d := range degreesOf(o, blocks, batch, c, plan, cp) {
				if !x.worthwhile(o, d, batch) {
					continue
				}
				for d.order = range c.Orders() {
					all = append(all, d)
				}
			}
		}
	}
	return all
}

// degreesOf lists the ways to cut units of plan devices, cp of which share a sequence.
func degreesOf(o Options, blocks, batch int, c *cost.Cluster, plan, cp int) []degrees {
	var all []degrees
	rest := plan / cp
	for tp := 1; tp <= rest; tp++ {
		if rest%tp != 0 || o.TP > 0 && tp != o.TP {
			continue
		}
		if o.Policy == Megatron && !c.Device.Shared && (tp > c.DevicesPerNode || c.DevicesPerNode%tp != 0) {
			continue
		}
		for pp := 1; pp <= min(rest/tp, max(blocks, 1)); pp++ {
			dp := rest / tp / pp
			if dp*tp*pp != rest || o.PP > 0 && pp != o.PP || o.DP > 0 && dp != o.DP {
				continue
			}
			if o.Policy == Megatron && blocks%pp != 0 {
				continue
			}
			replicas := dp * (o.RuntimeNGPUs / plan)
			if g := o.ZeROGroup; g > 0 && (replicas%g != 0 || replicas < 2) {
				continue
			}
			if replicas <= batch {
				all = append(all, degrees{plan: plan, dp: dp, cp: cp, tp: tp, pp: pp})
			}
		}
	}
	return all
}

// microBatches lists the sizes that the search tries for a rank with so many local sequences per
// step: all sizes up to 16 sequences, else the powers of two and the divisors.
func microBatches(local int) []int {
	var sizes []int
	for b := 1; b <= local; b++ {
		if local <= 16 || local%b == 0 || b&(b-1) == 0 {
			sizes = append(sizes, b)
		}
	}
	return sizes
}

// schedules lists the schedules that make a difference. With one stage all take the time of 1f1b,
// which stands for them. (A zero-bubble schedule may still need less memory there, as values that
// it keeps for gradients of weights may pack better in a slot than among temporary values. For that
// one has to ask.)
func schedules(o Options, pp, chunks int) []partition.Schedule {
	switch {
	case chunks > 1:
		return []partition.Schedule{partition.Interleaved}
	case o.Schedule != "":
		return []partition.Schedule{o.Schedule}
	case pp == 1:
		return []partition.Schedule{partition.OneFOneB}
	}
	return []partition.Schedule{partition.OneFOneB, partition.GPipe, partition.ZeroBubble, partition.EagerOneFOneB, partition.EagerZeroBubble}
}

// comparePlans orders plans of equal cost. In this order of importance it prefers: ranks in the
// usual order; smaller units; less context parallelism, less tensor parallelism, fewer rows of it;
// fewer stages; less ZeRO, smaller groups, less offload; fewer slices of the loss and fewer parts
// of products; no sequence and no batch parallelism; fewer replicated modules and fewer on a grid;
// no overlap, but stages that do not wait for their sends; pools as they stand in the cluster; larger micro-batches; no eager schedule; 1f1b, then gpipe; fewer
// chunks; then the cut.
//
// It is 0 only for equal plans of one search, in which placements follow from degrees and split.
func comparePlans(a, b *partition.Plan) int {
	return cmp.Or(
		cmp.Compare(a.RankOrder, b.RankOrder),
		cmp.Compare(a.PlanNGPUs, b.PlanNGPUs),
		cmp.Compare(a.ContextParallel(), b.ContextParallel()),
		cmp.Compare(a.TP, b.TP),
		cmp.Compare(a.Rows(), b.Rows()),
		cmp.Compare(a.PP(), b.PP()),
		cmp.Compare(a.ZeRO, b.ZeRO),
		cmp.Compare(a.ZeROGroup, b.ZeROGroup),
		cmp.Compare(a.Offload, b.Offload),
		cmp.Compare(a.LossSlices, b.LossSlices),
		cmp.Compare(a.TPPieces, b.TPPieces),
		compareBools(a.SequenceParallel, b.SequenceParallel),
		compareBools(a.BatchParallel, b.BatchParallel),
		slices.Compare(a.Replicated(), b.Replicated()),
		slices.Compare(a.OnGrid(), b.OnGrid()),
		compareBools(a.Overlap, b.Overlap),
		compareBools(b.OverlapP2P, a.OverlapP2P),
		slices.Compare(a.PoolOrder, b.PoolOrder),
		cmp.Compare(b.MicroBatch, a.MicroBatch),
		compareBools(a.Schedule.Eager(), b.Schedule.Eager()),
		cmp.Compare(a.Schedule, b.Schedule),
		cmp.Compare(a.Chunks(), b.Chunks()),
		slices.CompareFunc(a.Stages, b.Stages, func(x, y partition.Stage) int {
			return cmp.Or(cmp.Compare(x.Last, y.Last), cmp.Compare(x.Recompute, y.Recompute), cmp.Compare(x.Selective, y.Selective), cmp.Compare(x.Pointwise, y.Pointwise))
		}),
	)
}

// compareBools orders false before true.
func compareBools(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// sizes lists the micro-batch sizes that an outline may have.
func (s *searcher) sizes(o outline) []int {
	replicas := s.replicas(o)
	local := (s.batch + replicas - 1) / replicas
	sizes := microBatches(local)
	if s.opts.MicroBatch > 0 {
		sizes = []int{min(s.opts.MicroBatch, local)}
	}
	return slices.DeleteFunc(sizes, func(b int) bool { return !o.inStep(b, replicas, s.batch) || o.batch && b < o.tp })
}
