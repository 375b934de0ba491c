package cost

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// TestBucket: a bucket takes the time of one collective of all its bytes, so less
// than its members one by one.
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
	require.Equal(t, m.Collective(ir.OpAllReduce, 4*(1000+70_000+65), Group{8, Fan{8, 1}}), together)
	require.Less(t, together, apart)
}

// TestBucketInBuffers: software that has buffers of its own lets each tensor of a bucket
// have its share of the hops of one, or if it is larger those of one of its own.
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

// TestAllReduce: software that sums whole gradients in 32 bits reduces and gathers
// twice the bytes of bfloat16 where others scatter, among data-parallel ranks alone;
// what it gathers after is as large as ever, and the floor of it no more.
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
	whole := Software{AllReduce: 4}
	dp, tp := Group{8, Fan{4, 2}}, Group{2, Fan{2, 1}}
	time, m := price(whole, ir.OpReduceScatter, partition.AxisDP)
	require.Equal(t, m.Collective(ir.OpAllReduce, 4*elements, dp), time)
	require.LessOrEqual(t, m.Replicas(ir.OpReduceScatter, 2*elements, dp), time)
	require.Greater(t, m.Replicas(ir.OpReduceScatter, 2*elements, dp), m.Collective(ir.OpReduceScatter, 2*elements, dp))
	time, m = price(whole, ir.OpAllGather, partition.AxisDP)
	require.Equal(t, m.Collective(ir.OpAllGather, 2*elements, dp), time)
	time, m = price(whole, ir.OpReduceScatter, partition.AxisTP)
	require.Equal(t, m.Collective(ir.OpReduceScatter, 2*elements, tp), time)
	time, m = price(Software{}, ir.OpReduceScatter, partition.AxisDP)
	require.Equal(t, m.Collective(ir.OpReduceScatter, 2*elements, dp), time)
}
