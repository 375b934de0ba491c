package partition

import (
	"fmt"
	"slices"

	"github.com/autopar/autopar/ir"
)

// sequenceParts rewrites a graph so that each sequence is parts rows of the batch, one after another, instead of one:
// ids[B,T] become ids[B parts, T/parts], which are the same numbers in memory. Under sequence parallelism a rank then
// holds a piece of every part of a sequence, not one piece of all of it. So the parts are whole on all ranks together, and
// what [Plan.TPPieces] cuts at rows of the batch is cut at parts of sequences.
//
// Nothing but attention reads several positions of a sequence at once, and it is told how many rows it has to join.
// Positions, which the traced graph has once for all sequences, are given for each row. The embedding of positions is
// then made for each row, too, and its gradient adds up all of them, where the traced graph first adds up sequences.
//
// Like context parallelism it is a rewrite of the graph: nothing later needs to know about it, and
// [codegen.CheckEquivalent] proves the result.
//
// Context-parallel ranks share every part as they share a sequence otherwise (see context): each has an early and a late
// piece of it.
func sequenceParts(g *ir.Graph, p *Plan) error {
	parts := p.SequenceParts
	if parts <= 1 {
		return nil
	}
	inputs := g.Inputs()
	i := slices.IndexFunc(inputs, followsBatch)
	if i < 0 {
		return nil
	}
	ids := inputs[i]
	tokens := ids.Type.Shape[1]
	least, ranks := p.TP, fmt.Sprintf("%d tensor-parallel ranks", p.TP) // least: the tokens that a part needs
	if p.CP > 1 {
		least, ranks = p.CP*max(2, p.TP), fmt.Sprintf("cp %d x tp %d ranks", p.CP, p.TP)
	}
	if tokens%parts != 0 {
		return planErrorf("sequence_parts", "%d parts of sequences of %d tokens are not equal; want %s", parts, tokens, partsOf(tokens, least))
	}
	if part := tokens / parts; part < least {
		return planErrorf("sequence_parts", "%s cannot share a part of %d tokens; want %s", ranks, part, partsOf(tokens, least))
	}
	s := &partsRewriter{graph: g, parts: parts, sequences: ids.Type.Shape[0], tokens: tokens, rows: map[*ir.Value]bool{}, now: map[*ir.Value]*ir.Value{}}
	for _, n := range g.Nodes {
		if err := s.node(n); err != nil {
			return err
		}
	}
	for _, o := range g.Outputs {
		if s.rows[o.Value] {
			return planErrorf("sequence_parts", "output %s has sequences, which parts of them would cut; use sequence_parts 0", o.Name)
		}
	}
	g.Nodes = slices.DeleteFunc(g.Nodes, func(n *ir.Node) bool { return s.now[n.Results[0]] != nil })
	g.Renumber()
	return nil
}

// partsOf lists the numbers of parts of at least so many tokens that a sequence can be in, for error messages.
func partsOf(tokens, least int) string {
	all := "0"
	for n := 2; n <= min(MaxTPPieces, tokens/least); n++ {
		if tokens%n == 0 {
			all += fmt.Sprintf(", %d", n)
		}
	}
	return all
}

// CutSequences returns the graph as a plan with so many [Plan.SequenceParts] runs it, or g itself if parts is at most 1.
func CutSequences(g *ir.Graph, parts int) (*ir.Graph, error) {
	if g == nil || parts <= 1 {
		return g, nil
	}
	work, _ := g.Clone()
	return work, sequenceParts(work, &Plan{TP: 1, SequenceParts: parts})
}

// partsRewriter changes the nodes of a graph in place.
type partsRewriter struct {
	parts             int
	sequences, tokens int                // of the traced graph
	rows              map[*ir.Value]bool // values whose first two dimensions are parts of sequences and their tokens
	graph             *ir.Graph
	now               map[*ir.Value]*ir.Value // by value that is no longer made: what stands in its place
}

func (s *partsRewriter) node(n *ir.Node) error {
	if n.Op == ir.OpInput {
		s.input(n.Results[0])
		return nil
	}
	ofRows := false
	for i, a := range n.Args {
		if v := s.now[a]; v != nil {
			n.Args[i] = v
		}
		ofRows = ofRows || s.rows[n.Args[i]]
	}
	if !ofRows {
		return nil
	}
	if ir.Frac(n.Attr) > 0 {
		return planErrorf("sequence_parts", "%s adds up in fixed point, sequence by sequence, which parts of them would change: train.reproducible needs sequence_parts 0", n.Name)
	}
	switch attr := n.Attr.(type) {
	case ir.SumToAttr:
		if len(n.Args[0].Type.Shape)-attr.Keep == 1 { // over sequences, but not over positions
			s.now[n.Results[0]] = n.Args[0]
			return nil
		}
	case ir.RoPEAttr:
		attr.Rows = true
		n.Attr = attr
	case ir.DropoutAttr:
		if n.Op == ir.OpAttention || n.Op == ir.OpAttentionGrad {
			attr.Parts = s.parts
			n.Attr = attr
		}
	}
	shapes := make([][]int, len(n.Results))
	for i, r := range n.Results {
		shapes[i] = r.Type.Shape
	}
	if err := s.graph.Retype(n); err != nil {
		return err
	}
	for i, r := range n.Results {
		s.rows[r] = !slices.Equal(shapes[i], r.Type.Shape)
	}
	return nil
}

// input makes parts of the sequences of an input. Positions, which all sequences share, become those of each part.
func (s *partsRewriter) input(v *ir.Value) {
	shape := v.Type.Shape
	switch {
	case len(shape) == 1 && shape[0] == s.tokens:
	case len(shape) == 2 && shape[0] == s.sequences && shape[1] == s.tokens:
	default:
		return
	}
	v.Type.Shape = []int{s.sequences * s.parts, s.tokens / s.parts}
	s.rows[v] = true
}
