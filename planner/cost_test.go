package planner

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/exact"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

// randomCluster is a cluster with odd figures, in which every term matters.
func randomCluster(r *rand.Rand) *cost.Cluster {
	scale := func(x float64) float64 { return x * (0.3 + 3*r.Float64()) }
	link := func(bw float64) cost.Link {
		return cost.Link{Bandwidth: scale(bw), Efficiency: 0.5 + r.Float64()/2, Latency: scale(1e-5)}
	}
	host := link(5e8)
	c := &cost.Cluster{
		Name: "random", Host: &host, DevicesPerNode: 1 + r.IntN(8), IntraNode: link(1e9), InterNode: link(1e8),
		Device: cost.Device{
			Name: "d", Cores: 1, Memory: 1 << 30, FLOPS: map[string]float64{"f32": scale(1e11)},
			MemoryBandwidth: scale(1e10), LaunchOverhead: scale(1e-6),
			Efficiency: cost.Efficiency{Matmul: 0.8, MatmulHalf: scale(1e5), Attention: 0.4, Vector: 0.1, Memory: 0.8},
		},
	}
	switch r.IntN(4) {
	case 0:
		c.NICsPerNode = 1 + r.IntN(3)
	case 1:
		c.NodesPerRack, c.Oversubscription = 1+r.IntN(3), 1+3*r.Float64()
	case 2:
		level := func(name string, devices int, bw float64) cost.Level {
			l := link(bw)
			return cost.Level{Name: name, Devices: devices, Bandwidth: l.Bandwidth, Efficiency: l.Efficiency, Latency: l.Latency, NICs: r.IntN(3)}
		}
		pair := 1 + r.IntN(2)
		c.Levels = []cost.Level{level("pair", pair, 1e9), level("node", (1+r.IntN(3))*pair*2, 3e8), level("cluster", 0, 1e8)}
	}
	return c
}

// randomRankOrder is an order of the axes of a unit.
func randomRankOrder(r *rand.Rand, d degrees) string {
	names := strings.Split(partition.UsualOrder, "-")
	r.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	return partition.RankOrderOf(strings.Join(names, "-"), d.sizes())
}

// randomPools is a cluster of two or three kinds of devices, with as many in all as given
// or some more.
func randomPools(r *rand.Rand, devices int) *cost.Cluster {
	var pools []cost.Pool
	for left := devices + r.IntN(2); left > 0 || len(pools) < 2; {
		n := 1 + r.IntN(max(left, 1))
		if len(pools) == 2 {
			n = left
		}
		k := randomCluster(r)
		k.Device.FLOPS["bf16"] = (1 + 4*r.Float64()) * k.Device.FLOPS["f32"]
		pools = append(pools, cost.Pool{Cluster: k, Devices: n})
		left -= n
	}
	var between *cost.Link
	if r.IntN(2) == 0 {
		between = &cost.Link{Bandwidth: 1e8 * (0.1 + r.Float64()), Efficiency: 0.7, Latency: 1e-4 * r.Float64()}
	}
	return cost.Join("pools", between, pools...)
}

// sharing makes a cluster one machine that all ranks share. The search leaves
// overlap off there.
func sharing(r *rand.Rand, c *cost.Cluster) *cost.Cluster {
	c.NICsPerNode, c.NodesPerRack, c.Oversubscription, c.Levels = 0, 0, 0, nil
	c.Device.Shared, c.Device.Cores = true, 1+r.IntN(4)
	c.Device.Efficiency.Threads = []float64{0, 0.7}[r.IntN(2)]
	c.Device.Cache = &cost.Cache{Memory: 1 << (10 + r.IntN(10)), Bandwidth: 1e12}
	return c
}

// randomCut cuts blocks into stages with random recomputation.
func randomCut(r *rand.Rand, blocks, stages int) []partition.Stage {
	cut := make([]partition.Stage, stages)
	first := 0
	for i := range cut {
		n := 1
		if spare := blocks - first - (stages - i); spare > 0 {
			n += r.IntN(spare + 1)
		}
		if i == stages-1 {
			n = blocks - first
		}
		again := recomputation{full: []int{0, n, r.IntN(n + 1)}[r.IntN(3)]}
		if left := n - again.full; left > 0 {
			count := []int{0, left, r.IntN(left + 1)}[r.IntN(3)]
			again = mixed(again.full, []extent{selective, pointwise}[(first+count)%2], count)
		}
		cut[i] = again.stage(first, n)
		first += n
	}
	return cut
}

// The cost of a plan, from programs with one block per stage and one rank per
// stage, is to the picosecond what the simulation of the whole program says; and
// the memory bound never exceeds the arena.
func TestCostIsSimulation(t *testing.T) {
	for _, seed := range []uint64{12, 13, 32, 44, 61, 74, 105, 107, 210, 302, 303, 305, 503, 901, 2006, 2016, 7003} { // each meets something that the others do not
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			testCostIsSimulation(t, seed, 1, false, false)
		})
		if testing.Short() {
			break
		}
	}
}

// The same on clusters of several kinds of devices.
func TestCostOnPoolsIsSimulation(t *testing.T) {
	t.Parallel()
	testCostIsSimulation(t, 12, 2, false, false)
}

// The same where products and collectives next to them are made in parts.
func TestCostInPiecesIsSimulation(t *testing.T) {
	for _, seed := range []uint64{12, 61, 305, 3107, 18101} {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			testCostIsSimulation(t, seed, 1, true, false)
		})
	}
}

// The same where memory is so slow, and links are so fast, that what is made where and how often takes all the time, and
// tensor-parallel ranks share tokens and hold modules whole.
func TestCostOfSlowMemoryIsSimulation(t *testing.T) {
	for _, seed := range []uint64{9140, 9144} {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			testCostIsSimulation(t, seed, 1, true, true)
		})
	}
}

// testCostIsSimulation takes clusters with at least so many kinds of devices; with pieces, models of which sequences
// start where tensors may, and plans that make products in parts.
func testCostIsSimulation(t *testing.T, seed uint64, kinds int, pieces, extreme bool) {
	r := rand.New(rand.NewPCG(seed, 0))
	cases := 150
	if testing.Short() {
		cases = 30
	}
	slack, floors, tighter, compared, interleaved, raised, reached, stoodFor, waiting, sliced, inPieces := 0.0, 0.0, 0.0, 0.0, 0, 0, 0, 0, 0, 0, 0
	for k := range cases {
		blocks, batch := 1+r.IntN(8), 1+r.IntN(13)
		model := tiny(blocks)
		model.Bias = r.IntN(2) == 0
		model.Dropout = []float64{0, 0.2}[r.IntN(2)]
		model.NHead = 1 + r.IntN(4)
		model.NEmbd = model.NHead * 8
		if k%5 < 2 && model.NHead%2 == 0 {
			model.NKVHead = model.NHead / 2
		}
		model.BlockSize = []int{33, 24}[r.IntN(2)]
		if pieces {
			model.BlockSize, model.NEmbd = 32, model.NHead*32
		}
		if k%4 == 0 || k%4 == 3 {
			model = llama(model)
		}
		d := degrees{dp: 1 + r.IntN(6), cp: 1, tp: 1 + r.IntN(5), pp: 1 + r.IntN(min(6, blocks))}
		if r.IntN(3) == 0 {
			d.cp += 1 + r.IntN(3)
		}
		if x := rand.New(rand.NewPCG(seed, uint64(k)+4)); x.IntN(4) == 0 {
			d.tp = 4 + 2*x.IntN(3) // a grid
		}
		d.plan = d.dp * d.cp * d.tp * d.pp
		units := 1 + r.IntN(2)
		if d.dp*units > batch {
			continue
		}
		var sh sharding
		if d.dp*units > 1 {
			sh.zero = r.IntN(4)
			if g := 2 + r.IntN(3); sh.zero > 0 && d.dp*units%g == 0 && g < d.dp*units {
				sh.group = g
			}
		}
		if d.tp > 1 {
			sh.sequence = r.IntN(2) == 0 || extreme
		}
		sh.offload = []partition.Offload{partition.OffloadNone, partition.OffloadOptimizer, partition.OffloadParams}[r.IntN(3)]
		model.Float = []ir.DType{ir.F32, ir.BF16, ir.F16}[k%3]
		c := randomCluster(r)
		if k%3 == 0 { // where work is all that counts bounds are closest
			c.Device.LaunchOverhead, c.Device.Efficiency.MatmulHalf = c.Device.LaunchOverhead/1e4, 0
			for _, l := range []*cost.Link{&c.IntraNode, &c.InterNode} {
				l.Latency, l.Bandwidth = l.Latency/1e4, l.Bandwidth*100
				if extreme {
					l.Latency, l.Bandwidth = l.Latency/100, l.Bandwidth*100
				}
			}
			c.Levels = nil
		}
		if extreme {
			c.Device.MemoryBandwidth /= 100
		}
		if k%5 == 4 {
			c = sharing(r, c)
		}
		c.Device.FLOPS["bf16"] = 4 * c.Device.FLOPS["f32"]
		if c.Device.Shared = k%4 == 0; kinds > 1 { // streams do not overlap there
			c = randomPools(r, d.plan*units)
			d.order = r.IntN(len(c.Orders()))
		} else if k%8 == 0 {
			c.Collectives, c.Device.Cores, c.Device.Turn = cost.OnePass, 1+k%5, 4e-5
			c.Device.Efficiency.Threads, c.Device.Efficiency.AttentionHalf = 0.8, 90
			c.Device.Cache = &cost.Cache{Memory: 1 << 20, Bandwidth: 2e11, Remote: 5e9}
			c.Device.Kernels = map[string]float64{"gelu": 0.02, "attention_grad": 0.3}
		}
		g := step(t, model, batch)
		if k%6 == 3 {
			var err error
			g, err = exact.Sums(g)
			require.NoError(t, err)
		}
		chunks := 1
		if d.pp > 1 && blocks/d.pp > 1 && r.IntN(4) > 0 {
			chunks = 2 + r.IntN(blocks/d.pp-1)
		} else if d.cp == 1 && !sh.offload.Moves() {
			sh.overlap = r.IntN(3) > 0
		}
		if x := rand.New(rand.NewPCG(seed, uint64(k)+3)); chunks > 1 && d.cp == 1 && !sh.offload.Moves() {
			sh.overlap = x.IntN(3) > 0
		}
		opts := Options{RuntimeNGPUs: d.plan * units, OverlapTP: onOff(rand.New(rand.NewPCG(seed, uint64(k)+5)).IntN(3) > 0)}
		if pieces {
			opts.TPPieces = 2 + k%3
			if d.tp > 1 {
				sh.pieces = opts.TPPieces
			}
		}
		s := newSearcher(g, batch, c, opts)
		if x := rand.New(rand.NewPCG(seed, uint64(k)+2)); d.tp > 1 && (x.IntN(2) == 0 || extreme) {
			whole := replications(s.layouts.modules())
			sh.replicate = whole[x.IntN(len(whole))]
			if y := rand.New(rand.NewPCG(seed, uint64(k)+5)); d.dp*d.tp*units <= batch && (batch+d.dp*units-1)/(d.dp*units) >= d.tp && y.IntN(2) == 0 {
				sh.batch, sh.sequence = true, false
				if d.dp*units == 1 {
					sh.zero = y.IntN(4)
				}
			}
		}
		if x := rand.New(rand.NewPCG(seed, uint64(k)+3)); len(gridRows(d.tp)) > 0 && (d.cp == 1 || sh.group == 0) && x.IntN(3) > 0 {
			all := grids(s.layouts.gridModules(), gridRows(d.tp)[0])
			sh.split = all[x.IntN(len(all))]
		}
		if x := rand.New(rand.NewPCG(seed, uint64(k)+5)); d.cp == 1 && k%6 != 3 && x.IntN(3) == 0 {
			sh.slices = []int{3, 4, 8}[x.IntN(3)]
			if model.BlockSize%sh.slices > 0 {
				sh.slices = 3
			}
			if pieces {
				sh.slices = 4
			}
			sliced++
		}
		ranks := ""
		if orders := rand.New(rand.NewPCG(seed, uint64(k)+1)); kinds == 1 && sh.rows == 0 {
			ranks = randomRankOrder(orders, d)
		}
		o := outline{d, sh, chunks, ranks}
		if fewer := o; k%2 == 0 && d.tp > 2 { // whose programs may stand for those of more
			fewer.tp -= max(1, sh.rows)
			fewer.plan -= d.dp * d.cp * max(1, sh.rows) * d.pp
			s.opts.RuntimeNGPUs = fewer.plan * units
			_, _ = s.skeleton(fewer)
			s.opts.RuntimeNGPUs = d.plan * units
		}
		skel, err := s.skeleton(o)
		if err == nil {
			skel.upTo(full) // whatever is replicated
		}
		if err != nil {
			continue // nothing to split so far
		}
		if x := skel.inner.plan.TP; x > 2 && x < d.tp {
			stoodFor++
		}
		b := 1 + r.IntN((batch+skel.plan.DataParallel()-1)/skel.plan.DataParallel())
		for !o.inStep(b, skel.plan.DataParallel(), batch) || o.batch && b < o.tp {
			b++
		}
		schedule := []partition.Schedule{partition.GPipe, partition.OneFOneB, partition.ZeroBubble}[r.IntN(3)]
		if chunks > 1 {
			schedule = partition.Interleaved
			interleaved++
		}
		p := newPipeline(skel, skel.memoryOf(b), b, schedule)
		p.stages = skel.times(b, schedule)
		cut := randomCut(r, blocks, d.pp*chunks)
		extents := int(extents)
		if sh.replicate != "" { // nothing is recomputed beside
			extents = 1
			for i := range cut {
				cut[i] = partition.Stage{First: cut[i].First, Last: cut[i].Last}
			}
		}
		plan := p.plan(cut)

		prog, err := codegen.Compile(g, plan, batch, nil)
		require.NoError(t, err)
		if slices.ContainsFunc(prog.Stages[0].Bodies[ir.Forward].Instrs, func(in codegen.Instr) bool { return in.Parts > 0 }) {
			inPieces++
		}
		line, err := sim.Run(prog, s.cluster, sim.Options{})
		require.NoError(t, err)
		got := p.time(cut)

		require.Equal(t, line.Step, got, "seed %d case %d: %+v %+v ranks %q batch %d units %d b %d %s %+v", seed, k, d, sh, ranks, batch, units, b, schedule, cut)

		boundsPutOff(t, s, o, b, schedule, prog, cut, got, fmt.Sprintf("seed %d case %d: %+v %+v ranks %q batch %d units %d b %d %s %+v", seed, k, d, sh, ranks, batch, units, b, schedule, cut))

		floored := got
		if chunks > 1 { // the floor is of the even cut
			floored = p.time(p.interleavedCut("", make([]int, d.pp)))
			for range 8 { // whatever is recomputed
				choice := make([]int, d.pp)
				for at := range choice {
					choice[at] = r.IntN(3) % extents
				}
				floored = min(floored, p.time(p.interleavedCut("", choice)))
			}
		}
		if chunks == 1 { // nor do the cuts that are closest to even take less
			even := evenCut(blocks, d.pp, func(int) extent { return kept })
			floored = min(floored, p.time(even))
			for i := range even {
				n := r.IntN(2) * (even[i].Last - even[i].First)
				even[i] = uniform([]extent{selective, pointwise}[i%2], n).stage(even[i].First, even[i].Last-even[i].First)
			}
			floored = min(floored, p.time(even))
		}
		floor := s.floor(o, s.trunk(o), b, schedule)
		refined, err := s.refined(&pending{outline: o}, b, schedule, nil)
		require.NoError(t, err)
		require.LessOrEqual(t, refined, floored, "seed %d case %d: floor of all that %+v %+v does, %d chunks, %s", seed, k, d, sh, chunks, schedule)
		tighter += float64(refined) / float64(floored)
		free := s.flowing(&pending{outline: o}, b, schedule, nil)
		require.LessOrEqual(t, free, floored, "seed %d case %d: floor of the flow of %+v %+v, %d chunks, %s", seed, k, d, sh, chunks, schedule)
		require.LessOrEqual(t, s.common(o, b, schedule), floored, "seed %d case %d: floor of the family of %+v %+v, %d chunks, %s", seed, k, d, sh, chunks, schedule)
		far := s.anywhere(o)
		require.LessOrEqual(t, s.exchanged(far), floored, "seed %d case %d: what %+v %+v exchanges, %d chunks, %s", seed, k, d, sh, chunks, schedule)
		if chunks == 1 {
			require.LessOrEqual(t, s.exchanged(far), s.floor(far, s.trunk(far), b, schedule), "seed %d case %d: what %+v %+v exchanges, beside its floor, %d chunks, %s", seed, k, d, sh, chunks, schedule)
		}
		require.LessOrEqual(t, s.flowing(&pending{outline: far}, b, schedule, nil), floored, "seed %d case %d: floor anywhere of %+v %+v, %d chunks, %s", seed, k, d, sh, chunks, schedule)
		require.LessOrEqual(t, s.common(far, b, schedule), floored, "seed %d case %d: floor of the family of %+v %+v anywhere, %d chunks, %s", seed, k, d, sh, chunks, schedule)
		keeps := s.again(o, b, schedule)
		require.LessOrEqual(t, keeps.persist, p.memory[0].morePersist, "seed %d case %d: what a block keeps of %+v %+v", seed, k, d, sh)
		for e := range extents {
			require.LessOrEqual(t, keeps.slots[0][e], p.memory[0].moreSlot[e], "seed %d case %d: what a block keeps for a micro-batch of %+v %+v, extent %d", seed, k, d, sh, e)
		}
		// With as little memory as the plan fits in.
		fitting, took := prog, got
		if chunks > 1 {
			choice := make([]int, d.pp)
			for at := range choice {
				choice[at] = r.IntN(3) % extents
			}
			among := p.interleavedCut("", choice)
			fitting, err = codegen.Compile(g, p.plan(among), batch, nil)
			require.NoError(t, err)
			took = p.time(among)
		}
		s.limit = 0
		for _, st := range fitting.Stages {
			s.limit = max(s.limit, st.Arena())
		}
		tight := s.flowing(&pending{outline: o}, b, schedule, s.again(o, b, schedule))
		require.LessOrEqual(t, tight, took, "seed %d case %d: floor in %d bytes of %+v %+v, %d chunks, micro-batch %d of %d, %s %+v", seed, k, s.limit, d, sh, chunks, b, batch, schedule, fitting.Plan.Stages)
		far, again := s.anywhere(o), s.again(s.anywhere(o), b, schedule)
		require.LessOrEqual(t, s.flowing(&pending{outline: far}, b, schedule, again), took, "seed %d case %d: floor in %d bytes anywhere of %+v %+v, %d chunks, %s", seed, k, s.limit, d, sh, chunks, schedule)
		refined, err = s.refined(&pending{outline: o}, b, schedule, s.again(o, b, schedule))
		require.NoError(t, err)
		require.LessOrEqual(t, refined, took, "seed %d case %d: floor in %d bytes of all that %+v %+v does, %d chunks, %s", seed, k, s.limit, d, sh, chunks, schedule)
		if tight > free {
			raised++
		}
		require.LessOrEqual(t, floor, floored, "seed %d case %d: floor of %+v %+v, %d chunks", seed, k, d, sh, chunks)
		compared++
		floors += float64(floor) / float64(floored)
		// Of what relief builds on: the same plan without offload, and the copies.
		var on *pipeline
		if sh.offload.Moves() {
			base := sh
			base.offload = partition.OffloadNone
			bare, err := s.skeleton(outline{d, base, chunks, ranks})
			require.NoError(t, err)
			bare.upTo(full)
			on = newPipeline(bare, bare.memoryOf(b), b, schedule)
			on.stages = bare.times(b, schedule)
			on = on.offloaded(sh.offload)
		}
		if sh.slices > 0 { // what the search of their number builds on: the same plan with one
			one := sh
			one.slices = 0
			bare, err := s.skeleton(outline{d, one, chunks, ranks})
			require.NoError(t, err)
			bare.upTo(full)
			last, without := d.pp-1, newPipeline(bare, bare.memoryOf(b), b, schedule)
			without.leaveHead()
			st := cut[last]
			least := without.memory[last].atLeast(st.Last-st.First, recomputationOf(st), without.room[last])
			if chunks > 1 {
				least = without.interleavedPeak(cut, last)
			}
			require.LessOrEqual(t, least, prog.Stages[last].Arena(), "seed %d case %d: memory without the head of %+v %+v %+v", seed, k, d, sh, cut)
			without.stages = bare.times(b, schedule)
			inHead := without.inHead()
			if schedule == partition.GPipe {
				inHead += without.headForward()
			}
			require.LessOrEqual(t, without.time(cut)-inHead, p.time(cut), "seed %d case %d: with one slice %+v %+v %s %+v", seed, k, d, sh, schedule, cut)
		}
		if chunks > 1 {
			for at := range d.pp {
				require.LessOrEqual(t, p.interleavedPeak(cut, at), prog.Stages[at].Arena(), "seed %d case %d: memory of position %d: %+v %+v %+v", seed, k, at, d, sh, cut)
			}
			if on != nil {
				even := p.interleavedCut(RecomputeNone, make([]int, d.pp))
				require.LessOrEqual(t, on.time(even), p.time(even), "seed %d case %d: the plan without copies, and the copies: %+v %+v %s batch %d b %d blocks %d again %v", seed, k, d, sh, schedule, batch, b, blocks, cut)
			}
			continue
		}
		if on != nil {
			require.LessOrEqual(t, newBounds(on, 1<<62, Options{}, nil).best(), got,
				"seed %d case %d: the plan without copies, and the copies: %+v %+v %s batch %d b %d blocks %d again %v", seed, k, d, sh, schedule, batch, b, blocks, cut)
		}
		// A plan that fits is one of those that the bounds are of, or no faster than one.
		fits := newBounds(p, s.limit, Options{}, nil)
		require.LessOrEqual(t, fits.best(), got, "seed %d case %d: bound in %d bytes: %+v %+v %+v micro-batch %d of %d %s", seed, k, s.limit, d, sh, cut, b, batch, schedule)
		reach := fits.reach(never - 1)[0][blocks]
		require.LessOrEqual(t, reach, got, "seed %d case %d: bound of all cuts in %d bytes: %+v %+v %+v micro-batch %d of %d %s", seed, k, s.limit, d, sh, cut, b, batch, schedule)
		if reach > fits.best() {
			reached++
		}
		for i, st := range p.stages {
			alone := st.update.busy() // of a stream that does not run on after it
			if st.update[0].flow.outlasts(tally{1}, recomputation{}) == nil && newTails(p).of(i, 1) > alone.at(1, recomputation{}) {
				waiting++
			}
		}
		bounds := newBounds(p, 1<<60, Options{}, nil)
		for i, c := range cut {
			n := c.Last - c.First
			if c.Recomputed() == 0 {
				require.LessOrEqual(t, bounds.time[i][n-1], got, "seed %d case %d: bound of stage %d: %+v %+v %+v micro-batch %d of %d %s", seed, k, i, d, sh, cut, b, batch, schedule)
			}
			arena := prog.Stages[i].Arena()
			for range 2 {
				least := p.memory[i].atLeast(n, recomputationOf(c), p.room[i])
				require.LessOrEqual(t, least, arena, "seed %d case %d: memory of stage %d: %+v %+v %+v %s, measured %v", seed, k, i, d, sh, cut, schedule, p.measured)
				slack = max(slack, 1-float64(least)/float64(arena))
				p.measureApart()
			}
		}
	}
	require.Greater(t, interleaved, cases/20)
	require.Positive(t, raised)
	require.Positive(t, sliced)
	require.Positive(t, reached)
	require.Positive(t, waiting)
	require.Equal(t, pieces, inPieces > cases/4, "%d in pieces", inPieces)
	t.Logf("the memory bound is at most %.1f %% below the arena, the floors are %.1f %% and %.1f %% of the time on average, %d raised by memory, %d by all stages; %d interleaved, %d of more ranks than heads by fewer, updates of %d stages that others wait for", 100*slack, 100*floors/compared, 100*tighter/compared, raised, reached, interleaved, stoodFor, waiting)
}
