package sim

import (
	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/planner/cost"
)

// RunApart is [Run] with every rank simulated by itself.
func RunApart(prog *codegen.Program, c *cost.Cluster, opts Options) (*Timeline, error) {
	return run(prog, c, opts, func(prog *codegen.Program, _ func(ir.Coord) ir.Coord) []int {
		ranks := make([]int, len(prog.Schedules))
		for r := range ranks {
			ranks[r] = r
		}
		return ranks
	})
}
