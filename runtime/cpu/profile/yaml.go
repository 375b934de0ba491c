package profile

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// WriteYAML writes the cluster as a file that planning reads, with how each figure
// came about.
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
	line("  flops: {f32: %s}", number(d.FLOPS["f32"]))
	line("  # bytes/s of the machine, an addition of %d MiB%s", r.Streams[len(r.Streams)-1].Bytes>>20, r.spread("device.memory_bandwidth"))
	line("  memory_bandwidth: %s", number(d.MemoryBandwidth))
	line("  # bytes that stay near the processors, and the rate of an addition there%s", r.spread("device.cache"))
	line("  # and of what a core reads that lies near another")
	line("  cache: {memory: %d, bandwidth: %s, remote: %s}", d.Cache.Memory, number(d.Cache.Bandwidth), number(d.Cache.Remote))
	line("  # seconds an instruction, between and in it%s", r.spread("device.launch_overhead"))
	line("  launch_overhead: %s", number(d.LaunchOverhead))
	line("  # seconds that a core loses when a rank waits and another goes on")
	line("  turn: %s", number(d.Turn))
	line("  # Shares of the peak that instructions of training steps reach: products%s,", r.spread("device.efficiency.matmul"))
	line("  # attention%s, what is between them%s", r.spread("device.efficiency.attention"), r.spread("device.efficiency.vector"))
	e := d.Efficiency
	line("  # and of their rate that cores keep which compute for one rank")
	line("  efficiency: {matmul: %s, matmul_half_flops: %s, attention: %s, attention_half_keys: %s, vector: %s, memory: %s, threads: %s}",
		number(e.Matmul), number(e.MatmulHalf), number(e.Attention), number(e.AttentionHalf), number(e.Vector), number(e.Memory), number(e.Threads))
	line("  # by op, where it was timed")
	line("  kernels:")
	for _, op := range slices.Sorted(maps.Keys(d.Kernels)) {
		line("    %s: %s", op, number(d.Kernels[op]))
	}
	line("# The last rank to come makes a collective for all: bytes/s read and written by all cores, and seconds of a meeting%s", r.spread("intra_node"))
	line("collectives: %s", c.Collectives)
	line("intra_node: {bandwidth: %s, efficiency: 1, latency: %s}", number(c.IntraNode.Bandwidth), number(c.IntraNode.Latency))
	line("# A copy in memory reads and writes: half of memory_bandwidth.")
	line("host: {bandwidth: %s, efficiency: 1, latency: %s}", number(c.Host.Bandwidth), number(c.Host.Latency))
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

// number prints three figures, as 1.23e+10.
func number(x float64) string {
	if x == float64(int64(x)) && x < 1e4 {
		return strconv.FormatInt(int64(x), 10)
	}
	if x >= 1e-3 && x < 1e4 {
		return strconv.FormatFloat(x, 'g', 4, 64)
	}
	return strconv.FormatFloat(x, 'e', -1, 64)
}
