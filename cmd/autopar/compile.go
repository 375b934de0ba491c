package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
)

// compiled is a model under a plan, with what each stage of the compiler left.
type compiled struct {
	graph       *ir.Graph // the training step, as traced
	partitioned *ir.Graph
	training    *codegen.Program
	evaluation  *codegen.Program // in the arenas of training
}

// traceSteps traces the training step of a configuration and its evaluation.
func traceSteps(cfg *config.Config) (training, evaluation *ir.Graph, err error) {
	o, B, T := cfg.Optimizer, cfg.Batch.Global, cfg.Model.BlockSize
	training, err = gpt.TrainStep(cfg.Model, gpt.Optimizer{
		Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps, WeightDecay: o.WeightDecay, GradClip: o.GradClip,
	}, B, T)
	if err != nil {
		return nil, nil, err
	}
	evaluation, err = gpt.EvalStep(cfg.Model, B, T)
	return training, evaluation, err
}

// compile makes the programs of a configuration under a plan. It does not check
// them.
func compile(cfg *config.Config, plan *partition.Plan) (*compiled, error) {
	B := cfg.Batch.Global
	training, evaluation, err := traceSteps(cfg)
	if err != nil {
		return nil, err
	}
	c := &compiled{graph: training}
	if c.partitioned, err = partition.Apply(training, plan, B); err != nil {
		return nil, err
	}
	if c.training, err = codegen.Generate(c.partitioned, plan, B, nil); err != nil {
		return nil, err
	}
	if evaluation, err = partition.Apply(evaluation, plan, B); err != nil {
		return nil, err
	}
	c.evaluation, err = codegen.Generate(evaluation, plan, B, c.training)
	return c, err
}

// dump writes what each stage of the compiler makes, in its text form:
// graph.txt and graph.json, partitioned.txt, and program-rankN.txt for each rank.
func (c *compiled) dump(dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	write := func(name string, text []byte) error { return os.WriteFile(filepath.Join(dir, name), text, 0o666) }
	asJSON, err := c.graph.MarshalJSON()
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{
		"graph.txt":       []byte(c.graph.String()),
		"graph.json":      append(asJSON, '\n'),
		"partitioned.txt": []byte(c.partitioned.String()),
	} {
		if err := write(name, text); err != nil {
			return err
		}
	}
	for rank := range c.training.Schedules {
		var text bytes.Buffer
		if err := c.training.Fprint(&text, rank); err != nil {
			return err
		}
		if err := write(fmt.Sprintf("program-rank%d.txt", rank), text.Bytes()); err != nil {
			return err
		}
	}
	return nil
}
