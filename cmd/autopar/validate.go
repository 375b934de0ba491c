package main

import (
	"fmt"
	"maps"
	"slices"

	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/measured"
	"github.com/autopar/autopar/planner/cost"
)

// validateCmd compares predictions with published measurements.
type validateCmd struct {
	Table string `arg:"" name:"measured.csv" help:"Published runs, with their step time or whether they fit in memory."`
	Rows  bool   `help:"Print every row, not the sources alone."`

	ClusterFile []string `name:"cluster-file" sep:"none" placeholder:"FILE" help:"Cluster file whose figures are those of the rows with its device (device.name), in place of the built-in ones. May be repeated."`
	format
}

// Example is shown by --help.
func (validateCmd) Example() string {
	return `
autopar validate train.csv
autopar validate train.csv --format json
autopar validate my-runs.csv --cluster-file my-cluster.yaml`
}

// validation is the result as JSON. Errors are fractions.
type validation struct {
	MeanMAPE    *float64                   `json:"mean_mape,omitempty"`
	FitAccuracy *float64                   `json:"fit_accuracy,omitempty"`
	Regret      *measured.Regrets          `json:"regret,omitempty"`
	Noise       []measured.Noise           `json:"noise,omitempty"`
	Sources     map[string]validatedSource `json:"sources"`
	Rows        []validatedRow             `json:"rows"`
	Skipped     []skippedRow               `json:"skipped"`
	Chosen      []chosenRow                `json:"chosen,omitempty"`
	Memory      validatedMemory            `json:"memory"`
}

type validatedSource struct {
	Rows     int      `json:"rows"`
	MAPE     float64  `json:"mape"`
	Bias     float64  `json:"bias"`
	Spearman *float64 `json:"spearman"` // null for fewer than three rows
}

type validatedRow struct {
	RowID            string   `json:"row_id"`
	SourceID         string   `json:"source_id"`
	PredictedSeconds float64  `json:"predicted_step_seconds"`
	MeasuredSeconds  *float64 `json:"measured_step_seconds"`
	Error            *float64 `json:"error"`
	PredictedBytes   int64    `json:"predicted_peak_bytes"`
	Fits             bool     `json:"fits"` // predicted
	rowMemory
}

type skippedRow struct {
	RowID    string `json:"row_id"`
	SourceID string `json:"source_id"`
	Reason   string `json:"reason"`
}

// chosenRow is a row that does not state all of its plan: see [measured.Choose].
type chosenRow struct {
	RowID            string  `json:"row_id"`
	SourceID         string  `json:"source_id"`
	MicroBatch       int     `json:"micro_batch"`
	Recompute        string  `json:"recompute"`
	Chunks           int     `json:"chunks"`
	PredictedSeconds float64 `json:"predicted_step_seconds"`
	MeasuredSeconds  float64 `json:"measured_step_seconds"`
	Error            float64 `json:"error"`
}

// Run predicts every row.
func (c *validateCmd) Run(con *console) error {
	own, err := c.clusters()
	if err != nil {
		return err
	}
	rows, err := measured.Load(c.Table, own...)
	if err != nil {
		return err
	}
	for i, cluster := range own {
		if !slices.ContainsFunc(rows, func(r measured.Row) bool { return r.GPU == cluster.Device.Name }) {
			return usagef("validate: --cluster-file %s is of device %s, which no row of %s has", c.ClusterFile[i], cluster.Device.Name, c.Table)
		}
	}
	bar := con.bar(len(rows), "predicting")
	outcomes, skipped := measured.Evaluate(rows, bar.set)
	bar.clear()
	chosen, left := measured.Choose(skipped)
	result := validate(outcomes, left)
	for _, o := range chosen {
		result.Chosen = append(result.Chosen, chosenRow{o.ID, o.Source, o.MicroBatch, o.Recompute, o.VirtualStages, o.PredictedSeconds, o.StepSeconds, o.Error()})
	}
	result.Regret, result.Noise = regretOf(outcomes), measured.NoiseOf(outcomes)
	if c.json() { // where every row is under rows or under skipped
		result.Skipped = skippedRows(skipped)
		return con.json(result)
	}
	c.print(con, result)
	printRegret(con, result.Regret)
	printNoise(con, result.Noise)
	return nil
}

// clusters reads the cluster files, which replace built-in clusters. No two may have the same device.
func (c *validateCmd) clusters() ([]*cost.Cluster, error) {
	var all []*cost.Cluster
	for _, file := range c.ClusterFile {
		cluster, err := cost.Load(file)
		if err != nil {
			return nil, err
		}
		if len(cluster.Pools) > 0 {
			return nil, usagef("validate: --cluster-file %s has several kinds of devices, a run of the table one", file)
		}
		if slices.ContainsFunc(all, func(other *cost.Cluster) bool { return other.Device.Name == cluster.Device.Name }) {
			return nil, usagef("validate: --cluster-file %s is of device %s, and so is another", file, cluster.Device.Name)
		}
		all = append(all, cluster)
	}
	return all, nil
}

// validate summarizes predictions.
func validate(outcomes []measured.Outcome, skipped []measured.Skipped) validation {
	v := validation{Sources: map[string]validatedSource{}, Rows: []validatedRow{}, Skipped: skippedRows(skipped), Memory: validateMemory(outcomes)}
	var timed []measured.Outcome
	judged, right := 0, 0
	for _, o := range outcomes {
		row := validatedRow{RowID: o.ID, SourceID: o.Source, PredictedSeconds: o.PredictedSeconds, PredictedBytes: o.PredictedBytes, Fits: o.PredictedFits, rowMemory: memoryOfRow(&o)}
		if o.StepSeconds > 0 {
			off := o.Error()
			row.MeasuredSeconds, row.Error = &o.StepSeconds, &off
			timed = append(timed, o)
		}
		if o.Fits != nil {
			judged++
			if *o.Fits == o.PredictedFits {
				right++
			}
		}
		v.Rows = append(v.Rows, row)
	}
	if judged > 0 {
		accuracy := float64(right) / float64(judged)
		v.FitAccuracy = &accuracy
	}
	if all := measured.Summarize(timed); len(all) > 0 {
		mean := measured.MeanMAPE(all)
		v.MeanMAPE = &mean
		v.Sources = sourcesOf(timed)
	}
	return v
}

func skippedRows(skipped []measured.Skipped) []skippedRow {
	rows := []skippedRow{}
	for _, s := range skipped {
		rows = append(rows, skippedRow{s.ID, s.Source, s.Reason})
	}
	return rows
}

func (c *validateCmd) print(con *console, v validation) {
	if c.Rows {
		table := [][]string{{"ROW", "SOURCE", "PREDICTED", "MEASURED", "ERROR", "PEAK MEMORY", "MEASURED", "FITS"}}
		for _, r := range v.Rows {
			took, off := "-", "-"
			if r.MeasuredSeconds != nil {
				took, off = explain.Seconds(*r.MeasuredSeconds), fmt.Sprintf("%+.1f %%", 100**r.Error)
			}
			peak := "-"
			if r.MeasuredBytes != nil {
				peak = explain.Bytes(*r.MeasuredBytes)
			}
			table = append(table, []string{r.RowID, r.SourceID, explain.Seconds(r.PredictedSeconds), took, off, explain.Bytes(r.PredictedBytes), peak, fmt.Sprint(r.Fits)})
		}
		con.table(table)
	}
	if len(v.Sources) > 0 {
		con.heading("step time, predicted against measured")
		table := [][]string{{"SOURCE", "ROWS", "MEAN ABSOLUTE ERROR", "BIAS", "RANK CORRELATION"}}
		for _, name := range slices.Sorted(maps.Keys(v.Sources)) {
			s := v.Sources[name]
			rank := "-"
			if s.Spearman != nil {
				rank = fmt.Sprintf("%.3f", *s.Spearman)
			}
			table = append(table, []string{name, fmt.Sprint(s.Rows), percentText(s.MAPE), fmt.Sprintf("%+.1f %%", 100*s.Bias), rank})
		}
		con.table(table)
		con.printf("mean over %s: %s\n", explain.Count(len(v.Sources), "source"), percentText(*v.MeanMAPE))
	}
	v.Memory.print(con)
	v.printChosen(con)
	if len(v.Skipped) == 0 {
		return
	}
	con.heading("%s not modelled", explain.Count(len(v.Skipped), "row"))
	reasons := map[string]int{}
	for _, s := range v.Skipped {
		reasons[s.SourceID+": "+s.Reason]++
	}
	var keys []string
	for k := range reasons {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var table [][]string
	for _, k := range keys {
		table = append(table, []string{fmt.Sprint(reasons[k]), k})
	}
	con.table(table)
}

// printChosen prints the rows that leave some of their plan open.
func (v *validation) printChosen(con *console) {
	if len(v.Chosen) == 0 {
		return
	}
	con.heading("%s with some of the plan left open, as the fastest choice that fits", explain.Count(len(v.Chosen), "row"))
	table := [][]string{{"ROW", "SOURCE", "MICRO-BATCH", "RECOMPUTE", "CHUNKS", "PREDICTED", "MEASURED", "ERROR"}}
	for _, c := range v.Chosen {
		table = append(table, []string{
			c.RowID, c.SourceID, fmt.Sprint(c.MicroBatch), c.Recompute, fmt.Sprint(c.Chunks),
			explain.Seconds(c.PredictedSeconds), explain.Seconds(c.MeasuredSeconds), fmt.Sprintf("%+.1f %%", 100*c.Error),
		})
	}
	con.table(table)
}
