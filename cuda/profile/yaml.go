package profile

import (
	"fmt"
	"io"
	"strings"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/cost/curve"
)

// WriteYAML writes the cluster as a file that the planner reads. Comments in it say where each
// figure comes from, and list all measurements.
func (r *Result) WriteYAML(w io.Writer) error {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	c, d, e := r.Cluster, &r.Cluster.Device, &r.Cluster.Device.Efficiency
	line("# What the GPUs of this machine do, measured by autopar profile --device cuda in %.0f s: %s.", r.Took.Seconds(), strings.Join(r.versions, ", "))
	line("# Shares of a peak are those with which the planner's prices of the kernels of training steps add up to their times;")
	line("# \"off\" is how far each price is from its time, on average.")
	line("name: %s", c.Name)
	line("source: %q", c.Source)
	line("software: %s", c.Software.Name)
	line("device:")
	line("  name: %q", d.Name)
	line("  memory: %d", d.Memory)
	line("  reserve: %d             # taken beside an arena: context, libraries, workspaces", d.Reserve)
	var rates []string
	for _, t := range []ir.DType{ir.F32, ir.BF16, ir.F16} {
		if rate, ok := d.FLOPS[t.String()]; ok {
			rates = append(rates, fmt.Sprintf("%s: %s", t, curve.Number(rate)))
		}
	}
	line("  # FLOP/s: of the fastest type %s, of the others as their products are slower", r.nominal("the nominal rate", "that of the fastest product at least, for want of a nominal rate"))
	line("  flops: {%s}", strings.Join(rates, ", "))
	line("  # bytes/s: %s", r.nominal("nominal", "of the fastest addition below"))
	line("  memory_bandwidth: %s", curve.Number(d.MemoryBandwidth))
	line("  # seconds a kernel that does next to nothing, as part of a graph; launched by itself %s", curve.Number(curve.Round(r.Launch.Alone)))
	line("  launch_overhead: %s", curve.Number(d.LaunchOverhead))
	line("  units: %d                # streaming multiprocessors", d.Units)
	line("  # products off %.0f %%, attention off %.0f %%, memory in other kernels off %.0f %%; vector is not measured, as memory is slower, nor beside, which is that of published runs", 100*r.Off[product], 100*r.Off[attention], 100*r.Off[vector])
	line("  efficiency: {matmul: %s, matmul_half_flops: 0, tile_fill: %s, attention: %s, vector: %s, memory: %s, beside: %s}",
		curve.Number(e.Matmul), curve.Number(e.TileFill), curve.Number(e.Attention), curve.Number(e.Vector), curve.Number(e.Memory), curve.Number(e.Beside))
	line("devices_per_node: %d", c.DevicesPerNode)
	switch {
	case r.NCCL != "":
		line("# NCCL %s over %d GPUs, off %.0f %%", r.NCCL, r.GPUs, 100*r.Off[collective])
	case r.like != nil:
		line("# Not measured, for there is one GPU: those of the built-in cluster %s.", r.like.Name)
	default:
		line("# Not measured, for there is one GPU: the way by the host.")
	}
	network := func(key string, l cost.Link) {
		line("%s: {bandwidth: %s, efficiency: %s, latency: %s}", key, curve.Number(l.Bandwidth), curve.Number(l.Efficiency), curve.Number(l.Latency))
	}
	network("intra_node", c.IntraNode)
	line("# Not measured: %s", r.nominal("that of the built-in cluster", "one card of 100 Gb/s is assumed"))
	network("inter_node", c.InterNode)
	line("# Copies from and to pinned memory")
	network("host", *c.Host)
	r.writeCurves(line)
	_, err := io.WriteString(w, b.String())
	return err
}

// nominal returns the text for a figure of the built-in cluster, or the other one if there is none.
func (r *Result) nominal(known, else_ string) string {
	if r.like != nil {
		return fmt.Sprintf("%s (%s)", known, r.like.Name)
	}
	return else_
}

func (r *Result) writeCurves(line func(format string, args ...any)) {
	line("")
	line("# Products, rows x columns over terms: TFLOP/s, and how far the planner's price is from the time")
	for _, p := range r.Products {
		line("#   %s %d x %d x %d, %s: %.1f, %+.0f %%", p.Type, p.Rows, p.Cols, p.Terms, p.Name, p.TFLOPS, 100*p.Off)
	}
	line("# Attention: the same")
	for _, a := range r.Attention {
		line("#   %s %s: %.1f, %+.0f %%", a.Type, a.Name, a.TFLOPS, 100*a.Off)
	}
	for _, of := range []struct {
		what  string
		rates []Rate
	}{{"Additions by the bytes they touch", r.Streams}, {"Copies to the host", r.ToHost}, {"Copies from the host", r.FromHost}} {
		line("# %s: microseconds, GB/s", of.what)
		for _, p := range of.rates {
			line("#   %d KiB: %.1f, %.1f", p.Bytes>>10, 1e6*p.Seconds, p.gbs())
		}
	}
	if len(r.Collectives) == 0 {
		return
	}
	line("# Collectives over %d GPUs by the bytes of the tensor: microseconds, and GB/s of the tensor", r.GPUs)
	for _, p := range r.Collectives {
		line("#   %s %d KiB: %.1f, %.1f", p.Op, p.Bytes>>10, 1e6*p.Seconds, float64(p.Bytes)/p.Seconds/1e9)
	}
}
