package cost

import (
	"fmt"
	"math"
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// This file prices collectives and transfers on a hierarchical network. A Level is one step of the hierarchy as a
// cluster states it, a rung the same as it is priced. A Group tells how the ranks of a collective are spread over the
// levels, a Route how far the transfers between two stages go; these hold all that times depend on, so that equal
// groups or routes are priced once.

// Level is one step of a network's hierarchy. It joins units of the level inside into a larger unit: devices into
// pairs, pairs into nodes, nodes into racks, racks into the cluster.
type Level struct {
	Name string `json:"name"`
	// Devices is how many devices one unit has, a multiple of that of the level inside; 0 in the outermost level,
	// which has them all.
	Devices int `json:"devices,omitempty"`
	// Bandwidth is the bytes/s that one device sends to other units of the level inside, in one direction, when all
	// devices do.
	Bandwidth  float64 `json:"bandwidth"`
	Efficiency float64 `json:"efficiency"` // share of the bandwidth that large messages reach
	Latency    float64 `json:"latency"`    // seconds per message
	// NICs is how many ports a unit of the level inside has on this level. Its devices share them, and a device that
	// sends alone uses one. 0 means a port per device.
	NICs int `json:"nics,omitempty"`
}

// maxLevels bounds the levels, so that a [Group] is a value.
const maxLevels = 5

// nodeLevel is the name of the level whose units are nodes.
const nodeLevel = "node"

// hierarchy returns the levels of a cluster with their ports, innermost first. If the cluster states none, they are
// nodes, racks if these are oversubscribed, and the cluster.
func (c *Cluster) hierarchy() []rung {
	link := func(l Link) rung {
		return rung{bandwidth: l.Bandwidth * l.Efficiency, latency: l.Latency, ports: math.Inf(1)}
	}
	var rungs []rung
	add := func(r rung, devices int) {
		if r.inside = 1; len(rungs) > 0 {
			r.inside = rungs[len(rungs)-1].devices
		}
		if r.devices = devices; devices == 0 {
			r.devices = math.MaxInt
		}
		rungs = append(rungs, r)
	}
	if c.Device.Shared {
		add(link(c.IntraNode), 0)
		return rungs
	}
	for _, l := range c.Levels {
		r := link(Link{l.Bandwidth, l.Efficiency, l.Latency})
		if l.NICs > 0 {
			r.ports = float64(l.NICs)
		}
		add(r, l.Devices)
	}
	if len(c.Levels) > 0 {
		return rungs
	}
	add(link(c.IntraNode), c.DevicesPerNode)
	network := link(c.InterNode)
	if c.NICsPerNode > 0 {
		network.ports = float64(c.NICsPerNode)
	}
	if c.Oversubscription > 1 {
		rack := c.DevicesPerNode * c.NodesPerRack
		add(network, rack)
		// The uplinks of a rack carry what some of its ports can send, each at its full rate.
		network.ports = min(network.ports, float64(c.DevicesPerNode)) * float64(c.NodesPerRack) / c.Oversubscription
		network.bandwidth /= c.Oversubscription
	}
	add(network, 0)
	return rungs
}

// rung is a level of the network as it is priced.
type rung struct {
	inside, devices int     // devices of a unit of the level inside, and of a unit of this level
	bandwidth       float64 // bytes/s that a device reaches when all send
	latency         float64 // seconds
	ports           float64 // of a unit of the level inside
	// kinds, in the network of several pools, are the rungs of all pools that messages cross. The slowest of them
	// sets the rate, and inside and devices count addresses: see [poolLayout].
	kinds []rung
}

// rate is the bytes/s that each device of a unit reaches when the given number of its devices send at the same time.
// They share the unit's ports; a device uses at most one port.
func (r rung) rate(senders int) float64 {
	if r.kinds != nil {
		slowest := math.Inf(1)
		for _, k := range r.kinds {
			slowest = min(slowest, k.rate(senders))
		}
		return slowest
	}
	inside := float64(r.inside)
	sharing := max(r.ports, float64(senders))
	if sharing >= inside {
		return r.bandwidth
	}
	return r.bandwidth * inside / sharing
}

// Group is a set of ranks that communicate, described by how they spread over the levels of the cluster. Fan[0] is
// the largest number of its ranks in one unit of the innermost level. Fan[l] is the largest number of units of level
// l-1 with ranks of the group that lie in one unit of level l. So a group of 16 on two nodes of 8 is {16, {8, 2}}.
type Group struct {
	Size   int
	Fan    Fan
	Uneven [maxLevels]Uneven // by level; zero where every unit has as many ranks as Fan says
}

// Fan is how a [Group] spreads, by level.
type Fan [maxLevels]int

// Uneven describes a level whose units have different numbers of a group's ranks.
//
// Few is the number of ranks in one unit of the level inside, and Around that in the unit of this level around it.
// They are those of the unit whose ranks must each receive the most from the other units around: in a group of 9
// ranks on two nodes of 8, one rank receives what eight ranks have. Apart is the largest number of ranks that any
// rank has in other units of the level inside, in the same unit of this level.
type Uneven struct{ Few, Around, Apart int }

// share is the part of a tensor that every rank of a unit receives, at this level, from the other units around it.
func (u Uneven) share() float64 { return 1/float64(u.Few) - 1/float64(u.Around) }

// even returns what units of a level have if all of them have as many ranks as Fan says.
func (g *Group) even(level int) Uneven {
	inside := 1
	for _, f := range g.Fan[:level] {
		inside *= f
	}
	return Uneven{inside, inside * g.Fan[level], inside * (g.Fan[level] - 1)}
}

// uneven records what units of a level have: zero if that is as Fan says.
func (g *Group) uneven(level int, u Uneven) {
	if even := g.even(level); u.share() == even.share() && u.Apart == even.Apart {
		u = Uneven{}
	}
	g.Uneven[level] = u
}

// units returns what units of a level have, whether they are even or not.
func (g *Group) units(level int) Uneven {
	if u := g.Uneven[level]; u != (Uneven{}) {
		return u
	}
	return g.even(level)
}

// slowest returns a group that is no faster than either of two groups, for groups that wait for each other. It is as
// wide as the wider one, and at each level has to receive what the slower one has.
func (g Group) slowest(other Group) Group {
	if other.wider(g) {
		g, other = other, g
	}
	for l, f := range g.Fan {
		if f == 0 {
			break // the network has no more levels
		}
		u, v := g.units(l), other.units(l)
		if v.share() > u.share() {
			u.Few, u.Around = v.Few, v.Around
		}
		u.Apart = max(u.Apart, v.Apart)
		g.uneven(l, u)
	}
	return g
}

// spread returns the group of the given ranks, which it sorts.
func spread(rungs []rung, ranks []int) Group {
	slices.Sort(ranks)
	g := Group{Size: len(ranks)}
	// run returns the end of the ranks that lie in the same unit of so many devices as the rank at index at.
	run := func(at, devices int) int {
		end := at + 1
		for end < len(ranks) && ranks[end]/devices == ranks[at]/devices {
			end++
		}
		return end
	}
	for l, r := range rungs {
		var u Uneven
		for at := 0; at < len(ranks); {
			end, parts := run(at, r.devices), 0
			for around := end - at; at < end; parts++ {
				next := run(at, r.inside)
				if x := (Uneven{Few: next - at, Around: around}); u.Few == 0 || x.share() > u.share() {
					u.Few, u.Around = x.Few, x.Around
				}
				u.Apart = max(u.Apart, around-(next-at))
				at = next
			}
			g.Fan[l] = max(g.Fan[l], parts)
		}
		g.uneven(l, u)
	}
	return g
}

// Groups lists how groups of a size can lie in the network if the job's ranks are divided into groups whose
// neighbours are a number of ranks apart.
func (m *Model) Groups(size, apart int) []Group {
	var all []Group
	ranks := make([]int, size)
	whole, run := period(m.rungs), size*apart
	for first := range min(apart, whole) {
		for at := first; at < first+multiple(run, whole); at += run {
			for i := range ranks {
				ranks[i] = at + i*apart
			}
			if g := spread(m.rungs, ranks); !slices.Contains(all, g) {
				all = append(all, g)
			}
		}
	}
	return all
}

// Hierarchical reports whether it matters where so many ranks lie. It does not if one unit of the innermost level
// holds them all.
func (m *Model) Hierarchical(ranks int) bool { return ranks > m.rungs[0].devices }

// Divides reports whether a boundary between units of the network may divide a part of so many devices, or a run of
// so many parts. It does not if, at every level, each part consists of whole units or each unit of whole runs.
func (m *Model) Divides(part, parts int) bool {
	return slices.ContainsFunc(m.rungs, func(r rung) bool {
		return r.devices < math.MaxInt && part%r.devices != 0 && r.devices%(part*parts) != 0
	})
}

// wider reports whether a group spreads over more units than another, comparing from the outermost level inwards.
func (g Group) wider(than Group) bool {
	for l := maxLevels - 1; l >= 0; l-- {
		if g.Fan[l] != than.Fan[l] {
			return g.Fan[l] > than.Fan[l]
		}
	}
	return false
}

// Route is how far transfers go. For each level where some pair of sender and receiver is in the same unit, but not
// in the same unit of any level inside, it is the number of devices of a unit of the level inside that send over it
// at the same time. It is 0 for levels without such a pair.
type Route [maxLevels]int

// route returns how the devices of one stage send to those of another, all at the same time.
//
// With the default rank order, the devices of a stage are a run of ranks in every unit of the plan, and all receivers
// are as far from their senders as the first one is. The network repeats after a period ([period]). It is therefore
// enough to look at a few units of the plan, and at two periods of a long run.
func route(rungs []rung, layout *poolLayout, p *partition.Plan, from, to int) Route {
	run := p.DP * p.ContextParallel() * p.TP
	ranks := p.StageRanks(from)
	first, further := ranks.Of(0), p.WorldRank(to, 0)-ranks.Of(0)
	whole := layout.period(rungs)
	units := min(p.Units(), multiple(p.PlanNGPUs, whole)/p.PlanNGPUs)
	var apart []int // the devices of a stage in a unit, if they are no run
	if p.RankOrder != "" {
		for dp := range p.DP {
			for _, device := range p.Devices(dp) {
				apart = append(apart, ranks.Of(device))
			}
		}
		slices.Sort(apart)
	} else if p.PlanNGPUs%whole == 0 {
		run = min(run, 2*whole)
	}
	var most Route
	var unit, senders [maxLevels]int // by level, the unit of the level inside that is being counted, and its senders
	for u := range units {
		for d := range run {
			rank := first + u*p.PlanNGPUs + d
			if apart != nil {
				rank = u*p.PlanNGPUs + apart[d]
			}
			a, b := layout.address(rank), layout.address(rank+further)
			level := 0
			for rungs[level].devices < math.MaxInt && a/rungs[level].devices != b/rungs[level].devices {
				level++
			}
			if at := a / rungs[level].inside; senders[level] == 0 || at != unit[level] {
				unit[level], senders[level] = at, 0
			}
			senders[level]++
			most[level] = max(most[level], senders[level])
		}
	}
	return most
}

// period is the number of devices after which the network repeats: the size of the largest unit that there are
// several of.
func period(rungs []rung) int {
	period := 1
	for _, r := range rungs {
		if r.devices < math.MaxInt {
			period = r.devices // a multiple of those of the levels inside
		}
	}
	return period
}

// multiple returns the least common multiple.
func multiple(a, b int) int {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}

// Collective is the time of a collective over a group. bytes is the size of the whole tensor (before a scatter, after
// a gather); for all_to_all it is the size of one rank's part.
//
// The collective runs level by level, in rings inside and between units (Thakur et al. 2005). At each level a device
// carries the part of its unit's data that the levels inside leave to it, through its own port or its share of the
// unit's ports, since all groups of the job send at the same time. If units have different numbers of ranks, all wait
// for the units with few: see [Uneven].
//
// Latency counts once per hop, either around the ring of all ranks, or for an all_reduce up a tree of nodes and down
// again (double binary trees: Sanders et al. 2009) if that is shorter.
func (m *Model) Collective(op ir.Op, bytes int64, g Group) Picoseconds {
	return m.collective(op, bytes, 0, g, crossing{hops: 1, network: 1})
}

// crossing is how software sends one tensor through the network in a collective.
type crossing struct {
	hops    float64 // the tensor's share of the hops of the buffer that it is sent in
	network float64 // factor on the rate between nodes: see [Software.Replicas]
}

// collective is [Model.Collective] as software makes it. Of the result, every rank already has inPlace bytes.
// That counts only under [OnePass]: in a ring no rank moves its own part anyway.
func (m *Model) collective(op ir.Op, bytes, inPlace int64, g Group, by crossing) Picoseconds {
	if g.Size <= 1 {
		return 0
	}
	if m.onePass {
		return m.inOnePass(op, bytes, inPlace, g)
	}
	size, n := float64(bytes), float64(g.Size)
	outermost := 0
	for l, f := range g.Fan {
		if f > 1 {
			outermost = l
		}
	}
	t, ring, tree, reached := 0.0, 0.0, 0.0, 1.0
	for l, r := range m.rungs[:outermost+1] {
		f, rate := float64(g.Fan[l]), m.crossed(l, by)
		// All ranks but the last of each unit send inside it.
		hops := max(f-1, math.Ceil(n/reached)-math.Ceil(n/(reached*f)))
		u := g.Uneven[l]
		switch even := u == (Uneven{}); {
		case op == ir.OpAllToAll:
			peers := reached * (f - 1)
			if !even {
				peers = float64(u.Apart)
			}
			t += peers / n * size / rate
			hops = peers
		case even:
			t += (f - 1) / f * (size / reached) / rate
		default:
			t += u.share() * size / rate
		}
		ring += float64(hops * r.latency)
		deep := f - 1 // a chain
		if l > 0 {
			deep = math.Ceil(math.Log2(f))
		}
		tree += float64(deep * r.latency)
		reached *= f
	}
	if op == ir.OpAllReduce { // reduce-scatter, then all-gather; or up a tree and down
		return picoseconds(2*t + by.hops*(2*min(ring, tree)+m.launch))
	}
	return picoseconds(t + by.hops*(ring+m.launch))
}

// crossed is the bytes/s that a device reaches at a level when all ranks send.
func (m *Model) crossed(level int, by crossing) float64 {
	if level == 0 {
		return m.together[0]
	}
	return m.together[level] * by.network
}

// nearest is a lower bound of the time of a collective that sums or gathers over so many ranks, wherever they lie.
//
// At no level can a unit hold more of the group's ranks than it has devices. So, by summation by parts over the
// levels, the group sends at least as much over outer levels, with at least as many hops, as if its units were full.
// If an outer level is faster than the levels inside it, these count as equally fast.
func (m *Model) nearest(op ir.Op, bytes int64, ranks int, by crossing) Picoseconds {
	if m.onePass || ranks <= 1 {
		return m.collective(op, bytes, own(op, bytes, ranks), Group{Size: ranks}, by)
	}
	n, rate, latency := float64(ranks), 0.0, math.Inf(1)
	t, ring, tree, outside := 0.0, 0.0, 0.0, n
	for l := len(m.rungs) - 1; l >= 0; l-- {
		inside := min(n, float64(m.rungs[l].inside))
		rate, latency = max(rate, m.crossed(l, by)), min(latency, m.rungs[l].latency)
		t += (1/inside - 1/outside) * float64(bytes) / rate
		ring += (math.Ceil(n/inside) - math.Ceil(n/outside)) * latency
		tree += math.Log2(outside/inside) * latency
		outside = inside
	}
	const rounding = 1 - 1e-9
	if op == ir.OpAllReduce {
		return picoseconds((2*t + by.hops*(2*min(ring, tree)+m.launch)) * rounding)
	}
	return picoseconds((t + by.hops*(ring+m.launch)) * rounding)
}

// NoFaster reports whether no collective over group g takes less time than over the other group, whether the groups
// are data-parallel or tensor-parallel. Times are linear in the bytes, so it compares them at two sizes.
func (m *Model) NoFaster(g, than Group) bool {
	for _, op := range []ir.Op{ir.OpAllReduce, ir.OpAllGather, ir.OpReduceScatter, ir.OpAllToAll} {
		for _, bytes := range []int64{0, 1 << 33} { // the time of many more would be cut to longest
			for _, network := range []float64{1, m.beyond()} {
				by := crossing{hops: 1, network: network}
				if m.collective(op, bytes, 0, g, by) < m.collective(op, bytes, 0, than, by) {
					return false
				}
			}
		}
	}
	return true
}

// Straight reports whether the times of collectives, in isolation or beside kernels, are linear in their bytes. They
// are not where ranks share memory, or where products hide a part of them.
func (m *Model) Straight() bool { return !m.onePass && m.ranksPerCore == 0 && !m.software.AsyncTP }

// Transfer is the time to send bytes to a rank of another stage, for the slowest pair of ranks.
func (m *Model) Transfer(bytes int64, way Route) Picoseconds {
	if m.onePass { // read and written
		return picoseconds(m.meeting(2) + 2*float64(bytes)/m.together[0])
	}
	slowest := 0.0
	for l, senders := range way {
		if senders > 0 {
			slowest = max(slowest, m.rungs[l].latency+float64(bytes)/m.rungs[l].rate(senders))
		}
	}
	return picoseconds(slowest)
}

// network sets the levels of the cluster for a job of so many ranks.
func (m *Model) network(c *Cluster, ranks int) {
	m.rungs = c.hierarchy()
	for l := range m.rungs {
		if s := c.Software.Network; s > 0 && l > 0 {
			m.rungs[l].bandwidth *= s
		}
		if c.Device.Shared {
			m.rungs[l].bandwidth /= float64(ranks)
			if c.Collectives != OnePass {
				m.rungs[l].latency *= max(1, m.ranksPerCore)
			}
		}
		m.together = append(m.together, m.rungs[l].rate(min(ranks, m.rungs[l].inside)))
	}
}

// validateNetwork checks the levels, or the fields that describe the network without levels.
func (c *Cluster) validateNetwork() error {
	bad := func(key, format string, args ...any) error { return &FieldError{key, fmt.Sprintf(format, args...)} }
	if c.Device.Shared {
		switch {
		case len(c.Levels) > 0:
			return bad("levels", "have no meaning on a shared machine, which is one node")
		case c.NICsPerNode != 0:
			return bad("nics_per_node", "has no meaning on a shared machine, which is one node")
		case c.Oversubscription != 0 || c.NodesPerRack != 0:
			return bad("oversubscription", "has no meaning on a shared machine, which is one node")
		}
		return nil
	}
	switch o := c.Oversubscription; {
	case c.NICsPerNode < 0 || c.NICsPerNode > 1<<10:
		return bad("nics_per_node", "is %d, must be between 1 and %d", c.NICsPerNode, 1<<10)
	case o != 0 && !(o >= 1 && o <= 1e3):
		return bad("oversubscription", "is %v, must be between 1 and 1000", o)
	case c.NodesPerRack < 0 || c.NodesPerRack > 1<<16:
		return bad("nodes_per_rack", "is %d, must be between 1 and %d", c.NodesPerRack, 1<<16)
	case o != 0 && c.NodesPerRack == 0:
		return bad("nodes_per_rack", "is missing; oversubscription is of what leaves a rack")
	case o == 0 && c.NodesPerRack != 0:
		return bad("nodes_per_rack", "is %d, which means nothing without oversubscription", c.NodesPerRack)
	}
	if len(c.Levels) == 0 {
		return nil
	}
	if c.NICsPerNode != 0 || c.Oversubscription != 0 {
		return bad("levels", "state ports and bandwidths themselves: nics_per_node and oversubscription have no meaning beside them")
	}
	if len(c.Levels) > maxLevels {
		return bad("levels", "are %d, at most %d are read", len(c.Levels), maxLevels)
	}
	names := map[string]bool{}
	inside := 1
	for i, l := range c.Levels {
		key := func(name string) string { return levelKey(i) + "." + name }
		last := i == len(c.Levels)-1
		switch {
		case l.Name == "":
			return bad(key("name"), "is missing")
		case names[l.Name]:
			return bad(key("name"), "is %s, as another level's", l.Name)
		case last && l.Devices != 0:
			return bad(key("devices"), "is %d; the outermost level, %s, has all devices: leave it out", l.Devices, l.Name)
		case !last && (l.Devices <= inside && !(i == 0 && l.Devices == 1) || l.Devices%inside != 0 || l.Devices > 1<<20):
			return bad(key("devices"), "is %d, must be a larger multiple of the %d of the level inside, at most %d", l.Devices, inside, 1<<20)
		case l.NICs < 0 || l.NICs > 1<<20:
			return bad(key("nics"), "is %d, must be between 1 and %d", l.NICs, 1<<20)
		}
		names[l.Name] = true
		inside = l.Devices
		if err := (Link{l.Bandwidth, l.Efficiency, l.Latency}).validate(levelKey(i)); err != nil {
			return err
		}
	}
	derived := *c
	derived.deriveNode()
	if derived.DevicesPerNode != c.DevicesPerNode || derived.IntraNode != c.IntraNode || derived.InterNode != c.InterNode {
		return bad("devices_per_node", "and intra_node and inter_node are not those of the levels")
	}
	return nil
}

// Resized returns the cluster with so many devices in a node, and so many bytes/s for each of them between nodes; 0 leaves
// that as it is. Of levels inside a node and around it, those stay that still divide or hold it.
func (c *Cluster) Resized(perNode int, network float64) *Cluster {
	r := *c
	if len(c.Levels) == 0 {
		r.DevicesPerNode = perNode
		if network > 0 {
			r.InterNode.Bandwidth = network
		}
		return &r
	}
	at := c.nodeAt()
	r.Levels = nil
	for i, l := range c.Levels {
		last := i == len(c.Levels)-1 // it has all devices
		switch {
		case i == at && !last:
			l.Devices = perNode
		case i < at && (l.Devices >= perNode || perNode%l.Devices != 0), i > at && !last && (l.Devices <= perNode || l.Devices%perNode != 0):
			continue
		}
		if i > at && network > 0 && r.Levels[len(r.Levels)-1].Name == c.Levels[at].Name {
			l.Bandwidth = network
		}
		r.Levels = append(r.Levels, l)
	}
	r.deriveNode()
	return &r
}

// nodeAt is the index of the level whose units are nodes: the level called node, or else the last but one.
func (c *Cluster) nodeAt() int {
	if at := slices.IndexFunc(c.Levels, func(l Level) bool { return l.Name == nodeLevel }); at >= 0 {
		return at
	}
	return max(0, len(c.Levels)-2)
}

// deriveNode sets DevicesPerNode, IntraNode and InterNode from the levels: from that of nodes, and the level around it.
func (c *Cluster) deriveNode() {
	at := c.nodeAt()
	link := func(i int) Link {
		l := c.Levels[min(i, len(c.Levels)-1)]
		return Link{l.Bandwidth, l.Efficiency, l.Latency}
	}
	c.DevicesPerNode, c.IntraNode, c.InterNode = c.Levels[at].Devices, link(at), link(at+1)
	if c.DevicesPerNode == 0 {
		c.DevicesPerNode = 1 << 16
	}
}
