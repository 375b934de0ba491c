package measured

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// Outcome is a row with its predictions.
type Outcome struct {
	Row
	PredictedSeconds float64
	PredictedBytes   int64 // of the fullest rank, with what its software keeps besides the arena
	ArenaBytes       int64 // of the largest arena of a stage
	PredictedPeak    int64 // the part of the prediction that the published peak measures; 0 if none is published
	Use              Use   // of the fullest rank
	PredictedFits    bool
}

// Error is the relative error of the step time: +0.1 is ten percent too slow.
func (o *Outcome) Error() float64 { return o.PredictedSeconds/o.StepSeconds - 1 }

// Skipped is a row that cannot be modelled, and why.
type Skipped struct {
	Row
	Reason string
}

// Summary is how well the rows of a source are predicted. Fractions, not percent.
type Summary struct {
	Rows int
	MAPE float64 // mean absolute relative error of the step time
	Bias float64 // mean relative error
	// Spearman is the rank correlation of predicted with measured token rates; NaN for fewer than three rows, or if all are
	// equal.
	Spearman float64
}

// Summarize groups outcomes by source.
func Summarize(outcomes []Outcome) map[string]Summary {
	bySource := map[string][]Outcome{}
	for _, o := range outcomes {
		bySource[o.Source] = append(bySource[o.Source], o)
	}
	all := map[string]Summary{}
	for source, os := range bySource {
		s := Summary{Rows: len(os)}
		predicted, measured := make([]float64, len(os)), make([]float64, len(os))
		for i := range os {
			e := os[i].Error()
			s.MAPE += math.Abs(e) / float64(len(os))
			s.Bias += e / float64(len(os))
			tokens := float64(os[i].GlobalBatch*os[i].SeqLen) / float64(os[i].GPUs)
			predicted[i], measured[i] = tokens/os[i].PredictedSeconds, tokens/os[i].StepSeconds
		}
		s.Spearman = Spearman(predicted, measured)
		all[source] = s
	}
	return all
}

// MeanMAPE is the mean of the sources' errors. It adds them in the order of their names, so the result has the same bits every
// time.
func MeanMAPE(all map[string]Summary) float64 {
	sum := 0.0
	for _, source := range slices.Sorted(maps.Keys(all)) {
		sum += all[source].MAPE
	}
	return sum / float64(len(all))
}

// Spearman returns the rank correlation of two lists of equal length: the Pearson correlation of their ranks, where ties have
// their mean rank. It is NaN for fewer than three values, or if all values of a list are equal.
func Spearman(x, y []float64) float64 {
	if len(x) < 3 {
		return math.NaN()
	}
	return pearson(ranks(x), ranks(y))
}

func ranks(x []float64) []float64 {
	order := make([]int, len(x))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(x[a], x[b]) })
	r := make([]float64, len(x))
	for i := 0; i < len(order); {
		j := i + 1
		for j < len(order) && x[order[j]] == x[order[i]] {
			j++
		}
		for _, k := range order[i:j] {
			r[k] = float64(i+j-1) / 2
		}
		i = j
	}
	return r
}

func pearson(x, y []float64) float64 {
	mean := func(v []float64) float64 {
		s := 0.0
		for _, a := range v {
			s += a
		}
		return s / float64(len(v))
	}
	mx, my := mean(x), mean(y)
	var xy, xx, yy float64
	for i := range x {
		xy += (x[i] - mx) * (y[i] - my)
		xx += (x[i] - mx) * (x[i] - mx)
		yy += (y[i] - my) * (y[i] - my)
	}
	return xy / math.Sqrt(xx*yy)
}
