// Package cost says how long an instruction takes on a cluster: a description of
// the hardware as YAML, and pure functions from shapes to integer picoseconds.
//
// Integers make sums exact and independent of their order, so that two plans tie
// or do not tie on every machine alike. The formulas stand beside the functions:
// collectives after Thakur et al. 2005 ([Model.Collective]), kernels by the roofline with
// an efficiency of products that saturates ([NewProgram] prices instructions).
//
// Begin reading at time.go; what a cluster file may say is in cluster.go.
package cost

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/autopar/autopar/config"
)

// Cluster is a set of equal devices in equal nodes, or pools of such.
type Cluster struct {
	Name   string `json:"name"`
	Source string `json:"source"` // where the figures come from
	// Uncertainty is the relative standard deviation of figures by key, where it is
	// not the default of their kind: see [Cluster.Constants].
	Uncertainty map[string]float64 `json:"uncertainty,omitempty"`
	Device      Device             `json:"device"`
	// DevicesPerNode is how many devices reach each other over IntraNode. It is
	// meaningless on a shared machine, which is one node.
	DevicesPerNode int  `json:"devices_per_node"`
	IntraNode      Link `json:"intra_node"`
	InterNode      Link `json:"inter_node"`
	// Collectives names the algorithm of collectives: [OnePass] on a shared machine, or
	// nothing for rings and trees over links.
	Collectives string `json:"collectives,omitempty"`
	// NICsPerNode are the network cards that the devices of a node share, 0 for one
	// each. InterNode states what a device gets of them when all send.
	NICsPerNode int `json:"nics_per_node,omitempty"`
	// Oversubscription is how many times more the nodes of a rack can send than its
	// uplinks carry, 0 or 1 where racks do not matter.
	Oversubscription float64 `json:"oversubscription,omitempty"`
	NodesPerRack     int     `json:"nodes_per_rack,omitempty"`
	// Levels, where there are some, are the whole network, innermost first; what is
	// said above of nodes then repeats two of them.
	Levels []Level `json:"levels,omitempty"`
	// Pools, where there are some, are all the devices, of several kinds; what is said
	// above of a device, its node and its links is then the least of theirs.
	Pools []Pool `json:"pools,omitempty"`
	// Between is what one device sends over to another pool, when all do.
	Between Link `json:"between,omitzero"`
	// Host is what one device reaches the memory of its host over, in either
	// direction; nil where that is not known, and nothing can be offloaded.
	Host *Link `json:"host,omitempty"`
	// Software is what runs on the devices; the zero value is this project's own.
	Software Software `json:"software,omitzero"`
}

// Device is one accelerator, or with Shared one machine.
type Device struct {
	Name string `json:"name"`
	// Shared says that all ranks are on this one device and divide it: its memory,
	// its arithmetic, its memory bandwidth and the bandwidth of its copies. A rank
	// gets 1/ranks of each while the others are busy, and what they leave while they
	// wait: see [Model.Busy].
	Shared bool `json:"shared"`
	// Cores multiplies FLOPS, which is per core. 1 for accelerators.
	Cores  int   `json:"cores"`
	Memory int64 `json:"memory"` // usable bytes
	// Reserve is bytes of Memory that plans leave free on every device: what its
	// runtime holds beside the arena, such as a CUDA context, buffers of communicators
	// and workspaces of libraries. 0 where the arena is all there is, as on a CPU.
	Reserve int64 `json:"reserve,omitempty"`
	// FLOPS is the peak rate of dense products by element type: f32, f16, bf16, and
	// for later tf32.
	FLOPS           map[string]float64 `json:"flops"`
	MemoryBandwidth float64            `json:"memory_bandwidth"` // bytes/s
	Cache           *Cache             `json:"cache,omitempty"`  // nil where it does not show
	LaunchOverhead  float64            `json:"launch_overhead"`  // seconds per kernel
	// Turn, on a shared machine, is the seconds that a core loses when the rank it works
	// for waits for one that has none, and leaves it to that: until that has woken, and
	// has near again what it needs.
	Turn float64 `json:"turn,omitempty"`
	// Fork, on a shared machine, is the seconds that a kernel loses which several cores
	// compute for one rank: until all have begun, and the last has ended. What takes less
	// on one of them that one computes alone.
	Fork float64 `json:"fork,omitempty"`
	// Pack, on a shared machine, is the seconds in which a core copies a number of one of
	// the matrices of a product into the order in which it multiplies. See [Work.Packed]
	// for how many numbers that are where cores divide a product.
	Pack float64 `json:"pack,omitempty"`
	// Units is how many parts of the device compute tiles of a product side by side,
	// such as streaming multiprocessors; 0 where it does not show.
	Units      int        `json:"units,omitempty"`
	Efficiency Efficiency `json:"efficiency"`
	// Kernels is the share of the peak rate that kernels of an op reach, in (0,1], by its
	// name, where it is known better than what Efficiency says of all attention and of
	// all other kernels but products.
	Kernels map[string]float64 `json:"kernels,omitempty"`
}

// Cache is the memory near the processors. What a kernel of a training step reads,
// the one before it has most often written: where that fits, its traffic goes
// there.
type Cache struct {
	Memory    int64   `json:"memory"`    // bytes of all cores
	Bandwidth float64 `json:"bandwidth"` // bytes/s that vector kernels reach on all cores
	// Remote is the bytes/s at which a core reads what lies near another one, or 0 where
	// that does not show. A rank that computes with several has its operands near all.
	Remote float64 `json:"remote,omitempty"`
}

// Efficiency is the share of a peak that kernels reach, in (0,1].
type Efficiency struct {
	// A product of F operations runs at Matmul · F/(F+MatmulHalf) of the peak
	// rate: at half of what large ones reach when F = MatmulHalf. It is stated for
	// the fastest of the element types, and less for others as their rate is.
	Matmul     float64 `json:"matmul"`
	MatmulHalf float64 `json:"matmul_half_flops"`
	// TileFill is how many terms of its sums a unit could add in the time in which it
	// starts and ends a tile.
	TileFill  float64 `json:"tile_fill,omitempty"`
	MatmulF8  float64 `json:"matmul_f8,omitempty"` // as Matmul, of 8-bit operands
	Attention float64 `json:"attention"`           // of the peak rate, for fused attention
	Vector    float64 `json:"vector"`              // of the peak rate, for everything else
	// AttentionHalf is the number of keys at which fused attention on a shared machine
	// reaches half of that rate, for blocks on the diagonal that are half empty, and
	// AttentionGradHalf that of its gradient; 0 is that of attention.
	AttentionHalf     float64 `json:"attention_half_keys,omitempty"`
	AttentionGradHalf float64 `json:"attention_grad_half_keys,omitempty"`
	// Threads, on a shared machine, is the share of their rate that cores keep, all in
	// all, when those of ranks that wait compute for another; 0 is all of it.
	Threads float64 `json:"threads,omitempty"`
	Memory  float64 `json:"memory"` // of the memory bandwidth
}

// Link is what one device sends over, in one direction.
type Link struct {
	Bandwidth  float64 `json:"bandwidth"`  // bytes/s
	Efficiency float64 `json:"efficiency"` // share of the bandwidth that large messages reach
	Latency    float64 `json:"latency"`    // seconds per message
}

// MemoryPerRank is what the arena of each of the given number of ranks may take; with
// several kinds of devices that of the roomiest, see [Cluster.MemoryAt].
func (c *Cluster) MemoryPerRank(ranks int) int64 {
	if len(c.Pools) > 0 {
		most := int64(0)
		for _, p := range c.Pools {
			most = max(most, p.Cluster.MemoryPerRank(ranks))
		}
		return most
	}
	free := c.Device.Memory - c.Device.Reserve
	if c.Device.Shared {
		return free / int64(ranks)
	}
	return free
}

// MemoryUnder is MemoryPerRank under a limit that the user sets, in bytes; 0 is none. A limit above what ranks have
// gives them no more.
func (c *Cluster) MemoryUnder(limit int64, ranks int) int64 {
	has := c.MemoryPerRank(ranks)
	if limit == 0 {
		return has
	}
	return min(has, limit)
}

// PeakFLOPS is the peak rate of one of the given number of ranks. Products of a
// type whose rate is not stated run at that of f32.
func (c *Cluster) PeakFLOPS(dtype string, ranks int) float64 {
	rate, stated := c.Device.FLOPS[dtype]
	if !stated {
		rate = c.Device.FLOPS["f32"]
	}
	peak := rate * float64(c.Device.Cores)
	if c.Device.Shared {
		peak /= float64(ranks)
	}
	return peak
}

// Validate checks every figure; errors name key and value.
func (c *Cluster) Validate() error {
	if err := c.validateUncertainty(); err != nil {
		return err
	}
	type figure struct {
		key         string
		value       float64
		least, most float64
		unit        string
	}
	d, e := c.Device, c.Device.Efficiency
	figures := []figure{
		{"device.cores", float64(d.Cores), 1, 1 << 16, ""},
		{"device.memory", float64(d.Memory), 1 << 20, 1 << 50, " bytes"},
		{"device.reserve", float64(d.Reserve), 0, float64(d.Memory) / 2, " bytes"},
		{"device.flops.f32", d.FLOPS["f32"], 1e6, 1e21, " FLOP/s"},
		{"device.memory_bandwidth", d.MemoryBandwidth, 1e3, 1e18, " bytes/s"},
		{"device.launch_overhead", d.LaunchOverhead, 0, 1, " s"},
		{"device.efficiency.matmul", e.Matmul, 1e-4, 1, ""},
		{"device.efficiency.matmul_half_flops", e.MatmulHalf, 0, 1e15, " FLOPs"},
		{"device.units", float64(d.Units), 0, 1 << 16, ""},
		{"device.efficiency.tile_fill", e.TileFill, 0, 1e6, " terms"},
		{"device.efficiency.matmul_f8", e.MatmulF8, 0, 1, ""},
		{"device.efficiency.attention", e.Attention, 1e-4, 1, ""},
		{"device.efficiency.vector", e.Vector, 1e-4, 1, ""},
		{"device.efficiency.threads", e.Threads, 0, 1, ""},
		{"device.efficiency.attention_half_keys", e.AttentionHalf, 0, 1e5, " keys"},
		{"device.efficiency.attention_grad_half_keys", e.AttentionGradHalf, 0, 1e5, " keys"},
		{"device.turn", d.Turn, 0, 1, " s"},
		{"device.fork", d.Fork, 0, 1, " s"},
		{"device.pack", d.Pack, 0, 1e-6, " s"},
		{"device.efficiency.memory", e.Memory, 1e-4, 1, ""},
	}
	if !d.Shared {
		figures = append(figures, figure{"devices_per_node", float64(c.DevicesPerNode), 1, 1 << 16, ""})
	}
	if d.Cache != nil {
		figures = append(figures,
			figure{"device.cache.memory", float64(d.Cache.Memory), 1 << 10, 1 << 40, " bytes"},
			figure{"device.cache.bandwidth", d.Cache.Bandwidth, 1e3, 1e18, " bytes/s"},
			figure{"device.cache.remote", d.Cache.Remote, 0, 1e18, " bytes/s"})
	}
	for _, op := range slices.Sorted(maps.Keys(d.Kernels)) {
		if all := KernelOps(); !slices.Contains(all, op) {
			return &FieldError{"device.kernels." + op, "is no op of which a rate can be stated; did you mean " + config.Nearest(op, all) + "?"}
		}
		figures = append(figures, figure{"device.kernels." + op, d.Kernels[op], 1e-6, 1, ""})
	}
	for _, dtype := range slices.Sorted(maps.Keys(d.FLOPS)) {
		if !slices.Contains(dtypes(), dtype) {
			return &FieldError{"device.flops." + dtype, "is no element type; there are " + strings.Join(dtypes(), ", ")}
		}
		figures = append(figures, figure{"device.flops." + dtype, d.FLOPS[dtype], 1e6, 1e21, " FLOP/s"})
	}
	s := &c.Software
	for _, f := range []struct {
		key         string
		value, most float64
	}{
		{"score_bytes", s.ScoreBytes, 1e3}, {"flash", s.Flash, 1e3}, {"rms_norm", s.RMSNorm, 1e3}, {"activation", s.Activation, 1e3},
		{"rotation", s.Rotation, 1e3}, {"loss", s.Loss, 1e3}, {"optimizer", s.Optimizer, 1e3}, {"elementwise", s.Elementwise, 1e3},
		{"host", s.Host, 1}, {"sync", s.Sync, 1}, {"cast", s.Cast, 1e3}, {"buffer", s.Buffer, 1e18}, {"all_reduce", s.AllReduce, 1e3},
		{"network", s.Network, 1e3}, {"replicas", s.Replicas, 1e3}, {"cast_bytes", s.CastBytes, 1e3},
	} {
		figures = append(figures, figure{"software." + f.key, f.value, 0, f.most, ""})
	}
	for _, f := range figures {
		if !(f.value >= f.least && f.value <= f.most) {
			return &FieldError{f.key, fmt.Sprintf("is %v%s, must be between %v and %v", f.value, f.unit, f.least, f.most)}
		}
	}
	if slow := d.MemoryBandwidth * e.Memory; d.Cache != nil && d.Cache.Bandwidth < slow {
		return &FieldError{"device.cache.bandwidth", fmt.Sprintf("is %v bytes/s, less than the %v of the memory", d.Cache.Bandwidth, slow)}
	}
	if c.Name == "" {
		return &FieldError{"name", "is missing"}
	}
	if len(c.Pools) > 0 {
		return c.validatePools()
	}
	if err := c.validateShared(); err != nil {
		return err
	}
	if err := c.validateNetwork(); err != nil {
		return err
	}
	if err := c.IntraNode.validate("intra_node"); err != nil {
		return err
	}
	if c.Host != nil {
		if err := c.Host.validate("host"); err != nil {
			return err
		}
	}
	if d.Shared {
		return nil
	}
	return c.InterNode.validate("inter_node")
}

// validate checks the figures of a link called name.
func (l Link) validate(name string) error {
	switch {
	case !(l.Bandwidth >= 1e3 && l.Bandwidth <= 1e18):
		return &FieldError{name + ".bandwidth", fmt.Sprintf("is %v bytes/s, must be between 1000 and 1e+18", l.Bandwidth)}
	case !(l.Efficiency >= 1e-4 && l.Efficiency <= 1):
		return &FieldError{name + ".efficiency", fmt.Sprintf("is %v, must be between 0.0001 and 1", l.Efficiency)}
	case !(l.Latency >= 0 && l.Latency <= 1):
		return &FieldError{name + ".latency", fmt.Sprintf("is %v s, must be between 0 and 1", l.Latency)}
	}
	return nil
}

// FieldError is a figure of a cluster that cannot be used.
type FieldError struct{ Key, Msg string }

func (e *FieldError) Error() string { return "cluster: " + e.Key + ": " + e.Msg }
