package cost

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/autopar/autopar/partition"
)

// This file describes clusters with several kinds of devices: which pool each rank lies on, what memory it has, and
// the figures of the whole that stand for all pools. poollayout.go prices the ranks of a plan on them.

// Pool is the devices of one kind in a cluster of several kinds.
//
// The ranks of a job are numbered along the pools: first those of the first pool in the plan's order
// ([partition.Plan.PoolOrder]), then those of the next. Inside a pool they are numbered node by node. The plan alone
// determines what world rank r does. A position of the pipeline is a run of ranks in every unit of the plan, so its
// devices are of the kinds that these runs overlap. In a plan of one unit that is mostly one kind, and two where two
// pools meet. In a plan with units as small as a pool, one unit may lie on another kind than the next; then every
// position lies on both.
//
// Replicas are synchronous and, in the plans that are searched, divide the batch evenly, so the slowest sets the
// pace. A kernel of a position takes what it takes on the slowest of the position's kinds. Its ranks have the memory
// of the smallest kind. Messages between its ranks go over the slowest link of each network level, and messages
// between pools over [Cluster.Between].
type Pool struct {
	Cluster *Cluster `json:"cluster"` // of one kind: its device, nodes and network
	Devices int      `json:"devices"` // of the pool; the last node may be incomplete
}

// Join makes a cluster of pools whose clusters run the same software. If between is nil, devices of different pools
// are linked by the slowest link between nodes of any pool.
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

// maxPools bounds the number of pools, because the search tries every order of them.
const maxPools = 4

// Kinds is a set of pools of a cluster: bit i is pool i. It is 0 if the cluster has one kind of device.
type Kinds uint8

// has reports whether pool i is in the set.
func (k Kinds) has(i int) bool { return k>>i&1 == 1 }

// Within reports whether all pools of the set are in another set.
func (k Kinds) Within(other Kinds) bool { return k&^other == 0 }

// Orders lists the orders of the pools that a plan may have, as in [partition.Plan.PoolOrder]: first nil, for the
// cluster's own order, then the others in lexicographic order.
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

// Order returns the index of a plan's order of the pools in [Cluster.Orders].
func (c *Cluster) Order(p *partition.Plan) int {
	if slices.IsSorted(p.PoolOrder) {
		return 0
	}
	return slices.IndexFunc(c.Orders(), func(order []int) bool { return slices.Equal(order, p.PoolOrder) })
}

// poolAt is the index of the pool that comes at a place in the plan's order of the pools.
func poolAt(p *partition.Plan, place int) int {
	if len(p.PoolOrder) == 0 {
		return place
	}
	return p.PoolOrder[place]
}

// Devices is the number of devices of all pools. It is 0 for a cluster of one kind, which has as many devices as a
// plan wants.
func (c *Cluster) Devices() int {
	sum := 0
	for _, p := range c.Pools {
		sum += p.Devices
	}
	return sum
}

// Holds checks that a plan fits on the pools of a cluster. It fails with a *partition.PlanError.
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

// KindsAt returns the pools that the ranks of a plan's position lie on.
func (c *Cluster) KindsAt(p *partition.Plan, position int) Kinds {
	if len(c.Pools) == 0 {
		return 0
	}
	p = p.Even()
	var kinds Kinds
	run, runs, apart := p.DP*p.ContextParallel()*p.TP, p.Units(), p.Device(p.DP, 0)
	if p.RankOrder != "" { // the ranks of a position are no run
		run, runs, apart = 1, run*runs, 1
	}
	for i := range runs {
		first := p.WorldRank(position, i*apart)
		start := 0
		for i := range c.Pools {
			pool := poolAt(p, i)
			end := start + c.Pools[pool].Devices
			if first < end && first+run > start {
				kinds |= 1 << pool
			}
			start = end
		}
	}
	return kinds
}

// KindText names the devices that a plan's position lies on: "pool 1, h100", or with more than one kind "pools 0 and
// 1, a100-40g and h100". It is empty if the cluster has one kind.
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

// MemoryAt is the bytes that the arena of a rank may take at a position of a plan: that of the smallest of its
// devices.
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

// JobFLOPS is the peak rate of all ranks of a plan together, in FLOP/s.
func (c *Cluster) JobFLOPS(dtype string, p *partition.Plan) float64 {
	ranks := p.RuntimeNGPUs
	if len(c.Pools) == 0 {
		return c.PeakFLOPS(dtype, ranks) * float64(ranks)
	}
	sum := 0.0
	for i := range c.Pools {
		pool := c.Pools[poolAt(p, i)]
		n := min(ranks, pool.Devices)
		sum += float64(n) * pool.Cluster.PeakFLOPS(dtype, 1)
		ranks -= n
	}
	return sum
}

// derivePools sets the fields of the cluster that stand for all pools to the worst of each figure, and InterNode to
// the link between pools.
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

// slower returns a device with the worse of every figure of two.
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
		Beside: min(cmp.Or(x.Beside, 1), cmp.Or(y.Beside, 1)),
	}
	return d
}

// slower returns a link with the worse of every figure of two.
func (l Link) slower(m Link) Link {
	return Link{min(l.Bandwidth, m.Bandwidth), min(l.Efficiency, m.Efficiency), max(l.Latency, m.Latency)}
}

// validatePools checks the pools, and that the fields which stand for all of them are up to date.
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
		if f, ok := errors.AsType[*FieldError](p.Cluster.Validate()); ok {
			return bad(key+".cluster."+f.Key, "%s", f.Msg)
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

// Node returns the number of the node that a rank of a plan lies on, counted from that of rank 0. A shared machine is
// one node.
func (c *Cluster) Node(p *partition.Plan, rank int) int {
	if c.Device.Shared {
		return 0
	}
	if len(c.Pools) == 0 {
		return rank / c.DevicesPerNode
	}
	nodes := 0
	for i := range c.Pools {
		pool := c.Pools[poolAt(p, i)]
		perNode := pool.Cluster.DevicesPerNode
		if rank < pool.Devices {
			return nodes + rank/perNode
		}
		rank -= pool.Devices
		nodes += (pool.Devices + perNode - 1) / perNode
	}
	return nodes + rank // beyond the pools; no plan that they hold has such a rank
}

// Larger returns a cluster on which each of so many ranks has the given number of bytes more.
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

// Times returns a cluster with n times the devices in each pool.
func (c *Cluster) Times(n int) *Cluster {
	d := c.Clone()
	for i := range d.Pools {
		d.Pools[i].Devices *= n
	}
	return d
}
