package main

import (
	"fmt"

	"github.com/autopar/autopar/measured"
)

// regretOf is what choosing by the predictions would have cost, nil where the table
// has no two plans for one setting.
func regretOf(outcomes []measured.Outcome) *measured.Regrets {
	r := measured.Regret(outcomes)
	if len(r.Choices) == 0 {
		return nil
	}
	return &r
}

// printRegret prints it in a line.
func printRegret(con *console, r *measured.Regrets) {
	if r == nil {
		return
	}
	percent := func(f float64) string { return fmt.Sprintf("%.1f %%", 100*f) }
	con.printf("regret of choosing by the prediction among the measured plans of a model, machine and batch: mean %s, worst %s; the fastest is chosen in %d of %s, of %s\n",
		percent(r.Mean), percent(r.Worst), r.Right, plural(len(r.Choices), "choice"), plural(r.Plans, "plan"))
}
