package measured

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/autopar/autopar/planner/cost"
)

// consistent refuses a row whose cells contradict each other, and an unknown GPU. The error names the column that is most
// likely wrong. consistent also sets the row's own machine, if its GPU is that of one of the caller's clusters.
func (p *parser) consistent(r *Row) {
	if p.err != nil {
		return
	}
	refuse := func(column, format string, args ...any) { p.refuse(column, fmt.Sprintf(format, args...)) }
	if k := slices.IndexFunc(p.own, func(c *cost.Cluster) bool { return c.Device.Name == r.GPU }); k >= 0 {
		r.machine = p.own[k]
	} else if _, known := clusters()[r.GPU]; !known {
		names := slices.Sorted(maps.Keys(clusters()))
		refuse("gpu", "is %q, which is unknown; did you mean %s? There are %s", r.GPU, cost.NearestDevice(r.GPU, names), strings.Join(names, ", "))
	}
	if product := r.TP * r.PP * r.CP * r.DP; product != r.GPUs {
		refuse("n_gpus", "is %d, but tp %d x pp %d x cp %d x dp %d is %d", r.GPUs, r.TP, r.PP, r.CP, r.DP, product)
	}
	if step := r.MicroBatch * r.DP; step > r.GlobalBatch {
		refuse("micro_batch", "is %d, but with dp %d that is %d sequences at a time, and global_batch is %d", r.MicroBatch, r.DP, step, r.GlobalBatch)
	}
	if r.Hidden%r.Heads != 0 {
		refuse("n_heads", "is %d, which does not divide hidden_size %d", r.Heads, r.Hidden)
	}
	if r.KVHeads > r.Heads || r.Heads%r.KVHeads != 0 {
		refuse("n_kv_heads", "is %d, which does not divide n_heads %d", r.KVHeads, r.Heads)
	}
	if r.ZeRO > 3 {
		refuse("zero_stage", "is %d, must be 0 to 3", r.ZeRO)
	}
	if r.ZeROGroup > r.GPUs {
		refuse("zero_shard_degree", "is %d, but n_gpus is %d", r.ZeROGroup, r.GPUs)
	}
	if r.VirtualStages > 1 && r.PP == 1 {
		refuse("vpp", "is %d, but pp is 1: only the ranks of a pipeline have several stages", r.VirtualStages)
	}
	if r.ZeROGroup > 0 && r.GPUs%r.ZeROGroup != 0 {
		refuse("zero_shard_degree", "is %d, which does not divide n_gpus %d", r.ZeROGroup, r.GPUs)
	}
	if r.Schedule == "none" && r.PP > 1 {
		refuse("schedule", "is none, but pp is %d", r.PP)
	}
	if r.Schedule == "interleaved_1f1b" && r.VirtualStages == 1 || r.Schedule == "1f1b" && r.VirtualStages > 1 {
		refuse("schedule", "is %s, but vpp is %d", r.Schedule, r.VirtualStages)
	}
	if r.GPUs > r.GPUsPerNode && r.GPUs%r.GPUsPerNode != 0 {
		refuse("gpus_per_node", "is %d, which does not divide n_gpus %d", r.GPUsPerNode, r.GPUs)
	}
	if r.Fits != nil && !*r.Fits && r.StepSeconds > 0 {
		refuse("fits", "is 0, but step_time_s is %v: what was timed ran", r.StepSeconds)
	}
	// Prices are picoseconds in 64 bits, which end at 106 days. The limit is an hour of the fastest GPU, and days of the slowest.
	if flops := r.flops() / float64(r.GPUs); flops > 3600*1e15 {
		refuse("global_batch", "is %d sequences, in a step %.1e FLOPs of a GPU: beyond what can be priced", r.GlobalBatch, flops)
	}
	if p.err != nil {
		return
	}
	const day = 24 * 3600
	if c, err := r.cluster(); err == nil && r.slowest(c) > day {
		refuse("global_batch", "is %d sequences, in a step roughly %.1e s on cluster %s with its links: beyond what can be priced", r.GlobalBatch, r.slowest(c), c.Name)
	}
}

// slowest is roughly how many seconds a step takes at most, without recomputation: what GPUs compute, and what they exchange if
// all of it goes over the slowest link.
func (r *Row) slowest(c *cost.Cluster) float64 {
	peak := slices.Max(slices.Collect(maps.Values(c.Device.FLOPS)))
	link := c.IntraNode.Bandwidth * c.IntraNode.Efficiency
	if r.GPUs > r.GPUsPerNode {
		link = min(link, c.InterNode.Bandwidth*c.InterNode.Efficiency)
	}
	tokens, steps := float64(r.GlobalBatch)/float64(r.DP)*float64(r.SeqLen), 1.0
	if r.ZeRO == 3 { // which gathers weights for every micro-batch
		steps = float64(r.GlobalBatch) / float64(r.DP*max(1, r.MicroBatch))
	}
	exchanged := 12 * steps * r.weights()
	if r.TP*r.CP > 1 {
		exchanged += 16 * tokens * float64(r.Layers) * float64(r.Hidden)
	}
	if r.PP > 1 {
		exchanged += 4 * tokens * float64(r.Hidden) * float64(r.VirtualStages)
	}
	if r.GPUs == 1 {
		exchanged = 0
	}
	return r.flops()/float64(r.GPUs)/(peak*c.Device.Efficiency.Matmul) + exchanged/link
}

// flops is roughly the number of floating-point operations of a step, without recomputation.
func (r *Row) flops() float64 {
	tokens := float64(r.SeqLen)
	return 6 * float64(r.GlobalBatch) * tokens * (r.weights() + float64(r.Layers)*float64(r.Hidden)*tokens)
}

// weights is roughly the number of weights.
func (r *Row) weights() float64 {
	layers, hidden := float64(r.Layers), float64(r.Hidden)
	return layers*hidden*(4*hidden+3*float64(r.FFN)) + hidden*float64(r.Vocab)
}
