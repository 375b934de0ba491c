package explain

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner"
)

// Rejected is a plan that lost against the reported one.
type Rejected struct {
	Plan         string  `json:"plan"` // its degrees, in words
	StepSeconds  float64 `json:"step_seconds"`
	PeakBytes    int64   `json:"peak_bytes"`    // of the stage that needs the most
	DeltaSeconds float64 `json:"delta_seconds"` // beyond the reported plan's step
	DeltaBytes   int64   `json:"delta_bytes"`
	// Because names the part of the step that takes the most time beyond the reported plan's, for the rank that waits
	// least.
	Because string `json:"because"`
}

// Compare adds plans that lost to the report, best first. They are priced on the cluster of the prediction, as that of a
// plan.json may have been edited since. It fails without a prediction, and with a *planner.DocumentError if a plan does not
// apply.
func (r *Report) Compare(alternatives []planner.DocumentAlternative) error {
	if r.Prediction == nil {
		return fmt.Errorf("explain: %d plans to compare with a plan that has no prediction", len(alternatives))
	}
	p := r.Prediction
	for i, a := range alternatives {
		priced, err := Price(a.Plan, p.cluster, r.cfg)
		if bad, ok := errors.AsType[*planner.DocumentError](err); ok {
			bad.Key = fmt.Sprintf("search.alternatives[%d].%s", i, bad.Key)
		}
		if err != nil {
			return err
		}
		x := Rejected{Plan: PlanText(a.Plan), StepSeconds: priced.Predicted.StepSeconds, PeakBytes: slices.Max(priced.Predicted.PeakBytes)}
		x.DeltaSeconds = x.StepSeconds - p.StepSeconds
		x.DeltaBytes = x.PeakBytes - r.peak()
		b := priced.Predicted.Breakdown
		most := 0.0
		for _, part := range []struct {
			name        string
			theirs, our float64
		}{
			{"compute", b.Compute, p.Compute},
			{"communication", b.Communication, p.Communication},
			{"optimizer", b.Optimizer, p.Optimizer},
			{"bubble", b.Bubble, p.Bubble},
		} {
			if more := part.theirs - part.our; more > most {
				most = more
				x.Because = fmt.Sprintf("%s takes %s more", part.name, Seconds(more))
			}
		}
		r.Rejected = append(r.Rejected, x)
	}
	slices.SortStableFunc(r.Rejected, func(a, b Rejected) int { return cmp.Compare(a.StepSeconds, b.StepSeconds) })
	return nil
}

// peak is the largest arena of a stage, in bytes.
func (r *Report) peak() int64 {
	var most int64
	for _, st := range r.Stages {
		most = max(most, st.Memory.Arena)
	}
	return most
}

// PlanText describes a plan in one line.
func PlanText(p *partition.Plan) string {
	text := p.Degrees()
	if p.Units() > 1 {
		text = fmt.Sprintf("%d x (%s)", p.Units(), text)
	}
	text += fmt.Sprintf(", micro-batch %d, %s", p.MicroBatch, p.ScheduleText()) + shardedText(p)
	if p.RankOrder != "" {
		text += ", ranks in order " + p.RankOrderText()
	}
	if p.BatchShares != nil {
		text += ", the batch shared as " + ir.SharesText(p.BatchShares)
	}
	switch {
	case len(p.PoolOrder) > 0 && p.RuntimeNGPUs == 1: // one rank uses the first pool only
		text += fmt.Sprintf(", on pool %d", p.PoolOrder[0])
	case len(p.PoolOrder) > 0:
		text += fmt.Sprintf(", pools in order %d", p.PoolOrder)
	}
	if again := RecomputedText(p.Stages...); again != "none" {
		text += ", recomputing " + again
	}
	return text
}

// RecomputedText counts the blocks of stages that recompute activations: all of them, those of attention, or those of norms
// and activation functions (pointwise).
func RecomputedText(stages ...partition.Stage) string {
	var all partition.Stage
	for _, s := range stages {
		all.Recompute, all.Selective, all.Pointwise = all.Recompute+s.Recompute, all.Selective+s.Selective, all.Pointwise+s.Pointwise
	}
	var parts []string
	for _, x := range []struct {
		of     string
		blocks int
	}{{"", all.Recompute}, {"attention of ", all.Selective}, {"pointwise of ", all.Pointwise}} {
		switch {
		case x.blocks == 0:
		case len(parts) == 0:
			parts = append(parts, x.of+Count(x.blocks, "block"))
		default:
			parts = append(parts, x.of+strconv.Itoa(x.blocks))
		}
	}
	if len(parts) == 0 {
		return "none"
	}
	return strings.Join(parts, ", ")
}

// groupText names the groups that ZeRO shards over, or returns "" if that is all data-parallel ranks.
func groupText(p *partition.Plan) string {
	if p.Copies() == 1 {
		return ""
	}
	return fmt.Sprintf(" in groups of %d", p.ShardGroup())
}

// shardedText names the choices of a plan beyond its degrees and schedule: ZeRO, splits between modules, overlap, slices of
// the loss, offload.
func shardedText(p *partition.Plan) string {
	text := ""
	if p.ZeRO > 0 {
		text += fmt.Sprintf(", ZeRO %d", p.ZeRO) + groupText(p)
	}
	if p.SequenceParallel {
		text += ", sequence parallel"
	}
	if p.BatchParallel {
		text += ", batch parallel over tp"
	}
	if modules := p.Replicated(); len(modules) > 0 {
		text += ", " + strings.Join(modules, " and ") + " replicated"
	}
	if modules := p.OnGrid(); len(modules) > 0 {
		text += fmt.Sprintf(", %s on a grid of %d rows", strings.Join(modules, " and "), p.Rows())
	}
	if p.Overlap {
		text += ", overlap"
	}
	if p.OverlapTP {
		text += ", overlap of tp"
	}
	if p.OverlapP2P {
		text += ", overlap of p2p"
	}
	if p.TPPieces > 1 {
		text += ", tp in " + PiecesText("pieces", p.TPPieces, p.EmptyPieces())
	}
	if p.LossSlices > 1 {
		text += fmt.Sprintf(", the loss in %d slices", p.LossSlices)
	}
	if p.Offload.Moves() {
		text += ", offload " + p.Offload.String()
	}
	return text
}

// PiecesText counts parts of which some may have no rows: "4 pieces (2 empty)".
func PiecesText(name string, n, empty int) string {
	text := fmt.Sprintf("%d %s", n, name)
	if empty > 0 {
		text += fmt.Sprintf(" (%d empty)", empty)
	}
	return text
}

// ReproducibleText says under which other plans a run with train.reproducible has the same bits. Sums over tensor-parallel
// ranks are rounded in f32 as the plan splits them, so plans that split modules differently have other bits.
func ReproducibleText(p *partition.Plan) string {
	split := "without tensor parallelism"
	if p.TP > 1 {
		split = fmt.Sprintf("of the same placements over tp %d", p.TP)
		if p.SequenceParallel {
			split += ", with sequence parallelism"
		}
		if p.BatchParallel {
			split += ", with the batch shared by them"
		}
	}
	if n := p.ContextParallel(); n > 1 {
		split += fmt.Sprintf(", of cp %d", n)
	}
	return "the same bits under every plan " + split
}

func (r *Report) rejectedText(out io.Writer) {
	var rows [][]string
	for _, x := range r.Rejected {
		rows = append(rows, []string{
			x.Plan, Seconds(x.StepSeconds), signed(x.DeltaSeconds), percent(x.DeltaSeconds / r.Prediction.StepSeconds),
			Grouped(x.PeakBytes), signedBytes(x.DeltaBytes), x.Because,
		})
	}
	title := "plans that lost: time of a step, difference, peak bytes of a rank, difference, why slower"
	if len(r.Rejected) > 0 && r.Rejected[0].DeltaSeconds < 0 { // the plan was edited since
		title = "other plans, some of them faster: time of a step, difference, peak bytes of a rank, difference, what takes more"
	}
	table(out, title, rows, 1, 2, 3, 4, 5)
}

// signed writes a difference of times. Times are whole picoseconds, so less than that is a rounding error.
func signed(s float64) string {
	if s = math.Round(s*1e12)/1e12 + 0; s < 0 {
		return Seconds(s)
	}
	return "+" + Seconds(s)
}

func signedBytes(n int64) string {
	if n < 0 {
		return Grouped(n)
	}
	return "+" + Grouped(n)
}

func percent(x float64) string {
	if math.IsInf(x, 0) || math.IsNaN(x) {
		return ""
	}
	return fmt.Sprintf("%+.1f%%", 100*x)
}
