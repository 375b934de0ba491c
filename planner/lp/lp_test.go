package lp_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/lp"
)

// job is a model, a cluster and the options of a search.
type job struct {
	name    string
	model   gpt.Config
	batch   int
	cluster string
	other   string // if set, all stages but one have devices of this cluster
	opts    planner.Options
	// What the winner is expected to have: an uneven cut, recomputation. A change of prices may change that.
	uneven, recomputes bool
}

func tiny(layers int) gpt.Config {
	c := gpt.DefaultConfig()
	c.NLayer, c.NHead, c.NEmbd, c.BlockSize, c.VocabSize, c.Dropout = layers, 3, 24, 33, 65, 0.2
	return c
}

func zero(n int) *int { return &n }

func jobs() []job {
	wide := tiny(9)
	wide.VocabSize = 900 // the head is worth more than a block
	llama := tiny(7)
	llama.Activation, llama.Norm, llama.Position, llama.TieEmbeddings = gpt.SwiGLU, gpt.RMSNorm, gpt.RoPE, false
	llama.FFNHidden = 2*llama.NEmbd + 13
	less := wide // of which there are less than half as many choices
	less.NLayer = 7
	even := less
	even.BlockSize = 32
	return []job{{
		name: "pipeline alone", model: wide, batch: 7, cluster: "cpu", uneven: true,
		opts: planner.Options{DP: 1, TP: 1, PP: 3, MicroBatch: 1, Schedule: partition.OneFOneB},
	}, {
		name: "short of memory", model: wide, batch: 8, cluster: "cpu", uneven: true, recomputes: true,
		opts: planner.Options{DP: 1, TP: 1, PP: 3, MicroBatch: 2, Schedule: partition.GPipe, MemoryLimit: 2_100_000, Offload: "none"},
	}, {
		name: "tensor and sequence parallelism, the last micro-batch smaller", model: less, batch: 7, cluster: "v100",
		opts: planner.Options{DP: 1, TP: 3, PP: 3, MicroBatch: 2, Schedule: partition.GPipe, SequenceParallel: "on"},
	}, {
		name: "zero-bubble Llama", model: llama, batch: 6, cluster: "a100-40g", uneven: true,
		opts: planner.Options{DP: 1, TP: 1, PP: 3, MicroBatch: 1, Schedule: partition.ZeroBubble},
	}, {
		name: "eager Llama", model: llama, batch: 8, cluster: "a100-40g", uneven: true,
		opts: planner.Options{DP: 1, TP: 1, PP: 3, MicroBatch: 1, Schedule: partition.EagerZeroBubble},
	}, {
		name: "overlapped ZeRO", model: less, batch: 14, cluster: "h100",
		opts: planner.Options{DP: 2, TP: 1, PP: 3, MicroBatch: 2, Schedule: partition.OneFOneB, ZeRO: zero(2), Overlap: "on"},
	}, {
		name: "context parallelism, optimizer state in host memory", model: even, batch: 5, cluster: "a100-80g", recomputes: true,
		opts: planner.Options{DP: 1, CP: 2, TP: 1, PP: 3, MicroBatch: 2, Schedule: partition.OneFOneB, Offload: "optimizer"},
	}, {
		name: "modules on all ranks, beside which a search recomputes nothing", model: less, batch: 12, cluster: "v100",
		opts: planner.Options{DP: 1, TP: 2, PP: 3, MicroBatch: 3, Schedule: partition.GPipe, SequenceParallel: "on", Replicate: "attn+mlp"},
	}, {
		name: "two kinds of devices", model: less, batch: 12, cluster: "a10g", other: "h100", uneven: true,
		opts: planner.Options{DP: 1, TP: 1, PP: 3, MicroBatch: 4, Schedule: partition.OneFOneB},
	}}
}

func (j job) graph(t testing.TB) *ir.Graph {
	g, err := gpt.TrainStep(j.model, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, WeightDecay: .1, GradClip: 1}, j.batch, j.model.BlockSize)
	require.NoError(t, err)
	return g
}

// state searches a job's plan and states its program.
func (j job) state(t testing.TB) (*ir.Graph, *cost.Cluster, *planner.Result, *lp.Program) {
	g := j.graph(t)
	c, err := cost.Load(j.cluster)
	require.NoError(t, err)
	if j.other != "" {
		other, err := cost.Load(j.other)
		require.NoError(t, err)
		c = cost.Join("two kinds", nil, cost.Pool{Cluster: c, Devices: 1}, cost.Pool{Cluster: other, Devices: j.opts.PP - 1})
	}
	found, err := planner.Search(g, j.batch, c, j.opts)
	require.NoError(t, err)
	limit := j.opts.MemoryLimit
	if limit == 0 {
		limit = c.MemoryPerRank(found.Plan.RuntimeNGPUs)
	}
	start := time.Now()
	p, err := lp.New(g, j.batch, c, found.Plan, lp.Options{Limit: limit})
	require.NoError(t, err)
	binaries := 0
	for _, all := range p.Choices {
		binaries += len(all)
	}
	sizes, again := map[int]bool{}, 0
	for _, s := range found.Plan.Stages {
		sizes[s.Last-s.First] = true
		again += s.Recomputed()
	}
	if j.uneven {
		require.Greater(t, len(sizes), 1, "the cut is even")
	}
	require.Equal(t, j.recomputes, again > 0, "%+v", found.Plan.Stages)
	if len(found.Plan.Replicated()) > 0 {
		require.Equal(t, j.model.NLayer-j.opts.PP+1, len(p.Choices[0]), "the first position has a number of blocks to choose")
	}
	t.Logf("%d binaries in %v; %+v %v ps, %d bytes", binaries, time.Since(start), found.Plan.Stages, int64(found.Prediction.Step), found.Prediction.PeakBytes)
	return g, c, found, p
}

// TestPrograms checks the program of every job in two ways. For every cut, its time is that of a simulation of the
// whole program, and its bytes those that codegen lays out. And the optimum that a solver finds, if one is installed
// (Debian: coinor-cbc, glpk-utils), is the time of the plan that the search finds.
func TestPrograms(t *testing.T) {
	for _, j := range jobs() {
		t.Run(j.name, j.check)
	}
}

// TestGPT2Program: the same for a model of which few plans fit.
func TestGPT2Program(t *testing.T) {
	if testing.Short() {
		t.Skip("a larger model")
	}
	model, err := gpt.Preset("gpt2")
	require.NoError(t, err)
	model.Float = ir.BF16
	job{
		model: model, batch: 32, cluster: "a100-40g", uneven: true, recomputes: true,
		opts: planner.Options{DP: 1, TP: 1, PP: 4, MicroBatch: 2, Schedule: partition.OneFOneB, MemoryLimit: 1_200_000_000, Offload: "none"},
	}.check(t)
}

func (j job) check(t *testing.T) {
	g, c, found, p := j.state(t)
	const seed = 11
	r := rand.New(rand.NewPCG(seed, 0))
	for range 8 {
		picked := pick(r, p, j.model.NLayer)
		plan := p.Plan(picked)
		want, err := planner.Predict(g, j.batch, c, plan, nil)
		require.NoError(t, err)
		got, err := p.Time(picked)
		require.NoError(t, err)
		require.Equal(t, want.Step, got, "seed %d: %+v", seed, plan.Stages)
		for at, k := range picked {
			require.Equal(t, want.PeakBytes[at], p.Choices[at][k].Bytes, "seed %d: position %d of %+v", seed, at, plan.Stages)
		}
	}
	for _, s := range solvers() {
		t.Run(s.command, func(t *testing.T) { s.check(t, found, p) })
	}
}

// pick draws a choice for every position until they hold all blocks together.
func pick(r *rand.Rand, p *lp.Program, blocks int) []int {
	for {
		picked, sum := make([]int, len(p.Choices)), 0
		for at, all := range p.Choices {
			picked[at] = r.IntN(len(all))
			sum += all[picked[at]].Blocks
		}
		if sum == blocks {
			return picked
		}
	}
}

// solver is a command that solves FILE and writes its solution to OUT.
type solver struct {
	command string
	args    string
}

func solvers() []solver {
	return []solver{
		{"cbc", "FILE -ratioGap 0 -allowableGap 0 -sec 100 -solve -solution OUT"},
		{"glpsol", "--lp FILE --tmlim 100 -o OUT"},
	}
}

// check solves a program. Solvers print rounded numbers, so only the binaries that they set are read, and the time is
// computed from these exactly.
func (s solver) check(t *testing.T, found *planner.Result, p *lp.Program) {
	path, err := exec.LookPath(s.command)
	if err != nil {
		t.Skip(err)
	}
	var text bytes.Buffer
	require.NoError(t, p.Write(&text, "a.lp", found.Prediction.Step))
	dir := t.TempDir()
	file, out := filepath.Join(dir, "a.lp"), filepath.Join(dir, "out")
	require.NoError(t, os.WriteFile(file, text.Bytes(), 0o666))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	start := time.Now()
	args := strings.Fields(strings.NewReplacer("FILE", file, "OUT", out).Replace(s.args))
	log, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	require.NoError(t, err, "%s", log)
	solution, err := os.ReadFile(out)
	require.NoError(t, err, "%s", log)
	require.Regexp(t, `(?m)^Optimal|INTEGER OPTIMAL`, string(solution))
	picked := chosen(t, p, string(solution))
	got, err := p.Time(picked)
	require.NoError(t, err)
	require.Equal(t, found.Prediction.Step, got, "the planner's %+v, the solver's %+v", found.Plan.Stages, p.Plan(picked).Stages)
	for at, k := range picked {
		require.LessOrEqual(t, p.Choices[at][k].Bytes, p.Limit(at), "position %d", at)
	}
	t.Logf("in %v", time.Since(start))
}

// chosen reads which binaries a solution sets.
func chosen(t *testing.T, p *lp.Program, solution string) []int {
	set := map[string]bool{}
	for _, m := range regexp.MustCompile(`(x_\d+_\d+_\d+_\d+_\d+)\s+(?:\*\s+)?(\S+)`).FindAllStringSubmatch(solution, -1) {
		value, err := strconv.ParseFloat(m[2], 64)
		require.NoError(t, err)
		set[m[1]] = value > 0.5
	}
	var picked []int
	for at, all := range p.Choices {
		k := slices.IndexFunc(all, func(x lp.Choice) bool { return set[p.Name(at, slices.Index(all, x))] })
		require.GreaterOrEqual(t, k, 0, "position %d has nothing: %s", at, strings.TrimSpace(solution))
		picked = append(picked, k)
	}
	return picked
}

// TestMemoryRows reads from a program's text how many bytes choices take and positions have. It stands in for a
// solver where none is installed.
func TestMemoryRows(t *testing.T) {
	_, _, found, p := jobs()[1].state(t)
	var text bytes.Buffer
	require.NoError(t, p.Write(&text, "a.lp", found.Prediction.Step))
	for at, all := range p.Choices {
		want := fmt.Sprintf(" memory_%d:", at)
		for k, x := range all {
			want += fmt.Sprintf(" + %g %s", float64(x.Bytes)/1e6, p.Name(at, k))
		}
		want += fmt.Sprintf(" <= %g\n", float64(p.Limit(at))/1e6)
		require.Contains(t, strings.ReplaceAll(text.String(), "\n +", " +"), want)
	}
}

func TestWhatCannotBeStated(t *testing.T) {
	j := jobs()[0]
	g := j.graph(t)
	c, err := cost.Load(j.cluster)
	require.NoError(t, err)
	plan := &partition.Plan{PlanNGPUs: 2, RuntimeNGPUs: 2, DP: 1, TP: 1, MicroBatch: 1, Schedule: partition.Interleaved, Interleave: 2}
	for i := range 4 {
		plan.Stages = append(plan.Stages, partition.Stage{First: []int{0, 3, 5, 7}[i], Last: []int{3, 5, 7, 9}[i]})
	}
	_, err = lp.New(g, j.batch, c, plan, lp.Options{})
	require.ErrorContains(t, err, "2 chunks per rank, which are cut evenly")
	_, err = lp.New(g, j.batch, c, &partition.Plan{Schedule: partition.ZeroBubble, Overlap: true}, lp.Options{})
	require.ErrorContains(t, err, "want overlap off, or schedule 1f1b")

	deep := tiny(96)
	j.model, j.batch = deep, 1
	plan = &partition.Plan{PlanNGPUs: 1, RuntimeNGPUs: 1, DP: 1, TP: 1, MicroBatch: 1, Schedule: partition.OneFOneB, Stages: []partition.Stage{{Last: 96}}}
	p, err := lp.New(j.graph(t), 1, c, plan, lp.Options{Recompute: planner.RecomputeFull})
	require.NoError(t, err)
	require.Len(t, p.Choices[0], 1)
	_, err = p.Time([]int{0, 0})
	require.ErrorContains(t, err, "want a choice for each of 1 positions, with 96 blocks")

	plan.PlanNGPUs, plan.RuntimeNGPUs, plan.Stages = 2, 2, []partition.Stage{{Last: 40}, {First: 40, Last: 96}}
	_, err = lp.New(j.graph(t), 1, c, plan, lp.Options{})
	require.ErrorContains(t, err, "96 blocks in 2 stages with any recomputation take 599070 binary variables")
}
