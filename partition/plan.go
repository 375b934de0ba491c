// Package partition applies a plan to a graph. A plan says where parameters
// live on the mesh, how blocks fall into pipeline stages, how the batch is cut
// into micro-batches and which blocks are recomputed; [Apply] derives from it
// the placement of every value, and inserts the collectives, sends and receives
// that those placements need.
//
// It never sees the planner: a plan may be written by hand.
package partition

import (
	"fmt"
	"slices"
	"strings"

	"github.com/autopar/autopar/ir"
)

// Schedule is the order in which a pipeline stage runs its micro-batches.
type Schedule string

// The schedules.
const (
	GPipe    Schedule = "gpipe" // all forwards, then all backwards (Huang et al. 2019)
	OneFOneB Schedule = "1f1b"  // warm-up, then one forward one backward (Narayanan et al. 2021)
	// Interleaved is 1f1b over several stages per rank (Narayanan et al. 2021, section 2.2).
	Interleaved Schedule = "interleaved"
	// ZeroBubble is 1f1b with the backward pass split: gradients of parameters
	// wait for the bubble (Qi et al. 2024, ZB-H1).
	ZeroBubble Schedule = "zero-bubble"
)

// MaxTPPieces is the most that [Plan.TPPieces] may be: what parts leave in the open falls with their number, what
// it takes to launch them grows.
const MaxTPPieces = 16

// Axis names of the mesh of a stage.
const (
	// AxisRep is the copies of a ZeRO group, outside dp; there is no such axis of
	// size 1. The batch is cut over it as over dp.
	AxisRep = "rep"
	AxisDP  = "dp" // data parallel, over the units too
	AxisCP  = "cp" // context parallel; there is no such axis of size 1
	AxisTP  = "tp" // tensor parallel, of a grid the ranks along its columns
	// AxisTPR is the rows of the grid of tensor-parallel ranks, inside tp; there is no such
	// axis of size 1.
	AxisTPR = "tpr"
	AxisMB  = "mb" // micro-batches, in time
)

// Plan is a way to run a training step on RuntimeNGPUs ranks. World rank r is
// shard r mod PlanNGPUs of unit r div PlanNGPUs; inside a unit ranks are
// numbered stage-major, then dp, then cp, then tp, or as RankOrder says.
type Plan struct {
	PlanNGPUs    int `json:"plan_ngpus"`
	RuntimeNGPUs int `json:"runtime_ngpus"`
	DP           int `json:"dp"`           // inside the unit
	CP           int `json:"cp,omitempty"` // context parallel: see [Plan.ContextParallel]
	TP           int `json:"tp"`
	// TPRows is how many rows the tensor-parallel ranks form, of TP / TPRows columns: a grid over
	// which placements may cut a weight in both of its dimensions, outputs over tp and inputs
	// over tpr (two-dimensional tensor parallelism: Xu et al. 2021, section 5.1; Xu and You 2023,
	// "Optimus"). 0 stands for 1, no grid.
	TPRows     int      `json:"tp_rows,omitempty"`
	MicroBatch int      `json:"micro_batch"` // sequences per micro-batch of one data-parallel rank
	Schedule   Schedule `json:"schedule"`
	// Interleave is how many stages, called chunks of the model, each rank runs:
	// stage s runs at position s mod PP of the pipeline. See [Plan.Chunks].
	Interleave int `json:"interleave,omitempty"`
	// ZeRO is the stage up to which what data-parallel ranks would all hold is
	// sharded over them: 1 optimizer state, 2 gradients too, 3 parameters too
	// (Rajbhandari et al. 2020).
	ZeRO int `json:"zero"`
	// ZeROGroup is how many data-parallel ranks ZeRO shards over: neighbours, of
	// which every group holds a copy. Its copies add up their shards of the
	// gradients (hybrid sharding: Zhao et al. 2023, section 3.2.2; hpZ of ZeRO++:
	// Wang et al. 2023). 0 is all of them.
	ZeROGroup int `json:"zero_group,omitempty"`
	// Offload is what lives in host memory.
	Offload Offload `json:"offload,omitempty"`
	// SequenceParallel shards the residual stream between tensor-parallel regions
	// along the sequence over tp.
	SequenceParallel bool `json:"sequence_parallel"`
	// BatchParallel shards it along the batch instead: each tensor-parallel rank has some of
	// the sequences of a micro-batch. Where modules are held whole (see [Plan.Replicated]) they
	// are then data parallel over tp, also attention, while others, such as the
	// vocabulary's table and head, are split.
	BatchParallel bool `json:"batch_parallel,omitempty"`
	// Overlap lets gradients be reduced, and sharded parameters be gathered, on a
	// stream of communication beside the computation.
	Overlap bool `json:"overlap,omitempty"`
	// OverlapTP lets tensor-parallel ranks exchange activations and their gradients beside
	// kernels that do not need the result: in the backward pass that is the product for the
	// gradient of a weight, or of an input. See codegen's beside.
	OverlapTP bool `json:"overlap_tp,omitempty"`
	// OverlapP2P lets a stage go on while what its passes send to another stage is on its way. See codegen's posted.
	OverlapP2P bool `json:"overlap_p2p,omitempty"`
	// TPPieces is in how many parts of whole sequences products and the collectives of
	// tensor-parallel ranks next to them are made, each part of one beside a part of the other: those of the
	// forward pass, and of the backward pass those that OverlapTP leaves. 0 stands for 1. See codegen's pieces.
	TPPieces int `json:"tp_pieces,omitempty"`
	// LossSlices is in how many slices of their positions the head and the loss run, forward
	// and backward of each together, so that there are never more logits than those of one; but
	// under a zero-bubble schedule their gradients wait for that of the head's weight. 0 stands for 1.
	LossSlices int `json:"loss_slices,omitempty"`
	// PoolOrder is the order in which world ranks are numbered along the pools of a
	// cluster that has several kinds of devices, by their places in the cluster: with
	// [1,0] rank 0 is the first device of the second pool. Empty is as they stand there.
	// Programs do not depend on it.
	PoolOrder []int `json:"pool_order,omitempty"`
	// RankOrder is the order in which the axes lie over the ranks of a unit, innermost
	// first, as Megatron-LM names its rank orders: with "dp-tp-pp" neighbours are data-parallel.
	// Axes of one rank may be left out. Empty is [UsualOrder]. Programs do not depend
	// on it, only which rank runs which.
	RankOrder  string      `json:"rank_order,omitempty"`
	Stages     []Stage     `json:"stages"`
	Placements []Placement `json:"placements"`
}

// Stage is one pipeline stage: blocks First (included) to Last (excluded) of the
// model's repeated blocks. What comes before the first block belongs to the
// first stage, what comes after the last to the last.
type Stage struct {
	First int `json:"first"`
	Last  int `json:"last"`
	// Recompute says how many of the stage's blocks, from the first, drop their
	// activations after the forward pass and compute them again in the backward.
	Recompute int `json:"recompute"`
	// Selective says how many blocks after those compute only their attention
	// again (Korthikanti et al. 2022, section 5).
	Selective int `json:"selective"`
	// Pointwise says how many blocks after those compute only their norms and activation
	// functions again, of which the backward pass has the operands anyway (as Megatron-Core
	// does with recompute_modules layernorm and moe_act).
	Pointwise int `json:"pointwise,omitempty"`
}

// Recomputed returns how many of the blocks compute something again.
func (s Stage) Recomputed() int { return s.Recompute + s.Selective + s.Pointwise }

// Placement places the values whose whole name matches the regular expression.
// The spec has the text form of [ir.ShardSpec], without the data-parallel and
// micro-batch axes, which follow the batch: "[_,tp]". The first match holds.
// Parameters that nothing matches are replicated; optimizer state lies as its
// parameter does.
type Placement struct {
	Match string `json:"match"`
	Spec  string `json:"spec"`
}

// places lists the parameters and ops of a graph that match. Optimizer state is placed by the name of its parameter.
func (p Placement) places(g *ir.Graph) (nodes []*ir.Node, err error) {
	match, err := newPattern(p.Match)
	if err != nil {
		return nil, err
	}
	for _, n := range g.Nodes {
		attr, _ := n.Attr.(ir.ParamAttr)
		if (n.Op == ir.OpParam && !attr.State || n.Op.Class() == ir.Compute) && match.matches(PlacedAs(n)) {
			nodes = append(nodes, n)
		}
	}
	return nodes, nil
}

// Find lists the parameters and ops of some graphs that match. It refuses placements for nothing: whoever wrote them meant something.
func (p Placement) Find(graphs ...*ir.Graph) (nodes []*ir.Node, err error) {
	for _, g := range graphs {
		found, err := p.places(g)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, found...)
	}
	if len(nodes) > 0 {
		return nodes, nil
	}
	hint := "names look like h.0.attn.c_attn.weight"
	if parts, _ := (Placement{Match: ".*(?:" + p.Match + ").*"}).places(graphs[0]); len(parts) > 0 {
		hint = "it matches a part of " + parts[0].Name + ", want an expression of the whole name"
	}
	return nil, fmt.Errorf("%q is the name of no parameter and no op; %s", p.Match, hint)
}

// PlacedAs is the name by which placements know a node: the same in all stages, and of a slice of the loss that of the whole.
func PlacedAs(n *ir.Node) string {
	name := BaseName(n.Name)
	if whole, _, sliced := strings.Cut(name, sliceSuffix); sliced && n.Op != ir.OpRows {
		return whole
	}
	return name
}

// CheckPlacements refuses placements for nothing, neither in the training step as it was traced nor as [Apply] returns it.
func (p *Plan) CheckPlacements(traced, parts *ir.Graph) error {
	for i, x := range p.Placements {
		if _, err := x.Find(traced, parts); err != nil {
			return planErrorf(fmt.Sprintf("placements[%d].match", i), "%v", err)
		}
	}
	return nil
}

// Module names the module of the parameters that a placement is for, where its expression is
// one as searches write them: attn of h\.[0-9]+\.attn\.c_proj\.weight.
func (p Placement) Module() string {
	name := strings.ReplaceAll(p.Match, `\`, "")
	if _, inner, found := strings.Cut(name, anyNumber+"."); found {
		name = inner
	}
	module, _, _ := strings.Cut(name, ".")
	return module
}

// Replicated names the modules of which placements keep something whole on all
// tensor-parallel ranks.
func (p *Plan) Replicated() []string {
	var modules []string
	for _, x := range p.Placements {
		if name := x.Module(); !strings.Contains(x.Spec, AxisTP) && !slices.Contains(modules, name) {
			modules = append(modules, name)
		}
	}
	return modules
}

// streamDim returns the dimension in which the residual stream, [batch, sequence, width], is
// sharded over tensor-parallel ranks between their regions, -1 where all of them hold it.
func (p *Plan) streamDim() int {
	switch {
	case p.BatchParallel:
		return 0
	case p.SequenceParallel:
		return 1
	}
	return -1
}

// Replicas returns how many ranks ZeRO shards a weight over that placements keep whole on all
// tensor-parallel ranks: those of a ZeRO group, and where the residual stream is sharded over
// tensor-parallel ranks, so that each has a term of its gradient, those too.
func (p *Plan) Replicas() int {
	if p.streamDim() >= 0 && p.Rows() == 1 && len(p.Replicated()) > 0 {
		return p.ShardGroup() * p.TP
	}
	return p.ShardGroup()
}

// OnGrid names the modules of which placements cut weights in two dimensions over rows and
// columns of tensor-parallel ranks.
func (p *Plan) OnGrid() []string {
	var modules []string
	for _, x := range p.Placements {
		nested := strings.Contains(x.Spec, AxisTP+"."+AxisTPR) // in one dimension
		if name := x.Module(); strings.Contains(x.Spec, AxisTPR) && !nested && !slices.Contains(modules, name) {
			modules = append(modules, name)
		}
	}
	return modules
}

// PP returns the pipeline-parallel degree: the number of positions that stages
// run at, each with its own ranks.
func (p *Plan) PP() int { return len(p.Stages) / p.Chunks() }

// Chunks returns how many stages each rank runs. 0 stands for 1.
func (p *Plan) Chunks() int { return max(p.Interleave, 1) }

// ScheduleText names the schedule, and the number of chunks if there are several.
func (p *Plan) ScheduleText() string {
	if p.Chunks() > 1 {
		return fmt.Sprintf("%s x %d", p.Schedule, p.Chunks())
	}
	return string(p.Schedule)
}

// Position returns where in the pipeline a stage runs, and as which of the chunks
// of its ranks.
func (p *Plan) Position(stage int) (position, chunk int) {
	return stage % p.PP(), stage / p.PP()
}

// Units returns the number of data-parallel replicas of the unit.
func (p *Plan) Units() int { return p.RuntimeNGPUs / p.PlanNGPUs }

// ContextParallel returns the context-parallel degree: the ranks that share a
// sequence all through the model. 0 stands for 1.
func (p *Plan) ContextParallel() int { return max(p.CP, 1) }

// Rows returns how many rows the tensor-parallel ranks form. 0 stands for 1.
func (p *Plan) Rows() int { return max(p.TPRows, 1) }

// tensorParallel reports whether an axis is one of tensor-parallel ranks.
func tensorParallel(a ir.Axis) bool { return a.Name == AxisTP || a.Name == AxisTPR }

// Degrees is how a unit is cut, in words: dp 2 x cp 2 x tp 1 x pp 2, without cp
// where that is 1.
func (p *Plan) Degrees() string { return fmt.Sprintf("%s x pp %d", p.MeshDegrees(), p.PP()) }

// MeshDegrees is how a stage is cut.
func (p *Plan) MeshDegrees() string {
	if cp := p.ContextParallel(); cp > 1 {
		return fmt.Sprintf("dp %d x cp %d x tp %d", p.DP, cp, p.TP)
	}
	return fmt.Sprintf("dp %d x tp %d", p.DP, p.TP)
}

// DataParallel returns the data-parallel degree of the whole run.
func (p *Plan) DataParallel() int { return p.DP * p.Units() }

// ShardGroup returns how many data-parallel ranks ZeRO shards over, and Copies
// how many such groups there are.
func (p *Plan) ShardGroup() int {
	if p.ZeROGroup == 0 {
		return p.DataParallel()
	}
	return p.ZeROGroup
}

// Copies returns how many groups hold what ZeRO shards: 1 unless it shards in
// groups.
func (p *Plan) Copies() int { return p.DataParallel() / p.ShardGroup() }

// FollowsBatch reports whether the batch is cut over an axis of the mesh.
func FollowsBatch(a ir.Axis) bool { return a.Time || a.Name == AxisRep || a.Name == AxisDP }

// Mesh returns the mesh of each stage for a global batch: the data-parallel ranks
// of all units, as copies of ZeRO groups where there are several; the micro-batches as an
// axis in time; cp and tp, which share what a micro-batch has.
func (p *Plan) Mesh(batch int) ir.Mesh {
	local := (batch + p.DataParallel() - 1) / p.DataParallel()
	var axes []ir.Axis
	if n := p.Copies(); n > 1 {
		axes = append(axes, ir.Axis{Name: AxisRep, Size: n})
	}
	axes = append(axes,
		ir.Axis{Name: AxisDP, Size: p.ShardGroup()},
		ir.Axis{Name: AxisMB, Size: (local + p.MicroBatch - 1) / p.MicroBatch, Chunk: p.MicroBatch, Time: true},
	)
	if n := p.ContextParallel(); n > 1 {
		axes = append(axes, ir.Axis{Name: AxisCP, Size: n})
	}
	axes = append(axes, ir.Axis{Name: AxisTP, Size: p.TP / p.Rows()})
	if n := p.Rows(); n > 1 {
		axes = append(axes, ir.Axis{Name: AxisTPR, Size: n})
	}
	return ir.Mesh{Axes: axes}
}

// MicroBatches returns how many micro-batches the ranks at a position of the mesh
// run. From ZeRO stage 2 on data-parallel ranks communicate in every micro-batch,
// so all run as many as the one with the most sequences, the last ones perhaps
// empty.
func (p *Plan) MicroBatches(batch int, at ir.Coord) int {
	return p.MicroBatchesOn(p.Mesh(batch), batch, at)
}

// MicroBatchesOn is [Plan.MicroBatches] on the plan's mesh for the batch.
func (p *Plan) MicroBatchesOn(mesh ir.Mesh, batch int, at ir.Coord) int {
	if p.ZeRO >= 2 {
		return mesh.Size(AxisMB)
	}
	local := batch
	for i, a := range mesh.Axes {
		if FollowsBatch(a) && !a.Time {
			local = a.Cut(local, at[i]).Len
		}
	}
	return (local + p.MicroBatch - 1) / p.MicroBatch
}

// WorldRank returns the world rank of a device of a stage's mesh.
func (p *Plan) WorldRank(stage, device int) int {
	ranks := p.StageRanks(stage)
	return ranks.Of(device)
}

// StageRanks is where the devices of a stage lie among the ranks.
type StageRanks struct {
	tp, cp, dp int // their sizes in a unit
	unit       int // ranks
	first      int // of the stage in a unit
	strides    Strides
}

// StageRanks returns where the devices of a stage lie.
func (p *Plan) StageRanks(stage int) StageRanks {
	cp, pp := p.ContextParallel(), p.PP()
	s := StridesOf(p.RankOrder, p.TP, cp, p.DP, pp)
	return StageRanks{p.TP, cp, p.DP, p.PlanNGPUs, stage % pp * s.PP, s}
}

// Of returns the world rank of a device of the stage's mesh.
func (s *StageRanks) Of(device int) int {
	inner := s.cp * s.tp
	dp, within := device/inner, device%inner
	unit, d := dp/s.dp, dp%s.dp
	return unit*s.unit + s.first + d*s.strides.DP + within/s.tp*s.strides.CP + within%s.tp*s.strides.TP
}

// StageDevice is the inverse of [Plan.WorldRank] for the first of a rank's stages:
// its position in the pipeline.
func (p *Plan) StageDevice(rank int) (stage, device int) {
	cp := p.ContextParallel()
	s := StridesOf(p.RankOrder, p.TP, cp, p.DP, p.PP())
	unit, shard := rank/p.PlanNGPUs, rank%p.PlanNGPUs
	at := func(stride, size int) int { return shard / stride % size }
	dp := unit*p.DP + at(s.DP, p.DP)
	return at(s.PP, p.PP()), (dp*cp+at(s.CP, cp))*p.TP + at(s.TP, p.TP)
}

// PlanError is a plan that cannot be applied. Key is the plan's field.
type PlanError struct{ Key, Msg string }

func (e *PlanError) Error() string { return "plan: " + e.Key + ": " + e.Msg }

func planErrorf(key, format string, args ...any) error {
	return &PlanError{key, fmt.Sprintf(format, args...)}
}

// placer looks up the placements of a plan by name.
type placer struct {
	matches []pattern
	specs   []ir.ShardSpec
	ranks   []int
	texts   []string
}

func newPlacer(p *Plan, mesh ir.Mesh) (*placer, error) {
	pl := &placer{}
	for i, x := range p.Placements {
		match, err := newPattern(x.Match)
		if err != nil {
			return nil, planErrorf(fmt.Sprintf("placements[%d].match", i), "%v", err)
		}
		spec, rank, err := ir.ParseSpec(mesh, x.Spec)
		if err != nil {
			return nil, planErrorf(fmt.Sprintf("placements[%d].spec", i), "%v", err)
		}
		for a := range mesh.Axes {
			if mesh.Axes[a].Size == 1 {
				spec[a] = ir.Placement{}
			}
		}
		pl.matches, pl.specs = append(pl.matches, match), append(pl.specs, spec)
		pl.ranks, pl.texts = append(pl.ranks, rank), append(pl.texts, x.Spec)
	}
	return pl, nil
}

// find returns the placement of a named value of the given shape.
func (p *placer) find(mesh ir.Mesh, name string, shape []int) (ir.ShardSpec, bool, error) {
	for i := range p.matches {
		if !p.matches[i].matches(name) {
			continue
		}
		if p.ranks[i] != len(shape) {
			return ir.ShardSpec{}, false, planErrorf("placements", "%s has %d dimensions, its spec %s has %d", name, len(shape), p.texts[i], p.ranks[i])
		}
		if err := checkSplit(mesh, p.specs[i], shape); err != nil {
			return ir.ShardSpec{}, false, planErrorf("placements", "%s: %v", name, err)
		}
		return p.specs[i], true, nil
	}
	return ir.ShardSpec{}, false, nil
}

// checkSplit refuses a spec under which some device would hold nothing.
func checkSplit(mesh ir.Mesh, spec ir.ShardSpec, shape []int) error {
	for d, size := range shape {
		parts := 1
		for a, p := range spec {
			if p.Kind == ir.Shard && int(p.Dim) == d && !mesh.Axes[a].Time {
				parts *= mesh.Axes[a].Size
			}
		}
		if parts > size {
			return fmt.Errorf("dimension %d of size %d cannot be split over %d ranks", d, size, parts)
		}
	}
	return nil
}
