package main

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/planner"
)

// FuzzCommandsAgree compares what the other commands print about a random plan of a random model with what plan has printed, and
// with a run of it: predicted times, bytes, and weights.
func FuzzCommandsAgree(f *testing.F) {
	addSeeds(f, 1, 2)
	f.Fuzz(func(t *testing.T, seed uint64) {
		c := newRandomRun(t, seed, false)
		doc := c.plan("plan.json", c.from(1, 2, 3, 4, 4, 5, 6, 6, 7, 8, 8, 8))
		if doc == nil {
			return
		}
		c.must("run", "plan.json", "-q", "--out", "run", "--steps", "2")
		report := c.explained("plan.json")
		c.predicts(report, doc)
		c.moves(report, "run")
		c.pricedAgain(doc)
		c.drawn()
		c.must("verify", "plan.json")
		c.must("verify", "plan.json", "--numeric")
		c.converted()
	})
}

// explained returns what explain says of a plan.
func (c *randomRun) explained(args ...string) *explain.Report {
	var r explain.Report
	require.NoError(c, json.Unmarshal([]byte(c.says(append([]string{"explain", "--format", "json", "-q"}, args...)...)), &r))
	return &r
}

// says runs a command line that must succeed, and returns what it prints.
func (c *randomRun) says(args ...string) string {
	status, said := c.execute(args...)
	require.Zero(c, status, "%s", said)
	require.NotEmpty(c, said)
	return said
}

// predicts compares a prediction with the plan's, and checks that its parts add up to the whole.
func (c *randomRun) predicts(r *explain.Report, doc *planner.Document) {
	p, step := r.Prediction, doc.Predicted.StepSeconds
	near := func(got float64, what string) { require.InEpsilon(c, step, got, 1e-9, what) }
	near(p.StepSeconds, "step")
	near(float64(r.Tokens)/p.TokensPerSecond, "tokens per second")
	near(p.Compute+p.Communication+p.Optimizer+p.Bubble, "parts of the busiest rank")
	b := doc.Predicted.Breakdown
	near(b.Compute+b.Communication+b.Optimizer+b.Bubble, "parts that the plan says")
	require.Equal(c, b, planner.PredictedBreakdown{
		Compute: p.Compute, Communication: p.Communication, Optimizer: p.Optimizer, Bubble: p.Bubble, Overlapped: p.Overlapped,
	}, "parts that explain says")
	for _, rank := range p.Ranks {
		near(rank.Compute+rank.Communication+rank.Optimizer+rank.Bubble, fmt.Sprint("parts of rank ", rank.Rank))
	}
	for what, parts := range map[string][]explain.Share{"terms": p.Terms, "binds": p.Binds} {
		sum := 0.0
		for _, part := range parts {
			sum += part.Seconds
		}
		near(sum, what)
	}
	for i, s := range r.Stages {
		require.Equal(c, doc.Predicted.PeakBytes[i], s.Memory.Arena, "stage %d", i)
	}
}

// moves compares the bytes that explain predicts for a step with those that a step of the run has counted.
func (c *randomRun) moves(r *explain.Report, run string) {
	var collectives int
	var bytes int64
	for _, t := range r.Traffic {
		collectives += t.Collectives
		bytes += t.CollectiveBytes + t.TransferBytes + t.HostBytes
	}
	got := c.metrics(run)
	require.EqualValues(c, collectives, got[logged{1, "collectives"}])
	require.EqualValues(c, bytes, got[logged{1, "comm_bytes"}])
}

// pricedAgain has explain price the plan again for the cluster and configuration it was made for.
func (c *randomRun) pricedAgain(doc *planner.Document) {
	var again explain.Recost
	require.NoError(c, json.Unmarshal([]byte(c.says("explain", "plan.json", "--format", "json", "-q", "--set", fmt.Sprint("batch.global=", c.batch))), &again))
	require.Equal(c, doc.Predicted, again.Was.Predicted)
	require.Equal(c, doc.Predicted, again.Now.Predicted)
}

// drawn has the plan drawn in all forms.
func (c *randomRun) drawn() {
	for _, view := range []string{"timeline", "memory"} {
		svg := c.says("explain", "plan.json", "-q", "--format", "svg", "--view", view)
		for d := xml.NewDecoder(strings.NewReader(svg)); ; {
			_, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(c, err)
		}
		require.NotContains(c, svg, "NaN")
	}
	require.True(c, json.Valid([]byte(c.says("explain", "plan.json", "-q", "--format", "trace"))))
	require.NotContains(c, c.says("explain", "plan.json", "-q", "--format", "html", "--quick"), "NaN")
	require.NotContains(c, c.says("explain", "plan.json", "-q"), "NaN")
	c.says("explain", "plan.json", "-q", "--format", "dot")
	c.says("explain", "plan.json", "-q", "--why", c.word("h.0.attn h.0.mlp wte lm_head ln_f.weight h.0.mlp.c_proj.weight"))
	status, said := c.execute("explain", "plan.json", "-q", "--versus", "all")
	require.Contains(c, []int{0, statusInfeasible}, status, said)
	for _, format := range strings.Fields("megatron torchtitan slurm k8s") {
		status, said := c.execute("export", "plan.json", "-q", "--format", format)
		require.Contains(c, []int{0, statusInput}, status, said)
	}
}

// converted converts the checkpoint of the run, there and back, and trains on from it by another plan.
func (c *randomRun) converted() {
	c.says("checkpoint", "inspect", "run")
	c.must("checkpoint", "merge", "run", "-o", "merged")
	for _, layout := range []string{"nanogpt", "huggingface"} {
		if status, said := c.execute("checkpoint", "export", "run", "-o", layout+".safetensors", "--layout", layout); status == statusInput {
			require.Regexp(c, "is not (GPT-2|Llama)", said)
		} else {
			require.Zero(c, status, said)
			c.exported(layout)
		}
	}
	if other := c.plan("other.json", c.from(1, 2, 3, 4, 6)); other != nil {
		c.must("checkpoint", "reshard", "run", "other.json", "-o", "resharded")
		c.must("run", "other.json", "-q", "--resume", "--out", "resharded", "--steps", "4")
		c.must("run", "plan.json", "-q", "--resume", "--out", "run", "--steps", "4")
		c.like("run", "resharded", 2, 4, other)
	}
}

// exported compares the weights file of the run with those of checkpoints that were made from it.
func (c *randomRun) exported(layout string) {
	weights, err := os.ReadFile(layout + ".safetensors")
	require.NoError(c, err)
	c.must("checkpoint", "import", layout+".safetensors", "--config", "gpt.yaml", "-o", layout)
	for _, dir := range []string{"merged", layout} {
		c.must("checkpoint", "export", dir, "-o", dir+".safetensors", "--layout", layout)
		again, err := os.ReadFile(dir + ".safetensors")
		require.NoError(c, err)
		require.Equal(c, weights, again)
	}
}
