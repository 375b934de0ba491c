package explain

import (
	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/planner"
)

// New returns the full report of a plan.json: it makes the program again,
// predicts its step on the plan's cluster, and compares it with the plans that
// lost to it. It fails with a *planner.DocumentError when the plan was made for
// another model.
func New(doc *planner.Document) (*Report, error) {
	g, err := doc.Config.TrainStep()
	if err != nil {
		return nil, err
	}
	if err := doc.Check(g); err != nil {
		return nil, err
	}
	prog, err := codegen.Compile(g, doc.Plan, doc.Config.Batch.Global, nil)
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
