package explain

import (
	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner"
)

// New returns the full report of a plan.json: it makes the program again,
// predicts its step on the plan's cluster, and compares it with the plans that
// lost to it. It fails with a *planner.DocumentError when the plan was made for
// another model.
func New(doc *planner.Document) (*Report, error) {
	g, err := trace(doc.Config)
	if err != nil {
		return nil, err
	}
	if err := doc.Check(g); err != nil {
		return nil, err
	}
	prog, err := generate(g, doc.Plan, doc.Config.Batch.Global)
	if err != nil {
		return nil, err
	}
	r, err := Of(prog, doc.Config)
	if err != nil {
		return nil, err
	}
	if err := r.Predict(doc.Cluster); err != nil {
		return nil, err
	}
	return r, r.Compare(doc.Search.Alternatives)
}

func trace(cfg *config.Config) (*ir.Graph, error) {
	o := cfg.Optimizer
	return gpt.TrainStep(cfg.Model, gpt.Optimizer{
		Beta1: o.Beta1, Beta2: o.Beta2, Eps: o.Eps, WeightDecay: o.WeightDecay, GradClip: o.GradClip,
	}, cfg.Batch.Global, cfg.Model.BlockSize)
}

func generate(g *ir.Graph, plan *partition.Plan, batch int) (*codegen.Program, error) {
	g, err := partition.Apply(g, plan, batch)
	if err != nil {
		return nil, err
	}
	return codegen.Generate(g, plan, batch, nil)
}
