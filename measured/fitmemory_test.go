package measured

import (
	"flag"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/planner"
)

var fitAsked = flag.Bool("fit-memory", false, "refit the figures of memory on the published tables and print them, with halves held out")

// TestFitPublishedMemory fits the figures of memory again, if asked to: make fit-memory.
func TestFitPublishedMemory(t *testing.T) {
	if !*fitAsked {
		t.Skip("not asked for")
	}
	var cases []*Case
	for _, name := range []string{"memory_fit_train.csv", "train.csv"} {
		file, err := os.Open(filepath.Join("..", "..", "shared", "measured", name))
		require.NoError(t, err)
		defer file.Close()
		rows, err := Read(name, file)
		require.NoError(t, err)
		for _, r := range rows {
			if r.Fits == nil && r.Peak == 0 {
				continue
			}
			c, err := compileRow(r)
			if err != nil {
				t.Log(r.ID, err)
				continue
			}
			cases = append(cases, c)
		}
	}
	outcome := func(o *Outcome) bool { return o.Fits != nil }
	report := func(by, group string, c Confusion) {
		t.Logf("%-34s %-19s rows %3d  right %5.1f %%  false fits %d  false out of memory %d", by, group, c.Rows(), 100*c.Accuracy(), c.FalseFits, c.FalseOut)
	}
	start := middleMemory()
	fitted, now := fitMemory(start, cases), defaultMemory()
	for i, c := range fitted.Constants() {
		d := now.Constants()[i]
		t.Logf("%-18s %8.4g now %8.4g  of %g to %g %s: %s", c.Name, *c.Value, *d.Value, c.Least, c.Most, c.Unit, c.Origin)
	}
	report("middle of ranges", "all", Judge(start.judge(cases), outcome))
	report("fitted", "all", Judge(fitted.judge(cases), outcome))
	report("as built in", "all", Judge(now.judge(cases), outcome))
	for source, s := range SummarizeMemory(now.judge(cases)) {
		t.Logf("peaks of %s: %d rows, mean error %.1f %%, bias %+.1f %%", source, s.Rows, 100*s.MAPE, 100*s.Bias)
	}
	for _, h := range crossFitMemory(cases) {
		if h.Confusion.Rows() > 0 {
			report("not fitted on: "+h.By, h.Group, h.Confusion)
		}
	}
	for _, o := range now.judge(cases) {
		if o.Fits != nil && *o.Fits != o.PredictedFits {
			t.Logf("wrong: %s %s, %s, %s, tp %d pp %d dp %d micro-batch %d: fits %v, predicted %.1f GiB", o.ID, o.ModelName, o.Kernels, o.Recompute, o.TP, o.PP, o.DP, o.MicroBatch, *o.Fits, float64(o.PredictedBytes)/(1<<30))
		}
	}
}

// TestFitMemory: outcomes are made with some figures. The fit finds figures that predict nearly all of them, within the ranges.
func TestFitMemory(t *testing.T) {
	truth := defaultMemory()
	truth.EagerScores = 4.1
	var cases []*Case
	for layers := 1; layers <= 60; layers++ {
		c := &Case{Row: Row{Layers: layers, Line: layers, Heads: 8, Hidden: 1024, SeqLen: 2048, TP: 1, PP: 1, DP: 8, CP: 1, MicroBatch: 1, Vocab: 1000, Kernels: "torch", ZeRO: 1}}
		c.footprints = []planner.Footprint{{Saved: 1 << 30, Slots: 1, AtOnce: 1, Forward: []planner.Made{{Op: ir.OpAttention, Result: 2048 * 1024, Kept: layers, InBlock: true}}}}
		c.device = 5 << 30
		fits := fullest(c.uses(&truth)).Total() <= c.device
		c.Fits = &fits
		cases = append(cases, c)
	}
	fitted := fitMemory(middleMemory(), cases)
	for _, c := range fitted.Constants() {
		require.GreaterOrEqual(t, *c.Value, c.Least, c.Name)
		require.LessOrEqual(t, *c.Value, c.Most, c.Name)
	}
	before := middleMemory()
	start := Judge(before.judge(cases), nil).Accuracy()
	require.Less(t, start, 0.94)
	require.GreaterOrEqual(t, Judge(fitted.judge(cases), nil).Accuracy(), 0.95)
	for _, h := range crossFitMemory(cases) {
		require.Contains(t, []string{"model", "row"}, h.By, "the others have one group here")
	}
}

// fitMemory changes the figures of m, within their ranges, by coordinate descent, so that the outcomes of cases and their published
// peaks are predicted well.
func fitMemory(m Memory, cases []*Case) Memory {
	best := m.loss(cases)
	var steps []float64
	for _, c := range m.Constants() {
		steps = append(steps, (c.Most-c.Least)/6)
	}
	for range 8 { // after that, steps are too small to change outcomes
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

// loss is a sum over outcomes, published peaks and figures. For an outcome it has a smooth step function of how far the prediction
// lies on the wrong side of the device's memory, so that outliers weigh no more than other rows that are wrong. For a peak it has the
// square of the relative error. For a figure it has a pull to the middle of its plausible range, where figures stay that no row
// depends on.
func (m *Memory) loss(cases []*Case) float64 {
	const (
		smooth = 1.5 * (1 << 30) // bytes: the width of the step
		wrong  = 0.15            // added for any wrong outcome
		peak   = 20              // a peak wrong by 22 % weighs as much as an outcome
		prior  = 1               // a figure at an end of its range weighs a quarter of an outcome
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

// heldOut is how well some cases are predicted by figures that were fitted to all other cases.
type heldOut struct {
	By, Group string
	Confusion Confusion
	Fitted    Memory
	Peaks     map[string]MemorySummary
}

// crossFitMemory divides the cases into halves in several ways, and holds out each half in turn.
func crossFitMemory(cases []*Case) []heldOut {
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
	var all []heldOut
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
			m = fitMemory(m, in)
			judged := m.judge(out)
			all = append(all, heldOut{d.by, g, Judge(judged, func(o *Outcome) bool { return o.Fits != nil }), m, SummarizeMemory(judged)})
		}
	}
	return all
}

// middleMemory has every figure in the middle of its plausible range: figures before any fit.
func middleMemory() Memory {
	var m Memory
	for _, c := range m.Constants() {
		*c.Value = (c.Least + c.Most) / 2
	}
	return m
}

// judge predicts only the memory of cases.
func (m *Memory) judge(cases []*Case) []Outcome {
	var all []Outcome
	for _, c := range cases {
		o := Outcome{Row: c.Row}
		c.judge(&o, m, c.device)
		all = append(all, o)
	}
	return all
}
