package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/measured"
)

// validatedMemory is how well memory is predicted, as JSON. Errors are fractions.
type validatedMemory struct {
	// Confusion counts rows whose outcome is known; rows with a step time have run.
	Confusion measured.Confusion `json:"confusion"`
	// Sources are the sources that state peaks.
	Sources map[string]validatedPeaks `json:"sources"`
	// MeanMAPE is the mean over those sources, null if there are none.
	MeanMAPE *float64 `json:"mean_mape"`
}

type validatedPeaks struct {
	Rows int     `json:"rows"`
	MAPE float64 `json:"mape"`
	Bias float64 `json:"bias"`
}

// rowMemory has the predicted and published memory of a row. A published peak is compared with the part of the prediction that
// it measures: the process, the allocator, or the tensors.
type rowMemory struct {
	ArenaBytes     int64    `json:"predicted_arena_bytes"`
	ComparedBytes  *int64   `json:"predicted_as_measured_bytes"`
	MeasuredBytes  *int64   `json:"measured_peak_bytes"`
	Error          *float64 `json:"memory_error"`
	StatesBytes    int64    `json:"predicted_states_bytes"`
	SavedBytes     int64    `json:"predicted_saved_bytes"`
	WorkingBytes   int64    `json:"predicted_working_bytes"`
	AllocatorBytes int64    `json:"predicted_allocator_bytes"`
	ReserveBytes   int64    `json:"predicted_reserve_bytes"`
}

func memoryOfRow(o *measured.Outcome) rowMemory {
	m := rowMemory{
		ArenaBytes: o.ArenaBytes, StatesBytes: o.Use.States, SavedBytes: o.Use.Saved, WorkingBytes: o.Use.Working,
		AllocatorBytes: o.Use.Gaps, ReserveBytes: o.Use.Reserve,
	}
	if o.Peak > 0 {
		peak, off := int64(o.Peak), o.MemoryError()
		m.ComparedBytes, m.MeasuredBytes, m.Error = &o.PredictedPeak, &peak, &off
	}
	return m
}

func validateMemory(outcomes []measured.Outcome) validatedMemory {
	v := validatedMemory{Confusion: measured.Judge(outcomes, nil), Sources: map[string]validatedPeaks{}}
	mean := 0.0
	all := measured.SummarizeMemory(outcomes)
	for _, source := range slices.Sorted(maps.Keys(all)) { // so that the mean has the same bits every time
		v.Sources[source] = validatedPeaks(all[source])
		mean += all[source].MAPE / float64(len(all))
	}
	if len(all) > 0 {
		v.MeanMAPE = &mean
	}
	return v
}

func (v *validatedMemory) print(con *console) {
	if len(v.Sources) > 0 {
		con.heading("peak memory, predicted against measured")
		table := [][]string{{"SOURCE", "ROWS", "MEAN ABSOLUTE ERROR", "BIAS"}}
		for _, name := range slices.Sorted(maps.Keys(v.Sources)) {
			s := v.Sources[name]
			table = append(table, []string{name, fmt.Sprint(s.Rows), percentText(s.MAPE), fmt.Sprintf("%+.1f %%", 100*s.Bias)})
		}
		con.table(table)
	}
	if c := v.Confusion; c.Rows() > 0 {
		con.heading("fits in memory or not: %.1f %% right of %s", 100*c.Accuracy(), explain.Count(c.Rows(), "row"))
		con.table([][]string{
			{"", "PREDICTED TO FIT", "PREDICTED NOT TO"},
			{"ran", fmt.Sprint(c.Fits), fmt.Sprint(c.FalseOut)},
			{"ran out of memory", fmt.Sprint(c.FalseFits), fmt.Sprint(c.OutOfMemory)},
		})
	}
}
