package planner

import (
	"math/rand/v2"
	"slices"

	"github.com/autopar/autopar/partition"
)

// The check of regions that the search went through cut by cut. It repeats that with code of its
// own: small regions by plain enumeration of all cuts and recomputation, larger ones by a branch
// and bound with the same bounds of stages but its own branching, interleaved ones by the one cut
// they have. certify.go calls [auditor.search] for every such cell.

// Limits on the work of an audit.
const (
	exhaustive = 2_000      // stages times micro-batches of all cuts together, up to which all cuts are simulated
	patience   = 20_000_000 // steps of a branch and bound
)

// search checks that no plan of a cell fits and takes less time than the winner.
func (a *auditor) search(r *Region, c cell) error {
	o, size, schedule := c.outline, c.size, c.schedule
	skel, err := a.skeletonOf(o)
	if err != nil {
		if r.reason == spares {
			return nil // then it has no plans at all
		}
		return refute(r.line, "%s cannot be compiled: %v", o.text(), err)
	}
	if bound, err := a.stages(a.usual(o), size, schedule, a.again(o, size, schedule), a.cert.Step); err == nil && bound >= a.cert.Step {
		return nil
	}
	pipe := newPipeline(skel, skel.memoryOf(size), size, schedule)
	if pipe.holds(a.limit) < a.graphs.blocks {
		return nil
	}
	pipe.stages = skel.times(size, schedule)
	v := &cutAudit{auditor: a, pipe: pipe, learned: map[tried]bool{}, cut: make([]partition.Stage, len(skel.plan.Stages))}
	var faster *candidate
	switch {
	case r.chunks > 1:
		faster = v.interleaved()
	case a.declared.plans(r.outline)*float64(r.pp*pipe.microBatches) <= exhaustive:
		faster = v.all(0, 0)
	default:
		faster = v.below()
	}
	if faster != nil {
		return refute(r.line, "a plan takes %d ps and fits, less than the %d ps of the winner: %s", int64(faster.time), int64(a.cert.Step), mustJSON(faster.plan))
	}
	if v.steps > patience {
		return refute(r.line, "is not proven in %d steps, with micro-batches of %d under %s", patience, size, schedule)
	}
	return nil
}

// cutAudit looks for a plan of a pipeline that is faster than the winner.
type cutAudit struct {
	*auditor
	pipe    *pipeline
	bounds  *bounds
	room    []int // by stage: the most blocks that it and the later ones can hold in less time than the winner takes
	learned map[tried]bool
	missed  bool // a stage did not fit although its bound said so, which is learned now
	steps   int
	cut     []partition.Stage
}

// price returns the plan with a cut if it takes less time than the winner and fits.
func (v *cutAudit) price(cut []partition.Stage) *candidate {
	v.audit.Cuts++
	time := v.pipe.time(cut)
	if time >= v.cert.Step {
		return nil
	}
	plan := v.pipe.plan(cut)
	peaks, _, err := v.peaks(plan)
	mustCompile(err)
	fits := true
	for i, peak := range peaks {
		if peak > v.limitAt(plan, i) {
			fits = false
			if v.pipe.template.Chunks() == 1 {
				v.learned[triedOf(i, cut[i])], v.missed = true, true
			}
		}
	}
	if !fits || v.fitsWithFewer(plan) {
		return nil
	}
	return &candidate{plan: plan, time: time, peaks: peaks}
}

// all enumerates every cut and recomputation.
func (v *cutAudit) all(stage, first int) *candidate {
	blocks, left := v.graphs.blocks, len(v.cut)-stage
	if left == 0 {
		return v.price(v.cut)
	}
	from, to := 1, blocks-first-left+1
	if left == 1 {
		from = to
	}
	for n := from; n <= to; n++ {
		if v.opts.Policy == Megatron && n*len(v.cut) != blocks {
			continue
		}
		for _, r := range v.declared.recomputations(n, v.pipe.skel.outline.replicate) {
			v.cut[stage] = r.stage(first, n)
			if faster := v.all(stage+1, first+n); faster != nil {
				return faster
			}
		}
	}
	return nil
}

// below branches over the blocks and the recomputation of one stage after the other, and leaves out
// what the bounds rule out. If a plan does not fit although its memory bound said so, it starts
// again, knowing that.
func (v *cutAudit) below() *candidate {
	for {
		if v.missed {
			v.pipe.measureApart()
		}
		v.bounds, v.missed = newBounds(v.pipe, v.limit, v.opts, v.learned), false
		v.room = make([]int, len(v.cut)+1)
		for i := len(v.cut) - 1; i >= 0; i-- {
			v.room[i] = v.room[i+1] + v.bounds.most(i, v.cert.Step-1)
		}
		if faster := v.branch(0, 0, passed{}); faster != nil || !v.missed || v.steps > patience {
			return faster
		}
	}
}

// branch cuts the blocks from first on; before is what chains take with the earlier
// stages.
func (v *cutAudit) branch(stage, first int, before passed) *candidate {
	left := v.graphs.blocks - first
	if stage == len(v.cut) {
		if left > 0 {
			return nil
		}
		return v.price(v.cut)
	}
	for n := 1; n <= min(left, v.pipe.skel.blocks-len(v.cut)+1) && v.steps <= patience; n++ {
		v.steps++
		if left-n > v.room[stage+1] || v.bounds.time(stage, n) >= v.cert.Step {
			continue
		}
		for _, r := range v.bounds.choices(stage, n) {
			if v.bounds.from(stage, left, &r, before) >= v.cert.Step {
				continue
			}
			v.cut[stage] = r.stage(first, n)
			if faster := v.branch(stage+1, first+n, v.bounds.past(before, stage, n, r.recomputation)); faster != nil {
				return faster
			}
		}
	}
	return nil
}

// interleaved tries the even cut, in which every rank recomputes the least with which it fits.
func (v *cutAudit) interleaved() *candidate {
	recompute := v.opts.recompute(v.pipe.skel.outline.replicate)
	choice := make([]int, v.pipe.template.PP())
	for {
		cut := v.pipe.interleavedCut(recompute, choice)
		v.audit.Cuts++
		x := &candidate{plan: v.pipe.plan(cut), time: v.pipe.time(cut)}
		if x.time >= v.cert.Step {
			return nil // more recomputation takes no less
		}
		peaks, _, err := v.peaks(x.plan)
		mustCompile(err)
		fits := true
		for at, peak := range peaks {
			if peak > v.limitAt(x.plan, at) {
				if fits = false; choice[at]+1 == len(recompute.ladder()) {
					return nil
				}
				choice[at]++
			}
		}
		if fits && v.fitsWithFewer(x.plan) {
			return nil
		}
		if fits {
			return x
		}
	}
}

// randomCut draws a cut and recomputation of a region. Those of interleaved schedules are even, and
// recompute the least.
func (a *auditor) randomCut(r *rand.Rand, x *Region) []partition.Stage {
	blocks := a.graphs.blocks
	if x.chunks > 1 {
		least := a.opts.recompute(x.replicate).extents()[0]
		return evenCut(blocks, x.stages(), func(int) extent { return least })
	}
	ends := r.Perm(blocks - 1)[:x.pp-1] // of all stages but the last, as the number of the stage's last block
	slices.Sort(ends)
	if a.opts.Policy == Megatron {
		for i := range ends {
			ends[i] = (i+1)*blocks/x.pp - 1
		}
	}
	ends = append(ends, blocks-1)
	var cut []partition.Stage
	first := 0
	for _, end := range ends {
		n := end + 1 - first
		again := a.declared.recomputations(n, x.replicate)
		of := again[r.IntN(len(again))]
		if r.IntN(2) == 0 {
			of = again[0] // no recomputation, if that is among the choices
		}
		cut = append(cut, of.stage(first, n))
		first += n
	}
	return cut
}
