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

// workloads are small models at sizes apart from each other, each by one rank with
// all threads and by one rank a core, whose collectives are timed too. One is in small
// parts, and one has its parameters gathered where they are read, so that ranks meet all
// the time. The last is by two ranks a core, as the one before it but for that.
func workloads(cores int) []workload {
	var all []workload
	for _, w := range []workload{{2, 4, 128, 64, 6 * cores, 1, 0, 1}, {1, 4, 256, 128, 4 * cores, 1, 0, 1}, {1, 6, 384, 256, 2 * cores, 1, 0, 1}} {
		all = append(all, w)
		if w.ranks = cores; cores > 1 {
			all = append(all, w)
		}
	}
	all = append(all, workload{2, 4, 128, 64, 6 * cores, cores, 0, 6})
	if cores > 1 {
		all = append(all, workload{2, 4, 128, 64, 6 * cores, cores, 3, 1}, workload{2, 4, 128, 64, 6 * cores, 2 * cores, 3, 1})
	}
	return all
}

// timedInstr is an instruction with its work and its time: the mean over the
// quietest steps, so that the times of a step add up.
type timedInstr struct {
	op      ir.Op
	name    string
	work    cost.Work
	seconds float64
}

// timedStep is a workload, run.
type timedStep struct {
	workload
	prog    *codegen.Program
	instrs  []timedInstr
	seconds float64 // the mean of the quietest steps
	spread  float64 // by how much the median exceeds it
}

// gap is what a step takes beyond its instructions, for each of them.
func (s *timedStep) gap() float64 {
	sum := 0.0
	for _, in := range s.instrs {
		sum += in.seconds
	}
	return max(0, s.seconds-sum) / float64(len(s.instrs))
}

// compile makes the program of a workload, and the step that is to be timed.
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
	s.each(func(in *codegen.Instr, at ir.Coord) {
		s.instrs = append(s.instrs, timedInstr{op: in.Node.Op, name: in.Node.Name, work: price.WorkOf(in, prog.Mesh, at)})
	})
	return s, nil
}

// time runs a workload for about as long as it may.
func (w workload) time(ctx context.Context, budget time.Duration) (*timedStep, error) {
	out, err := w.compile()
	if err != nil {
		return nil, err
	}
	backend, err := cpu.New(cpu.Options{})
	if err != nil {
		return nil, err
	}
	// A rank calls Trace in the order of its instructions, so each has a list to itself.
	spans := make([][]runtime.Span, w.ranks)
	exec, err := runtime.New(out.prog, backend, runtime.Options{Trace: func(s runtime.Span) { spans[s.Rank] = append(spans[s.Rank], s) }})
	if err != nil {
		return nil, err
	}
	defer exec.Close()
	if err := exec.InitParams(out.prog, 1); err != nil {
		return nil, err
	}
	feeds := w.feeds()
	var steps []timedRun
	const warm = 2
	for begin, n := time.Now(), 0; n < warm+6 || time.Since(begin) < budget && n < 2000; n++ {
		for r := range spans {
			spans[r] = spans[r][:0]
		}
		start := time.Now()
		if _, err := exec.Step(ctx, out.prog, feeds); err != nil {
			return nil, err
		}
		if run := (timedRun{time.Since(start), nil}); n >= warm {
			run.spent = out.spent(spans)
			steps = append(steps, run)
		}
	}
	out.average(steps)
	return out, nil
}

// timedRun is one step: what it took and what its instructions did.
type timedRun struct {
	took  time.Duration
	spent []time.Duration
}

// spent returns the time of each instruction in a step: on rank 0, and of a
// collective on the rank that comes last and so does not wait.
func (s *timedStep) spent(spans [][]runtime.Span) []time.Duration {
	all := make([]time.Duration, len(s.instrs))
	for r, of := range spans {
		next := 0 // feeding the inputs comes in between
		for _, span := range of {
			if next == len(all) || span.Op != s.instrs[next].op || span.Name != s.instrs[next].name {
				continue
			}
			if d := span.End - span.Start; r == 0 || s.instrs[next].work.Class == collectiveClass && d < all[next] {
				all[next] = d
			}
			next++
		}
		if next != len(all) {
			panic(fmt.Sprintf("BUG: profile: rank %d ran %d instructions of %d", r, next, len(all)))
		}
	}
	return all
}

// average takes the times from the tenth of the steps that took least.
func (s *timedStep) average(steps []timedRun) {
	slices.SortFunc(steps, func(a, b timedRun) int { return int(a.took - b.took) })
	quiet := steps[:max(1, len(steps)/10)]
	for _, run := range quiet {
		s.seconds += run.took.Seconds() / float64(len(quiet))
		for i, d := range run.spent {
			s.instrs[i].seconds += d.Seconds() / float64(len(quiet))
		}
	}
	s.spread = steps[len(steps)/2].took.Seconds()/s.seconds - 1
}

// each calls f with what rank 0 runs in a step; all ranks run as much.
func (s *timedStep) each(f func(in *codegen.Instr, at ir.Coord)) {
	sched := &s.prog.Schedules[0]
	for _, task := range sched.Tasks {
		for _, in := range s.prog.Stages[sched.Stage].Run(task) {
			if sched.Runs(&in, task) {
				f(&in, s.prog.At(sched, task))
			}
		}
	}
}

// feeds are tokens that mean nothing: the time of a step does not depend on them.
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

// pairs returns what one rank a core and one rank with all cores both ran.
func pairs(steps []*timedStep) []pair {
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
			all = append(all, pair{of.work.Across, float64(of.work.Bytes), in.seconds, of.seconds, 1 / s.seconds})
			next++
		}
	}
	return all
}

// threading returns the share of their rate that cores keep when they compute together:
// the times of kernels by one rank a core over those by one rank with all, of those that
// read what they have near.
func threading(all []pair) float64 {
	var apart, together float64
	for _, p := range all {
		if !p.across {
			apart, together = apart+p.weight*p.apart, together+p.weight*p.together
		}
	}
	if together == 0 {
		return 1
	}
	return min(apart/together, 1)
}

// moved is how many bytes a collective reads and writes for each rank.
func moved(in timedInstr) float64 {
	if in.op == ir.OpReduceScatter {
		return float64(in.work.Bytes) * (1 + 1/float64(in.work.Group.Size))
	}
	return 2 * float64(in.work.Bytes)
}

// unexplained returns the seconds that a step takes beyond what it is priced at, for each
// time that ranks meet in it.
func (s *timedStep) unexplained(c *cost.Cluster) float64 {
	price := cost.NewProgram(c, s.prog.Plan, s.prog.Mesh)
	rest, meetings := s.seconds, 0.0
	s.each(func(in *codegen.Instr, at ir.Coord) {
		t, _ := price.Instr(in, s.prog.Mesh, at)
		rest -= t.Seconds()
	})
	for _, in := range s.instrs {
		if in.work.Class == collectiveClass {
			meetings++
		}
	}
	return max(0, rest) / meetings
}

// samples returns the instructions of a class, or of one op of it, by ranks that have a
// core each, their times without the overhead of an instruction.
func samples(steps []*timedStep, cores int, class string, op ir.Op, overhead float64) []sample {
	var all []sample
	for _, s := range steps {
		if s.ranks != cores {
			continue
		}
		for _, in := range s.instrs {
			if seconds := in.seconds - overhead; in.work.Class == class && (op == ir.OpInvalid || in.op == op) && seconds > 0 && in.seconds > 2e-6 {
				all = append(all, sample{1 / float64(s.ranks), in.work.FLOPs, float64(in.work.Bytes), in.work.Keys, seconds, 1 / s.seconds})
			}
		}
	}
	return all
}

// exchanges returns the collectives of ranks that have a core each.
func exchanges(steps []*timedStep, cores int, overhead float64) []curve.Exchange {
	var all []curve.Exchange
	for _, s := range steps {
		for _, in := range s.instrs {
			if s.ranks != cores || in.work.Class != collectiveClass || in.work.Group.Size < 2 || in.seconds <= overhead {
				continue
			}
			all = append(all, curve.Exchange{Messages: 1, Bytes: moved(in), Seconds: in.seconds - overhead})
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
