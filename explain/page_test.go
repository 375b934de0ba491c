package explain

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/ir"
)

// answered is a report with everything that a page can show. Its plans are real, except that the fronts have only two of them.
func answered(t *testing.T) *Report {
	t.Helper()
	r := report(t, shapes()["combined"])
	other := report(t, shapes()["data"])
	r.cfg.Parallel.MemoryLimit = config.Bytes(other.peak() - 1)
	v, err := r.Against("dp", other.prog.Plan)
	require.NoError(t, err)
	r.Versus = []*Versus{v}
	option := func(change string, x *Report) Option {
		o := Option{Change: change, plan: x.prog.Plan}
		o.fill(float64(x.Tokens), x.prog.Plan, x.Prediction.StepSeconds, []int64{x.peak()})
		return o
	}
	none := Option{Change: "at most 1.00 KiB", Reason: "nothing fits: <script>alert(1)</script>"}
	r.Sensitivities = &Sensitivities{Planned: option("as planned", r), Now: option("searched again", r), Changes: []Option{option("2x HBM bandwidth", other)}}
	r.Fronts = &Fronts{Planned: option("as planned", r), Memory: []Option{option(allMemory, r), option("at most 2.00 MiB", other), none}, Devices: []Option{option("3 devices", other), option("8 devices", r)}}
	r.Price(2)
	return r
}

// pageOf writes the page of a report.
func pageOf(t *testing.T, r *Report) string {
	t.Helper()
	var page bytes.Buffer
	require.NoError(t, r.HTML(&page))
	return page.String()
}

// TestPage: for every shape of plan the page is one file that fetches nothing, its drawings are well-formed, and it has the
// figures of the report.
func TestPage(t *testing.T) {
	drawing := regexp.MustCompile(`(?s)<svg .*?</svg>`)
	for name, s := range shapes() {
		r := report(t, s)
		page := pageOf(t, r)
		require.Equal(t, page, pageOf(t, report(t, s)), name)
		for _, banned := range []string{"src=", "@import", "url(", "http://", "https://"} {
			require.NotContains(t, strings.ReplaceAll(page, `xmlns="http://www.w3.org/2000/svg"`, ""), banned, name)
		}
		drawings := drawing.FindAllString(page, -1)
		require.GreaterOrEqual(t, len(drawings), 6, name)
		for _, svg := range drawings {
			if strings.Contains(svg, "${") {
				continue // it belongs to the script
			}
			d := xml.NewDecoder(strings.NewReader(svg))
			for {
				_, err := d.Token()
				if errors.Is(err, io.EOF) {
					break
				}
				require.NoError(t, err, "%s: %s", name, svg)
			}
			require.NotContains(t, svg, "NaN", name)
			require.NotContains(t, svg, "Inf", name)
		}
		require.Contains(t, page, Seconds(r.Prediction.StepSeconds))
		require.Contains(t, page, Bytes(r.peak()))
		for rank := range r.prog.Schedules {
			require.Contains(t, page, fmt.Sprintf("<title>rank %d: stage ", rank), name)
		}
		require.NotContains(t, page, "Pareto fronts", "%s: nobody searched", name)
	}
	page := pageOf(t, answered(t))
	require.Contains(t, page, "Against dp")
	require.Contains(t, page, "Does not fit: stage 0 over by 1 B")
	require.NotContains(t, page, "<script>alert")
	bare, err := Of(program(t, shapes()["single"]), nil, testConfig())
	require.NoError(t, err)
	require.ErrorContains(t, bare.HTML(io.Discard), "nothing was predicted")
}

// TestDiagram: the diagram has every op and collective of the forward pass of a block once.
func TestDiagram(t *testing.T) {
	s := shapes()["tensor"]
	prog := program(t, s)
	prog.Plan.SequenceParallel = true
	cfg := s.config()
	g, err := cfg.TrainStep()
	require.NoError(t, err)
	prog, err = codegen.Compile(g, prog.Plan, cfg.Batch.Global, nil)
	require.NoError(t, err)
	r, err := Of(prog, nil, cfg)
	require.NoError(t, err)
	drawing := string(r.blockDrawing())
	scatters := 0
	for _, n := range prog.Graph.Nodes {
		if n.Block() == "h.0" && n.Phase == ir.Forward && n.Op.Class() != ir.Leaf {
			require.Equal(t, 1, strings.Count(drawing, "<title>"+n.Name+" ·")+strings.Count(drawing, "<title>"+n.Name+"<"), n.Name)
			if n.Op == ir.OpReduceScatter {
				scatters++
			}
		}
	}
	require.Equal(t, 2, scatters)
}

// TestPageInABrowser opens the page, goes through its views, points and zooms. The page must show what it should, have no errors
// and fetch nothing.
func TestPageInABrowser(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plan.html")
	require.NoError(t, os.WriteFile(path, []byte(pageOf(t, answered(t))), 0o666))
	b := openBrowser(t)
	b.visit(path)
	b.frame()
	shown := func() string {
		return b.eval(`Array.from(document.querySelectorAll("section"), (s) => getComputedStyle(s).display === "none" ? "" : s.id).join("")`)
	}
	require.Equal(t, "overview", shown())
	b.screenshot("overview")
	for _, tab := range []string{"placements", "pareto", "alternatives", "tensors", "timeline"} {
		b.point(`#tabs a[href="#`+tab+`"]`, true)
		require.Equal(t, tab, shown())
		b.screenshot(tab)
	}

	// The timeline: a tip says what runs; the wheel zooms until instructions show, and a button shows the whole step again.
	tip := `document.getElementById("tip").hidden ? "" : document.getElementById("tip").textContent`
	b.point(`#timeline-view rect.task`, false)
	require.Regexp(t, `(?s)\S+\n.*[\d.]+ us, from [\d.]+( us)?`, b.eval(tip))
	bars := `document.querySelectorAll("#timeline-view rect").length`
	widest := `Math.max(...Array.from(document.querySelectorAll("#timeline-view rect.task"), (r) => r.width.baseVal.value))`
	before := b.eval(widest)
	for range 12 {
		b.wheel("#timeline-view", -120)
	}
	require.NotEqual(t, before, b.eval(widest), "zoomed")
	require.NotEqual(t, "0", b.eval(`document.querySelectorAll("#timeline-view rect.k4, #timeline-view rect.k5, #timeline-view rect.k0:not(.task), #timeline-view rect.k1:not(.task)").length`), "instructions are drawn: %s bars", b.eval(bars))
	b.screenshot("timeline-near")
	b.point("#zoom-all", true)
	require.Equal(t, before, b.eval(widest))

	// Memory: the pointer picks a moment, whose tensors are named; a rank can be chosen.
	b.point(`#tabs a[href="#memory"]`, true)
	require.NotContains(t, b.eval(`document.getElementById("memory-detail").textContent`), "in flight")
	b.point("#memory-view", false)
	require.Regexp(t, `At [\d.]+ .*activations of \d micro-batch.*temporary.*· `, b.eval(`document.getElementById("memory-detail").textContent`))
	b.screenshot("memory")
	b.eval(`(() => { const s = document.getElementById("memory-rank"); s.value = 4; s.dispatchEvent(new Event("change")); })()`)
	require.Contains(t, b.eval(`document.getElementById("memory-detail").textContent`), "rank 4 · stage 0")

	// A point of a front says which plan it is.
	b.point(`#tabs a[href="#pareto"]`, true)
	b.point("#front-memory circle", false)
	require.Contains(t, b.eval(tip), "GPU-hours for 1e9 tokens")
	require.Empty(t, b.errors)

	// Dark, and without scripts.
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": "dark"}}}, nil)
	require.Equal(t, "rgb(20, 23, 28)", b.eval(`getComputedStyle(document.body).backgroundColor`))
	b.point(`#tabs a[href="#overview"]`, true)
	b.screenshot("dark")
	b.call("Emulation.setScriptExecutionDisabled", map[string]any{"value": true}, nil)
	b.call("Page.reload", nil, nil)
	reloaded := time.Now()
	for all := "overviewplacementstimelinememoryparetoalternativestensors"; shown() != all; time.Sleep(20 * time.Millisecond) {
		require.Less(t, time.Since(reloaded), time.Minute, "all views at once")
	}
	b.screenshot("static")
	require.Empty(t, b.errors)
}

// TestPicture: every view is a picture in both formats, the same each time.
func TestPicture(t *testing.T) {
	r := answered(t)
	for _, view := range []View{ViewTimeline, ViewMemory, ViewPareto} {
		for format, magic := range map[string]string{"svg": "<?xml", "png": "\x89PNG"} {
			var a, b bytes.Buffer
			require.NoError(t, r.Picture(&a, view, format))
			require.NoError(t, r.Picture(&b, view, format))
			require.True(t, strings.HasPrefix(a.String(), magic), "%s %s", view, format)
			require.Equal(t, a.Bytes(), b.Bytes())
			require.Greater(t, a.Len(), 2000)
		}
	}
	require.ErrorContains(t, r.Picture(io.Discard, "sideways", "svg"), `no view "sideways"`)
	require.ErrorContains(t, report(t, shapes()["single"]).Picture(io.Discard, ViewPareto, "svg"), "no fronts")
}

func TestTicks(t *testing.T) {
	require.Equal(t, []float64{0, 2, 4, 6, 8, 10}, ticks(10))
	require.Equal(t, []float64{0, 0.5, 1, 1.5}, ticks(1.7))
	require.Equal(t, []float64{0}, ticks(0))
	require.Equal(t, "512 MiB", byteText(512<<20))
	require.Equal(t, []float64{0, 1 << 30, 2 << 30}, byteTicks(5.1 * (1 << 30))[:3])
}

// TestChunksOfAStage: the page and the graph name the blocks of each chunk, and not those between chunks, which lie elsewhere.
func TestChunksOfAStage(t *testing.T) {
	r := report(t, shapes()["interleaved"])
	var page, graph bytes.Buffer
	require.NoError(t, r.HTML(&page))
	require.Contains(t, page.String(), "stage 1: ranks 2-3; chunk 0, blocks h.1 to h.2; chunk 1, block h.4, ")
	require.NotContains(t, page.String(), "h.1 to h.4")
	require.NoError(t, r.Dot(&graph))
	require.Contains(t, graph.String(), `"h.1 to h.2, h.4 to h.4: x3"`)
}
