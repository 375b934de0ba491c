// Package export translates a plan for other systems: arguments for Megatron-LM, a configuration for torchtitan, and jobs
// for Slurm and Kubernetes that run the plan with autopar itself. `autopar export` calls it.
//
// What another system runs must be the plan that was priced. If the system cannot express a part of the plan, [Write] fails
// with an [*Error] that lists all such parts and what to plan with instead. If it trains the same plan slightly differently,
// a comment in the output says how.
package export

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner"
)

// The formats.
const (
	Megatron   = "megatron"   // a shell script that starts pretrain_gpt.py of Megatron-LM
	Torchtitan = "torchtitan" // a job file (TOML) for torchtitan 0.2
	Slurm      = "slurm"      // a batch script that runs autopar run
	Kubernetes = "k8s"        // manifests that run autopar launch
)

// Options of [Write].
type Options struct {
	Format string // one of the above
	Plan   string // the file that has the plan
	Image  string // the container image that has autopar, for Kubernetes
}

// Error says why another system cannot run a plan.
type Error struct {
	Format string
	Parts  []string // parts of the plan that the system cannot express, each with what to plan instead
}

func (e *Error) Error() string {
	return fmt.Sprintf("export: %s has no words for this plan: %s", e.Format, strings.Join(e.Parts, "; "))
}

// Write writes the plan of a document in a format. It fails with an [*Error] if the format cannot express the plan, and
// writes nothing then.
func Write(w io.Writer, doc *planner.Document, o Options) error {
	write, ok := map[string]func(*plan, Options) string{
		Megatron: (*plan).megatron, Torchtitan: (*plan).torchtitan, Slurm: (*plan).slurm, Kubernetes: (*plan).kubernetes,
	}[o.Format]
	if !ok {
		return &Error{o.Format, []string{"it is none of megatron, torchtitan, slurm and k8s"}}
	}
	p := &plan{Document: doc, Plan: doc.Plan}
	p.nodes()
	text := write(p, o)
	if len(p.missing) > 0 {
		return &Error{o.Format, p.missing}
	}
	_, err := io.WriteString(w, text)
	return err
}

// plan is a document that is being translated.
type plan struct {
	*planner.Document
	*partition.Plan
	machines, perNode int      // nodes, and ranks on each; together RuntimeNGPUs
	missing           []string // what the system cannot express
	notes             []string // what it does slightly differently
}

// lack records something that the system cannot express, under a condition.
func (p *plan) lack(when bool, format string, args ...any) {
	if when {
		p.missing = append(p.missing, fmt.Sprintf(format, args...))
	}
}

// note records something that the system does slightly differently, under a condition.
func (p *plan) note(when bool, format string, args ...any) {
	if when {
		p.notes = append(p.notes, fmt.Sprintf(format, args...))
	}
}

// nodes divides the ranks among the nodes of the cluster.
func (p *plan) nodes() {
	p.lack(len(p.Cluster.Pools) > 0, "several kinds of devices: plan for one of them")
	p.machines, p.perNode = 1, p.RuntimeNGPUs
	if size := p.Cluster.DevicesPerNode; !p.Cluster.Device.Shared && p.RuntimeNGPUs > size {
		p.lack(p.RuntimeNGPUs%size != 0, "%d ranks on nodes of %d devices: plan for whole nodes", p.RuntimeNGPUs, size)
		p.machines, p.perNode = p.RuntimeNGPUs/size, size
	}
}

// header is the comment at the top of every output.
func (p *plan) header(o Options, lines ...string) string {
	m, each := &p.Config.Model, p.Predicted
	text := []string{
		fmt.Sprintf("%s for %s of %s, %s: autopar predicts %.4g s per step,", o.Plan, explain.Count(p.RuntimeNGPUs, "rank"), p.Cluster.Name, p.Cluster.Device.Name, each.StepSeconds),
		fmt.Sprintf("%.0f tokens/s. %s, %s, width %d, %s, %s per step.", each.TokensPerSecond,
			explain.Count(m.NLayer, "block"), m.HeadsText(), m.NEmbd, explain.Count(m.BlockSize, "token"), explain.Count(p.Config.Batch.Global, "sequence")),
	}
	text = append(text, lines...)
	for _, n := range p.notes {
		text = append(text, "Differs: "+n+".")
	}
	for i, line := range text {
		text[i] = "# " + oneLine(line) + "\n"
	}
	return strings.Join(text, "")
}

// oneLine replaces by spaces all characters that a shell, TOML or YAML could take for the end of a line, or does not allow
// in one.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if strange(r) || r == '\n' {
			return ' '
		}
		return r
	}, text)
}

// strange reports whether a character cannot stand for itself in a YAML block scalar: YAML does not allow it, or takes it for
// the end of a line.
func strange(r rune) bool {
	return unicode.IsControl(r) && r != '\n' || strings.ContainsRune("\u2028\u2029\ufeff\ufffd", r)
}

// foreign records the parts of the plan that only autopar can run.
func (p *plan) foreign() {
	cfg := p.Config
	p.lack(len(cfg.Parallel.Pins) > 0, "pinned placements (parallel.pin)")
	p.lack(p.TP > 1 && len(p.Replicated()) > 0, "%s kept whole beside tensor parallelism: plan with --replicate none", strings.Join(p.Replicated(), " and "))
	p.lack(p.BatchParallel, "sequences of a micro-batch shared by tensor-parallel ranks: plan with --batch-parallel off")
	p.lack(p.Rows() > 1, "weights cut in two dimensions over %d rows of tensor-parallel ranks: plan with --tp-rows 1", p.Rows())
	p.lack(p.TP > 1 && p.TP > cfg.Model.KVHeads(), "tensor parallelism of %d over %d heads of keys and values: plan with --tp %[2]d", p.TP, cfg.Model.KVHeads())
	p.lack(p.TP <= cfg.Model.KVHeads() && cfg.Model.KVHeads()%p.TP != 0, "%d heads of keys and values over %d tensor-parallel ranks: plan with a --tp that divides them", cfg.Model.KVHeads(), p.TP)
	p.lack(cfg.Model.NHead%p.TP != 0, "%d heads over %d tensor-parallel ranks: plan with a --tp that divides them", cfg.Model.NHead, p.TP)
	p.lack(p.Offload.Moves(), "state that is fetched from the host's memory and stashed there: plan with --offload none")
	p.lack(cfg.Train.Reproducible, "train.reproducible")
	p.lack(cfg.Train.EvalOnly, "train.eval_only")
	p.lack(cfg.Model.LoRARank > 0, "adapters beside frozen weights: plan with model.lora_rank 0")
	dp := p.DataParallel()
	p.lack(cfg.Batch.Global%dp != 0, "%d sequences on %d data-parallel ranks, of which some get fewer", cfg.Batch.Global, dp)
	p.lack(p.BatchShares != nil, "shares of the batch for ranks of different speeds: plan anew")
	local := cfg.Batch.Global / dp
	even := p.MicroBatch
	for local%even != 0 {
		even--
	}
	p.lack(even != p.MicroBatch, "%d sequences of a data-parallel rank in micro-batches of %d, of which the last is smaller: plan with --micro-batch %d", local, p.MicroBatch, even)
	p.lack(p.PP() == 1 && p.Schedule != partition.OneFOneB && local > p.MicroBatch, "schedule %s without a pipeline: plan with --schedule 1f1b", p.Schedule)
	p.lack(even == p.MicroBatch && p.Chunks() > 1 && local/p.MicroBatch%p.PP() != 0, "%d micro-batches interleaved over %d positions: plan with a --micro-batch that makes a multiple of them, or --schedule 1f1b", local/p.MicroBatch, p.PP())
	p.note(p.TPPieces > 1, "products and collectives of tensor parallelism are made whole: the plan has them in %d parts, each beside another", p.TPPieces)
	p.note(p.LossSlices > 1, "the head and the loss run in one piece: logits take %d times the memory", p.LossSlices)
	p.note(cfg.Optimizer.DecayLR && cfg.Optimizer.Schedule == config.Step, "the learning rate decays as a cosine, not in steps")
}

// numbered reports whether the plan's ranks are numbered in an order of axes, in which units are data-parallel replicas like
// others.
func (p *plan) numbered(order string) bool {
	q := *p.Plan
	q.PlanNGPUs, q.DP, q.RankOrder = p.RuntimeNGPUs, p.DataParallel(), order
	for position := range p.PP() {
		for device := range p.Mesh(p.Config.Batch.Global).Devices() {
			if p.WorldRank(position, device) != q.WorldRank(position, device) {
				return false
			}
		}
	}
	return true
}

// recomputation returns how many blocks of every stage, from the first, are recomputed in full, or that attention is
// recomputed in all blocks. ok is false if the plan does something else: stages that differ, or recomputation of norms and
// activation functions alone, which neither system can express for all kinds of blocks.
func (p *plan) recomputation() (blocks int, attention, ok bool) {
	size := func(s partition.Stage) int { return s.Last - s.First }
	all := func(is func(partition.Stage) bool) bool {
		return !slices.ContainsFunc(p.Stages, func(s partition.Stage) bool { return !is(s) })
	}
	first := p.Stages[0]
	switch {
	case all(func(s partition.Stage) bool { return s.Selective == size(s) }):
		return 0, true, true
	case all(func(s partition.Stage) bool { return s.Recompute == size(s) }):
		return p.most(), false, true
	case all(func(s partition.Stage) bool { return s.Recompute == first.Recompute && s.Selective+s.Pointwise == 0 }):
		return first.Recompute, false, true
	}
	return 0, false, false
}

// most is the largest number of blocks of a stage.
func (p *plan) most() (n int) {
	for _, s := range p.Stages {
		n = max(n, s.Last-s.First)
	}
	return n
}

// Quote returns text as one word of a POSIX shell.
func Quote(s string) string {
	plain := func(r rune) bool {
		return r < 128 && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./=:,+%@", r))
	}
	if s != "" && strings.IndexFunc(s, func(r rune) bool { return !plain(r) }) < 0 {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// device is the backend that autopar runs the plan on, as --device has it.
func (p *plan) device() string {
	return map[bool]string{true: "cpu", false: "cuda"}[p.Cluster.Device.Shared]
}
