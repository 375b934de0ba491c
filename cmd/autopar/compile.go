package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// compiled is a model compiled for a plan.
type compiled struct {
	graph      *ir.Graph // the training step, as traced
	evalGraph  *ir.Graph // the evaluation, as traced
	training   *codegen.Program
	evaluation *codegen.Program // it runs in the arenas of training
}

// verify proves both programs.
func (c *compiled) verify() error {
	if err := codegen.Verify(c.training, c.graph); err != nil {
		return err
	}
	if err := codegen.Verify(c.evaluation, c.evalGraph); err != nil {
		return err
	}
	return codegen.CheckShared(c.evaluation, c.training)
}

// compile makes the programs of a configuration under a plan. It does not prove them: see verify.
func compile(cfg *config.Config, plan *partition.Plan) (*compiled, error) {
	training, evaluation, err := cfg.Steps()
	if err != nil {
		return nil, err
	}
	c := &compiled{graph: training, evalGraph: evaluation}
	if c.training, err = codegen.Compile(training, plan, cfg.Batch.Global, nil); err != nil {
		return nil, err
	}
	c.evaluation, err = codegen.Compile(evaluation, plan, cfg.Batch.Global, c.training)
	return c, err
}

// dumped matches the names of the files that dump writes.
var dumped = regexp.MustCompile(`^(graph\.txt|graph\.json|partitioned\.txt|program-rank\d+\.txt)$`)

// notDumped refuses a directory for dump in which one of some other files would be replaced. flag names the directory in the
// error.
func notDumped(flag, dir string, others ...string) error {
	if dir == "" {
		return nil
	}
	var names []string
	there, _ := os.ReadDir(dir) // links, perhaps, to the other files
	for _, e := range there {
		names = append(names, e.Name())
	}
	for _, other := range others {
		names = append(names, filepath.Base(other))
	}
	for _, name := range names {
		if dumped.MatchString(name) && apart(flag, filepath.Join(dir, name), others...) != nil {
			return usagef("%s %s would have %s, which is another file of this command; name another directory", flag, dir, name)
		}
	}
	return nil
}

// dump writes the result of each stage of the compiler, in its text form: graph.txt and graph.json, partitioned.txt, and
// program-rankN.txt for each rank.
func (c *compiled) dump(dir string) error {
	write := func(name string, text []byte) error { return writeFile(filepath.Join(dir, name), text) }
	asJSON, err := c.graph.MarshalJSON()
	if err != nil {
		return err
	}
	for name, text := range map[string][]byte{
		"graph.txt":       []byte(c.graph.String()),
		"graph.json":      append(asJSON, '\n'),
		"partitioned.txt": []byte(c.training.Graph.String()),
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
