package explain

import (
	"fmt"
	"image/color"
	"io"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// View is what a picture shows.
type View string

// The views.
const (
	ViewTimeline View = "timeline" // what ranks do when
	ViewMemory   View = "memory"   // memory of the fullest rank over time
	ViewPareto   View = "pareto"   // step time against memory; needs fronts: see [Study.Fronts]
)

// The size of a picture.
const (
	plotWidth  = 26 * vg.Centimeter
	plotHeight = 12 * vg.Centimeter
)

// Picture writes a view in a format, "svg" or "png". It fails without a prediction.
func (r *Report) Picture(w io.Writer, view View, format string) error {
	p := plot.New()
	p.Title.Text = fmt.Sprintf("%s: %s", r.Model, PlanText(r.prog.Plan))
	p.Title.Padding = 8
	p.BackgroundColor = color.White
	height := plotHeight
	var err error
	switch view {
	case ViewTimeline:
		height, err = r.plotTimeline(p)
	case ViewMemory:
		err = r.plotMemory(p)
	case ViewPareto:
		err = r.plotFront(p)
	default:
		return fmt.Errorf("explain: no view %q", view)
	}
	if err != nil {
		return err
	}
	for _, style := range []*text.Style{&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle} {
		style.Font.Variant = "Sans"
		style.Font.Size = 10
	}
	picture, err := draw.NewFormattedCanvas(plotWidth, height, format)
	if err != nil {
		return fmt.Errorf("explain: %w", err)
	}
	const margin = 8
	p.Draw(draw.Crop(draw.New(picture), margin, -margin, margin, -margin))
	_, err = picture.WriteTo(w)
	return err
}

// kindColors are the colours of passes on the page, by film kind.
func kindColors() []color.Color {
	return []color.Color{
		color.RGBA{0x4f, 0x86, 0xe8, 255}, color.RGBA{0x2f, 0xa3, 0x7c, 255}, color.RGBA{0x93, 0xb8, 0x3a, 255}, color.RGBA{0x8a, 0x6b, 0xd6, 255},
	}
}

// boxes draws filled rectangles of one colour.
type boxes struct {
	plotter.XYs // two opposite corners of each rectangle
	color       color.Color
}

// Plot implements [plot.Plotter].
func (b boxes) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	for i := 0; i < len(b.XYs); i += 2 {
		from, to := b.XYs[i], b.XYs[i+1]
		c.FillPolygon(b.color, []vg.Point{{X: x(from.X), Y: y(from.Y)}, {X: x(to.X), Y: y(from.Y)}, {X: x(to.X), Y: y(to.Y)}, {X: x(from.X), Y: y(to.Y)}})
	}
}

// Thumbnail implements [plot.Thumbnailer].
func (b boxes) Thumbnail(c *draw.Canvas) {
	c.FillPolygon(b.color, []vg.Point{c.Min, {X: c.Max.X, Y: c.Min.Y}, c.Max, {X: c.Min.X, Y: c.Max.Y}})
}

// DataRange implements [plot.DataRanger].
func (b boxes) DataRange() (xMin, xMax, yMin, yMax float64) { return plotter.XYRange(b.XYs) }

// band fills the area below a step function.
type band struct {
	plotter.XYs // the start and height of each step
	end         float64
	color       color.Color
}

// Plot implements [plot.Plotter].
func (b band) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	below := []vg.Point{{X: x(0), Y: y(0)}}
	for i, at := range b.XYs {
		to := b.end
		if i+1 < len(b.XYs) {
			to = b.XYs[i+1].X
		}
		below = append(below, vg.Point{X: x(at.X), Y: y(at.Y)}, vg.Point{X: x(to), Y: y(at.Y)})
	}
	c.FillPolygon(b.color, append(below, vg.Point{X: x(b.end), Y: y(0)}))
}

// Thumbnail implements [plot.Thumbnailer].
func (b band) Thumbnail(c *draw.Canvas) { boxes{color: b.color}.Thumbnail(c) }

// timeTicks marks seconds.
type timeTicks struct{}

// Ticks implements [plot.Ticker].
func (timeTicks) Ticks(_, most float64) []plot.Tick { return marks(ticks(most), tickSeconds) }

// sizeTicks marks bytes.
type sizeTicks struct{}

// Ticks implements [plot.Ticker].
func (sizeTicks) Ticks(_, most float64) []plot.Tick { return marks(byteTicks(most), byteText) }

func marks(at []float64, text func(float64) string) []plot.Tick {
	var all []plot.Tick
	for _, v := range at {
		all = append(all, plot.Tick{Value: v, Label: text(v)})
	}
	return all
}

// plotTimeline draws a row per rank, the first on top.
func (r *Report) plotTimeline(p *plot.Plot) (vg.Length, error) {
	f, err := r.film()
	if err != nil {
		return 0, err
	}
	colors := kindColors()
	all := make([]plotter.XYs, len(colors))
	var names []plot.Tick
	for i, x := range f.Ranks {
		row := float64(len(f.Ranks) - 1 - i)
		names = append(names, plot.Tick{Value: row, Label: x.Label})
		for _, t := range x.Tasks {
			// A narrow gap shows where one pass ends and the next begins.
			all[t.Kind] = append(all[t.Kind], plotter.XY{X: float64(t.Start) / 1e9, Y: row - 0.38}, plotter.XY{X: (float64(t.End) - float64(t.End-t.Start)*0.03) / 1e9, Y: row + 0.38})
		}
	}
	for kind, xys := range all {
		if len(xys) > 0 {
			b := boxes{xys, colors[kind]}
			p.Add(b)
			p.Legend.Add(filmKinds()[kind], b)
		}
	}
	p.Legend.Top, p.Legend.YOffs, p.Legend.XOffs, p.Legend.Padding = true, 0, 0, 2
	p.Y.Tick.Marker = plot.ConstantTicks(names)
	p.X.Tick.Marker = timeTicks{}
	p.X.Min, p.X.Max = 0, float64(f.Step)/1e9*1.16 // room for the legend
	p.Y.Min, p.Y.Max = -0.6, float64(len(f.Ranks))-0.4
	p.Y.Tick.Length = 0
	return max(6*vg.Centimeter, vg.Length(len(f.Ranks))*vg.Centimeter+2*vg.Centimeter), nil
}

// plotMemory draws the memory of the fullest rank as steps below what it allocates.
func (r *Report) plotMemory(p *plot.Plot) error {
	f, err := r.film()
	if err != nil {
		return err
	}
	x := slices.MaxFunc(f.Ranks, func(a, b filmRank) int { return int(min(1, max(-1, a.Arena-b.Arena))) })
	step := float64(f.Step) / 1e9
	layer := func(name string, c color.Color, of func(point) int64) {
		b := band{end: step, color: c}
		for _, q := range x.Points {
			b.XYs = append(b.XYs, plotter.XY{X: float64(q.Time) / 1e9, Y: float64(of(q))})
		}
		p.Add(b)
		p.Legend.Add(name, b)
	}
	layer("temporary", color.RGBA{0xf2, 0xb5, 0x6b, 255}, func(q point) int64 { return x.Persist + q.Saved + q.Temp })
	layer("activations in flight", color.RGBA{0x6f, 0xc0, 0xa2, 255}, func(q point) int64 { return x.Persist + q.Saved })
	layer("always there", color.RGBA{0x7a, 0x93, 0xc9, 255}, func(point) int64 { return x.Persist })
	line, err := plotter.NewLine(plotter.XYs{{X: 0, Y: float64(x.Arena)}, {X: step, Y: float64(x.Arena)}})
	if err != nil {
		return fmt.Errorf("explain: %w", err)
	}
	line.Color, line.Dashes = color.RGBA{0xd9, 0x48, 0x5f, 255}, []vg.Length{5, 4}
	p.Add(line)
	p.Legend.Add("allocated on "+x.Label, line)
	p.Legend.Top = true
	p.X.Tick.Marker, p.Y.Tick.Marker = timeTicks{}, sizeTicks{}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, step*1.3, 0, float64(x.Arena)*1.06
	return nil
}

// plotFront draws the front of time and memory.
func (r *Report) plotFront(p *plot.Plot) error {
	if r.Fronts == nil {
		return fmt.Errorf("explain: there are no fronts to draw: nobody searched for them")
	}
	var xys plotter.XYs
	for _, o := range r.Fronts.Memory {
		if o.plan != nil {
			xys = append(xys, plotter.XY{X: float64(o.PeakBytes), Y: o.StepSeconds})
		}
	}
	line, points, err := plotter.NewLinePoints(xys)
	if err != nil {
		return fmt.Errorf("explain: %w", err)
	}
	line.Color = color.RGBA{0x2f, 0x5f, 0xd0, 255}
	points.Color, points.Shape, points.Radius = line.Color, draw.CircleGlyph{}, 4
	p.Add(plotter.NewGrid(), line, points)
	p.X.Label.Text, p.Y.Label.Text = "peak memory of a rank", "time of a step"
	p.X.Tick.Marker, p.Y.Tick.Marker = sizeTicks{}, timeTicks{}
	_, right, _, top := plotter.XYRange(xys)
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = 0, right*1.1, 0, top*1.1
	return nil
}
