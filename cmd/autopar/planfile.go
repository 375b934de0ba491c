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
		return nil, a.blame(err)
	}
	parts, err := partition.Apply(training, doc.Plan, doc.Config.Batch.Global)
	if err == nil {
		err = doc.Plan.CheckPlacements(training, parts)
	}
	if err == nil {
		_, err = partition.Apply(evaluation, doc.Plan, doc.Config.Batch.Global)
	}
	if err != nil {
		return nil, a.blame(err)
	}
	return doc, nil
}

// blame makes an error about a plan name the file and the key.
func (a planArg) blame(err error) error {
	var document *planner.DocumentError
	if errors.As(err, &document) {
		document.File = a.Plan
		return document
	}
	var plan *partition.PlanError
	if errors.As(err, &plan) {
		return &planner.DocumentError{File: a.Plan, Key: "plan." + plan.Key, Msg: plan.Msg}
	}
	return &planner.DocumentError{File: a.Plan, Key: "plan.placements", Err: err}
}

// misplaced makes an error about a plan that cannot run on a cluster name the file and the key. It returns other errors as they
// are.
func (a planArg) misplaced(err error) error {
	if is[*partition.PlanError](err) {
		return a.blame(err)
	}
	return err
}
