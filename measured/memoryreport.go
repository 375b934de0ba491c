package measured

import "math"

// MemoryError is the relative error of the peak memory; NaN if none is published.
func (o *Outcome) MemoryError() float64 {
	if o.Peak == 0 {
		return math.NaN()
	}
	return float64(o.PredictedPeak)/o.Peak - 1
}

// MemorySummary is how well the published peaks of a source are predicted. Fractions, not percent.
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

// Confusion counts outcomes by what was predicted and what happened. A row with a step time has run, so it fits.
type Confusion struct {
	Fits        int `json:"fits"`                // predicted to fit, and ran
	OutOfMemory int `json:"out_of_memory"`       // predicted to run out of memory, and did
	FalseFits   int `json:"false_fits"`          // predicted to fit, but ran out of memory
	FalseOut    int `json:"false_out_of_memory"` // predicted to run out of memory, but ran
}

// Judge counts the outcomes for which keep is true, or all if keep is nil. It leaves out rows that state neither a step time nor
// whether they fit.
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

// Accuracy is the share of right predictions; NaN if there are no rows.
func (c Confusion) Accuracy() float64 { return float64(c.Fits+c.OutOfMemory) / float64(c.Rows()) }
