package planner

import (
	"github.com/autopar/autopar/ir"
)

// Where context parallelism is searched. It divides the tokens of a sequence, and pays for that by
// moving keys and values. space.go lists degrees with it.

// contexts says which context-parallel degrees are searched, for sequences of so many tokens (0
// without attention).
type contexts struct {
	tokens int
	// everywhere admits degrees that seldom win but may fit where nothing else does: the space is widened.
	everywhere bool
}

// longSequence is the number of tokens beyond which context parallelism is always searched: Llama 3
// trains 8,192 tokens without it and 131,072 with 16 ranks per sequence (Grattafiori et al. 2024,
// table 4).
const longSequence = 8192

// degrees lists the degrees for a unit of so many devices. Those are searched that give every rank
// as much work: 2·cp divides the tokens.
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

// worthwhile reports whether degrees are searched. As long as there is a sequence for every
// data-parallel rank and stage, data parallelism divides the same work without moving keys and
// values. So context parallelism is left to long sequences, small batches, and models that do not
// fit otherwise.
func (x contexts) worthwhile(o Options, d degrees, batch int) bool {
	ranks := d.dp * d.cp * d.pp * (o.RuntimeNGPUs / d.plan)
	return d.cp == 1 || o.CP > 0 || x.everywhere || x.tokens > longSequence || ranks > batch
}

// sequenceTokens returns the length of the sequences that a graph attends over, 0 without
// attention.
func sequenceTokens(g *ir.Graph) int {
	for _, n := range g.Nodes {
		if n.Op == ir.OpAttention {
			return max(1, ir.SequenceParts(n.Attr)) * n.Args[0].Type.Shape[1]
		}
	}
	return 0
}
