package partition

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// UsualOrder is the order of the axes over the ranks of a unit, innermost first, if a plan does not name
// another: neighbouring ranks are tensor-parallel.
const UsualOrder = AxisTP + "-" + AxisCP + "-" + AxisDP + "-" + AxisPP

// AxisPP names the positions of the pipeline in a [Plan.RankOrder]. They are not an axis of a mesh: each
// position has a mesh of its own.
const AxisPP = "pp"

// Strides is the difference of rank numbers between neighbours on each axis of a unit.
type Strides struct{ TP, CP, DP, PP int }

// StridesOf returns the strides of an order, in the form of [Plan.RankOrder], for axes of the given sizes. Axes
// that it leaves out have size 1 and come last.
func StridesOf(order string, tp, cp, dp, pp int) Strides {
	if order == "" {
		return Strides{1, tp, tp * cp, tp * cp * dp}
	}
	var s Strides
	next := 1
	take := func(stride *int, size int) {
		if *stride == 0 {
			*stride = next
			next *= size
		}
	}
	for _, order := range [...]string{order, UsualOrder} {
		for at := 0; at+2 <= len(order); at += 3 { // all names have two letters
			switch order[at : at+2] {
			case AxisTP:
				take(&s.TP, tp)
			case AxisCP:
				take(&s.CP, cp)
			case AxisDP:
				take(&s.DP, dp)
			case AxisPP:
				take(&s.PP, pp)
			}
		}
	}
	return s
}

// RankOrderOf returns the shortest [Plan.RankOrder] that means the given order for axes of the given sizes:
// only axes of size 2 or more, or "" if those are in the usual order.
func RankOrderOf(order string, sizes map[string]int) string {
	if text := several(order, sizes); text != several(UsualOrder, sizes) {
		return text
	}
	return ""
}

// RankOrderText returns the order of the unit's axes of size 2 or more, innermost first.
func (p *Plan) RankOrderText() string {
	return several(cmp.Or(p.RankOrder, UsualOrder), p.rankSizes())
}

// several drops the axes of size 1 from an order.
func several(order string, sizes map[string]int) string {
	return strings.Join(slices.DeleteFunc(strings.Split(order, "-"), func(name string) bool { return sizes[name] == 1 }), "-")
}

// rankSizes returns the sizes of the axes within a unit.
func (p *Plan) rankSizes() map[string]int {
	return map[string]int{AxisTP: p.TP, AxisCP: p.ContextParallel(), AxisDP: p.DP, AxisPP: p.PP()}
}

// CheckRankOrder returns an error if order is not the text of an order of axes.
func CheckRankOrder(order string) error {
	names := strings.Split(order, "-")
	for i, name := range names {
		switch {
		case !slices.Contains(strings.Split(UsualOrder, "-"), name):
			return fmt.Errorf("is %q, and %q is no axis of a unit; want tp, cp, dp and pp, innermost first, such as %s", order, name, UsualOrder)
		case slices.Contains(names[:i], name):
			return fmt.Errorf("is %q, which names %s twice", order, name)
		}
	}
	return nil
}

// validateRankOrder checks that the order names every axis of size 2 or more exactly once.
func (p *Plan) validateRankOrder() error {
	if p.RankOrder == "" {
		return nil
	}
	if err := CheckRankOrder(p.RankOrder); err != nil {
		return planErrorf("rank_order", "%v", err)
	}
	full := p.RankOrder
	var missing []string
	for _, name := range strings.Split(UsualOrder, "-") {
		if n := p.rankSizes()[name]; n > 1 && !strings.Contains(p.RankOrder, name) {
			missing = append(missing, fmt.Sprintf("%s %d", name, n))
			full += "-" + name
		}
	}
	if len(missing) > 0 {
		return planErrorf("rank_order", "is %q, which leaves out %s; of %d ranks in a unit each has to lie somewhere: %s would do",
			p.RankOrder, strings.Join(missing, " and "), p.PlanNGPUs, full)
	}
	return nil
}
