package cost

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// TestBucket: a bucket takes as long as one collective of all its bytes, so less than its members one by one.
func TestBucket(t *testing.T) {
	c, err := Load("h100")
	require.NoError(t, err)
	c.Software = Software{} // nothing else goes in one buffer
	p := &partition.Plan{PlanNGPUs: 8, RuntimeNGPUs: 8, DP: 8, TP: 1, MicroBatch: 1, Schedule: partition.GPipe, Stages: []partition.Stage{{Last: 1}}}
	mesh := p.Mesh(8)
	m := NewProgram(c, p, mesh)
	var spec ir.ShardSpec
	var bucket []codegen.Instr
	var apart Picoseconds
	for _, n := range []int{1000, 70_000, 65} {
		typ := ir.Type{DType: ir.F32, Shape: []int{n}}
		node := &ir.Node{Op: ir.OpAllReduce, Attr: ir.CommAttr{Axis: partition.AxisDP}}
		node.Args, node.Results = []*ir.Value{{Type: typ, Spec: spec}}, []*ir.Value{{Type: typ, Spec: spec, Def: node}}
		in := codegen.Instr{Node: node, Async: true, Fused: len(bucket) > 0}
		bucket = append(bucket, in)
		time, _ := m.Instr(&in, mesh, ir.Coord{})
		apart += time
	}
	together, _ := m.Bucket(bucket, mesh, ir.Coord{})
	require.Equal(t, m.Collective(ir.OpAllReduce, 4*(1000+70_000+65), Group{Size: 8, Fan: Fan{8, 1}}), together)
	require.Less(t, together, apart)
}

// TestBucketInBuffers: if software has buffers of its own, each tensor of a bucket pays its share of a buffer's hops,
// or those of its own buffer if it is larger than one.
func TestBucketInBuffers(t *testing.T) {
	c, err := Load("h100")
	require.NoError(t, err)
	p := &partition.Plan{PlanNGPUs: 16, RuntimeNGPUs: 16, DP: 16, TP: 1, MicroBatch: 1, Schedule: partition.GPipe, Stages: []partition.Stage{{Last: 1}}}
	mesh := p.Mesh(16)
	for _, buffer := range []float64{1, 1e5, 1e9} {
		c.Software = Software{Buffer: buffer}
		m := NewProgram(c, p, mesh)
		var bucket []codegen.Instr
		var apart Picoseconds
		for _, n := range []int{1 << 14, 1 << 20, 1 << 16} {
			typ := ir.Type{DType: ir.F32, Shape: []int{n}}
			node := &ir.Node{Op: ir.OpReduceScatter, Phase: ir.Update, Attr: ir.CommAttr{Axis: partition.AxisDP}}
			node.Args, node.Results = []*ir.Value{{Type: typ}}, []*ir.Value{{Type: typ, Def: node}}
			bucket = append(bucket, codegen.Instr{Node: node, Fused: len(bucket) > 0})
			time, _ := m.Instr(&bucket[len(bucket)-1], mesh, ir.Coord{})
			apart += time
		}
		together, kind := m.Bucket(bucket, mesh, ir.Coord{})
		require.InDelta(t, float64(apart), float64(together), 3, "buffers of %g bytes", buffer) // each is rounded up
		require.Equal(t, Communication, kind)
	}
}

// TestAllReduce: software that sums whole gradients in 32 bits reduces and gathers twice the bytes of bfloat16 where
// other software scatters, and not among tensor-parallel ranks. The gather that follows, and its floor, do not change.
func TestAllReduce(t *testing.T) {
	c, err := Load("a100-80g")
	require.NoError(t, err)
	p := &partition.Plan{PlanNGPUs: 16, RuntimeNGPUs: 16, DP: 8, TP: 2, MicroBatch: 1, ZeRO: 1, Schedule: partition.GPipe, Stages: []partition.Stage{{Last: 1}}}
	mesh := p.Mesh(8)
	const elements = 1 << 20
	price := func(s Software, op ir.Op, axis string) (Picoseconds, *Program) {
		c.Software = s
		m := NewProgram(c, p, mesh)
		typ := ir.Type{DType: ir.BF16, Shape: []int{elements}}
		n := &ir.Node{Op: op, Phase: ir.Update, Attr: ir.CommAttr{Axis: axis}}
		n.Args, n.Results = []*ir.Value{{Type: typ}}, []*ir.Value{{Type: typ, Def: n}}
		in := codegen.Instr{Node: n}
		time, _ := m.Instr(&in, mesh, ir.Coord{})
		one, _ := m.Bucket([]codegen.Instr{in}, mesh, ir.Coord{})
		require.Equal(t, time, one)
		return time, m
	}
	whole := Software{Reduce: 4, AllReduce: true}
	dp, tp := Group{Size: 8, Fan: Fan{4, 2}}, Group{Size: 2, Fan: Fan{2, 1}}
	time, m := price(whole, ir.OpReduceScatter, partition.AxisDP)
	require.Equal(t, m.Collective(ir.OpAllReduce, 4*elements, dp), time)
	require.LessOrEqual(t, m.Replicas(ir.OpReduceScatter, 2*elements, dp), time)
	require.Greater(t, m.Replicas(ir.OpReduceScatter, 2*elements, dp), m.Collective(ir.OpReduceScatter, 2*elements, dp))
	time, m = price(whole, ir.OpAllGather, partition.AxisDP)
	require.Equal(t, m.Collective(ir.OpAllGather, 2*elements, dp), time)
	time, m = price(whole, ir.OpReduceScatter, partition.AxisTP)
	require.Equal(t, m.Collective(ir.OpReduceScatter, 2*elements, tp), time)
	time, m = price(Software{Reduce: 4}, ir.OpReduceScatter, partition.AxisDP)
	require.Equal(t, m.Collective(ir.OpReduceScatter, 4*elements, dp), time)
	time, m = price(Software{Reduce: 4}, ir.OpAllGather, partition.AxisDP)
	require.Equal(t, m.Collective(ir.OpAllGather, 2*elements, dp), time)
	time, m = price(Software{}, ir.OpReduceScatter, partition.AxisDP)
	require.Equal(t, m.Collective(ir.OpReduceScatter, 2*elements, dp), time)
}

// TestGradientsOverContextParallelRanks: these have the same parameters, so that software reduces gradients over them as
// over data-parallel ranks. Keys and values, and their gradients, stay as they are.
func TestGradientsOverContextParallelRanks(t *testing.T) {
	c, err := Load("a100-80g")
	require.NoError(t, err)
	c.Software = Software{Reduce: 4, AllReduce: true, Replicas: 0.25, Buffer: 1 << 23}
	p := &partition.Plan{PlanNGPUs: 16, RuntimeNGPUs: 16, DP: 1, CP: 16, TP: 1, MicroBatch: 1, Schedule: partition.GPipe, Stages: []partition.Stage{{Last: 1}}}
	mesh := p.Mesh(1)
	m := NewProgram(c, p, mesh)
	cp := m.Group(mesh.Axis(partition.AxisCP))
	const elements = 1 << 20
	price := func(spec ir.ShardSpec) Picoseconds {
		x := &ir.Value{Type: ir.Type{DType: ir.BF16, Shape: []int{1, elements}}, Spec: spec}
		n := &ir.Node{Op: ir.OpReduceScatter, Phase: ir.Backward, Attr: ir.CommAttr{Axis: partition.AxisCP, Dim: 1}, Args: []*ir.Value{x}}
		n.Results = []*ir.Value{{Type: x.Type, Def: n}}
		in := codegen.Instr{Node: n}
		time, _ := m.Instr(&in, mesh, ir.Coord{})
		one, _ := m.Bucket([]codegen.Instr{in}, mesh, ir.Coord{})
		require.Equal(t, time, one)
		return time
	}
	require.Equal(t, m.collective(ir.OpAllReduce, 4*elements, 0, cp, crossing{hops: 0.25, network: 0.25}), price(ir.ShardSpec{}))
	require.LessOrEqual(t, m.Replicas(ir.OpReduceScatter, 2*elements, cp), price(ir.ShardSpec{}))
	activation := ir.ShardSpec{}
	activation[mesh.Axis(partition.AxisMB)] = ir.ShardOn(0)
	require.Equal(t, m.Collective(ir.OpReduceScatter, 2*elements, cp), price(activation))
}

// TestReplicas: what software loses of the network in collectives of data-parallel ranks does not slow down other
// communication: of tensor-parallel ranks on two nodes, and of stages.
func TestReplicas(t *testing.T) {
	c, err := Load("a100-80g")
	require.NoError(t, err)
	p := &partition.Plan{PlanNGPUs: 64, RuntimeNGPUs: 64, DP: 2, TP: 16, MicroBatch: 1, ZeRO: 1, Schedule: partition.GPipe, Stages: []partition.Stage{{Last: 1}, {First: 1, Last: 2}}}
	mesh := p.Mesh(2)
	times := func(s Software) (dp, tp, send, floor, nearest Picoseconds) {
		c.Software = s
		m := NewProgram(c, p, mesh)
		typ := ir.Type{DType: ir.BF16, Shape: []int{1 << 24}}
		over := func(axis string) Picoseconds {
			n := &ir.Node{Op: ir.OpAllGather, Phase: ir.Update, Attr: ir.CommAttr{Axis: axis}}
			n.Args, n.Results = []*ir.Value{{Type: typ}}, []*ir.Value{{Type: typ, Def: n}}
			time, _ := m.Instr(&codegen.Instr{Node: n}, mesh, ir.Coord{})
			return time
		}
		n := &ir.Node{Op: ir.OpSend, Phase: ir.Forward, Attr: ir.P2PAttr{Stage: 1}, Results: []*ir.Value{{Type: typ}}}
		group := m.group(&ir.Node{}, mesh.Axis(partition.AxisDP))
		return over(partition.AxisDP), over(partition.AxisTP), m.Send(n, mesh, ir.Coord{}, 0, 1),
			m.Replicas(ir.OpAllGather, 2<<24, group), m.Nearest(ir.OpAllGather, 2<<24, 16)
	}
	dp, tp, send, floor, nearest := times(Software{})
	slowDP, slowTP, slowSend, slowFloor, slowNearest := times(Software{Replicas: 0.25})
	require.Equal(t, tp, slowTP)
	require.Equal(t, send, slowSend)
	require.InDelta(t, 4, float64(slowDP)/float64(dp), 0.1)
	require.LessOrEqual(t, slowFloor, slowDP)
	require.Greater(t, slowFloor, floor)
	require.Greater(t, slowNearest, nearest)
	dp, tp, send, _, _ = times(Software{Network: 0.25})
	require.Equal(t, slowDP, dp)
	require.Greater(t, tp, slowTP)
	require.Greater(t, send, slowSend)
}

// TestNoFasterOfReplicas: a group may be no faster than another for tensor parallelism, and yet faster for
// data-parallel ranks whose software loses much of the network.
func TestNoFasterOfReplicas(t *testing.T) {
	c, err := Load("a100-80g")
	require.NoError(t, err)
	c.IntraNode.Bandwidth, c.IntraNode.Latency = c.InterNode.Bandwidth/2, 0
	c.IntraNode.Efficiency, c.InterNode.Efficiency, c.InterNode.Latency = 1, 1, 0
	dense, sparse := Group{Size: 8, Fan: Fan{4, 2}}, Group{Size: 8, Fan: Fan{2, 4}}
	require.True(t, NewModel(c, 64).NoFaster(dense, sparse))
	c.Software.Replicas = 0.25
	require.False(t, NewModel(c, 64).NoFaster(dense, sparse))
}
