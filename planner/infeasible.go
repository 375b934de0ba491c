package planner

import (
	"fmt"
	"slices"
	"strings"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// This file has the errors of a search that finds nothing: InfeasibleError, which newSearch (search.go) returns when no plan fits,
// with the closest plan that leanest.go finds; and those that say which option leaves no plan at all.

// InfeasibleError says that no plan fits, and by how much the closest one misses.
type InfeasibleError struct {
	// Closest is the plan whose fullest stage needs the least memory of those that were laid out exactly. No plan has a fullest
	// stage that needs less than AtLeast bytes: that is Needs if Closest is known to be the closest.
	Closest *partition.Plan
	AtLeast int64
	Stage   int   // the stage that needs the most
	Needs   int64 // bytes
	Limit   int64
	// The largest part of the stage's arena: "weights", "gradients and step
	// values", "optimizer state" or "activations", and its bytes.
	Largest      string
	LargestBytes int64
}

func (e *InfeasibleError) Error() string {
	p := e.Closest
	if e.Needs <= e.Limit {
		return fmt.Sprintf("planner: no feasible plan: the closest fits, but a step of it takes more than the 53 days that can be counted: %s, micro-batch %d", p.Degrees(), p.MicroBatch)
	}
	least := ""
	if e.AtLeast < e.Needs {
		least = fmt.Sprintf(" of those laid out, and none can need less than %s", gib(e.AtLeast))
	}
	return fmt.Sprintf("planner: no feasible plan: stage %d needs %s, %s more than the limit of %s; its largest part is %s with %s; "+
		"closest plan%s: %s, zero %d%s, offload %s, %s, micro-batch %d, %s, %srecomputing %s",
		e.Stage, gib(e.Needs), gib(e.Needs-e.Limit), gib(e.Limit), e.Largest, gib(e.LargestBytes),
		least, p.Degrees(), p.ZeRO, groupText(p), p.Offload, streamText(p.SequenceParallel, p.BatchParallel)+modulesText(p), p.MicroBatch, p.ScheduleText(), slicesText(p), recomputed(p))
}

// streamText says how tensor-parallel ranks share the residual stream.
func streamText(sequence, batch bool) string {
	text := "sequence parallelism " + onOff(sequence)
	if batch {
		text += ", batch parallelism on"
	}
	return text
}

// modulesText says which modules are replicated, or cut in two dimensions, if any are.
func modulesText(p *partition.Plan) (text string) {
	if modules := p.Replicated(); len(modules) > 0 {
		text = ", " + strings.Join(modules, "+") + " replicated"
	}
	if modules := p.OnGrid(); len(modules) > 0 {
		text += fmt.Sprintf(", %s over %d rows", strings.Join(modules, "+"), p.Rows())
	}
	return text
}

func gib(bytes int64) string { return fmt.Sprintf("%.4g GiB", float64(bytes)/(1<<30)) }

func groupText(p *partition.Plan) string {
	if p.ZeROGroup == 0 {
		return ""
	}
	return fmt.Sprintf(" in groups of %d", p.ZeROGroup)
}

// slicesText says in how many slices the loss is made, if in several.
func slicesText(p *partition.Plan) string {
	if p.LossSlices < 2 {
		return ""
	}
	return fmt.Sprintf("loss in %d slices, ", p.LossSlices)
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func recomputed(p *partition.Plan) string {
	var r recomputation
	for _, s := range p.Stages {
		r.full += s.Recompute
		r.selective += s.Selective
		r.pointwise += s.Pointwise
	}
	text := fmt.Sprintf("%d of %d blocks", r.full, p.Stages[len(p.Stages)-1].Last)
	if r.selective > 0 {
		text += fmt.Sprintf(" and the attention of %d", r.selective)
	}
	if r.pointwise > 0 {
		text += fmt.Sprintf(" and %d pointwise", r.pointwise)
	}
	return text
}

// sizeless says why no outline has micro-batches of the size that the options fix. If they fix none, every outline has some.
func (s *searcher) sizeless() error {
	size := s.opts.MicroBatch
	if !slices.ContainsFunc(s.tracts, func(t *tract) bool { return !t.batch || t.tp <= size }) {
		return optionErrorf("micro-batch", "is %d, but all plans that are left share the sequences of a micro-batch between more tensor-parallel ranks", size)
	}
	return optionErrorf("micro-batch", "is %d, of which data-parallel ranks run different numbers for a global batch of %d, and overlap is on: "+
		"the search has both from zero 2 on in this version; a plan that says so runs", size, s.batch)
}

// noGroup says why no plan has ZeRO groups of a size.
func (s *searcher) noGroup(g int) error {
	o := s.opts
	o.ZeROGroup = 0
	most := 0
	for _, d := range allDegrees(o, s.graphs.blocks, s.batch, s.contexts, s.cluster) {
		most = max(most, d.dp*(o.RuntimeNGPUs/d.plan))
	}
	if most < 2 {
		return optionErrorf("zero-group", "%d needs data-parallel ranks; no %s has any with %d blocks and a global batch of %d",
			g, o.degrees(), s.graphs.blocks, s.batch)
	}
	return optionErrorf("zero-group", "%d divides the data-parallel ranks of no %s; the nearest groups of %d ranks: %s",
		g, o.degrees(), most, partition.NearestGroups(most, g))
}

// largestPart names what takes the most of an arena.
func largestPart(st *codegen.Stage) (string, int64) {
	sums := st.SumsInSlots()
	parts := map[string]int64{"activations": st.Saved() - sums + st.Temp}
	weights, state := int64(0), int64(0)
	for _, id := range st.Params {
		b := &st.Buffers[id]
		if b.Region == codegen.Host {
			continue
		}
		if b.Value.Def.Attr.(ir.ParamAttr).State {
			state += b.Size
		} else {
			weights += b.Size
		}
	}
	parts["weights"], parts["optimizer state"] = weights, state
	parts["gradients and step values"] = st.Persist - st.Durable + sums
	var name string
	for _, n := range []string{"optimizer state", "activations", "gradients and step values", "weights"} {
		if parts[n] > parts[name] || name == "" {
			name = n
		}
	}
	return name, parts[name]
}
