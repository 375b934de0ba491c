package measured

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
)

const header = "row_id,source_id,n_layers,hidden_size,n_heads,n_kv_heads,ffn_hidden_size,ffn_gated,vocab_size,seq_len,gpu,n_gpus,gpus_per_node,tp,pp,vpp,cp,dp," +
	"sequence_parallel,zero_stage,micro_batch,global_batch,recompute,dtype,flash_attention,step_time_s,framework\n"

// gpt is a small GPT on four A100s, llama one with interleaved stages.
const (
	gptRow   = "r1,s,6,768,12,12,3072,0,50304,1024,A100-80GB-SXM,4,8,2,1,1,1,2,1,1,2,16,none,bf16,2,0.5,torchtitan\n"
	llamaRow = "r2,s,8,768,12,12,2048,1,32000,2048,H100-80GB-SXM,8,8,1,2,2,1,4,0,0,1,24,full,bf16,1,0.7,Megatron-LM\n"
)

func read(t *testing.T, text string) []Row {
	rows, err := Read("t.csv", strings.NewReader(text))
	require.NoError(t, err)
	return rows
}

// TestPredictionIsThePlanners: the price of a row is the planner's price of its plan.
func TestPredictionIsThePlanners(t *testing.T) {
	rows := read(t, header+gptRow+llamaRow)
	outcomes, skipped := Evaluate(rows, nil)
	require.Empty(t, skipped)
	require.Len(t, outcomes, 2)
	for i, o := range outcomes {
		r := rows[i]
		plan, err := r.plan()
		require.NoError(t, err)
		base, err := r.cluster()
		require.NoError(t, err)
		g, err := r.graph()
		require.NoError(t, err)
		e, err := planner.NewEstimator(g, r.GlobalBatch, base, plan, r.pins()...)
		require.NoError(t, err)
		whole, err := planner.Predict(g, r.GlobalBatch, r.equipped(base), e.Plan(), nil)
		require.NoError(t, err)
		require.Equal(t, whole.Step.Seconds(), o.PredictedSeconds, "row %s", r.ID)
		most := int64(0)
		for _, b := range whole.PeakBytes {
			most = max(most, b)
		}
		require.LessOrEqual(t, o.ArenaBytes, most)
		require.Greater(t, o.ArenaBytes, most*8/10, "a bound worth having")
	}
	require.True(t, outcomes[0].PredictedFits)
}

// scheduled is a table of one row, with a column for the schedule.
func scheduled(word, row string) string {
	return strings.Replace(header, "framework", "schedule", 1) + row[:strings.LastIndex(row, ",")+1] + word + "\n"
}

// named returns a table of gptRow with a word in a column in place of the framework.
func named(column, word string) string {
	return strings.Replace(header, "framework", column, 1) + strings.Replace(gptRow, "torchtitan", word, 1)
}

// TestLongSteps: rows whose step is too long to price are refused, on clusters of the caller too.
func TestLongSteps(t *testing.T) {
	of := func(set func(*cost.Cluster)) error {
		own, err := cost.Load("a100-80g")
		require.NoError(t, err)
		set(own)
		rows, err := Read("t.csv", strings.NewReader(header+gptRow), own)
		if err == nil {
			Evaluate(rows, nil)
		}
		return err
	}
	const want = "t.csv:2: global_batch: is 16 sequences, in a step roughly "
	require.NoError(t, of(func(*cost.Cluster) {}))
	require.ErrorContains(t, of(func(c *cost.Cluster) { c.IntraNode.Bandwidth = 1000 }), want)
	require.ErrorContains(t, of(func(c *cost.Cluster) { c.Device.FLOPS = map[string]float64{"f32": 1e6, "bf16": 1e6} }), want)

	slow := strings.Replace(header, "framework", "inter_node_gb_s_per_gpu", 1)
	_, err := Read("t.csv", strings.NewReader(slow+strings.NewReplacer("SXM,4,8", "SXM,4,2", "torchtitan", "1e-6").Replace(gptRow)))
	require.ErrorContains(t, err, want)
}

// TestHeaders: names may be in quotes, after a byte order mark too, and have spaces around them.
func TestHeaders(t *testing.T) {
	for _, first := range []string{`"row_id"`, "\ufeffrow_id", "\ufeff\"row_id\"", "row_id "} {
		require.Equal(t, read(t, header+gptRow), read(t, strings.Replace(header, "row_id", first, 1)+gptRow), "%q", first)
	}
}

// TestColumnsWithoutNames: spreadsheets write them beside a table, with nothing in them.
func TestColumnsWithoutNames(t *testing.T) {
	rows := read(t, strings.Replace(header, "\n", ",,\n", 1)+strings.Replace(gptRow, "\n", ",,\n", 1))
	require.Equal(t, read(t, header+gptRow), rows)
}

// TestOwnCluster: exactly the rows with the device of the caller's own cluster are predicted on it.
func TestOwnCluster(t *testing.T) {
	own, err := cost.Load("a100-80g")
	require.NoError(t, err)
	slow := *own
	slow.Device.Efficiency.Matmul /= 4
	builtin, _ := Evaluate(read(t, header+gptRow+llamaRow), nil)
	rows, err := Read("t.csv", strings.NewReader(header+gptRow+llamaRow), &slow)
	require.NoError(t, err)
	got, _ := Evaluate(rows, nil)
	require.Greater(t, got[0].PredictedSeconds, 1.5*builtin[0].PredictedSeconds)
	require.Equal(t, builtin[1].PredictedSeconds, got[1].PredictedSeconds)

	same := *own
	same.Device.Name = "MINE"
	rows, err = Read("t.csv", strings.NewReader(header+strings.Replace(gptRow, "A100-80GB-SXM", "MINE", 1)), &same)
	require.NoError(t, err)
	got, _ = Evaluate(rows, nil)
	require.Equal(t, builtin[0].PredictedSeconds, got[0].PredictedSeconds)
}

// TestNodesOfLevels: the nodes and the network of a row count on clusters whose network is described by levels too.
func TestNodesOfLevels(t *testing.T) {
	table := strings.Replace(header, "framework", "inter_node_gb_s_per_gpu", 1)
	seconds := func(perNode, network string) float64 {
		row := strings.NewReplacer("A100-80GB-SXM,4,8", "V100-16GB-SXM2,4,"+perNode, "bf16", "fp16", "torchtitan", network).Replace(gptRow)
		outcomes, skipped := Evaluate(read(t, table+row), nil)
		require.Empty(t, skipped)
		return outcomes[0].PredictedSeconds
	}
	require.Greater(t, seconds("2", ""), seconds("8", ""))
	require.Greater(t, seconds("2", "0.39"), seconds("2", ""))
	require.Greater(t, seconds("1", "0.39"), seconds("2", "0.39"))
	require.Equal(t, seconds("2", "1.5625"), seconds("2", "")) // is what the built-in cluster has
	require.Equal(t, seconds("8", "0.39"), seconds("8", ""))   // within a node
}

func TestReadRefuses(t *testing.T) {
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", "t.csv: is empty"},
		{"semicolons", strings.ReplaceAll(header, ",", ";"), "t.csv:1: has one column; columns are separated by commas"},
		{"no rows", header, "t.csv: has no rows"},
		{"missing column", strings.Replace(header, "n_layers,", "", 1) + gptRow, "t.csv:1: n_layers: is missing"},
		{"column twice", strings.Replace(header, "source_id", "row_id", 1) + gptRow, "t.csv:1: row_id: is there twice"},
		{"misspelt", strings.Replace(header, "flash_attention", "flash_atention", 1) + gptRow, "t.csv:1: flash_atention: is unknown; did you mean flash_attention?"},
		{"two unknown", strings.NewReplacer("flash_attention", "flash_atention", "framework", "framwork").Replace(header) + gptRow, "t.csv:1: flash_atention: is unknown"},
		{"nothing to compare", strings.Replace(header, "step_time_s", "note", 1) + gptRow, "t.csv:1: has neither step_time_s nor fits"},
		{"no number", header + strings.Replace(gptRow, "768", "wide", 1), `t.csv:2: hidden_size: is "wide", want a count of 1 to 1073741824`},
		{"negative", header + strings.Replace(gptRow, "0.5", "-1", 1), `t.csv:2: step_time_s: is "-1", want a positive number`},
		{"no time", header + strings.Replace(gptRow, "0.5", "1e-320", 1), `t.csv:2: step_time_s: is "1e-320", want a positive number, of 1e-9 to 1e9`},
		{"no memory", strings.Replace(header, "framework", "peak_mem_gib", 1) + strings.Replace(gptRow, "torchtitan", "1e308", 1), `t.csv:2: peak_mem_gib: is "1e308", want a positive number, of 1e-9 to 1e9`},
		{"NaN", header + strings.Replace(gptRow, "0.5", "nan", 1), `t.csv:2: step_time_s: is "nan", want a positive number`},
		{"flag", header + strings.Replace(gptRow, "3072,0", "3072,2", 1), `t.csv:2: ffn_gated: is "2", want 0 or 1`},
		{"version", header + strings.Replace(gptRow, "bf16,2", "bf16,9", 1), `t.csv:2: flash_attention: is "9", want 0 to 2`},
		{"no number of experts", experts("x", gptRow), `t.csv:2: ep: is "x", want a count of 0 to`},
		{"word", header + strings.Replace(gptRow, "none", "nine", 1), `t.csv:2: recompute: is "nine", want one of none, selective, full, unstated; did you mean none?`},
		{"contradiction", header + strings.Replace(gptRow, "SXM,4", "SXM,8", 1), "t.csv:2: n_gpus: is 8, but tp 2 x pp 1 x cp 1 x dp 2 is 4"},
		{"micro-batches larger than the batch", header + strings.Replace(gptRow, ",1,2,16,", ",1,9,16,", 1), "t.csv:2: micro_batch: is 9, but with dp 2 that is 18 sequences at a time, and global_batch is 16"},
		{"more work than prices can hold", header + strings.Replace(gptRow, ",1,2,16,", ",1,2,1073741824,", 1), "t.csv:2: global_batch: is 1073741824 sequences, in a step 1.6e+20 FLOPs of a GPU: beyond what can be priced"},
		{"heads", header + strings.Replace(gptRow, "768,12,12", "768,11,11", 1), "t.csv:2: n_heads: is 11, which does not divide hidden_size 768"},
		{"groups", header + strings.Replace(gptRow, "768,12,12", "768,12,5", 1), "t.csv:2: n_kv_heads: is 5, which does not divide n_heads 12"},
		{"virtual stages", header + strings.Replace(gptRow, ",2,1,1,1,2,", ",2,1,2,1,2,", 1), "t.csv:2: vpp: is 2, but pp is 1"},
		{"unknown GPU", header + strings.Replace(gptRow, "A100-80GB-SXM", "A100-80GB-SMX", 1), `t.csv:2: gpu: is "A100-80GB-SMX", which is unknown; did you mean A100-80GB-SXM?`},
		{"NVIDIA's name of a GPU", header + strings.Replace(gptRow, "A100-80GB-SXM", "NVIDIA H100 80GB HBM3", 1), `t.csv:2: gpu: is "NVIDIA H100 80GB HBM3", which is unknown; did you mean H100-80GB-SXM?`},
		{"the beginning of a GPU", header + strings.Replace(gptRow, "A100-80GB-SXM", "H100", 1), `t.csv:2: gpu: is "H100", which is unknown; did you mean H100-80GB-SXM? There are A100-40GB-SXM, `},
		{"no GPU", header + strings.Replace(gptRow, "A100-80GB-SXM", "", 1), "t.csv:2: gpu: is missing"},
		{"no name", header + strings.Replace(gptRow, "r1", " ", 1), "t.csv:2: row_id: is missing"},
		{"no source", header + strings.Replace(gptRow, "r1,s", "r1,", 1), "t.csv:2: source_id: is missing"},
		{"control characters", header + strings.Replace(gptRow, "r1,s", "r1,\x1b[31ms", 1), `t.csv:2: source_id: is "\x1b[31ms", want text without control characters`},
		{"no UTF-8", header + strings.Replace(gptRow, "r1", "r\x9b1", 1), `t.csv:2: row_id: is "r\x9b1", want text without control characters`},
		{"misspelt with control characters", strings.Replace(header, "flash_attention", "flash_attentio\x1b", 1) + gptRow, `t.csv:1: "flash_attentio\x1b": is unknown`},
		{"schedule", scheduled("gpipe", gptRow), `t.csv:2: schedule: is "gpipe", want one of none, 1f1b, interleaved_1f1b, unstated; did you mean`},
		{"chunks of 1F1B", scheduled("1f1b", llamaRow), "t.csv:2: schedule: is 1f1b, but vpp is 2"},
		{"interleaved without chunks", scheduled("interleaved_1f1b", gptRow), "t.csv:2: schedule: is interleaved_1f1b, but vpp is 1"},
		{"shards", strings.Replace(header, "framework", "zero_shard_degree", 1) + strings.Replace(gptRow, "torchtitan", "3", 1), "t.csv:2: zero_shard_degree: is 3, which does not divide n_gpus 4"},
		{"too wide", header + strings.Replace(gptRow, "768", "1000000000000", 1), `t.csv:2: hidden_size: is "1000000000000", want a count of 1 to 1073741824`},
		{"no GPUs", header + strings.Replace(gptRow, "SXM,4", "SXM,0", 1), `t.csv:2: n_gpus: is "0", want a count of 1 to 1073741824`},
		{"nodes", header + strings.Replace(gptRow, "SXM,4,8", "SXM,4,3", 1), "t.csv:2: gpus_per_node: is 3, which does not divide n_gpus 4"},
		{"timed without memory", strings.Replace(header, "framework", "fits", 1) + strings.Replace(gptRow, "torchtitan", "0", 1), "t.csv:2: fits: is 0, but step_time_s is 0.5: what was timed ran"},
		{"slow network", named("inter_node_gb_s_per_gpu", "1e-9"), `t.csv:2: inter_node_gb_s_per_gpu: is "1e-9", want 1e-6 (1,000 bytes/s) at least`},
		{"type of gradients", named("grad_reduce_dtype", "float32"), `t.csv:2: grad_reduce_dtype: is "float32", want one of fp32, bf16, fp16, fp8, unstated; did you mean fp32?`},
		{"confidence", named("confidence", "Low"), `t.csv:2: confidence: is "Low", want one of high, medium, low; did you mean low?`},
		{"row twice", header + gptRow + gptRow, "t.csv:3: row_id: r1 is on line 2 already"},
		{"ragged", header + "r1,s\n", "t.csv:2: has 2 cells, the header "},
	} {
		_, err := Read("t.csv", strings.NewReader(c.text))
		require.ErrorContains(t, err, c.want, c.name)
	}
}

// TestSkipsWithAReason: what cannot be modelled is listed.
func TestSkipsWithAReason(t *testing.T) {
	rows := read(t, header+
		strings.Replace(gptRow, ",2,16,none", ",,16,none", 1)+
		strings.Replace(strings.Replace(llamaRow, "r2", "r3", 1), "full", "unstated", 1)+
		strings.Replace(strings.Replace(gptRow, "r1", "r4", 1), "bf16", "fp32", 1)+
		strings.Replace(strings.Replace(gptRow, "r1", "r5", 1), "bf16", "fp8", 1)+
		strings.Replace(strings.Replace(llamaRow, "r2", "r6", 1), "bf16", "fp8", 1))
	outcomes, skipped := Evaluate(rows, nil)
	require.Len(t, outcomes, 1)
	require.Equal(t, "r6", outcomes[0].ID, "an H100 computes in 8 bits")
	var reasons []string
	for _, s := range skipped {
		reasons = append(reasons, s.ID+": "+s.Reason)
	}
	require.Equal(t, []string{
		"r1: micro_batch is not stated", "r3: recompute is not stated",
		"r4: dtype is fp32: what is known of software, kernels and memory, is of training in 16 bits",
		"r5: dtype is fp8, which A100-80GB-SXM does not compute in",
	}, reasons)
}

// experts is a table of one row with a column for experts.
func experts(ep, row string) string {
	return strings.Replace(header, "framework", "ep,framework", 1) + strings.Replace(row, "torchtitan", ep+",torchtitan", 1)
}

// TestSkipsExperts: a row of a model with experts is listed, and not predicted as one of another model. The others of its table
// are predicted.
func TestSkipsExperts(t *testing.T) {
	rows := read(t, experts("2", gptRow)+strings.Replace(strings.Replace(gptRow, "r1", "r2", 1), "torchtitan", "1,torchtitan", 1))
	outcomes, skipped := Evaluate(rows, nil)
	require.Len(t, outcomes, 1)
	require.Equal(t, "r2", outcomes[0].ID)
	require.Len(t, skipped, 1)
	require.Equal(t, "ep is 2: experts are not modelled", skipped[0].Reason)
	chosen, left := Choose(skipped)
	require.Empty(t, chosen)
	require.Len(t, left, 1)
}

// TestOnceAStep: software that reduces gradients once a step has them whole until then.
func TestOnceAStep(t *testing.T) {
	for framework, want := range map[string]int{"Megatron-Core": 1, "Alpa": 1, "llm-foundry/Composer FSDP": 2} {
		r := Row{Framework: framework, GPUs: 2, DP: 2, TP: 1, PP: 1, CP: 1, VirtualStages: 1, Layers: 2, ZeRO: 2, MicroBatch: 1, Recompute: "none"}
		p, err := r.plan()
		require.NoError(t, err)
		require.Equal(t, want, p.ZeRO, framework)
	}
}

// TestGroupedHeads: fewer heads of keys and values are less work and memory.
func TestGroupedHeads(t *testing.T) {
	rows := read(t, header+gptRow+strings.Replace(strings.Replace(gptRow, "r1", "r2", 1), "12,12", "12,4", 1))
	outcomes, skipped := Evaluate(rows, nil)
	require.Empty(t, skipped)
	require.Len(t, outcomes, 2)
	require.Less(t, outcomes[1].PredictedSeconds, outcomes[0].PredictedSeconds)
	require.Less(t, outcomes[1].PredictedBytes, outcomes[0].PredictedBytes)
}

func TestSummaries(t *testing.T) {
	row := func(source string, predicted, took float64) Outcome {
		return Outcome{Row: Row{Source: source, GlobalBatch: 1, SeqLen: 1, GPUs: 1, StepSeconds: took}, PredictedSeconds: predicted}
	}
	all := Summarize([]Outcome{row("a", 1.1, 1), row("a", 1.8, 2), row("a", 3, 3), row("b", 2, 4)})
	require.InDelta(t, 0.2/3, all["a"].MAPE, 1e-12)
	require.InDelta(t, 0, all["a"].Bias, 1e-12)
	require.InDelta(t, 1, all["a"].Spearman, 1e-12)
	require.InDelta(t, -0.5, all["b"].Bias, 1e-12)
	require.True(t, math.IsNaN(all["b"].Spearman))
	require.InDelta(t, (0.2/3+0.5)/2, MeanMAPE(all), 1e-12)
	require.InDelta(t, -1, Spearman([]float64{1, 2, 3, 4}, []float64{9, 7, 5, 1}), 1e-12)
	require.InDelta(t, 0.9486832980505138, Spearman([]float64{1, 2, 2, 3}, []float64{1, 2, 3, 4}), 1e-12, "ties share their mean rank")
}

// TestProgressInTurn: rows are compiled on several processors, but progress is called once at a time, in order.
func TestProgressInTurn(t *testing.T) {
	rows := make([]Row, 8)
	for i := range rows {
		rows[i].SeqLen = i // a compilation for each, which fails at once
	}
	var told []int
	compileAll(rows, func(done int) {
		so := len(told)
		time.Sleep(time.Millisecond) // for another processor to come in between
		told = append(told[:so], done)
	})
	require.Equal(t, []int{1, 2, 3, 4, 5, 6, 7, 8}, told)
}

// TestClusters: every GPU of the tables has a built-in cluster.
func TestClusters(t *testing.T) {
	for gpu, name := range clusters() {
		_, err := cost.Load(name)
		require.NoError(t, err, gpu)
	}
}
