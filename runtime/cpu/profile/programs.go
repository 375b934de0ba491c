package profile

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/cost/curve"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu"
	"github.com/autopar/autopar/trace"
)

// workload is a training step that is timed instruction by instruction.
type workload struct {
	layers, heads, width, tokens, batch int
	ranks, zero                         int // data-parallel
	microBatches                        int
}

// workloads are small models of very different sizes. Each is run by one rank with all threads and
// by one rank per core, which shows what it costs to share a kernel among cores. The narrowest
// model has so many layers that caches hold no more of it than of a deep model. Two have small
// micro-batches, so that products have few rows for what they pack. With one rank per core,
// gradients are summed whole or for the rank that updates them (ZeRO 0 to 2). The last two gather
// parameters in every micro-batch (ZeRO 3), so that ranks meet all the time: with one rank per
// core, and with two per core, which shows what a meeting then costs.
func workloads(cores int) []workload {
	var all []workload
	for i, w := range []workload{
		{6, 4, 128, 64, 6 * cores, 1, 0, 1}, {1, 4, 256, 128, 4 * cores, 1, 0, 1}, {1, 6, 384, 256, 2 * cores, 1, 0, 1},
		{6, 4, 128, 64, 6 * cores, 1, 0, 6}, {1, 6, 384, 128, 2 * cores, 1, 0, 2},
	} {
		all = append(all, w)
		if w.ranks, w.zero = cores, i%3; cores > 1 {
			all = append(all, w)
		}
	}
	if cores > 1 {
		all = append(all, workload{3, 4, 128, 64, 6 * cores, cores, 3, 3}, workload{3, 4, 128, 64, 6 * cores, 2 * cores, 3, 3})
	}
	return all
}

// timedInstr is an instruction, or a bucket of collectives by the name of the first, with its work
// and its time: the mean over the quietest steps, so that the times of a step add up.
type timedInstr struct {
	op      ir.Op
	name    string
	work    cost.Work
	seconds float64
}

// timedStep is a measured workload.
type timedStep struct {
	workload
	prog    *codegen.Program
	instrs  []timedInstr
	seconds float64 // mean of the quietest steps
	waited  float64 // of those, how long a rank waited for others at collectives
	spread  float64 // how far the median step is above the mean
}

// gap returns what a step takes beyond its instructions, per instruction.
func (s *timedStep) gap() float64 {
	sum := 0.0
	for _, in := range s.instrs {
		sum += in.seconds
	}
	return max(0, s.seconds-sum) / float64(len(s.instrs))
}

// compile makes the program of a workload, and the list of its instructions.
func (w workload) compile() (*timedStep, error) {
	model := gpt.Config{
		NLayer: w.layers, NHead: w.heads, NEmbd: w.width, BlockSize: w.tokens, VocabSize: 65, TieEmbeddings: true,
		Norm: gpt.LayerNorm, Position: gpt.Learned, Activation: gpt.GELU, Float: trace.F32,
	}
	g, err := gpt.TrainStep(model, gpt.Optimizer{Beta1: .9, Beta2: .95, Eps: 1e-8, WeightDecay: .1, GradClip: 1}, w.batch, w.tokens)
	if err != nil {
		return nil, err
	}
	plan := &partition.Plan{
		PlanNGPUs: w.ranks, RuntimeNGPUs: w.ranks, DP: w.ranks, TP: 1, ZeRO: w.zero, MicroBatch: w.batch / w.ranks / w.microBatches,
		Schedule: partition.OneFOneB, Stages: []partition.Stage{{Last: w.layers}},
	}
	prog, err := codegen.Compile(g, plan, w.batch, nil)
	if err != nil {
		return nil, err
	}
	s := &timedStep{workload: w, prog: prog}
	price := cost.NewProgram(&cost.Cluster{Device: cost.Device{Shared: true, Cores: 1}}, plan, prog.Mesh)
	s.each(func(instrs []codegen.Instr, at ir.Coord) {
		n := instrs[0].Node
		s.instrs = append(s.instrs, timedInstr{op: n.Op, name: n.Name, work: price.WorkOf(instrs, prog.Mesh, at)})
	})
	return s, nil
}

// running is a workload that is ready to run.
type running struct {
	*timedStep
	exec  *runtime.Executor
	feeds runtime.Feeds
	spans [][]runtime.Span // by rank, in the order of its instructions
	runs  []timedRun
}

// start prepares to run a workload.
func (w workload) start() (*running, error) {
	s, err := w.compile()
	if err != nil {
		return nil, err
	}
	backend, err := cpu.New(cpu.Options{})
	if err != nil {
		return nil, err
	}
	r := &running{timedStep: s, feeds: w.feeds(), spans: make([][]runtime.Span, w.ranks)}
	r.exec, err = runtime.New(s.prog, backend, runtime.Options{Trace: func(s runtime.Span) { r.spans[s.Rank] = append(r.spans[s.Rank], s) }})
	if err != nil {
		return nil, err
	}
	return r, r.exec.InitParams(s.prog, 1)
}

// run times steps steps, after one that warms the caches.
func (r *running) run(ctx context.Context, steps int) error {
	for n := range 1 + steps {
		for i := range r.spans {
			r.spans[i] = r.spans[i][:0]
		}
		start := time.Now()
		if _, err := r.exec.Step(ctx, r.prog, r.feeds); err != nil {
			return err
		}
		if took := time.Since(start); n > 0 {
			r.runs = append(r.runs, r.spent(took, r.spans))
		}
	}
	return nil
}

// timedRun is one step: its time and those of its instructions.
type timedRun struct {
	took   time.Duration
	spent  []time.Duration
	waited time.Duration // how long a rank waited for others at collectives, on average
}

// spent returns the time of each instruction in a step: on rank 0, except that the time of a
// collective is that of the last rank to come, which does not wait. The waits of the others are
// counted separately.
func (s *timedStep) spent(took time.Duration, spans [][]runtime.Span) timedRun {
	run := timedRun{took: took, spent: make([]time.Duration, len(s.instrs))}
	var together time.Duration // time at collectives, of all ranks
	for r, of := range spans {
		next := 0 // spans of inputs come in between
		for _, span := range of {
			if next == len(run.spent) || span.Op != s.instrs[next].op || span.Name != s.instrs[next].name {
				continue
			}
			d, meets := span.End-span.Start, s.instrs[next].work.Class == collectiveClass
			if r == 0 || meets && d < run.spent[next] {
				run.spent[next] = d
			}
			if meets {
				together += d
			}
			next++
		}
		if next != len(run.spent) {
			panic(fmt.Sprintf("BUG: profile: rank %d ran %d instructions of %d", r, next, len(run.spent)))
		}
	}
	run.waited = together / time.Duration(len(spans))
	for i, in := range s.instrs {
		if in.work.Class == collectiveClass {
			run.waited -= run.spent[i]
		}
	}
	return run
}

// average returns the step with the mean times of the quietest tenth of the runs.
func (r *running) average() *timedStep {
	s := *r.timedStep
	s.instrs = slices.Clone(s.instrs)
	runs := slices.SortedFunc(slices.Values(r.runs), func(a, b timedRun) int { return int(a.took - b.took) })
	quiet := runs[:max(1, len(runs)/10)]
	for _, run := range quiet {
		s.seconds += run.took.Seconds() / float64(len(quiet))
		s.waited += run.waited.Seconds() / float64(len(quiet))
		for i, d := range run.spent {
			s.instrs[i].seconds += d.Seconds() / float64(len(quiet))
		}
	}
	s.spread = runs[len(runs)/2].took.Seconds()/s.seconds - 1
	return &s
}

// each calls f with what rank 0 runs in a step, bucket by bucket. All ranks run as much.
func (s *timedStep) each(f func(instrs []codegen.Instr, at ir.Coord)) {
	sched := &s.prog.Schedules[0]
	for _, task := range sched.Tasks {
		instrs := s.prog.Stages[sched.Stage].Run(task)
		for i := range instrs {
			if in := &instrs[i]; sched.Runs(in, task) && !in.Fused && !in.Idle() {
				f(codegen.Bucket(instrs, i), s.prog.At(sched, task))
			}
		}
	}
}

// feeds returns arbitrary tokens: the time of a step does not depend on them.
func (w workload) feeds() runtime.Feeds {
	r := rand.New(rand.NewPCG(1, 2))
	ids, targets, positions := make([]int32, w.batch*w.tokens), make([]int32, w.batch*w.tokens), make([]int32, w.tokens)
	for i := range ids {
		ids[i], targets[i] = r.Int32N(65), r.Int32N(65)
	}
	for i := range positions {
		positions[i] = int32(i)
	}
	return runtime.Feeds{
		"ids": runtime.Ints(ids...), "targets": runtime.Ints(targets...), "positions": runtime.Ints(positions...),
		"seed": runtime.Ints(1), "step": runtime.Ints(1), "lr": runtime.Floats(1e-4), "loss_weight": runtime.Floats(1 / float32(len(ids))),
	}
}

const (
	productClass    = "product"
	attentionClass  = "attention"
	vectorClass     = "vector"
	collectiveClass = "collective"
)

// divisible is the least time of a kernel, in seconds of a core, that is worth sharing among cores.
const divisible = 10e-6

// pairs returns the instructions that both one rank per core and one rank with all cores have run,
// except kernels too short to share.
func pairs(steps []*timedStep, cores float64) []pair {
	var all []pair
	for i, s := range steps {
		if s.ranks > 1 || i+1 == len(steps) || steps[i+1].ranks == 1 {
			continue
		}
		next := 0
		for _, in := range steps[i+1].instrs {
			if in.work.Class == collectiveClass || in.work.Class == "" || s.instrs[next].name != in.name {
				continue
			}
			of := s.instrs[next]
			next++
			// An update of all parameters is as much work for each rank as for a single one.
			part := float64(of.work.Bytes) / float64(in.work.Bytes) / cores
			if of.work.FLOPs > 0 {
				part = of.work.FLOPs / in.work.FLOPs / cores
			}
			if p := (pair{in.seconds * part, of.seconds, 1 / s.seconds}); p.apart > divisible {
				all = append(all, p)
			}
		}
	}
	return all
}

// price returns how long the step takes by a cluster's figures, and how often ranks meet in it.
func (s *timedStep) price(c *cost.Cluster) (seconds float64, meetings int) {
	price := cost.NewProgram(c, s.prog.Plan, s.prog.Mesh)
	s.each(func(instrs []codegen.Instr, at ir.Coord) {
		t, _ := price.Bucket(instrs, s.prog.Mesh, at)
		seconds += t.Seconds()
	})
	return seconds, count([]*timedStep{s}, collectiveClass)
}

// samples returns the instructions of a class, or of one op of it, run by ranks with one core each,
// and for products also by ranks with more. The overhead of an instruction is subtracted from their
// times.
func samples(steps []*timedStep, cores int, class string, op ir.Op, overhead float64, around near) []sample {
	var all []sample
	for _, s := range steps {
		own := float64(cores) / float64(s.ranks)
		if own != 1 && class != productClass {
			continue
		}
		for _, in := range s.instrs {
			if in.work.Class != class || op != ir.OpInvalid && in.op != op || in.seconds < 2e-6 || own > 1 && in.seconds < divisible {
				continue
			}
			if seconds := in.seconds - overhead; seconds > 0 {
				packed, moved := in.work.Packed(own, around.cached/float64(cores))
				all = append(all, sample{
					share: 1 / float64(s.ranks), flops: in.work.FLOPs, bytes: float64(in.work.Bytes), keys: in.work.Keys, packed: packed,
					across: float64(in.work.Across), moved: moved / around.memoryRate * float64(cores), seconds: seconds, weight: 1 / s.seconds,
				})
			}
		}
	}
	return all
}

// exchanges returns the collectives of ranks with one core each.
func exchanges(steps []*timedStep, cores int, overhead float64) []curve.Exchange {
	var all []curve.Exchange
	for _, s := range steps {
		for _, in := range s.instrs {
			if s.ranks != cores || in.work.Class != collectiveClass || in.work.Group.Size < 2 || in.seconds <= overhead {
				continue
			}
			all = append(all, curve.Exchange{Messages: 1, Bytes: in.work.Moved, Seconds: in.seconds - overhead})
		}
	}
	return all
}

// count returns how many instructions of a class were timed.
func count(steps []*timedStep, class string) int {
	n := 0
	for _, s := range steps {
		for _, in := range s.instrs {
			if in.work.Class == class {
				n++
			}
		}
	}
	return n
}
