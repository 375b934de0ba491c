package cost

import (
	"fmt"
	"math"
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// Level is one step of a network's hierarchy, which joins units of the level
// inside it to a larger one: devices to pairs, pairs to nodes, nodes to racks, racks
// to the cluster.
type Level struct {
	Name string `json:"name"`
	// Devices is how many one unit has, a multiple of those of the level inside; 0 in
	// the outermost, which has them all.
	Devices int `json:"devices,omitempty"`
	// Bandwidth is what one device sends to other units inside, bytes/s in one
	// direction, when all devices do.
	Bandwidth  float64 `json:"bandwidth"`
	Efficiency float64 `json:"efficiency"` // share of the bandwidth that large messages reach
	Latency    float64 `json:"latency"`    // seconds per message
	// NICs are the ports that a unit inside has on this level; its devices share
	// them, and one that sends alone has one. 0 is a port per device.
	NICs int `json:"nics,omitempty"`
}

// maxLevels bounds the levels, so that a [Group] is a value.
const maxLevels = 5

// nodeLevel is the name of the level whose units are nodes.
const nodeLevel = "node"

// hierarchy returns the levels of a cluster with their ports, innermost first:
// those it states, or nodes, racks where what leaves them has less bandwidth, and
// the cluster.
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
		// The uplinks of a rack carry what a part of its ports can send, each at its rate.
		network.ports = min(network.ports, float64(c.DevicesPerNode)) * float64(c.NodesPerRack) / c.Oversubscription
		network.bandwidth /= c.Oversubscription
	}
	add(network, 0)
	return rungs
}

// rung is a level as it is priced.
type rung struct {
	inside, devices int     // of a unit inside, and of a unit
	bandwidth       float64 // bytes/s reached by a device when all send
	latency         float64 // seconds
	ports           float64 // of a unit inside
	// kinds, of the network of several pools, are the rungs there that messages go over:
	// they reach what the slowest does, and inside and devices are addresses. See [lie].
	kinds []rung
}

// rate is what each of a number of devices of a unit inside reaches that send at
// the same time: they share the unit's ports, of which none uses more than one.
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

// Group is a set of ranks that communicate. Fan tells how they are spread over the
// levels of the cluster: the most of them on one unit of the innermost level, and
// from level to level the most units inside that one unit has of the group. So a
// group of 16 on two nodes of 8 is {16, {8, 2}}.
type Group struct {
	Size   int
	Fan    Fan
	Uneven [maxLevels]Uneven // by level, zero where the units have as many as Fan says
}

// Fan is how a [Group] spreads, by level.
type Fan [maxLevels]int

// Uneven is how many ranks of a [Group] units of a level have, where that is not as many in all. Few and Around are those of the unit
// inside that has the most to bring in for each of its ranks, and of the unit around it: of a group of 9 on two nodes of 8 one rank
// brings in what eight have. Apart is the most ranks that a rank has in other units inside the same.
type Uneven struct{ Few, Around, Apart int }

// share is the part of a tensor that every rank of a unit inside brings in there from the others around it.
func (u Uneven) share() float64 { return 1/float64(u.Few) - 1/float64(u.Around) }

// even is what units of a level have where all have as many as Fan says.
func (g *Group) even(level int) Uneven {
	inside := 1
	for _, f := range g.Fan[:level] {
		inside *= f
	}
	return Uneven{inside, inside * g.Fan[level], inside * (g.Fan[level] - 1)}
}

// uneven notes what units of a level have; zero where that is as Fan says.
func (g *Group) uneven(level int, u Uneven) {
	if even := g.even(level); u.share() == even.share() && u.Apart == even.Apart {
		u = Uneven{}
	}
	g.Uneven[level] = u
}

// units returns what units of a level have.
func (g *Group) units(level int) Uneven {
	if u := g.Uneven[level]; u != (Uneven{}) {
		return u
	}
	return g.even(level)
}

// slowest is a group of which each level is the one where more is to be brought in: what groups take that wait for each other. It
// is as wide as the wider one.
func (g Group) slowest(other Group) Group {
	if other.wider(g) {
		g, other = other, g
	}
	for l, f := range g.Fan {
		if f == 0 {
			break // of a network with fewer levels
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

// spread returns the group of some ranks, which it sorts.
func spread(rungs []rung, ranks []int) Group {
	slices.Sort(ranks)
	g := Group{Size: len(ranks)}
	// run returns where the ranks end that lie in one unit of so many devices with the rank at a place.
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

// Groups lists how groups of so many ranks lie in the network of which neighbours are apart
// by a number of ranks, as all the ranks of a job are divided into them.
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

// Hierarchical reports whether it matters where so many ranks lie: not where they are all
// on one unit of the innermost level.
func (m *Model) Hierarchical(ranks int) bool { return ranks > m.rungs[0].devices }

// Divides reports whether a run of so many devices, or its parts of so many devices, are
// cut by units of a level of the network: not where a unit of each level is in a part of
// them, or has whole runs.
func (m *Model) Divides(part, parts int) bool {
	return slices.ContainsFunc(m.rungs, func(r rung) bool {
		return r.devices < math.MaxInt && part%r.devices != 0 && r.devices%(part*parts) != 0
	})
}

// wider reports whether a group is more spread than another: from the outermost
// level inwards, over more units.
func (g Group) wider(than Group) bool {
	for l := maxLevels - 1; l >= 0; l-- {
		if g.Fan[l] != than.Fan[l] {
			return g.Fan[l] > than.Fan[l]
		}
	}
	return false
}

// Route is how far a transfer goes: by level, where sender and receiver of some pair are one unit there and of no level
// inside, how many devices of a unit inside send over it at the same time; 0 where no pair is so.
type Route [maxLevels]int

// route returns how the devices of one stage send to those of another, all at the same time.
//
// The devices of a stage are a run in every unit of the plan, if its axes lie in the usual
// order, and those that they send to lie as far away as the first. Both lie in the network
// as they do one period of it further: so few units of the plan, and of a long run two
// periods, show all there is.
func route(rungs []rung, on *lie, p *partition.Plan, from, to int) Route {
	run := p.DP * p.ContextParallel() * p.TP
	ranks := p.StageRanks(from)
	first, further := ranks.Of(0), p.WorldRank(to, 0)-ranks.Of(0)
	whole := on.period(rungs)
	units := min(p.Units(), multiple(p.PlanNGPUs, whole)/p.PlanNGPUs)
	var apart []int // the devices of a stage in a unit, where they are no run
	if p.RankOrder != "" {
		apart = make([]int, run)
		for d := range apart {
			apart[d] = ranks.Of(d)
		}
		slices.Sort(apart)
	} else if p.PlanNGPUs%whole == 0 {
		run = min(run, 2*whole)
	}
	var most Route
	var unit, senders [maxLevels]int // by level, the unit inside that is counted, and its senders
	for u := range units {
		for d := range run {
			rank := first + u*p.PlanNGPUs + d
			if apart != nil {
				rank = u*p.PlanNGPUs + apart[d]
			}
			a, b := on.address(rank), on.address(rank+further)
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

// period is after how many devices the network looks the same again: the largest unit
// that there are several of.
func period(rungs []rung) int {
	period := 1
	for _, r := range rungs {
		if r.devices < math.MaxInt {
			period = r.devices // a multiple of those inside
		}
	}
	return period
}

// multiple is the least common one.
func multiple(a, b int) int {
	x, y := a, b
	for y != 0 {
		x, y = y, x%y
	}
	return a / x * b
}

// Collective is the time of a collective over a group. bytes is the size of the
// whole tensor (before a scatter, after a gather), for all_to_all of one rank's
// part. It goes level by level, rings inside and between units: a device carries
// the share of its unit that the levels inside leave it, through its own port or
// its part of those of the unit, as all of the job send at the same time
// (Thakur et al. 2005). Where units have unlike numbers of ranks all wait for those
// that have few: see [Uneven].
//
// Hops take their latency: around the ring that joins all ranks, or of an all_reduce
// up a tree of nodes and down again (double binary trees: Sanders et al. 2009), whichever is shorter.
func (m *Model) Collective(op ir.Op, bytes int64, g Group) Picoseconds {
	return m.collective(op, bytes, 0, g, crossing{hops: 1, network: 1})
}

// crossing is how software has a tensor cross the network in a collective.
type crossing struct {
	hops    float64 // its share of the hops: those of a buffer that it is sent in
	network float64 // multiplies the rate between nodes: see [Software.Replicas]
}

// collective is [Model.Collective] as software makes it, of a tensor of which every rank has
// so many bytes there, which counts in one pass: around a ring nobody moves what is its own.
func (m *Model) collective(op ir.Op, bytes, there int64, g Group, by crossing) Picoseconds {
	if g.Size <= 1 {
		return 0
	}
	if m.onePass {
		return m.inOnePass(op, bytes, there, g)
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
		// All ranks that are not the last of their unit send inside it.
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

// crossed is the rate that a device reaches at a level when all ranks send.
func (m *Model) crossed(level int, by crossing) float64 {
	if level == 0 {
		return m.together[0]
	}
	return m.together[level] * by.network
}

// nearest is the least time of a collective that sums or gathers over so many ranks, wherever
// they lie: of no level can a group have more inside a unit than that has devices, so that by
// summation by parts it sends, and hops, no less further out than if its units were full.
// Where an outer level is the faster one, all inside it count as fast.
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

// NoFaster reports whether no collective over a group, of data-parallel ranks or others,
// takes less time than over another: their times are straight lines over the bytes.
func (m *Model) NoFaster(g, than Group) bool {
	for _, op := range []ir.Op{ir.OpAllReduce, ir.OpAllGather, ir.OpReduceScatter, ir.OpAllToAll} {
		for _, bytes := range []int64{0, 1 << 33} { // of much more the time is out of range
			for _, axis := range []string{partition.AxisTP, partition.AxisDP} {
				by := crossing{hops: 1, network: m.beyond(axis)}
				if m.collective(op, bytes, 0, g, by) < m.collective(op, bytes, 0, than, by) {
					return false
				}
			}
		}
	}
	return true
}

// Straight reports whether the times of collectives, in or beside a model, are straight lines
// over their bytes: not where ranks share memory, or where products hide a part of them.
func (m *Model) Straight() bool { return !m.onePass && m.crowd == 0 && !m.software.AsyncTP }

// Transfer is the time to send bytes to a rank of another stage: that of the pair that it takes longest.
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

// network takes the levels of the cluster for a job of so many ranks.
func (m *Model) network(c *Cluster, ranks int) {
	m.rungs = c.hierarchy()
	for l := range m.rungs {
		if s := c.Software.Network; s > 0 && l > 0 {
			m.rungs[l].bandwidth *= s
		}
		if c.Device.Shared {
			m.rungs[l].bandwidth /= float64(ranks)
			if c.Collectives != OnePass {
				m.rungs[l].latency *= max(1, m.crowd)
			}
		}
		m.together = append(m.together, m.rungs[l].rate(min(ranks, m.rungs[l].inside)))
	}
}

// validateNetwork checks the levels, or what stands for them.
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
			return bad(key("devices"), "is %d, must be a larger multiple of the %d of the level inside", l.Devices, inside)
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

// deriveNode sets what stands for the levels where nodes are all that matters:
// the level called node, or else the last but one, and the level around it.
func (c *Cluster) deriveNode() {
	at := slices.IndexFunc(c.Levels, func(l Level) bool { return l.Name == nodeLevel })
	if at < 0 {
		at = max(0, len(c.Levels)-2)
	}
	link := func(i int) Link {
		l := c.Levels[min(i, len(c.Levels)-1)]
		return Link{l.Bandwidth, l.Efficiency, l.Latency}
	}
	c.DevicesPerNode, c.IntraNode, c.InterNode = c.Levels[at].Devices, link(at), link(at+1)
	if c.DevicesPerNode == 0 {
		c.DevicesPerNode = 1 << 16
	}
}
