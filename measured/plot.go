package measured

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// Plot draws predicted against measured step times on logarithmic axes, with a colour per source and lines at errors of 0 and
// ±10 %. format is one of gonum/plot's: "svg" or "png", for example. There must be outcomes.
func Plot(w io.Writer, outcomes []Outcome, format string) error {
	p := plot.New()
	p.Title.Text = "step time of published runs"
	p.X.Label.Text, p.Y.Label.Text = "measured (s)", "predicted (s)"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	bySource := map[string]plotter.XYs{}
	least, most := outcomes[0].StepSeconds, outcomes[0].StepSeconds
	for _, o := range outcomes {
		bySource[o.Source] = append(bySource[o.Source], plotter.XY{X: o.StepSeconds, Y: o.PredictedSeconds})
		least, most = min(least, o.StepSeconds, o.PredictedSeconds), max(most, o.StepSeconds, o.PredictedSeconds)
	}
	for _, off := range []float64{0.9, 1, 1.1} {
		line, err := plotter.NewLine(plotter.XYs{{X: least, Y: off * least}, {X: most, Y: off * most}})
		if err != nil {
			return err
		}
		if line.Color = plotutil.Color(2); off != 1 {
			line.Dashes = plotutil.Dashes(1)
		}
		p.Add(line)
	}
	for i, source := range slices.Sorted(maps.Keys(bySource)) {
		points, err := plotter.NewScatter(bySource[source])
		if err != nil {
			return err
		}
		points.Shape, points.Color, points.Radius = plotutil.Shape(i), plotutil.Color(i), vg.Points(2.5)
		p.Add(points)
		p.Legend.Add(fmt.Sprintf("%s (%d)", source, len(bySource[source])), points)
	}
	image, err := p.WriterTo(8*vg.Inch, 8*vg.Inch, format)
	if err != nil {
		return err
	}
	_, err = image.WriteTo(w)
	return err
}
