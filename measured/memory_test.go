package measured

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/planner"
)

// TestMemoryConstants: every figure is named, explained and plausible.
func TestMemoryConstants(t *testing.T) {
	m := defaultMemory()
	names := map[string]bool{}
	for _, c := range m.Constants() {
		require.False(t, names[c.Name], c.Name)
		names[c.Name] = true
		require.NotEmpty(t, c.Unit, c.Name)
		require.NotEmpty(t, c.Origin, c.Name)
		require.Equal(t, c.Default, *c.Value, c.Name)
		require.GreaterOrEqual(t, c.Default, c.Least, c.Name)
		require.LessOrEqual(t, c.Default, c.Most, c.Name)
	}
}

func compiled(t *testing.T, line string) *Case {
	c, err := compileRow(read(t, header+line)[0])
	require.NoError(t, err)
	return c
}

func compileRow(r Row) (*Case, error) {
	cases, errs := compile([]Row{r})
	return cases[0], errs[0]
}

// TestUseStartsFromTheArena: if every figure is zero, and gradients have the type that codegen gives them, the prediction is the
// arena, to the byte.
func TestUseStartsFromTheArena(t *testing.T) {
	for _, line := range []string{gptRow, llamaRow, strings.Replace(gptRow, "none", "full", 1)} {
		c := compiled(t, line)
		c.GradDType = "fp32"
		var none Memory
		for i := range c.footprints {
			c.footprints[i].AtOnce = c.footprints[i].Slots // codegen allocates all slots
			u := none.Use(&c.Row, &c.footprints[i])
			require.Zero(t, u.Gaps+u.Reserve)
			rounding := int64(64 * 1000) // gradients are aligned to 64 bytes
			require.InDelta(t, c.footprints[i].Arena(), u.Total(), float64(rounding), "stage %d", i)
		}
	}
}

// TestScores: kernels that write attention scores keep s/(h/a) times as many scores as results (Korthikanti et al. 2022, section
// 4.1: a·b·s² of them, divided by tp). Of recomputed blocks only the one that runs has scores.
func TestScores(t *testing.T) {
	m := Memory{EagerScores: 1}
	for _, c := range []struct {
		recompute   string
		kept, again int64 // blocks
	}{{"none", 6, 0}, {"full", 0, 1}} {
		line := strings.Replace(strings.Replace(gptRow, "none", c.recompute, 1), "bf16,2", "bf16,0", 1)
		k := compiled(t, line)
		k.Framework = ""
		f := &k.footprints[0]
		var without Memory
		a, b := m.Use(&k.Row, f), without.Use(&k.Row, f)
		scores := int64(k.MicroBatch * k.Heads / k.TP * k.SeqLen * k.SeqLen)
		require.Equal(t, c.kept*scores, a.Saved-b.Saved, c.recompute)
		require.Equal(t, c.again*scores, a.Working-b.Working, c.recompute)
	}
}

// TestKernelsAndSoftware: kernels that keep less have a smaller prediction, and the type of gradients counts.
func TestKernelsAndSoftware(t *testing.T) {
	m := defaultMemory()
	use := func(change func(*Case)) int64 {
		c := compiled(t, llamaRow)
		c.FlashAttention, c.FlashAttention2, c.Framework, c.Recompute = false, false, "", "none"
		for i := range c.footprints {
			for k := range c.footprints[i].Forward {
				c.footprints[i].Forward[k].Kept = 4
			}
		}
		change(c)
		return fullest(c.uses(&m)).Total()
	}
	eagerly := use(func(c *Case) { c.Kernels = "torch" })
	fused := use(func(c *Case) { c.Kernels = "fused" })
	flash1 := use(func(c *Case) { c.Kernels, c.FlashAttention = "flash_attentionv1.0.8", true })
	flash2 := use(func(c *Case) { c.Kernels, c.FlashAttention, c.FlashAttention2 = "flash_attention2", true, true })
	norm := use(func(c *Case) {
		c.FusedNorm, c.FlashAttention, c.FlashAttention2 = true, true, true
	})
	wide := use(func(c *Case) {
		c.FusedNorm, c.FlashAttention, c.FlashAttention2, c.GradDType = true, true, true, "fp32"
	})
	require.Greater(t, eagerly, fused)
	require.Greater(t, fused, flash1)
	require.Greater(t, flash1, flash2)
	require.Greater(t, flash2, norm)
	require.Greater(t, wide, norm)
}

// TestLoss: the memory of a loss follows from its kernels.
func TestLoss(t *testing.T) {
	m := defaultMemory()
	for _, c := range []struct {
		row  Row
		want float64
	}{
		{Row{Framework: "Megatron-LM"}, m.LogitsFused},
		{Row{Framework: "Lightning", TP: 8}, m.Logits},
		{Row{Framework: "torchtitan", TP: 1, Compiled: true, Ref: "benchmarks/llama3_h100_202412_torchtitan.md"}, m.Logits},
		{Row{Framework: "torchtitan", TP: 8, Compiled: true, Ref: "benchmarks/llama3_h100_202412_torchtitan.md"}, m.LogitsParallel},
		{Row{Framework: "torchtitan", TP: 8, Compiled: true, Ref: "benchmarks/llama3-8b_h200_202506_x.md"}, m.LogitsHalf},
		{Row{Framework: "llm-foundry/Composer FSDP", TP: 1}, m.LogitsHalf},
		{Row{Framework: "llm.c", TP: 1}, m.LogitsFused},
		{Row{Framework: "torchtitan", TP: 8, Ref: "benchmarks/llama3-8b_h200_202506_x.md"}, m.LogitsParallel},
	} {
		s := c.row.habits()
		require.Equal(t, 1000*c.want, m.head(&s, &c.row, 1000), "%+v", c.row)
	}
}

// TestPublishedPeaks: each kind of published peak is compared with the part of the prediction that it measures.
func TestPublishedPeaks(t *testing.T) {
	uses := []Use{{States: 10, Saved: 5, Working: 3, Gaps: 2, Reserve: 1}, {States: 20, Saved: 5, Working: 3, Gaps: 2, Reserve: 1}}
	for kind, want := range map[string]int64{
		"nvidia_smi_gb_first_stage": 21, "nvidia_smi": 31, "torch_max_reserved_max_over_ranks": 30, "torch_peak": 28, "xla_peak_gb": 28,
	} {
		require.Equal(t, want, peakAs(kind, uses), kind)
	}
}

// TestPeakUnits: gigabytes read from nvidia-smi are 1000 MiB.
func TestPeakUnits(t *testing.T) {
	for kind, want := range map[string]float64{"nvidia_smi_gb_first_stage": 2000 << 20, "xla_peak_gb": 2 << 30, "torch_max_reserved": 2 << 30} {
		rows := read(t, strings.Replace(header, "\n", ",peak_mem_gib,peak_mem_kind\n", 1)+strings.Replace(gptRow, "\n", ",2,"+kind+"\n", 1))
		require.Equal(t, want, rows[0].Peak, kind)
	}
}

// TestMegatron: Megatron gathers again for sequence parallelism in the backward pass, keeps operands of 8-bit products in 8 bits,
// and has memory only for the micro-batches that are in flight at the same time. Alpa's gradients are in 16 bits.
func TestMegatron(t *testing.T) {
	m := defaultMemory()
	row := Row{SequenceParallel: true, Hidden: 64, Heads: 4, SeqLen: 128, FlashAttention: true}
	keeps := func(framework, dtype string, op ir.Op, block bool) float64 {
		row.Framework, row.DType = framework, dtype
		s := row.habits()
		kept, _ := m.besides(&s, &row, &planner.Made{Op: op, Result: 2000, Source: 1000, InBlock: block})
		return kept
	}
	require.Equal(t, 2*1000.0, keeps("torchtitan", "bf16", ir.OpAllGather, true))
	require.Zero(t, keeps("Megatron-Core", "bf16", ir.OpAllGather, true))
	require.Zero(t, keeps("Megatron-Core", "bf16", ir.OpSwiGLU, true))
	require.Equal(t, -2000.0, keeps("Megatron-Core", "fp8", ir.OpSwiGLU, true))
	require.Equal(t, -2000.0, keeps("Megatron-Core", "fp8", ir.OpRMSNorm, true))
	require.Zero(t, keeps("Megatron-Core", "fp8", ir.OpRMSNorm, false), "the head's product is in 16 bits")
	require.Equal(t, 2000.0, keeps("Megatron-Core", "fp8", ir.OpAttention, true), "its own gradient reads it in 16")

	var none Memory
	f := planner.Footprint{Weights: 600, State: 1200, Elements: 300, Saved: 1000, Slots: 5, AtOnce: 4}
	states := func(r Row) int64 { return none.Use(&r, &f).States }
	require.EqualValues(t, 600+2*300+1200, states(Row{Framework: "Megatron-Core", DP: 2, CP: 1, ZeRO: 1}))
	require.EqualValues(t, 600+4*300+1200, states(Row{Framework: "torchtitan", DP: 2, CP: 2, ZeRO: 3}))
	require.EqualValues(t, 600+2*300+1200, states(Row{Framework: "Alpa", DP: 2, CP: 1, ZeRO: 1}))
	require.EqualValues(t, 800, none.Use(&Row{Framework: "Megatron-Core", CP: 1}, &f).Saved)
}

// TestShardsOfContextParallelRanks: what ZeRO shards is shared out over context-parallel ranks as well, which zero_shard_degree
// counts. Groups that leave some of these out are refused.
func TestShardsOfContextParallelRanks(t *testing.T) {
	row := func(cp, zero, degree int) (*Case, error) {
		rows := read(t, strings.Replace(header, "\n", ",zero_shard_degree\n", 1)+
			fmt.Sprintf("r1,s,6,768,12,12,3072,0,50304,1024,A100-80GB-SXM,%d,8,1,1,1,%d,4,0,%d,1,16,none,bf16,2,0.5,Megatron-Core,%d\n", 4*cp, cp, zero, degree))
		cases, errs := compile(rows)
		return cases[0], errs[0]
	}
	state := func(cp, zero, degree int) float64 {
		c, err := row(cp, zero, degree)
		require.NoError(t, err)
		return float64(c.footprints[0].State)
	}
	alone, err := row(2, 0, 0)
	require.NoError(t, err)
	all := float64(alone.footprints[0].State)
	for _, x := range []struct {
		cp, degree int
		over       float64
	}{{1, 0, 4}, {1, 4, 4}, {1, 2, 2}, {2, 0, 8}, {2, 8, 8}, {2, 4, 4}} {
		require.InEpsilon(t, all/x.over, state(x.cp, 1, x.degree), 0.02, "cp %d, degree %d", x.cp, x.degree)
	}
	whole, err := row(2, 1, 8)
	require.NoError(t, err)
	sharded, err := row(2, 3, 8)
	require.NoError(t, err)
	require.InEpsilon(t, float64(whole.footprints[0].Weights)/8, float64(sharded.footprints[0].Weights), 0.02)
	for _, degree := range []int{1, 2} {
		_, err := row(2, 1, degree)
		require.ErrorContains(t, err, fmt.Sprintf("zero_shard_degree is %d: groups that do not hold", degree))
	}
}

// TestCompiledNorms: a compiler recomputes the two norms of a block and does not keep them in bfloat16.
func TestCompiledNorms(t *testing.T) {
	c := compiled(t, llamaRow)
	made := planner.Made{Op: ir.OpRMSNorm, Result: 1000}
	m := defaultMemory()
	for _, k := range []struct {
		compiled, fused bool
		want            float64
	}{{false, false, 1000 * m.Norm}, {false, true, 0}, {true, true, -1000 * m.Rounded}} {
		c.Compiled = k.compiled
		kept, live := m.besides(&habits{fusedNorm: k.fused}, &c.Row, &made)
		require.Equal(t, k.want, kept)
		require.Zero(t, live)
	}
}

// TestCut: software cuts what it counts as layers.
func TestCut(t *testing.T) {
	for _, c := range []struct {
		framework, kernels string
		layers, stages     int
		want               []int
	}{
		{"Megatron-LM", "", 40, 4, []int{10, 10, 10, 10}},
		{"Megatron-LM", "", 8, 3, []int{3, 3, 2}},
		{"Megatron-DeepSpeed", "", 70, 12, []int{5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5}},
		{"AA-Scaling", "", 40, 2, []int{21, 19}},
		{"", "torch", 80, 8, []int{10, 11, 11, 10, 10, 10, 10, 8}},
		{"", "", 80, 8, []int{10, 10, 10, 10, 10, 10, 10, 10}},
		{"", "torch", 4, 4, []int{1, 1, 1, 1}},
	} {
		r := Row{Framework: c.framework, Kernels: c.kernels, Layers: c.layers}
		require.Equal(t, c.want, r.cut(c.stages), "%+v", c)
	}
}

func TestJudge(t *testing.T) {
	yes, no := true, false
	outcomes := []Outcome{
		{Row: Row{Fits: &yes}, PredictedFits: true}, {Row: Row{Fits: &yes}}, {Row: Row{Fits: &no}, PredictedFits: true},
		{Row: Row{Fits: &no}}, {Row: Row{StepSeconds: 1}, PredictedFits: true}, {Row: Row{}},
	}
	c := Judge(outcomes, nil)
	require.Equal(t, Confusion{Fits: 2, OutOfMemory: 1, FalseFits: 1, FalseOut: 1}, c)
	require.InDelta(t, 0.6, c.Accuracy(), 1e-12)
	require.Equal(t, 2, Judge(outcomes, func(o *Outcome) bool { return o.PredictedFits && o.Fits != nil }).Rows())
	all := SummarizeMemory([]Outcome{
		{Row: Row{Source: "a", Peak: 10 << 30}, PredictedPeak: 11 << 30}, {Row: Row{Source: "a", Peak: 10 << 30}, PredictedPeak: 8 << 30}, {},
	})
	require.Len(t, all, 1)
	require.InDelta(t, 0.15, all["a"].MAPE, 1e-12)
	require.InDelta(t, -0.05, all["a"].Bias, 1e-12)
	require.True(t, math.IsNaN((&Outcome{}).MemoryError()))
}

// TestPublishedMemory compares predictions of the table of outcomes with what bench/validate.md says.
func TestPublishedMemory(t *testing.T) {
	file, err := os.Open(filepath.Join("..", "..", "shared", "measured", "memory_fit_train.csv"))
	if err != nil {
		t.Skip("the published measurements are not here: ", err)
	}
	defer file.Close()
	rows, err := Read("memory_fit_train.csv", file)
	require.NoError(t, err)
	var some []Row
	for i, r := range rows {
		if i%6 == 0 {
			some = append(some, r)
		}
	}
	outcomes, skipped := Evaluate(some, nil)
	require.Empty(t, skipped)
	require.Greater(t, Judge(outcomes, nil).Accuracy(), 0.965)
}
