package explain

import (
	"errors"
	"fmt"
	"io"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
)

// Recost is the price of a plan for another cluster, batch or sequence than it was made for, beside its original price.
type Recost struct {
	Plan string `json:"plan"` // its degrees, in words
	Was  Priced `json:"was"`
	Now  Priced `json:"now"`
}

// Priced is what a plan costs on a cluster, for a batch and sequence.
type Priced struct {
	Cluster   string            `json:"cluster"`
	Batch     int               `json:"batch"`    // sequences per step
	Sequence  int               `json:"sequence"` // tokens
	Predicted planner.Predicted `json:"predicted"`
	Room
}

// NewRecost prices the plan of a document on a cluster and for a configuration, either of which may be the document's own.
// If the plan does not apply there, the error is a *planner.DocumentError that names the key of the plan.
func NewRecost(doc *planner.Document, c *cost.Cluster, cfg *config.Config) (*Recost, error) {
	was, err := Price(doc.Plan, doc.Cluster, doc.Config)
	if err != nil {
		return nil, err
	}
	now, err := Price(doc.Plan, c, cfg)
	if err != nil {
		return nil, err
	}
	return &Recost{Plan: PlanText(doc.Plan), Was: *was, Now: *now}, nil
}

// Price returns what a plan costs for a configuration on a cluster. Errors are as in [NewRecost].
func Price(p *partition.Plan, c *cost.Cluster, cfg *config.Config) (*Priced, error) {
	refuse := func(key string, format string, args ...any) error {
		return &planner.DocumentError{Key: key, Msg: fmt.Sprintf(format, args...) + "; the plan does not apply: plan again"}
	}
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := p.Validate(cfg.Model.NLayer, cfg.Batch.Global); err != nil {
		if bad, ok := err.(*partition.PlanError); ok {
			return nil, refuse("plan."+bad.Key, "%s", bad.Msg)
		}
		return nil, refuse("plan", "%v", err)
	}
	if err := holds(c, p); err != nil {
		bad := err.(*partition.PlanError)
		return nil, refuse("plan."+bad.Key, "%s", bad.Msg)
	}
	training, evaluation, err := cfg.Steps()
	if err != nil {
		return nil, err
	}
	for _, g := range []*ir.Graph{training, evaluation} {
		_, err := partition.Apply(g, p, cfg.Batch.Global)
		var bad *partition.PlanError
		switch {
		case errors.As(err, &bad): // of what depends on the sequence, too
			return nil, refuse("plan."+bad.Key, "%s", bad.Msg)
		case err != nil:
			return nil, refuse("plan.placements", "%v", err)
		}
	}
	x, err := planner.Predict(training, cfg.Batch.Global, c, p, evaluation)
	if err != nil {
		return nil, fmt.Errorf("explain: %w", err)
	}
	return &Priced{
		Cluster: c.Name, Batch: cfg.Batch.Global, Sequence: cfg.Model.BlockSize,
		Predicted: planner.NewPredicted(cfg, c, p, x), Room: room(c, cfg, p, x.PeakBytes),
	}, nil
}

// JSON writes the comparison as indented JSON.
func (r *Recost) JSON(w io.Writer) error {
	return writeJSON(w, r)
}

// Text writes both predictions side by side.
func (r *Recost) Text(w io.Writer) error {
	was, now := r.Was.Predicted, r.Now.Predicted
	share := func(a, b float64) string {
		if a == 0 {
			return ""
		}
		return fmt.Sprintf("%+.1f %%", 100*(b/a-1))
	}
	rows := [][]string{{"", "made for", "now", "change"}}
	words := func(name, a, b string) {
		change := ""
		if a != b {
			change = "*"
		}
		rows = append(rows, []string{name, a, b, change})
	}
	time := func(name string, a, b float64) {
		rows = append(rows, []string{name, Seconds(a), Seconds(b), share(a, b)})
	}
	size := func(name string, a, b int64) {
		rows = append(rows, []string{name, Grouped(a), Grouped(b), share(float64(a), float64(b))})
	}
	words("cluster", r.Was.Cluster, r.Now.Cluster)
	words("sequences per step", Grouped(int64(r.Was.Batch)), Grouped(int64(r.Now.Batch)))
	words("tokens per sequence", Grouped(int64(r.Was.Sequence)), Grouped(int64(r.Now.Sequence)))
	time("step", was.StepSeconds, now.StepSeconds)
	time("  compute", was.Breakdown.Compute, now.Breakdown.Compute)
	time("  exposed communication", was.Breakdown.Communication, now.Breakdown.Communication)
	time("  optimizer", was.Breakdown.Optimizer, now.Breakdown.Optimizer)
	time("  bubble", was.Breakdown.Bubble, now.Breakdown.Bubble)
	if was.Breakdown.Overlapped+now.Breakdown.Overlapped > 0 {
		time("  beside it, communication", was.Breakdown.Overlapped, now.Breakdown.Overlapped)
	}
	size("tokens/s", int64(was.TokensPerSecond), int64(now.TokensPerSecond))
	rows = append(rows, []string{"MFU", fmt.Sprintf("%.2f %%", 100*was.MFU), fmt.Sprintf("%.2f %%", 100*now.MFU), share(was.MFU, now.MFU)})
	for stage := range was.PeakBytes {
		size(fmt.Sprintf("peak bytes of stage %d", stage), was.PeakBytes[stage], now.PeakBytes[stage])
	}
	if r.Was.Memories == nil && r.Now.Memories == nil {
		size("bytes a rank may use", r.Was.Memory, r.Now.Memory)
	} else {
		for stage := range was.PeakBytes {
			size(fmt.Sprintf("bytes a rank of stage %d may use", stage), r.Was.at(stage), r.Now.at(stage))
		}
	}
	table(w, r.Plan, rows, 1, 2, 3)
	_, err := fmt.Fprintln(w, r.Now.verdict(now.PeakBytes))
	return err
}
