package planner

import (
	"cmp"
	"iter"
	"slices"

	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// degrees are the sizes of a plan: a unit of plan devices cut into dp x cp x tp x pp.
// order is that of the pools of the cluster: see [cost.Cluster.Orders].
type degrees struct{ plan, dp, cp, tp, pp, order int }

// sharding is what is cut beside the model: what data-parallel ranks would all
// hold, and the residual stream of tensor-parallel ones.
type sharding struct {
	zero     int
	group    int // data-parallel ranks that ZeRO shards over, 0 for all
	sequence bool
	overlap  bool // communication beside the kernels
	offload  partition.Offload
	split    // of tensor parallelism
}

// outline is a plan but for micro-batches, schedule and cut.
type outline struct {
	degrees
	sharding
	chunks int    // stages per rank; 0 is 1
	ranks  string // as in [partition.Plan.RankOrder]
}

func (o outline) stages() int { return o.pp * max(o.chunks, 1) }

// among reports whether the options leave an outline as far as overlap goes.
func (o outline) among(opts Options) bool {
	if !o.overlap {
		return opts.Overlap != "on"
	}
	return opts.Overlap != "off" && o.overlaps(opts) && !o.offload.Moves()
}

// overlaps reports whether with the degrees there is anything to overlap of which
// the search knows the time: what context parallelism gathers between the kernels
// is not in [flow] yet.
func (d degrees) overlaps(o Options) bool { return d.cp == 1 && d.dp*(o.RuntimeNGPUs/d.plan) > 1 }

// inStep reports whether the data-parallel ranks of an outline run as many
// micro-batches of a size each, which from ZeRO stage 2 on they do anyway. With overlap
// those that run fewer hold up the streams of others, which the times of first ranks do
// not show.
func (o outline) inStep(size, replicas, batch int) bool {
	most, least := (batch+replicas-1)/replicas, batch/replicas
	return !o.overlap || o.zero >= 2 || (most+size-1)/size == (least+size-1)/size
}

// outlines lists the ways to shard beside some degrees, with every number of chunks per rank,
// in the usual order of ranks or that of the options: without interleaving first, and with
// overlap before without. Modules are replicated as the options say: for others, and grids, see
// [searcher.splits].
func outlines(o Options, d degrees, counts []int, c *cost.Cluster) iter.Seq[outline] {
	stages := []int{0, 1, 2, 3}
	replicas := d.dp * (o.RuntimeNGPUs / d.plan)
	switch {
	case o.ZeRO != nil:
		stages = []int{*o.ZeRO}
	case replicas == 1:
		stages = stages[:1]
	case o.ZeROGroup > 0:
		stages = stages[1:]
	}
	sequences := []bool{false, true}
	switch {
	case o.replicate() != "" && d.tp == 1:
		sequences = nil
	case o.SequenceParallel == "off" || o.SequenceParallel == "" && d.tp == 1:
		sequences = sequences[:1]
	case o.SequenceParallel == "on":
		sequences = sequences[1:]
	}
	return func(yield func(outline) bool) {
		for _, chunks := range counts {
			for _, sequence := range sequences {
				for _, zero := range stages {
					for _, group := range zeroGroups(o, d, zero, replicas, chunks, c) {
						for _, offload := range offloads(o, c) {
							for _, overlap := range []bool{true, false} {
								x := outline{d, sharding{zero, group, sequence, overlap, offload, split{replicate: o.replicate()}}, chunks, o.ranks(d)}
								if x.among(o) && !yield(x) {
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

// replicate is what the options replicate of modules.
func (o Options) replicate() string {
	if o.Replicate == "none" {
		return ""
	}
	return o.Replicate
}

// offloads lists what may live in host memory: nothing first.
func offloads(o Options, c *cost.Cluster) []partition.Offload {
	switch {
	case o.Offload == "none" || o.Offload == "" && c.Host == nil:
		return []partition.Offload{partition.OffloadNone}
	case o.Offload == "":
		return []partition.Offload{partition.OffloadNone, partition.OffloadOptimizer, partition.OffloadParams}
	}
	return []partition.Offload{partition.Offload(o.Offload)}
}

// zeroGroups lists the sizes of the groups that ZeRO shards over, 0 for all
// replicas: all, and the largest part of them inside a node, whose rings have fewer hops.
// Beside interleaving groups are not searched, only taken from the options.
func zeroGroups(o Options, d degrees, zero, replicas, chunks int, c *cost.Cluster) []int {
	if o.ZeROGroup > 0 && zero > 0 {
		return []int{o.ZeROGroup % replicas}
	}
	if chunks > 1 {
		return []int{0}
	}
	within := replicas - 1
	if !c.Device.Shared {
		within = min(within, c.DevicesPerNode/(d.cp*d.tp))
	}
	for g := within; g >= 2 && zero >= 1; g-- {
		if replicas%g == 0 {
			return []int{0, g}
		}
	}
	return []int{0}
}

// allDegrees lists the ways to cut units that the options leave, for a model of
// so many blocks, a global batch and sequences.
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

// degreesOf lists the ways to cut units of plan devices of which cp share a
// sequence.
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
			if o.ZeRO != nil && *o.ZeRO > 0 && dp*(o.RuntimeNGPUs/plan) == 1 || o.SequenceParallel == "on" && tp == 1 {
				continue
			}
			d := degrees{plan: plan, dp: dp, cp: cp, tp: tp, pp: pp}
			if o.Overlap == "on" && !d.overlaps(o) {
				continue
			}
			if g := o.ZeROGroup; g > 0 && (dp*(o.RuntimeNGPUs/plan)%g != 0 || dp*(o.RuntimeNGPUs/plan) < 2) {
				continue
			}
			if dp*(o.RuntimeNGPUs/plan) <= batch {
				all = append(all, d)
			}
		}
	}
	return all
}

// microBatches lists the sizes that the search tries for a rank that has local
// sequences per step: all of them up to 16, beyond that the powers of two and the
// divisors.
func microBatches(local int) []int {
	var sizes []int
	for b := 1; b <= local; b++ {
		if local <= 16 || local%b == 0 || b&(b-1) == 0 {
			sizes = append(sizes, b)
		}
	}
	return sizes
}

// schedules lists the orders that make a difference: with one stage all take the
// time of 1f1b, which stands for them. (What a zero-bubble schedule keeps apart may
// lie in a slot better than it did among temporary values; for that one has to ask.)
func schedules(o Options, pp, chunks int) []partition.Schedule {
	switch {
	case chunks > 1:
		return []partition.Schedule{partition.Interleaved}
	case o.Schedule != "":
		return []partition.Schedule{o.Schedule}
	case pp == 1:
		return []partition.Schedule{partition.OneFOneB}
	}
	return []partition.Schedule{partition.OneFOneB, partition.GPipe, partition.ZeroBubble}
}

// comparePlans orders plans that cost the same: ranks in the usual order, smaller units, less
// context parallelism, less tensor parallelism, fewer rows of it, fewer stages, less sharding, nothing replicated, few modules on a grid, no
// overlap, pools as they stand in the cluster, larger micro-batches, 1f1b, then gpipe, fewer chunks,
// then the cut. It is 0 for equal plans of one search only: placements follow from the degrees
// and what is replicated.
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
		compareBools(a.SequenceParallel, b.SequenceParallel),
		slices.Compare(a.Replicated(), b.Replicated()),
		slices.Compare(a.OnGrid(), b.OnGrid()),
		compareBools(a.Overlap, b.Overlap),
		slices.Compare(a.PoolOrder, b.PoolOrder),
		cmp.Compare(b.MicroBatch, a.MicroBatch),
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
