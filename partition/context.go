package partition

import (
	"slices"

	"github.com/autopar/autopar/ir"
)

// context rewrites a graph for context parallelism: the ranks of axis cp share every sequence throughout the
// model. Queries stay on their ranks; keys and values are gathered for attention, and their gradients
// reduce-scattered (Grattafiori et al. 2024, "The Llama 3 Herd of Models", section 3.3.2: cheaper than a ring
// with few key-value heads, and exact for any mask).
//
// In the rewritten graph sequences are folded (see [ir.FoldRuns]): their rows are reordered so that each rank's
// shard, an ordinary contiguous slice, has the same share of the work under the causal mask. Inputs are folded
// where they are first read, and outputs unfolded. Attention and dropout depend on positions, so their
// attributes name the fold; nothing else depends on the order of rows. Everything else follows from placement:
// see [propagator.cost].
func context(g *ir.Graph, p *Plan) error {
	parts := p.ContextParallel()
	if parts == 1 {
		return nil
	}
	dims, length, err := sequenceDims(g)
	if err != nil {
		return err
	}
	if need := 2 * parts; length < need {
		return planErrorf("cp", "%d ranks cannot share sequences of %d tokens: each takes an early and a late part, so they need %d; use cp %d or less",
			parts, length, need, max(1, length/2))
	}
	if need := parts * p.TP; p.SequenceParallel && length < need {
		return planErrorf("cp", "cp %d x tp %d with sequence parallelism cut sequences of %d tokens into %d parts; use cp %d or less",
			parts, p.TP, length, need, max(1, length/p.TP))
	}
	c := &contextRewriter{parts: parts, dims: dims, folded: map[foldOf]*ir.Value{}, kv: map[keysOf]*ir.Value{}}
	for _, n := range g.Nodes {
		c.node(n)
	}
	g.Nodes = c.out
	for i, o := range g.Outputs {
		if dim, ok := dims[o.Value]; ok {
			g.Outputs[i].Value = c.unfold(g, o.Value, dim)
		}
	}
	g.Renumber()
	return nil
}

// sequenceDims returns, for every value that has one, the dimension that runs over the positions of a sequence,
// and the length of sequences. Starting at the positions of attention, it follows the dimensions that
// signatures identify from node to node.
func sequenceDims(g *ir.Graph) (map[*ir.Value]int, int, error) {
	// Union-find over all dimensions of all values: dimension d of value v is element base[v.ID]+d, and
	// dimensions that are the same have one root.
	base := make([]int, g.IDs())
	var parent []int
	for _, n := range g.Nodes {
		for _, v := range n.Results {
			base[v.ID] = len(parent)
			for range v.Type.Shape {
				parent = append(parent, len(parent))
			}
		}
	}
	find := func(p int) int {
		for parent[p] != p {
			parent[p] = parent[parent[p]] // path halving
			p = parent[p]
		}
		return p
	}
	var attended []int // the positions of sequences in attention
	var first []int    // by dimension of a signature: its first element
	length := 0
	for _, n := range g.Nodes {
		if n.Op.Class() != ir.Compute {
			continue
		}
		switch n.Op {
		case ir.OpAttentionDecode:
			return nil, 0, planErrorf("cp", "%s makes one token at a time, so there is no sequence to share; use cp 1", n.Name)
		case ir.OpAttention:
			attended = append(attended, base[n.Args[0].ID]+1)
			length = n.Args[0].Type.Shape[1]
		}
		sig := ir.SignatureOf(n)
		first = first[:0]
		for range sig.Dims {
			first = append(first, -1)
		}
		unite := func(v *ir.Value, dims []int) {
			for i, d := range dims {
				if first[d] < 0 {
					first[d] = base[v.ID] + i
				} else {
					parent[find(base[v.ID]+i)] = find(first[d])
				}
			}
		}
		for i, a := range n.Args {
			unite(a, sig.Args[i])
		}
		for i, r := range n.Results {
			unite(r, sig.Results[i])
		}
	}
	if len(attended) == 0 {
		return nil, 0, planErrorf("cp", "the graph %s has no attention over a sequence; use cp 1", g.Name)
	}
	roots := map[int]bool{}
	for _, p := range attended {
		roots[find(p)] = true
	}
	dims := map[*ir.Value]int{}
	for _, n := range g.Nodes {
		for _, v := range n.Results {
			for d := range v.Type.Shape {
				if !roots[find(base[v.ID]+d)] {
					continue
				}
				if _, twice := dims[v]; twice || n.Op == ir.OpParam {
					return nil, 0, planErrorf("cp", "%s %s has positions of a sequence in dimension %d; use cp 1", n.Op, v.Name(), d)
				}
				dims[v] = d
			}
		}
	}
	return dims, length, nil
}

// contextRewriter rebuilds a graph node by node.
type contextRewriter struct {
	parts  int
	dims   map[*ir.Value]int
	folded map[foldOf]*ir.Value
	kv     map[keysOf]*ir.Value
	out    []*ir.Node
}

// foldOf identifies a folded input. The update phase cannot read values of a micro-batch, so it folds for
// itself.
type foldOf struct {
	input  *ir.Value
	update bool
}

// keysOf identifies extracted keys and values. The backward pass extracts and gathers them again, so that the
// gathered ones need not be kept.
type keysOf struct {
	qkv   *ir.Value
	phase ir.Phase
}

func (c *contextRewriter) node(n *ir.Node) {
	for i, a := range n.Args {
		if dim, ok := c.dims[a]; ok && a.Def.Op == ir.OpInput {
			n.Args[i] = c.fold(a, dim, n.Phase == ir.Update)
		}
	}
	switch n.Op {
	case ir.OpDropout:
		if dim, ok := c.dims[n.Args[0]]; ok {
			attr := n.Attr.(ir.DropoutAttr)
			attr.Fold, attr.Dim = c.parts, dim
			n.Attr = attr
		}
	case ir.OpAttention:
		c.attention(n)
		return
	case ir.OpAttentionGrad:
		c.attentionGrad(n)
		return
	}
	c.out = append(c.out, n)
}

// add appends a node with the given results, at the source position, phase and stage of n.
func (c *contextRewriter) add(n *ir.Node, op ir.Op, attr ir.Attr, name string, results []*ir.Value, args ...*ir.Value) *ir.Node {
	m := &ir.Node{Op: op, Attr: attr, Name: name, Phase: n.Phase, Stage: n.Stage, Pos: n.Pos, Args: args, Results: results}
	for i, r := range results {
		r.Def, r.Index = m, i
	}
	c.out = append(c.out, m)
	return m
}

// fold returns an input with its rows in folded order. The fold belongs to the forward phase, whatever reads it
// first, except for the one of the update.
func (c *contextRewriter) fold(v *ir.Value, dim int, update bool) *ir.Value {
	key := foldOf{v, update}
	if f, ok := c.folded[key]; ok {
		return f
	}
	attr := ir.CommAttr{Axis: AxisCP, Dim: dim, Parts: c.parts}
	name, phase := v.Name()+"@fold", ir.Forward
	if update {
		name, phase = v.Name()+"@fold_upd", ir.Update
	}
	n := c.add(v.Def, ir.OpFold, attr, name, []*ir.Value{{Type: v.Type}}, v)
	n.Phase = phase
	c.folded[key] = n.Results[0]
	return n.Results[0]
}

// unfold appends a value with its rows in the order of positions.
func (c *contextRewriter) unfold(g *ir.Graph, v *ir.Value, dim int) *ir.Value {
	attr := ir.CommAttr{Axis: AxisCP, Dim: dim, Parts: c.parts}
	u := c.add(v.Def, ir.OpUnfold, attr, v.Name()+"@unfold", []*ir.Value{{Type: v.Type}}, v)
	g.Nodes = c.out
	return u.Results[0]
}

// keysValues returns the keys and values of packed qkv, to be gathered.
func (c *contextRewriter) keysValues(n *ir.Node, qkv *ir.Value) *ir.Value {
	key := keysOf{qkv, n.Phase}
	if kv, ok := c.kv[key]; ok {
		return kv
	}
	shape := slices.Clone(qkv.Type.Shape)
	shape[2] = 2
	kv := c.add(n, ir.OpKeysValues, nil, n.Name+"@kv", []*ir.Value{{Type: ir.Type{DType: qkv.Type.DType, Shape: shape}}}, qkv).Results[0]
	c.kv[key] = kv
	return kv
}

func (c *contextRewriter) foldedAttr(n *ir.Node) ir.DropoutAttr {
	attr := n.Attr.(ir.DropoutAttr)
	attr.Fold = c.parts
	return attr
}

// attention(qkv) becomes attention_kv(qkv, kv).
func (c *contextRewriter) attention(n *ir.Node) {
	kv := c.keysValues(n, n.Args[0])
	c.add(n, ir.OpAttentionKV, c.foldedAttr(n), n.Name, n.Results, n.Args[0], kv, n.Args[1], n.Args[2])
}

// attention_grad(do, qkv, o, lse) becomes attention_kv_grad(do, qkv, kv, o, lse),
// whose gradients of keys and values are sums over the ranks' queries.
func (c *contextRewriter) attentionGrad(n *ir.Node) {
	do, qkv, o, lse := n.Args[0], n.Args[1], n.Args[2], n.Args[3]
	kv := c.keysValues(n, qkv)
	grads := c.add(n, ir.OpAttentionKVGrad, c.foldedAttr(n), n.Name+"@apart",
		[]*ir.Value{{Type: o.Type}, {Type: kv.Type}}, do, qkv, kv, o, lse, n.Args[4], n.Args[5])
	c.add(n, ir.OpJoinQKV, nil, n.Name, n.Results, grads.Results[0], grads.Results[1])
}

// refold places a fold, which needs a replicated operand and takes the rank's rows of it, or an unfold, which
// needs all rows.
func (pr *propagator) refold(n *ir.Node, v *ir.Value) (args, results []ir.ShardSpec) {
	attr := n.Attr.(ir.CommAttr)
	from := v.Spec
	for a := range from {
		if from[a] == ir.ShardOn(attr.Dim) || from[a].Kind == ir.Partial {
			from[a] = ir.Placement{}
		}
	}
	to := from
	if n.Op == ir.OpFold {
		to[pr.mesh.Axis(AxisCP)] = ir.ShardOn(attr.Dim)
	}
	return []ir.ShardSpec{from}, []ir.ShardSpec{to}
}
