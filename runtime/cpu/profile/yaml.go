package profile

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/autopar/autopar/planner/cost/curve"
)

// WriteYAML writes the cluster as a file that the planner reads. Comments in it say where each
// figure comes from.
func (r *Result) WriteYAML(w io.Writer) error {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	c, d := r.Cluster, &r.Cluster.Device
	line("# What this machine does, measured by autopar profile in %.0f s. Every rank is a goroutine with an equal share of it.", r.Took.Seconds())
	line("# A rate is that of the least of many times; its spread is how far the median lies beyond. What is fitted to the instructions")
	line("# of training steps has as its spread how far they are from it on average.")
	line("name: %s", c.Name)
	line("source: %q", c.Source)
	line("device:")
	line("  name: %q", d.Name)
	line("  shared: true                    # ranks divide the machine")
	line("  cores: %d", d.Cores)
	line("  memory: %d              # bytes installed", d.Memory)
	line("  # FLOP/s of one core: the fastest product of the curve below%s", r.spread("device.flops.f32"))
	line("  flops: {f32: %s}", curve.Number(d.FLOPS["f32"]))
	line("  # bytes/s of the machine, an addition of %d MiB%s", r.Streams[len(r.Streams)-1].Bytes>>20, r.spread("device.memory_bandwidth"))
	line("  memory_bandwidth: %s", curve.Number(d.MemoryBandwidth))
	line("  # bytes that stay near the processors, and the rate of an addition there%s", r.spread("device.cache"))
	line("  # and of what a core reads that lies near another")
	line("  cache: {memory: %d, bandwidth: %s, remote: %s}", d.Cache.Memory, curve.Number(d.Cache.Bandwidth), curve.Number(d.Cache.Remote))
	line("  # seconds an instruction, between and in it%s", r.spread("device.launch_overhead"))
	line("  launch_overhead: %s", curve.Number(d.LaunchOverhead))
	line("  # seconds that a core loses when a rank waits and another goes on")
	line("  turn: %s", curve.Number(d.Turn))
	line("  # seconds that a kernel loses which several cores divide for one rank")
	line("  fork: %s", curve.Number(d.Fork))
	line("  # seconds in which a core packs a number of a matrix for a product")
	line("  pack: %s", curve.Number(d.Pack))
	line("  # Shares of the peak that instructions of training steps reach: products%s,", r.spread("device.efficiency.matmul"))
	line("  # attention%s, what is between them%s", r.spread("device.efficiency.attention"), r.spread("device.efficiency.vector"))
	e := d.Efficiency
	line("  # and of their rate that cores keep, all in all, which compute for one rank while others wait")
	line("  efficiency: {matmul: %s, matmul_half_flops: %s, attention: %s, attention_half_keys: %s, attention_grad_half_keys: %s, vector: %s, memory: %s, threads: %s}",
		curve.Number(e.Matmul), curve.Number(e.MatmulHalf), curve.Number(e.Attention), curve.Number(e.AttentionHalf), curve.Number(e.AttentionGradHalf), curve.Number(e.Vector), curve.Number(e.Memory), curve.Number(e.Threads))
	line("  # by op, where it was timed; of one that computes nothing, of the rate of memory or cache")
	line("  kernels:")
	for _, op := range slices.Sorted(maps.Keys(d.Kernels)) {
		line("    %s: %s", op, curve.Number(d.Kernels[op]))
	}
	line("# The last rank to come makes a collective for all: bytes/s read and written by all cores, and seconds of a meeting%s", r.spread("intra_node"))
	line("collectives: %s", c.Collectives)
	line("intra_node: {bandwidth: %s, efficiency: 1, latency: %s}", curve.Number(c.IntraNode.Bandwidth), curve.Number(c.IntraNode.Latency))
	line("# A copy in memory reads and writes: half of memory_bandwidth.")
	line("host: {bandwidth: %s, efficiency: 1, latency: %s}", curve.Number(c.Host.Bandwidth), curve.Number(c.Host.Latency))
	line("")
	line("# The curve of products C[M,N] over K, GFLOP/s and spread:")
	for _, p := range r.Products {
		line("#   %d x %d x %d, %d threads: %.1f, %.0f %%", p.M, p.N, p.K, p.Threads, p.GFLOPS, 100*p.Spread)
	}
	line("# The rate of additions by the bytes they touch, GB/s and spread:")
	for _, s := range r.Streams {
		line("#   %d KiB: %.1f, %.0f %%", s.Bytes>>10, s.GBs, 100*s.Spread)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// spread says how well a figure is known.
func (r *Result) spread(key string) string {
	for _, f := range r.Figures {
		if f.Key == key {
			return fmt.Sprintf(" (spread %.0f %%, %d samples)", 100*f.Spread, f.Samples)
		}
	}
	return ""
}
