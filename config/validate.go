package config

import (
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"

	"github.com/autopar/autopar/config/strictyaml"
	"github.com/autopar/autopar/models/gpt"
)

// Validate reports, as an *Error, the first value that is out of range, contradicts another, or asks for what this version
// cannot do yet. It is separate from Load because sizes and counts can be told of models that cannot be trained.
func (c *Config) Validate() error {
	if err := c.Model.Validate(); err != nil {
		var bad *gpt.ConfigError
		if !errors.As(err, &bad) {
			return &Error{Key: "model", Msg: err.Error()}
		}
		return c.refuse("model."+bad.Key, "%s", bad.Msg)
	}
	if err := c.validateWords(); err != nil {
		return err
	}
	for _, check := range []func() error{c.validateRun, c.validatePrecision, c.validateOptimizer, c.validateParallel, c.validateReproducible} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// refuse makes the error for a key, pointing at where its value was written.
func (c *Config) refuse(name, format string, args ...any) error {
	at, written := c.Written(name)
	if !written {
		at.File = c.file
	}
	return at.Refuse(name, format, args...)
}

// Written is where a section.key, or a part of it as errors name it, was written, if it was.
func (c *Config) Written(name string) (at strictyaml.Origin, written bool) {
	at, written = c.origins[name]
	return at, written
}

// validateWords holds text keys of a Config built in Go to what the reader accepts.
func (c *Config) validateWords() error {
	for _, k := range allKeys() {
		text, isText := k.target(c).(*string)
		if !isText || k.section == "model" {
			continue
		}
		if *text == "" {
			return c.refuse(k.String(), "is empty")
		}
		if k.words != nil && !slices.Contains(k.words, *text) {
			return c.refuse(k.String(), "is %q, must be one of %v", *text, k.words)
		}
	}
	return nil
}

// atLeast checks integers against their smallest legal value.
func (c *Config) atLeast(least int, values map[string]int) error {
	for _, k := range allKeys() { // in file order
		if v, listed := values[k.String()]; listed && v < least {
			return c.refuse(k.String(), "is %d, must be at least %d", v, least)
		}
	}
	return nil
}

// maxBatch is some hundred times the largest batch there is, in sequences. Pipelines are simulated by the micro-batch.
const maxBatch = 1 << 24

func (c *Config) validateRun() error {
	err := c.atLeast(1, map[string]int{
		"batch.global":        c.Batch.Global,
		"train.eval_interval": c.Train.EvalInterval,
		"train.eval_iters":    c.Train.EvalIters,
		"train.log_interval":  c.Train.LogInterval,
	})
	if err != nil {
		return err
	}
	err = c.atLeast(0, map[string]int{
		"batch.micro":               int(c.Batch.Micro),
		"train.max_iters":           c.Train.MaxIters,
		"train.checkpoint_interval": c.Train.CheckpointInterval,
		"train.seed":                c.Train.Seed,
	})
	if err != nil {
		return err
	}
	if strings.HasPrefix(c.Train.OutDir, "-") { // launch, and jobs that export writes, give it to run
		return c.refuse("train.out_dir", "is %q, which other commands take for a flag; write ./%[1]s", c.Train.OutDir)
	}
	// Steps and seeds are 32-bit integers of the graph; max_iters+1 updates are made. Batches of an evaluation are drawn by number, too.
	for _, n := range []struct {
		name        string
		value, most int
	}{{"train.max_iters", c.Train.MaxIters, math.MaxInt32 - 1}, {"train.eval_iters", c.Train.EvalIters, math.MaxInt32}, {"train.seed", c.Train.Seed, math.MaxInt32}} {
		if n.value > n.most {
			return c.refuse(n.name, "is %d, must be at most %d", n.value, n.most)
		}
	}
	if c.Batch.Global > maxBatch {
		return c.refuse("batch.global", "is %d sequences, must be at most %d", c.Batch.Global, maxBatch)
	}
	if int(c.Batch.Micro) > c.Batch.Global {
		return c.refuse("batch.micro", "%d is more than batch.global %d", c.Batch.Micro, c.Batch.Global)
	}
	return nil
}

// validatePrecision checks that what is kept in float32 suits the element type.
func (c *Config) validatePrecision() error {
	if !c.Train.MasterWeights && c.Train.DType != "bfloat16" {
		return c.refuse("train.master_weights", "is false, which needs dtype bfloat16; dtype is %s", c.Train.DType)
	}
	return nil
}

// smallestNormal is the smallest float32 that arithmetic does not take for 0: under a smaller eps what has no gradient, such
// as the embedding of a token that never occurs, would be moved by 0/0.
const smallestNormal = 0x1p-126

func (c *Config) validateOptimizer() error {
	o := c.Optimizer
	err := c.atLeast(0, map[string]int{
		"optimizer.warmup_iters":   o.WarmupIters,
		"optimizer.lr_decay_iters": o.LRDecayIters,
	})
	if err != nil {
		return err
	}
	// Conditions are written to be false for NaN.
	for _, check := range []struct {
		name  string
		value float64
		legal bool
		want  string
	}{
		{"learning_rate", o.LearningRate, o.LearningRate >= 0 && o.LearningRate <= math.MaxFloat32, "at least 0, and a float32"},
		{"min_lr", o.MinLR, o.MinLR >= 0, "at least 0"},
		{"weight_decay", o.WeightDecay, o.WeightDecay >= 0 && o.WeightDecay <= math.MaxFloat32, "at least 0, and a float32"},
		{"beta1", o.Beta1, o.Beta1 >= 0 && float32(o.Beta1) < 1, "in [0, 1), also as a float32"},
		{"beta2", o.Beta2, o.Beta2 >= 0 && float32(o.Beta2) < 1, "in [0, 1), also as a float32"},
		{"eps", o.Eps, o.Eps >= smallestNormal && o.Eps <= math.MaxFloat32, "a normal float32 of more than 0"},
		{"grad_clip", o.GradClip, o.GradClip >= 0, "at least 0"},
		{"step_factor", o.StepFactor, o.StepFactor > 0 && o.StepFactor <= 1, "in (0, 1]"},
	} {
		if !check.legal {
			return c.refuse("optimizer."+check.name, "is %v, must be %s", check.value, check.want)
		}
	}
	if o.StepIters < 1 {
		return c.refuse("optimizer.step_iters", "is %d, must be at least 1", o.StepIters)
	}
	if o.DecayLR && o.Schedule != Constant && o.MinLR > o.LearningRate {
		return c.refuse("optimizer.min_lr", "%v is more than learning_rate %v", o.MinLR, o.LearningRate)
	}
	return nil
}

func (c *Config) validateParallel() error {
	p := c.Parallel
	err := c.atLeast(0, map[string]int{
		"parallel.plan_ngpus":    int(p.PlanNGPUs),
		"parallel.runtime_ngpus": int(p.RuntimeNGPUs),
	})
	if err != nil {
		return err
	}
	if p.PlanNGPUs != Auto && p.RuntimeNGPUs%p.PlanNGPUs != 0 {
		by := ""
		if at, written := c.Written("parallel.plan_ngpus"); written && at.Line == 0 { // a flag, whereas the other may be the file's
			by = " (by " + at.File + ")"
		}
		return c.refuse("parallel.runtime_ngpus", "%d is not a multiple of plan_ngpus %d%s", p.RuntimeNGPUs, p.PlanNGPUs, by)
	}
	if p.MemoryLimit < 0 {
		return c.refuse("parallel.memory_limit", "is %d bytes, must be at least 0", int64(p.MemoryLimit))
	}
	for i, pin := range p.Pins {
		if pin.Match == "" || len(pin.Placement) == 0 {
			return c.refuse("parallel.pin", "[%d] needs both match and placement", i)
		}
		if _, err := regexp.Compile(pin.Match); err != nil {
			return c.refuse(fmt.Sprintf("parallel.pin[%d].match", i), "%v", err)
		}
		if j := slices.Index(pin.Placement, ""); j >= 0 {
			return c.refuse(fmt.Sprintf("parallel.pin[%d].placement", i), "[%d] is empty, wants an axis name or _", j)
		}
	}
	return nil
}

// leastReproducible is the shortest sequence whose matrix products take the same kernel however many sequences there are.
const leastReproducible = 4

// validateReproducible refuses what train.reproducible cannot keep its promise for.
func (c *Config) validateReproducible() error {
	switch {
	case !c.Train.Reproducible:
	case c.Train.DType != "float32":
		return c.refuse("train.reproducible", "holds for train.dtype float32 only, not %s", c.Train.DType)
	case c.Model.BlockSize < leastReproducible:
		return c.refuse("train.reproducible", "needs model.block_size of at least %d, not %d: shorter sequences take other kernels alone than together",
			leastReproducible, c.Model.BlockSize)
	}
	return nil
}
