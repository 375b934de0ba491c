package cost

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
)

// round is a cluster with round figures, so that times can be worked out by hand.
func round() *Cluster {
	link := func(bw, latency float64) Link { return Link{Bandwidth: bw, Efficiency: 1, Latency: latency} }
	return &Cluster{
		Name: "round", DevicesPerNode: 4, IntraNode: link(1e9, 1e-6), InterNode: link(1e8, 1e-5),
		Device: Device{
			Name: "d", Cores: 1, Memory: 1 << 30, FLOPS: map[string]float64{"f32": 1e12}, MemoryBandwidth: 1e10,
			Efficiency: Efficiency{Matmul: 0.5, MatmulHalf: 1e6, Attention: 0.25, Vector: 0.1, Memory: 1},
		},
	}
}

const us = Picoseconds(1e6)

func TestKernel(t *testing.T) {
	m := NewModel(round(), 1)
	require.Equal(t, 4*us, m.kernel(&work{class: product, dtype: ir.F32, flops: 1e6, bytes: 0}), "half of 0.5 TFLOP/s at 1 MFLOP")
	require.Equal(t, 2002*us, m.kernel(&work{class: product, dtype: ir.F32, flops: 1e9, bytes: 0}))
	require.Equal(t, 4*us, m.kernel(&work{class: attention, dtype: ir.F32, flops: 1e6, bytes: 0}))
	require.Equal(t, 10*us, m.kernel(&work{class: vector, dtype: ir.F32, flops: 1e6, bytes: 1e3}))
	require.Equal(t, 100*us, m.kernel(&work{class: vector, dtype: ir.F32, flops: 1e6, bytes: 1e6}), "bound by memory")
}

// TestLongKernels: the time of kernels that take minutes or days still grows with their work, and so does that of collectives
// over a slow network. A group that is slower at some size is not called no faster.
func TestLongKernels(t *testing.T) {
	m := NewModel(round(), 8)
	for _, flops := range []float64{1e14, 1e15, 1e17} {
		require.InDelta(t, flops/0.5e12, m.kernel(&work{class: product, dtype: ir.F32, flops: flops}).Seconds(), 1e-5)
	}
	// Two devices of a node send what they leave each other, with fewer messages, or all that there is.
	near, apart := Group{Size: 8, Fan: Fan{2, 4}}, Group{Size: 8, Fan: Fan{1, 8}}
	slow := round()
	slow.IntraNode.Latency, slow.InterNode.Bandwidth = 1, 2e7
	m = NewModel(slow, 8)
	require.Greater(t, m.Collective(ir.OpAllGather, 0, near), m.Collective(ir.OpAllGather, 0, apart))
	require.False(t, m.NoFaster(near, apart), "of so many bytes the messages do not matter")
}

// TestKernelInHalfPrecision: products run at the rate that the cluster states for
// their type, or else at that of f32; other kernels compute in f32.
func TestKernelInHalfPrecision(t *testing.T) {
	c := round()
	c.Device.FLOPS["bf16"] = 4e12
	m := NewModel(c, 1)
	require.Equal(t, 1*us, m.kernel(&work{class: product, dtype: ir.BF16, flops: 1e6, bytes: 0}))
	require.Equal(t, 1*us, m.kernel(&work{class: attention, dtype: ir.BF16, flops: 1e6, bytes: 0}))
	require.Equal(t, 10*us, m.kernel(&work{class: vector, dtype: ir.BF16, flops: 1e6, bytes: 1e3}))
	require.Equal(t, 5*us/2, m.kernel(&work{class: product, dtype: ir.F16, flops: 1e6, bytes: 0}), "not stated: at the rate of f32, with a quarter of the half size")
}

func TestCollective(t *testing.T) {
	m := NewModel(round(), 16)
	node := Group{Size: 4, Fan: Fan{4, 1}}
	require.Equal(t, (6+1500)*us, m.Collective(ir.OpAllReduce, 1e6, node), "2·3 messages, 2·3/4 of 1 MB at 1 GB/s")
	require.Equal(t, (3+750)*us, m.Collective(ir.OpAllGather, 1e6, node))
	require.Equal(t, (3+750)*us, m.Collective(ir.OpReduceScatter, 1e6, node))
	require.Equal(t, (3+750)*us, m.Collective(ir.OpAllToAll, 1e6, node))
	// Two levels: inside as above, then 2·1 messages and 2·1/2 of a quarter at 100 MB/s.
	require.Equal(t, (6+1500+20+2500)*us, m.Collective(ir.OpAllReduce, 1e6, Group{Size: 8, Fan: Fan{4, 2}}))
	require.Zero(t, m.Collective(ir.OpAllReduce, 1e6, Group{Size: 1, Fan: Fan{1, 1}}))
	require.Equal(t, 1001*us, m.Transfer(1e6, Route{0: 1}))
	require.Equal(t, 10010*us, m.Transfer(1e6, Route{1: 4}))
}

// More work never takes less time: the planner's bounds rest on it.
func TestMonotone(t *testing.T) {
	const seed = 7
	r := rand.New(rand.NewPCG(seed, 0))
	for range 2000 {
		c := round()
		c.IntraNode.Bandwidth, c.InterNode.Bandwidth = 1e9*(1+r.Float64()), 1e8*(1+r.Float64())
		m := NewModel(c, 1+r.IntN(9))
		f, b := r.Float64()*1e9, r.Int64N(1e8)
		for class := vector; class <= attention; class++ {
			require.LessOrEqual(t, m.kernel(&work{class: class, dtype: ir.F32, flops: f, bytes: b}), m.kernel(&work{class: class, dtype: ir.F32, flops: f * (1 + r.Float64()), bytes: b + r.Int64N(1e6)}), "seed %d", seed)
		}
		g := Group{Size: 8, Fan: Fan{4, 2}}
		require.LessOrEqual(t, m.Collective(ir.OpAllReduce, b, g), m.Collective(ir.OpAllReduce, b+r.Int64N(1e6), g), "seed %d", seed)
	}
}

// TestSlows: kernels beside a collective lose the share of their rate that the cluster states, on devices of their own.
func TestSlows(t *testing.T) {
	c, err := Load("h100")
	require.NoError(t, err)
	require.Positive(t, c.Device.Efficiency.Beside)
	for beside, slow := range map[float64]Picoseconds{0.75: 250, 0: 0, 1: 0} { // 0 states none
		c.Device.Efficiency.Beside = beside
		require.NoError(t, c.Validate())
		require.Equal(t, slow, NewModel(c, 8).Slows(1000), "%v", beside)
	}
	c.Device.Efficiency.Beside = 1.5
	require.ErrorContains(t, c.Validate(), "device.efficiency.beside: is 1.5, must be between 0 and 1")
	cpu, err := Load("cpu")
	require.NoError(t, err)
	require.Zero(t, NewModel(cpu, 4).Slows(1000))
	cpu.Device.Efficiency.Beside = 0.5
	require.ErrorContains(t, cpu.Validate(), "device.efficiency.beside: has no meaning where ranks share processors")
}
