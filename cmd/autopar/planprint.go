package main

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner"
)

// printPlan prints a plan, what it costs, and the alternatives that lost. The output depends on the plan alone, not on how long
// the search took.
func printPlan(con *console, doc *planner.Document) {
	con.heading("plan for %s on %s", explain.Count(doc.Plan.RuntimeNGPUs, "rank"), doc.Cluster.Name)
	con.table(choices(doc))
	con.table(stageRows(doc))
	if con.verbose {
		con.heading("placements, the first that matches; other parameters are whole on every rank")
		var rows [][]string
		for _, pl := range doc.Plan.Placements {
			rows = append(rows, []string{pl.Match, pl.Spec})
		}
		con.table(rows)
	}
	predicted := doc.Predicted
	con.heading("predicted: %s per step, %s tokens/s, MFU %.2f %%",
		explain.Seconds(predicted.StepSeconds), explain.Grouped(int64(predicted.TokensPerSecond)), 100*predicted.MFU)
	con.table(partRows(predicted))
	if free := doc.Search.Unpinned; free > 0 {
		con.printf("%s\n", pinsText(len(doc.Config.Parallel.Pins), predicted.StepSeconds, free))
	}
	if doc.Search.Robust != nil {
		printRobust(con, doc)
	}
	if len(doc.Search.Alternatives) > 0 {
		con.heading("alternatives")
		con.table(alternativeRows(doc))
	}
}

// pinsText compares a step with one of the best plan without pins. Pins may also gain: they place what the search places
// by rule.
func pinsText(pins int, step, free float64) string {
	if step == free {
		return fmt.Sprintf("%s: no plan without is faster", explain.Count(pins, "pin"))
	}
	share, than := 100*(step/free-1), "longer"
	if share < 0 {
		share, than = -share, "shorter"
	}
	return fmt.Sprintf("%s: %.3g %% %s than the %s of the best plan without", explain.Count(pins, "pin"), share, than, explain.Seconds(free))
}

// choices lists what a plan chooses for the whole job.
func choices(doc *planner.Document) [][]string {
	p := doc.Plan
	about := [][]string{
		{"mesh", fmt.Sprintf("%s of %s", explain.Count(p.Units(), "unit"), p.Degrees())},
		{"micro-batch", fmt.Sprintf("%s, %d per step and data-parallel rank", explain.Count(p.MicroBatch, "sequence"), p.MicroBatches(doc.Config.Batch.Global, ir.Coord{}))},
		{"schedule", p.ScheduleText()},
		{"sharded", shardedText(p)},
	}
	if modules := p.Replicated(); len(modules) > 0 {
		about = append(about, []string{"replicated", "the weights of " + strings.Join(modules, " and ") + " over tp"})
	}
	if modules := p.OnGrid(); len(modules) > 0 {
		grid := fmt.Sprintf("the weights of %s, over %d rows and %d columns of tp", strings.Join(modules, " and "), p.Rows(), p.TP/p.Rows())
		about = append(about, []string{"in two dims", grid})
	}
	if p.RankOrder != "" {
		about = append(about, []string{"rank order", p.RankOrderText() + ", innermost first"})
	}
	if p.BatchShares != nil {
		about = append(about, []string{"batch shared", ir.SharesText(p.BatchShares) + " by data-parallel rank"})
	}
	if p.Overlap {
		about = append(about, []string{"overlap", "gradients and sharded parameters travel beside the computation"})
	}
	if p.OverlapTP {
		about = append(about, []string{"overlap of tp", "in the backward pass its ranks communicate beside products"})
	}
	if p.OverlapP2P {
		about = append(about, []string{"overlap of p2p", "stages go on while what they send is on its way"})
	}
	if p.TPPieces > 1 {
		in := fmt.Sprintf("products and collectives of tp next to them, in %s of ", explain.PiecesText("parts", p.TPPieces, p.EmptyPieces()))
		switch {
		case p.SequenceParts > 1:
			in += "each sequence"
		case p.MicroBatch > 1:
			in += "the sequences"
		default:
			in = "nothing: micro-batches have one sequence each, which is not cut"
		}
		about = append(about, []string{"in pieces", in})
	}
	if p.LossSlices > 1 {
		about = append(about, []string{"loss", fmt.Sprintf("in %d slices of the sequences", p.LossSlices)})
	}
	if p.Offload.Moves() {
		about = append(about, []string{"offloaded", map[partition.Offload]string{
			partition.OffloadOptimizer: "optimizer state, to host memory",
			partition.OffloadParams:    "optimizer state and parameters, to host memory",
		}[p.Offload]})
	}
	if doc.Config.Train.Reproducible {
		about = append(about, []string{"reproducible", explain.ReproducibleText(p)})
	}
	return about
}

// stageRows lists the positions of the pipeline, with the memory of their ranks.
func stageRows(doc *planner.Document) [][]string {
	p, predicted := doc.Plan, doc.Predicted
	rows := [][]string{{"STAGE", "BLOCKS", "RECOMPUTED", "PEAK MEMORY OF A RANK"}}
	limit := doc.Cluster.MemoryUnder(int64(doc.Config.Parallel.MemoryLimit), p.RuntimeNGPUs)
	pools := len(doc.Cluster.Pools) > 0
	if pools {
		rows[0] = append(rows[0], "OF", "DEVICES")
	}
	for i := range p.PP() {
		var blocks []string
		var stages []partition.Stage
		for s := i; s < len(p.Stages); s += p.PP() { // the chunks of the position
			blocks = append(blocks, blocksText(p.Stages[s]))
			stages = append(stages, p.Stages[s])
		}
		peak := fmt.Sprintf("%s (%s bytes)", explain.Bytes(predicted.PeakBytes[i]), explain.Grouped(predicted.PeakBytes[i]))
		if i < len(predicted.HostBytes) {
			peak += fmt.Sprintf(" and %s (%s bytes) of the host", explain.Bytes(predicted.HostBytes[i]), explain.Grouped(predicted.HostBytes[i]))
		}
		row := []string{fmt.Sprint(i), strings.Join(blocks, ", "), explain.RecomputedText(stages...), peak}
		if pools {
			row = append(row, explain.Bytes(min(limit, doc.Cluster.MemoryAt(p, i))), doc.Cluster.KindText(p, i))
		}
		rows = append(rows, row)
	}
	return rows
}

// partRows lists the shares of a step.
func partRows(predicted planner.Predicted) [][]string {
	var rows [][]string
	for _, part := range parts(predicted.Breakdown) {
		rows = append(rows, []string{part.name, explain.Seconds(part.seconds), percentText(part.seconds / predicted.StepSeconds)})
	}
	if beside := predicted.Breakdown.Overlapped; beside > 0 {
		rows = append(rows, []string{"beside it, communication", explain.Seconds(beside), percentText(beside / predicted.StepSeconds)})
	}
	return rows
}

// alternativeRows lists the plans that lost, with the parts of the step in which they differ.
func alternativeRows(doc *planner.Document) [][]string {
	predicted := doc.Predicted
	rows := [][]string{{"PLAN", "STEP", "SLOWER BY", "PEAK MEMORY", "BECAUSE"}}
	for _, a := range doc.Search.Alternatives {
		slower := a.Predicted.StepSeconds - predicted.StepSeconds
		rows = append(rows, []string{
			explain.PlanText(a.Plan), explain.Seconds(a.Predicted.StepSeconds), fmt.Sprintf("%s (%s)", explain.Seconds(slower), percentText(slower/predicted.StepSeconds)),
			explain.Bytes(slices.Max(a.Predicted.PeakBytes)), differences(predicted.Breakdown, a.Predicted.Breakdown),
		})
	}
	return rows
}

// part is a share of a step.
type part struct {
	name    string
	seconds float64
}

func parts(b planner.PredictedBreakdown) []part {
	return []part{
		{"compute", b.Compute}, {"exposed communication", b.Communication}, {"optimizer", b.Optimizer}, {"bubble", b.Bubble},
	}
}

// differences says in which parts b differs from a.
func differences(a, b planner.PredictedBreakdown) string {
	var words []string
	before := parts(a)
	for i, now := range parts(b) {
		d := now.seconds - before[i].seconds
		switch {
		case math.Abs(d) < 1e-12: // less than a picosecond, the unit of prices
		case d > 0:
			words = append(words, now.name+" +"+explain.Seconds(d))
		default:
			words = append(words, now.name+" "+explain.Seconds(d))
		}
	}
	return strings.Join(words, ", ")
}

// shardedText says what is sharded beyond the placements: by ZeRO over data-parallel and context-parallel ranks, and
// between blocks over tensor-parallel ranks.
func shardedText(p *partition.Plan) string {
	text := [...]string{
		"nothing", "optimizer state", "optimizer state and gradients", "optimizer state, gradients and parameters",
	}[p.ZeRO] + " over dp"
	if p.ZeRO > 0 && p.ContextParallel() > 1 {
		text += " and cp"
	}
	if p.Replicas() > p.ShardGroup()*p.ContextParallel() {
		text += " and tp"
	}
	text += fmt.Sprintf(" (ZeRO %d)", p.ZeRO)
	if p.Copies() > 1 {
		text += fmt.Sprintf(", in %d groups of %d ranks", p.Copies(), p.ShardGroup()*p.ContextParallel())
	}
	if p.SequenceParallel {
		text += "; the sequence between blocks over tp"
	}
	if p.BatchParallel {
		text += "; the batch between blocks over tp"
	}
	return text
}

func blocksText(s partition.Stage) string {
	if s.Last-s.First == 1 {
		return fmt.Sprint(s.First)
	}
	return fmt.Sprintf("%d to %d", s.First, s.Last-1)
}
