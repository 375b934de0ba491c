package cost

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// allSenders is [route] by looking at every device.
func allSenders(rungs []rung, p *partition.Plan, from, to int) Route {
	type origin struct{ level, unit int }
	senders := map[origin]int{}
	var most Route
	for d := range p.DataParallel() * p.ContextParallel() * p.TP {
		a, b := p.WorldRank(from, d), p.WorldRank(to, d)
		level := slices.IndexFunc(rungs, func(r rung) bool { return a/r.devices == b/r.devices })
		at := origin{level, a / rungs[level].inside}
		senders[at]++
		most[level] = max(most[level], senders[at])
	}
	return most
}

// allGroups is [Program.widest] by looking at every group.
func allGroups(m *Program, position, axis int) Group {
	worst, stride := Group{Size: 1}, 1
	for _, a := range m.mesh.Axes[axis+1:] {
		if !a.Time {
			stride *= a.Size
		}
	}
	size := m.mesh.Axes[axis].Size
	for d := range m.mesh.Devices() {
		if d/stride%size != 0 {
			continue
		}
		var ranks []int
		for i := range size {
			ranks = append(ranks, m.plan.WorldRank(position, d+i*stride))
		}
		if g := spread(m.rungs, ranks); worst.Size == 1 {
			worst = g
		} else {
			worst = worst.slowest(g)
		}
	}
	return worst
}

// TestWaysOfAll: looking at few groups and senders gives the same result as looking at all, on networks into which
// plans fit and do not. No group is faster than the bound of nearest.
func TestWaysOfAll(t *testing.T) {
	const seed = 8
	r := rand.New(rand.NewPCG(seed, 0))
	some := []int{1, 1, 2, 2, 3, 4, 5, 6, 8}
	one := func() int { return some[r.IntN(len(some))] }
	near := 0 // groups across nodes than which none is faster
	for range 3000 {
		c := round()
		c.DevicesPerNode = []int{1, 2, 3, 4, 8}[r.IntN(5)]
		if r.IntN(2) == 0 {
			c.NodesPerRack, c.Oversubscription = 2+r.IntN(3), 4
		}
		if r.IntN(3) == 0 {
			c.NICsPerNode = 1 + r.IntN(2)
		}
		p := &partition.Plan{DP: one(), CP: one(), TP: one(), MicroBatch: 1, Stages: make([]partition.Stage, one())}
		if r.IntN(4) == 0 {
			p.DP *= 8 // runs longer than the network's period
		}
		p.PlanNGPUs = p.DP * p.CP * p.TP * p.PP()
		p.RuntimeNGPUs = p.PlanNGPUs * one()
		if g := one(); g > 1 && p.DataParallel()%g == 0 {
			p.ZeROGroup = g
		}
		if r.IntN(2) == 0 {
			names := strings.Split(partition.UsualOrder, "-")
			r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
			p.RankOrder = strings.Join(names, "-")
		}
		if r.IntN(8) == 0 { // nothing is further than the innermost level
			c.InterNode.Bandwidth, c.InterNode.Latency = 10*c.IntraNode.Bandwidth, c.IntraNode.Latency/10
		}
		m := NewProgram(c, p, p.Mesh(p.DataParallel()))
		for from := range p.PP() {
			for axis := range m.mesh.Axes {
				if !m.mesh.Axes[axis].Time {
					g := allGroups(m, from, axis)
					for _, op := range []ir.Op{ir.OpAllReduce, ir.OpAllGather, ir.OpReduceScatter} {
						bytes := int64(1) << r.IntN(40)
						took, nearest := m.Replicas(op, bytes, g), m.Nearest(op, bytes, g.Size)
						require.LessOrEqual(t, nearest, took, "seed %d: %s of %d bytes over %+v of %+v", seed, op, bytes, g, c)
						if nearest > took*999/1000 && g.Fan[1] > 1 {
							near++
						}
					}
					require.Equal(t, g, m.widest(from, axis), "seed %d: %+v at position %d over axis %d of %+v", seed, p, from, axis, c)
				}
			}
			for to := range p.PP() {
				if to != from {
					require.Equal(t, allSenders(m.rungs, p, from, to), route(m.rungs, nil, p, from, to), "seed %d: %+v from %d to %d of %+v", seed, p, from, to, c)
				}
			}
		}
	}
	require.Greater(t, near, 1000)
}

// TestSameWays: if two orders of ranks have the same ways, all communication of programs takes the same groups and
// routes: between neighbours, and between the two ends of the pipeline.
func TestSameWays(t *testing.T) {
	const seed = 9
	r := rand.New(rand.NewPCG(seed, 0))
	one := func() int { return 1 + r.IntN(8) }
	same, ends := 0, 0
	for range 1000 {
		c := round()
		c.DevicesPerNode = 2 + r.IntN(9)
		if r.IntN(2) == 0 {
			c.NodesPerRack, c.Oversubscription = 2+r.IntN(3), 4
		}
		p := &partition.Plan{DP: one(), CP: 1, TP: one(), MicroBatch: 1, Stages: make([]partition.Stage, 2+r.IntN(9))}
		p.PlanNGPUs = p.DP * p.TP * p.PP()
		p.RuntimeNGPUs = p.PlanNGPUs
		var all []*Program
		for _, order := range []string{"", "tp-pp-dp", "pp-tp-dp", "dp-tp-pp", "dp-pp-tp", "pp-dp-tp"} {
			q := *p
			q.RankOrder = order
			all = append(all, NewProgram(c, &q, q.Mesh(q.DP)))
		}
		for i, a := range all {
			for _, b := range all[:i] {
				last := p.PP() - 1
				apart := a.route(0, last) != b.route(0, last) || a.route(last, 0) != b.route(last, 0)
				if a.Ways() != b.Ways() {
					if apart {
						ends++
					}
					continue
				}
				same++
				require.False(t, apart, "seed %d: the ends of %+v and %+v", seed, a.plan, b.plan)
				for at := range last {
					require.Equal(t, a.route(at, at+1), b.route(at, at+1), "seed %d: %+v and %+v", seed, a.plan, b.plan)
					require.Equal(t, a.route(at+1, at), b.route(at+1, at), "seed %d: %+v and %+v", seed, a.plan, b.plan)
				}
			}
		}
	}
	require.Positive(t, same)
	require.Positive(t, ends)
}
