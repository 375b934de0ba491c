package planner

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/planner/cost"
)

// The benchmarks of this file are whole searches, on one core: `make bench-planner` runs
// them and writes bench/planner.md. The time of a search does not include tracing, which
// BenchmarkTraceModel measures. The heap begins at 64 MB, as that of `autopar plan` does.

// trillion is Megatron's 1T model (Narayanan et al. 2021, table 1).
func trillion() gpt.Config {
	c, err := gpt.Preset("gpt3-175b")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	c.Preset, c.NLayer, c.NHead, c.NEmbd = "1t", 128, 160, 25600
	return c
}

// benchCase is a search of a model on H100s.
type benchCase struct {
	name           string
	model          gpt.Config
	devices, batch int
	opts           Options // but for the devices
}

func (x benchCase) search(g *ir.Graph, c *cost.Cluster) (*Result, error) {
	x.opts.RuntimeNGPUs = x.devices
	return Search(g, x.batch, c, x.opts)
}

// peakMB is the most memory that the process has had so far, tracing included; 0 where
// the system does not tell.
func peakMB(b *testing.B) float64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	var kilobytes float64
	_, err = fmt.Sscan(rest, &kilobytes)
	require.NoError(b, err)
	return kilobytes * 1024 / 1e6
}

func preset(t testing.TB, name string) gpt.Config {
	c, err := gpt.Preset(name)
	require.NoError(t, err)
	return c
}

// layered is GPT-3 175B with another number of layers.
func layered(t testing.TB, layers int) gpt.Config {
	c := preset(t, "gpt3-175b")
	c.NLayer = layers
	return c
}

func (x benchCase) trace(b testing.TB) *ir.Graph {
	x.model.Float = ir.BF16
	return step(b, x.model, x.batch)
}

func (x benchCase) run(b *testing.B) {
	b.Run(x.name, func(b *testing.B) {
		b.ReportAllocs()
		ballast := make([]byte, 64<<20)
		defer runtime.KeepAlive(ballast)
		g, h100 := x.trace(b), cluster(b, "h100")
		var stats Stats
		for b.Loop() {
			found, err := x.search(g, h100)
			require.NoError(b, err)
			stats = found.Stats
		}
		b.ReportMetric(float64(stats.PlansConsidered), "plans")
		b.ReportMetric(100*stats.Gap, "%gap")
		b.ReportMetric(peakMB(b), "peak-MB")
	})
}

// BenchmarkSearch finds plans of models and clusters as they are trained.
func BenchmarkSearch(b *testing.B) {
	for _, x := range []benchCase{
		{"gpt2-xl/64", preset(b, "gpt2-xl"), 64, 512, Options{}},
		{"llama-3-70b/512", preset(b, "llama-3-70b"), 512, 1024, Options{}},
		{"gpt3-175b/1024", preset(b, "gpt3-175b"), 1024, 1536, Options{}},
		{"1t/16384", trillion(), 16384, 3072, Options{}},
	} {
		x.run(b)
	}
}

// BenchmarkSearchLayers has ever more layers on 1,024 devices.
func BenchmarkSearchLayers(b *testing.B) {
	for _, layers := range []int{12, 24, 48, 96, 128} {
		benchCase{fmt.Sprint(layers), layered(b, layers), 1024, 1536, Options{}}.run(b)
	}
}

// BenchmarkSearchDevices plans GPT-3 13B, which fits, on ever more devices.
func BenchmarkSearchDevices(b *testing.B) {
	for devices := 8; devices <= 16384; devices *= 2 {
		benchCase{fmt.Sprint(devices), preset(b, "gpt3-13b"), devices, 16384, Options{}}.run(b)
	}
}

// BenchmarkSearchBatch has ever larger global batches, and so more micro-batches, for
// GPT-3 175B on 1,024 devices.
func BenchmarkSearchBatch(b *testing.B) {
	for batch := 256; batch <= 16384; batch *= 4 {
		benchCase{fmt.Sprint(batch), preset(b, "gpt3-175b"), 1024, batch, Options{}}.run(b)
	}
}

// BenchmarkSearchOptions plans GPT-2 xl on 8 devices with `autopar plan`'s five alternatives, where options leave fewer degrees.
func BenchmarkSearchOptions(b *testing.B) {
	for _, x := range []struct {
		name string
		opts Options
	}{
		{"none", Options{}}, {"tp-2", Options{TP: 2}}, {"pp-4", Options{PP: 4}}, {"dp-2", Options{DP: 2}},
	} {
		x.opts.PlanNGPUs, x.opts.TopK = 8, 5
		benchCase{x.name, preset(b, "gpt2-xl"), 8, 32, x.opts}.run(b)
	}
}

// BenchmarkSearchInfeasible says that models fit nowhere.
func BenchmarkSearchInfeasible(b *testing.B) {
	for _, x := range []benchCase{
		{"gpt3-175b/8", preset(b, "gpt3-175b"), 8, 1536, Options{}}, {"llama-3.1-405b/16", preset(b, "llama-3.1-405b"), 16, 1024, Options{}},
	} {
		b.Run(x.name, func(b *testing.B) {
			b.ReportAllocs()
			ballast := make([]byte, 64<<20)
			defer runtime.KeepAlive(ballast)
			g, h100 := x.trace(b), cluster(b, "h100")
			for b.Loop() {
				_, err := x.search(g, h100)
				var none *InfeasibleError
				require.True(b, errors.As(err, &none), "%v", err)
			}
			b.ReportMetric(peakMB(b), "peak-MB")
		})
	}
}

// BenchmarkTraceModel traces the training step, which precedes a search.
func BenchmarkTraceModel(b *testing.B) {
	for _, x := range []benchCase{
		{"gpt2-xl", preset(b, "gpt2-xl"), 0, 512, Options{}}, {"gpt3-175b", preset(b, "gpt3-175b"), 0, 1536, Options{}}, {"1t", trillion(), 0, 3072, Options{}},
	} {
		b.Run(x.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				x.trace(b)
			}
		})
	}
}
