package planner

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/exact"
	"github.com/autopar/autopar/models/gpt"
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
	c.Device.Efficiency.Beside = []float64{0, 0.813, 0.5}[c.DevicesPerNode%3]
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
	c.Device.Shared, c.Device.Cores, c.Device.Efficiency.Beside = true, 1+r.IntN(4), 0
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
	holdSeeds(t, false, false, []costSeed{
		{seed: 12, cases: 95}, {seed: 13, cases: 3}, {seed: 44, cases: 8}, {seed: 61, cases: 12}, {seed: 107, cases: 4}, {seed: 210, cases: 7}, {seed: 302, cases: 20},
		{seed: 901, cases: 6},
		{44, 1, 53, [2]uint64{0x0924f1066acb8636, 0x149856f04d0ddbd8}},
		{105, 1, 94, [2]uint64{0x7f7d653aed89b72e, 0xa51757b6ff6856a1}},
		{2016, 1, 30, [2]uint64{0xb123718309728117, 0x50116ffb4806cb76}},
		{2016, 1, 103, [2]uint64{0x3790c8096766ddae, 0x38edd3453380dfba}},
	}, 32, 74, 303, 305, 503, 2006, 7003)
}

// costSeed is a seed and the cases of it that the mutants need, in which it meets something that the others do not. Those that are not
// the first draw from random numbers in the state that the cases before left.
type costSeed struct {
	seed         uint64
	cases, first int
	state        [2]uint64
}

// holdSeeds holds costs of seeds, and with -exact-all of all cases of these and of more.
func holdSeeds(t *testing.T, pieces, extreme bool, seeds []costSeed, more ...uint64) {
	if *exactAll {
		for _, x := range seeds {
			more = append(more, x.seed)
		}
		slices.Sort(more)
		seeds = nil
		for _, seed := range slices.Compact(more) {
			seeds = append(seeds, costSeed{seed: seed, cases: costCases})
		}
	}
	for _, x := range seeds {
		name := fmt.Sprint("seed ", x.seed)
		if x.first > 0 {
			name += fmt.Sprint(" case ", x.first)
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if x.first > 0 {
				holdCosts(t, rand.New(rand.NewPCG(x.state[0], x.state[1])), x.seed, x.first, x.cases, 1, pieces, extreme)
				return
			}
			testCostIsSimulation(t, x.seed, x.cases, 1, pieces, extreme)
		})
		if testing.Short() {
			break
		}
	}
}

// The same on clusters of several kinds of devices.
func TestCostOnPoolsIsSimulation(t *testing.T) {
	t.Parallel()
	testCostIsSimulation(t, 12, 75, 2, false, false)
}

// The same where products and collectives next to them are made in parts.
func TestCostInPiecesIsSimulation(t *testing.T) {
	holdSeeds(t, true, false, []costSeed{{seed: 12, cases: 90}, {seed: 3107, cases: 40}}, 61, 305, 18101)
}

// The same where memory is so slow, and links are so fast, that what is made where and how often takes all the time, and
// tensor-parallel ranks share tokens and hold modules whole.
func TestCostOfSlowMemoryIsSimulation(t *testing.T) {
	holdSeeds(t, true, true, []costSeed{{seed: 9140, cases: 80}}, 9144)
}

// The same of eager schedules, on links that are so slow that it matters how many micro-batches are on their way.
func TestCostOfEagerSchedulesIsSimulation(t *testing.T) {
	t.Parallel()
	cases := 25
	if *exactAll {
		cases = 300
	}
	holdCosts(t, rand.New(rand.NewPCG(eagerSeeds+101, 0)), eagerSeeds+101, 0, cases, 1, false, false)
}

// The same of models of which adapters alone are trained.
func TestCostOfAdaptersIsSimulation(t *testing.T) {
	t.Parallel()
	cases := 30
	if *exactAll {
		cases = 300
	}
	holdCosts(t, rand.New(rand.NewPCG(adapterSeeds, 0)), adapterSeeds, 0, cases, 1, false, false)
}

var (
	moreSeeds = flag.Uint64("seeds", 0, "how many more seeds fuzz targets begin with")
	firstSeed = flag.Uint64("first-seed", 1, "the first of them")
	extremes  = flag.Bool("extreme", false, "all of them with slow memory and fast links, not every fifth")
)

// FuzzCosts is the same of any seed, on clusters and with plans of any kind. Of a seed that met something in one of its cases, that
// case alone is held, which draws from random numbers in the state that the cases before left. To try more than go test does:
//
//	go test ./planner -run FuzzCosts -timeout 0 -v -args -first-seed 1000 -seeds 1000
func FuzzCosts(f *testing.F) {
	for seed := *firstSeed; seed < *firstSeed+*moreSeeds; seed++ {
		f.Add(seed, seed, uint64(0), seed%4 == 3, seed%3 == 1, *extremes || seed%5 == 2, uint8(0), uint8(30))
	}
	f.Add(uint64(9100), uint64(0xcd067a1f9beb477d), uint64(0x43eb695a07a7e7f8), false, true, true, uint8(13), uint8(1))              // a gradient of which ranks read shares, under a zero-bubble schedule
	f.Add(uint64(adapterSeeds+121), uint64(0xdad756e26cda61bb), uint64(0xf362f00e325e3d85), false, false, false, uint8(8), uint8(1)) // what is put off in the trunk's program stays where it is in that of an outline
	f.Add(uint64(adapterSeeds+8), uint64(0xaf66aebfe4d1743f), uint64(0x38a898c4f227b12c), false, true, false, uint8(15), uint8(1))   // a weight is exchanged before the gradient of the block comes in, and after what is recomputed
	f.Add(uint64(adapterSeeds+17), uint64(0x7e2e08e489248cd8), uint64(0xeb768679277603a6), false, true, true, uint8(20), uint8(1))   // recomputation takes keys and values out before the gradient comes in
	f.Add(uint64(21019), uint64(0x40f8bcca477acf7d), uint64(0x9f8cd18aa39d1801), true, true, false, uint8(3), uint8(1))              // what is given to the first block stands after work of its own
	f.Add(uint64(21077), uint64(0xe30d18c27527bd80), uint64(0x88ced906f0668512), false, false, true, uint8(26), uint8(1))            // keys and values are gathered beside a product that recomputation leaves to a longer gather
	f.Add(uint64(61037), uint64(0x04aa7a9d3afbdfe2), uint64(0x97d9b5ed4db8beb9), false, false, true, uint8(1), uint8(1))             // the sum of all squares lies where the first block's are
	f.Add(uint64(30148), uint64(0x6c69338d7635b8ea), uint64(0x770728ff03609573), false, true, false, uint8(9), uint8(1))             // a share of a whole weight's gradient is made from what all ranks have
	f.Add(uint64(mixedSeeds+134), uint64(0xcba639a1b05ef912), uint64(0xdaebf42f0939ef84), false, true, false, uint8(7), uint8(1))    // an update that waits for no norm copies while it waits for others
	f.Add(uint64(mixedSeeds+141), uint64(0x0067578734527628), uint64(0xa46455ce07951af7), false, false, false, uint8(3), uint8(1))   // recomputation fetches weights before the gradient comes
	f.Add(uint64(mixedSeeds+150), uint64(0x83d7e211ec501e49), uint64(0x7921bbf66e8b27ab), false, false, false, uint8(11), uint8(1))  // the loss is summed beside the update of the last block, no block reads it
	f.Add(uint64(mixedSeeds+1004), uint64(0x583066dbdc68e9cb), uint64(0x3b9f77c3033e7f14), false, true, false, uint8(3), uint8(1))   // a weight is exchanged in two steps before the gradient of the block comes in
	f.Add(uint64(mixedSeeds+4025), uint64(0xa65717e45a47c554), uint64(0xb3e5f214b8f59300), false, true, false, uint8(18), uint8(1))  // keys and values are gathered in a row of kernels beside a collective, and elsewhere where attention is recomputed
	f.Add(uint64(mixedSeeds+4254), uint64(0x61e40ac34455093b), uint64(0x36089cc20cc1dd9b), false, false, false, uint8(9), uint8(1))  // what an adapter leaves is gathered beside a product of the forward pass, which the trunk makes in parts
	f.Add(uint64(97012), uint64(0xbece76043c2f7c37), uint64(0x5e7fdcbe1a9e637f), false, true, true, uint8(9), uint8(1))              // a stage that receives waits for weights where others have nothing to wait for
	f.Add(uint64(97044), uint64(0x7e7d9f2246e0d278), uint64(0xac536087f95de7e3), false, false, false, uint8(5), uint8(1))            // blocks that recompute take less, as other products run beside their collectives
	f.Add(uint64(98029), uint64(0x66bac513ab09844c), uint64(0x4e8504eec882bf49), false, true, false, uint8(9), uint8(1))             // what an adapter's product reads is kept cut by tokens, not by heads of which a rank has more
	f.Add(uint64(99001), uint64(0xdf1a607df16dd396), uint64(0x7b8ca63b04575b1b), false, true, false, uint8(3), uint8(1))             // what a pass gives to its stream before it receives anything delays only its waiting
	f.Add(uint64(100081), uint64(0x59a0f716845e9e8b), uint64(0x81b1c6307d2e956a), false, true, false, uint8(22), uint8(1))           // what delays a position while it waits for its stream delays nothing
	f.Add(uint64(100099), uint64(0x116508c11c51a392), uint64(0x1aa7751a82b7c036), true, true, false, uint8(21), uint8(1))            // chunks have streams of their own
	f.Add(uint64(100352), uint64(0x516a80dff7e1b0f6), uint64(0x3541c661ccc99a06), false, false, true, uint8(1), uint8(1))            // with more slices of the loss a head that is whole may be cut another way
	f.Add(uint64(20117), uint64(0x439f375a8e20f306), uint64(0x5eb18eb51d688123), false, false, true, uint8(9), uint8(1))             // tokens' gradients are summed for a table that all hold whole, of which ZeRO cuts the update
	f.Add(uint64(40098), uint64(0x2cd281f824539739), uint64(0xdeb30ef474eb780c), false, false, true, uint8(7), uint8(1))             // what a stage does with reduced gradients of 16 bits before it adds them up follows what it sends
	f.Add(uint64(40066), uint64(0x66b410b6697d6e52), uint64(0xb630160a648a2a1f), false, false, true, uint8(12), uint8(1))            // with more slices of the loss tensor-parallel ranks share the products of a head that is whole
	f.Add(uint64(100351), uint64(0xc7e8a227ef321425), uint64(0x5afe31a98155fb81), true, true, false, uint8(11), uint8(1))            // the head's gradient of 16 bits is moved before it is reduced, not with a block's
	f.Add(uint64(54001), uint64(0xadca9e78a2f184fe), uint64(0x5dbffc034271c53b), false, true, false, uint8(29), uint8(1))            // some adapters' gradients are summed in order, beside a stream
	f.Add(uint64(5010), uint64(0x334e58d91a7fc64c), uint64(0xb325cc504bf78c74), false, false, false, uint8(9), uint8(1))             // a stage keeps for gradients of weights what others have in one pass
	f.Add(uint64(501007), uint64(0xb7877cee508bcd78), uint64(0x1a302a5f3afec44d), true, true, true, uint8(25), uint8(1))             // three context-parallel ranks may share sequences evenly that two would not
	f.Add(uint64(6127), uint64(0xfcdd8ea221a317d6), uint64(0x1ec0a9304130f31f), true, true, true, uint8(19), uint8(1))               // passes for weight gradients take no less than recomputation spares of them
	f.Add(uint64(506013), uint64(0x33ed070d15b8154b), uint64(0x5afe31a98155fb81), false, false, false, uint8(18), uint8(1))          // software is slow to sum what data-parallel ranks exchange, not tensor-parallel ones
	f.Add(uint64(slowSeeds+56), uint64(0x5ea2dde937a54075), uint64(0x669c0c51e0292ce7), false, false, false, uint8(3), uint8(1))     // software sums 64 bits in no less
	f.Add(uint64(slowSeeds+23), uint64(0x8e45860d45c57d7f), uint64(0x538e9bfbb55cce5c), true, false, false, uint8(28), uint8(1))     // positions that are alike send to some that gather unlike
	f.Add(uint64(slowSeeds+64), uint64(0xd901d249fa9e0a34), uint64(0xb125bcef81e85c8a), false, true, false, uint8(8), uint8(1))      // sums are reduced further after the pass has sent
	f.Add(uint64(slowSeeds+454), uint64(0xe4c1561a3e3924fd), uint64(0x1bc7a52d5e9434d7), false, true, false, uint8(18), uint8(1))    // positions stand between no product and what gathers its result
	f.Add(uint64(slowSeeds+448), uint64(0x860c5fccdc1a949f), uint64(0x3a9472c8be771652), false, true, false, uint8(19), uint8(1))    // likewise in stages of a pipeline
	f.Add(uint64(slowSeeds+768), uint64(0xf82f73f5f5379853), uint64(0x9f6ebf4d716c1471), false, false, false, uint8(25), uint8(1))   // gradients that are moved into the slices of an adapter's weight are reduced in these
	f.Add(uint64(slowSeeds+723), uint64(0x63f700a1341ebdc8), uint64(0x050c066727ce97d8), true, false, false, uint8(11), uint8(1))    // the head's weights are gathered beside the last block, no other has them
	f.Add(uint64(eagerSeeds+233), uint64(0x6268fcb68118f0b2), uint64(0x63c2bf632933f040), false, true, false, uint8(24), uint8(1))   // an eager position runs ahead before its first backward pass
	f.Add(uint64(eagerSeeds+20), uint64(0xc9d1ae5bb07c4221), uint64(0x9f343fe6f7f566d4), false, true, false, uint8(1), uint8(1))     // slices of the loss make the head's product in the backward pass
	f.Add(uint64(softwareSeeds+22), uint64(softwareSeeds+22), uint64(0), false, false, true, uint8(0), uint8(3))                     // the gradient with which the last block begins is gathered as other blocks' are
	f.Add(uint64(softwareSeeds+42), uint64(softwareSeeds+42), uint64(0), false, false, true, uint8(0), uint8(2))                     // software hides as much of a pass that is in two
	f.Add(uint64(softwareSeeds+33), uint64(softwareSeeds+33), uint64(0), false, false, false, uint8(0), uint8(16))                   // software hides what no schedule runs beside kernels
	f.Fuzz(func(t *testing.T, seed, high, low uint64, pools, pieces, extreme bool, first, cases uint8) {
		r, kinds := rand.New(rand.NewPCG(high, low)), 1
		if pools {
			kinds = 2
		}
		t.Logf("seed %d: %d plans", seed, holdCosts(t, r, seed, int(first), min(int(cases), 30), kinds, pieces, extreme).floored)
	})
}

const (
	costCases   = 150 // of a seed
	enoughCases = 75  // as of which all kinds of plans are among them
)

func testCostIsSimulation(t *testing.T, seed uint64, cases, kinds int, pieces, extreme bool) {
	if testing.Short() {
		cases = 30
	}
	met := holdCosts(t, rand.New(rand.NewPCG(seed, 0)), seed, 0, cases, kinds, pieces, extreme)
	if cases >= enoughCases {
		met.enough(t, cases, pieces)
	}
}

// holdCosts holds cases of a seed from the first on. It takes clusters with at least so many kinds of devices; with pieces, models of which sequences start where
// tensors may, and plans that make products in parts; extreme, slow memory and fast links.
func holdCosts(t *testing.T, r *rand.Rand, seed uint64, first, cases, kinds int, pieces, extreme bool) *costsMet {
	met := &costsMet{}
	for k := first; k < first+cases; k++ {
		c := drawCost(t, r, seed, k, kinds, pieces, extreme)
		if c == nil {
			continue // there is no such plan
		}
		c.isSimulated(t)
		met.add(c)
		c.boundsPutOff(t)
		c.isAboveFloors(t, r, met)
		c.isAboveWithoutHead(t)
		c.isAboveBase(t)
		if c.chunks > 1 {
			for at := range c.pp {
				require.LessOrEqual(t, c.p.interleavedPeak(c.cut, at), c.prog.Stages[at].Arena(), "%s: memory of position %d", c, at)
			}
		} else {
			c.isAboveBounds(t, met)
		}
	}
	return met
}

// costCase is a random plan.
type costCase struct {
	seed uint64
	k    int
	outline
	batch, units int
	b            int // micro-batch
	schedule     partition.Schedule
	cut          []partition.Stage
	extents      int // to which blocks may be recomputed

	g    *ir.Graph
	s    *searcher
	skel *skeleton
	p    *pipeline
	time cost.Picoseconds
	prog *codegen.Program
}

func (c *costCase) String() string {
	return fmt.Sprintf("seed %d case %d: %+v batch %d units %d micro-batch %d %s %+v", c.seed, c.k, c.outline, c.batch, c.units, c.b, c.schedule, c.cut)
}

// adapterSeeds is the first of the seeds whose models may have adapters.
const adapterSeeds = 50_000

// drawAdapters freezes a model, beside adapters.
func drawAdapters(r *rand.Rand, model *gpt.Config) {
	targets := []string{"", ".", "c_proj", "mlp", "attn|c_fc"}
	model.LoRARank, model.LoRATargets = 1+r.IntN(min(model.NEmbd, 9)), targets[r.IntN(len(targets))]
	if r.IntN(3) == 0 {
		model.LoRADropout = 0.1
	}
}

// softwareSeeds is the first of the seeds whose clusters may run any software.
const softwareSeeds = 200_000

// drawSoftware draws a generation of software.
func drawSoftware(r *rand.Rand, c *cost.Cluster) {
	all := cost.Generations()
	c.Software = all[r.IntN(len(all))]
}

// cutSeeds is the first of the seeds whose sequences are long enough to be cut in parts.
const cutSeeds = 400_000

// sharedSeeds is the first of the seeds whose sequences are long enough to be cut in parts that context-parallel ranks share.
const sharedSeeds = 500_000

// deviceSeeds is the first of the seeds whose devices may state all that a device can.
const deviceSeeds = 300_000

// drawDevice draws what few devices state, of each kind there is, and hosts that take longer between two kernels than these.
func drawDevice(r *rand.Rand, c *cost.Cluster) {
	if s := &c.Software; r.IntN(3) == 0 {
		s.Host, s.Sync = 1e-3*r.Float64(), float64(r.IntN(2))*1e-3*r.Float64()
	}
	kinds := []*cost.Cluster{c}
	for _, p := range c.Pools {
		p.Cluster.Software = c.Software
		kinds = append(kinds, p.Cluster)
	}
	for _, k := range kinds {
		d := &k.Device
		if r.IntN(3) > 0 && !d.Shared {
			d.Units, d.Efficiency.TileFill = 1+r.IntN(12), 200*r.Float64()
		} else {
			d.Efficiency.AttentionHalf, d.Efficiency.AttentionGradHalf = 100*r.Float64(), 50*float64(r.IntN(2))
		}
		if d.Kernels = nil; r.IntN(2) == 0 {
			d.Kernels = map[string]float64{}
			for _, op := range cost.KernelOps() {
				if r.IntN(3) == 0 {
					d.Kernels[op] = 1e-3 + 0.9*r.Float64()
				}
			}
		}
		if d.Cache == nil && r.IntN(3) == 0 {
			d.Cache = &cost.Cache{Memory: 1 << (10 + r.IntN(10)), Bandwidth: 10 * d.MemoryBandwidth}
		}
	}
	if len(c.Pools) > 0 {
		*c = *cost.Join(c.Name, &c.Between, c.Pools...)
	}
}

// eagerSeeds is the first of the seeds whose schedules may be eager, on slow links, too.
const eagerSeeds = 800_000

// slowSeeds is the first of the seeds whose links may be so slow that streams take most of the time.
const slowSeeds = 600_000

// drawSlow draws how slow the links of each kind of devices are, and by how much collectives delay its kernels.
func drawSlow(r *rand.Rand, c *cost.Cluster) {
	slow := func(k *cost.Cluster) {
		k.IntraNode.Bandwidth *= oneOf(r, 1, 1e-1, 1e-2, 1e-3, 1e-4)
		k.InterNode.Bandwidth *= oneOf(r, 1, 1e-1, 1e-2, 1e-3, 1e-4)
		for i := range k.Levels {
			k.Levels[i].Bandwidth *= oneOf(r, 1, 1e-2, 1e-4)
		}
		k.Device.Efficiency.Beside = oneOf(r, 0, 0.813, 0.5, 0.3)
	}
	if len(c.Pools) == 0 {
		slow(c)
		return
	}
	for _, p := range c.Pools {
		slow(p.Cluster)
	}
	*c = *cost.Join(c.Name, &c.Between, c.Pools...)
}

// mixedSeeds is the first of the seeds whose models and optimizers may be of any kind.
const mixedSeeds = 80_000

// drawMixed draws each part of a model by itself, and an optimizer.
func drawMixed(r *rand.Rand, model *gpt.Config, opt *gpt.Optimizer) {
	model.Activation = []string{gpt.GELU, gpt.GELUTanh, gpt.SwiGLU}[r.IntN(3)]
	model.Norm = []string{gpt.LayerNorm, gpt.RMSNorm}[r.IntN(2)]
	model.Position = []string{gpt.Learned, gpt.RoPE}[r.IntN(2)]
	model.TieEmbeddings, model.Bias = r.IntN(2) == 0, r.IntN(2) == 0
	model.VocabSize, model.FFNHidden = []int{7, 33, 65, 260}[r.IntN(4)], []int{0, 5, 31, 97}[r.IntN(4)]
	if r.IntN(2) == 0 {
		model.NKVHead = 1
	}
	if r.IntN(3) == 0 {
		opt.GradClip = 0
	}
	opt.NoMaster = model.Float == ir.BF16 && r.IntN(2) == 0
}

// drawCost draws a plan; nil where there is none.
func drawCost(t *testing.T, r *rand.Rand, seed uint64, k, kinds int, pieces, extreme bool) *costCase {
	also := func(stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, uint64(k)+stream)) } // apart from what others draw
	blocks, batch := 1+r.IntN(8), 1+r.IntN(13)
	model := drawModel(r, k, blocks, pieces)
	if x := also(9); seed >= adapterSeeds && x.IntN(3) > 0 {
		drawAdapters(x, &model)
	}
	opt := adamW()
	if seed >= mixedSeeds {
		drawMixed(also(11), &model, &opt)
	}
	d := degrees{dp: 1 + r.IntN(6), cp: 1, tp: 1 + r.IntN(5), pp: 1 + r.IntN(min(6, blocks))}
	if r.IntN(3) == 0 {
		d.cp += 1 + r.IntN(3)
	}
	if x := also(4); x.IntN(4) == 0 {
		d.tp = 4 + 2*x.IntN(3) // a grid
	}
	d.plan = d.dp * d.cp * d.tp * d.pp
	units := 1 + r.IntN(2)
	if d.dp*units > batch {
		return nil
	}
	var sh sharding
	if d.dp*units > 1 {
		sh.zero = r.IntN(4)
		if g := 2 + r.IntN(3); sh.zero > 0 && d.dp*units%g == 0 && g < d.dp*units {
			sh.group = g
		}
	} else if d.cp > 1 {
		sh.zero = also(14).IntN(4)
	}
	if d.tp > 1 {
		sh.sequence = r.IntN(2) == 0 || extreme
	}
	sh.offload = []partition.Offload{partition.OffloadNone, partition.OffloadOptimizer, partition.OffloadParams}[r.IntN(3)]
	cluster := drawCluster(r, k, extreme)
	if kinds > 1 {
		cluster = randomPools(r, d.plan*units)
		d.order = r.IntN(len(cluster.Orders()))
	}
	if seed >= 9000 && seed < 90_000 { // those in FuzzCosts are of when clusters stated no such figure
		cluster.Device.Efficiency.Beside = 0
	}
	if seed >= softwareSeeds {
		drawSoftware(also(15), cluster)
	}
	if seed >= deviceSeeds {
		drawDevice(also(16), cluster)
	}
	if seed >= slowSeeds {
		drawSlow(also(17), cluster)
	}
	if seed >= cutSeeds && pieces {
		model.BlockSize = codegen.EvenTokens * (2 + k%3)
		if seed >= sharedSeeds {
			model.BlockSize *= d.cp
		}
	}
	g, err := gpt.TrainStep(model, opt, batch, model.BlockSize)
	require.NoError(t, err)
	if k%6 == 3 {
		g, err = exact.Sums(g)
		require.NoError(t, err)
	}
	chunks := 1
	if d.pp > 1 && blocks/d.pp > 1 && r.IntN(4) > 0 {
		chunks = 2 + r.IntN(blocks/d.pp-1)
	} else if d.cp == 1 && !sh.offload.Moves() {
		sh.overlap = r.IntN(3) > 0
	}
	if chunks > 1 && d.cp == 1 && !sh.offload.Moves() {
		sh.overlap = also(3).IntN(3) > 0
	}
	if d.cp > 1 && !sh.offload.Moves() {
		sh.overlap = also(13).IntN(3) > 0
	}
	opts := Options{RuntimeNGPUs: d.plan * units, OverlapTP: onOff(also(5).IntN(3) > 0 && !cluster.Software.AsyncTP)}
	if pieces {
		opts.TPPieces = 2 + k%3
		if d.tp > 1 {
			sh.pieces = opts.TPPieces
		}
	}
	c := &costCase{seed: seed, k: k, batch: batch, units: units, g: g, s: newSearcher(g, batch, cluster, opts), extents: int(extents)}
	if x := also(2); d.tp > 1 && (x.IntN(2) == 0 || extreme) {
		whole := replications(c.s.layouts.modules())
		sh.replicate = whole[x.IntN(len(whole))]
		if y := also(5); d.dp*d.tp*units <= batch && (batch+d.dp*units-1)/(d.dp*units) >= d.tp && y.IntN(2) == 0 {
			sh.batch, sh.sequence = true, false
			if d.dp*units == 1 {
				sh.zero = y.IntN(4)
			}
		}
	}
	if x := also(3); len(gridRows(d.tp)) > 0 && (d.cp == 1 || sh.group == 0) && x.IntN(3) > 0 {
		all := grids(c.s.layouts.gridModules(), gridRows(d.tp)[0])
		sh.split = all[x.IntN(len(all))]
	}
	if x := also(5); d.cp == 1 && k%6 != 3 && x.IntN(3) == 0 {
		sh.slices = []int{3, 4, 8}[x.IntN(3)]
		if model.BlockSize%sh.slices > 0 {
			sh.slices = 3
		}
		if pieces {
			sh.slices = 4
		}
	}
	ranks := ""
	if kinds == 1 && sh.rows == 0 {
		ranks = randomRankOrder(also(1), d)
	}
	c.outline = outline{d, sh, chunks, ranks, d.pp > 1 && also(12).IntN(3) == 0}
	if fewer := c.outline; k%2 == 0 && d.tp > 2 { // whose programs may stand for those of more
		fewer.tp -= max(1, sh.rows)
		fewer.plan -= d.dp * d.cp * max(1, sh.rows) * d.pp
		c.s.opts.RuntimeNGPUs = fewer.plan * units
		_, _ = c.s.skeleton(fewer)
		c.s.opts.RuntimeNGPUs = d.plan * units
	}
	if c.skel, err = c.s.skeleton(c.outline); err != nil {
		return nil // nothing to split so far
	}
	c.skel.upTo(full) // whatever is replicated
	data := c.skel.plan.DataParallel()
	c.b = 1 + r.IntN((batch+data-1)/data)
	for !c.inStep(c.b, data, batch) || c.outline.batch && c.b < c.tp {
		c.b++
	}
	c.schedule = []partition.Schedule{partition.GPipe, partition.OneFOneB, partition.ZeroBubble}[r.IntN(3)]
	if seed >= eagerSeeds && r.IntN(2) == 0 {
		c.schedule = eager(c.schedule)
	}
	if chunks > 1 {
		c.schedule = partition.Interleaved
	}
	c.p = newPipeline(c.skel, c.skel.memoryOf(c.b), c.b, c.schedule)
	c.p.stages = c.skel.times(c.b, c.schedule)
	c.cut = randomCut(r, blocks, d.pp*chunks)
	if sh.replicate != "" { // nothing is recomputed beside
		c.extents = 1
		for i, st := range c.cut {
			c.cut[i] = partition.Stage{First: st.First, Last: st.Last}
		}
	}
	return c
}

// drawModel draws a model of odd sizes.
func drawModel(r *rand.Rand, k, blocks int, pieces bool) gpt.Config {
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
	model.Float = []ir.DType{ir.F32, ir.BF16, ir.F16}[k%3]
	return model
}

// drawCluster draws a cluster of one kind of devices.
func drawCluster(r *rand.Rand, k int, extreme bool) *cost.Cluster {
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
	c.Device.Shared = k%4 == 0 // streams do not overlap there
	if k%8 == 0 {
		c.Collectives, c.Device.Cores, c.Device.Turn = cost.OnePass, 1+k%5, 4e-5
		c.Device.Efficiency.Threads, c.Device.Efficiency.AttentionHalf = 0.8, 90
		c.Device.Cache = &cost.Cache{Memory: 1 << 20, Bandwidth: 2e11, Remote: 5e9}
		c.Device.Kernels = map[string]float64{"gelu": 0.02, "attention_grad": 0.3}
	}
	return c
}

// isSimulated: the time of the plan is that of its program.
func (c *costCase) isSimulated(t *testing.T) {
	var err error
	c.prog, err = codegen.Compile(c.g, c.p.plan(c.cut), c.batch, nil)
	require.NoError(t, err)
	line, err := sim.Run(c.prog, c.s.cluster, sim.Options{})
	require.NoError(t, err)
	c.time = c.p.time(c.cut)
	require.Equal(t, line.Step, c.time, "%s", c)
}

// anyCut is an even cut of an interleaved schedule with any recomputation.
func (c *costCase) anyCut(r *rand.Rand) []partition.Stage {
	choice := make([]int, c.pp)
	for at := range choice {
		choice[at] = r.IntN(3) % c.extents
	}
	return c.p.interleavedCut("", choice)
}

// isAboveFloors: no floor of the time of an outline is above the time of its plans.
func (c *costCase) isAboveFloors(t *testing.T, r *rand.Rand, met *costsMet) {
	s, o, p := c.s, c.outline, c.p
	took := c.time
	if c.chunks > 1 { // the floor is of the even cut
		took = p.time(p.interleavedCut("", make([]int, c.pp)))
		for range 8 {
			took = min(took, p.time(c.anyCut(r)))
		}
	} else { // nor do the cuts that are closest to even take less
		even := evenCut(c.skel.blocks, c.pp, func(int) extent { return kept })
		took = min(took, p.time(even))
		for i := range even {
			n := r.IntN(2) * (even[i].Last - even[i].First)
			even[i] = uniform([]extent{selective, pointwise}[i%2], n).stage(even[i].First, even[i].Last-even[i].First)
		}
		took = min(took, p.time(even))
	}
	far := s.anywhere(o)
	floor := s.floor(o, s.trunk(o), c.b, c.schedule)
	free := s.flowing(&pending{outline: o}, c.b, c.schedule, nil)
	refined, err := s.refined(&pending{outline: o}, c.b, c.schedule, nil)
	require.NoError(t, err)
	for name, least := range map[string]cost.Picoseconds{
		"floor": floor, "floor of all that it does": refined, "floor of its flow": free, "what it exchanges": s.exchanged(o), "what it exchanges anywhere": s.exchanged(far),
		"floor of its flow anywhere": s.flowing(&pending{outline: far}, c.b, c.schedule, nil), "floor anywhere": s.floor(far, s.trunk(far), c.b, c.schedule),
	} {
		require.LessOrEqual(t, least, took, "%s: %s", c, name)
	}
	met.floored++
	met.floors += float64(floor) / float64(took)
	met.refined += float64(refined) / float64(took)

	keeps := s.again(o, c.b, c.schedule)
	require.LessOrEqual(t, keeps.persist, p.memory[0].morePersist, "%s: what a block keeps", c)
	for e := range extents {
		require.LessOrEqual(t, keeps.slots[0][e], p.memory[0].moreSlot[e], "%s: what a block keeps for a micro-batch, extent %d", c, e)
		if c.schedule.SplitsBackward() {
			q := *p
			q.memory = slices.Clone(p.memory)
			q.measureApart()
			require.LessOrEqual(t, keeps.slots[1][e], q.memory[0].apart[e], "%s: what a block keeps for gradients of weights, extent %d", c, e)
		}
	}
	// With as little memory as the plan fits in.
	fitting, took := c.prog, c.time
	if c.chunks > 1 {
		among := c.anyCut(r)
		fitting, err = codegen.Compile(c.g, p.plan(among), c.batch, nil)
		require.NoError(t, err)
		took = p.time(among)
	}
	s.limit = 0
	for _, st := range fitting.Stages {
		s.limit = max(s.limit, st.Arena())
	}
	tight := s.flowing(&pending{outline: o}, c.b, c.schedule, s.again(o, c.b, c.schedule))
	refined, err = s.refined(&pending{outline: o}, c.b, c.schedule, s.again(o, c.b, c.schedule))
	require.NoError(t, err)
	for name, least := range map[string]cost.Picoseconds{
		"floor of its flow": tight, "floor of its flow anywhere": s.flowing(&pending{outline: far}, c.b, c.schedule, s.again(far, c.b, c.schedule)), "floor of all that it does": refined,
	} {
		require.LessOrEqual(t, least, took, "%s: %s in %d bytes, as %+v", c, name, s.limit, fitting.Plan.Stages)
	}
	if tight > free {
		met.raised++
	}
}

// like is the pipeline of the same plan under another outline.
func (c *costCase) like(t *testing.T, o outline) *pipeline {
	skel, err := c.s.skeleton(o)
	require.NoError(t, err)
	skel.upTo(full)
	p := newPipeline(skel, skel.memoryOf(c.b), c.b, c.schedule)
	p.stages = skel.times(c.b, c.schedule)
	return p
}

// isAboveWithoutHead: what the search of the number of slices builds on, the same plan with fewer but for what the head has, is a
// bound of memory and time.
func (c *costCase) isAboveWithoutHead(t *testing.T) {
	for n := c.slices; n > 0; {
		if n /= 2; n == 1 {
			n = 0
		}
		fewer := c.outline
		fewer.slices = n
		without := c.like(t, fewer)
		without.leaveHead()
		last := c.pp - 1
		st := c.cut[last]
		least := without.memory[last].atLeast(st.Last-st.First, recomputationOf(st), without.room[last])
		if c.chunks > 1 {
			least = without.interleavedPeak(c.cut, last)
		}
		require.LessOrEqual(t, least, c.prog.Stages[last].Arena(), "%s: memory without the head, %d slices", c, n)
		inHead := without.inHead()
		if c.schedule == partition.GPipe && n == 0 {
			inHead += without.headForward()
		}
		require.LessOrEqual(t, without.time(c.cut)-inHead, c.time, "%s: with %d slices", c, n)
	}
}

// isAboveBase: what relief builds on, the same plan without what only spares memory takes no longer.
func (c *costCase) isAboveBase(t *testing.T) {
	base := c.s.base(c.outline)
	if base == c.outline {
		return
	}
	on := c.like(t, base)
	if c.chunks == 1 {
		require.LessOrEqual(t, newBounds(on, 1<<62, Options{}, nil).best(), c.time, "%s: the plan that spares no memory", c)
	}
	require.LessOrEqual(t, on.time(c.cut), c.time, "%s: the plan that spares no memory", c)
}

// isAboveBounds: a plan of which the limit is its memory is one of those that bounds are of, or no faster than one; and bounds of memory
// are not above what it takes.
func (c *costCase) isAboveBounds(t *testing.T, met *costsMet) {
	fits := newBounds(c.p, c.s.limit, Options{}, nil)
	require.LessOrEqual(t, fits.best(), c.time, "%s: bound in %d bytes", c, c.s.limit)
	reach := fits.ofAll()
	require.LessOrEqual(t, reach, c.time, "%s: bound of all cuts in %d bytes", c, c.s.limit)
	if reach > fits.best() {
		met.reached++
	}
	for i := range fits.stages {
		for n, floor := range fits.stages[i].floor {
			least := never
			for _, o := range fits.options(i, n+1) {
				least = min(least, o.time)
			}
			require.Equal(t, least, fits.time(i, n+1), "%s: stage %d with %d blocks", c, i, n+1)
			require.LessOrEqual(t, floor, least, "%s: floor of stage %d with %d blocks", c, i, n+1)
		}
	}
	blocks := fits.pipe.skel.blocks
	require.Equal(t, fits.everyCut(0, blocks, 0), reach, "%s: bound of all cuts", c)
	first := 1 + int(c.time)%(blocks-len(fits.stages)+1)
	require.Equal(t, fits.everyCut(0, blocks, first), fits.reach(never-1, first)[0][blocks], "%s: bound of all cuts with %d blocks on stage 0", c, first)
	for i, st := range c.p.stages {
		alone := st.update.busy() // of a stream that does not run on after it
		if st.update[0].flow.outlasts(tally{1}, recomputation{}) == nil && newTails(c.p).of(i, 1) > alone.at(1, recomputation{}) {
			met.waiting++
		}
	}
	bounds, before := newBounds(c.p, 1<<60, Options{}, nil), passed{}
	for i, st := range c.cut {
		n, r, x := st.Last-st.First, recomputationOf(st), &bounds.stages[i]
		o := x.option(x.works, n, r, x.tails.of(i, n)+c.p.lastPass(i).outlasts(n, r))
		require.LessOrEqual(t, bounds.from(i, x.pipe.skel.blocks-st.First, &o, before), c.time, "%s: bound of stage %d", c, i)
		before = bounds.past(before, i, n, r)
		arena := c.prog.Stages[i].Arena()
		for range 2 {
			least := c.p.memory[i].atLeast(n, recomputationOf(st), c.p.room[i])
			require.LessOrEqual(t, least, arena, "%s: memory of stage %d, measured %v", c, i, c.p.measured)
			met.slack = max(met.slack, 1-float64(least)/float64(arena))
			c.p.measureApart()
		}
	}
}

// everyCut is [bounds.reach] without a ceiling, by plain recursion over all cuts.
func (b *bounds) everyCut(stage, left, some int) cost.Picoseconds {
	stages, blocks := len(b.stages), b.pipe.skel.blocks
	if stage == stages {
		return map[bool]cost.Picoseconds{false: never}[left == 0]
	}
	least := never
	for n := 1; n <= left-(stages-1-stage); n++ {
		if stage == 0 && some > 0 && n != some {
			continue
		}
		after := b.everyCut(stage+1, left-n, some)
		for _, o := range b.options(stage, n) {
			least = min(least, max(after, b.from(stage, left, &o, b.leastPassed(stage, blocks-left, max(1, some)))))
		}
	}
	return least
}

// costsMet counts what cases have met, and how near bounds are.
type costsMet struct {
	interleaved, sliced, inPieces, stoodFor int
	raised, reached, waiting, floored       int
	slack, floors, refined                  float64
}

func (m *costsMet) add(c *costCase) {
	if c.chunks > 1 {
		m.interleaved++
	}
	if c.slices > 0 {
		m.sliced++
	}
	if slices.ContainsFunc(c.prog.Stages[0].Bodies[ir.Forward].Instrs, func(in codegen.Instr) bool { return in.Parts > 0 }) {
		m.inPieces++
	}
	if x := c.skel.inner.plan.TP; x > 2 && x < c.tp {
		m.stoodFor++
	}
}

func (m *costsMet) enough(t *testing.T, cases int, pieces bool) {
	require.Greater(t, m.interleaved, cases/20)
	for _, n := range []int{m.raised, m.sliced, m.reached, m.waiting} {
		require.Positive(t, n, "%+v", m)
	}
	require.Equal(t, pieces, m.inPieces > cases/4, "%d in pieces", m.inPieces)
	all := float64(m.floored) / 100
	t.Logf("the memory bound is at most %.1f %% below the arena, the floors are %.1f %% and %.1f %% of the time on average, %d raised by memory, %d by all stages; %d interleaved, %d of more ranks than heads by fewer, updates of %d stages that others wait for",
		100*m.slack, m.floors/all, m.refined/all, m.raised, m.reached, m.interleaved, m.stoodFor, m.waiting)
}
