package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
)

// recostArgs are the flags of explain that price the plan for another cluster or configuration.
type recostArgs struct {
	Cluster string   `placeholder:"NAME|FILE" help:"Price the plan on this cluster, named as for autopar plan, beside the one it was made for."`
	Set     []string `sep:"none" placeholder:"SECTION.KEY=VALUE" help:"Price the plan with this setting changed, such as batch.global or model.block_size. May be repeated."`
}

func (c *recostArgs) given() bool { return c.Cluster != "" || len(c.Set) > 0 }

// recost prices the plan as the flags say and prints it beside what it was made for.
func (c *explainCmd) recost(con *console) error {
	if c.Format != "text" && c.Format != "json" {
		return usagef("explain: --cluster and --set are printed as text or json, not %s", c.Format)
	}
	if c.Rank != nil || c.Why != "" {
		return usagef("explain: --cluster and --set cannot be combined with --rank and --why")
	}
	doc, err := c.loadPlan()
	if err != nil {
		return err
	}
	cluster := doc.Cluster
	if c.Cluster != "" {
		var files []string
		if cluster, files, err = cost.LoadFrom(c.Cluster); err != nil {
			return err
		}
		if err := apart("explain: -o", c.Out, files...); err != nil {
			return err
		}
	}
	cfg, err := config.Parse("", doc.Config.Marshal(), c.Set)
	if err != nil {
		return err
	}
	was, now := doc.Config.Parallel, cfg.Parallel
	was.MemoryLimit = now.MemoryLimit
	if !reflect.DeepEqual(was, now) || cfg.Batch.Micro != doc.Config.Batch.Micro {
		return usagef("explain: --set: a plan is priced as it is: parallel.plan_ngpus, runtime_ngpus and pin, and batch.micro, are for autopar plan")
	}
	r, err := explain.NewRecost(doc, cluster, cfg)
	if key, ok := errors.AsType[*config.Error](err); ok && key.File == "" { // a key of the plan's configuration contradicts what was set
		err = &planner.DocumentError{Key: "config." + key.Key, Msg: key.Msg}
	}
	if err != nil {
		if is[*planner.DocumentError](err) {
			return c.blame(doc, err)
		}
		return err
	}
	if r.Was.Cluster == r.Now.Cluster && !sameFigures(doc.Cluster, cluster) { // such as a built-in one that was copied and edited
		r.Now.Cluster += " of " + c.Cluster
	}
	var text bytes.Buffer
	if c.Format == "json" {
		err = r.JSON(&text)
	} else {
		err = r.Text(&text)
	}
	if err != nil {
		return err
	}
	return con.put(c.Out, text.Bytes())
}

// sameFigures reports whether a plan file would say the same of two clusters.
func sameFigures(a, b *cost.Cluster) bool {
	x, bad := json.Marshal(a)
	y, err := json.Marshal(b)
	return errors.Join(bad, err) == nil && bytes.Equal(x, y)
}
