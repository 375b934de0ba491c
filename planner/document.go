package planner

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// plan.json: the result of a search as a file, which autopar plan writes and other commands read. The
// type file is its form in JSON; docread.go reads it back.

// Schema is the version of the form of plan.json.
const Schema = 1

// Document is plan.json: a plan with all that is needed to run it, what it was made for, and what
// it was predicted to cost. Two searches for the same input write the same bytes, except for
// Search.Seconds.
type Document struct {
	Plan      *partition.Plan
	Predicted Predicted
	Search    SearchInfo
	// ConfigHash and GraphHash are SHA-256 hashes of the configuration's text and of the
	// unpartitioned graph's text without source positions.
	ConfigHash, GraphHash string
	Config                *config.Config // the whole configuration, so that the file is enough to run
	Cluster               *cost.Cluster

	lines keyLines // nil unless the document was read
}

// Line returns the line of the file on which a key such as "plan.stages" begins, or what the key would be in; 0 if the document
// was not read from one.
func (d *Document) Line(key string) int { return d.lines.of(key) }

// file is the form of a document in JSON. The configuration has the keys of gpt.yaml.
type file struct {
	Schema     int             `json:"schema"`
	Plan       *partition.Plan `json:"plan"`
	Predicted  Predicted       `json:"predicted"`
	Search     SearchInfo      `json:"search"`
	ConfigHash string          `json:"config_hash"`
	GraphHash  string          `json:"graph_hash"`
	Config     json.RawMessage `json:"config"`
	Cluster    *cost.Cluster   `json:"cluster"`
}

// Predicted is what a plan is expected to do.
type Predicted struct {
	StepSeconds     float64            `json:"step_seconds"`
	TokensPerSecond float64            `json:"tokens_per_second"`
	MFU             float64            `json:"mfu"` // fraction of the peak of all ranks
	Breakdown       PredictedBreakdown `json:"breakdown"`
	PeakBytes       []int64            `json:"peak_bytes"`           // of a rank's device, by stage
	HostBytes       []int64            `json:"host_bytes,omitempty"` // of a rank's host memory, by stage
}

// PredictedBreakdown is how the busiest rank spends the step.
type PredictedBreakdown struct {
	Compute       float64 `json:"compute_seconds"`
	Communication float64 `json:"communication_seconds"`
	Optimizer     float64 `json:"optimizer_seconds"`
	Bubble        float64 `json:"bubble_seconds"`
	// Overlapped is communication beside the rest, not part of the step's time.
	Overlapped float64 `json:"overlapped_seconds,omitempty"`
}

// SearchInfo says how the plan was found, and which plans lost to it.
type SearchInfo struct {
	Seconds         float64               `json:"seconds"`                        // until the plan was known
	Beyond          float64               `json:"alternatives_seconds,omitempty"` // from then on, for the alternatives
	PlansConsidered int                   `json:"plans_considered"`
	Optimal         bool                  `json:"optimal"`
	Gap             float64               `json:"gap,omitempty"` // by what fraction of its time a plan could at most be faster
	Alternatives    []DocumentAlternative `json:"alternatives"`
	// Unpinned is the time of a step under the best plan without the user's pins, which says what these cost; 0 if
	// there are none, or without them no plan fits.
	Unpinned float64 `json:"unpinned_step_seconds,omitempty"`
	// Robust is how the plan and others fare if the cluster is not as stated; nil if nobody asked.
	Robust *Robustness `json:"robust,omitempty"`
}

// DocumentAlternative is a plan that lost.
type DocumentAlternative struct {
	Plan      *partition.Plan `json:"plan"`
	Predicted Predicted       `json:"predicted"`
}

// NewDocument makes a document of the result of a search for the graph of a configuration.
func NewDocument(cfg *config.Config, g *ir.Graph, c *cost.Cluster, r *Result) *Document {
	d := &Document{
		Config: cfg, ConfigHash: hash(cfg.Marshal()), GraphHash: graphHash(g), Cluster: c, Plan: r.Plan,
		Predicted: NewPredicted(cfg, c, r.Plan, r.Prediction),
		Search: SearchInfo{
			Seconds: r.Stats.Seconds, Beyond: r.Stats.AlternativesSeconds, PlansConsidered: r.Stats.PlansConsidered, Optimal: r.Stats.Optimal, Gap: r.Stats.Gap,
			Alternatives: []DocumentAlternative{},
		},
	}
	for _, a := range r.Alternatives {
		d.Search.Alternatives = append(d.Search.Alternatives, DocumentAlternative{a.Plan, NewPredicted(cfg, c, a.Plan, a.Prediction)})
	}
	return d
}

// NewPredicted adds to a prediction what follows from the model: tokens per second, and model FLOPs
// utilization by nanoGPT's count of FLOPs.
func NewPredicted(cfg *config.Config, c *cost.Cluster, p *partition.Plan, x Prediction) Predicted {
	tokens := float64(cfg.Batch.Global) * float64(cfg.Model.BlockSize)
	perSecond := tokens / x.Step.Seconds()
	peak := c.JobFLOPS(cfg.DType().String(), p)
	return Predicted{
		StepSeconds: x.Step.Seconds(), TokensPerSecond: perSecond,
		MFU: perSecond * float64(cfg.Model.FLOPsPerToken()) / peak,
		Breakdown: PredictedBreakdown{
			x.Breakdown.Compute.Seconds(), x.Breakdown.Communication.Seconds(),
			x.Breakdown.Optimizer.Seconds(), x.Breakdown.Bubble.Seconds(), x.Breakdown.Overlapped.Seconds(),
		},
		PeakBytes: x.PeakBytes, HostBytes: x.HostBytes,
	}
}

// graphHash is the hash of a graph's text without source positions, which change whenever the
// model's source is edited.
func graphHash(g *ir.Graph) string {
	var b bytes.Buffer
	cols := []ir.Column{ir.NameColumn, ir.AttrColumn, ir.TypeColumn, ir.SpecColumn, ir.PhaseColumn}
	if err := g.Fprint(&b, ir.PrintOptions{Columns: cols}); err != nil {
		panic("BUG: a buffer does not fail: " + err.Error())
	}
	return hash(b.Bytes())
}

func hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// Marshal prints the document, indented, in a fixed order.
func (d *Document) Marshal() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(file{Schema, d.Plan, d.Predicted, d.Search, d.ConfigHash, d.GraphHash, configJSON(d.Config), d.Cluster}); err != nil {
		return nil, fmt.Errorf("planner: plan.json: %w", err)
	}
	return b.Bytes(), nil
}

// configJSON converts the text of a configuration to JSON. Every line of that text is a section or
// a key with a scalar; only pins are a list.
func configJSON(c *config.Config) json.RawMessage {
	var b strings.Builder
	b.WriteByte('{')
	sections, keys := 0, 0
	for _, line := range strings.Split(strings.TrimSuffix(string(c.Marshal()), "\n"), "\n") {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if !strings.HasPrefix(line, " ") {
			if sections > 0 {
				b.WriteString("},")
			}
			fmt.Fprintf(&b, "%q:{", name)
			sections, keys = sections+1, 0
			continue
		}
		if keys > 0 {
			b.WriteByte(',')
		}
		keys++
		fmt.Fprintf(&b, "%q:%s", name, scalarJSON(strings.TrimSpace(value), name == "pin", c.Parallel.Pins))
	}
	b.WriteString("}}")
	return json.RawMessage(b.String())
}

func scalarJSON(text string, isPins bool, pins []config.Pin) string {
	if isPins {
		type pin struct {
			Match     string   `json:"match"`
			Placement []string `json:"placement"`
		}
		out := make([]pin, len(pins))
		for i, p := range pins {
			out[i] = pin{p.Match, append([]string{}, p.Placement...)}
		}
		return mustJSON(out)
	}
	if text == "true" || text == "false" {
		return text
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil && json.Valid([]byte(text)) {
		return text
	}
	if s, err := strconv.Unquote(text); err == nil {
		return mustJSON(s)
	}
	return mustJSON(text)
}

func mustJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return string(data)
}

// Check reports, as a *DocumentError, that the graph traced from the document's configuration is
// not the one that the plan was made for.
func (d *Document) Check(g *ir.Graph) error {
	if got := hash(d.Config.Marshal()); got != d.ConfigHash {
		return &DocumentError{Key: "config_hash", Msg: fmt.Sprintf("is %.12s, but config hashes to %.12s: the config was changed after planning; plan again", d.ConfigHash, got)}
	}
	if got := graphHash(g); got != d.GraphHash {
		return &DocumentError{Key: "graph_hash", Msg: fmt.Sprintf("is %.12s, but the model makes a graph with %.12s: the plan was made by another version of the model; plan again", d.GraphHash, got)}
	}
	return nil
}

// DocumentError is a plan.json that cannot be used. It prints as "plan.json:12: plan.dp: wants an
// integer, got \"two\"".
type DocumentError struct {
	File string
	Line int // 0 if it is not known
	Key  string
	Msg  string
	Err  error
}

func (e *DocumentError) Error() string {
	var parts []string
	file := e.File
	if file != "" && e.Line > 0 {
		file += ":" + strconv.Itoa(e.Line)
	}
	for _, p := range []string{file, e.Key, e.Msg} {
		if p != "" {
			parts = append(parts, p)
		}
	}
	if e.Err != nil {
		parts = append(parts, e.Err.Error())
	}
	return strings.Join(parts, ": ")
}

func (e *DocumentError) Unwrap() error { return e.Err }
