package measured

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestConstantsArePlausible: the built-in constants lie in the ranges of the fit, all constants of one parameter are equal, and no
// software has less than half the traffic of one kernel.
func TestConstantsArePlausible(t *testing.T) {
	k := NewConstants()
	for _, p := range Parameters() {
		require.Less(t, p.Least, p.Prior, p.Name)
		require.Less(t, p.Prior, p.Most, p.Name)
		for _, at := range p.at(k) {
			require.GreaterOrEqual(t, *at, p.Least, p.Name)
			require.LessOrEqual(t, *at, p.Most, p.Name)
			require.Equal(t, p.value(k), *at, p.Name)
		}
	}
	for _, name := range []string{"v100", "v100-32g"} { // their products run at 75 to 95 TFLOP/s: see the cluster files
		require.InDelta(t, 0.68, k.Clusters[name].Device.Efficiency.Matmul, 0.08, name)
	}
	for _, s := range k.Software {
		for what, multiple := range map[string]float64{
			"RMSNorm": s.RMSNorm, "activation": s.Activation, "rotation": s.Rotation, "loss": s.Loss, "optimizer": s.Optimizer,
			"elementwise": s.Elementwise, "cast": s.Cast,
		} {
			require.True(t, multiple == 0 || multiple >= 0.25 && multiple <= 20, "%s of %s is %v", what, s.Name, multiple)
		}
		require.True(t, !s.Scores || s.ScoreBytes >= 6 && s.ScoreBytes <= 40, s.Name)
		require.LessOrEqual(t, max(s.Host, s.Sync), 1e-4, s.Name)
	}
}

// synthetic is a table of runs whose measured times are what constants predict.
func synthetic(t *testing.T, k *Constants) []Row {
	text := header
	n := 0
	for source, framework := range []string{"torchtitan", "Megatron-LM", "llm.c"} {
		for _, gpu := range []string{"A100-80GB-SXM", "H100-80GB-SXM"} {
			for _, hidden := range []int{512, 2048} {
				for _, tp := range []int{1, 4} {
					n++
					text += fmt.Sprintf("r%d,s%d,4,%d,8,8,%d,%d,32000,1024,%s,16,8,%d,1,1,1,%d,0,0,2,128,none,bf16,%d,1,%s\n",
						n, source, hidden, 4*hidden, source%2, gpu, tp, 16/tp, 1+source%2, framework)
				}
			}
		}
	}
	rows := read(t, text)
	for i, r := range rows {
		c, err := compileRow(r)
		require.NoError(t, err)
		rows[i].StepSeconds = c.seconds(k)
	}
	return rows
}

// TestFitRecovers: a fit that starts at other constants finds those that the rows were made with.
func TestFitRecovers(t *testing.T) {
	planted := NewConstants()
	want := map[string]float64{"products, A100": 0.75, "products, H100": 0.6, "memory": 0.75}
	for _, p := range Parameters() {
		if v, ok := want[p.Name]; ok {
			p.set(planted, v)
		}
	}
	fit, skipped, err := Refit(synthetic(t, planted), NewConstants(), func(string, int, int) {})
	require.NoError(t, err)
	require.Empty(t, skipped)
	require.Less(t, MeanMAPE(Summarize(fit.Rows)), 0.004)
	require.Less(t, MeanMAPE(Summarize(fit.LeftOut)), 0.08)
	for _, p := range fit.Parameters {
		if v, ok := want[p.Name]; ok {
			require.InEpsilon(t, v, p.Value, 0.04, p.Name)
		}
		require.False(t, math.IsNaN(p.Spread), p.Name)
	}
	for i := range fit.Loss[1:] {
		require.Less(t, fit.Loss[i+1], fit.Loss[i])
	}
	var svg bytes.Buffer
	require.NoError(t, Plot(&svg, fit.Rows, "svg"))
	require.Contains(t, svg.String(), "s0 (8)")
}

// TestLowConfidenceIsNoSource: a source with rows of low confidence only does not count as a source when one is left out.
func TestLowConfidenceIsNoSource(t *testing.T) {
	parameters := Parameters()[:1]
	without := func(sources ...string) float64 {
		var cases []*Case
		p := &problem{jacobian: [][]float64{nil}, at: []float64{0.9 * math.Log(parameters[0].Prior)}, parameters: parameters}
		for i, source := range sources {
			c := &Case{Row: Row{Source: source}}
			if source == "low" {
				c.Confidence = source
			}
			cases = append(cases, c)
			p.e, p.jacobian[0] = append(p.e, 0.1*float64(i)-0.05), append(p.jacobian[0], -1)
		}
		table := newTable([][]*Case{cases})
		p.weight = table.weight
		return table.without(p, "a")[0]
	}
	require.Equal(t, without("a", "b", "c"), without("a", "b", "c", "low"))
}

// TestFitNeedsSources: a fit to one source is refused.
func TestFitNeedsSources(t *testing.T) {
	_, _, err := Refit(read(t, header+gptRow+llamaRow), NewConstants(), func(string, int, int) {})
	require.ErrorContains(t, err, "a fit needs rows of two sources")
}

// TestFamilies: rows that differ only in micro-batch and recomputation share a compilation, and have the same prices as when they
// are compiled alone.
func TestFamilies(t *testing.T) {
	rows := read(t, header+gptRow+
		"r3,s,6,768,12,12,3072,0,50304,1024,A100-80GB-SXM,4,8,2,1,1,1,2,1,1,4,16,full,bf16,2,0.7,torchtitan\n"+llamaRow)
	require.Equal(t, [][]int{{0, 1}, {2}}, families(rows))
	outcomes, _ := Evaluate(rows, nil)
	for i := range rows {
		alone, _ := Evaluate(rows[i:i+1], nil)
		require.Equal(t, alone[0], outcomes[i])
	}
}

// TestSoftwareByRule: the software of a row follows from what the row says, not from its source.
func TestSoftwareByRule(t *testing.T) {
	for _, c := range []struct {
		row  Row
		want string
	}{
		{Row{Framework: "Megatron-LM", Ref: "arXiv:2104.04473 Table 1"}, "megatron-2021"},
		{Row{Framework: "Megatron-LM", Ref: "arXiv:2205.05198 Table 5"}, "megatron-2022"},
		{Row{Framework: "DeepSpeed ZeRO-3"}, "deepspeed-2021"},
		{Row{Framework: "Megatron-DeepSpeed"}, "megatron-deepspeed"},
		{Row{Framework: "Megatron-DeepSpeed", DType: "fp16", GradDType: "fp16"}, "megatron-deepspeed"},
		{Row{Framework: "Megatron-DeepSpeed", DType: "bf16", GradDType: "fp32"}, "megatron-deepspeed-bf16"},
		{Row{Framework: "llm-foundry/Composer FSDP"}, "torch"},
		{Row{Framework: "torchtitan", Compiled: true}, "torch-compile"},
		{Row{Framework: "torchtitan"}, "torch"},
		{Row{Framework: "torchtitan", DType: "fp8"}, "torch-compile"},
		{Row{Framework: "AA-Scaling"}, "scaling"},
		{Row{Framework: "NeMo/Megatron-Core"}, "fused"},
		{Row{Framework: "flash-attn training (Lightning)"}, "fused-amp"},
		{Row{Framework: "Pax/XLA"}, "xla"},
	} {
		require.Equal(t, c.want, c.row.generation(), c.row.Framework)
		c.row.Source = "another"
		require.Equal(t, c.want, c.row.software().Name)
	}
	// Gradients are reduced in the type that rows state, or in torchtitan's default, and in that of the gradients otherwise.
	for bytes, rows := range map[float64][]Row{
		4: {{Framework: "torchtitan"}, {Framework: "llm-foundry/Composer FSDP", GradDType: "fp32"}},
		0: {{Framework: "llm-foundry/Composer FSDP", GradDType: "bf16"}, {Framework: "flash-attn training (Lightning)"}},
	} {
		for _, row := range rows {
			require.Equal(t, bytes, row.software().Reduce, row.Framework)
		}
	}
	async := Row{Framework: "torchtitan", Compiled: true, Note: "float8 linear layers; async TP overlap"}
	require.True(t, async.software().AsyncTP && async.software().ChunkedTP)
	async.Note = "float8 linear layers"
	require.False(t, async.software().AsyncTP || async.software().ChunkedTP)
	eager := Row{Framework: "AA-Scaling", FlashAttention: true}
	kernel := eager
	kernel.FusedNorm, kernel.FlashAttention2 = true, true
	require.Greater(t, eager.software().RMSNorm, 5.0)
	require.Equal(t, 1.0, kernel.software().RMSNorm)
	require.Positive(t, eager.software().Flash, "FlashAttention-1 where nothing is said")
	require.Zero(t, kernel.software().Flash)
	require.True(t, (&Row{Framework: "AA-Scaling"}).software().Scores)
}

// TestPublished compares errors on the published tables, if these are there, with what bench/validate.md says.
func TestPublished(t *testing.T) {
	file, err := os.Open(filepath.Join("..", "..", "shared", "measured", "train.csv"))
	if err != nil {
		t.Skip("the published measurements are not here: ", err)
	}
	defer file.Close()
	rows, err := Read("train.csv", file)
	require.NoError(t, err)
	var some []Row
	for i, r := range rows {
		if n := map[string]int{"alephalpha_layouts": 12, "mosaicml_mpt": 9, "bloom_tuning": 6}[r.Source]; n == 0 || i%n == 0 {
			some = append(some, r)
		}
	}
	outcomes, _ := Evaluate(some, nil)
	all := Summarize(outcomes)
	require.Less(t, MeanMAPE(all), 0.06)
	for source, s := range all {
		require.Less(t, s.MAPE, 0.2, source)
	}
	for source, s := range SummarizeMemory(outcomes) {
		require.Less(t, s.MAPE, 0.06, source)
	}
	require.Less(t, all["alephalpha_layouts"].MAPE, 0.06)
}

// TestPublishedChoices: of two plans, the one that ran faster is predicted to be faster. The plans of each pair differ in the number
// of nodes of a data-parallel group, and the all-reduce of whole gradients decides.
func TestPublishedChoices(t *testing.T) {
	rows, err := Load(filepath.Join("..", "..", "shared", "measured", "train.csv"))
	if err != nil {
		t.Skip("the published measurements are not here: ", err)
	}
	seconds := func(id string) float64 {
		i := slices.IndexFunc(rows, func(r Row) bool { return r.ID == id })
		outcomes, skipped := Evaluate(rows[i:i+1], nil)
		require.Empty(t, skipped)
		return outcomes[0].PredictedSeconds
	}
	for _, pair := range [][2]string{{"m0294", "m0300"}, {"m0381", "m0389"}, {"m0383", "m0391"}, {"m0403", "m0422"}} {
		require.Less(t, seconds(pair[0]), seconds(pair[1]), pair)
	}
}
