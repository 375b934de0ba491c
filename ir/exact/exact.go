// Package exact makes every sum over the batch in a training step independent of how a plan cuts the batch.
// Losses, gradient norms and weights then have the same bits under every data-parallel degree, micro-batch
// size, ZeRO stage, recomputation, pipeline depth and schedule.
//
// Floating-point sums depend on their order. These are the sums whose order depends on the plan, and what
// replaces them:
//
//   - sums over the batch (weight gradients, the loss): the term of each sequence is computed in f32, by the
//     same kernel on the same numbers wherever the sequence is, and the terms are added in 64-bit fixed point;
//   - sums over the uses of a parameter and over pipeline stages (a tied table, the terms of the norm): also in
//     fixed point;
//   - the sum over the shards of gradients (the norm): each square is split into two fixed-point numbers, which
//     are added.
//
// Integers have the same sum in any order, so accumulation over micro-batches and collectives over
// data-parallel ranks need no change; they move q64 instead of f32, twice the bytes. Gradients become f32 once,
// before they are clipped. Sums over tensor-parallel ranks and over parts of a sequence are made within one
// sequence, in f32, and are not covered: see docs/limits.md.
//
// Demmel and Nguyen, "Parallel Reproducible Summation" (IEEE Transactions on Computers, 2015) sort terms of any
// magnitude into bins. Gradients are known to lie in a range that 64 bits cover, see [ir.GradientFrac].
package exact

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/autopar/autopar/ir"
)

// Sums returns a copy of a training or evaluation step in which no sum over the batch depends on its order. The
// batch is the first dimension of all inputs of two or more dimensions. Nodes that use such a sum move to the
// update phase, when the sum is complete. It returns an error if the computation of a single sequence needs a
// sum over the batch (as in batch normalization), or if an op cannot add in fixed point.
//
// The graph must not be partitioned yet.
func Sums(g *ir.Graph) (*ir.Graph, error) {
	s := &summer{
		dst: ir.NewGraph(g.Name), at: map[*ir.Value]*ir.Value{}, frac: map[*ir.Value]int{},
		batched: map[*ir.Value]bool{}, late: map[*ir.Value]bool{}, read: map[*ir.Value]*ir.Value{},
	}
	var late []*ir.Node
	for _, n := range g.Nodes {
		if s.isLate(n) {
			late = append(late, n)
			for _, r := range n.Results {
				s.late[r] = true
			}
		} else if err := s.node(n); err != nil {
			return nil, fmt.Errorf("exact: %s: %w", n.Name, err)
		}
	}
	for _, n := range late {
		if err := s.lateNode(n); err != nil {
			return nil, fmt.Errorf("exact: %s: %w", n.Name, err)
		}
	}
	for _, o := range g.Outputs {
		v, err := s.f32(s.at[o.Value])
		if err != nil {
			return nil, fmt.Errorf("exact: output %s: %w", o.Name, err)
		}
		s.dst.Outputs = append(s.dst.Outputs, ir.Output{Name: o.Name, Value: v})
	}
	for _, u := range g.Updates {
		s.dst.Updates = append(s.dst.Updates, ir.StateUpdate{Param: s.at[u.Param], New: s.at[u.New]})
	}
	return s.dst, nil
}

type summer struct {
	dst  *ir.Graph
	at   map[*ir.Value]*ir.Value // old to new
	frac map[*ir.Value]int       // of new q64 values; 0 for a sum of squares
	// batched holds the new values whose dimension 0 is the batch, late the old values that need a complete sum
	// over it.
	batched, late map[*ir.Value]bool
	read          map[*ir.Value]*ir.Value // f32 copies of new q64 values
}

// isLate reports whether a node can run only after the last micro-batch.
func (s *summer) isLate(n *ir.Node) bool {
	if n.Phase == ir.Update {
		return n.Op.Class() != ir.Leaf
	}
	return slices.ContainsFunc(n.Args, func(a *ir.Value) bool { return s.late[a] || s.at[a].Type.DType == ir.Q64 })
}

// node copies a leaf, or a node of the forward or backward pass. Results that sum over the batch become fixed
// point.
func (s *summer) node(n *ir.Node) error {
	if n.Op.Class() == ir.Leaf {
		v, err := s.dst.Leaf(n.Op, n.Name, n.Results[0].Type, n.Attr)
		if err != nil {
			return err
		}
		v.Def.Phase, v.Def.Pos = n.Phase, n.Pos
		s.at[n.Results[0]] = v
		s.batched[v] = n.Op == ir.OpInput && len(v.Type.Shape) >= 2
		return nil
	}
	sig := ir.SignatureOf(n)
	batch := -1 // the dimension of the signature that is the batch
	for i, a := range n.Args {
		if s.batched[s.at[a]] {
			batch = sig.Args[i][0]
		}
	}
	keeps := func(i int) bool { return len(sig.Results[i]) > 0 && sig.Results[i][0] == batch }
	op, attr, frac := n.Op, n.Attr, 0
	for i := range n.Results {
		if batch < 0 || keeps(i) {
			continue
		}
		if len(sig.Args[0]) == 0 || sig.Args[0][0] != batch || !op.Accumulates(i) {
			return fmt.Errorf("result %d of %s is a sum over the batch that cannot be made in fixed point", i, op)
		}
		frac = ir.GradientFrac
		if n.Phase == ir.Forward {
			frac = ir.LossFrac
		}
	}
	if frac > 0 {
		op, attr = fixedPoint(op, attr, frac)
	}
	results, err := s.add(n, op, attr, n.Name, n.Phase, s.args(n))
	for i, r := range results {
		s.batched[r] = batch >= 0 && keeps(i)
		s.frac[r] = frac
	}
	return err
}

// fixedPoint returns the op and attributes that compute the same sum in fixed point: the same ones, with Frac
// set.
func fixedPoint(op ir.Op, attr ir.Attr, frac int) (ir.Op, ir.Attr) {
	if op == ir.OpSum {
		return ir.OpSumTo, ir.SumToAttr{Frac: frac}
	}
	if attr != nil {
		changed := reflect.New(reflect.TypeOf(attr)).Elem()
		changed.Set(reflect.ValueOf(attr))
		if f := changed.FieldByName("Frac"); f.IsValid() {
			f.SetInt(int64(frac))
			return op, changed.Interface().(ir.Attr)
		}
	}
	panic(fmt.Sprintf("BUG: exact: %s adds up, but not in fixed point", op))
}

// lateNode copies a node into the update phase.
func (s *summer) lateNode(n *ir.Node) error {
	args := s.args(n)
	fixed := len(args) > 0
	for i, a := range args {
		if s.batched[a] {
			return fmt.Errorf("operand %d (%s) is of each sequence, but another operand is a sum over the batch", i, a.Name())
		}
		fixed = fixed && a.Type.DType == ir.Q64
	}
	op, name := n.Op, n.Name
	switch {
	case n.Op == ir.OpSumSquares:
		op = ir.OpFixedSquares
		name = strings.TrimSuffix(name, n.Op.String()) + op.String()
	case n.Op == ir.OpAddN && fixed:
		results, err := s.add(n, op, n.Attr, name, ir.Update, args)
		if err == nil {
			s.frac[results[0]] = s.frac[args[0]]
		}
		return err
	case n.Op == ir.OpSqrt && fixed && s.frac[args[0]] == 0:
		_, err := s.add(n, ir.OpFixedRoot, nil, name, ir.Update, args)
		return err
	}
	for i, a := range args {
		var err error
		if args[i], err = s.f32(a); err != nil {
			return err
		}
	}
	_, err := s.add(n, op, n.Attr, name, ir.Update, args)
	return err
}

func (s *summer) args(n *ir.Node) []*ir.Value {
	args := make([]*ir.Value, len(n.Args))
	for i, a := range n.Args {
		args[i] = s.at[a]
	}
	return args
}

// add appends the copy of a node and returns its results.
func (s *summer) add(n *ir.Node, op ir.Op, attr ir.Attr, name string, phase ir.Phase, args []*ir.Value) ([]*ir.Value, error) {
	m, err := s.dst.Add(op, attr, name, phase, args...)
	if err != nil {
		return nil, err
	}
	m.Pos = n.Pos
	for i, r := range n.Results {
		s.at[r] = m.Results[i]
	}
	return m.Results, nil
}

// f32 returns a value as f32, in the update phase if it is fixed point.
func (s *summer) f32(v *ir.Value) (*ir.Value, error) {
	if v.Type.DType != ir.Q64 {
		return v, nil
	}
	if r, ok := s.read[v]; ok {
		return r, nil
	}
	n, err := s.dst.Add(ir.OpFromFixed, ir.FixedAttr{Frac: s.frac[v]}, v.Name()+"@f32", ir.Update, v)
	if err != nil {
		return nil, err
	}
	n.Pos = v.Def.Pos
	s.read[v] = n.Results[0]
	return n.Results[0], nil
}
