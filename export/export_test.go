package export_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/export"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
)

var update = flag.Bool("update", false, "rewrite the golden files")

const gpt2 = `
model: {n_layer: 12, n_head: 12, n_embd: 768, vocab_size: 50304, bias: true}
batch: {global: 64}
train: {max_iters: 999, out_dir: "it's out"}
`

const llama = `
model: {preset: llama-3-8b}
batch: {global: 64}
train: {dtype: bf16, max_iters: 999}
optimizer: {warmup_iters: 80, lr_decay_iters: 800}
`

// stages cuts blocks into stages of the given sizes.
func stages(blocks ...int) (all []partition.Stage) {
	at := 0
	for _, n := range blocks {
		all = append(all, partition.Stage{First: at, Last: at + n})
		at += n
	}
	return all
}

// document is a plan for 16 H100s.
func document(t *testing.T, text string, change func(*partition.Plan)) *planner.Document {
	t.Helper()
	cfg, err := config.Parse("gpt.yaml", []byte(text), nil)
	require.NoError(t, err)
	require.NoError(t, cfg.Validate())
	cluster, err := cost.Load("h100")
	require.NoError(t, err)
	p := &partition.Plan{PlanNGPUs: 16, RuntimeNGPUs: 16, DP: 16, TP: 1, MicroBatch: 2, Schedule: partition.OneFOneB, Stages: stages(cfg.Model.NLayer)}
	change(p)
	require.NoError(t, p.Validate(cfg.Model.NLayer, cfg.Batch.Global))
	return &planner.Document{Plan: p, Config: cfg, Cluster: cluster, Predicted: planner.Predicted{StepSeconds: 1.25, TokensPerSecond: 52428.8}}
}

func written(t *testing.T, doc *planner.Document, format string) (string, error) {
	t.Helper()
	var text bytes.Buffer
	err := export.Write(&text, doc, export.Options{Format: format, Plan: "plans/my plan.json", Image: "registry/autopar:1"})
	return text.String(), err
}

// TestGolden compares the output for several plans with golden files.
func TestGolden(t *testing.T) {
	pipeline := func(p *partition.Plan) {
		p.DP, p.TP, p.SequenceParallel, p.ZeRO, p.Overlap, p.OverlapTP, p.MicroBatch = 2, 2, true, 1, true, true, 4
		p.Stages = stages(3, 3, 4, 2)
		for i := range p.Stages {
			p.Stages[i].Recompute = 2
		}
	}
	units := func(p *partition.Plan) {
		p.PlanNGPUs, p.DP, p.CP, p.TP, p.OverlapTP, p.OverlapP2P, p.Interleave, p.Schedule, p.ZeRO = 8, 1, 2, 2, true, true, 2, partition.Interleaved, 1
		p.Stages = stages(8, 8, 8, 8)
	}
	hybrid := func(p *partition.Plan) {
		p.DP, p.TP, p.SequenceParallel, p.ZeRO, p.ZeROGroup = 8, 2, true, 3, 4
		p.Stages[0].Recompute = 32
	}
	looped := func(p *partition.Plan) {
		p.DP, p.TP, p.SequenceParallel, p.ZeRO, p.Interleave, p.Schedule, p.MicroBatch = 4, 2, true, 2, 2, partition.Interleaved, 1
		p.Stages = stages(9, 9, 9, 5)
	}
	for name, c := range map[string]struct {
		model, format string
		plan          func(*partition.Plan)
	}{
		"megatron-pipeline.sh":   {gpt2, export.Megatron, pipeline},
		"megatron-units.sh":      {llama, export.Megatron, units},
		"megatron-hybrid.sh":     {llama, export.Megatron, hybrid},
		"torchtitan-hybrid.toml": {llama, export.Torchtitan, hybrid},
		"torchtitan-looped.toml": {strings.Replace(llama, "preset: llama-3-8b", "preset: llama-3-8b, n_embd: 2048, ffn_hidden: 7000", 1), export.Torchtitan, looped},
		"slurm.sh":               {gpt2, export.Slurm, pipeline},
		"k8s.yaml":               {gpt2, export.Kubernetes, pipeline},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := written(t, document(t, c.model, c.plan), c.format)
			require.NoError(t, err)
			file := filepath.Join("testdata", name)
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o666))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Equal(t, string(want), got)
		})
	}
}

// TestSyntax has a shell and a YAML parser read the output for them, and runs the scripts.
func TestSyntax(t *testing.T) {
	doc := document(t, gpt2, func(p *partition.Plan) { p.ZeRO = 1 })
	for _, format := range []string{export.Megatron, export.Slurm} {
		text, err := written(t, doc, format)
		require.NoError(t, err)
		sh, err := exec.LookPath("sh")
		if err != nil {
			t.Skip(err)
		}
		cmd := exec.Command(sh, "-n")
		cmd.Stdin = strings.NewReader(text)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	text, err := written(t, doc, export.Kubernetes)
	require.NoError(t, err)
	decoder := yaml.NewDecoder(strings.NewReader(text))
	for _, kind := range []string{"Service", "Job"} {
		var object struct {
			Kind string
			Spec struct {
				Completions int
				Template    struct {
					Spec struct{ Containers []struct{ Command []string } }
				}
			}
		}
		require.NoError(t, decoder.Decode(&object))
		require.Equal(t, kind, object.Kind)
		if kind == "Job" {
			require.Equal(t, 2, object.Spec.Completions)
			command := object.Spec.Template.Spec.Containers[0].Command
			require.Equal(t, []string{"sh", "-c"}, command[:2])
			begun, done := "step-00000034", fmt.Sprintf("step-%08d.1", doc.Config.Train.MaxIters+1)
			for name, c := range map[string]struct {
				before, after string // the newest checkpoint
				status, want  int    // of autopar, of the pod
				stopped       bool
			}{
				"done":     {"", done, 0, 0, false},
				"resumed":  {begun, done, 0, 0, false},
				"not done": {"", begun, 0, 1, false}, // another pod was taken away
				"stopped":  {begun, begun, 0, 1, true},
				"nothing":  {"", "", 0, 1, true},
				"failed":   {begun, begun, 2, 2, false},
			} {
				t.Run(name, func(t *testing.T) {
					args, status := startedBy(t, command[2], c.before, c.after, c.status, c.stopped)
					want := []string{
						"launch", "my plan.json", "--nnodes", "2", "--nproc", "8", "--max-restarts", "3", "--device", "cuda",
						"--node-rank", "1", "--master", "autopar-0.autopar:29500", "--out", "it's out",
					}
					if c.before != "" {
						want = append(want, "--resume")
					}
					require.Equal(t, want, args)
					require.Equal(t, c.want, status)
				})
			}
		}
	}
}

// TestWarmupBeyondDecay: Megatron's schedule asserts that the warmup ends before the decay does.
func TestWarmupBeyondDecay(t *testing.T) {
	for set, want := range map[string]string{
		"": "", "warmup_iters: 800, lr_decay_iters: 801": "", "warmup_iters: 9, lr_decay_iters: 5, decay_lr: false": "",
		"lr_decay_iters: 1000": "a warmup of 2000 iterations and a decay that ends at 1000: plan with optimizer.warmup_iters below optimizer.lr_decay_iters",
	} {
		doc := document(t, gpt2+"optimizer: {"+set+"}\n", func(p *partition.Plan) { p.ZeRO = 1 })
		_, err := written(t, doc, export.Megatron)
		if want == "" {
			require.NoError(t, err, set)
		} else {
			require.EqualError(t, err, "export: megatron has no words for this plan: "+want)
		}
	}
}

// TestNames: any name of a plan or directory is one word of the script, and never breaks a line of the output.
func TestNames(t *testing.T) {
	for _, name := range []string{"a\rb: c", "x\ny\r\nz", "\u0085\u2028\u2029", "bell\a\x7f\t", "$(HOME) $$ `x` $HOME ${HOME}", `"\'`, "--- é", "\xff"} {
		doc := document(t, gpt2, func(p *partition.Plan) { p.ZeRO = 1 })
		doc.Config.Train.OutDir, doc.Cluster.Name = name, name
		var text bytes.Buffer
		require.NoError(t, export.Write(&text, doc, export.Options{Format: export.Kubernetes, Plan: name, Image: name}))
		comments, _, _ := strings.Cut(text.String(), "apiVersion")
		for _, line := range strings.FieldsFunc(comments, func(r rune) bool { return strings.ContainsRune("\n\r\u0085\u2028\u2029", r) }) {
			require.Regexp(t, "^# ", line)
		}
		decoder := yaml.NewDecoder(&text)
		var job struct {
			Spec struct {
				Template struct {
					Spec struct {
						Containers []struct {
							Image   string
							Command []string
						}
					}
				}
			}
		}
		for range 2 {
			require.NoError(t, decoder.Decode(&job), "%q", name)
		}
		container := job.Spec.Template.Spec.Containers[0]
		if utf8.ValidString(name) { // YAML has no other
			require.Equal(t, name, container.Image)
		}
		// As expand of k8s.io/kubernetes/third_party/forked/golang/expansion.
		script := regexp.MustCompile(`\$(\$|\([^)]*\))`).ReplaceAllStringFunc(container.Command[2], func(s string) string {
			require.Equal(t, "$$", s, "a variable of Kubernetes")
			return "$"
		})
		if utf8.ValidString(name) {
			require.Contains(t, script, " --out "+export.Quote(name)+" $resume &", "%q", name)
		}
	}
}

// startedBy runs the script of a pod with a fake autopar, which leaves a checkpoint and exits with a status. The pod may be told to
// stop meanwhile. It returns the arguments of autopar and the status of the pod.
func startedBy(t *testing.T, script, before, after string, status int, stopped bool) ([]string, int) {
	t.Helper()
	dir := t.TempDir()
	latest := filepath.Join(dir, "it's out", "ckpt", "latest")
	require.NoError(t, os.MkdirAll(filepath.Dir(latest), 0o777))
	if before != "" {
		require.NoError(t, os.WriteFile(latest, []byte(before+"\n"), 0o666))
	}
	end := fmt.Sprintf("end() { test -z '%s' || echo '%s' > \"it's out/ckpt/latest\"; exit %d; }\n", after, after, status)
	waits := map[bool]string{true: "trap end TERM\n: > started\nwhile test -e started; do :; done\n"}[stopped]
	for name, text := range map[string]string{"autopar": "printf '%s\\n' \"$@\" > args\n" + end + waits + "end\n", "sleep": ""} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o777))
	}
	cmd := exec.Command("sh", "-c", script)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "PATH="+dir, "JOB_COMPLETION_INDEX=1")
	require.NoError(t, cmd.Start())
	defer time.AfterFunc(time.Minute, func() { cmd.Process.Kill() }).Stop()
	if stopped {
		require.Eventually(t, func() bool {
			_, err := os.Stat(filepath.Join(dir, "started"))
			return err == nil
		}, time.Minute, time.Millisecond)
		require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	}
	_ = cmd.Wait()
	args, err := os.ReadFile(filepath.Join(dir, "args"))
	require.NoError(t, err)
	return strings.Split(strings.TrimSpace(string(args)), "\n"), cmd.ProcessState.ExitCode()
}

// TestNoWords lists plans that other systems cannot run. Slurm and Kubernetes run everything that fits on their nodes.
func TestNoWords(t *testing.T) {
	for name, c := range map[string]struct {
		model, format string
		plan          func(*partition.Plan)
		want          string
	}{
		"schedule": {gpt2, export.Megatron, func(p *partition.Plan) { p.DP, p.Stages, p.Schedule = 8, stages(6, 6), partition.ZeroBubble }, "schedule zero-bubble: plan with --schedule 1f1b or interleaved"},
		"eager":    {gpt2, export.Torchtitan, func(p *partition.Plan) { p.DP, p.Stages, p.Schedule = 8, stages(6, 6), partition.EagerOneFOneB }, "schedule eager-1f1b: plan with --schedule 1f1b, interleaved or gpipe"},
		"gpipe":    {gpt2, export.Megatron, func(p *partition.Plan) { p.Schedule = partition.GPipe }, "schedule gpipe without a pipeline: plan with --schedule 1f1b"},
		"batch":    {gpt2, export.Megatron, func(p *partition.Plan) { p.MicroBatch = 3 }, "4 sequences of a data-parallel rank in micro-batches of 3, of which the last is smaller: plan with --micro-batch 2"},
		"share":    {gpt2, export.Megatron, func(p *partition.Plan) { p.PlanNGPUs, p.RuntimeNGPUs, p.DP = 24, 24, 24 }, "64 sequences on 24 data-parallel ranks, of which some get fewer"},
		"fsdp":     {gpt2, export.Megatron, func(p *partition.Plan) { p.DP, p.Stages, p.ZeRO = 8, stages(6, 6), 3 }, "ZeRO 3 beside a pipeline: plan with --zero 1"},
		"some": {gpt2, export.Megatron, func(p *partition.Plan) {
			p.DP, p.Stages = 8, []partition.Stage{{Last: 6, Recompute: 1}, {First: 6, Last: 12}}
		}, "another number of recomputed blocks in each stage, or norms and activation functions alone: plan with --recompute full, selective or none"},
		"order": {gpt2, export.Megatron, func(p *partition.Plan) { p.DP, p.TP, p.Stages, p.RankOrder = 4, 2, stages(6, 6), "dp-tp-pp" },
			"ranks in this order, units outermost: plan with --rank-order tp-cp-dp-pp and one unit"},
		"heads": {gpt2, export.Megatron, func(p *partition.Plan) { p.DP, p.TP = 2, 8 }, "12 heads over 8 tensor-parallel ranks"},
		"whole": {gpt2, export.Megatron, func(p *partition.Plan) {
			p.DP, p.TP, p.SequenceParallel = 8, 2, true
			p.Placements = []partition.Placement{{Match: `h\.[0-9]+\.attn\.c_proj\.weight`, Spec: "[_,_]"}}
		}, "attn kept whole beside tensor parallelism: plan with --replicate none"},
		"grid": {gpt2, export.Megatron, func(p *partition.Plan) { p.DP, p.TP, p.TPRows = 4, 4, 2 },
			"weights cut in two dimensions over 2 rows of tensor-parallel ranks: plan with --tp-rows 1"},
		"offload": {gpt2, export.Megatron, func(p *partition.Plan) { p.Offload = partition.OffloadOptimizer }, "plan with --offload none"},
		"model":   {gpt2, export.Torchtitan, func(p *partition.Plan) {}, "this model: it trains Llamas"},
		"zero 1":  {llama, export.Torchtitan, func(p *partition.Plan) { p.ZeRO = 1 }, "optimizer state that is sharded without the gradients: plan with --zero 2"},
		"zero 0":  {llama, export.Torchtitan, func(p *partition.Plan) { p.DP, p.CP = 8, 2 }, "data parallelism without ZeRO beside another: plan with --zero 2"},
		"no sp":   {llama, export.Torchtitan, func(p *partition.Plan) { p.DP, p.TP, p.ZeRO = 8, 2, 2 }, "plan with --sequence-parallel on"},
		"partly":  {llama, export.Torchtitan, func(p *partition.Plan) { p.ZeRO, p.Stages[0].Recompute = 2, 5 }, "plan with --recompute full or none"},
		"norms":   {llama, export.Torchtitan, func(p *partition.Plan) { p.ZeRO, p.Stages[0].Pointwise = 2, 5 }, "plan with --recompute full or none"},
		"eval":    {strings.Replace(gpt2, "max_iters: 999", "eval_only: true", 1), export.Megatron, func(p *partition.Plan) {}, "this plan: train.eval_only"},
		"nodes":   {gpt2, export.Slurm, func(p *partition.Plan) { p.PlanNGPUs, p.RuntimeNGPUs, p.DP = 12, 12, 12 }, "12 ranks on nodes of 8 devices: plan for whole nodes"},
		"format":  {gpt2, "make", func(p *partition.Plan) {}, "it is none of megatron, torchtitan, slurm and k8s"},
	} {
		t.Run(name, func(t *testing.T) {
			text, err := written(t, document(t, c.model, c.plan), c.format)
			require.ErrorContains(t, err, c.want)
			require.IsType(t, &export.Error{}, err)
			require.Empty(t, text)
		})
	}
}

// TestTransfersOfMegatron: Megatron overlaps transfers between stages only under interleaved schedules, where it can be told not to
// if there are more than 2 positions.
func TestTransfersOfMegatron(t *testing.T) {
	for _, posted := range []bool{false, true} {
		for _, chunks := range []int{1, 2} {
			for _, pp := range []int{2, 4} {
				text, err := written(t, document(t, gpt2, func(p *partition.Plan) {
					p.DP, p.OverlapP2P, p.Stages = 16/pp, posted, stages(slices.Repeat([]int{12 / pp}, pp)...)
					if chunks > 1 {
						p.Interleave, p.Schedule = chunks, partition.Interleaved
						p.Stages = stages(slices.Concat(slices.Repeat([]int{12/pp - 1}, pp), slices.Repeat([]int{1}, pp))...)
					}
				}), export.Megatron)
				require.NoError(t, err)
				require.Equal(t, chunks > 1 && !posted && pp > 2, strings.Contains(text, "--no-overlap-p2p-communication"))
				require.Equal(t, chunks > 1 && !posted && pp == 2, strings.Contains(text, "stages do not wait for what they send"))
				require.Equal(t, chunks == 1 && posted, strings.Contains(text, "stages wait for what they send"))
			}
		}
	}
}

// TestUneven lists plans that autopar runs although ranks or positions get unequal parts, and other systems do not.
func TestUneven(t *testing.T) {
	tp := func(p *partition.Plan) { p.DP, p.TP, p.SequenceParallel, p.ZeRO = 4, 4, true, 2 }
	cp := func(p *partition.Plan) { p.DP, p.CP, p.ZeRO = 4, 4, 2 }
	pp := func(p *partition.Plan) { // 3 micro-batches over 2 positions
		p.PlanNGPUs, p.RuntimeNGPUs, p.DP, p.MicroBatch, p.Stages = 4, 4, 2, 32, stages(8, 8, 8, 8)
		p.Interleave, p.Schedule, p.ZeRO = 2, partition.Interleaved, 2
	}
	few := func(p *partition.Plan) {
		p.PlanNGPUs, p.RuntimeNGPUs, p.DP, p.MicroBatch, p.Stages = 4, 4, 1, 64, stages(8, 8, 8, 8)
	}
	for _, c := range []struct {
		keys, batch     string // of the model, and the global batch
		plan            func(*partition.Plan)
		megatron, titan string // what is missing, if anything
	}{
		{"n_head: 24, n_kv_head: 6, n_embd: 3072", "64", tp, "6 heads of keys and values over 4", "6 heads of keys and values over 4"},
		{"ffn_hidden: 14338", "64", tp, "an MLP of width 14338 over 4 tensor-parallel ranks", ""},
		{"block_size: 8190", "64", tp, "8190 tokens", "8190 tokens"},
		{"block_size: 8196", "64", tp, "", "8196 tokens"},
		{"block_size: 8196", "64", cp, "8196 tokens", "8196 tokens"},
		{"block_size: 8200", "64", cp, "", ""},
		{"", "192", pp, "3 micro-batches interleaved over 2 positions", "3 micro-batches interleaved over 2 positions"},
		{"", "64", few, "", "1 micro-batch in a pipeline of 4"},
	} {
		text := strings.NewReplacer("llama-3-8b", "llama-3-8b, "+c.keys, "global: 64", "global: "+c.batch).Replace(llama)
		for format, want := range map[string]string{export.Megatron: c.megatron, export.Torchtitan: c.titan} {
			_, err := written(t, document(t, text, func(p *partition.Plan) {
				if c.plan(p); p.ZeRO > 0 && p.PP() > 1 && format == export.Megatron {
					p.ZeRO = 1 // it has no other beside a pipeline
				}
			}), format)
			if want == "" {
				require.NoError(t, err, "%s %s", format, text)
			} else {
				require.ErrorContains(t, err, want)
			}
		}
	}
}

// TestTorchtitanTrainsThePlan: torchtitan takes the vocabulary from the flavor, clips to any max_norm, cuts a warmup to the
// steps of the schedule, and shards over context-parallel ranks.
func TestTorchtitanTrainsThePlan(t *testing.T) {
	zero := func(p *partition.Plan) { p.ZeRO = 2 }
	for _, c := range []struct {
		config   string
		plan     func(*partition.Plan)
		has, not string
	}{
		{llama, zero, `flavor = "8B"`, "vocab_size"},
		{strings.Replace(llama, "llama-3-8b", "llama-3-8b, vocab_size: 32000", 1), zero, "vocab_size=32000,", `flavor = "8B"`},
		{strings.Replace(llama, "llama-3-8b", "llama-2-7b", 1), zero, "vocab_size=32000,", ""},
		{llama, zero, "max_norm = 1.0\n", ""},
		{strings.Replace(llama, "warmup", "grad_clip: 0, warmup", 1), zero, "max_norm = +inf\n", ""},
		{strings.Replace(llama, "warmup", "learning_rate: 0, min_lr: 0, warmup", 1), zero, "lr = 0.0\n", "min_lr_factor"},
		{strings.Replace(llama, "warmup", "schedule: constant, warmup", 1), zero, "total_steps = 1000\n", ""},
		{strings.Replace(llama, "warmup_iters: 80", "schedule: constant, warmup_iters: 5000", 1), zero, "total_steps = 5000\n", ""},
		{strings.Replace(llama, "warmup_iters: 80", "warmup_iters: 5000", 1), zero, "total_steps = 5000\n", ""},
		{llama, func(p *partition.Plan) { p.PlanNGPUs, p.RuntimeNGPUs, p.DP, p.CP = 2, 2, 1, 2 }, `fsdp_reshard_after_forward = "never"`, ""},
		{llama, func(p *partition.Plan) { p.PlanNGPUs, p.RuntimeNGPUs, p.DP, p.CP = 2, 2, 1, 2 }, "context-parallel ranks shard", ""},
		{llama, func(p *partition.Plan) { p.PlanNGPUs, p.RuntimeNGPUs, p.DP, p.CP, p.ZeRO = 2, 2, 1, 2, 3 }, `fsdp_reshard_after_forward = "always"`, "context-parallel ranks shard"},
		{llama, zero, "long waves", "context-parallel ranks"},
		{strings.Replace(llama, "llama-3-8b", "llama-3-8b, rope_factor: 8", 1), zero, `flavor = "8B"`, "long waves"},
		{strings.Replace(llama, "llama-3-8b", "llama-3-8b, rope_factor: 32", 1), zero, "long waves", ""},
		{strings.Replace(llama, "llama-3-8b", "llama-3-8b, norm_eps: 1e-6", 1), zero, "norm_eps=1e-06", `flavor = "8B"`},
		{llama, zero, "the warmup reaches its peak one step earlier", ""},
		{strings.Replace(llama, "warmup_iters: 80", "warmup_iters: 0", 1), zero, "warmup_steps = 0\n", "one step earlier"},
	} {
		text, err := written(t, document(t, c.config, c.plan), export.Torchtitan)
		require.NoError(t, err)
		require.Contains(t, text, c.has)
		if c.not != "" {
			require.NotContains(t, text, c.not)
		}
	}
}

// TestMegatronTrainsThePlan: Megatron's warmup starts at lr-warmup-init, which is 0 if not given; it refuses a min-lr above lr;
// and Megatron-FSDP reduces gradients beside the backward pass whether asked to or not, but gathers only if asked to or under
// ZeRO 3.
func TestMegatronTrainsThePlan(t *testing.T) {
	zero := func(stage int, overlap bool) func(*partition.Plan) {
		return func(p *partition.Plan) { p.ZeRO, p.Overlap = stage, overlap }
	}
	set := func(keys string) string {
		return strings.Replace(llama, "warmup_iters: 80", "learning_rate: 0.5, "+keys, 1)
	}
	for _, c := range []struct {
		config   string
		plan     func(*partition.Plan)
		has, not string
	}{
		{
			strings.Replace(llama, "bf16", "fp16", 1), zero(1, false),
			"  --fp16 \\\n  --accumulate-allreduce-grads-in-fp32 \\\n  --initial-loss-scale 65536 \\\n  --loss-scale-window 2000 \\\n  --hysteresis 1 \\\n", "--bf16",
		},
		{strings.Replace(llama, "bf16", "fp16", 1), zero(1, false), "gradients are summed over ranks in 4 bytes, not 2", ""},
		{strings.Replace(llama, "bf16", "fp32", 1), zero(1, false), "--lr-warmup-init", "in 4 bytes"},
		{set("warmup_iters: 4"), zero(1, false), "--lr-warmup-init 0.1 ", "beside the computation"},
		{set("warmup_iters: 4, warmup_from_zero: true"), zero(1, false), "--lr-warmup-iters 4 ", "--lr-warmup-init"},
		{set("warmup_iters: 4, schedule: step"), zero(1, false), "decays as a cosine, not in steps", ""},
		{set("warmup_iters: 4, schedule: step, decay_lr: false"), zero(1, false), "--lr-decay-style constant ", "as a cosine"},
		{set("warmup_iters: 0"), zero(1, false), "--lr-warmup-iters 0 ", "--lr-warmup-init"},
		{set("warmup_iters: 80, min_lr: 0.25"), zero(1, false), "--min-lr 0.25 ", ""},
		{set("warmup_iters: 80, schedule: constant, min_lr: 1"), zero(1, false), "--lr-decay-style constant ", "--min-lr"},
		{llama, zero(2, false), "Megatron-FSDP reduces gradients beside the computation.", "--overlap"},
		{llama, zero(3, false), "Megatron-FSDP reduces gradients and gathers parameters beside the computation.", "--overlap"},
		{llama, zero(2, true), "--overlap-param-gather ", "beside the computation"},
		{llama, func(p *partition.Plan) { p.PlanNGPUs, p.RuntimeNGPUs, p.DP, p.CP, p.ZeRO = 2, 2, 1, 2, 1 }, "--use-distributed-optimizer ", ""},
		{strings.Replace(llama, "llama-3-8b", "llama-3-8b, rope_factor: 32, norm_eps: 1e-6", 1), zero(1, false), "  --use-rope-scaling \\\n  --rope-scaling-factor 32 \\\n", "8192 positions"},
		{strings.Replace(llama, "llama-3-8b", "llama-3-8b, rope_factor: 32, rope_original_block_size: 4096, norm_eps: 1e-6", 1), zero(1, false), "turn once to 4 times in 8192 positions", ""},
		{strings.Replace(llama, "llama-3-8b", "llama-3-8b, norm_eps: 1e-6", 1), zero(1, false), "  --norm-epsilon 1e-06 \\\n", "rope-scaling"},
	} {
		text, err := written(t, document(t, c.config, c.plan), export.Megatron)
		require.NoError(t, err)
		require.Contains(t, text, c.has)
		if c.not != "" {
			require.NotContains(t, text, c.not)
		}
	}
}
