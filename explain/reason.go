package explain

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// reasons answers why values lie where they do, from the graph of a program and the placements of its plan.
type reasons struct {
	prog    *codegen.Program
	readers map[*ir.Value][]*ir.Node
	owner   map[*ir.Value]*ir.Value // from optimizer state, master copies, gradients and their terms to the weight
	pins    []config.Pin            // of the user
	placed  []*regexp.Regexp        // for each of the plan's placements, the names that it matches
}

func newReasons(prog *codegen.Program, cfg *config.Config) (*reasons, error) {
	w := &reasons{prog: prog, readers: map[*ir.Value][]*ir.Node{}, owner: map[*ir.Value]*ir.Value{}, pins: cfg.Parallel.Pins}
	for i, pl := range prog.Plan.Placements {
		re, err := regexp.Compile("^(?:" + pl.Match + ")$")
		if err != nil {
			return nil, fmt.Errorf("explain: placements[%d].match: %w", i, err)
		}
		w.placed = append(w.placed, re)
	}
	for _, n := range prog.Graph.Nodes {
		for _, a := range n.Args {
			w.readers[a] = append(w.readers[a], n)
		}
	}
	w.findOwners()
	return w, nil
}

// findOwners goes back from each AdamW to its weight, its state and the terms of its gradient.
func (w *reasons) findOwners() {
	nodes := w.prog.Graph.Nodes
	params := map[paramOnStage]*ir.Value{}
	for _, n := range nodes {
		if at := (paramOnStage{partition.BaseName(n.Name), n.Stage}); n.Op == ir.OpParam && params[at] == nil {
			params[at] = n.Results[0]
		}
	}
	for _, n := range slices.Backward(nodes) { // readers come after what they read
		switch {
		case n.Op == ir.OpAdamW:
			weight := n.Args[0]
			for weight.Def.Op.Class() == ir.Comm {
				weight = weight.Def.Args[0] // AdamW updates a slice of it
			}
			if attr, ok := weight.Def.Attr.(ir.ParamAttr); ok && attr.Master != "" {
				master := weight
				if weight = params[paramOnStage{attr.Master, n.Stage}]; weight == nil {
					panic("BUG: explain: no parameter " + attr.Master)
				}
				w.owner[master] = weight
			}
			for _, state := range n.Args[1:4] {
				w.owner[state] = weight
			}
		case n.Op == ir.OpAddN || n.Op == ir.OpCast || n.Op == ir.OpFromFixed || n.Op == ir.OpEmbeddingGrad && n.Phase == ir.Update || n.Op.Class() == ir.Comm:
			if weight := w.owner[n.Results[0]]; weight != nil {
				for _, a := range n.Args {
					w.owner[a] = weight
				}
			}
		}
	}
}

// paramOnStage names a parameter on a stage: a tied weight is on two.
type paramOnStage struct {
	name  string
	stage int
}

// kind returns which kind of tensor a buffer holds.
func (w *reasons) kind(b *codegen.Buffer) string {
	v := b.Value
	attr, _ := v.Def.Attr.(ir.ParamAttr)
	switch {
	case v.Def.Op == ir.OpParam && attr.State:
		return KindOptimizer
	case v.Def.Op == ir.OpParam:
		return KindWeight
	case v.Def.Op == ir.OpInput:
		return KindInput
	case v.Def.Op == ir.OpConst:
		return KindConstant
	case w.owner[v] != nil:
		return KindGradient
	case b.Region == codegen.Slot || b.Region == codegen.Inbox:
		return KindSaved
	}
	return KindOther
}

// What is said of values in host memory.
const (
	hostState  = "lives in host memory, fetched for the update and stashed after it"
	hostWeight = "lives in host memory, fetched for its block in each pass"
)

// tensor says why a buffer lies as it does, or what it is kept for.
func (w *reasons) tensor(b *codegen.Buffer) string {
	v := b.Value
	switch w.kind(b) {
	case KindWeight:
		return w.weight(v)
	case KindOptimizer:
		if b.Region == codegen.Host {
			return w.state(v) + "; " + hostState
		}
		return w.state(v)
	case KindGradient:
		return w.gradient(v)
	case KindInput:
		if b.Region == codegen.Persist {
			return "set once per step, the same everywhere"
		}
		if w.prog.Plan.ContextParallel() > 1 {
			return "the batch is cut over dp and then into micro-batches; fold takes this rank's part of each sequence"
		}
		if w.prog.Plan.Copies() > 1 {
			return "the batch is cut over rep, then over dp and then into micro-batches"
		}
		return "the batch is cut over dp and then into micro-batches"
	case KindSaved:
		return w.saved(v)
	}
	if v.Def.Op == ir.OpRecv {
		return "received from " + peerText(w.prog.Plan, v.Def)
	}
	if len(w.readers[v]) == 0 {
		return "read after the step"
	}
	return "kept for " + w.readerNames(v)
}

// state gives the reason for the placement of optimizer state.
func (w *reasons) state(v *ir.Value) string {
	if w.owner[v] == nil {
		return "kept from step to step, the same everywhere"
	}
	if text := w.shards(v, w.owner[v]); text != "" {
		return text
	}
	if v.OnHost() {
		return "lies as its weight"
	}
	return "lies as its weight, which adamw updates in place"
}

// shards says over what ZeRO shards a weight or its state, "" if it does not.
func (w *reasons) shards(v, weight *ir.Value) string {
	mesh := w.prog.Mesh
	var over []string
	for _, axis := range []string{partition.AxisDP, partition.AxisCP} {
		if i := mesh.Axis(axis); i >= 0 && v.Spec[i].Kind == ir.Shard {
			over = append(over, axis)
		}
	}
	if w.spread(v, weight) {
		over = append(over, partition.AxisTP)
	}
	if len(over) == 0 {
		return ""
	}
	return fmt.Sprintf("sharded over %s by ZeRO stage %d%s", strings.Join(over, " and "), w.prog.Plan.ZeRO, groupText(w.prog.Plan))
}

// spread reports whether ZeRO shards a value over tensor-parallel ranks: it is sharded over tp, although the plan's
// placement of its weight is not.
func (w *reasons) spread(v, weight *ir.Value) bool {
	at := w.placement(weight)
	return v.Spec[w.prog.Mesh.Axis(partition.AxisTP)].Kind == ir.Shard && at >= 0 && !strings.Contains(w.prog.Plan.Placements[at].Spec, partition.AxisTP)
}

// weight gives the reason for the placement of a weight.
func (w *reasons) weight(v *ir.Value) string {
	var parts []string
	if v.OnHost() {
		text := hostWeight
		if slices.ContainsFunc(w.readers[v], func(n *ir.Node) bool { return n.Phase == ir.Update }) {
			text += " and for the update" // it has no master copy
		}
		parts = append(parts, text)
	}
	if by := w.placedBy(v); by != "" {
		parts = append(parts, by)
	}
	if shards := w.shards(v, v); shards != "" {
		parts = append(parts, shards)
	}
	for axis, a := range w.prog.Mesh.Axes {
		if a.Time || a.Size == 1 || partition.FollowsBatch(a) && v.Spec[axis].Kind == ir.Replicate {
			continue // the report's header says that data-parallel ranks hold the same
		}
		tp := a.Name == partition.AxisTP || a.Name == partition.AxisTPR
		if v.Spec[axis].Kind == ir.Shard && (!tp || a.Name == partition.AxisTP && w.spread(v, v)) {
			continue // by ZeRO
		}
		parts = append(parts, w.onAxis(v, axis))
	}
	if len(parts) == 0 {
		return "whole on every rank"
	}
	return strings.Join(parts, "; ")
}

// leaf gives the reason for the placement of a parameter, optimizer state, input or
// constant.
func (w *reasons) leaf(v *ir.Value) string {
	attr, isParam := v.Def.Attr.(ir.ParamAttr)
	switch {
	case isParam && attr.State && w.owner[v] != nil:
		reason := "lies as " + w.owner[v].Name() + " does"
		if v.Spec != w.owner[v].Spec {
			reason = w.state(v)
		}
		if v.OnHost() {
			reason += "; " + hostState
		}
		return reason
	case isParam:
		return w.weight(v)
	case !slices.Contains(v.Spec[:], ir.ShardOn(0)):
		return "the same everywhere"
	}
	return "follows the batch"
}

// placedBy names the placement of the plan that applies to a value, or returns "" if none does. The search copies the
// user's pins to the plan, before its own placements; a pin is named as the configuration has it.
func (w *reasons) placedBy(v *ir.Value) string {
	at := w.placement(v)
	if at < 0 {
		return ""
	}
	pl := w.prog.Plan.Placements[at]
	for _, pin := range w.pins {
		if strings.Contains(pl.Match, pin.Match) && pl.Spec == pin.Spec() {
			return fmt.Sprintf("pinned by the user (%s)", pin.Match)
		}
	}
	return fmt.Sprintf("placements[%d] of the plan", at)
}

// placement returns the index of the first of the plan's placements that matches a value, -1 if none does.
func (w *reasons) placement(v *ir.Value) int {
	name := partition.BaseName(v.Name())
	if v == v.Def.Results[0] { // placements say nothing about other results
		name = partition.PlacedAs(v.Def)
	}
	return slices.IndexFunc(w.placed, func(re *regexp.Regexp) bool { return re.MatchString(name) })
}

// onAxis says how the forward ops that read a weight use its placement on an axis.
func (w *reasons) onAxis(v *ir.Value, axis int) string {
	mesh := w.prog.Mesh
	name := mesh.Axes[axis].Name
	var texts []string
	read := v
	for copies := w.readers[v]; ; copies = w.readers[read] {
		i := slices.IndexFunc(copies, func(n *ir.Node) bool {
			return (n.Op == ir.OpFetch || n.Op == ir.OpAllGather) && n.Phase == ir.Forward
		})
		if i < 0 {
			break
		}
		read = copies[i].Results[0]
	}
	for _, n := range w.readers[read] {
		if n.Phase != ir.Forward || n.Op.Class() != ir.Compute {
			continue
		}
		sig := ir.SignatureOf(n)
		dim, ok := ruleOn(n, sig, axis)
		if !ok {
			continue
		}
		text := fmt.Sprintf("%s %s", class(n.Name), rule{axis, dim}.describe(mesh, n, sig))
		if frozen := frozenDims(sig, n, read); dim == ir.ReplicateAll && frozen != "" {
			text = fmt.Sprintf("%s needs %s whole", class(n.Name), frozen)
		}
		if made := w.madeWhole(n, axis); made != "" {
			text += ", " + made
		}
		texts = append(texts, text)
	}
	how := "replicated over "
	if v.Spec[axis].Kind == ir.Shard {
		how = "split over "
	}
	if len(texts) == 0 {
		return how + name
	}
	return how + name + ": " + strings.Join(texts, "; ")
}

// frozenDims names the dimensions of operand v of n if n can split none of them. Otherwise it returns "".
func frozenDims(sig *ir.Signature, n *ir.Node, v *ir.Value) string {
	var names []string
	for i, a := range n.Args {
		if a != v {
			continue
		}
		for _, d := range sig.Args[i] {
			if !sig.Dims[d].Frozen {
				return ""
			}
			names = append(names, sig.Dims[d].Name)
		}
	}
	return strings.Join(names, ", ")
}

// madeWhole names the collective that combines the partial results of a node over an axis, or returns "".
func (w *reasons) madeWhole(n *ir.Node, axis int) string {
	for _, r := range n.Results {
		if r.Spec[axis].Kind != ir.Partial {
			continue
		}
		for _, m := range w.readers[r] {
			if m.Op.Class() == ir.Comm && m.Results[0].Spec[axis].Kind != ir.Partial {
				return fmt.Sprintf("which %s over %s combines", m.Op, w.prog.Mesh.Axes[axis].Name)
			}
		}
	}
	return ""
}

// gradient says what a term of a gradient is computed from, and which collectives it goes through until the optimizer
// reads it.
func (w *reasons) gradient(v *ir.Value) string {
	text := ""
	switch n := v.Def; n.Op {
	case ir.OpAccumulate:
		text = fmt.Sprintf("summed over micro-batches from %s", class(n.Args[0].Name()))
	case ir.OpRecv:
		text = fmt.Sprintf("the share of %s, received", peerText(w.prog.Plan, n))
	default:
		text = "made by " + n.Op.String()
	}
	// Follow the gradient to the optimizer.
	seen := map[string]bool{}
	for v := v; v != nil; {
		var next *ir.Value
		for _, m := range w.readers[v] {
			if m.Op == ir.OpAddN || m.Op == ir.OpCast || m.Op == ir.OpFromFixed || m.Op.Class() == ir.Comm && m.Op != ir.OpSend {
				next = m.Results[0]
				if m.Op == ir.OpFromFixed {
					text += "; then rounded to f32"
				}
				if attr, ok := m.Attr.(ir.CommAttr); ok {
					if step := fmt.Sprintf("%s over %s", m.Op, attr.Axis); !seen[step] {
						seen[step] = true
						text += "; then " + step
					}
				}
				break
			}
		}
		v = next
	}
	return text
}

// saved says where an activation comes from, if another stage sent it, and who reads it again.
func (w *reasons) saved(v *ir.Value) string {
	text := "read again by "
	if v.Def.Op == ir.OpRecv {
		text = fmt.Sprintf("received from %s for ", peerText(w.prog.Plan, v.Def))
	}
	return text + w.readerNames(v)
}

// readerNames lists the readers of a value in the last phase that has any: the classes of two, and how many more there are.
func (w *reasons) readerNames(v *ir.Value) string {
	last := ir.Forward
	for _, n := range w.readers[v] {
		last = max(last, n.Phase)
	}
	var names []string
	for _, n := range w.readers[v] {
		if n.Phase == last {
			names = append(names, class(n.Name))
		}
	}
	if len(names) > 2 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:2], ", "), len(names)-2)
	}
	return strings.Join(names, ", ")
}
