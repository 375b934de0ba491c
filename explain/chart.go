package explain

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"slices"
	"strings"
)

// The measures of drawings over time.
const (
	chartWidth = 1100.0
	chartLeft  = 130.0 // room for the names of ranks
	laneHeight = 26.0
	laneGap    = 8.0
)

// timelineDrawing shows the passes of every rank of a film. The script of the page replaces it by a drawing that can be
// zoomed.
func (f *film) timelineDrawing() template.HTML {
	d := &drawing{width: chartWidth, height: float64(len(f.Ranks))*(laneHeight+laneGap) + 34}
	scale := (chartWidth - chartLeft - 10) / float64(max(f.Step, 1))
	bottom := d.height - 28
	for _, t := range ticks(float64(f.Step)) {
		x := chartLeft + t*scale
		d.line(x, 4, x, bottom, "grid")
		d.text(x, bottom+16, "tiny muted", "middle", tickSeconds(t/1e9))
	}
	for i, r := range f.Ranks {
		y := float64(i)*(laneHeight+laneGap) + 4
		d.text(chartLeft-10, y+laneHeight/2+4, "small", "end", r.Label)
		d.box(chartLeft, y, float64(f.Step)*scale, laneHeight, "idle", "waiting")
		for _, t := range r.Tasks {
			w := max(0.4, float64(t.End-t.Start)*scale)
			x := chartLeft + float64(t.Start)*scale
			d.box(x, y, w, laneHeight, fmt.Sprintf("k%d task", t.Kind), fmt.Sprintf("%s: %s, %s", r.Label, t.Name, Seconds(float64(t.End-t.Start)/1e9)))
			if w > 16 && t.Kind != filmUpdate {
				d.text(x+w/2, y+laneHeight/2+4, "ontask", "middle", fmt.Sprint(t.MicroBatch))
			}
		}
	}
	return d.svg("timeline-svg", "timeline of ranks")
}

// memoryDrawing shows the memory of one rank of a film over time: persistent buffers, what micro-batches in flight keep, and
// temporary buffers, below the line of the arena that the rank allocates.
func (f *film) memoryDrawing(r *filmRank) template.HTML {
	d := &drawing{width: chartWidth, height: 320}
	const top, bottom = 14.0, 286.0
	scale := (chartWidth - chartLeft - 10) / float64(max(f.Step, 1))
	most := float64(r.Arena) * 1.06
	x := func(t int64) float64 { return chartLeft + float64(t)*scale }
	y := func(bytes int64) float64 { return bottom - (bottom-top)*float64(bytes)/most }
	for _, t := range byteTicks(most) {
		d.line(chartLeft, y(int64(t)), chartWidth-10, y(int64(t)), "grid")
		d.text(chartLeft-8, y(int64(t))+4, "tiny muted", "end", byteText(t))
	}
	area := func(class string, of func(point) int64) {
		var path strings.Builder
		fmt.Fprintf(&path, "M%.1f %.1f", x(0), bottom)
		fmt.Fprintf(&path, "V%.1f", y(r.Persist))
		for _, p := range r.Points {
			fmt.Fprintf(&path, "H%.1fV%.1f", x(p.Time), y(of(p)))
		}
		fmt.Fprintf(&path, "H%.1fV%.1fZ", x(f.Step), bottom)
		d.add(`<path d="%s" class="%s"/>`, path.String(), class)
	}
	area("mtemp", func(p point) int64 { return r.Persist + p.Saved + p.Temp })
	area("msaved", func(p point) int64 { return r.Persist + p.Saved })
	level := r.Persist
	for i, p := range slices.Backward(r.Parts) {
		d.box(chartLeft, y(level), float64(f.Step)*scale, y(level-p.Bytes)-y(level), fmt.Sprintf("mpart%d", i%4), p.Kind+": "+Bytes(p.Bytes))
		if h := y(level-p.Bytes) - y(level); h > 16 {
			d.text(chartLeft+10, y(level)+h/2+4, "ontask", "start", p.Kind+" "+Bytes(p.Bytes))
		}
		level -= p.Bytes
	}
	d.line(chartLeft, y(r.Arena), chartWidth-10, y(r.Arena), "limit")
	d.text(chartWidth-14, y(r.Arena)-5, "tiny", "end", "allocated: "+Bytes(r.Arena))
	for _, t := range ticks(float64(f.Step)) {
		d.text(x(int64(t)), bottom+18, "tiny muted", "middle", tickSeconds(t/1e9))
	}
	return d.svg("memory-svg", "memory over time of "+r.Label)
}

// tickSeconds prints a round time.
func tickSeconds(s float64) string {
	if s == 0 {
		return "0"
	}
	return Seconds(s)
}

// byteTicks returns amounts of memory from 0 to about a maximum, round in the unit of the maximum.
func byteTicks(most float64) []float64 {
	unit := math.Pow(1024, math.Floor(math.Log2(max(most, 1))/10))
	all := ticks(most / unit)
	for i := range all {
		all[i] *= unit
	}
	return all
}

// byteText prints a round amount of memory.
func byteText(x float64) string {
	value, unit := inUnits(x)
	return fmt.Sprintf("%.4g %s", value, unit)
}

// spot is a point in the plot of a Pareto front.
type spot struct {
	x, y  float64
	label string // printed beside it
	tip   string // shown under the pointer
	best  bool   // on the front: no other point is better in both coordinates
	ours  bool   // the reported plan
}

// frontDrawing plots points and joins those on the front. Both axes start at 0.
func frontDrawing(id, xName, yName string, xTicks func(float64) []float64, xText, yText func(float64) string, spots []spot) template.HTML {
	d := &drawing{width: 540, height: 330}
	const left, right, top, bottom = 70.0, 520.0, 16.0, 280.0
	var xMost, yMost float64
	for _, s := range spots {
		xMost, yMost = max(xMost, s.x), max(yMost, s.y)
	}
	xMost, yMost = xMost*1.12, yMost*1.12
	if xMost == 0 || yMost == 0 {
		return ""
	}
	x := func(v float64) float64 { return left + (right-left)*v/xMost }
	y := func(v float64) float64 { return bottom - (bottom-top)*v/yMost }
	for _, t := range xTicks(xMost) {
		d.line(x(t), top, x(t), bottom, "grid")
		d.text(x(t), bottom+16, "tiny muted", "middle", xText(t))
	}
	for _, t := range ticks(yMost) {
		d.line(left, y(t), right, y(t), "grid")
		d.text(left-8, y(t)+4, "tiny muted", "end", yText(t))
	}
	d.text((left+right)/2, bottom+38, "small muted", "middle", xName)
	d.text(left, top-4, "small muted", "start", yName)
	path := ""
	for _, s := range spots {
		if s.best {
			path += fmt.Sprintf("%c%.1f %.1f", "ML"[min(len(path), 1)], x(s.x), y(s.y))
		}
	}
	d.add(`<path d="%s" class="front"/>`, path)
	for _, s := range slices.Backward(spots) { // the reported plan comes first, and must be on top
		class := "spot"
		switch {
		case s.ours:
			class += " ours"
		case !s.best:
			class += " beaten"
		}
		d.add(`<circle cx="%.1f" cy="%.1f" r="6" class="%s" tabindex="0"><title>%s</title></circle>`, x(s.x), y(s.y), class, html.EscapeString(s.tip))
		if s.label != "" && !s.ours {
			d.text(x(s.x), y(s.y)-11, "tiny", "middle", s.label)
		}
	}
	return d.svg(id, yName+" against "+xName)
}

// frontSpots turns options into points, after one for the reported plan, which may coincide with an option. x is the
// horizontal coordinate of an option. Options without a plan have no point.
func (r *Report) frontSpots(options []Option, x func(Option) float64, label func(Option) string) []spot {
	options = append([]Option{r.Fronts.Planned}, options...)
	var spots []spot
	for i, o := range options {
		if o.plan == nil {
			continue
		}
		best := true
		for k, other := range options {
			if other.plan != nil && k != i && x(other) <= x(o) && other.StepSeconds <= o.StepSeconds && (x(other) < x(o) || other.StepSeconds < o.StepSeconds) {
				best = false
			}
		}
		tip := fmt.Sprintf("%s\n%s per step, %s tokens/s, %s, %.4g GPU-hours for 1e9 tokens", o.Plan, Seconds(o.StepSeconds), Grouped(int64(o.TokensPerSecond)), Bytes(o.PeakBytes), o.GPUHours)
		if r.HourPrice > 0 {
			tip += fmt.Sprintf(", USD %.2f", o.Cost)
		}
		spots = append(spots, spot{x(o), o.StepSeconds, label(o), tip, best && i > 0, i == 0})
	}
	return spots
}

const shareWidth = 560.0

// shareDrawing shows the parts of a step as one bar. total is their sum, in seconds.
func shareDrawing(id string, shares []Share, total float64) template.HTML {
	d := &drawing{width: shareWidth, height: 34}
	x := 0.0
	for i, s := range shares {
		w := shareWidth * s.Seconds / total
		if w <= 0 {
			continue
		}
		d.box(x, 0, w, 34, fmt.Sprintf("share%d", i), fmt.Sprintf("%s: %s, %.1f %%", s.Name, Seconds(s.Seconds), 100*s.Seconds/total))
		if w > 36 {
			d.text(x+w/2, 21, "ontask", "middle", fmt.Sprintf("%.0f %%", 100*s.Seconds/total))
		}
		x += w
	}
	return d.svg(id, "shares of the step")
}
