package cost

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/autopar/autopar/partition"
)

// Pool is the devices of one kind in a cluster that has several.
//
// The ranks of a job are numbered along the pools: those of the pool that comes first
// in the order of the plan ([partition.Plan.PoolOrder]), then those of the next, and
// inside a pool node by node. What world rank r of a plan does follows from the plan
// alone, so a position of the pipeline, which is a run of ranks in every unit of the
// plan, lies on the kinds of devices that its runs meet: with one unit mostly on one,
// and where the pools meet on two. Units lie side by side too: of a plan with units as
// small as a pool one may lie on another kind than the next, and all of its positions
// do then.
//
// Replicas are synchronous and divide the batch evenly, so the slowest of them sets the
// pace: a kernel of a position takes what it takes on the slowest of its kinds, the
// memory of its ranks is that of the smallest, and what they send each other goes over
// the slowest link of each level of the network, and between pools over
// [Cluster.Between].
type Pool struct {
	Cluster *Cluster `json:"cluster"` // of one kind: its device, nodes and network
	Devices int      `json:"devices"` // that it has, the last node perhaps in part
}

// Join makes a cluster of pools of which the clusters run the same software. Without a
// link between them devices of two pools meet over the slowest of the links between the
// nodes of any.
func Join(name string, between *Link, pools ...Pool) *Cluster {
	first := pools[0].Cluster
	c := &Cluster{Name: name, Pools: pools, Between: first.InterNode, Software: first.Software}
	for _, p := range pools[1:] {
		c.Between = c.Between.slower(p.Cluster.InterNode)
	}
	if between != nil {
		c.Between = *between
	}
	c.derivePools()
	return c
}

// maxPools bounds the pools, of which the search tries every order.
const maxPools = 4

// Kinds is a set of the pools of a cluster: bit i is pool i. It is 0 where there is one
// kind of device.
type Kinds uint8

// has reports whether pool i is in the set.
func (k Kinds) has(i int) bool { return k>>i&1 == 1 }

// Within reports whether all pools of the set are in another.
func (k Kinds) Within(other Kinds) bool { return k&^other == 0 }

// Orders lists the orders of the pools that a plan may have, as in
// [partition.Plan.PoolOrder]: nil for that of the cluster first, then the others by
// their first pools.
func (c *Cluster) Orders() [][]int {
	orders := [][]int{nil}
	var extend func(order []int)
	extend = func(order []int) {
		if len(order) == len(c.Pools) && !slices.IsSorted(order) {
			orders = append(orders, slices.Clone(order))
		}
		for i := range c.Pools {
			if !slices.Contains(order, i) {
				extend(append(order, i))
			}
		}
	}
	extend(nil)
	return orders
}

// Order returns the place of a plan's order of the pools among [Cluster.Orders].
func (c *Cluster) Order(p *partition.Plan) int {
	if slices.IsSorted(p.PoolOrder) {
		return 0
	}
	return slices.IndexFunc(c.Orders(), func(order []int) bool { return slices.Equal(order, p.PoolOrder) })
}

// Devices is how many devices the pools have; 0 where one kind is all there is, of which
// there are as many as a plan wants.
func (c *Cluster) Devices() int {
	sum := 0
	for _, p := range c.Pools {
		sum += p.Devices
	}
	return sum
}

// Holds checks that a plan has a place on the pools of a cluster. It fails with a
// *partition.PlanError.
func (c *Cluster) Holds(p *partition.Plan) error {
	switch n := len(p.PoolOrder); {
	case len(c.Pools) == 0:
		return nil
	case n > 0 && n != len(c.Pools):
		return &partition.PlanError{Key: "pool_order", Msg: fmt.Sprintf("is %v, cluster %s has %d pools", p.PoolOrder, c.Name, len(c.Pools))}
	case p.RuntimeNGPUs > c.Devices():
		return &partition.PlanError{Key: "runtime_ngpus", Msg: fmt.Sprintf("is %d, cluster %s has %d devices", p.RuntimeNGPUs, c.Name, c.Devices())}
	}
	return nil
}

// KindsAt returns the pools that the ranks of a position of a plan lie on.
func (c *Cluster) KindsAt(p *partition.Plan, position int) Kinds {
	if len(c.Pools) == 0 {
		return 0
	}
	var kinds Kinds
	run, runs := p.DP*p.ContextParallel()*p.TP, p.Units()
	if p.RankOrder != "" { // they are no run
		run, runs = 1, run*runs
	}
	for i := range runs {
		first := p.WorldRank(position, i*run)
		start := 0
		for i := range c.Pools {
			pool := i
			if len(p.PoolOrder) > 0 {
				pool = p.PoolOrder[i]
			}
			end := start + c.Pools[pool].Devices
			if first < end && first+run > start {
				kinds |= 1 << pool
			}
			start = end
		}
	}
	return kinds
}

// KindText names the devices that a position of a plan lies on: "pool 1, h100", or with
// more than one kind "pools 0 and 1, a100-40g and h100". It is empty where the cluster
// has one kind.
func (c *Cluster) KindText(p *partition.Plan, position int) string {
	kinds := c.KindsAt(p, position)
	var numbers, names []string
	for i, pool := range c.Pools {
		if kinds.has(i) {
			numbers, names = append(numbers, fmt.Sprint(i)), append(names, pool.Cluster.Name)
		}
	}
	switch len(names) {
	case 0:
		return ""
	case 1:
		return "pool " + numbers[0] + ", " + names[0]
	}
	return "pools " + strings.Join(numbers, " and ") + ", " + strings.Join(names, " and ")
}

// MemoryAt is what the arena of a rank at a position of a plan may take: that of the
// smallest of its devices.
func (c *Cluster) MemoryAt(p *partition.Plan, position int) int64 {
	least := c.MemoryPerRank(p.RuntimeNGPUs)
	kinds := c.KindsAt(p, position)
	for i, pool := range c.Pools {
		if kinds.has(i) {
			least = min(least, pool.Cluster.MemoryPerRank(p.RuntimeNGPUs))
		}
	}
	return least
}

// JobFLOPS is the peak rate of all ranks of a plan together.
func (c *Cluster) JobFLOPS(dtype string, p *partition.Plan) float64 {
	ranks := p.RuntimeNGPUs
	if len(c.Pools) == 0 {
		return c.PeakFLOPS(dtype, ranks) * float64(ranks)
	}
	sum := 0.0
	for i := range c.Pools {
		pool := c.Pools[i]
		if len(p.PoolOrder) > 0 {
			pool = c.Pools[p.PoolOrder[i]]
		}
		n := min(ranks, pool.Devices)
		sum += float64(n) * pool.Cluster.PeakFLOPS(dtype, 1)
		ranks -= n
	}
	return sum
}

// derivePools sets what stands for the pools where all kinds must do: the least of each
// figure, and the link between them.
func (c *Cluster) derivePools() {
	first := c.Pools[0].Cluster
	c.Device, c.DevicesPerNode, c.IntraNode, c.Host = first.Device, first.DevicesPerNode, first.IntraNode, first.Host
	for _, p := range c.Pools[1:] {
		k := p.Cluster
		c.Device = slower(c.Device, k.Device)
		c.DevicesPerNode = min(c.DevicesPerNode, k.DevicesPerNode)
		c.IntraNode = c.IntraNode.slower(k.IntraNode)
		switch {
		case c.Host == nil || k.Host == nil:
			c.Host = nil
		default:
			host := c.Host.slower(*k.Host)
			c.Host = &host
		}
	}
	c.InterNode = c.Between
}

// slower is a device with the worse of every figure of two.
func slower(a, b Device) Device {
	d := a
	d.Name = a.Name + " + " + b.Name
	if b.Memory-b.Reserve < a.Memory-a.Reserve {
		d.Memory, d.Reserve = b.Memory, b.Reserve
	}
	d.FLOPS = map[string]float64{}
	for _, dtype := range dtypes() {
		x, one := a.FLOPS[dtype]
		y, other := b.FLOPS[dtype]
		if one && other {
			d.FLOPS[dtype] = min(x, y)
		}
	}
	d.MemoryBandwidth, d.LaunchOverhead = min(a.MemoryBandwidth, b.MemoryBandwidth), max(a.LaunchOverhead, b.LaunchOverhead)
	d.Cache, d.Units = nil, min(a.Units, b.Units)
	x, y := a.Efficiency, b.Efficiency
	d.Efficiency = Efficiency{
		Matmul: min(x.Matmul, y.Matmul), MatmulHalf: max(x.MatmulHalf, y.MatmulHalf), TileFill: max(x.TileFill, y.TileFill), MatmulF8: min(x.MatmulF8, y.MatmulF8),
		Attention: min(x.Attention, y.Attention), Vector: min(x.Vector, y.Vector), Memory: min(x.Memory, y.Memory),
	}
	return d
}

// slower is a link with the worse of every figure of two.
func (l Link) slower(m Link) Link {
	return Link{min(l.Bandwidth, m.Bandwidth), min(l.Efficiency, m.Efficiency), max(l.Latency, m.Latency)}
}

// validatePools checks the pools, and that what stands for them does.
func (c *Cluster) validatePools() error {
	bad := func(key, format string, args ...any) error { return &FieldError{key, fmt.Sprintf(format, args...)} }
	if n := len(c.Pools); n == 1 || n > maxPools {
		return bad("pools", "are %d, must be 2 to %d; a cluster of one kind is described by itself", n, maxPools)
	}
	for i, p := range c.Pools {
		key := poolKey(i)
		switch k := p.Cluster; {
		case k == nil:
			return bad(key+".cluster", "is missing")
		case len(k.Pools) > 0:
			return bad(key+".cluster", "is %s, which has pools itself; want a cluster of one kind of device", k.Name)
		case k.Device.Shared:
			return bad(key+".cluster", "is %s, one machine that all ranks share; want a cluster of accelerators", k.Name)
		case len(k.Levels) == maxLevels:
			return bad(key+".cluster", "is %s with %d levels of network; a pool has at most %d, beside the link between pools", k.Name, maxLevels, maxLevels-1)
		case p.Devices < 1 || p.Devices > 1<<20:
			return bad(key+".devices", "is %d, must be between 1 and %d", p.Devices, 1<<20)
		case k.Software != c.Software:
			return bad(key+".cluster", "runs software %s, the cluster runs %s: all ranks run one; state software for the whole", k.Software.Name, c.Software.Name)
		}
		if err := p.Cluster.Validate(); err != nil {
			return bad(key+".cluster", "is %s: %v", p.Cluster.Name, err)
		}
	}
	if err := c.Between.validate("between"); err != nil {
		return err
	}
	derived := c.Clone()
	derived.derivePools()
	if !reflect.DeepEqual(derived, c.Clone()) {
		return bad("device", "and its links are not the least of the pools")
	}
	return nil
}

func poolKey(i int) string { return fmt.Sprintf("pools[%d]", i) }

// Node numbers the nodes that the ranks of a plan lie on, from that of rank 0; a shared
// machine is one.
func (c *Cluster) Node(p *partition.Plan, rank int) int {
	if c.Device.Shared {
		return 0
	}
	if len(c.Pools) == 0 {
		return rank / c.DevicesPerNode
	}
	nodes := 0
	for i := range c.Pools {
		pool := c.Pools[i]
		if len(p.PoolOrder) > 0 {
			pool = c.Pools[p.PoolOrder[i]]
		}
		perNode := pool.Cluster.DevicesPerNode
		if rank < pool.Devices {
			return nodes + rank/perNode
		}
		rank -= pool.Devices
		nodes += (pool.Devices + perNode - 1) / perNode
	}
	return nodes + rank // beyond the pools; no plan that they hold has it
}

// Larger returns a cluster of which each of so many ranks has so many more bytes.
func (c *Cluster) Larger(bytes int64, ranks int) *Cluster {
	d := c.Clone()
	if len(d.Pools) == 0 {
		if d.Device.Shared {
			bytes *= int64(ranks)
		}
		d.Device.Memory += bytes
		return d
	}
	for _, p := range d.Pools {
		p.Cluster.Device.Memory += bytes
	}
	d.derive()
	return d
}

// Times returns a cluster with so many times the devices of each pool.
func (c *Cluster) Times(n int) *Cluster {
	d := c.Clone()
	for i := range d.Pools {
		d.Pools[i].Devices *= n
	}
	return d
}
