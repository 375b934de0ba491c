// Package partition applies a plan to a graph. A plan says where parameters live on the mesh, how blocks are
// grouped into pipeline stages, how the batch is cut into micro-batches, and which blocks are recomputed.
// [Apply] derives from it the placement of every value, and inserts the collectives, sends and receives that
// those placements need.
//
// The package does not know the planner: a plan may also be written by hand.
//
// The files, in reading order: plan.go and validate.go (what a plan is; pattern.go matches the names of its
// placements, rankorder.go puts the axes of its mesh in order, shares.go has shares of the batch), apply.go (the
// passes, in order), then a file for each pass. recompute.go, sequenceparts.go, lossslices.go and context.go rewrite the
// graph before it is placed.
// stage.go assigns nodes to stages and inserts sends and receives. unsummed.go leaves out casts that sums over
// micro-batches need where there is one. propagate.go is the heart: it walks the
// graph once and places every value; choose.go picks the cheapest rule for a node, rulecost.go says what a rule
// costs, reshard.go inserts the collectives. offload.go and weightgrad.go work on the placed graph.
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
	// ZeroBubble is 1f1b with the backward pass split: gradients of parameters are computed later, in what
	// would be the bubble (Qi et al. 2024, ZB-H1).
	ZeroBubble Schedule = "zero-bubble"
	// The eager ones are 1f1b and zero-bubble with twice as many forward passes in the warm-up, so that a micro-batch is on its way
	// between stages while others are computed (eager-1F1B of Zhuang et al. 2023, arXiv 2211.05322). They keep the activations of more micro-batches.
	EagerOneFOneB   Schedule = "eager-1f1b"
	EagerZeroBubble Schedule = "eager-zero-bubble"
)

// SplitsBackward reports whether gradients of parameters are computed in a pass of their own.
func (s Schedule) SplitsBackward() bool { return s == ZeroBubble || s == EagerZeroBubble }

// Eager reports whether the warm-up is twice as long as the way of a micro-batch through the stages that follow.
func (s Schedule) Eager() bool { return s == EagerOneFOneB || s == EagerZeroBubble }

// MaxTPPieces is the largest allowed [Plan.TPPieces]. More parts expose less communication, but cost more
// launches.
const MaxTPPieces = 16

// Axis names of the mesh of a stage.
const (
	// AxisRep numbers the copies of a ZeRO group, outside dp. It exists only with more than one copy. The batch
	// is cut over it as over dp.
	AxisRep = "rep"
	AxisDP  = "dp" // data parallel, over all units
	AxisCP  = "cp" // context parallel; exists only with more than one rank
	AxisTP  = "tp" // tensor parallel; in a grid, the ranks along its columns
	// AxisTPR is the rows of the grid of tensor-parallel ranks, inside tp. It exists only with more than one
	// row.
	AxisTPR = "tpr"
	AxisMB  = "mb" // micro-batches, in time
)

// Plan is a way to run a training step on RuntimeNGPUs ranks. World rank r is rank r mod PlanNGPUs of unit r
// div PlanNGPUs. Within a unit ranks are numbered stage-major, then dp, then cp, then tp, unless RankOrder says
// otherwise.
type Plan struct {
	PlanNGPUs    int `json:"plan_ngpus"`
	RuntimeNGPUs int `json:"runtime_ngpus"`
	DP           int `json:"dp"`           // within the unit
	CP           int `json:"cp,omitempty"` // context parallel: see [Plan.ContextParallel]
	TP           int `json:"tp"`
	// TPRows is the number of rows into which tensor-parallel ranks are arranged, with TP / TPRows columns. On
	// such a grid a placement may shard a weight in both of its dimensions, outputs over tp and inputs over tpr
	// (two-dimensional tensor parallelism: Xu et al. 2021, section 5.1; Xu and You 2023, "Optimus"). 0 means 1:
	// no grid.
	TPRows     int      `json:"tp_rows,omitempty"`
	MicroBatch int      `json:"micro_batch"` // sequences per micro-batch of one data-parallel rank
	Schedule   Schedule `json:"schedule"`
	// Interleave is the number of stages (chunks of the model) that each rank runs: stage s runs at position s
	// mod PP of the pipeline. See [Plan.Chunks].
	Interleave int `json:"interleave,omitempty"`
	// ZeRO is the stage of ZeRO: what is sharded over data-parallel ranks instead of replicated. 1 is optimizer
	// state, 2 also gradients, 3 also parameters (Rajbhandari et al. 2020).
	ZeRO int `json:"zero"`
	// ZeROGroup is the number of neighbouring data-parallel ranks that ZeRO shards over. Each group holds a
	// complete copy, and the copies sum their shards of the gradients (hybrid sharding: Zhao et al. 2023,
	// section 3.2.2; hpZ of ZeRO++: Wang et al. 2023). 0 means all data-parallel ranks.
	ZeROGroup int `json:"zero_group,omitempty"`
	// Offload is what is kept in host memory.
	Offload Offload `json:"offload,omitempty"`
	// SequenceParallel shards the residual stream between tensor-parallel regions over tp, along the sequence.
	SequenceParallel bool `json:"sequence_parallel"`
	// BatchParallel shards it along the batch instead: each tensor-parallel rank has some of the sequences of a
	// micro-batch. Modules that placements replicate (see [Plan.Replicated]), attention included, are then data
	// parallel over tp, while others, such as the vocabulary's table and the head, are sharded over it.
	BatchParallel bool `json:"batch_parallel,omitempty"`
	// Overlap reduces gradients and gathers sharded parameters on a communication stream, at the same time as
	// computation. See codegen's overlap.
	Overlap bool `json:"overlap,omitempty"`
	// OverlapTP runs collectives of tensor-parallel ranks at the same time as kernels that do not need the
	// result: in the backward pass, the product for the gradient of a weight or of an input. See codegen's
	// beside.
	OverlapTP bool `json:"overlap_tp,omitempty"`
	// OverlapP2P lets a stage go on before its sends to other stages are done. See codegen's posted.
	OverlapP2P bool `json:"overlap_p2p,omitempty"`
	// TPPieces is the number of parts, of whole sequences (see SequenceParts), into which a matrix product and the
	// tensor-parallel collective next to it are cut, so that each part of one overlaps a part of the other. It applies to the
	// forward pass, and in the backward pass to what OverlapTP does not overlap. 0 means 1. See codegen's
	// pieces.
	TPPieces int `json:"tp_pieces,omitempty"`
	// SequenceParts is the number of parts of each sequence between which TPPieces may cut as between sequences, so
	// that micro-batches of one sequence can be made in pieces, too. Under sequence parallelism each rank holds a
	// share of every part. Attention is to whole sequences as ever. 0 means 1.
	SequenceParts int `json:"sequence_parts,omitempty"`
	// LossSlices is the number of slices of the sequence in which the head and the loss run. Forward and
	// backward of a slice run together, so that the logits of only one slice exist at a time; under a
	// zero-bubble schedule, however, the gradients of logits are kept until the gradient of the head's weight
	// is computed. 0 means 1.
	LossSlices int `json:"loss_slices,omitempty"`
	// PoolOrder is, in a cluster with several kinds of devices, the order of its pools along the world ranks:
	// with [1,0] rank 0 is the first device of the second pool. Empty means the order of the cluster. Programs
	// do not depend on it.
	PoolOrder []int `json:"pool_order,omitempty"`
	// RankOrder is the order of the axes over the ranks of a unit, innermost first, in Megatron-LM's notation:
	// with "dp-tp-pp" neighbouring ranks are data-parallel. Axes of size 1 may be left out. Empty means
	// [UsualOrder]. It does not change programs, only which rank runs which.
	RankOrder string `json:"rank_order,omitempty"`
	// BatchShares are the relative shares of the batch that the data-parallel ranks of all units have, for ranks
	// of different speeds; empty is equal shares. What ZeRO shards is cut in the same proportion. The mesh has
	// the ranks by share, the largest first: see [Plan.WorldRank].
	BatchShares []int       `json:"batch_shares,omitempty"`
	Stages      []Stage     `json:"stages"`
	Placements  []Placement `json:"placements"`
}

// Stage is one pipeline stage: blocks First (inclusive) to Last (exclusive) of the model's repeated blocks.
// What comes before the first block belongs to the first stage, and what comes after the last block to the last
// stage.
type Stage struct {
	First int `json:"first"`
	Last  int `json:"last"`
	// Recompute is the number of blocks, the first ones of the stage, that drop their activations after the
	// forward pass and recompute them in the backward pass.
	Recompute int `json:"recompute"`
	// Selective is the number of blocks after those that recompute only their attention (Korthikanti et al.
	// 2022, section 5).
	Selective int `json:"selective"`
	// Pointwise is the number of blocks after those that recompute only their norms and activation functions,
	// whose operands the backward pass needs anyway (as Megatron-Core does with recompute_modules layernorm and
	// moe_act).
	Pointwise int `json:"pointwise,omitempty"`
}

// Recomputed returns the number of blocks that recompute anything.
func (s Stage) Recomputed() int { return s.Recompute + s.Selective + s.Pointwise }

// Placement places the values whose whole name matches a regular expression. Spec has the text form of
// [ir.ShardSpec], without the data-parallel and micro-batch axes, which follow the batch: "[_,tp]". The first
// placement that matches counts. Parameters that none matches are replicated; optimizer state is placed as its
// parameter.
type Placement struct {
	Match string `json:"match"`
	Spec  string `json:"spec"`
}

// places lists the parameters and ops of a graph that match. Optimizer state is not listed: it is placed by the
// name of its parameter.
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

// Find lists the parameters and ops of some graphs that match. It returns an error if there are none: such a
// placement is a mistake.
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

// PlacedAs returns the name that placements match for a node. It is the same in all stages, and for a slice of
// the loss it is that of the whole.
func PlacedAs(n *ir.Node) string {
	name := BaseName(n.Name)
	if whole, _, sliced := strings.Cut(name, sliceSuffix); sliced && n.Op != ir.OpRows {
		return whole
	}
	return name
}

// CheckPlacements returns a [PlanError] if a placement matches nothing, neither in the training step as traced
// (traced) nor as returned by [Apply] (parts).
func (p *Plan) CheckPlacements(traced, parts *ir.Graph) error {
	for i, x := range p.Placements {
		if _, err := x.Find(traced, parts); err != nil {
			return planErrorf(fmt.Sprintf("placements[%d].match", i), "%v", err)
		}
	}
	return nil
}

// Module returns the module whose parameters a placement is for, if its expression has the form that the
// planner writes: attn for h\.[0-9]+\.attn\.c_proj\.weight.
func (p Placement) Module() string {
	name := strings.ReplaceAll(p.Match, `\`, "")
	if _, inner, found := strings.Cut(name, anyNumber+"."); found {
		name = inner
	}
	module, _, _ := strings.Cut(name, ".")
	return module
}

// Replicated lists the modules for which some placement replicates a parameter on all tensor-parallel ranks.
func (p *Plan) Replicated() []string {
	var modules []string
	for _, x := range p.Placements {
		if name := x.Module(); !strings.Contains(x.Spec, AxisTP) && !slices.Contains(modules, name) {
			modules = append(modules, name)
		}
	}
	return modules
}

// streamDim returns the dimension of the residual stream, [batch, sequence, width], that is sharded over
// tensor-parallel ranks between tensor-parallel regions, or -1 if it is replicated there.
func (p *Plan) streamDim() int {
	switch {
	case p.BatchParallel:
		return 0
	case p.SequenceParallel:
		return 1
	}
	return -1
}

// Replicas returns the number of ranks over which ZeRO shards a weight that placements replicate on all
// tensor-parallel ranks. These are the ranks of a ZeRO group, with all that share their sequences. If the
// residual stream is sharded, each tensor-parallel rank also has a term of the weight's gradient, and the weight
// is sharded over those ranks too.
func (p *Plan) Replicas() int {
	if p.streamDim() >= 0 && p.Rows() == 1 && len(p.Replicated()) > 0 {
		return p.ShardGroup() * p.ContextParallel() * p.TP
	}
	return p.ShardGroup() * p.ContextParallel()
}

// OnGrid lists the modules for which placements shard weights in two dimensions, over rows and columns of
// tensor-parallel ranks.
func (p *Plan) OnGrid() []string {
	var modules []string
	for _, x := range p.Placements {
		nested := strings.Contains(x.Spec, AxisTP+"."+AxisTPR) // both axes in one dimension
		if name := x.Module(); strings.Contains(x.Spec, AxisTPR) && !nested && !slices.Contains(modules, name) {
			modules = append(modules, name)
		}
	}
	return modules
}

// PP returns the pipeline-parallel degree: the number of positions, each with its own ranks, that stages run
// at.
func (p *Plan) PP() int { return len(p.Stages) / p.Chunks() }

// Chunks returns the number of stages that each rank runs, at least 1.
func (p *Plan) Chunks() int { return max(p.Interleave, 1) }

// ScheduleText names the schedule, and the number of chunks if there are several.
func (p *Plan) ScheduleText() string {
	if p.Chunks() > 1 {
		return fmt.Sprintf("%s x %d", p.Schedule, p.Chunks())
	}
	return string(p.Schedule)
}

// Position returns the position of the pipeline that a stage runs at, and the number of the chunk that it is
// there.
func (p *Plan) Position(stage int) (position, chunk int) {
	return stage % p.PP(), stage / p.PP()
}

// Units returns the number of data-parallel replicas of the unit.
func (p *Plan) Units() int { return p.RuntimeNGPUs / p.PlanNGPUs }

// ContextParallel returns the context-parallel degree, at least 1: the number of ranks that share each sequence
// throughout the model.
func (p *Plan) ContextParallel() int { return max(p.CP, 1) }

// Rows returns the number of rows of tensor-parallel ranks, at least 1.
func (p *Plan) Rows() int { return max(p.TPRows, 1) }

// tensorParallel reports whether an axis is one of those of tensor parallelism.
func tensorParallel(a ir.Axis) bool { return a.Name == AxisTP || a.Name == AxisTPR }

// Degrees returns the degrees of a unit as text: dp 2 x cp 2 x tp 1 x pp 2, without cp if that is 1.
func (p *Plan) Degrees() string { return fmt.Sprintf("%s x pp %d", p.MeshDegrees(), p.PP()) }

// MeshDegrees returns the degrees of one stage as text.
func (p *Plan) MeshDegrees() string {
	if cp := p.ContextParallel(); cp > 1 {
		return fmt.Sprintf("dp %d x cp %d x tp %d", p.DP, cp, p.TP)
	}
	return fmt.Sprintf("dp %d x tp %d", p.DP, p.TP)
}

// DataParallel returns the data-parallel degree of the whole run.
func (p *Plan) DataParallel() int { return p.DP * p.Units() }

// ShardGroup returns the number of data-parallel ranks that ZeRO shards over, beside all context-parallel ones.
func (p *Plan) ShardGroup() int {
	if p.ZeROGroup == 0 {
		return p.DataParallel()
	}
	return p.ZeROGroup
}

// Copies returns the number of such groups, each of which holds a complete copy. It is 1 unless ZeROGroup is
// set.
func (p *Plan) Copies() int { return p.DataParallel() / p.ShardGroup() }

// FollowsBatch reports whether the batch is cut over an axis of the mesh.
func FollowsBatch(a ir.Axis) bool { return a.Time || a.Name == AxisRep || a.Name == AxisDP }

// Mesh returns the mesh of each stage for a global batch of so many sequences. Its axes are the
// context-parallel ranks, the data-parallel ranks of all units (with an outer axis for the copies of ZeRO groups,
// if there are several), the micro-batches as an axis in time, and the tensor-parallel ranks. cp and tp share the
// work of a micro-batch. What ZeRO shards is cut over cp first, and each part over dp: what the slower links between
// data-parallel ranks carry is then smaller.
func (p *Plan) Mesh(batch int) ir.Mesh {
	dp := ir.Axis{Name: AxisDP, Size: p.ShardGroup(), Shares: p.sharesInOrder()}
	local := (batch + p.DataParallel() - 1) / p.DataParallel()
	if dp.Shares != nil {
		local = dp.Cut(batch, 0).Len
	}
	var axes []ir.Axis
	if n := p.ContextParallel(); n > 1 {
		axes = append(axes, ir.Axis{Name: AxisCP, Size: n})
	}
	if n := p.Copies(); n > 1 {
		axes = append(axes, ir.Axis{Name: AxisRep, Size: n})
	}
	axes = append(axes,
		dp,
		ir.Axis{Name: AxisMB, Size: (local + p.MicroBatch - 1) / p.MicroBatch, Chunk: p.MicroBatch * max(1, p.SequenceParts), Time: true},
	)
	axes = append(axes, ir.Axis{Name: AxisTP, Size: p.TP / p.Rows()})
	if n := p.Rows(); n > 1 {
		axes = append(axes, ir.Axis{Name: AxisTPR, Size: n})
	}
	return ir.Mesh{Axes: axes}
}

// MicroBatches returns the number of micro-batches that the ranks at a mesh position run. From ZeRO stage 2 on
// data-parallel ranks communicate in every micro-batch, so all of them run as many as the rank with the most
// sequences; the last ones may be empty.
func (p *Plan) MicroBatches(batch int, at ir.Coord) int {
	return p.MicroBatchesOn(p.Mesh(batch), batch, at)
}

// Lone reports whether a step of a global batch has one micro-batch.
func (p *Plan) Lone(batch int) bool { return p.Mesh(batch).Size(AxisMB) == 1 }

// MicroBatchesOn is [Plan.MicroBatches] on the plan's mesh for the batch.
func (p *Plan) MicroBatchesOn(mesh ir.Mesh, batch int, at ir.Coord) int {
	if p.ZeRO >= 2 {
		return mesh.Size(AxisMB)
	}
	return (sequences(mesh, batch, at) + p.MicroBatch - 1) / p.MicroBatch
}

// EmptyPieces is how many of TPPieces have no rows of a micro-batch.
func (p *Plan) EmptyPieces() int { return max(0, p.TPPieces-p.MicroBatch*max(1, p.SequenceParts)) }

// sequences returns how many sequences of a batch the ranks at a mesh position have.
func sequences(mesh ir.Mesh, batch int, at ir.Coord) int {
	for i, a := range mesh.Axes {
		if FollowsBatch(a) && !a.Time {
			batch = a.Cut(batch, at[i]).Len
		}
	}
	return batch
}

// Device returns the device of a stage's mesh that is the first tensor-parallel rank of a data-parallel and a
// context-parallel one.
func (p *Plan) Device(dp, cp int) int { return (cp*p.DataParallel() + dp) * p.TP }

// Devices returns all devices of a data-parallel rank: those of its first context-parallel rank, then of the next.
func (p *Plan) Devices(dp int) []int {
	all := make([]int, 0, p.ContextParallel()*p.TP)
	for cp := range p.ContextParallel() {
		for tp := range p.TP {
			all = append(all, p.Device(dp, cp)+tp)
		}
	}
	return all
}

// WorldRank returns the world rank of a device of a stage's mesh.
func (p *Plan) WorldRank(stage, device int) int {
	ranks := p.StageRanks(stage)
	return ranks.Of(device)
}

// StageRanks says which world ranks the devices of a stage are.
type StageRanks struct {
	byShare []int // as [Plan.byShare] returns
	tp, dp  int   // degrees within a unit
	all     int   // data-parallel ranks of all units
	unit    int   // number of ranks in a unit
	first   int   // first rank of the stage, relative to the unit
	strides Strides
}

// StageRanks returns the ranks of the devices of a stage.
func (p *Plan) StageRanks(stage int) StageRanks {
	cp, pp := p.ContextParallel(), p.PP()
	s := StridesOf(p.RankOrder, p.TP, cp, p.DP, pp)
	return StageRanks{p.byShare(), p.TP, p.DP, p.DataParallel(), p.PlanNGPUs, stage % pp * s.PP, s}
}

// Of returns the world rank of a device of the stage's mesh.
func (s *StageRanks) Of(device int) int {
	cp, dp, tp := device/s.tp/s.all, device/s.tp%s.all, device%s.tp
	if s.byShare != nil {
		dp = s.byShare[dp]
	}
	unit, d := dp/s.dp, dp%s.dp
	return unit*s.unit + s.first + d*s.strides.DP + cp*s.strides.CP + tp*s.strides.TP
}

// StageDevice is the inverse of [Plan.WorldRank]: it returns the position of a rank in the pipeline, which is
// the number of its first stage, and its device there.
func (p *Plan) StageDevice(rank int) (stage, device int) {
	cp := p.ContextParallel()
	s := StridesOf(p.RankOrder, p.TP, cp, p.DP, p.PP())
	unit, shard := rank/p.PlanNGPUs, rank%p.PlanNGPUs
	at := func(stride, size int) int { return shard / stride % size }
	dp := unit*p.DP + at(s.DP, p.DP)
	if order := p.byShare(); order != nil {
		dp = slices.Index(order, dp)
	}
	return at(s.PP, p.PP()), p.Device(dp, at(s.CP, cp)) + at(s.TP, p.TP)
}

// PlanError says why a plan cannot be applied. Key is the field of the plan.
type PlanError struct{ Key, Msg string }

func (e *PlanError) Error() string { return "plan: " + e.Key + ": " + e.Msg }

func planErrorf(key, format string, args ...any) error {
	return &PlanError{key, fmt.Sprintf(format, args...)}
}

// placer finds the placement of a value by name. Its slices have one entry for each placement of the plan.
type placer struct {
	matches []pattern
	specs   []ir.ShardSpec
	ranks   []int // number of dimensions of the spec
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

// find returns the spec that the plan has for a value of the given name and shape, and whether it has one.
func (p *placer) find(mesh ir.Mesh, name string, shape []int) (ir.ShardSpec, bool, error) {
	for i := range p.matches {
		if !p.matches[i].matches(name) {
			continue
		}
		if p.ranks[i] != len(shape) {
			return ir.ShardSpec{}, false, planErrorf("placements", "%s is %d-dimensional, its spec %s is %d-dimensional", name, len(shape), p.texts[i], p.ranks[i])
		}
		if err := checkSplit(mesh, p.specs[i], shape); err != nil {
			return ir.ShardSpec{}, false, planErrorf("placements", "%s: %v", name, err)
		}
		return p.specs[i], true, nil
	}
	return ir.ShardSpec{}, false, nil
}

// checkSplit returns an error if a device would hold nothing of a value with the given spec.
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
