// Command curves draws the losses of several runs over each other, and how far
// each is from the first, and prints the largest distances as a Markdown table.
//
// usage: curves OUT.png NAME=metrics.jsonl...
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// run is the logged training losses of one run, by iteration.
type run struct {
	name   string
	losses plotter.XYs
}

func main() {
	if err := curves(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "curves:", err)
		os.Exit(1)
	}
}

func curves(args []string) error {
	if len(args) < 2 {
		return errors.New("usage: curves OUT.png NAME=metrics.jsonl [NAME=metrics.jsonl...]")
	}
	var runs []run
	for _, arg := range args[1:] {
		name, file, ok := strings.Cut(arg, "=")
		if !ok {
			return fmt.Errorf("%q is not NAME=metrics.jsonl", arg)
		}
		losses, err := read(file)
		if err != nil {
			return err
		}
		if len(runs) > 0 && len(losses) != len(runs[0].losses) {
			return fmt.Errorf("%s has %d iterations, %s has %d", name, len(losses), runs[0].name, len(runs[0].losses))
		}
		runs = append(runs, run{name, losses})
	}
	fmt.Printf("| plan | iterations | last loss | largest distance from %s |\n|---|---|---|---|\n", runs[0].name)
	for _, r := range runs {
		var most float64
		for _, d := range distances(runs[0], r) {
			most = max(most, d.Y)
		}
		fmt.Printf("| %s | %d | %.6f | %.1e |\n", r.name, len(r.losses), r.losses[len(r.losses)-1].Y, most)
	}
	return drawRuns(args[0], runs)
}

// read returns the loss of every logged iteration of a metrics.jsonl.
func read(file string) (plotter.XYs, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var losses plotter.XYs
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		var line struct {
			Iter int      `json:"iter"`
			Loss *float64 `json:"loss"`
		}
		if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", file, n, err)
		}
		if line.Loss != nil { // otherwise an evaluation
			losses = append(losses, plotter.XY{X: float64(line.Iter), Y: *line.Loss})
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(losses) == 0 {
		return nil, fmt.Errorf("%s: no iteration was logged", file)
	}
	return losses, nil
}

// distances is how far a run is from another in every iteration.
func distances(from, r run) plotter.XYs {
	d := make(plotter.XYs, len(r.losses))
	for i, p := range r.losses {
		d[i] = plotter.XY{X: p.X, Y: math.Abs(p.Y - from.losses[i].Y)}
	}
	return d
}

// drawRuns draws the losses and, below, the distances from the first run.
func drawRuns(file string, runs []run) error {
	losses, apart := plot.New(), plot.New()
	losses.Title.Text, losses.Y.Label.Text = "training loss, drawn over each other", "loss"
	apart.Title.Text, apart.Y.Label.Text = "distance from "+runs[0].name, "|Δ loss|"
	losses.Legend.Top = true
	for i, r := range runs {
		line, err := plotter.NewLine(r.losses)
		if err != nil {
			return err
		}
		// Later lines are thinner, so that those below show.
		line.Width, line.Color = vg.Points(float64(2*(len(runs)-i))), plotutil.Color(i)
		losses.Add(line)
		losses.Legend.Add(r.name, line)
		if i == 0 {
			continue
		}
		points, err := plotter.NewScatter(distances(runs[0], r))
		if err != nil {
			return err
		}
		points.Radius, points.Color, points.Shape = vg.Points(1), plotutil.Color(i), draw.CircleGlyph{}
		apart.Add(points)
	}
	for _, p := range []*plot.Plot{losses, apart} {
		p.X.Label.Text = "iteration"
		p.Add(plotter.NewGrid())
	}
	const width, height = 8 * vg.Inch, 7 * vg.Inch
	canvas := vgimg.New(width, height)
	whole := draw.New(canvas)
	losses.Draw(draw.Crop(whole, 0, 0, 3*vg.Inch, 0))
	apart.Draw(draw.Crop(whole, 0, 0, 0, -4.1*vg.Inch))
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := (vgimg.PngCanvas{Canvas: canvas}).WriteTo(f); err != nil {
		return errors.Join(err, f.Close())
	}
	return f.Close()
}
