package config

import (
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/exact"
	"github.com/autopar/autopar/models/gpt"
)

// Steps traces the training step and the evaluation.
func (c *Config) Steps() (training, evaluation *ir.Graph, err error) {
	if training, err = c.TrainStep(); err != nil {
		return nil, nil, err
	}
	evaluation, err = c.EvalStep()
	return training, evaluation, err
}

// TrainStep traces the training step of the model, optimizer and global batch.
func (c *Config) TrainStep() (*ir.Graph, error) {
	o := c.Optimizer
	return c.exact(gpt.TrainStep(c.model(), gpt.Optimizer{
		Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps, WeightDecay: o.WeightDecay, GradClip: o.GradClip,
		NoMaster: !c.Train.MasterWeights,
	}, c.Batch.Global, c.Model.BlockSize))
}

// DType is the element type in which the run computes.
func (c *Config) DType() ir.DType {
	switch c.Train.DType {
	case "bfloat16":
		return ir.BF16
	case "float16":
		return ir.F16
	}
	return ir.F32
}

// model is the architecture in the run's element type.
func (c *Config) model() gpt.Config {
	m := c.Model
	m.Float = c.DType()
	return m
}

// EvalStep traces the loss of a global batch without dropout.
func (c *Config) EvalStep() (*ir.Graph, error) {
	return c.exact(gpt.EvalStep(c.model(), c.Batch.Global, c.Model.BlockSize))
}

// exact makes a traced step independent of the plan where train.reproducible asks
// for that.
func (c *Config) exact(g *ir.Graph, err error) (*ir.Graph, error) {
	if err != nil || !c.Train.Reproducible {
		return g, err
	}
	return exact.Sums(g)
}
