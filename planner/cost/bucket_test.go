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
	together := m.Bucket(bucket, mesh, ir.Coord{})
	require.Equal(t, m.Collective(ir.OpAllReduce, 4*(1000+70_000+65), Group{8, Fan{8, 1}}), together)
	require.Less(t, together, apart)
}
