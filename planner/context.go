package planner

import (
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// contexts lists the context-parallel degrees that the options leave for sequences
// of a number of tokens. Searched are those that give every rank as much: 2·cp
// divides the tokens. With 0 tokens, no attention, there is none but 1.
func contexts(o Options, plan, tokens int) []int {
	if o.CP > 0 {
		if plan%o.CP != 0 {
			return nil
		}
		return []int{o.CP}
	}
	all := []int{1}
	for cp := 2; cp <= plan && o.Policy == AutoDist; cp++ {
		if plan%cp == 0 && tokens%(2*cp) == 0 && tokens > 0 {
			all = append(all, cp)
		}
	}
	return all
}

// sequenceTokens returns the length of the sequences that a graph attends over, 0
// without attention.
func sequenceTokens(g *ir.Graph) int {
	for _, n := range g.Nodes {
		if n.Op == ir.OpAttention {
			return n.Args[0].Type.Shape[1]
		}
	}
	return 0
}

// shared turns a skeleton without context parallelism into what bounds those of
// degrees with the same tp and pp, so that most of them need not be built. Of the
// products and attention each rank has one part in cp; in every pass it gathers
// keys and values, and backward it reduces and scatters their gradients. It is
// nil where the skeleton tells nothing: where it has no axis that divides the
// batch as the degrees do.
func (s *skeleton) shared(d degrees, c *cost.Cluster) *skeleton {
	plan := s.plan
	plan.PlanNGPUs, plan.DP = d.plan, d.dp
	if s.plan.DataParallel() == 1 && plan.DataParallel() > 1 {
		return nil
	}
	b := *s
	b.plan, b.parts = plan, d.cp
	plan.CP, plan.MicroBatch = d.cp, s.batch
	mesh := plan.Mesh(s.batch)
	b.links = cost.NewProgram(c, &plan, mesh)
	b.linksAxis = mesh.Axis(partition.AxisCP)
	return &b
}

// core prices a product or an attention of a skeleton with what context
// parallelism does around it (see [skeleton.shared]), of which ahead is what
// recomputation may do before the gradient is there.
func (s *skeleton) core(in *coreInstr) (time, ahead cost.Picoseconds) {
	n := in.Node
	if s.parts <= 1 {
		time, _ = s.price.Instr(&in.Instr, in.mesh, in.at)
		return time, 0
	}
	time = s.price.Share(&in.Instr, in.mesh, in.at, s.parts)
	over := func(op ir.Op, qkv *ir.Value) cost.Picoseconds {
		kv := in.mesh.Local(qkv.Type.Shape, qkv.Spec, in.at).Elems() * qkv.Type.DType.Size() / 3 * 2
		return s.links.Over(op, kv, in.stage, s.linksAxis)
	}
	switch n.Op {
	case ir.OpAttention:
		time += over(ir.OpAllGather, n.Args[0])
	case ir.OpAttentionGrad:
		ahead = over(ir.OpAllGather, n.Args[1])
		time += ahead + over(ir.OpReduceScatter, n.Args[1])
	}
	return time, ahead
}
