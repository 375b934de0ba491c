package partition

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/autopar/autopar/ir"
)

// Validate checks the plan itself, and against the number of blocks of the model and the global batch in
// sequences. The error is a [PlanError].
func (p *Plan) Validate(blocks, batch int) error {
	if err := p.validateDegrees(batch); err != nil {
		return err
	}
	if err := p.validateStages(); err != nil {
		return err
	}
	if err := p.validateZeRO(); err != nil {
		return err
	}
	for i := range p.PoolOrder {
		if !slices.Contains(p.PoolOrder, i) {
			return planErrorf("pool_order", "is %v, want each number from 0 to %d once", p.PoolOrder, len(p.PoolOrder)-1)
		}
	}
	switch {
	case p.LossSlices < 0:
		return planErrorf("loss_slices", "is %d, want at least 0, which stands for 1", p.LossSlices)
	case p.LossSlices > 1 && p.ContextParallel() > 1:
		return planErrorf("loss_slices", "is %d beside cp %d: context-parallel ranks share the positions that slices are made of; use loss_slices 0", p.LossSlices, p.CP)
	}
	if err := p.validateRankOrder(); err != nil {
		return err
	}
	if err := p.validateRows(); err != nil {
		return err
	}
	if p.SequenceParallel && p.TP == 1 {
		return planErrorf("sequence_parallel", "needs tp of at least 2")
	}
	if err := p.validateBatchParallel(batch); err != nil {
		return err
	}
	if err := p.validateShares(batch); err != nil {
		return err
	}
	if p.OverlapTP && p.Schedule.SplitsBackward() {
		return planErrorf("overlap_tp", "is on, but schedule %s puts off the products beside which it would be; want overlap_tp off, or schedule %s", p.Schedule, OneFOneB)
	}
	if p.OverlapP2P && p.PP() == 1 {
		return planErrorf("overlap_p2p", "is on, but there is one stage, which sends nothing; want overlap_p2p off, or at least 2 stages")
	}
	if p.TPPieces < 0 || p.TPPieces > MaxTPPieces {
		return planErrorf("tp_pieces", "is %d, want 0, which stands for 1, to %d", p.TPPieces, MaxTPPieces)
	}
	if err := p.validateSequenceParts(); err != nil {
		return err
	}
	if last := p.Stages[len(p.Stages)-1].Last; last != blocks {
		return planErrorf("stages", "cover %d blocks, the model has %d", last, blocks)
	}
	return p.validatePlacements(batch)
}

// validateDegrees checks that units, degrees, stages and the batch fit together.
func (p *Plan) validateDegrees(batch int) error {
	for _, f := range []struct {
		key string
		n   int
	}{{"plan_ngpus", p.PlanNGPUs}, {"runtime_ngpus", p.RuntimeNGPUs}, {"dp", p.DP}, {"tp", p.TP}, {"micro_batch", p.MicroBatch}} {
		if f.n < 1 {
			return planErrorf(f.key, "is %d, want at least 1", f.n)
		}
	}
	// Larger numbers come from a corrupted file, and would only exhaust memory or overflow.
	const most = 1 << 20
	if p.RuntimeNGPUs > most {
		return planErrorf("runtime_ngpus", "is %d, want at most %d", p.RuntimeNGPUs, most)
	}
	if p.MicroBatch > most {
		return planErrorf("micro_batch", "is %d sequences, want at most %d", p.MicroBatch, most)
	}
	if p.RuntimeNGPUs%p.PlanNGPUs != 0 {
		return planErrorf("runtime_ngpus", "%d is not a multiple of plan_ngpus %d", p.RuntimeNGPUs, p.PlanNGPUs)
	}
	if len(p.Stages) == 0 {
		return planErrorf("stages", "there are none")
	}
	if err := p.validateSchedule(); err != nil {
		return err
	}
	if p.CP < 0 {
		return planErrorf("cp", "is %d, want at least 0, which stands for 1", p.CP)
	}
	// The bounds avoid overflow on absurd degrees.
	cp := p.ContextParallel()
	if max(p.DP, cp, p.TP) > p.PlanNGPUs || p.DP*cp > p.PlanNGPUs || p.DP*cp*p.TP*p.PP() != p.PlanNGPUs {
		return planErrorf("plan_ngpus", "%d is not %s x %d stages%s", p.PlanNGPUs, p.MeshDegrees(), len(p.Stages), p.perRank())
	}
	if p.DataParallel() > batch {
		return planErrorf("dp", "%d data-parallel ranks cannot share a global batch of %d sequences", p.DataParallel(), batch)
	}
	return nil
}

// validateStages checks that stages are consecutive, and the numbers of blocks that they recompute.
func (p *Plan) validateStages() error {
	next := 0
	for i, s := range p.Stages {
		key := "stages[" + strconv.Itoa(i) + "]"
		if s.First != next {
			return planErrorf(key, "holds blocks [%d,%d), want it to start at block %d", s.First, s.Last, next)
		}
		if s.Last < s.First || s.Last == s.First && len(p.Stages) > 1 {
			return planErrorf(key, "holds no block")
		}
		if s.Recompute < 0 || s.Recompute > s.Last-s.First {
			return planErrorf(key+".recompute", "is %d of %d blocks", s.Recompute, s.Last-s.First)
		}
		if s.Selective < 0 || s.Selective > s.Last-s.First-s.Recompute { // a sum would overflow on absurd numbers
			return planErrorf(key+".selective", "is %d besides %d recomputed, of %d blocks", s.Selective, s.Recompute, s.Last-s.First)
		}
		if s.Pointwise < 0 || s.Pointwise > s.Last-s.First-s.Recompute-s.Selective {
			return planErrorf(key+".pointwise", "is %d besides %d recomputed more, of %d blocks", s.Pointwise, s.Recompute+s.Selective, s.Last-s.First)
		}
		next = s.Last
	}
	return nil
}

// validateZeRO checks ZeRO and offload.
func (p *Plan) validateZeRO() error {
	if p.ZeRO < 0 || p.ZeRO > 3 {
		return planErrorf("zero", "is %d, want 0 to 3", p.ZeRO)
	}
	if p.ZeRO > 0 && max(p.Replicas(), p.DataParallel()) == 1 { // groups of 1 are refused below
		return planErrorf("zero", "stage %d needs at least 2 data-parallel ranks, or context-parallel ones", p.ZeRO)
	}
	switch p.Offload {
	case OffloadNone, "none", OffloadOptimizer, OffloadParams:
	default:
		return planErrorf("offload", "is %q, want none, optimizer or params", string(p.Offload))
	}
	return p.validateGroup()
}

// validateSequenceParts checks that no ranks would share the batch or sequences otherwise than parts of sequences allow.
func (p *Plan) validateSequenceParts() error {
	const use = "; use sequence_parts 0"
	switch n := p.SequenceParts; {
	case n < 0 || n > MaxTPPieces:
		return planErrorf("sequence_parts", "is %d, want 0, which stands for 1, to %d", n, MaxTPPieces)
	case n <= 1:
		return nil
	case p.BatchParallel:
		return planErrorf("sequence_parts", "is %d, but batch_parallel is on: tensor-parallel ranks share the rows that parts are"+use, n)
	case p.BatchShares != nil:
		return planErrorf("sequence_parts", "is %d beside batch_shares, with which ranks do not share sequences equally"+use, n)
	}
	return nil
}

// validatePlacements checks the expressions and specs of placements.
func (p *Plan) validatePlacements(batch int) error {
	if len(p.Placements) == 0 {
		return nil
	}
	mesh := p.Mesh(batch)
	for i, pl := range p.Placements {
		if _, err := newPattern(pl.Match); err != nil {
			return planErrorf(fmt.Sprintf("placements[%d].match", i), "%v", err)
		}
		spec, _, err := ir.ParseSpec(mesh, pl.Spec)
		if err != nil {
			return planErrorf(fmt.Sprintf("placements[%d].spec", i), "%v", err)
		}
		if !onlyTensorParallel(mesh, spec) {
			return planErrorf(fmt.Sprintf("placements[%d].spec", i), "%s names an axis that follows the batch; only tp can be placed", pl.Spec)
		}
	}
	return nil
}

// validateSchedule checks the schedule against the number of stages.
func (p *Plan) validateSchedule() error {
	switch p.Schedule {
	case GPipe, OneFOneB, ZeroBubble, EagerOneFOneB, EagerZeroBubble:
		if p.Interleave > 1 {
			return planErrorf("interleave", "is %d, which only schedule interleaved can run; %s runs 1 stage per rank", p.Interleave, p.Schedule)
		}
	case Interleaved:
		if p.Interleave < 2 {
			return planErrorf("interleave", "is %d, schedule interleaved needs at least 2 stages per rank", p.Interleave)
		}
		if n := len(p.Stages); p.Interleave > n {
			return planErrorf("interleave", "is %d, there are %d stages for at least 2 ranks: at most %d per rank", p.Interleave, n, n/2)
		}
	default:
		return planErrorf("schedule", "unknown schedule %q (want gpipe, 1f1b, interleaved, zero-bubble, eager-1f1b or eager-zero-bubble)", p.Schedule)
	}
	if p.Interleave < 0 {
		return planErrorf("interleave", "is %d, want at least 0", p.Interleave)
	}
	if n, k := len(p.Stages), p.Chunks(); k > 1 && (n < 2*k || n%k != 0) {
		// With a pipeline of one position, a stage would send to its own rank.
		return planErrorf("stages", "are %d, interleave %d needs a multiple of it and at least %d: %d would do", n, k, 2*k, max(2, (n+k/2)/k)*k)
	}
	return nil
}

// perRank says how many stages a rank runs, if there are several.
func (p *Plan) perRank() string {
	if p.Chunks() == 1 {
		return ""
	}
	return fmt.Sprintf(", %d per rank", p.Chunks())
}

// validateGroup checks that ZeRO groups divide the data-parallel ranks into groups of at least two.
func (p *Plan) validateGroup() error {
	all := p.DataParallel()
	switch g := p.ZeROGroup; {
	case g == 0:
		return nil
	case p.ZeRO == 0:
		return planErrorf("zero_group", "is %d, but zero is 0: there is nothing to shard in groups; want zero 1 to 3, or no zero_group", g)
	case g < 2 || g > all || all%g != 0:
		return planErrorf("zero_group", "is %d, which does not cut %d data-parallel ranks into equal groups of at least 2; the nearest that do: %s", g, all, NearestGroups(all, g))
	}
	return nil
}

// validateRows checks that the tensor-parallel ranks form a grid.
func (p *Plan) validateRows() error {
	switch r := p.TPRows; {
	case r == 0 || r == 1:
		return nil
	case r < 0 || r >= p.TP || p.TP%r != 0:
		return planErrorf("tp_rows", "is %d, which does not cut %d tensor-parallel ranks into rows of at least 2; want 0 or a smaller divisor of tp", r, p.TP)
	case p.Copies() > 1 && p.ContextParallel() > 1:
		return planErrorf("tp_rows", "is %d beside zero_group %d and cp %d: a mesh has at most %d axes; drop one of the three", r, p.ZeROGroup, p.CP, ir.MaxAxes)
	}
	return nil
}

// validateBatchParallel checks that in a whole micro-batch there is a sequence for every tensor-parallel rank.
func (p *Plan) validateBatchParallel(batch int) error {
	switch all := p.DataParallel() * p.TP; {
	case !p.BatchParallel:
		return nil
	case p.TP == 1:
		return planErrorf("batch_parallel", "needs tp of at least 2")
	case p.SequenceParallel:
		return planErrorf("batch_parallel", "and sequence_parallel both shard the residual stream over tp; want one of them")
	case p.MicroBatch < p.TP:
		return planErrorf("batch_parallel", "micro-batches of %d sequences cannot be shared by tp %d ranks; want micro_batch %d or more, or a smaller tp", p.MicroBatch, p.TP, p.TP)
	case all > batch:
		return planErrorf("batch_parallel", "%d data-parallel x tp %d ranks cannot share a global batch of %d sequences", p.DataParallel(), p.TP, batch)
	}
	return nil
}

// NearestGroups names the divisors of n next to g, from 2 up, for error messages.
func NearestGroups(n, g int) string {
	below, above := 0, 0
	for d := 2; d <= n; d++ {
		switch {
		case n%d != 0:
		case d < g:
			below = d
		case d > g && above == 0:
			above = d
		}
	}
	switch {
	case below == 0:
		return fmt.Sprint(above)
	case above == 0:
		return fmt.Sprint(below)
	}
	return fmt.Sprintf("%d, %d", below, above)
}

// onlyTensorParallel reports whether a spec places nothing on other axes than those of tensor parallelism.
func onlyTensorParallel(mesh ir.Mesh, spec ir.ShardSpec) bool {
	for i, a := range mesh.Axes {
		if tensorParallel(a) {
			spec[i] = ir.Placement{}
		}
	}
	return spec == ir.ShardSpec{}
}
