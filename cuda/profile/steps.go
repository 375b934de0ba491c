package profile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/cuda"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/runtime"
)

// workload is the training step of a small model on one rank.
type workload struct{ layers, heads, width, tokens, vocab, batch int }

// workloads are as wide as models in use, with few layers: nanoGPT's shakespeare_char, GPT-2 124M,
// and one with heads of 128 elements. The last one is for GPUs without room for any of these.
func workloads() []workload {
	return []workload{{2, 6, 384, 256, 65, 64}, {2, 12, 768, 1024, 50304, 32}, {1, 16, 2048, 1024, 50304, 16}, {1, 2, 64, 33, 65, 4}}
}

// step is a workload in one element type, measured.
type step struct {
	float   ir.DType
	mesh    ir.Mesh
	price   *cost.Program
	kernels []timedKernel
	seconds float64 // of all kernels
	held    int64   // bytes of the GPU in use besides the arena
}

// timedKernel is one kernel of a step, with its work and measured time.
type timedKernel struct {
	instr   *codegen.Instr
	at      ir.Coord
	work    cost.Work
	seconds float64
}

func (k *timedKernel) name() string { return k.instr.Node.Name }

// priced returns the planner's price in seconds.
func (k *timedKernel) priced(p *cost.Program, s *step) float64 {
	t, _ := p.Instr(k.instr, s.mesh, k.at)
	return t.Seconds()
}

// shape returns the rows and columns of a product's result, and the number of terms of each sum.
func (k *timedKernel) shape() (rows, cols, terms int64) {
	n := k.instr.Node
	x, y := ir.Elems(n.Args[0].Type.Shape), ir.Elems(n.Args[1].Type.Shape)
	z := ir.Elems(n.Results[0].Type.Shape)
	terms = int64(k.work.FLOPs / 2 / float64(z))
	return x / terms, y / terms, terms
}

// measureSteps times the kernels of the workloads that fit in the memory of a GPU, in each type.
func measureSteps(ctx context.Context, system *cuda.System, memory int64, budget time.Duration, note func(string)) ([]*step, error) {
	types := []ir.DType{ir.F32, ir.BF16, ir.F16}
	all := workloads()
	var steps []*step
	for i, w := range all {
		if i == len(all)-1 && len(steps) > 0 {
			break
		}
		if !w.shrink(memory * 7 / 10) {
			continue
		}
		for _, float := range types {
			note(fmt.Sprintf("kernels of a step: %d layers of width %d in %s", w.layers, w.width, float))
			s, err := w.measure(ctx, system, float, budget/time.Duration(len(types)*len(all)))
			if err != nil {
				return nil, fmt.Errorf("profile: %d layers of width %d in %s: %w", w.layers, w.width, float, err)
			}
			steps = append(steps, s)
		}
	}
	if len(steps) == 0 {
		return nil, &cuda.DeviceError{Msg: fmt.Sprintf("%d bytes of memory are too few to train anything in", memory)}
	}
	return steps, nil
}

// shrink halves the batch until the arena fits. It reports whether it does.
func (w *workload) shrink(bytes int64) bool {
	for ; w.batch > 0; w.batch /= 2 {
		if prog, err := w.compile(ir.F32); err == nil && prog.Stages[0].Arena() <= bytes {
			return true
		}
	}
	return false
}

func (w workload) compile(float ir.DType) (*codegen.Program, error) {
	model := gpt.Config{
		NLayer: w.layers, NHead: w.heads, NEmbd: w.width, BlockSize: w.tokens, VocabSize: w.vocab, TieEmbeddings: true,
		Norm: gpt.LayerNorm, Position: gpt.Learned, Activation: gpt.GELU, Float: float,
	}
	g, err := gpt.TrainStep(model, gpt.Optimizer{Beta1: .9, Beta2: .95, Eps: 1e-8, WeightDecay: .1, GradClip: 1}, w.batch, w.tokens)
	if err != nil {
		return nil, err
	}
	plan := &partition.Plan{
		PlanNGPUs: 1, RuntimeNGPUs: 1, DP: 1, TP: 1, MicroBatch: w.batch, Schedule: partition.OneFOneB, Stages: []partition.Stage{{Last: w.layers}},
	}
	return codegen.Compile(g, plan, w.batch, nil)
}

// step lists the kernels of a step.
func (w workload) step(float ir.DType) (*step, *codegen.Program, error) {
	prog, err := w.compile(float)
	if err != nil {
		return nil, nil, err
	}
	sched := &prog.Schedules[0]
	s := &step{float: float, mesh: prog.Mesh, price: cost.NewProgram(&cost.Cluster{Device: cost.Device{Cores: 1}}, prog.Plan, prog.Mesh)}
	for _, task := range sched.Tasks {
		instrs := prog.Stages[sched.Stage].Run(task)
		for i := range instrs {
			work := s.price.WorkOf(instrs[i:i+1], prog.Mesh, sched.Coord)
			if work.Class != "" && sched.Runs(&instrs[i], task) && instrs[i].Node.Op != ir.OpInput {
				s.kernels = append(s.kernels, timedKernel{instr: &instrs[i], at: sched.Coord, work: work})
			}
		}
	}
	return s, prog, nil
}

// measure times every kernel of a step by itself.
func (w workload) measure(ctx context.Context, system *cuda.System, float ir.DType, budget time.Duration) (_ *step, err error) {
	s, prog, err := w.step(float)
	if err != nil {
		return nil, err
	}
	clock := &clock{Backend: cuda.New(system, cuda.Options{Eager: true, GPUs: []int{0}}), turn: budget / time.Duration(turns*len(s.kernels))}
	exec, err := runtime.New(prog, clock, runtime.Options{})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, exec.Close()) }()
	if err := exec.InitParams(prog, 1); err != nil {
		return nil, err
	}
	feeds := w.feeds()
	if _, err := exec.Step(ctx, prog, feeds); err != nil { // so that kernels have their memory and values are finite
		return nil, err
	}
	clock.seconds = map[*ir.Node]float64{}
	if _, err := exec.Step(ctx, prog, feeds); err != nil {
		return nil, err
	}
	for i := range s.kernels {
		k := &s.kernels[i]
		if k.seconds = clock.seconds[k.instr.Node]; k.seconds == 0 {
			return nil, fmt.Errorf("%s %s took no time", k.instr.Node.Op, k.name())
		}
		s.seconds += k.seconds
	}
	s.held, err = clock.device.Held()
	return s, err
}

// feeds returns arbitrary tokens: the time of a step does not depend on them.
func (w workload) feeds() runtime.Feeds {
	ids, positions := make([]int32, w.batch*w.tokens), make([]int32, w.tokens)
	for i := range ids {
		ids[i] = int32(i * 31 % w.vocab)
	}
	for i := range positions {
		positions[i] = int32(i)
	}
	return runtime.Feeds{
		"ids": runtime.Ints(ids...), "targets": runtime.Ints(ids...), "positions": runtime.Ints(positions...), "seed": runtime.Ints(1),
		"step": runtime.Ints(1), "lr": runtime.Floats(1e-4), "loss_weight": runtime.Floats(1 / float32(len(ids))),
	}
}

// clock is a backend of one rank that times what it launches, once seconds is set. It repeats each
// launch, so the values of that step mean nothing.
type clock struct {
	*cuda.Backend
	device  *cuda.Device
	turn    time.Duration
	seconds map[*ir.Node]float64 // the least time of each node
}

// Open opens the rank.
func (c *clock) Open(world runtime.World) ([]runtime.Device, error) {
	devices, err := c.Backend.Open(world)
	if err != nil {
		return nil, err
	}
	c.device = devices[0].(*cuda.Device)
	return []runtime.Device{&clockedDevice{c.device, c}}, nil
}

type clockedDevice struct {
	*cuda.Device
	clock *clock
}

// Fuse does nothing, because each kernel is timed by itself.
func (d *clockedDevice) Fuse([]*runtime.Kernel, map[*ir.Value]int) error { return nil }

// Launch runs a kernel, and times it.
func (d *clockedDevice) Launch(k *runtime.Kernel) error {
	launch := func() error { return d.Device.Launch(k) }
	if d.clock.seconds == nil {
		return launch()
	}
	n, err := repeats(d.clock.turn, func(n int) (float64, error) { return d.Time(n, launch) })
	if err != nil {
		return err
	}
	d.clock.seconds[k.Node], err = d.TimeGraph(n, launch)
	return err
}

// turns is how many times something is timed. Each time it is repeated to fill a turn.
const turns = 3

// repeats returns how often to repeat work to fill a turn. It also warms up.
func repeats(turn time.Duration, timed func(n int) (float64, error)) (int, error) {
	if _, err := timed(1); err != nil { // the first run loads code
		return 0, err
	}
	seconds, err := timed(2)
	return max(1, min(int(turn.Seconds()/max(seconds, 1e-6)), 200)), err
}

// least returns the least time of a few turns.
func least(turn time.Duration, timed func(n int) (float64, error)) (seconds float64, err error) {
	n, err := repeats(turn, timed)
	if err != nil {
		return 0, err
	}
	for i := range turns {
		t, err := timed(n)
		if err != nil {
			return 0, err
		}
		if i == 0 || t < seconds {
			seconds = t
		}
	}
	return seconds, nil
}
