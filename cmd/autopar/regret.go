package main

import (
	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/measured"
)

// regretOf is what it would have cost to choose plans by their predictions. It is nil if the table has no two plans for one
// setting.
func regretOf(outcomes []measured.Outcome) *measured.Regrets {
	r := measured.Regret(outcomes)
	if len(r.Choices) == 0 {
		return nil
	}
	return &r
}

// printRegret prints regrets in one line.
func printRegret(con *console, r *measured.Regrets) {
	if r == nil {
		return
	}
	con.printf("regret of choosing by the prediction among the measured plans of a model, machine and batch: mean %s, worst %s; the fastest is chosen in %d of %s, of %s\n",
		percentText(r.Mean), percentText(r.Worst), r.Right, explain.Count(len(r.Choices), "choice"), explain.Count(r.Plans, "plan"))
}

// printNoise prints the noise of each source in one line.
func printNoise(con *console, all []measured.Noise) {
	for _, n := range all {
		con.printf("noise of %s: times of %s measured more than once spread by %s; the ranks of a second measurement would correlate by %.3f, and choosing by it would cost %s\n",
			n.SourceID, explain.Count(n.Repeated, "plan"), percentText(n.Spread), n.Spearman, percentText(n.Regret))
	}
}
