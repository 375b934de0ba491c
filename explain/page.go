package explain

import (
	"embed"
	"fmt"
	"html/template"
	"io"
	"slices"
)

//go:embed page
var pageFiles embed.FS

// pageData is what the template of a page shows. All drawings are complete without the script, which zooms them and answers
// to the pointer.
type pageData struct {
	*Report
	CSS        template.CSS
	JS         template.JS
	Title      string
	Tiles      []tile
	MeshSVG    template.HTML
	Block      template.HTML
	Timeline   template.HTML
	Memory     template.HTML
	Shown      *filmRank // in the memory drawing
	Kinds      []string
	Film       *film
	Terms      template.HTML
	Binds      template.HTML
	FrontPlots []template.HTML
	Plan       string
}

// optionRow is a line of a table of options.
type optionRow struct {
	Option, Base Option
	Price        float64
}

// tile is a headline figure.
type tile struct{ Name, Value, Note string }

// HTML writes one page that loads nothing else: the mesh, the block diagram with its placements, the timeline, memory over
// time, and the alternatives, sensitivities and fronts that the report has. It fails without a prediction.
func (r *Report) HTML(w io.Writer) error {
	f, err := r.film()
	if err != nil {
		return err
	}
	files := map[string]string{}
	for _, name := range []string{"page.css", "page.js"} {
		text, err := pageFiles.ReadFile("page/" + name)
		if err != nil {
			return fmt.Errorf("explain: %w", err)
		}
		files[name] = string(text)
	}
	page, err := template.New("page.html").Funcs(template.FuncMap{
		"seconds": Seconds, "grouped": Grouped, "size": Bytes, "signed": signed, "signedSize": signedSize, "percent": percent,
		"share":  func(part, whole float64) string { return fmt.Sprintf("%.1f %%", 100*part/whole) },
		"minus":  func(a, b float64) float64 { return a - b },
		"less":   func(a, b int64) int64 { return a - b },
		"gain":   func(o, base Option) string { return percent(o.TokensPerSecond/base.TokensPerSecond - 1) },
		"hours":  func(x float64) string { return fmt.Sprintf("%.4g", x) },
		"money":  func(x float64) string { return fmt.Sprintf("%.2f", x) },
		"shape":  shapeText,
		"note":   bindsNote,
		"ranks":  rankText,
		"ratio":  func(a, b float64) float64 { return a / b },
		"whole":  func(x float64) int64 { return int64(x) },
		"row":    func(o, base Option, price float64) optionRow { return optionRow{o, base, price} },
		"blocks": (*Stage).where,
	}).ParseFS(pageFiles, "page/page.html")
	if err != nil {
		return fmt.Errorf("explain: %w", err)
	}
	p := r.Prediction
	data := pageData{
		Report: r, CSS: template.CSS(files["page.css"]), JS: template.JS(files["page.js"]), Plan: PlanText(r.prog.Plan),
		Title:   fmt.Sprintf("%s on %s of %s", r.Model, Count(r.RuntimeNGPUs, "rank"), p.Cluster),
		MeshSVG: r.meshDrawing(), Block: r.blockDrawing(), Timeline: f.timelineDrawing(), Film: f, Kinds: filmKinds(),
		Terms: shareDrawing("terms", p.Terms, p.StepSeconds), Binds: shareDrawing("binds", p.Binds, p.StepSeconds),
	}
	at := slices.IndexFunc(f.Ranks, func(x filmRank) bool { return x.Rank == p.Busiest })
	data.Shown = &f.Ranks[max(at, 0)]
	for i := range f.Ranks {
		if f.Ranks[i].Arena > data.Shown.Arena {
			data.Shown = &f.Ranks[i]
		}
	}
	data.Memory = f.memoryDrawing(data.Shown)
	data.Tiles = r.tiles()
	if r.Fronts != nil {
		data.FrontPlots = r.frontDrawings()
	}
	return page.Execute(w, data)
}

// tiles lists the figures at the top of the page.
func (r *Report) tiles() []tile {
	p := r.Prediction
	binds := slices.MaxFunc(p.Binds, func(a, b Share) int {
		switch {
		case a.Seconds < b.Seconds:
			return -1
		case a.Seconds > b.Seconds:
			return 1
		}
		return 0
	})
	hours := float64(r.RuntimeNGPUs) / 3600 / p.TokensPerSecond * 1e9
	cost, note := fmt.Sprintf("%.4g h", hours), "of a GPU, all ranks together"
	if r.HourPrice > 0 {
		cost, note = fmt.Sprintf("USD %.2f", hours*r.HourPrice), fmt.Sprintf("%.4g GPU-hours", hours)
	}
	return []tile{
		{"a step takes", Seconds(p.StepSeconds), "predicted by simulation"},
		{"tokens per second", Grouped(int64(p.TokensPerSecond)), fmt.Sprintf("%s tokens a step", Grouped(int64(r.Tokens)))},
		{"peak of a rank", Bytes(r.peak()), "the arena, to the byte"},
		{"binds most", binds.Name, fmt.Sprintf("%.0f %% of the busiest rank's step", 100*binds.Seconds/p.StepSeconds)},
		{"1e9 tokens take", cost, note},
	}
}

// frontDrawings plots step time against memory and against devices.
func (r *Report) frontDrawings() []template.HTML {
	memory := r.frontSpots(r.Fronts.Memory, func(o Option) float64 { return float64(o.PeakBytes) }, func(Option) string { return "" })
	devices := r.frontSpots(r.Fronts.Devices, func(o Option) float64 { return float64(o.Ranks) }, func(o Option) string { return fmt.Sprintf("%.3g h", o.GPUHours) })
	var all []template.HTML
	if len(memory) > 0 {
		all = append(all, frontDrawing("front-memory", "peak memory of a rank", "time of a step", byteTicks, byteText, tickSeconds, memory))
	}
	if len(devices) > 0 {
		all = append(all, frontDrawing("front-devices", "devices (GPU-hours for 1e9 tokens beside the points)", "time of a step", ticks,
			func(x float64) string { return fmt.Sprintf("%.0f", x) }, tickSeconds, devices))
	}
	return all
}
