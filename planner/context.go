package planner

import (
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// contexts says which context-parallel degrees are searched, for sequences of a
// number of tokens (0 without attention).
type contexts struct {
	tokens int
	// everywhere takes degrees that hardly win but may fit where nothing else does.
	everywhere bool
}

// longSequence is the number of tokens beyond which context parallelism is always
// searched: Llama 3 trains 8,192 without it and 131,072 with 16 ranks a sequence
// (Grattafiori et al. 2024, table 4).
const longSequence = 8192

// degrees lists the degrees for a unit of so many devices. Searched are those that
// give every rank as much: 2·cp divides the tokens.
func (x contexts) degrees(o Options, plan int) []int {
	if o.CP > 0 {
		if plan%o.CP != 0 {
			return nil
		}
		return []int{o.CP}
	}
	all := []int{1}
	for cp := 2; cp <= plan && o.Policy == AutoDist && x.tokens > 0; cp++ {
		if plan%cp == 0 && x.tokens%(2*cp) == 0 {
			all = append(all, cp)
		}
	}
	return all
}

// worthwhile reports whether degrees are searched. As long as there is a sequence
// for every data-parallel rank and stage, data parallelism divides the same work
// without moving keys and values; so context parallelism is left to long
// sequences, small batches, and models that do not fit otherwise.
func (x contexts) worthwhile(o Options, d degrees, batch int) bool {
	ranks := d.dp * d.cp * d.pp * (o.RuntimeNGPUs / d.plan)
	return d.cp == 1 || o.CP > 0 || x.everywhere || x.tokens > longSequence || ranks > batch
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
	b.plan, b.parts, b.known = plan, d.cp, map[int][]stageTimes{}
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
		roles := int64(qkv.Type.Shape[2]) // all but the last two are queries
		kv := in.mesh.Local(qkv.Type.Shape, qkv.Spec, in.at).Elems() * qkv.Type.DType.Size() / roles * 2
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
