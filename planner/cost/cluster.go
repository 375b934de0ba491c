// Package cost prices instructions on a cluster. It has a description of hardware and training software as YAML, and
// pure functions from shapes to integer picoseconds.
//
// Integers make sums exact and independent of their order, so that whether two plans tie does not depend on the
// machine that runs the planner. The formulas are documented at the functions. Collectives follow Thakur et al. 2005
// ([Model.Collective]). Kernels follow the roofline model, with an efficiency of matrix products that saturates with
// their size ([NewProgram] prices instructions).
//
// # Reading order
//
//   - time.go: Model, the prices for one rank of a job. kernel.go prices kernels, topology.go the network and its
//     collectives, shared.go and crowd.go what is special about a machine that all ranks share.
//   - program.go: Program, the prices of a compiled program's instructions. work.go exposes what they count.
//   - cluster.go: what a cluster file may state. yaml.go reads it, constants.go lists the uncertain figures, and
//     software.go describes the kernels of other training software.
//   - pool.go, poolyaml.go and poollayout.go: clusters with several kinds of devices.
package cost

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/autopar/autopar/config"
)

// Cluster is a set of equal devices in equal nodes, or several pools, each of one kind of device.
type Cluster struct {
	Name   string `json:"name"`
	Source string `json:"source"` // where the figures come from
	// Uncertainty is the relative standard deviation of figures by key, where it differs from the default for
	// their kind: see [Cluster.Constants].
	Uncertainty map[string]float64 `json:"uncertainty,omitempty"`
	Device      Device             `json:"device"`
	// DevicesPerNode is how many devices IntraNode connects. It has no meaning on a shared machine, which is
	// one node.
	DevicesPerNode int  `json:"devices_per_node"`
	IntraNode      Link `json:"intra_node"`
	InterNode      Link `json:"inter_node"`
	// Collectives names the algorithm of collectives: [OnePass] on a shared machine; empty means rings and
	// trees over links.
	Collectives string `json:"collectives,omitempty"`
	// NICsPerNode is how many network cards the devices of a node share, 0 for one each. InterNode states what
	// one device gets when all send.
	NICsPerNode int `json:"nics_per_node,omitempty"`
	// Oversubscription is the bandwidth of all nodes of a rack divided by that of the rack's uplinks. 0 or 1
	// means that racks do not matter.
	Oversubscription float64 `json:"oversubscription,omitempty"`
	NodesPerRack     int     `json:"nodes_per_rack,omitempty"`
	// Levels, if not empty, describe the whole network, innermost first. DevicesPerNode, IntraNode and
	// InterNode are then copies of two of them.
	Levels []Level `json:"levels,omitempty"`
	// Pools, if not empty, are all the devices, of several kinds. Device, DevicesPerNode and the links are then
	// the worst figures of any pool.
	Pools []Pool `json:"pools,omitempty"`
	// Between is the link from one device to another pool, as one device gets it when all send.
	Between Link `json:"between,omitzero"`
	// Host is the link between one device and the memory of its host, in either direction. nil means unknown:
	// nothing can be offloaded.
	Host *Link `json:"host,omitempty"`
	// Software is what runs on the devices. The zero value is this project's own runtime.
	Software Software `json:"software,omitzero"`
}

// Device is one accelerator or, with Shared, one machine.
type Device struct {
	Name string `json:"name"`
	// Shared says that all ranks run on this one device and divide its memory, arithmetic, memory bandwidth and
	// copy bandwidth. A rank gets 1/ranks of each while all are busy, and more while others wait: see
	// [Model.Busy].
	Shared bool `json:"shared"`
	// Cores multiplies FLOPS, which is per core. 1 for accelerators.
	Cores  int   `json:"cores"`
	Memory int64 `json:"memory"` // usable bytes
	// Reserve is how many bytes of Memory plans leave free on every device for what the runtime holds outside
	// the arena, such as a CUDA context, communicator buffers and library workspaces. It is 0 if the arena is
	// all there is, as on a CPU.
	Reserve int64 `json:"reserve,omitempty"`
	// FLOPS is the peak rate of dense matrix products by element type: f32, f16, bf16, and tf32 and f8 where
	// stated.
	FLOPS           map[string]float64 `json:"flops"`
	MemoryBandwidth float64            `json:"memory_bandwidth"` // bytes/s
	Cache           *Cache             `json:"cache,omitempty"`  // nil if it makes no difference
	LaunchOverhead  float64            `json:"launch_overhead"`  // seconds per kernel
	// Turn, on a shared machine, is the seconds lost when a rank that waits hands its core to a rank that has
	// none: the other one must wake up and load its data into the cache again.
	Turn float64 `json:"turn,omitempty"`
	// Fork, on a shared machine, is the seconds lost when several cores compute a kernel for one rank: until
	// all have started and the last has finished. A kernel that takes less time than that on one core runs on
	// one core.
	Fork float64 `json:"fork,omitempty"`
	// Pack, on a shared machine, is the seconds in which a core packs one matrix element of a product, that is,
	// copies it into the order in which the kernel reads it. [Work.Packed] counts the elements.
	Pack float64 `json:"pack,omitempty"`
	// Units is how many parts of the device compute tiles of a product in parallel, such as streaming
	// multiprocessors; 0 if that makes no difference.
	Units      int        `json:"units,omitempty"`
	Efficiency Efficiency `json:"efficiency"`
	// Kernels is the share of the peak rate, in (0,1], that kernels of an op reach, by the op's name. It takes
	// precedence over Efficiency.Attention and Efficiency.Vector. Matrix products cannot be stated.
	Kernels map[string]float64 `json:"kernels,omitempty"`
}

// Cache is the memory close to the processors. Most of what a kernel of a training step reads was just written
// by the kernel before, so a kernel whose operands fit into the cache has its traffic there.
type Cache struct {
	Memory    int64   `json:"memory"`    // bytes, of all cores together
	Bandwidth float64 `json:"bandwidth"` // bytes/s that vector kernels reach on all cores
	// Remote is the bytes/s at which a core reads from the caches of other cores, 0 if that makes no
	// difference. The operands of a rank that computes on several cores are spread over their caches.
	Remote float64 `json:"remote,omitempty"`
}

// Efficiency holds the shares of a peak, in (0,1], that kernels reach.
type Efficiency struct {
	// A product of F operations runs at Matmul · F/(F+MatmulHalf) of the peak rate, so at half of what large
	// products reach if F = MatmulHalf. MatmulHalf is stated for the fastest element type. For a slower type it
	// shrinks in proportion to the rate.
	Matmul     float64 `json:"matmul"`
	MatmulHalf float64 `json:"matmul_half_flops"`
	// TileFill is how many terms of its sums a unit could add in the time that it takes to start and finish a tile.
	TileFill  float64 `json:"tile_fill,omitempty"`
	MatmulF8  float64 `json:"matmul_f8,omitempty"` // as Matmul, for 8-bit operands
	Attention float64 `json:"attention"`           // of the peak rate, for fused attention
	Vector    float64 `json:"vector"`              // of the peak rate, for everything else
	// AttentionHalf is the number of keys at which fused attention on a shared machine reaches half of that
	// rate: blocks on the diagonal of the scores are half empty. AttentionGradHalf is the same for its
	// gradient; 0 means as AttentionHalf.
	AttentionHalf     float64 `json:"attention_half_keys,omitempty"`
	AttentionGradHalf float64 `json:"attention_grad_half_keys,omitempty"`
	// Threads, on a shared machine, is the share of their total rate that cores keep when cores of waiting
	// ranks compute for another rank; 0 means all of it.
	Threads float64 `json:"threads,omitempty"`
	// Beside, where devices are not shared, is the share of their rate that kernels keep while a collective runs
	// beside them: it takes multiprocessors and memory bandwidth from them. 0 means all of it.
	Beside float64 `json:"beside,omitempty"`
	Memory float64 `json:"memory"` // of the memory bandwidth
}

// Link is what one device sends over, in one direction.
type Link struct {
	Bandwidth  float64 `json:"bandwidth"`  // bytes/s
	Efficiency float64 `json:"efficiency"` // share of the bandwidth that large messages reach
	Latency    float64 `json:"latency"`    // seconds per message
}

// MemoryPerRank is the bytes that the arena of each of the given number of ranks may take. With several kinds
// of devices it is that of the roomiest kind: see [Cluster.MemoryAt].
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

// MemoryUnder is MemoryPerRank, at most a limit in bytes that the user sets; limit 0 means none.
func (c *Cluster) MemoryUnder(limit int64, ranks int) int64 {
	has := c.MemoryPerRank(ranks)
	if limit == 0 {
		return has
	}
	return min(has, limit)
}

// PeakFLOPS is the peak rate, in FLOP/s, of one of the given number of ranks. An element type without a stated
// rate has that of f32.
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

// Validate checks every figure. It fails with a *FieldError that names key and value.
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
		{"device.efficiency.beside", e.Beside, 0, 1, ""},
		{"device.efficiency.attention_half_keys", e.AttentionHalf, 0, 1e5, " keys"},
		{"device.efficiency.attention_grad_half_keys", e.AttentionGradHalf, 0, 1e5, " keys"},
		{"device.turn", d.Turn, 0, 1, " s"},
		{"device.fork", d.Fork, 0, 1, " s"},
		{"device.pack", d.Pack, 0, 1e-6, " s"},
		{"device.efficiency.memory", e.Memory, 1e-4, 1, ""},
	}
	if !d.Shared && len(c.Levels) == 0 && len(c.Pools) == 0 {
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
		{"rotation", s.Rotation, 1e3}, {"loss", s.Loss, 1e3}, {"optimizer", s.Optimizer, 1e3}, {"sum", s.Sum, 1e3}, {"elementwise", s.Elementwise, 1e3},
		{"host", s.Host, 1}, {"sync", s.Sync, 1}, {"cast", s.Cast, 1e3}, {"buffer", s.Buffer, 1e18}, {"reduce", s.Reduce, 1e3},
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
