package partition

import (
	"fmt"
	"slices"

	"github.com/autopar/autopar/ir"
)

// sliceLoss rewrites a graph so that the head and the loss work on a part of the positions of sequences at a
// time, with forward and backward of each slice together. Logits, with a large vocabulary the largest value in
// the model, then exist for one slice only (as in Liger Kernel's fused linear cross entropy, Hsu et al. 2024,
// and torchtune's chunked one). The op rows takes out what a slice reads. join_rows joins the slices of the
// gradient of the head's operand. add_n adds what is summed over positions, the loss and the gradient of the
// head's weight; kernels accumulate those terms in place. In a training step the head's forward pass thereby
// becomes part of the backward pass.
//
// A sum that only the update reads is made there, so that its terms are first accumulated over micro-batches. But
// from ZeRO stage 2 on each micro-batch reduces its gradients. Then all sums are made in the pass, so that
// it reduces that of the head once, not once for every slice.
//
// Like context parallelism it is a rewrite of the graph: nothing later, from placement to prices, needs to know
// about it, and [codegen.CheckEquivalent] proves the result from the signatures of the ops.
func sliceLoss(g *ir.Graph, p *Plan) error {
	parts := p.LossSlices
	if parts <= 1 {
		return nil
	}
	loss := slices.IndexFunc(g.Nodes, func(n *ir.Node) bool { return n.Op == ir.OpNLL })
	if loss < 0 {
		return nil // it has no targets
	}
	logits := g.Nodes[loss].Args[0].Def.Args[0]
	if len(logits.Type.Shape) != 3 || logits.Def.Op != ir.OpMatMul {
		return planErrorf("loss_slices", "%s is %s %s, want the product of a head, of positions of sequences; use loss_slices 0", logits.Name(), logits.Def.Op, logits.Type)
	}
	if tokens := logits.Type.Shape[1]; tokens%parts != 0 {
		of := "sequences"
		if p.SequenceParts > 1 {
			of = "sequence parts"
		}
		return planErrorf("loss_slices", "%d slices of %s of %d tokens are not equal; the nearest that are: %s", parts, of, tokens, NearestGroups(tokens, parts))
	}
	s := &lossSlicer{
		graph: g, parts: parts, early: p.ZeRO >= 2, logits: logits.Def,
		roles: map[*ir.Value]sliceRole{}, now: map[*ir.Value]*ir.Value{}, terms: map[*ir.Value][]*ir.Value{},
	}
	if err := s.find(g); err != nil {
		return err
	}
	return s.rewrite(g)
}

// sliceSuffix follows the name of what slices make, before the number of the slice, or before an s for the sum
// of all slices.
const sliceSuffix = "@slice"

// SliceLoss returns the graph as a plan with that number of [Plan.LossSlices] runs it, or g itself if parts is
// at most 1.
func SliceLoss(g *ir.Graph, parts int) (*ir.Graph, error) {
	if g == nil || parts <= 1 {
		return g, nil
	}
	work, _ := g.Clone()
	return work, sliceLoss(work, &Plan{LossSlices: parts})
}

// sliceRole says what becomes of a value that the head makes.
type sliceRole uint8

const (
	perSlice sliceRole = iota + 1 // made and read slice by slice
	joined                        // the slices are joined along the positions
	summed                        // the slices are summed
)

// lossSlicer rewrites one graph.
type lossSlicer struct {
	graph  *ir.Graph
	parts  int
	early  bool     // all sums are made in the pass
	logits *ir.Node // the product that makes the logits
	head   []*ir.Node
	roles  map[*ir.Value]sliceRole
	last   int      // index of the last node of the head
	phase  ir.Phase // phase of the last node of the head
	out    []*ir.Node
	now    map[*ir.Value]*ir.Value   // by value of the graph: its replacement
	terms  map[*ir.Value][]*ir.Value // by value of the graph: the slices' values, to be joined or summed
}

// find finds the head: the product that makes the logits, and all nodes that depend on them position by
// position.
func (s *lossSlicer) find(g *ir.Graph) error {
	for i, n := range g.Nodes {
		reads := func(role sliceRole) bool {
			return slices.ContainsFunc(n.Args, func(v *ir.Value) bool { return s.roles[v] == role })
		}
		cast := !s.early && n.Op == ir.OpCast && n.Phase != ir.Update && reads(summed) // of a gradient that slices sum
		if n != s.logits && !cast && !reads(perSlice) {
			continue
		}
		if n.Phase == ir.Update {
			return planErrorf("loss_slices", "%s reads what the head makes after the last micro-batch; use loss_slices 0", n.Name)
		}
		if ir.Frac(n.Attr) > 0 {
			return planErrorf("loss_slices", "%s adds up in fixed point, sequence by sequence, which slices of them would change: train.reproducible needs loss_slices 0", n.Name)
		}
		s.head, s.last, s.phase = append(s.head, n), i, n.Phase
		dim := s.positions(n)
		sig := ir.SignatureOf(n)
		for k, r := range n.Results {
			switch at := slices.Index(sig.Results[k], dim); {
			case cast || at < 0:
				s.roles[r] = summed
			case at != 1:
				return planErrorf("loss_slices", "%s has positions in dimension %d; use loss_slices 0", r.Name(), at)
			case n.Op == ir.OpMatMul && n != s.logits:
				s.roles[r] = joined
			default:
				s.roles[r] = perSlice
			}
		}
	}
	return nil
}

// positions returns the dimension, in the signature of a node of the head, that runs over positions, or -1.
func (s *lossSlicer) positions(n *ir.Node) int {
	sig := ir.SignatureOf(n)
	if n == s.logits {
		return sig.Results[0][1]
	}
	for i, a := range n.Args {
		if s.roles[a] == perSlice {
			return sig.Args[i][1]
		}
	}
	return -1
}

// rewrite puts the slices in the place of the last node of the head, and moves the nodes that read what slices
// make behind them.
func (s *lossSlicer) rewrite(g *ir.Graph) error {
	late := map[*ir.Node]bool{} // nodes that come after the slices
	var after []*ir.Node
	for i, n := range g.Nodes {
		switch {
		case slices.Contains(s.head, n):
		case i < s.last && slices.ContainsFunc(n.Args, func(v *ir.Value) bool { return s.roles[v] != 0 || late[v.Def] }):
			late[n] = true
			n.Phase = max(n.Phase, s.phase)
			after = append(after, n)
		default:
			s.emit(n)
		}
		if i != s.last {
			continue
		}
		for _, n := range s.head {
			for _, a := range n.Args {
				if late[a.Def] {
					return planErrorf("loss_slices", "%s reads %s, which is made of all slices; use loss_slices 0", n.Name, a.Name())
				}
			}
		}
		for part := range s.parts {
			if err := s.slice(part); err != nil {
				return err
			}
		}
		if err := s.whole(g); err != nil {
			return err
		}
		for _, n := range after {
			s.emit(n)
		}
	}
	g.Nodes = s.out
	for i, o := range g.Outputs {
		if v := s.now[o.Value]; v != nil {
			g.Outputs[i].Value = v
		}
	}
	g.Renumber()
	return nil
}

// emit appends a node of the graph and replaces its operands. If the node itself is a sum in the update, it
// reads the terms of an operand that slices sum.
func (s *lossSlicer) emit(n *ir.Node) {
	s.out = append(s.out, n)
	sums := n.Op == ir.OpAddN && n.Phase == ir.Update
	if !slices.ContainsFunc(n.Args, func(a *ir.Value) bool { return s.now[a] != nil || sums && s.terms[a] != nil }) {
		return
	}
	var args []*ir.Value
	for _, a := range n.Args {
		terms, v := s.terms[a], s.now[a]
		switch {
		case sums && terms != nil:
			args = append(args, terms...)
		case v != nil:
			args = append(args, v)
		default:
			args = append(args, a)
		}
	}
	n.Args = args
	n.Sign()
}

// slice appends the nodes of the head for one slice.
func (s *lossSlicer) slice(part int) error {
	mine := map[*ir.Value]*ir.Value{} // by value of the graph: what the slice has in its place
	for _, n := range s.head {
		dim, sig := s.positions(n), ir.SignatureOf(n)
		var args []*ir.Value
		for i, a := range n.Args {
			at := slices.Index(sig.Args[i], dim)
			if v := mine[a]; v != nil {
				args = append(args, v)
				continue
			}
			if at < 0 || dim < 0 {
				args = append(args, a)
				continue
			}
			if at != 1 {
				return planErrorf("loss_slices", "%s has positions in dimension %d; use loss_slices 0", a.Name(), at)
			}
			rows, err := s.add(ir.OpRows, ir.RowsAttr{Part: part, Parts: s.parts}, a.Name(), part, n, []*ir.Value{a})
			if err != nil {
				return err
			}
			mine[a] = rows.Results[0]
			args = append(args, rows.Results[0])
		}
		m, err := s.add(n.Op, n.Attr, n.Name, part, n, args)
		if err != nil {
			return err
		}
		for i, r := range n.Results {
			mine[r] = m.Results[i]
			if s.roles[r] != perSlice {
				s.terms[r] = append(s.terms[r], m.Results[i])
			}
		}
	}
	return nil
}

// add appends a node for a slice, or with part -1 for all of them, with the phase and source position of at.
func (s *lossSlicer) add(op ir.Op, attr ir.Attr, name string, part int, at *ir.Node, args []*ir.Value) (*ir.Node, error) {
	if part >= 0 {
		name = fmt.Sprintf("%s%s%d", name, sliceSuffix, part)
	}
	n := &ir.Node{Op: op, Attr: attr, Name: name, Phase: max(at.Phase, s.phase), Pos: at.Pos, Args: args}
	if err := s.graph.Infer(n); err != nil {
		return nil, err
	}
	s.out = append(s.out, n)
	return n, nil
}

// whole appends, after all slices, the joined values and the sums. A sum that only the update reads, a
// gradient, is made in the update, unless the sums are to be early.
func (s *lossSlicer) whole(g *ir.Graph) error {
	for _, n := range s.head {
		for _, r := range n.Results {
			switch s.roles[r] {
			case joined:
				m, err := s.add(ir.OpJoinRows, nil, n.Name, -1, n, s.terms[r])
				if err != nil {
					return err
				}
				s.now[r] = m.Results[0]
				delete(s.terms, r)
			case summed:
				update, passes := s.readers(g, r)
				if passes = passes || s.early; !passes && !update {
					continue // only sums read it, and those read its terms
				}
				m, err := s.add(ir.OpAddN, nil, n.Name+sliceSuffix+"s", -1, n, s.terms[r])
				if err != nil {
					return err
				}
				s.now[r] = m.Results[0]
				if passes {
					delete(s.terms, r)
				} else {
					m.Phase = ir.Update
				}
			}
		}
	}
	return nil
}

// readers reports who reads a value outside the head: the update, other than by sums of gradients, and the
// passes.
func (s *lossSlicer) readers(g *ir.Graph, v *ir.Value) (update, passes bool) {
	for _, n := range g.Nodes {
		if !slices.Contains(n.Args, v) || slices.Contains(s.head, n) {
			continue
		}
		update = update || n.Phase == ir.Update && n.Op != ir.OpAddN
		passes = passes || n.Phase != ir.Update
	}
	for _, o := range g.Outputs {
		passes = passes || o.Value == v
	}
	return update, passes
}
