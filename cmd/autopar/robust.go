package main

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
)

// robustAlternatives is the least number of alternatives of the search that are compared.
const robustAlternatives = 7

// robust finds the plan with the least worst-case regret among the fastest plan, its alternatives, and the best plan of every
// policy. That takes four searches. If the result is not the fastest plan, the fastest is the first of its alternatives.
func robust(cfg *config.Config, cluster *cost.Cluster, o planner.Options, samples int, seed int64) (*planner.Document, error) {
	training, evaluation, err := cfg.Steps()
	if err != nil {
		return nil, err
	}
	show := o.TopK
	o.Eval, o.TopK = evaluation, max(o.TopK, robustAlternatives)
	found, err := planner.Search(training, cfg.Batch.Global, cluster, o)
	if err != nil {
		return nil, err
	}
	all := append([]planner.Alternative{{Plan: found.Plan, Prediction: found.Prediction}}, found.Alternatives...)
	searched := len(all) // then come the best of policies
	if o.Policy == "autodist" || o.Policy == planner.AutoDist {
		for _, policy := range []planner.Policy{planner.DP, planner.FSDP, planner.Megatron} {
			o.Policy, o.TopK = policy, 0
			best, err := planner.Search(training, cfg.Batch.Global, cluster, o)
			switch {
			case is[*planner.InfeasibleError](err), is[*planner.OptionError](err): // has no plan here
			case err != nil:
				return nil, err
			case !slices.ContainsFunc(all, func(a planner.Alternative) bool { return reflect.DeepEqual(a.Plan, best.Plan) }):
				all = append(all, planner.Alternative{Plan: best.Plan, Prediction: best.Prediction})
			}
		}
	}
	var plans []*partition.Plan
	for _, a := range all {
		plans = append(plans, a.Plan)
	}
	r, err := planner.Robust(training, cfg.Batch.Global, cluster, plans, samples, seed)
	if err != nil {
		return nil, err
	}
	for i := range r.Contenders {
		r.Contenders[i].Name = explain.PlanText(plans[i])
	}
	chosen := all[r.Least]
	found.Stats.Optimal = found.Stats.Optimal && r.Least == 0
	found.Plan, found.Prediction = chosen.Plan, chosen.Prediction
	if all = all[:searched]; r.Least < searched {
		all = slices.Delete(all, r.Least, r.Least+1)
	}
	found.Alternatives = all[:min(len(all), max(show, min(r.Least, 1)))]
	doc := planner.NewDocument(cfg, training, cluster, found)
	doc.Search.Robust = r
	return doc, nil
}

// printRobust prints the regrets of all plans that were compared.
func printRobust(con *console, doc *planner.Document) {
	r := doc.Search.Robust
	fastest, chosen := r.Contenders[0], r.Contenders[r.Least]
	share := func(n int) string { return fmt.Sprintf("%.0f %%", 100*float64(n)/float64(r.Samples)) }
	percent := func(x float64) string { return fmt.Sprintf("%.2f %%", 100*x) }
	con.heading("robust: the fastest of %s stays the fastest in %s of %d clusters drawn with seed %d", explain.Count(len(r.Contenders), "plan"), share(fastest.Best), r.Samples, r.Seed)
	if r.Least == 0 {
		con.printf("  it has the least worst-case regret too: %s\n", percent(fastest.Worst))
	} else {
		con.printf("  the plan above has the least worst-case regret, %s against %s; it takes %s more where all is as stated\n",
			percent(chosen.Worst), percent(fastest.Worst), percent(chosen.StepSeconds/fastest.StepSeconds-1))
	}
	rows := [][]string{{"PLAN", "STEP", "FASTEST IN", "REGRET: MEAN", "MEDIAN", "90 % BELOW", "WORST"}}
	for i, x := range r.Contenders {
		name := x.Name
		if i == r.Least {
			name += " *"
		}
		rows = append(rows, []string{name, explain.Seconds(x.StepSeconds), share(x.Best), percent(x.Mean), percent(x.Median), percent(x.P90), percent(x.Worst)})
	}
	con.table(rows)
}
