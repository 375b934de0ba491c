package autopar_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
)

// offloaded is a plan to offload from and how it is run.
type offloaded struct {
	name  string
	plan  *partition.Plan
	train func(t testing.TB, p *partition.Plan, batch int) (*codegen.Program, *runtime.Executor)
}

// offloadCases has plans of many shapes, under every schedule, in each precision
// and reproducible.
func offloadCases() []offloaded {
	var cases []offloaded
	add := func(kind string, p *partition.Plan, train func(testing.TB, *partition.Plan, int) (*codegen.Program, *runtime.Executor)) {
		name := fmt.Sprintf("%s: dp %d tp %d pp %d %s zero %d in groups of %d", kind, p.DP, p.TP, p.PP(), p.ScheduleText(), p.ZeRO, p.ZeROGroup)
		cases = append(cases, offloaded{name, p, train})
	}
	sharded := func(p *partition.Plan, zero, group int) *partition.Plan {
		p.ZeRO, p.ZeROGroup = zero, group
		return p
	}
	for _, p := range []*partition.Plan{
		parityPlan(1, 1, 1, 4, partition.GPipe, false),
		parityPlan(2, 1, 1, 2, partition.OneFOneB, true),
		parityPlan(1, 3, 2, 3, partition.GPipe, true),
		parityPlan(2, 2, 2, 1, partition.OneFOneB, false),
		pipelinePlan(1, 1, 2, 2, 2, ""),
		sharded(pipelinePlan(2, 1, 2, 3, 1, "full"), 3, 0),
		pipelinePlan(1, 2, 4, 0, 1, "selective"),
		sharded(pipelinePlan(2, 1, 2, 0, 1, "full"), 3, 0),
	} {
		add("f32", p, trainer)
	}
	for zero := 1; zero <= 3; zero++ {
		add("f32", sharded(parityPlan(3, 1, 2, 2, partition.OneFOneB, true), zero, 0), trainer)
		p := sharded(parityPlan(4, 2, 1, 2, partition.OneFOneB, false), zero, 2)
		p.SequenceParallel = true
		add("f32", p, trainer)
	}
	for i, c := range precisions() {
		in := func(t testing.TB, p *partition.Plan, batch int) (*codegen.Program, *runtime.Executor) {
			return trainerIn(t, c, p, batch)
		}
		add(c.name, parityPlan(1, 1, 1, 4, partition.GPipe, false), in)
		add(c.name, sharded(parityPlan(4, 1, 1, 2, partition.OneFOneB, true), i+1, 2), in)
		add(c.name, sharded(pipelinePlan(3, 1, 2, 2*(i%2), 1, "full"), 1+i%2, 0), in)
	}
	add("reproducible", sharded(pipelinePlan(2, 1, 2, 2, 1, ""), 2, 0), exactTrainer)
	add("reproducible", pipelinePlan(1, 1, 4, 0, 1, "full"), exactTrainer)
	return cases
}

// TestOffloadKeepsTheBits: what is fetched is what was stashed, so losses and
// gradient norms do not differ by a bit. Device memory falls by what moved to the
// host, in bytes of its own type, and the ranks copy as often, and as many bytes,
// as the program says.
func TestOffloadKeepsTheBits(t *testing.T) {
	const batch, steps = 11, 3
	for k, c := range offloadCases() {
		if k%3 == 2 && !*parityAll {
			continue
		}
		var want trajectory
		var device []int64
		for _, what := range []partition.Offload{partition.OffloadNone, partition.OffloadOptimizer, partition.OffloadParams} {
			if what == partition.OffloadOptimizer && k%2 > 0 && !*parityAll {
				continue // with the weights its state moves, too
			}
			name := fmt.Sprintf("%s, offload %s", c.name, what)
			c.plan.Offload = what
			prog, exec := c.train(t, c.plan, batch)
			got := stepsOf(t, prog, exec, batch, steps)
			if what == partition.OffloadNone {
				want = got
			}
			require.Equal(t, want, got, name)
			for i, st := range prog.Stages {
				if what == partition.OffloadNone {
					device = append(device, st.Persist)
				}
				moved := movedBytes(t, prog, i, what)
				require.Equal(t, what.Moves(), moved > 0, name)
				require.Equal(t, moved, st.Host, name)
				require.Equal(t, device[i]-moved, st.Persist, name)
			}
			for r := range exec.Ranks() {
				require.Equal(t, copiesOf(prog, r), [2]int64{int64(exec.Counters(r).HostCopies), exec.Counters(r).HostBytes}, "%s: rank %d", name, r)
			}
		}
	}
}

// movedBytes is what a position keeps in host memory: all state of the optimizer,
// but not that of the loss scaler, and with params all weights.
func movedBytes(t *testing.T, prog *codegen.Program, position int, what partition.Offload) int64 {
	var moved int64
	for _, v := range prog.Graph.Params() {
		if v.Def.Stage != position {
			continue
		}
		attr := v.Def.Attr.(ir.ParamAttr)
		optimizer := attr.State && len(v.Type.Shape) > 0
		require.Equal(t, what.Moves() && optimizer || what == partition.OffloadParams && !attr.State, v.OnHost(), v.Name())
		if v.OnHost() {
			moved += (prog.Slab(v, ir.Coord{}).Elems()*v.Type.DType.Size() + 63) / 64 * 64
		}
	}
	return moved
}

// copiesOf counts the copies between device and host of a rank in a step, and their
// bytes.
func copiesOf(prog *codegen.Program, rank int) [2]int64 {
	var n [2]int64
	s := &prog.Schedules[rank]
	for _, task := range s.Tasks {
		for _, in := range prog.Stages[s.Stage].Run(task) {
			if codegen.HostCopy(in.Node.Op) {
				n[0]++
				n[1] += prog.CommBytes(s, &in, task)
			}
		}
	}
	return n
}
