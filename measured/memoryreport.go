package measured

import "math"

// MemoryError is the relative error of the peak memory; NaN where none is published.
func (o *Outcome) MemoryError() float64 {
	if o.Peak == 0 {
		return math.NaN()
	}
	return float64(o.PredictedPeak)/o.Peak - 1
}

// MemorySummary is how well the published peaks of a source are predicted. Fractions.
type MemorySummary struct {
	Rows int
	MAPE float64 // mean absolute relative error
	Bias float64 // mean relative error
}

// SummarizeMemory groups the outcomes with a published peak by source.
func SummarizeMemory(outcomes []Outcome) map[string]MemorySummary {
	all := map[string]MemorySummary{}
	for i := range outcomes {
		if o := &outcomes[i]; o.Peak > 0 {
			s := all[o.Source]
			s.Rows++
			s.MAPE += math.Abs(o.MemoryError())
			s.Bias += o.MemoryError()
			all[o.Source] = s
		}
	}
	for source, s := range all {
		s.MAPE /= float64(s.Rows)
		s.Bias /= float64(s.Rows)
		all[source] = s
	}
	return all
}

// Confusion counts outcomes by what was predicted and what came of it. A step that
// was timed has run, so it fits.
type Confusion struct {
	Fits        int `json:"fits"`                // rightly
	OutOfMemory int `json:"out_of_memory"`       // rightly
	FalseFits   int `json:"false_fits"`          // it ran out of memory
	FalseOut    int `json:"false_out_of_memory"` // it ran
}

// Judge counts the outcomes for which keep holds; nil stands for all.
func Judge(outcomes []Outcome, keep func(*Outcome) bool) Confusion {
	var c Confusion
	for i := range outcomes {
		o := &outcomes[i]
		if o.Fits == nil && o.StepSeconds == 0 || keep != nil && !keep(o) {
			continue
		}
		switch ran := o.Fits == nil || *o.Fits; {
		case ran && o.PredictedFits:
			c.Fits++
		case ran:
			c.FalseOut++
		case o.PredictedFits:
			c.FalseFits++
		default:
			c.OutOfMemory++
		}
	}
	return c
}

// Rows is how many outcomes were judged.
func (c Confusion) Rows() int { return c.Fits + c.OutOfMemory + c.FalseFits + c.FalseOut }

// Accuracy is the share that was told right, NaN of none.
func (c Confusion) Accuracy() float64 { return float64(c.Fits+c.OutOfMemory) / float64(c.Rows()) }
