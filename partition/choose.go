package partition

import (
	"fmt"
	"math"
	"slices"

	"github.com/autopar/autopar/ir"
)

// choose picks a rule for every axis. Axes are independent: the placements of
// one do not change which rules of another are legal. What it returns is good until it is called again.
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
			continue // as in the zero spec: there is nothing to place
		}
		best := math.Inf(1)
		for rule := ir.PassPartial; rule < len(sig.Dims); rule++ {
			if a.Size == 1 && !a.Time && rule != ir.ReplicateAll {
				continue // nothing to place on an axis of one
			}
			if a.Time && n.Phase == ir.Update && rule != ir.ReplicateAll {
				continue // it runs after the last micro-batch, once
			}
			ra, rr, ok := sig.Rule(rule)
			if !ok || pr.crowded(sig, rules[:axis], rule) {
				continue
			}
			if pinned && tensorParallel(a) && rr[0] != pin[axis] {
				continue
			}
			if a.Time && n.Phase != ir.Update && !lie(n.Args, axis, ra) {
				continue // micro-batches cannot see each other
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

// parts is into how many parts the rules of some axes cut a dimension over devices.
func (pr *propagator) parts(rules []int, dim int) int {
	n := 1
	for axis, rule := range rules {
		if a := &pr.mesh.Axes[axis]; rule == dim && !a.Time {
			n *= a.Size
		}
	}
	return n
}

// crowded reports whether a rule would cut a dimension that is too short for it: the rules of the
// axes before have cut it too.
func (pr *propagator) crowded(sig *ir.Signature, before []int, rule int) bool {
	a := &pr.mesh.Axes[len(before)]
	return rule >= 0 && !a.Time && sig.Dims[rule].Size < a.Size*pr.parts(before, rule)
}

// whole reports whether an axis places nothing of any value.
func whole(values []*ir.Value, axis int) bool {
	for _, v := range values {
		if v.Spec[axis] != (ir.Placement{}) {
			return false
		}
	}
	return true
}

// lie reports whether values lie on an axis as placements have it.
func lie(values []*ir.Value, axis int, as []ir.Placement) bool {
	for i, v := range values {
		if v.Spec[axis] != as[i] {
			return false
		}
	}
	return true
}
