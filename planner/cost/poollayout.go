package cost

import (
	"math"
	"math/bits"
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// poolLayout is how the ranks of a plan lie on the pools of a cluster. It is nil with one kind of device, where rank r is
// device r.
//
// Every device has an address. Addresses are assigned so that a unit of a network level covers the same number of
// addresses in every pool, and groups and routes are found as with one kind of device. There are gaps between
// addresses where a pool has fewer devices per node than another, or no racks.
type poolLayout struct {
	plan    *partition.Plan
	pools   []placed // in the order of ranks
	slots   []int    // by level, the number of addresses in a unit
	kinds   []Kinds  // by position
	models  []*Model // by pool of the cluster
	rungs   [][]rung // by pool of the cluster, one per level of slots; without bandwidth for a level that the pool lacks
	between rung     // the level around all pools
	mixed   map[Kinds]*Model
	classes []int // by position: see [Program.classes]; nil until asked for
}

// placed is a pool with the ranks that lie on it.
type placed struct {
	first, devices int   // the first rank, and how many there are
	base           int   // its first address
	sizes          []int // by level, the number of devices in a unit
}

// newPoolLayout places the ranks of a plan. It panics if the pools do not hold the plan.
func newPoolLayout(c *Cluster, p *partition.Plan) *poolLayout {
	if len(c.Pools) == 0 {
		return nil
	}
	if err := c.Holds(p); err != nil {
		panic("BUG: " + err.Error())
	}
	l := &poolLayout{plan: p, mixed: map[Kinds]*Model{}}
	levels := 0
	for _, pool := range c.Pools {
		m := NewModel(pool.Cluster, p.RuntimeNGPUs)
		l.models = append(l.models, m)
		levels = max(levels, len(m.rungs))
	}
	sizes := make([][]int, len(c.Pools))
	l.slots = slices.Repeat([]int{1}, levels)
	for i, pool := range c.Pools {
		// The outermost level is the pool itself. Between it and the other levels there may be levels that this pool
		// does not have.
		rungs := l.models[i].rungs
		own := make([]rung, levels)
		copy(own, rungs[:len(rungs)-1])
		own[levels-1] = rungs[len(rungs)-1]
		l.rungs = append(l.rungs, own)
		inside := 1
		for level := range own {
			size := inside
			switch {
			case level == levels-1:
				size = max(pool.Devices, inside)
			case level < len(rungs)-1:
				size = own[level].devices
			}
			sizes[i] = append(sizes[i], size)
			l.slots[level] = max(l.slots[level], (size+inside-1)/inside)
			inside = size
		}
	}
	for level := 1; level < levels; level++ { // from units of the level inside to addresses
		l.slots[level] *= l.slots[level-1]
	}
	first := 0
	for i := range c.Pools {
		pool := poolAt(p, i)
		l.pools = append(l.pools, placed{first, c.Pools[pool].Devices, pool * l.slots[levels-1], sizes[pool]})
		first += c.Pools[pool].Devices
	}
	share := c.Software.Network
	if share == 0 {
		share = 1
	}
	l.between = rung{bandwidth: c.Between.Bandwidth * c.Between.Efficiency * share, latency: c.Between.Latency, ports: math.Inf(1)}
	for at := range p.PP() {
		l.kinds = append(l.kinds, c.KindsAt(p, at))
	}
	return l
}

// address returns the address of the device that a rank runs on.
func (l *poolLayout) address(rank int) int {
	if l == nil {
		return rank
	}
	at := 0
	for at+1 < len(l.pools) && rank >= l.pools[at+1].first {
		at++
	}
	p := &l.pools[at]
	device, address := rank-p.first, p.base
	for level := len(p.sizes) - 1; level > 0; level-- {
		address += device / p.sizes[level-1] * l.slots[level-1]
		device %= p.sizes[level-1]
	}
	return address + device
}

// period is the number of ranks after which the network repeats. With pools it does not repeat.
func (l *poolLayout) period(rungs []rung) int {
	if l == nil {
		return period(rungs)
	}
	return l.plan.RuntimeNGPUs
}

// model returns the prices for ranks that lie on the given pools.
func (l *poolLayout) model(kinds Kinds) *Model {
	if m := l.mixed[kinds]; m != nil {
		return m
	}
	var of []*Model
	var pools []int
	for i, m := range l.models {
		if kinds.has(i) {
			of, pools = append(of, m), append(pools, i)
		}
	}
	m := *of[0]
	m.rungs, m.together = nil, nil
	if bits.OnesCount8(uint8(kinds)) > 1 {
		m.kinds = of
	}
	for _, k := range of[1:] {
		m.launch, m.memory = max(m.launch, k.launch), min(m.memory, k.memory)
		m.host.Bandwidth, m.host.Latency = min(m.host.Bandwidth, k.host.Bandwidth), max(m.host.Latency, k.host.Latency)
	}
	add := func(r rung, level int) {
		if r.inside = 1; level > 0 {
			r.inside = l.slots[level-1]
		}
		r.devices = math.MaxInt
		if level < len(l.slots) {
			r.devices = l.slots[level]
		}
		together := math.Inf(1)
		for _, k := range r.kinds {
			r.latency = max(r.latency, k.latency)
			together = min(together, k.rate(min(l.plan.RuntimeNGPUs, k.inside)))
		}
		m.rungs, m.together = append(m.rungs, r), append(m.together, together)
	}
	for level := range l.slots {
		r := rung{kinds: []rung{}}
		for _, pool := range pools {
			if own := l.rungs[pool][level]; own.bandwidth > 0 {
				r.kinds = append(r.kinds, own)
			}
		}
		add(r, level)
	}
	between := l.between
	between.inside = l.pools[0].devices
	add(rung{kinds: []rung{between}}, len(l.slots))
	l.mixed[kinds] = &m
	return &m
}

// Kinds returns the pools that a stage lies on, 0 if the cluster has one kind of device.
func (m *Program) Kinds(stage int) Kinds {
	if m.layout == nil {
		return 0
	}
	position, _ := m.plan.Position(stage)
	return m.layout.kinds[position]
}

// OnKinds returns the prices on the given pools, with groups unchanged.
func (m *Program) OnKinds(kinds Kinds) *Program {
	if m.layout == nil {
		return m
	}
	on := *m
	on.Model = m.layout.model(kinds)
	return &on
}

// classes numbers the positions so that two have the same number if they lie on the same kinds of devices and have
// the same groups over every axis, the same routes to their neighbours, and neighbours that gather alike what these send in parts
// ([Software.Scatter]).
func (m *Program) classes() []int {
	if m.layout.classes != nil {
		return m.layout.classes
	}
	type gathers struct {
		kinds Kinds
		group Group
	}
	type class struct {
		kinds   Kinds
		groups  [ir.MaxAxes]Group
		routes  [2]Route // to the next position, and to the previous one
		gathers [2]gathers
	}
	known := map[class]int{}
	positions, tp := m.plan.PP(), m.mesh.Axis(partition.AxisTP)
	for at := range positions {
		c := class{kinds: m.layout.kinds[at]}
		for axis := range m.mesh.Axes {
			c.groups[axis] = m.groupOf(at, axis)
		}
		for i, to := range []int{at + 1, at - 1} {
			if to < 0 || to == positions {
				continue
			}
			if c.routes[i] = m.route(at, to); m.software.Scatter && tp >= 0 {
				c.gathers[i] = gathers{m.layout.kinds[to], m.groupOf(to, tp)}
			}
		}
		n, met := known[c]
		if !met {
			n = len(known)
			known[c] = n
		}
		m.layout.classes = append(m.layout.classes, n)
	}
	return m.layout.classes
}
