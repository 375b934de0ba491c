package interp_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/interp"
	"github.com/autopar/autopar/ir/irtest"
)

// TestEveryRuleIsTrue checks the signatures against the definitions. For every node of random graphs and every
// rule of its signature, it cuts the operands in three as the rule says, runs the op on each part alone, and
// requires that the parts of the results make up the whole results. So a wrong row in the op table, such as a
// dimension that cannot really be split, fails here.
func TestEveryRuleIsTrue(t *testing.T) {
	tried := map[string]bool{}
	for seed := range uint64(25) {
		s := irtest.RandomGraph(irtest.Rand(t, seed), 10, false)
		values := map[*ir.Value]interp.Tensor{}
		_, err := interp.Run(s.Graph, s.Feeds, interp.Options{Trace: func(v *ir.Value, x interp.Tensor) { values[v] = x }})
		require.NoError(t, err)
		for _, n := range s.Graph.Nodes {
			if n.Op.Class() != ir.Compute {
				continue
			}
			sig := ir.SignatureOf(n)
			for rule := ir.PassPartial; rule < len(sig.Dims); rule++ {
				if _, _, ok := sig.Rule(rule); ok {
					tried[ruleName(sig, rule)] = true
					checkRule(t, n, sig, rule, values)
				}
			}
		}
	}
	for _, want := range []string{"matmul k0", "embedding v", "attention h", "attention g0", "attention_grad g0", "row_max v", "add partial", "add_n partial", "embedding_grad partial"} {
		require.True(t, tried[want], "no random graph tries the rule %s", want)
	}
}

func ruleName(sig *ir.Signature, rule int) string {
	switch rule {
	case ir.PassPartial:
		return sig.Op.String() + " partial"
	case ir.ReplicateAll:
		return sig.Op.String() + " replicated"
	}
	return sig.Op.String() + " " + sig.Dims[rule].Name
}

const parts = 3

func checkRule(t *testing.T, n *ir.Node, sig *ir.Signature, rule int, values map[*ir.Value]interp.Tensor) {
	t.Helper()
	name := fmt.Sprintf("rule %s of %s", ruleName(sig, rule), n.Name)
	onArgs, onResults, _ := sig.Rule(rule)
	if (n.Op == ir.OpAttentionKV || n.Op == ir.OpAttentionKVGrad) && rule >= 0 && sig.Dims[rule].Name == "t" {
		return // the definition has all positions; backendtest cuts them
	}
	axis := ir.Axis{Name: "x", Size: parts}
	got := make([]interp.Tensor, len(n.Results))
	for part := range parts {
		args := make([]interp.Tensor, len(n.Args))
		empty := false
		for i, a := range n.Args {
			args[i] = take(values[a], onArgs[i], axis, part)
			empty = empty || ir.Elems(args[i].Shape) == 0
		}
		if rule >= 0 && sig.Dims[rule].Name == "v" {
			cut := axis.Cut(sig.Dims[rule].Size, part)
			if empty = empty || cut.Len == 0; !empty && !shiftIDs(n.Op, args, cut) {
				return
			}
		}
		if empty {
			continue // a rank with nothing to do
		}
		if rule >= 0 && sig.Dims[rule].Name == "g0" {
			evalSomeQueries(t, n, args, axis.Cut(sig.Dims[rule].Size, part), func(i int, out interp.Tensor) {
				put(&got[i], n.Results[i].Type, out, onResults[i], axis, part)
			})
			continue
		}
		out := eval(t, n.Op, n.Attr, args...)
		for i := range out {
			put(&got[i], n.Results[i].Type, out[i], onResults[i], axis, part)
		}
	}
	for i, r := range n.Results {
		require.InDeltaSlice(t, values[r].F, got[i].F, 1e-9, "%s: result %d is %s", name, i, onResults[i])
	}
}

// evalSomeQueries computes attention, or its gradient, for some of the queries that share heads, as a kernel
// does that knows which they are: it runs the op on these alone, and other queries have no gradient.
func evalSomeQueries(t *testing.T, n *ir.Node, args []interp.Tensor, cut ir.Span, put func(i int, out interp.Tensor)) {
	if cut.Len == 0 {
		return
	}
	at := 0 // the operand of packed queries, keys and values
	if n.Op == ir.OpAttentionGrad {
		at = 1
	}
	whole := args[at]
	s := whole.Shape
	some := []int{s[0], s[1], cut.Len + 2, s[3], s[4]}
	// move copies the selected parts between a tensor with all queries and one with some.
	move := func(do func(all, few int)) {
		for row := range s[0] * s[1] {
			for part := range some[2] {
				from := cut.Off + part
				if part >= cut.Len {
					from = s[2] - some[2] + part
				}
				for i := range s[3] * s[4] {
					do((row*s[2]+from)*s[3]*s[4]+i, (row*some[2]+part)*s[3]*s[4]+i)
				}
			}
		}
	}
	few := interp.Zeros(ir.Type{Shape: some})
	move(func(all, i int) { few.F[i] = whole.F[all] })
	args[at] = few
	if cut.Len == 1 { // a single query has no dimension
		for i, x := range args {
			if n.Op == ir.OpAttentionGrad && i != at && len(x.Shape) >= 4 {
				args[i].Shape = slices.Delete(slices.Clone(x.Shape), len(x.Shape)-3, len(x.Shape)-2)
			}
		}
	}
	for i, out := range eval(t, n.Op, n.Attr, args...) {
		if n.Op == ir.OpAttentionGrad {
			all := interp.Zeros(whole.Type())
			move(func(at, few int) { all.F[at] = out.F[few] })
			out = all
		}
		put(i, out)
	}
}

// shiftIDs makes ids relative to the range of the vocabulary that a part holds, as a kernel does that knows its
// offset. It reports whether that can be expressed with the op on the part alone: rows out of range must come
// out as 0.
func shiftIDs(op ir.Op, args []interp.Tensor, cut ir.Span) bool {
	shift := func(ids interp.Tensor) interp.Tensor {
		out := interp.Zeros(ids.Type())
		for i, id := range ids.I {
			out.I[i] = -1
			if at := int(id) - cut.Off; at >= 0 && at < cut.Len {
				out.I[i] = int32(at)
			}
		}
		return out
	}
	switch op {
	case ir.OpRowMax, ir.OpRowSumExp:
		return true
	case ir.OpRowPick:
		args[1] = shift(args[1])
		return true
	case ir.OpEmbedding: // a row of zeros in front of the table serves ids out of range
		table := args[0]
		width := table.Shape[1]
		args[0] = interp.Floats(append(make([]float64, width), table.F...), table.Shape[0]+1, width)
		args[1] = shift(args[1])
		for i := range args[1].I {
			args[1].I[i]++
		}
		return true
	}
	return false
}

// take returns the operand that one part gets.
func take(x interp.Tensor, p ir.Placement, axis ir.Axis, part int) interp.Tensor {
	switch p.Kind {
	case ir.Shard:
		slab := slabOf(x.Shape, p, axis, part)
		y := interp.Zeros(ir.Type{DType: x.Type().DType, Shape: slab.Local})
		each(slab, func(global, local int) {
			if x.I != nil {
				y.I[local] = x.I[global]
			} else {
				y.F[local] = x.F[global]
			}
		})
		return y
	case ir.Partial: // unequal terms that add up to x
		y := interp.Zeros(x.Type())
		weights := [parts]float64{0.5, -1.25, 1.75}
		for i := range y.F {
			y.F[i] = x.F[i]*weights[(part+i)%parts] + float64(part-1)
		}
		return y
	}
	return x
}

// put adds a part's result to the whole one.
func put(whole *interp.Tensor, t ir.Type, x interp.Tensor, p ir.Placement, axis ir.Axis, part int) {
	first := whole.F == nil
	if first {
		*whole = interp.Zeros(t)
	}
	switch p.Kind {
	case ir.Shard:
		each(slabOf(t.Shape, p, axis, part), func(global, local int) { whole.F[global] = x.F[local] })
	case ir.Partial:
		for i := range x.F {
			switch {
			case p.Reduce == ir.Sum:
				whole.F[i] += x.F[i]
			case first:
				whole.F[i] = x.F[i]
			default:
				whole.F[i] = math.Max(whole.F[i], x.F[i])
			}
		}
	default:
		copy(whole.F, x.F)
	}
}

func slabOf(shape []int, p ir.Placement, axis ir.Axis, part int) ir.Slab {
	return ir.Mesh{Axes: []ir.Axis{axis}}.Local(shape, ir.ShardSpec{p}, ir.Coord{part})
}

// each calls f with the global and local index of every element of a slab.
func each(s ir.Slab, f func(global, local int)) {
	for local := range int(s.Elems()) {
		f(int(s.GlobalIndex(local)), local)
	}
}
