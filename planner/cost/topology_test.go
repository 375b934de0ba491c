package cost

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// TestSpread: a group is counted level by level, and the sizes agree with those found by counting sets.
func TestSpread(t *testing.T) {
	c := round()
	c.NodesPerRack, c.Oversubscription = 2, 4
	rungs := c.hierarchy()
	require.Len(t, rungs, 3)
	require.Equal(t, Group{Size: 16, Fan: Fan{4, 2, 2}}, spread(rungs, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}))
	require.Equal(t, Group{3, Fan{1, 2, 2}, [maxLevels]Uneven{2: {1, 3, 2}}}, spread(rungs, []int{8, 0, 4}))
	require.Equal(t, Group{3, Fan{2, 1, 2}, [maxLevels]Uneven{2: {1, 3, 2}}}, spread(rungs, []int{0, 9, 8}), "one node of each rack")
	const seed = 5
	r := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		ranks := r.Perm(40)[:1+r.IntN(20)]
		g := spread(rungs, ranks)
		for l, rung := range rungs {
			parts := map[int]map[int]bool{}
			most := 0
			for _, rank := range ranks {
				unit := rank / rung.devices
				if parts[unit] == nil {
					parts[unit] = map[int]bool{}
				}
				parts[unit][rank/rung.inside] = true
				most = max(most, len(parts[unit]))
			}
			require.Equal(t, most, g.Fan[l], "seed %d ranks %v level %d", seed, ranks, l)
		}
	}
}

// TestThreeLevels compares a collective with a time worked out by hand: racks of two nodes of four, whose uplinks
// carry a quarter of what the nodes send.
func TestThreeLevels(t *testing.T) {
	c := round()
	c.NodesPerRack, c.Oversubscription = 2, 4
	m := NewModel(c, 16)
	// In nodes 3/4 of 1 MB at 1 GB/s; between the nodes of a rack 1/2 of a quarter at
	// 100 MB/s; between racks 1/2 of an eighth at 25 MB/s.
	// A ring of all makes 12 hops in nodes, 2 between those of a rack, 1 between racks.
	require.InDelta(t, float64((12+750+20+1250+10+2500)*us), float64(m.Collective(ir.OpAllGather, 1e6, Group{Size: 16, Fan: Fan{4, 2, 2}})), 1)
	require.Equal(t, 2*(10+5000+10+10000)*us, m.Collective(ir.OpAllReduce, 1e6, Group{Size: 4, Fan: Fan{1, 2, 2}}), "one device a node, beside the others")
	// An all_to_all of 1 MB sends a sixteenth of it to each rank.
	require.Equal(t, (3+40+2500+80+20000)*us+375*us/2, m.Collective(ir.OpAllToAll, 1e6, Group{Size: 16, Fan: Fan{4, 2, 2}}))
}

// TestUnevenGroups: if one node has fewer ranks of a group than another, these few receive what all others have, over
// their own ports.
func TestUnevenGroups(t *testing.T) {
	m := NewModel(round(), 8) // nodes of 4, 1 GB/s in them and 100 MB/s between
	one := spread(m.rungs, []int{0, 1, 2, 3, 4})
	moved := func(op ir.Op, g Group) Picoseconds { return m.Collective(op, 1e6, g) - m.Collective(op, 0, g) }
	// 3/4 of 1 MB in the node; the fifth rank has to get the other four's 800 kB.
	require.InDelta(t, float64((750+8000)*us), float64(moved(ir.OpAllGather, one)), 2)
	require.InDelta(t, float64(2*(750+8000)*us), float64(moved(ir.OpAllReduce, one)), 2)
	require.InDelta(t, float64((600+8000)*us), float64(moved(ir.OpAllToAll, one)), 2, "a fifth of 1 MB to each")
	two := spread(m.rungs, []int{0, 1, 2, 3, 4, 5}) // the two get 2/3 of it, each a half
	require.InDelta(t, float64((750+3333)*us), float64(moved(ir.OpAllGather, two)), float64(us))
	const seed = 6
	r := rand.New(rand.NewPCG(seed, 0))
	for range 500 { // what ranks have to bring in from outside a unit comes over its ports and those around it
		m := NewModel(randomNetwork(r), 40)
		ranks := r.Perm(40)[:2+r.IntN(20)]
		g := spread(m.rungs, ranks)
		for l, rung := range m.rungs {
			inside := map[int]int{}
			for _, rank := range ranks {
				inside[rank/rung.inside]++
			}
			for _, few := range inside {
				each := 1e6 * (1/float64(few) - 1/float64(len(ranks)))
				least := picoseconds(each / slices.Max(m.together[l:]))
				require.GreaterOrEqual(t, m.Collective(ir.OpAllGather, 1e6, g)-m.Collective(ir.OpAllGather, 0, g)+2, least, "seed %d: %v, level %d", seed, ranks, l)
			}
		}
	}
}

// TestHops: a gather takes the latency of the ring of all ranks, an all_reduce that of a tree if it is shorter. A
// tensor that is sent in a buffer with others pays its share of the buffer's hops.
func TestHops(t *testing.T) {
	m := NewModel(round(), 64) // a hop takes 1 us in a node of 4, 10 us between nodes
	all := Group{Size: 64, Fan: Fan{4, 16}}
	hops := func(op ir.Op) Picoseconds { return m.Collective(op, 0, all) }
	require.InDelta(t, float64((48+150)*us), float64(hops(ir.OpAllGather)), 1)
	require.InDelta(t, float64((48+150)*us), float64(hops(ir.OpReduceScatter)), 1)
	require.InDelta(t, float64(2*(3+40)*us), float64(hops(ir.OpAllReduce)), 1)
	require.InDelta(t, float64(2*3*us), float64(m.Collective(ir.OpAllReduce, 0, Group{Size: 4, Fan: Fan{4, 1}})), 1, "in a node it is a chain")

	full, half := m.collective(ir.OpAllGather, 1e6, 0, all, crossing{1, 1}), m.collective(ir.OpAllGather, 1e6, 0, all, crossing{0.5, 1})
	require.InDelta(t, float64(hops(ir.OpAllGather))/2, float64(full-half), 2)
	require.Equal(t, 1.0, m.buffered(1e6), "one tensor at a time")
	m.software.Buffer = 4e6
	require.Equal(t, 0.25, m.buffered(1e6))
	require.Equal(t, 1.0, m.buffered(9e6), "more than a buffer")
}

// TestPortsAreShared: a device that sends alone has a port to itself, and all devices of a node share its ports.
func TestPortsAreShared(t *testing.T) {
	c := round() // 100 MB/s a device, so 400 MB/s a node
	c.NICsPerNode = 2
	m := NewModel(c, 8)
	require.Equal(t, 5010*us, m.Transfer(1e6, Route{1: 1}), "one port of 200 MB/s")
	require.Equal(t, 5010*us, m.Transfer(1e6, Route{1: 2}))
	require.Equal(t, 10010*us, m.Transfer(1e6, Route{1: 4}))
	require.Equal(t, 2*(10+5000)*us, m.Collective(ir.OpAllReduce, 1e6, Group{Size: 2, Fan: Fan{1, 2}}), "all of the job send")
	require.Equal(t, 2*(10+2500)*us, NewModel(c, 2).Collective(ir.OpAllReduce, 1e6, Group{Size: 2, Fan: Fan{1, 2}}), "a job of two ranks a node")
	// Of a rack of 8 devices two may send at the rate of their ports, more share it.
	c.NICsPerNode, c.NodesPerRack, c.Oversubscription = 0, 2, 4
	m = NewModel(c, 16)
	require.Equal(t, 10010*us, m.Transfer(1e6, Route{2: 2}))
	require.InDelta(t, float64(40010*us), float64(m.Transfer(1e6, Route{2: 8})), 1, "a quarter of 100 MB/s")
}

// TestRoute: stages in the same node send inside it, others over the ports that they share.
func TestRoute(t *testing.T) {
	c := round()
	rungs := c.hierarchy()
	plan := func(dp, tp, pp int) *partition.Plan {
		return &partition.Plan{PlanNGPUs: dp * tp * pp, RuntimeNGPUs: dp * tp * pp, DP: dp, TP: tp, MicroBatch: 1, Stages: make([]partition.Stage, pp)}
	}
	p := plan(1, 1, 4)
	require.Equal(t, Route{0: 1}, route(rungs, nil, p, 0, 1))
	p = plan(1, 2, 4)
	require.Equal(t, Route{0: 1}, route(rungs, nil, p, 0, 1))
	require.Equal(t, Route{1: 2}, route(rungs, nil, p, 1, 2), "two ranks leave the node together")
	require.Equal(t, Route{1: 2}, route(rungs, nil, p, 2, 1))
	p = plan(1, 4, 2)
	require.Equal(t, Route{1: 4}, route(rungs, nil, p, 0, 1))
}

// TestLevels: levels can state what nodes state, and more.
func TestLevels(t *testing.T) {
	source, err := Source("h100")
	require.NoError(t, err)
	nodes, err := Load("h100")
	require.NoError(t, err)
	head, _, found := strings.Cut(string(source), "devices_per_node:")
	require.True(t, found)
	level := func(name string, devices int, l Link) string {
		return fmt.Sprintf("  - {name: %s, devices: %d, bandwidth: %v, efficiency: %v, latency: %v}\n", name, devices, l.Bandwidth, l.Efficiency, l.Latency)
	}
	two, err := Parse("x.yaml", []byte(head+"\nlevels:\n"+level("node", 8, nodes.IntraNode)+level("cluster", 0, nodes.InterNode)))
	require.NoError(t, err)
	require.Equal(t, nodes.IntraNode, two.IntraNode)
	require.Equal(t, nodes.InterNode, two.InterNode)
	require.Equal(t, nodes.DevicesPerNode, two.DevicesPerNode)
	require.Equal(t, nodes.hierarchy(), two.hierarchy())

	// Pairs on NVLink, PCIe between the pairs of a node, one network card a node.
	pairs := head + `
levels:
  - {name: pair, devices: 2, bandwidth: 300e9, efficiency: 0.8, latency: 5e-6}
  - {name: node, devices: 8, bandwidth: 16e9, efficiency: 0.8, latency: 5e-6}
  - {name: cluster, bandwidth: 1.5e9, efficiency: 0.8, latency: 15e-6, nics: 1}
`
	c, err := Parse("x.yaml", []byte(pairs))
	require.NoError(t, err)
	require.Equal(t, 8, c.DevicesPerNode)
	require.Equal(t, 16e9, c.IntraNode.Bandwidth)
	m := NewModel(c, 16)
	require.Less(t, 10*m.Collective(ir.OpAllReduce, 1e9, Group{Size: 2, Fan: Fan{2, 1, 1}}), m.Collective(ir.OpAllReduce, 1e9, Group{Size: 2, Fan: Fan{1, 2, 1}}))

	for _, tt := range []struct{ old, new, want string }{
		{"devices: 8", "devices: 7", "x.yaml:18:18: levels[1].devices: is 7, must be a larger multiple of the 2 of the level inside"},
		{"devices: 8", "devices: 2", "x.yaml:18:18: levels[1].devices: is 2"},
		{"devices: 8", "devices: -1", "x.yaml:18:18: levels[1].devices: is -1"},
		{"devices: 8", "devices: 2097152", "x.yaml:18:18: levels[1].devices: is 2097152"},
		{"name: cluster,", "name: cluster, devices: 64,", "levels[2].devices: is 64; the outermost level, cluster, has all devices"},
		{"name: pair,", "name: node,", "levels[1].name: is node, as another level's"},
		{"name: pair,", "", "x.yaml:17:5: levels[0].name: is missing"},
		{"nics: 1", "nics: -1", "levels[2].nics: is -1"},
		{"nics: 1", "nic: 1", "x.yaml:19:72: levels[2].nic: unknown key; did you mean levels[2].nics?"},
		{"bandwidth: 16e9", "bandwidth: 0", "x.yaml:18:30: levels[1].bandwidth: is 0 bytes/s, must be between"},
		{pairs[strings.Index(pairs, "levels:"):], "levels: 3\n", "x.yaml:16:1: levels: wants a list of levels, got the integer 3"},
		{"levels:", "nics_per_node: 2\nlevels:", "x.yaml:17:1: levels: state ports and bandwidths themselves"},
		{"levels:", "level:", "x.yaml:16:1: level: unknown key; did you mean levels?"},
	} {
		text := strings.Replace(pairs, tt.old, tt.new, 1)
		require.NotEqual(t, pairs, text, tt.old)
		_, err := Parse("x.yaml", []byte(text))
		require.ErrorContains(t, err, tt.want)
	}
	c.InterNode.Bandwidth++
	require.ErrorContains(t, c.Validate(), "devices_per_node: and intra_node and inter_node are not those of the levels")
}

// TestSlowerLinksCostMore: on random hierarchies no collective and no transfer gets faster with another sender, fewer
// ports, or a wider group.
func TestSlowerLinksCostMore(t *testing.T) {
	const seed = 21
	r := rand.New(rand.NewPCG(seed, 0))
	for range 500 {
		c := round()
		c.NICsPerNode = 1 + r.IntN(4)
		if r.IntN(2) == 0 {
			c.NodesPerRack, c.Oversubscription = 1+r.IntN(3), 1+4*r.Float64()
		}
		m := NewModel(c, 24)
		bytes := r.Int64N(1e7)
		for l, rung := range m.rungs {
			for s := 1; s < rung.inside; s++ {
				var way, more Route
				way[l], more[l] = s, s+1
				require.LessOrEqual(t, m.Transfer(bytes, way), m.Transfer(bytes, more), "seed %d", seed)
			}
		}
		fewer := *c
		fewer.NICsPerNode = 1
		g := spread(m.rungs, r.Perm(24)[:2+r.IntN(10)])
		for _, op := range []ir.Op{ir.OpAllReduce, ir.OpAllGather, ir.OpAllToAll} {
			require.LessOrEqual(t, m.Collective(op, bytes, g), NewModel(&fewer, 24).Collective(op, bytes, g)+1, "seed %d", seed)
		}
	}
}

// randomNetwork returns a cluster whose outer links may be faster than its inner ones.
func randomNetwork(r *rand.Rand) *Cluster {
	link := func() Link {
		return Link{Bandwidth: math.Pow(10, 7+4*r.Float64()), Efficiency: 0.1 + 0.9*r.Float64(), Latency: math.Pow(10, -7+4*r.Float64())}
	}
	c := round()
	c.IntraNode, c.InterNode, c.DevicesPerNode = link(), link(), 1+r.IntN(9)
	if r.IntN(3) == 0 {
		pair := 1 + r.IntN(4)
		for i, devices := range []int{pair, pair * (2 + r.IntN(3)), 0} {
			l := link()
			c.Levels = append(c.Levels, Level{fmt.Sprint(i), devices, l.Bandwidth, l.Efficiency, l.Latency, r.IntN(4)})
		}
		c.derive()
		return c
	}
	c.NICsPerNode = r.IntN(4)
	if r.IntN(2) == 0 {
		c.NodesPerRack, c.Oversubscription = 1+r.IntN(4), 1+8*r.Float64()
	}
	return c
}

// TestFasterLinksAreNotSlower: on random networks, with one kind of device or two, no communication takes longer over
// links with more bandwidth or less latency, or less time with more bytes.
func TestFasterLinksAreNotSlower(t *testing.T) {
	for seed := range uint64(1500) {
		r := rand.New(rand.NewPCG(seed, 3))
		p := &partition.Plan{DP: 1 + r.IntN(4), CP: 1 + r.IntN(2), TP: 1 + r.IntN(6), MicroBatch: 1, Stages: make([]partition.Stage, 1+r.IntN(4))}
		p.PlanNGPUs = p.DP * p.CP * p.TP * p.PP()
		p.RuntimeNGPUs = p.PlanNGPUs * (1 + r.IntN(3))
		p.RankOrder = []string{"", "dp-tp-cp-pp", "pp-dp-tp-cp", "pp-tp-cp-dp"}[r.IntN(4)]
		c := randomNetwork(r)
		if r.IntN(2) == 0 {
			between := randomNetwork(r).InterNode
			c = Join("two", &between, Pool{c, 1 + r.IntN(p.RuntimeNGPUs)}, Pool{randomNetwork(r), p.RuntimeNGPUs})
		}
		require.NoError(t, c.Validate(), "seed %d", seed)
		fast := c.Faster([]Resource{IntraLink, InterLink}[r.IntN(2)], 1+9*r.Float64())
		if r.IntN(2) == 0 { // one figure alone
			fast = c.Clone()
			all := fast.Constants()
			k := all[r.IntN(len(all))]
			by := 1 + 9*r.Float64()
			if strings.HasSuffix(k.Key, "latency") {
				by = 1 / by
			}
			k.Scale(fast, by)
		}
		before, after := NewProgram(c, p, p.Mesh(64)), NewProgram(fast, p, p.Mesh(64))
		bytes := int64(math.Pow(10, 9*r.Float64()))
		for at := range p.PP() {
			x, y := before.As(at), after.As(at)
			for axis, a := range x.mesh.Axes {
				if a.Time {
					continue
				}
				for _, op := range []ir.Op{ir.OpAllReduce, ir.OpAllGather, ir.OpReduceScatter, ir.OpAllToAll} {
					took := x.Collective(op, bytes, x.Group(axis))
					require.LessOrEqual(t, y.Collective(op, bytes, y.Group(axis)), took, "seed %d: %s over %s", seed, op, a.Name)
					require.GreaterOrEqual(t, x.Collective(op, bytes+1000, x.Group(axis)), took, "seed %d: %s over %s", seed, op, a.Name)
				}
			}
			for to := range p.PP() {
				if to != at {
					require.LessOrEqual(t, y.Transfer(bytes, y.route(at, to)), x.Transfer(bytes, x.route(at, to)), "seed %d: from %d to %d", seed, at, to)
				}
			}
		}
	}
}

// TestTransferOfTheSlowestPair: if some pairs of two stages share a node and others do not, short messages take the
// latency between nodes, whatever the bandwidth there.
func TestTransferOfTheSlowestPair(t *testing.T) {
	c := round() // 1 us in nodes of 4
	c.InterNode = Link{Bandwidth: 2e9, Efficiency: 1, Latency: 1e-5}
	p := &partition.Plan{PlanNGPUs: 6, RuntimeNGPUs: 6, DP: 1, TP: 3, MicroBatch: 1, Stages: make([]partition.Stage, 2)}
	m := NewProgram(c, p, p.Mesh(1))
	require.Equal(t, Route{1, 2}, m.route(0, 1))
	require.InDelta(t, float64(21*us/2), float64(m.Transfer(1e3, m.route(0, 1))), 1)
	require.Equal(t, 1001*us, m.Transfer(1e6, m.route(0, 1)), "and long ones for the bandwidth inside")
}

// TestResized: resized clusters are valid, whatever levels they have, and of their own size they are the same.
func TestResized(t *testing.T) {
	level := func(name string, devices int) Level {
		return Level{Name: name, Devices: devices, Bandwidth: 1e9, Efficiency: 1}
	}
	c, err := Load("v100")
	require.NoError(t, err)
	for _, levels := range [][]Level{
		c.Levels,
		{level("all", 0)},
		{level("inner", 4), level("all", 0)},
		{level("socket", 4), level(nodeLevel, 8), level("rack", 32), level("pod", 96), level("all", 0)},
	} {
		c.Levels = levels
		c.deriveNode()
		require.Equal(t, c, c.Resized(c.DevicesPerNode, 0))
		for _, perNode := range []int{1, 2, 3, 4, 8, 12, 16, 24, 32, 48, 96, 100} {
			r := c.Resized(perNode, 3e9)
			require.NoError(t, r.Validate(), "%d in a node of %v: %v", perNode, levels, r.Levels)
			if len(levels) > 1 {
				require.Equal(t, perNode, r.DevicesPerNode)
				require.Equal(t, 3e9, r.InterNode.Bandwidth)
				require.NotEqual(t, 3e9, r.IntraNode.Bandwidth)
			}
		}
	}
}
