package main

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"

	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/measured"
)

// fitCmd fits the constants of the time model to published runs.
type fitCmd struct {
	Table string `arg:"" name:"measured.csv" help:"Published runs with their step time."`
	Out   string `short:"o" placeholder:"DIR" help:"Write fit.json, and residuals.svg: predicted against measured."`
	format
}

// Example is shown by --help.
func (fitCmd) Example() string {
	return `
autopar fit train.csv
autopar fit train.csv -o fit`
}

// fitted is the result as JSON. Errors are fractions.
type fitted struct {
	Constants []fittedConstant           `json:"constants"`
	MeanMAPE  float64                    `json:"mean_mape"`
	LeftOut   float64                    `json:"left_out_mean_mape"`
	Sources   map[string]validatedSource `json:"sources"`
	Held      map[string]validatedSource `json:"sources_left_out"`
	Low       map[string]validatedSource `json:"sources_of_low_confidence"`
	Skipped   []skippedRow               `json:"skipped"`
}

type fittedConstant struct {
	Name   string  `json:"name"`
	Unit   string  `json:"unit"`
	Value  float64 `json:"value"`
	Spread float64 `json:"spread"` // relative, by the jackknife over sources
	Least  float64 `json:"least"`
	Most   float64 `json:"most"`
	Prior  float64 `json:"prior"`
	Basis  string  `json:"basis"`
}

// The files that are written.
const (
	fitFile       = "fit.json"
	residualsFile = "residuals.svg"
)

// Run fits, and prints the constants and errors.
func (c *fitCmd) Run(con *console) error {
	if err := mayBeDirectory("fit: -o", c.Out); err != nil {
		return err
	}
	for _, name := range []string{fitFile, residualsFile} {
		if err := apart("fit: -o", filepath.Join(c.Out, name), c.Table); err != nil && c.Out != "" {
			return err
		}
	}
	rows, err := measured.Load(c.Table)
	if err != nil {
		return err
	}
	var shown bar
	doing := ""
	fit, skipped, err := measured.Refit(rows, measured.NewConstants(), func(what string, done, of int) {
		if what != doing {
			shown.clear()
			shown, doing = con.bar(of, what), what
		}
		shown.set(done)
	})
	shown.clear()
	if err != nil {
		return &measured.Error{File: c.Table, Msg: err.Error()}
	}
	result := fitOf(fit, skipped)
	if c.json() {
		err = con.json(result)
	} else {
		result.print(con)
	}
	if c.Out != "" { // after printing, so that a fit is not lost with its files
		err = errors.Join(err, c.write(fit, result))
	}
	return err
}

func fitOf(f *measured.Fit, skipped []measured.Skipped) fitted {
	low := func(o measured.Outcome) bool { return o.Confidence == "low" }
	sure := slices.DeleteFunc(slices.Clone(f.Rows), low)
	unsure := slices.DeleteFunc(slices.Clone(f.Rows), func(o measured.Outcome) bool { return !low(o) })
	r := fitted{Sources: sourcesOf(sure), Held: sourcesOf(f.LeftOut), Low: sourcesOf(unsure), Skipped: []skippedRow{}}
	r.MeanMAPE, r.LeftOut = measured.MeanMAPE(measured.Summarize(sure)), measured.MeanMAPE(measured.Summarize(f.LeftOut))
	for _, p := range f.Parameters {
		r.Constants = append(r.Constants, fittedConstant{p.Name, p.Unit, p.Value, p.Spread, p.Least, p.Most, p.Prior, p.Basis})
	}
	for _, s := range skipped {
		r.Skipped = append(r.Skipped, skippedRow{s.ID, s.Source, s.Reason})
	}
	return r
}

// sourcesOf summarizes outcomes by source, for JSON.
func sourcesOf(outcomes []measured.Outcome) map[string]validatedSource {
	all := map[string]validatedSource{}
	for name, s := range measured.Summarize(outcomes) {
		source := validatedSource{Rows: s.Rows, MAPE: s.MAPE, Bias: s.Bias}
		if !math.IsNaN(s.Spearman) {
			source.Spearman = &s.Spearman
		}
		all[name] = source
	}
	return all
}

func (c *fitCmd) write(f *measured.Fit, r fitted) error {
	var figures, image bytes.Buffer
	if err := newConsole(&figures, os.Stderr).json(r); err != nil {
		return err
	}
	if err := measured.Plot(&image, f.Rows, "svg"); err != nil {
		return err
	}
	if err := writeFile(filepath.Join(c.Out, fitFile), figures.Bytes()); err != nil {
		return err
	}
	return writeFile(filepath.Join(c.Out, residualsFile), image.Bytes())
}

func (r fitted) print(con *console) {
	number := func(v float64) string { return fmt.Sprintf("%.3g", v) }
	con.heading("constants")
	table := [][]string{{"CONSTANT", "VALUE", "SPREAD", "UNIT", "RANGE", "PRIOR", "BASIS OF THE PRIOR"}}
	for _, c := range r.Constants {
		table = append(table, []string{c.Name, number(c.Value), percentText(c.Spread), c.Unit, number(c.Least) + " to " + number(c.Most), number(c.Prior), c.Basis})
	}
	con.table(table)
	con.heading("step time, by source")
	table = [][]string{{"SOURCE", "ROWS", "ERROR", "BIAS", "RANK CORRELATION", "LEFT OUT: ERROR", "BIAS"}}
	for _, name := range slices.Sorted(maps.Keys(r.Sources)) {
		s, held := r.Sources[name], r.Held[name]
		rank := "-"
		if s.Spearman != nil {
			rank = fmt.Sprintf("%.3f", *s.Spearman)
		}
		table = append(table, []string{name, fmt.Sprint(s.Rows), percentText(s.MAPE), fmt.Sprintf("%+.1f %%", 100*s.Bias), rank, percentText(held.MAPE), fmt.Sprintf("%+.1f %%", 100*held.Bias)})
	}
	con.table(table)
	con.printf("mean over %s: %s; each predicted without its own rows: %s\n", explain.Count(len(r.Sources), "source"), percentText(r.MeanMAPE), percentText(r.LeftOut))
	for _, name := range slices.Sorted(maps.Keys(r.Low)) {
		con.printf("of low confidence and not fitted: %s of %s, %s\n", explain.Count(r.Low[name].Rows, "row"), name, percentText(r.Low[name].MAPE))
	}
	if len(r.Skipped) > 0 {
		con.printf("%s not modelled: see autopar validate\n", explain.Count(len(r.Skipped), "row"))
	}
}
