package cost

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// leveled is a cluster that states its network level by level, and a cache.
func leveled(t *testing.T) *Cluster {
	c, err := Load("h100")
	require.NoError(t, err)
	c.Device.Cache = &Cache{Memory: 50 << 20, Bandwidth: 1e13}
	c.Levels = []Level{
		{Name: "node", Devices: 8, Bandwidth: c.IntraNode.Bandwidth, Efficiency: 0.8, Latency: 2e-6},
		{Name: "rack", Devices: 16, Bandwidth: 5e10, Efficiency: 0.7, Latency: 5e-6, NICs: 4},
		{Name: "cluster", Bandwidth: 1e10, Efficiency: 0.6, Latency: 1e-5},
	}
	c.deriveNode()
	require.NoError(t, c.Validate())
	return c
}

// TestFaster: a cluster on which every resource is twice as fast takes half the time. Dividing a step into shares by
// the derivatives for each resource depends on it.
func TestFaster(t *testing.T) {
	plain, err := Load("h100")
	require.NoError(t, err)
	plain.Software, err = LoadSoftware("megatron-deepspeed") // its host waits for kernels
	require.NoError(t, err)
	for _, c := range []*Cluster{plain, leveled(t)} {
		c.Host = &Link{Bandwidth: 5e10, Efficiency: 0.8, Latency: 1e-6}
		before := c.Clone()
		fast := c
		for r := range NumResources {
			fast = fast.Faster(r, 2)
			require.NotEmpty(t, r.String())
		}
		require.Equal(t, before, c, "the original keeps its figures")
		require.NoError(t, fast.Validate())
		a, b := NewModel(c, 32), NewModel(fast, 32)
		for _, class := range []kernelClass{vector, product, attention} {
			for _, size := range []int64{1000, 1e6, 1e9} {
				w := &work{class: class, flops: 100 * float64(size), bytes: size, host: true}
				require.InDelta(t, float64(a.kernel(w)), 2*float64(b.kernel(w)), 4)
			}
		}
		p := &partition.Plan{PlanNGPUs: 32, RuntimeNGPUs: 32, DP: 16, TP: 2, MicroBatch: 1, Schedule: partition.GPipe, Stages: []partition.Stage{{Last: 1}}}
		mesh := p.Mesh(16)
		slow, quick := NewProgram(c, p, mesh), NewProgram(fast, p, mesh)
		for _, axis := range []string{partition.AxisDP, partition.AxisTP} {
			n := &ir.Node{Op: ir.OpAllReduce, Attr: ir.CommAttr{Axis: axis}}
			n.Args = []*ir.Value{{Type: ir.Type{DType: ir.F32, Shape: []int{1 << 20}}}}
			n.Results = []*ir.Value{{Type: n.Args[0].Type, Def: n}}
			x, _ := slow.Instr(&codegen.Instr{Node: n}, mesh, ir.Coord{})
			y, _ := quick.Instr(&codegen.Instr{Node: n}, mesh, ir.Coord{})
			require.InDelta(t, float64(x), 2*float64(y), 4, axis)
		}
		require.InDelta(t, float64(a.HostCopy(1e6)), 2*float64(b.HostCopy(1e6)), 4)
	}
}

// TestConstants: each figure can be scaled by itself, and an efficiency stays at most 1.
func TestConstants(t *testing.T) {
	c := leveled(t)
	seen := map[string]bool{}
	for _, k := range c.Constants() {
		require.False(t, seen[k.Key], k.Key)
		seen[k.Key] = true
		require.Positive(t, k.Uncertainty, k.Key)
		d := c.Clone()
		k.Scale(d, 0.5)
		require.NotEqual(t, c, d, k.Key)
		require.NoError(t, d.Validate(), k.Key)
		k.Scale(d, 2)
		require.Equal(t, c, d, "%s is put back, and nothing else was touched", k.Key)
		k.Scale(d, 1e6)
		if k.share {
			require.Equal(t, 1.0, *k.at(d), k.Key)
		} else {
			require.InDelta(t, 1e6**k.at(c), *k.at(d), math.Abs(*k.at(d))*1e-12, k.Key)
		}
	}
	require.True(t, seen["levels[1].latency"] && !seen["inter_node.latency"])
}

func TestUncertainty(t *testing.T) {
	text, err := Source("h100")
	require.NoError(t, err)
	with := func(section string) (*Cluster, error) { return Parse("c.yaml", append([]byte(section), text...)) }
	c, err := with("uncertainty: {device.efficiency.matmul: 0.03, inter_node.latency: 0}\n")
	require.NoError(t, err)
	for _, k := range c.Constants() {
		switch k.Key {
		case "device.efficiency.matmul":
			require.Equal(t, 0.03, k.Uncertainty)
		case "inter_node.latency":
			require.Zero(t, k.Uncertainty)
		case "intra_node.latency": // not stated
			require.Equal(t, latencyUncertainty, k.Uncertainty)
		}
	}
	for _, bad := range []struct{ section, want string }{
		{"uncertainty: {device.efficiency.matmul: 3}\n", "uncertainty.device.efficiency.matmul: is 3, must be between 0 and 1"},
		{"uncertainty: {device.efficiency.matmul: wide}\n", "uncertainty.device.efficiency.matmul: wants a number"},
		{"uncertainty: {device.efficiency.matmull: 0.1}\n", "did you mean device.efficiency.matmul?"},
		{"uncertainty: 3\n", "uncertainty: wants keys and values"},
	} {
		_, err := with(bad.section)
		require.ErrorContains(t, err, bad.want)
		require.ErrorContains(t, err, "c.yaml:1:", "with the line")
	}
}
