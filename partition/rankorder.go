package partition

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// UsualOrder is the order of the axes over the ranks of a unit where a plan does not say
// another, innermost first: neighbours are tensor-parallel.
const UsualOrder = AxisTP + "-" + AxisCP + "-" + AxisDP + "-" + AxisPP

// AxisPP names the positions of the pipeline in a [Plan.RankOrder]. They are no axis of a
// mesh: each has a mesh of its own.
const AxisPP = "pp"

// Strides is by how much the number of a rank grows from one place of an axis of a unit
// to the next.
type Strides struct{ TP, CP, DP, PP int }

// StridesOf returns the strides of an order as [Plan.RankOrder] has it, of axes of some sizes.
// Axes that it leaves out, which are of one rank, come after those that it names.
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
		for at := 0; at+2 <= len(order); at += 3 { // names have two letters
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

// RankOrderOf returns what a plan whose axes have some sizes inside the unit says of an
// order: those of several ranks, or nothing where they are in the usual order.
func RankOrderOf(order string, sizes map[string]int) string {
	if text := several(order, sizes); text != several(UsualOrder, sizes) {
		return text
	}
	return ""
}

// RankOrderText is the order of the axes of several ranks of a unit, innermost first.
func (p *Plan) RankOrderText() string {
	return several(cmp.Or(p.RankOrder, UsualOrder), p.rankSizes())
}

// several leaves out of an order the axes of one rank.
func several(order string, sizes map[string]int) string {
	return strings.Join(slices.DeleteFunc(strings.Split(order, "-"), func(name string) bool { return sizes[name] == 1 }), "-")
}

// rankSizes are the sizes of the axes in a unit.
func (p *Plan) rankSizes() map[string]int {
	return map[string]int{AxisTP: p.TP, AxisCP: p.ContextParallel(), AxisDP: p.DP, AxisPP: p.PP()}
}

// CheckRankOrder says what is wrong with the text of an order of axes; nil if nothing is.
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

// validateRankOrder checks that the order names every axis of several ranks once.
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
