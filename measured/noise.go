package measured

import (
	"maps"
	"math"
	"math/rand/v2"
	"slices"
)

// Noise is how much repeated measurements of one plan scatter in a source, and how well one would choose plans by measuring
// all of them once more. A prediction of the mean time of a plan cannot be expected to do better than that.
type Noise struct {
	SourceID string  `json:"source_id"`
	Repeated int     `json:"repeated"` // plans measured more than once
	Spread   float64 `json:"spread"`   // standard deviation of the logarithm of a plan's times
	// Spearman is the expected rank correlation of the measured rates with rates measured once more; 0 for fewer than three
	// rows.
	Spearman float64 `json:"spearman"`
	Regret   float64 `json:"regret"` // expected mean regret of choosing by times measured once more: see [Regret]
}

// noiseDraws is how often all times are drawn again. It suffices to know the means to three digits.
const noiseDraws = 400

// NoiseOf returns the noise of every source that has plans measured more than once, ordered by name. Outcomes without a
// measured time, or of low confidence, are left out.
func NoiseOf(outcomes []Outcome) []Noise {
	bySource := map[string][][]Outcome{} // settings
	order, groups := settings(outcomes)
	for _, s := range order {
		bySource[s.source] = append(bySource[s.source], groups[s])
	}
	var all []Noise
	for _, source := range slices.Sorted(maps.Keys(bySource)) {
		n := Noise{SourceID: source}
		if n.measure(bySource[source]); n.Repeated > 0 {
			n.simulate(bySource[source])
			all = append(all, n)
		}
	}
	return all
}

// measure sets Repeated and Spread: the pooled standard deviation of all plans of a source that were measured more than once.
func (n *Noise) measure(settings [][]Outcome) {
	squares, free := 0.0, 0
	for _, g := range settings {
		var plans []choice // in the order of the table, so that sums have the same bits every time
		times := map[choice][]float64{}
		for _, o := range g {
			c := o.choice()
			if times[c] == nil {
				plans = append(plans, c)
			}
			times[c] = append(times[c], math.Log(o.StepSeconds))
		}
		for _, c := range plans {
			logs := times[c]
			if len(logs) == 1 {
				continue
			}
			n.Repeated++
			free += len(logs) - 1
			mean := 0.0
			for _, l := range logs {
				mean += l / float64(len(logs))
			}
			for _, l := range logs {
				squares += (l - mean) * (l - mean)
			}
		}
	}
	n.Spread = math.Sqrt(squares / float64(max(free, 1)))
}

// simulate sets Spearman and Regret: it takes the measured times of a source as true ones, and draws measurements of them with
// the spread.
func (n *Noise) simulate(settings [][]Outcome) {
	random := rand.New(rand.NewPCG(1, 2))
	again := func(seconds float64) float64 { return seconds * math.Exp(n.Spread*random.NormFloat64()) }
	var rates []float64
	choices := 0
	for _, g := range settings {
		for _, o := range g {
			rates = append(rates, float64(o.GlobalBatch*o.SeqLen)/float64(o.GPUs)/o.StepSeconds)
		}
		plans := once(g)
		if len(plans) < 2 {
			continue
		}
		choices++
		fastest := math.Inf(1)
		for _, p := range plans {
			fastest = min(fastest, p.StepSeconds)
		}
		for range noiseDraws {
			chosen, least := 0.0, math.Inf(1)
			for _, p := range plans {
				if t := again(p.StepSeconds); t < least {
					chosen, least = p.StepSeconds, t
				}
			}
			n.Regret += (chosen/fastest - 1) / noiseDraws
		}
	}
	n.Regret /= float64(max(choices, 1))
	drawn := make([]float64, len(rates))
	for range noiseDraws {
		for i, r := range rates {
			drawn[i] = again(r)
		}
		if rho := Spearman(rates, drawn); !math.IsNaN(rho) {
			n.Spearman += rho / noiseDraws
		}
	}
}
