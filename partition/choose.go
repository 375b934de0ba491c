package partition

import (
	"fmt"
	"math"
	"slices"

	"github.com/autopar/autopar/ir"
)

// choose picks a rule of the node's signature for every axis: the legal one of least cost. Axes are independent
// in that the placements on one axis do not change which rules are legal on another; only a dimension that
// earlier axes have made too short rules one out (crowded). The results are valid until the next call.
func (pr *propagator) choose(n *ir.Node) (argSpecs, resSpecs []ir.ShardSpec, err error) {
	sig := ir.SignatureOf(n)
	specs := slices.Grow(pr.specs[:0], len(n.Args)+len(n.Results))[:len(n.Args)+len(n.Results)]
	clear(specs)
	pr.specs = specs
	argSpecs, resSpecs = specs[:len(n.Args)], specs[len(n.Args):]
	pin, pinned, err := pr.placer.find(pr.mesh, PlacedAs(n), n.Results[0].Type.Shape)
	if err != nil {
		return nil, nil, err
	}
	var rules [ir.MaxAxes]int
	for axis, a := range pr.mesh.Axes {
		rules[axis] = ir.ReplicateAll
		if a.Size == 1 && !a.Time && whole(n.Args, axis) {
			continue // everything has the zero placement, so there is nothing to choose
		}
		best := math.Inf(1)
		for rule := ir.PassPartial; rule < len(sig.Dims); rule++ {
			if a.Size == 1 && !a.Time && rule != ir.ReplicateAll {
				continue // on an axis of size 1 everything is replicated
			}
			if a.Time && n.Phase == ir.Update && rule != ir.ReplicateAll {
				continue // it runs once, after the last micro-batch
			}
			ra, rr, ok := sig.Rule(rule)
			if !ok || pr.crowded(sig, rules[:axis], rule) {
				continue
			}
			if pinned && tensorParallel(a) && rr[0] != pin[axis] {
				continue
			}
			if (tensorParallel(a) || a.Name == AxisCP) && ir.SequenceParts(n.Attr) > 0 && rr[0] == ir.ShardOn(0) {
				continue // these ranks would have parts of sequences
			}
			if a.Time && n.Phase != ir.Update && !lie(n.Args, axis, ra) {
				continue // data cannot move between micro-batches
			}
			cost := pr.cost(&trial{n, sig, rules[:axis], rule, ra, rr}, best)
			if cost < best {
				best, rules[axis] = cost, rule
				for i := range ra {
					argSpecs[i][axis] = ra[i]
				}
				for i := range rr {
					resSpecs[i][axis] = rr[i]
				}
			}
		}
		if math.IsInf(best, 1) {
			if pinned {
				return nil, nil, planErrorf("placements", "%s cannot lie as %s over axis %s", n.Name, pin.Format(pr.mesh, len(n.Results[0].Type.Shape)), a.Name)
			}
			specs := make([]string, len(n.Args))
			for i, v := range n.Args {
				specs[i] = v.Spec.Format(pr.mesh, len(v.Type.Shape))
			}
			return nil, nil, fmt.Errorf("no rule of %s fits operands placed %v over axis %s", n.Op, specs, a.Name)
		}
	}
	return argSpecs, resSpecs, nil
}

// parts returns the number of parts into which the rules of some axes shard a dimension over devices.
func (pr *propagator) parts(rules []int, dim int) int {
	n := 1
	for axis, rule := range rules {
		if a := &pr.mesh.Axes[axis]; rule == dim && !a.Time {
			n *= a.Size
		}
	}
	return n
}

// crowded reports whether a rule would shard a dimension that is too short, given the rules of the earlier axes
// that shard it too.
func (pr *propagator) crowded(sig *ir.Signature, before []int, rule int) bool {
	a := &pr.mesh.Axes[len(before)]
	return rule >= 0 && !a.Time && sig.Dims[rule].Size < a.Size*pr.parts(before, rule)
}

// whole reports whether all values have the zero placement on an axis.
func whole(values []*ir.Value, axis int) bool {
	for _, v := range values {
		if v.Spec[axis] != (ir.Placement{}) {
			return false
		}
	}
	return true
}

// lie reports whether values have the given placements on an axis.
func lie(values []*ir.Value, axis int, as []ir.Placement) bool {
	for i, v := range values {
		if v.Spec[axis] != as[i] {
			return false
		}
	}
	return true
}
