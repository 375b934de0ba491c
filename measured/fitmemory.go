package measured

import (
	"maps"
	"math"
	"slices"
	"strings"
)

// FitMemory moves the figures of m within their ranges so that the outcomes of cases
// come out right and published peaks are near, by coordinate descent.
func FitMemory(m Memory, cases []*Case) Memory {
	best := m.loss(cases)
	var steps []float64
	for _, c := range m.Constants() {
		steps = append(steps, (c.Most-c.Least)/6)
	}
	for range 8 { // after which steps are below what the outcomes can tell
		for i := range steps {
			moved := false
			for _, step := range []float64{steps[i], -steps[i]} {
				for {
					try := m
					c := try.Constants()[i]
					before := *c.Value
					*c.Value = min(c.Most, max(c.Least, before+step))
					l := try.loss(cases)
					if *c.Value == before || l >= best {
						break
					}
					m, best, moved = try, l, true
				}
			}
			if !moved {
				steps[i] /= 2
			}
		}
	}
	return m
}

// loss adds up, over outcomes, a smooth step of how far on the wrong side of the
// device's memory a prediction lies, so that rows at odds with all others weigh no
// more than others that are wrong; and over published peaks the square of the
// relative error. What no row tells stays in the middle of its plausible range.
func (m *Memory) loss(cases []*Case) float64 {
	const (
		smooth = 1.5 * (1 << 30) // bytes: the width of the step
		wrong  = 0.15            // for being wrong at all
		peak   = 20              // a peak wrong by 22 % weighs as much as an outcome
		prior  = 1               // a figure at an end of its range a quarter as much
	)
	sum := 0.0
	for _, c := range m.Constants() {
		if c.Most > c.Least {
			off := (*c.Value - (c.Least+c.Most)/2) / (c.Most - c.Least)
			sum += prior * off * off
		}
	}
	for _, c := range cases {
		if c.Confidence == "low" {
			continue
		}
		uses := c.uses(m)
		if c.Fits != nil {
			room := float64(c.device - fullest(uses).Total())
			if !*c.Fits {
				room = -room
			}
			sum += 1 / (1 + math.Exp(max(-50, min(50, room/smooth))))
			if room < 0 {
				sum += wrong
			}
		}
		if c.Peak > 0 {
			off := float64(peakAs(c.PeakKind, uses))/c.Peak - 1
			sum += peak * off * off
		}
	}
	return sum
}

// HeldOut is how well figures that were fitted on all other cases predict some.
type HeldOut struct {
	By, Group string
	Confusion Confusion
	Fitted    Memory
	Peaks     map[string]MemorySummary
}

// CrossFitMemory holds out, in turn, the halves of the cases by several divisions.
func CrossFitMemory(cases []*Case) []HeldOut {
	half := func(yes bool, a, b string) string {
		if yes {
			return a
		}
		return b
	}
	divisions := []struct {
		by    string
		group func(c *Case) string
	}{
		{"model", func(c *Case) string { return half(c.Layers <= 40, "up to 40 layers", "more layers") }},
		{"kernels", func(c *Case) string {
			return half(strings.Contains(c.Kernels, "RMS"), "with a norm kernel", "without")
		}},
		{"recomputation", func(c *Case) string { return half(c.Recompute == "full", "full", "none") }},
		{"sequence", func(c *Case) string { return half(c.SeqLen > 2048, "8,192 tokens", "2,048 tokens") }},
		{"tensor parallelism", func(c *Case) string { return half(c.TP > 2, "4 or 8", "1 or 2") }},
		{"pipeline", func(c *Case) string { return half(c.PP > 2, "more than 2 stages", "1 or 2 stages") }},
		{"row", func(c *Case) string { return half(c.Line%2 == 0, "even lines", "odd lines") }},
	}
	var all []HeldOut
	for _, d := range divisions {
		groups := map[string]bool{}
		for _, c := range cases {
			groups[d.group(c)] = true
		}
		if len(groups) < 2 {
			continue
		}
		for _, g := range slices.Sorted(maps.Keys(groups)) {
			var in, out []*Case
			for _, c := range cases {
				if d.group(c) == g {
					out = append(out, c)
				} else {
					in = append(in, c)
				}
			}
			m := middleMemory()
			m = FitMemory(m, in)
			judged := m.judge(out)
			all = append(all, HeldOut{d.by, g, Judge(judged, func(o *Outcome) bool { return o.Fits != nil }), m, SummarizeMemory(judged)})
		}
	}
	return all
}

// middleMemory has every figure in the middle of its plausible range, where no row
// has had a say.
func middleMemory() Memory {
	var m Memory
	for _, c := range m.Constants() {
		*c.Value = (c.Least + c.Most) / 2
	}
	return m
}

// judge predicts the memory of cases alone.
func (m *Memory) judge(cases []*Case) []Outcome {
	var all []Outcome
	for _, c := range cases {
		o := Outcome{Row: c.Row}
		c.judge(&o, m, c.device)
		all = append(all, o)
	}
	return all
}
