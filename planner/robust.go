package planner

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

// How much the choice of plan depends on the figures of the cluster, for autopar plan --robust and
// the robust part of plan.json.

// Robustness is how plans fare when the figures of the cluster are not what they are taken to be.
// Only the given plans are compared: another one may be the fastest on a perturbed cluster.
type Robustness struct {
	Seed    int64 `json:"seed"`
	Samples int   `json:"samples"`
	// Contenders are in the order given. The first is the plan that was chosen.
	Contenders []Contender `json:"contenders"`
	// Least is the index of the contender with the least worst regret; of equals, the first.
	Least int `json:"least_worst_regret"`
}

// Contender is a plan on the perturbed clusters. Its regret in a sample is how much longer it takes
// than the fastest of all contenders there, as a fraction of that one's time.
type Contender struct {
	Plan        *partition.Plan `json:"-"`
	Name        string          `json:"plan"`         // given by whoever prints it
	StepSeconds float64         `json:"step_seconds"` // on the cluster as stated
	Best        int             `json:"best"`         // samples in which no contender is faster
	Mean        float64         `json:"mean_regret"`
	Median      float64         `json:"median_regret"`
	P90         float64         `json:"p90_regret"` // nine of ten samples are no worse
	Worst       float64         `json:"worst_regret"`
}

// Robust prices plans on clusters in which every uncertain figure is multiplied by exp(u z), where
// u is its relative uncertainty and z a standard normal number, drawn by seed, sample and place in
// [cost.Cluster.Constants]. Each plan is compiled once, however many samples there are.
func Robust(g *ir.Graph, batch int, c *cost.Cluster, plans []*partition.Plan, samples int, seed int64) (*Robustness, error) {
	if len(plans) == 0 || samples < 1 {
		return nil, fmt.Errorf("planner: robust: %d plans in %d samples", len(plans), samples)
	}
	clusters := []*cost.Cluster{c}
	for i := range samples {
		clusters = append(clusters, perturbed(c, seed, i))
	}
	times := make([][]cost.Picoseconds, len(plans)) // by plan and cluster, the first as stated
	errs := make([]error, len(plans))
	var wg sync.WaitGroup
	for i, p := range plans {
		wg.Go(func() { times[i], errs[i] = prices(g, batch, p, clusters) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err
		}
	}
	r := &Robustness{Seed: seed, Samples: samples}
	for i, p := range plans {
		x := Contender{Plan: p, StepSeconds: times[i][0].Seconds()}
		var regrets []float64
		for s := 1; s <= samples; s++ {
			best := times[i][s]
			for _, t := range times {
				best = min(best, t[s])
			}
			if times[i][s] == best {
				x.Best++
			}
			regret := float64(times[i][s]-best) / float64(best)
			regrets = append(regrets, regret)
			x.Mean += regret / float64(samples)
		}
		slices.Sort(regrets)
		at := func(share float64) float64 { return regrets[int(math.Ceil(share*float64(samples)))-1] }
		x.Median, x.P90, x.Worst = at(0.5), at(0.9), at(1)
		r.Contenders = append(r.Contenders, x)
		if x.Worst < r.Contenders[r.Least].Worst {
			r.Least = i
		}
	}
	return r, nil
}

// perturbed draws a cluster.
func perturbed(c *cost.Cluster, seed int64, sample int) *cost.Cluster {
	d := c.Clone()
	for i, k := range c.Constants() {
		z := rand.New(rand.NewPCG(uint64(seed), uint64(sample)<<16|uint64(i))).NormFloat64()
		k.Scale(d, math.Exp(k.Uncertainty*z))
	}
	return d
}

// prices compiles a plan and returns its step time on every cluster: by an [Estimator], or if
// blocks differ, by simulating the whole program.
func prices(g *ir.Graph, batch int, p *partition.Plan, clusters []*cost.Cluster) ([]cost.Picoseconds, error) {
	var times []cost.Picoseconds
	if e, err := NewEstimator(g, batch, clusters[0], p); err == nil {
		for _, c := range clusters {
			times = append(times, e.Price(c).Step)
		}
		return times, nil
	}
	prog, err := codegen.Compile(g, p, batch, nil)
	if err != nil {
		return nil, err
	}
	for _, c := range clusters {
		line, err := sim.Run(prog, c, sim.Options{})
		if err != nil {
			return nil, err
		}
		times = append(times, line.Step)
	}
	return times, nil
}
