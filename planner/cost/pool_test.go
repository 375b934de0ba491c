package cost

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// twoKinds is two nodes of 4 slow devices, with a rack each, and one of 2 fast ones.
func twoKinds() *Cluster {
	slow := &Cluster{
		Name: "slow", DevicesPerNode: 4, NodesPerRack: 1, Oversubscription: 2,
		IntraNode: Link{1e9, 1, 1e-6}, InterNode: Link{1e8, 1, 1e-5}, Host: &Link{1e9, 1, 1e-6},
		Device: Device{Name: "S", Cores: 1, Memory: 4 << 30, Reserve: 1 << 30, FLOPS: map[string]float64{"f32": 1e12, "bf16": 4e12}, MemoryBandwidth: 4e12, LaunchOverhead: 1e-6,
			Efficiency: Efficiency{Matmul: 0.5, Attention: 0.5, Vector: 0.5, Memory: 1}},
	}
	fast := &Cluster{
		Name: "fast", DevicesPerNode: 2, IntraNode: Link{2e9, 1, 2e-6}, InterNode: Link{2e8, 1, 1e-5}, Host: &Link{2e9, 1, 2e-6},
		Device: Device{Name: "F", Cores: 1, Memory: 2 << 30, FLOPS: map[string]float64{"f32": 3e12, "f8": 9e12}, MemoryBandwidth: 1e12, LaunchOverhead: 2e-6,
			Efficiency: Efficiency{Matmul: 0.5, Attention: 0.5, Vector: 0.5, Memory: 1}},
	}
	return Join("both", &Link{5e7, 1, 1e-4}, Pool{slow, 8}, Pool{fast, 2})
}

func planOf(unit, runtime, dp, tp, pp int, order ...int) *partition.Plan {
	p := &partition.Plan{PlanNGPUs: unit, RuntimeNGPUs: runtime, DP: dp, TP: tp, MicroBatch: 1, Schedule: partition.OneFOneB, PoolOrder: order}
	for i := range pp {
		p.Stages = append(p.Stages, partition.Stage{First: i, Last: i + 1})
	}
	return p
}

func TestPositionsLieOnPools(t *testing.T) {
	c := twoKinds()
	require.NoError(t, c.Validate())
	for _, tt := range []struct {
		why  string
		plan *partition.Plan
		want []Kinds // by position
	}{
		{"a pipeline along the pools", planOf(10, 10, 1, 2, 5), []Kinds{1, 1, 1, 1, 2}},
		{"turned around", planOf(10, 10, 1, 2, 5, 1, 0), []Kinds{2, 1, 1, 1, 1}},
		{"a position where the pools meet", planOf(10, 10, 5, 1, 2), []Kinds{1, 3}},
		{"and turned around", planOf(10, 10, 5, 1, 2, 1, 0), []Kinds{3, 1}},
		{"units side by side, the last on the other kind", planOf(2, 10, 1, 1, 2), []Kinds{3, 3}},
		{"units on one kind", planOf(2, 8, 1, 1, 2), []Kinds{1, 1}},
		{"fewer ranks than devices", planOf(2, 2, 1, 1, 2, 1, 0), []Kinds{2, 2}},
	} {
		require.NoError(t, c.Holds(tt.plan), tt.why)
		for at, want := range tt.want {
			require.Equal(t, want, c.KindsAt(tt.plan, at), "%s: position %d", tt.why, at)
		}
	}
	meet := planOf(10, 10, 5, 1, 2)
	require.Equal(t, "pool 0, slow", c.KindText(meet, 0))
	require.Equal(t, "pools 0 and 1, slow and fast", c.KindText(meet, 1))
	require.Equal(t, int64(3<<30), c.MemoryAt(meet, 0))
	require.Equal(t, int64(2<<30), c.MemoryAt(meet, 1), "that of the smallest")
	require.Equal(t, int64(3<<30), c.MemoryPerRank(10), "that of the roomiest")
	require.Equal(t, 8*1e12+2*3e12, c.JobFLOPS("f32", meet))
	require.Equal(t, 2*3e12+1e12, c.JobFLOPS("f32", planOf(3, 3, 1, 3, 1, 1, 0)))
	require.Equal(t, 0, c.Node(meet, 3))
	require.Equal(t, 2, c.Node(meet, 8))
	require.Equal(t, 1, c.Node(planOf(10, 10, 1, 2, 5, 1, 0), 5))
	require.Equal(t, [][]int{nil, {1, 0}}, c.Orders())
	three := Join("three", nil, append(c.Pools, Pool{c.Pools[0].Cluster, 1})...)
	require.Equal(t, [][]int{nil, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}, three.Orders())
	for i, order := range three.Orders() {
		require.Equal(t, i, three.Order(planOf(1, 1, 1, 1, 1, order...)))
	}
	var bad *partition.PlanError
	require.ErrorAs(t, c.Holds(planOf(11, 11, 11, 1, 1)), &bad)
	require.Equal(t, "runtime_ngpus", bad.Key)
	require.ErrorAs(t, c.Holds(planOf(2, 2, 1, 1, 2, 0, 2, 1)), &bad)
	require.Equal(t, "pool_order", bad.Key)
}

// What messages take on two kinds, by hand.
func TestNetworkOfPools(t *testing.T) {
	c := twoKinds()
	p := planOf(10, 10, 5, 1, 2)
	m := NewProgram(c, p, p.Mesh(5))
	dp := 0
	// Ranks 0 to 4 are a node of the first pool and a device of its second rack.
	require.Equal(t, Group{5, Fan{4, 1, 2, 1}, [maxLevels]Uneven{2: {1, 5, 4}}}, m.As(0).Group(dp))
	// Ranks 5 to 9 are three of that node and the node of the second pool.
	require.Equal(t, Group{5, Fan{3, 1, 1, 2}, [maxLevels]Uneven{3: {2, 5, 3}}}, m.As(1).Group(dp))
	near := func(want float64, got Picoseconds) {
		t.Helper()
		require.InDelta(t, want, got.Seconds(), 2e-12)
	}
	// Position 1 gathers 60 MB at the worse latency of three hops in nodes and the worse
	// rate of a node; and its two ranks in the second pool bring in what the three of the
	// first have, each a half of it, over the link between the pools.
	const bytes = 60e6
	near(3*2e-6+2./3*bytes/1e9+1e-4+3./5*(bytes/2)/5e7+2e-6, m.As(1).Collective(ir.OpAllGather, bytes, m.As(1).Group(dp)))
	// Position 0 has no device of the second pool: that in the second rack brings in what all others have.
	near(3*1e-6+3./4*bytes/1e9+1e-5+4./5*bytes/5e7+1e-6, m.As(0).Collective(ir.OpAllGather, bytes, m.As(0).Group(dp)))
	// Three devices of a node, one of another, and one of another rack: all its peers but
	// a few are inside, and the message there is not free.
	require.Greater(t, m.Collective(ir.OpAllToAll, 1e6, Group{Size: 5, Fan: Fan{3, 2, 2}}), m.Collective(ir.OpAllToAll, 1e6, Group{Size: 5, Fan: Fan{3, 2, 1}}))
	// One position for two ranks: what goes to the fast pool goes over the link between.
	q := planOf(10, 10, 2, 1, 5)
	m = NewProgram(c, q, q.Mesh(2))
	require.Equal(t, Route{0: 1}, m.route(0, 1))
	require.Equal(t, Route{2: 2}, m.route(1, 2), "another rack")
	require.Equal(t, Route{3: 2}, m.route(3, 4), "another pool")
	require.Equal(t, Route{3: 2}, m.route(0, 4))
	near(1e-4+1e6/5e7, m.As(3).Transfer(1e6, m.route(3, 4)))
	turned := planOf(10, 10, 2, 1, 5, 1, 0)
	m = NewProgram(c, turned, turned.Mesh(2))
	require.Equal(t, Route{3: 2}, m.route(0, 1), "the other pool first")
	require.Equal(t, Route{0: 1}, m.route(1, 2))
	same := planOf(8, 8, 1, 1, 8)
	m = NewProgram(c, same, same.Mesh(1))
	require.Equal(t, m.Offset(1), m.Offset(2), "inside a node")
	require.NotEqual(t, m.Offset(2), m.Offset(3), "at its end")
}

// A kernel takes what it takes on its kind, and on two what the slowest takes.
func TestKernelsOfPools(t *testing.T) {
	c := twoKinds()
	p := planOf(10, 10, 5, 1, 2)
	m := NewProgram(c, p, p.Mesh(5))
	slow, fast, both := m.OnKinds(1), m.OnKinds(2), m.OnKinds(3)
	products := work{class: product, dtype: ir.F32, flops: 1e9}
	copies := work{bytes: 1e9}
	require.Equal(t, slow.kernel(&products), both.kernel(&products), "arithmetic")
	require.Equal(t, fast.kernel(&copies), both.kernel(&copies), "memory")
	require.Greater(t, slow.kernel(&products), fast.kernel(&products))
	require.Greater(t, fast.kernel(&copies), slow.kernel(&copies))
	require.InDelta(t, 1e9/(0.5*1e12)+1e-6, slow.kernel(&products).Seconds(), 1e-12)
	require.InDelta(t, 1e9/(0.5*3e12)+2e-6, fast.kernel(&products).Seconds(), 1e-12)
	require.InDelta(t, 2e-6+1e9/1e9, both.HostCopy(1e9).Seconds(), 1e-12, "the worse of each figure")
	require.Equal(t, m.As(0).kernel(&products), slow.kernel(&products))
	require.Equal(t, m.As(1).kernel(&products), both.kernel(&products))
	alone := NewModel(c.Pools[1].Cluster, 2)
	require.Equal(t, alone.kernel(&products), fast.kernel(&products))
}

// A collective delays the kernels beside it by what it delays those of the kind that it delays most, in whatever order
// the pools come.
func TestCollectivesBesideKernelsOfPools(t *testing.T) {
	p := planOf(10, 10, 5, 1, 2)
	for _, shares := range [][2]float64{{0.5, 0.8}, {0.8, 0.5}, {0, 0.5}, {0.5, 0}} {
		c := twoKinds()
		for i, share := range shares {
			c.Pools[i].Cluster.Device.Efficiency.Beside = share
		}
		m := NewProgram(c, p, p.Mesh(5))
		require.EqualValues(t, 500, m.OnKinds(3).Slows(1000), "%v", shares)
		require.EqualValues(t, 500, max(m.OnKinds(1).Slows(1000), m.OnKinds(2).Slows(1000)), "%v", shares)
	}
}

// TestPoolsOfOneKind: two pools of one kind cost what one cluster with the same nodes does, for kernels, for what
// stays inside a pool and for single messages. Collectives over both pools cross one more level.
func TestPoolsOfOneKind(t *testing.T) {
	h, err := Load("h100")
	require.NoError(t, err)
	c := Join("halves", &h.InterNode, Pool{h.Clone(), 16}, Pool{h.Clone(), 16})
	p := planOf(32, 32, 1, 8, 4)
	g, one := NewProgram(c, p, p.Mesh(1)), NewProgram(h, p, p.Mesh(1))
	for at := range 4 {
		for axis := range p.Mesh(1).Axes {
			require.Equal(t, one.As(at).Group(axis).Size, g.As(at).Group(axis).Size)
			require.Equal(t, one.As(at).Collective(ir.OpAllReduce, 1e8, one.As(at).Group(axis)), g.As(at).Collective(ir.OpAllReduce, 1e8, g.As(at).Group(axis)))
		}
		if at > 0 {
			require.Equal(t, one.As(at).Transfer(1e8, one.route(at, at-1)), g.As(at).Transfer(1e8, g.route(at, at-1)), "to position %d", at-1)
		}
	}
	require.Equal(t, h.PeakFLOPS("bf16", 32)*32, c.JobFLOPS("bf16", p))
}

func TestPoolsYAML(t *testing.T) {
	dir := t.TempDir()
	own, err := Source("v100")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "mine.yaml"), own, 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "bad.yaml"), []byte(strings.Replace(string(own), "name: v100", "nmae: v100", 1)), 0o644))
	const text = "name: mixed\npools:\n  - {cluster: A100, devices: 16}\n  - cluster: ./mine.yaml\n    devices: 12\nbetween: {bandwidth: 10e9, efficiency: 0.9, latency: 30e-6}\n"
	file := filepath.Join(dir, "mixed.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	c, err := Load(file)
	require.NoError(t, err)
	require.Equal(t, 28, c.Devices())
	require.Equal(t, []string{"a100-80g", "v100"}, []string{c.Pools[0].Cluster.Name, c.Pools[1].Cluster.Name})
	require.Equal(t, Link{10e9, 0.9, 30e-6}, c.Between)
	require.Equal(t, Current, c.Software.Name)
	other, err := Parse(file, []byte("software: megatron-2021\n"+text))
	require.NoError(t, err)
	require.Equal(t, "megatron-2021", other.Pools[1].Cluster.Software.Name, "all run the software of the whole")

	words, err := Load("a100-80g:16+" + filepath.Join(dir, "mine.yaml") + ":12")
	require.NoError(t, err)
	require.Equal(t, c.Pools, words.Pools)
	require.Equal(t, c.Pools[1].Cluster.InterNode.Bandwidth, words.Between.Bandwidth, "the slowest link between nodes")

	for _, tt := range []struct{ old, new, want string }{
		{"cluster: A100", "cluster: A1000", "mixed.yaml:3:6: pools[0].cluster: no built-in cluster \"A1000\"; did you mean a100"},
		{"cluster: A100", "gpu: A100", "mixed.yaml:3:6: pools[0].gpu: unknown key; did you mean pools[0].cluster?"},
		{"cluster: A100, ", "", "mixed.yaml:3:5: pools[0].cluster: is missing"},
		{", devices: 16", "", "mixed.yaml:3:5: pools[0].devices: is missing"},
		{"devices: 16", "devices: 0", "mixed.yaml:3:21: pools[0].devices: is 0, must be between 1 and"},
		{"devices: 16", "devices: two", "mixed.yaml:3:21: pools[0].devices: wants an integer"},
		{"cluster: A100", "cluster: cpu", "mixed.yaml:3:6: pools[0].cluster: is cpu, one machine that all ranks share"},
		{"./mine.yaml", "cpu", "mixed.yaml:4:5: pools[1].cluster: is cpu, one machine that all ranks share"},
		{"./mine.yaml", "./gone.yaml", "mixed.yaml:4:5: pools[1].cluster: "},
		{"./mine.yaml", "./bad.yaml", "nmae: unknown key; did you mean name?"},
		{"./mine.yaml", "./mixed.yaml", "mixed.yaml:2:1: pools: has no meaning in a pool of another cluster"},
		{"  - cluster: ./mine.yaml\n    devices: 12\n", "", "mixed.yaml:2:1: pools: are 1, must be 2 to 4"},
		{"bandwidth: 10e9", "bandwidth: 0", "mixed.yaml:6:11: between.bandwidth: is 0 bytes/s"},
		{", latency: 30e-6", "", "mixed.yaml:6:1: between.latency: is missing"},
		{"name: mixed", "name: mixed\ndevices_per_node: 8", "mixed.yaml:2:1: devices_per_node: has no meaning beside pools"},
		{"name: mixed", "name: mixed\ndevice: {memory: 1GiB}", "mixed.yaml:2:1: device: has no meaning beside pools"},
		{"name: mixed\n", "", "mixed.yaml:1:1: name: is missing"},
		{"pools:\n", "pools: 3\nother:\n", "mixed.yaml:2:1: pools: wants a list of pools, got the integer 3"},
	} {
		bad := strings.Replace(text, tt.old, tt.new, 1)
		require.NotEqual(t, text, bad, tt.old)
		require.NoError(t, os.WriteFile(file, []byte(bad), 0o644))
		_, err := Load(file)
		require.ErrorContains(t, err, tt.want, tt.new)
	}
	one, err := Source("h100")
	require.NoError(t, err)
	_, err = Parse("x.yaml", append(one, "between: {bandwidth: 1e9, efficiency: 1, latency: 0}\n"...))
	require.ErrorContains(t, err, "x.yaml:19:1: between: means nothing without pools")
	for _, tt := range []struct{ words, want string }{
		{"h100:8+a100", `"a100" has no number of devices; want NAME:DEVICES+NAME:DEVICES`},
		{"h100:8+a100:", `"" is no number of devices`},
		{"h100:8+a10:8", `did you mean a10g?`},
		{"h100:8", "is of one kind; want h100 alone, whose number of devices is that of the ranks"},
		{"none+such/cluster.yaml", "none+such/cluster.yaml: cannot be read: no such file"},
		{"h100+a100", `"h100" has no number of devices; want NAME:DEVICES+NAME:DEVICES`},
		{"h100:8+a100:-1", "pools[1].devices: is -1"},
	} {
		_, err := Load(tt.words)
		require.ErrorContains(t, err, tt.want, tt.words)
	}
}

// Every figure of every pool is uncertain, and can be faster.
func TestConstantsOfPools(t *testing.T) {
	c := twoKinds()
	keys := map[string]bool{}
	for _, k := range c.Constants() {
		keys[k.Key] = true
		d := c.Clone()
		k.Scale(d, 0.5)
		require.NotEqual(t, c, d, k.Key)
		require.NoError(t, d.Validate(), k.Key)
	}
	require.Equal(t, twoKinds(), c, "clones share nothing")
	for _, key := range []string{"pools[0].device.efficiency.matmul", "pools[1].inter_node.latency", "between.efficiency"} {
		require.True(t, keys[key], key)
	}
	for r := range NumResources {
		d := c.Faster(r, 2)
		require.NoError(t, d.Validate())
		require.NotEqual(t, c, d, r.String())
	}
	require.Equal(t, 2*c.Between.Bandwidth, c.Faster(InterLink, 2).Between.Bandwidth)
	c.Device.Memory++
	require.ErrorContains(t, c.Validate(), "device: and its links are not the least of the pools")
	c.Pools[1].Cluster.Device.Units = -1
	require.EqualError(t, c.Validate(), "cluster: pools[1].cluster.device.units: is -1, must be between 0 and 65536")
	require.True(t, math.IsInf(rung{kinds: []rung{}}.rate(1), 1), "a level that no pool has")
}
