package planner

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

var update = flag.Bool("update", false, "rewrite the golden plans in testdata/golden")

// goldenCase is a training job whose plan is written down in testdata/golden.
type goldenCase struct {
	model    string // a preset of the gpt package
	tokens   int    // of a sequence; 0 is the model's
	float    ir.DType
	cluster  string // a cluster file that comes with the cost package, or pools of such
	crowded  bool   // racks of four nodes, of which a quarter can send to other racks at a time
	devices  int
	batch    int
	why      string // it is here
	tooLarge bool   // for tests in a hurry
}

func goldenCases() []goldenCase {
	return []goldenCase{
		{model: "quick", float: ir.F32, cluster: "cpu", devices: 4, batch: 12, why: "ranks that share a processor"},
		{model: "gpt2", float: ir.F16, cluster: "v100", devices: 8, batch: 480, why: "fits one device: data parallelism"},
		{model: "gpt2-xl", float: ir.BF16, cluster: "a100-80g", devices: 16, batch: 128, why: "25 heads divide by nothing"},
		{model: "gpt3-13b", float: ir.F16, cluster: "v100-32g", devices: 8, batch: 32, why: "does not fit without help: recomputation, offload"},
		{model: "llama-2-7b", float: ir.BF16, cluster: "a100-80g", devices: 32, batch: 128, why: "four nodes"},
		{model: "llama-2-13b", float: ir.BF16, cluster: "a100-80g", devices: 64, batch: 512, why: "eight nodes"},
		{model: "llama-2-7b", float: ir.BF16, cluster: "a100-40g:8+h100:8", devices: 16, batch: 64, why: "two kinds of devices: stages as fast as theirs, pools in either order"},
		{model: "llama-3-8b", float: ir.BF16, cluster: "h100", devices: 8, batch: 64, why: "one node, a large vocabulary"},
		{model: "llama-3-8b", tokens: 131072, float: ir.BF16, cluster: "h100", devices: 64, batch: 16, why: "long sequences: context parallelism"},
		{model: "llama-2-70b", float: ir.BF16, cluster: "a100-80g", crowded: true, devices: 128, batch: 512, why: "an oversubscribed network", tooLarge: true},
		{model: "llama-3-70b", float: ir.BF16, cluster: "h100", devices: 256, batch: 512, why: "grouped heads over more than a node", tooLarge: true},
		{model: "gpt3-175b", float: ir.BF16, cluster: "h100", devices: 1024, batch: 1536, why: "the model of Megatron's and most planners' tables", tooLarge: true},
		{model: "llama-3.1-405b", float: ir.BF16, cluster: "h100", devices: 4096, batch: 1024, why: "a model and a machine of today", tooLarge: true},
	}
}

// name is that of the golden file.
func (x goldenCase) name() string {
	name := fmt.Sprintf("%s-%d-%s", x.model, x.devices, strings.ReplaceAll(x.cluster, ":", "x"))
	if x.crowded {
		name += "-oversubscribed"
	}
	if x.tokens > 0 {
		name += fmt.Sprintf("-%d-tokens", x.tokens)
	}
	return name
}

// search finds the plan.
func (x goldenCase) search(t *testing.T) (gpt.Config, *cost.Cluster, *Result) {
	model, err := gpt.Preset(x.model)
	require.NoError(t, err)
	model.Float = x.float
	if x.tokens > 0 {
		model.BlockSize = x.tokens
	}
	c := cluster(t, x.cluster)
	if x.cluster == "cpu" { // whatever this machine is
		c.Device.Cores, c.Device.FLOPS["f32"] = 2, 220e9
	}
	if x.crowded {
		c.NodesPerRack, c.Oversubscription = 4, 4
	}
	found, err := Search(step(t, model, x.batch), x.batch, c, Options{RuntimeNGPUs: x.devices})
	require.NoError(t, err)
	return model, c, found
}

// The plans of a dozen jobs and what they cost, as text: whoever changes the cost of
// anything sees here which plans that changes, and by how much. `go test ./planner -run
// TestGoldenPlans -update` writes them anew.
func TestGoldenPlans(t *testing.T) {
	known := map[string]bool{}
	for _, x := range goldenCases() {
		known[x.name()+".txt"] = true
		t.Run(x.name(), func(t *testing.T) {
			if x.tooLarge && testing.Short() && !*update {
				t.Skip("a large job")
			}
			model, c, found := x.search(t)
			got := x.text(model, c, found)
			file := filepath.Join("testdata", "golden", x.name()+".txt")
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o666))
				return
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
				t.Errorf("the plan or its cost has changed (-update writes it anew):\n%s", diff)
			}
		})
	}
	files, err := os.ReadDir(filepath.Join("testdata", "golden"))
	require.NoError(t, err)
	for _, f := range files {
		require.True(t, known[f.Name()], "no case has the golden plan %s", f.Name())
	}
}

// text is the golden file.
func (x goldenCase) text(model gpt.Config, c *cost.Cluster, found *Result) string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-15s"+format+"\n", append([]any{name}, args...)...)
	}
	network := x.cluster
	if x.crowded {
		network += ", 4 nodes a rack, oversubscribed 4 times"
	}
	p, predicted := found.Plan, found.Prediction
	fmt.Fprintf(&b, "%s on %d x %s: %s\n\n", x.model, x.devices, network, x.why)
	line("batch", "%d sequences of %d tokens, %s", x.batch, model.BlockSize, x.float)
	line("mesh", "%d x (%s)", p.Units(), p.Degrees())
	line("micro-batch", "%d sequences, %d of them", p.MicroBatch, p.MicroBatches(x.batch, ir.Coord{}))
	line("schedule", "%s", p.ScheduleText())
	line("zero", "%d%s", p.ZeRO, groupText(p))
	line("sequence", "%s", onOff(p.SequenceParallel))
	if modules := p.Replicated(); len(modules) > 0 {
		line("replicated", "%s", strings.Join(modules, " "))
	}
	if modules := p.OnGrid(); len(modules) > 0 {
		line("grid", "%s over %d rows", strings.Join(modules, " "), p.Rows())
	}
	line("overlap", "%s", onOff(p.Overlap))
	line("overlap of tp", "%s", onOff(p.OverlapTP))
	if p.TPPieces > 1 {
		line("in pieces", "%d", p.TPPieces)
	}
	line("offload", "%s", p.Offload)
	line("optimal", "%v", found.Stats.Optimal)
	b.WriteString("\n")
	share := func(name string, t cost.Picoseconds) {
		line(name, "%13.6f ms %6.2f %%", t.Seconds()*1e3, 100*t.Seconds()/predicted.Step.Seconds())
	}
	share("step", predicted.Step)
	share("  compute", predicted.Breakdown.Compute)
	share("  communication", predicted.Breakdown.Communication)
	share("  optimizer", predicted.Breakdown.Optimizer)
	share("  bubble", predicted.Breakdown.Bubble)
	share("hidden", predicted.Breakdown.Overlapped)
	title := "positions: blocks, recomputed, bytes of a rank, of the host"
	if len(c.Pools) > 0 {
		title += ", pool, what a rank may take"
	}
	b.WriteString("\n" + title + "\n")
	for from := 0; from < p.PP(); { // those that follow each other and are alike in one line
		text := positionText(c, found, from)
		to := from + 1
		for to < p.PP() && positionText(c, found, to) == text {
			to++
		}
		name := fmt.Sprint(from)
		if to > from+1 {
			name = fmt.Sprintf("%d-%d", from, to-1)
		}
		line(name, "%s", text)
		from = to
	}
	b.WriteString("\nplacements\n")
	for _, pl := range p.Placements {
		fmt.Fprintf(&b, "%s %s\n", pl.Match, pl.Spec)
	}
	return b.String()
}

// positionText is the blocks of a position, chunk by chunk, and its memory.
func positionText(c *cost.Cluster, found *Result, at int) string {
	p := found.Plan
	var blocks, again []string
	for i := at; i < len(p.Stages); i += p.PP() {
		st := p.Stages[i]
		blocks = append(blocks, fmt.Sprint(st.Last-st.First))
		again = append(again, recomputed(&partition.Plan{Stages: []partition.Stage{recomputationOf(st).stage(0, st.Last-st.First)}}))
	}
	var host int64
	if found.Prediction.HostBytes != nil {
		host = found.Prediction.HostBytes[at]
	}
	text := fmt.Sprintf("%s; %s; %d; %d", strings.Join(blocks, "+"), strings.Join(again, " + "), found.Prediction.PeakBytes[at], host)
	if len(c.Pools) > 0 {
		text += fmt.Sprintf("; %s; %d", c.KindText(p, at), c.MemoryAt(p, at))
	}
	return text
}
