package autopar_test

import (
	"context"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
)

var parityAll = flag.Bool("parity-all", false, "every plan, and long runs, where tests take a sample and few steps")

// most is the first of two numbers with -parity-all; otherwise the second, which is enough to
// find a plan that computes something else.
func most(all, few int) int {
	if *parityAll {
		return all
	}
	return few
}

// learningSteps is how long one rank trains until it has learned something, paritySteps how
// long plans are compared with it: the weights of the third step are of two updates, the second by
// moments that were kept, moved and gathered as the plan says.
const learningSteps = 20

func paritySteps() int { return most(learningSteps, 3) }

// parityModel has no size that a power of two divides evenly: 65 symbols, 5
// heads, 19 positions, a batch of 11, so every split is uneven.
var parityModel = gpt.Config{
	NLayer: 8, NHead: 5, NKVHead: 5, NEmbd: 40, BlockSize: 19, VocabSize: 65, Dropout: 0.2, Bias: true,
	Activation: "gelu", Norm: "layernorm", Position: "learned", TieEmbeddings: true,
}

const parityBatch = 11

// layout is a tensor-parallel placement: attention by heads if there are enough.
func layout(tp int) []partition.Placement {
	p := []partition.Placement{
		{Match: `h\.[0-9]+\.mlp\.c_fc\.weight`, Spec: "[tp,_]"},
		{Match: `h\.[0-9]+\.mlp\.c_fc\.bias`, Spec: "[tp]"},
		{Match: `h\.[0-9]+\.mlp\.c_proj\.weight`, Spec: "[_,tp]"},
		{Match: `wte\.weight`, Spec: "[tp,_]"},
	}
	if tp <= parityModel.NHead {
		p = append(p,
			partition.Placement{Match: `h\.[0-9]+\.attn\.c_attn\.weight`, Spec: "[_,tp,_,_]"},
			partition.Placement{Match: `h\.[0-9]+\.attn\.c_attn\.bias`, Spec: "[_,tp,_]"},
			partition.Placement{Match: `h\.[0-9]+\.attn\.c_proj\.weight`, Spec: "[_,tp,_]"})
	}
	return p
}

// replicate keeps modules whole on all tensor-parallel ranks.
func replicate(p *partition.Plan, modules ...string) {
	for i := range p.Placements {
		if x := &p.Placements[i]; slices.Contains(modules, x.Module()) {
			x.Spec = strings.ReplaceAll(x.Spec, "tp", "_")
		}
	}
}

// onGrid has tensor-parallel ranks form a grid of two rows, over which modules are cut in both
// dimensions and the others in one.
func onGrid(p *partition.Plan, modules ...string) {
	p.TPRows, p.Placements = 2, layout(p.TP)
	if slices.Contains(modules, "attn") {
		p.Placements = layout(p.TP / 2) // a head for each column will do
	}
	for i := range p.Placements {
		x := &p.Placements[i]
		matrix := strings.HasSuffix(x.Match, "weight")
		switch {
		case !slices.Contains(modules, x.Module()):
			x.Spec = strings.Replace(x.Spec, "tp", "tp.tpr", 1)
		case matrix && strings.Contains(x.Match, "c_proj"): // its first dimension is its outputs
			x.Spec = "[tpr" + x.Spec[2:]
		case matrix:
			x.Spec = x.Spec[:len(x.Spec)-2] + "tpr]"
		}
	}
}

func parityPlan(dp, tp, pp, micro int, schedule partition.Schedule, recompute bool) *partition.Plan {
	n := dp * tp * pp
	p := &partition.Plan{PlanNGPUs: n, RuntimeNGPUs: n, DP: dp, TP: tp, MicroBatch: micro, Schedule: schedule, Placements: layout(tp)}
	for s := range pp {
		st := partition.Stage{First: s * parityModel.NLayer / pp, Last: (s + 1) * parityModel.NLayer / pp}
		if recompute {
			st.Recompute = (st.Last - st.First + 1) / 2
		}
		p.Stages = append(p.Stages, st)
	}
	return p
}

// contextPlan is parityPlan with context parallelism.
func contextPlan(dp, cp, tp, pp int) *partition.Plan {
	p := parityPlan(dp, tp, pp, 2, partition.OneFOneB, false)
	p.PlanNGPUs *= cp
	p.RuntimeNGPUs *= cp
	if cp > 1 {
		p.CP = cp
	}
	return p
}

// trajectory is what training shows: a loss and a gradient norm per step.
type trajectory struct{ loss, norm []float64 }

// trainer compiles the training step for a plan and initializes the weights.
func trainer(t testing.TB, p *partition.Plan, batch int) (*codegen.Program, *runtime.Executor) {
	opt := gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, WeightDecay: .1, GradClip: 1}
	g, err := gpt.TrainStep(parityModel, opt, batch, parityModel.BlockSize)
	require.NoError(t, err)
	prog, exec := compile(t, g, p, batch)
	require.NoError(t, exec.InitParams(prog, 1337))
	return prog, exec
}

// tokensOf is how long the sequences of a program are.
func tokensOf(prog *codegen.Program) int {
	for _, n := range prog.Graph.Nodes {
		if partition.BaseName(n.Name) == "ids" {
			return n.Results[0].Type.Shape[1] * max(1, prog.Plan.SequenceParts)
		}
	}
	return 0
}

// stepsOf trains on random text in which each token follows from the one before,
// with noise.
func stepsOf(t testing.TB, prog *codegen.Program, exec *runtime.Executor, batch, steps int) trajectory {
	rng := rand.New(rand.NewPCG(7, 7))
	tokens := tokensOf(prog)
	ids := make([]int32, batch*tokens)
	targets := make([]int32, len(ids))
	var out trajectory
	for step := range steps {
		for i := range ids {
			ids[i] = int32(rng.IntN(65))
			targets[i] = (ids[i]*7 + int32(rng.IntN(3))) % 65
		}
		r, err := exec.Step(context.Background(), prog, runtime.Feeds{
			"ids": runtime.Ints(ids...), "targets": runtime.Ints(targets...), "positions": runtime.Ints(upTo(tokens)...),
			"seed": runtime.Ints(1337), "step": runtime.Ints(int32(step)),
			"lr": runtime.Floats(1e-3 * min(1, float32(step+1)/101)), "loss_weight": runtime.Floats(1 / float32(len(ids))),
		})
		require.NoError(t, err)
		out.loss = append(out.loss, float64(r["loss"]))
		out.norm = append(out.norm, float64(r["grad_norm"]))
	}
	return out
}

var longest struct { // trajectory of one rank that was asked for
	sync.Mutex
	trajectory
}

// oneRank trains on one rank, once for all tests.
func oneRank(t testing.TB, steps int) trajectory {
	longest.Lock()
	defer longest.Unlock()
	if len(longest.loss) < steps {
		longest.trajectory = trainBatch(t, parityPlan(1, 1, 1, parityBatch, partition.GPipe, false), parityBatch, steps)
	}
	return trajectory{longest.loss[:steps], longest.norm[:steps]}
}

// trainBatch trains under a plan from the same start.
func trainBatch(t testing.TB, p *partition.Plan, batch, steps int) trajectory {
	prog, exec := trainer(t, p, batch)
	return stepsOf(t, prog, exec, batch, steps)
}

// TestParity trains with dropout, at odd sizes, under plans of 1, 2, 3, 4, 6 and 8
// ranks, and compares each step with one rank: a sample of [parityPlans], or
// with -parity-all every one. With -v it prints the table (make parity).
//
// The learning rate warms up as nanoGPT's does. At 1e-3 from the first step the
// losses agree as well, but Adam's first updates are lr*sign(g): elements whose
// gradient is smaller than the rounding of a sum turn over, and the gradient
// norms of later steps drift apart by up to 2e-5.
func TestParity(t *testing.T) {
	one := oneRank(t, learningSteps)
	require.Less(t, one.loss[len(one.loss)-1], one.loss[0]-0.05, "it learns")
	if testing.Verbose() {
		fmt.Println("| ranks | dp | cp | tp | pp | sp | bp | replicated | on a grid | zero | group | micro-batch | schedule | recompute | overlap | overlap tp | overlap p2p | offload | rank order | shares | max abs Δloss | max rel Δ‖grad‖ |")
		fmt.Println("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|")
	}
	plans := allParityPlans()
	plans = sampleOf(t, plans, most(len(plans), 18))
	var worstLoss, worstNorm float64
	for _, c := range plans {
		p := c.plan
		prog, exec := trainer(t, p, parityBatch)
		got := stepsOf(t, prog, exec, parityBatch, paritySteps())
		require.NoError(t, exec.Close())
		dLoss, dNorm := differences(one, got)
		row := fmt.Sprintf("| %d | %d | %d | %d | %d | %v | %v | %s | %s | %d | %d | %d | %s | %s | %v | %v | %v | %s | %s | %s | %.1e | %.1e |", p.RuntimeNGPUs, p.DP, p.ContextParallel(), p.TP, p.PP(),
			p.SequenceParallel, p.BatchParallel, strings.Join(p.Replicated(), " "), strings.Join(p.OnGrid(), " "), p.ZeRO, p.ShardGroup(), p.MicroBatch, p.ScheduleText(), c.recompute, p.Overlap, p.OverlapTP, p.OverlapP2P, p.Offload, p.RankOrderText(), strings.Trim(fmt.Sprint(p.BatchShares), "[]"), dLoss, dNorm)
		if testing.Verbose() {
			fmt.Println(row)
		}
		if !(dLoss <= 1e-5) || !(dNorm <= 1e-6) {
			t.Error(row)
		}
		worstLoss, worstNorm = max(worstLoss, dLoss), max(worstNorm, dNorm)
	}
	t.Logf("%d plans: max abs Δloss %.1e, max rel Δ‖grad‖ %.1e", len(plans), worstLoss, worstNorm)
}

// differences are the largest between two trajectories, of which the second may be
// shorter: of losses, and of gradient norms relative to them.
func differences(one, got trajectory) (dLoss, dNorm float64) {
	for s := range got.loss {
		dLoss = max(dLoss, math.Abs(got.loss[s]-one.loss[s]))
		dNorm = max(dNorm, math.Abs(got.norm[s]-one.norm[s])/one.norm[s])
	}
	return dLoss, dNorm
}

// interleave cuts each stage of a pipeline into k, where there are blocks enough;
// otherwise the plan is zero-bubble.
func interleave(p *partition.Plan, k int) {
	stages := p.PP() * k
	if p.Schedule = partition.ZeroBubble; p.PP() == 1 || stages > parityModel.NLayer {
		return
	}
	p.Schedule, p.Interleave, p.Stages = partition.Interleaved, k, nil
	for s := range stages {
		p.Stages = append(p.Stages, partition.Stage{First: s * parityModel.NLayer / stages, Last: (s + 1) * parityModel.NLayer / stages})
	}
}

// parityCase is a plan of TestParity.
type parityCase struct {
	plan      *partition.Plan
	recompute string // of half the blocks of each stage
}

// allParityPlans lists the plans of the parity table.
func allParityPlans() []parityCase {
	var plans []parityCase
	for _, n := range []int{1, 2, 3, 4, 6, 8} {
		plans = append(plans, parityPlans(n)...)
	}
	return plans
}

// sampleOf returns n plans, and logs the seed: of some random ones each time the one with the most pairs of
// choices that no plan before it has.
func sampleOf(t testing.TB, plans []parityCase, n int) []parityCase {
	seed := rand.Uint64()
	t.Logf("sample seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	rng.Shuffle(len(plans), func(i, j int) { plans[i], plans[j] = plans[j], plans[i] })
	met, pairs := map[[2]string]bool{}, map[*partition.Plan][][2]string{}
	for i := range n {
		best, most := i, -1
		for j := i; j < min(i+60, len(plans)); j++ {
			all, known := pairs[plans[j].plan]
			if !known {
				all = plans[j].pairs()
				pairs[plans[j].plan] = all
			}
			fresh := 0
			for _, pair := range all {
				if !met[pair] {
					fresh++
				}
			}
			if fresh > most {
				best, most = j, fresh
			}
		}
		plans[i], plans[best] = plans[best], plans[i]
		for _, pair := range pairs[plans[i].plan] {
			met[pair] = true
		}
	}
	return plans[:n]
}

// pairs lists any two choices of a plan.
func (c parityCase) pairs() (all [][2]string) {
	p := c.plan
	var choices []string
	for i, choice := range []any{
		p.DP, p.ContextParallel(), p.TP, p.PP(), p.SequenceParallel, p.BatchParallel, p.Replicated(), p.OnGrid(), p.ZeRO, p.ZeROGroup, p.MicroBatch,
		p.Schedule, c.recompute, p.Overlap, p.OverlapTP, p.OverlapP2P, p.Offload, p.RankOrder, p.BatchShares != nil,
	} {
		choices = append(choices, fmt.Sprint(i, " ", choice))
		for _, other := range choices[:i] {
			all = append(all, [2]string{other, choices[i]})
		}
	}
	return all
}

// parityPlans lists every legal combination of n ranks: each factoring into dp x
// cp x tp x pp, with and without sequence parallelism, at every ZeRO stage, under
// every schedule and kind of recomputation. Sizes of micro-batches, ZeRO groups,
// overlap, offload, orders of ranks and shares of the batch take turns.
func parityPlans(n int) []parityCase {
	var cases []parityCase
	for dp := 1; dp <= n; dp++ {
		for cp := 1; dp*cp <= n; cp++ {
			for tp := 1; dp*cp*tp <= n; tp++ {
				if n%(dp*cp*tp) != 0 {
					continue
				}
				for sp := range min(tp, 2) {
					for zero := 0; zero <= 3 && (zero == 0 || dp > 1); zero++ {
						for _, schedule := range paritySchedules(n / (dp * cp * tp)) {
							for _, again := range []string{"none", "pointwise", "selective", "full"} {
								p := contextPlan(dp, cp, tp, n/(dp*cp*tp))
								p.SequenceParallel, p.ZeRO = sp == 1, zero
								if p.Schedule = schedule; schedule == partition.Interleaved {
									interleave(p, 2)
								}
								takeTurns(p, len(cases))
								recomputeHalf(p, again)
								cases = append(cases, parityCase{p, again})
							}
						}
					}
				}
			}
		}
	}
	return cases
}

// takeTurns sets what the n-th plan has of the choices that are not multiplied out.
func takeTurns(p *partition.Plan, n int) {
	p.MicroBatch = 1 + n%3
	p.Overlap = n/3%2 == 1 && (p.Schedule == partition.GPipe || p.Schedule == partition.OneFOneB)
	p.OverlapTP = p.TP > 1 && !p.Schedule.SplitsBackward() && rand.New(rand.NewPCG(uint64(n), 1)).IntN(2) == 0
	p.OverlapP2P = p.PP() > 1 && rand.New(rand.NewPCG(uint64(n), 2)).IntN(2) == 0
	if dp := p.DataParallel(); p.ZeRO > 0 && dp > 2 && dp%2 == 0 && n/2%2 == 1 {
		p.ZeROGroup = 2
	}
	if p.TP > 1 {
		sets := []string{"", "", "attn", "mlp", "wte", "attn mlp", "attn wte", "mlp wte"}
		replicate(p, strings.Fields(sets[rand.New(rand.NewPCG(uint64(n), 0)).IntN(len(sets))])...)
	}
	if p.TP >= 4 && p.TP%2 == 0 && (p.ContextParallel() == 1 || p.ZeROGroup == 0) && n%2 == 0 {
		onGrid(p, [][]string{{"attn", "mlp"}, {"attn"}, {"mlp"}}[n/2%3]...)
	}
	if n%2 == 1 && p.TP > 1 && !p.SequenceParallel && p.DataParallel()*p.TP <= parityBatch { // in place of what all ranks repeat
		p.BatchParallel, p.MicroBatch = true, min(p.TP+n%3, (parityBatch+p.DataParallel()-1)/p.DataParallel())
		if p.DataParallel() == 1 && p.Replicas() > 1 {
			p.ZeRO = n / 2 % 4
		}
	}
	p.RankOrder = []string{"", "dp-tp-cp-pp", "pp-cp-dp-tp", "cp-pp-tp-dp"}[n/5%4]
	switch n % 5 {
	case 1:
		p.Offload = partition.OffloadOptimizer
	case 2:
		p.Offload = partition.OffloadParams
	}
	if rng := rand.New(rand.NewPCG(uint64(n), 3)); p.DataParallel() > 1 && p.ZeROGroup == 0 && rng.IntN(3) == 0 {
		shareBatch(p, rng)
	}
}

// shareBatch gives the data-parallel ranks different shares of the batch, if these leave each enough.
func shareBatch(p *partition.Plan, rng *rand.Rand) {
	for range p.DataParallel() {
		p.BatchShares = append(p.BatchShares, 1+rng.IntN(3))
	}
	if p.Validate(parityModel.NLayer, parityBatch) != nil {
		p.BatchShares = nil
	}
}

// place gives a plan of the sample the placements of another model. They keep no module whole, of which
// ZeRO shards the weights over tensor-parallel ranks where there is no data parallelism.
func place(p *partition.Plan, placements []partition.Placement) {
	p.Placements = placements
	if p.Replicas() == 1 {
		p.ZeRO = 0
	}
}

// paritySchedules lists the schedules of a pipeline; with one stage they are the
// same, and for two stages per rank there must be blocks enough.
func paritySchedules(pp int) []partition.Schedule {
	switch {
	case pp == 1:
		return []partition.Schedule{partition.OneFOneB}
	case 2*pp > parityModel.NLayer:
		return []partition.Schedule{partition.GPipe, partition.OneFOneB, partition.ZeroBubble}
	}
	return []partition.Schedule{partition.GPipe, partition.OneFOneB, partition.Interleaved, partition.ZeroBubble}
}

// recomputeHalf makes half the blocks of each stage compute again.
func recomputeHalf(p *partition.Plan, again string) {
	for s := range p.Stages {
		half := (p.Stages[s].Last - p.Stages[s].First + 1) / 2
		switch again {
		case "full":
			p.Stages[s].Recompute = half
		case "selective":
			p.Stages[s].Selective = half
		case "pointwise":
			p.Stages[s].Pointwise = half
		}
	}
}
