// Package numeric compares the programs of a plan, at reduced sizes, with the float64 interpreter. The same training steps run
// twice: as the ranks' programs on a real backend, and as the traced graph in ir/interp, which defines every op.
// `autopar verify --numeric` calls [Shrink] and then [Run].
//
// It catches what no check of the instructions can: a kernel or collective that does not compute what its instruction says.
// Examples are attention without the causal mask, a dropout mask drawn by a rank's own positions, AdamW with a wrong power in
// its bias correction, or a shard's last row left out.
package numeric

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/interp"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu"
)

// Steps is the number of training steps that are compared. The second one starts from the weights and moments that the first
// one has written.
const Steps = 2

// Tolerances of errors in float32, relative to the largest element of a tensor. One operation rounds by 6e-8 at most, but the
// gradient of a bias is a sum over all tokens, in which much cancels.
const (
	OutputTolerance = 1e-5 // of loss and gradient norm
	TensorTolerance = 1e-4 // of weights and moments
)

const (
	seed         = 1337
	learningRate = 1e-2
)

// Options of a run. The zero value runs on the CPU.
type Options struct {
	// Backend runs the ranks. It must not have been opened: the run opens it.
	Backend runtime.Backend
}

// Report says how far the ranks' results are from the interpreter's.
type Report struct {
	Ranks   int     `json:"ranks"`
	Steps   int     `json:"steps"`
	Classes []Class `json:"classes"`
}

// Class is a kind of tensor and its worst error.
type Class struct {
	Name    string  `json:"name"`
	Tensors int     `json:"tensors"` // over all steps
	Error   float64 `json:"error"`   // largest |difference| over largest |value| of a tensor
	Worst   string  `json:"worst"`   // the tensor with that error, and after which step
}

// The classes of tensors, as indices into [Report.Classes].
const (
	loss = iota
	gradNorm
	weights
	firstMoments
	secondMoments
)

// MismatchError is a tensor whose error exceeds the tolerance.
type MismatchError struct {
	Class, Tensor  string
	Off, Tolerance float64 // relative to the largest element
}

func (e *MismatchError) Error() string {
	return fmt.Sprintf("numeric: %s: %s is off by %.2g of its largest element, tolerance %.0e", e.Class, e.Tensor, e.Off, e.Tolerance)
}

// Run trains the model of a configuration under a plan for [Steps] steps, on random tokens with every tenth target ignored. It
// compares loss, gradient norm, weights and moments after every step. If some of them differ, the error is the first
// [MismatchError], and the report is complete nevertheless.
func Run(ctx context.Context, cfg *config.Config, plan *partition.Plan, opts Options) (*Report, error) {
	traced, err := cfg.TrainStep()
	if err != nil {
		return nil, err
	}
	prog, err := codegen.Compile(traced, plan, cfg.Batch.Global, nil)
	if err != nil {
		return nil, err
	}
	if opts.Backend == nil {
		if opts.Backend, err = cpu.New(cpu.Options{}); err != nil {
			return nil, err
		}
	}
	exec, err := runtime.New(prog, opts.Backend, runtime.Options{})
	if err != nil {
		return nil, err
	}
	c := comparison{cfg: cfg, traced: traced, prog: prog, exec: exec, report: &Report{Ranks: len(prog.Schedules), Steps: Steps}}
	for _, name := range []string{"loss", "gradient norm", "weights", "first moments", "second moments"} {
		c.report.Classes = append(c.report.Classes, Class{Name: name})
	}
	err = c.run(ctx)
	return c.report, errors.Join(err, exec.Close())
}

// comparison is the state of a [Run].
type comparison struct {
	cfg    *config.Config
	traced *ir.Graph
	prog   *codegen.Program
	exec   *runtime.Executor
	report *Report
	first  *MismatchError // nil as long as all is within the tolerances
}

func (c *comparison) run(ctx context.Context) error {
	if err := c.exec.InitParams(c.prog, seed); err != nil {
		return err
	}
	state := map[string]interp.Tensor{}
	for _, p := range c.traced.Params() {
		state[p.Name()] = interp.InitParam(p.Name(), p.Def.Attr.(ir.ParamAttr), p.Type, seed)
	}
	classes := c.classes()
	for step := range Steps {
		fed, feeds := c.feeds(step)
		got, err := c.exec.Step(ctx, c.prog, feeds)
		if err != nil {
			return err
		}
		maps.Copy(state, fed)
		want, err := interp.Run(c.traced, state, interp.Options{})
		if err != nil {
			return err
		}
		state = want.State
		for i, name := range []string{loss: "loss", gradNorm: "grad_norm"} {
			c.compare(i, fmt.Sprintf("%s of step %d", name, step), []float32{got[name]}, want.Outputs[name].F)
		}
		held, err := c.parameters()
		if err != nil {
			return err
		}
		for _, p := range c.traced.Params() {
			name := p.Name()
			c.compare(classes[name], fmt.Sprintf("%s after step %d", name, step), held[name], state[name].F)
		}
	}
	if c.first != nil {
		return c.first
	}
	return nil
}

// classes returns the class of every parameter.
func (c *comparison) classes() map[string]int {
	of := map[string]int{}
	for _, p := range c.traced.Params() {
		of[p.Name()] = weights // also frozen ones, which AdamW does not update
	}
	for _, n := range c.traced.Nodes {
		if n.Op == ir.OpAdamW {
			of[n.Args[0].Name()], of[n.Args[1].Name()], of[n.Args[2].Name()] = weights, firstMoments, secondMoments
		}
	}
	return of
}

// compare records the error of a tensor, and the first error that exceeds the tolerance. The first one is closest to the
// cause: the loss is compared before the gradient norm, and this before what the update writes.
func (c *comparison) compare(class int, name string, got []float32, want []float64) {
	largest, worst, at := 0.0, 0.0, 0
	for i, w := range want {
		largest = max(largest, math.Abs(w))
		d := math.Abs(float64(got[i]) - w)
		if d > worst || math.IsNaN(d) {
			worst, at = d, i
		}
	}
	if worst > 0 {
		worst /= largest // infinite if the interpreter's tensor is all zero
	}
	k := &c.report.Classes[class]
	k.Tensors++
	if worst > k.Error || math.IsNaN(worst) || k.Worst == "" {
		k.Error, k.Worst = worst, name
	}
	tolerance := TensorTolerance
	if class <= gradNorm {
		tolerance = OutputTolerance
	}
	if !(worst <= tolerance) && c.first == nil {
		if len(want) > 1 {
			name = fmt.Sprintf("%s, element %d: %v, want %v,", name, at, got[at], want[at])
		}
		c.first = &MismatchError{k.Name, name, worst, tolerance}
	}
}

// feeds makes the inputs of a step, for the interpreter and for the ranks.
func (c *comparison) feeds(step int) (map[string]interp.Tensor, runtime.Feeds) {
	rng := rand.New(rand.NewPCG(seed, uint64(step)))
	m := &c.cfg.Model
	n := c.cfg.Batch.Global * m.BlockSize
	ids, targets, positions := make([]int32, n), make([]int32, n), make([]int32, m.BlockSize)
	counted := 0
	for i := range ids {
		ids[i], targets[i] = int32(rng.IntN(m.VocabSize)), int32(rng.IntN(m.VocabSize))
		if i%10 == 9 {
			targets[i] = -1
		} else {
			counted++
		}
	}
	for i := range positions {
		positions[i] = int32(i)
	}
	ints := map[string][]int32{"ids": ids, "targets": targets, "positions": positions, "seed": {seed}, "step": {int32(step)}}
	floats := map[string]float32{"lr": learningRate, "loss_weight": 1 / float32(counted)}
	reads := map[string]bool{}
	for _, st := range c.prog.Stages {
		for name := range st.Inputs {
			reads[name] = true
		}
	}
	fed, feeds := map[string]interp.Tensor{}, runtime.Feeds{}
	for _, v := range c.traced.Inputs() {
		name := v.Name()
		if x, ok := ints[name]; ok {
			fed[name] = interp.Ints(x, v.Type.Shape...)
			feeds[name] = runtime.Ints(x...)
		} else {
			fed[name] = interp.Scalar(float64(floats[name]))
			feeds[name] = runtime.Floats(floats[name])
		}
		if !reads[name] {
			delete(feeds, name)
		}
	}
	return fed, feeds
}

// parameters assembles weights and moments from the ranks' shards. It fails if copies of an element differ in their bits, or
// if an element is on no rank.
func (c *comparison) parameters() (map[string][]float32, error) {
	whole, holder := map[string][]float32{}, map[string][]int{}
	for _, p := range c.traced.Params() {
		n := p.Type.Elems()
		whole[p.Name()], holder[p.Name()] = make([]float32, n), slices.Repeat([]int{-1}, int(n))
	}
	for r := range c.exec.Ranks() {
		for _, s := range runtime.Shards(c.prog, r) {
			local := make([]byte, s.Bytes())
			if err := c.exec.ReadShard(s, local); err != nil {
				return nil, err
			}
			values, from := whole[s.Name], holder[s.Name]
			for i := range int(s.Slab.Elems()) {
				x := math.Float32frombits(binary.NativeEndian.Uint32(local[4*i:]))
				at := s.Slab.GlobalIndex(i)
				if from[at] >= 0 && math.Float32bits(x) != math.Float32bits(values[at]) {
					return nil, fmt.Errorf("numeric: %s, element %d: is %v on rank %d and %v on rank %d", s.Name, at, values[at], from[at], x, r)
				}
				values[at], from[at] = x, r
			}
		}
	}
	for _, p := range c.traced.Params() {
		if at := slices.Index(holder[p.Name()], -1); at >= 0 {
			return nil, fmt.Errorf("numeric: %s, element %d: is on no rank", p.Name(), at)
		}
	}
	return whole, nil
}
