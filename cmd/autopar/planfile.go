package main

import (
	"errors"

	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner"
)

// planArg is the argument of a command that reads a plan.
type planArg struct {
	Plan string `arg:"" name:"plan.json" help:"Plan, as autopar plan writes it."`
}

// loadPlan reads the plan, and checks that its hash is that of its model and that its placements apply to the model. Every
// error names the file.
func (a planArg) loadPlan() (*planner.Document, error) {
	doc, err := planner.ReadDocument(a.Plan)
	if err != nil {
		return nil, err
	}
	training, evaluation, err := doc.Config.Steps()
	if err != nil {
		return nil, err
	}
	if err := doc.Check(training); err != nil {
		return nil, a.blame(doc, err)
	}
	parts, err := partition.Apply(training, doc.Plan, doc.Config.Batch.Global)
	if err == nil {
		err = doc.Plan.CheckPlacements(training, parts)
	}
	if err == nil {
		_, err = partition.Apply(evaluation, doc.Plan, doc.Config.Batch.Global)
	}
	if err != nil {
		return nil, a.blame(doc, err)
	}
	return doc, nil
}

// blame makes an error about a plan name the file, the line and the key.
func (a planArg) blame(doc *planner.Document, err error) error {
	at := &planner.DocumentError{Key: "plan.placements", Err: err}
	var plan *partition.PlanError
	if !errors.As(err, &at) && errors.As(err, &plan) {
		at = &planner.DocumentError{Key: "plan." + plan.Key, Msg: plan.Msg}
	}
	at.File, at.Line = a.Plan, doc.Line(at.Key)
	return at
}

// misplaced makes an error about a plan that cannot run on a cluster name the file, the line and the key. It returns other errors
// as they are.
func (a planArg) misplaced(doc *planner.Document, err error) error {
	if is[*partition.PlanError](err) {
		return a.blame(doc, err)
	}
	return err
}
