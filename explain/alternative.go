package explain

import (
	"fmt"
	"io"
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// Choice is a rule by which a mesh axis could split an op.
type Choice struct {
	Axis   string `json:"axis"`
	Rule   string `json:"rule"`
	Chosen bool   `json:"chosen"`
	Not    string `json:"not,omitempty"` // why it is not possible
	// Bytes is what the first rank would communicate in one run, to bring the operands from where they lie to where the
	// rule needs them, and the results from where the rule leaves them to where they are read.
	Bytes int64 `json:"bytes"`
	// Seconds is the time of this communication and of the kernel in one run, StepSeconds in all runs of a step. Both are
	// 0 without a prediction.
	Seconds     float64 `json:"seconds,omitempty"`
	StepSeconds float64 `json:"step_seconds,omitempty"`
	// Weight is the spec in which the rule needs the first weight among the operands, if there is one, and WeightBytes
	// the memory of that on a rank.
	Weight      string `json:"weight,omitempty"`
	WeightBytes int64  `json:"weight_bytes,omitempty"`
}

// choices lists the rules of a node on every device axis. Moving weights counts nothing: to choose the rule is to have
// the weights where it needs them. Over axes that cut the batch (dp, rep) only nodes of the update have a choice.
func (r *Report) choices(n *ir.Node) []Choice {
	mesh := r.prog.Mesh
	sig := ir.SignatureOf(n)
	var all []Choice
	for axis, a := range mesh.Axes {
		if a.Time || a.Size == 1 || partition.FollowsBatch(a) && n.Phase != ir.Update {
			continue
		}
		chosen, known := ruleOn(n, sig, axis)
		for dim := ir.PassPartial; dim < len(sig.Dims); dim++ {
			args, results, legal := sig.Rule(dim)
			if dim == ir.PassPartial && !legal {
				continue
			}
			c := Choice{Axis: a.Name, Rule: ruleName(sig, dim), Chosen: known && dim == chosen}
			ranks := a.Size * splitting(n, sig, mesh.Axes[:axis], dim)
			switch {
			case !legal:
				c.Not = fmt.Sprintf("the kernel needs %s whole", sig.Dims[dim].Name)
			case dim >= 0 && sig.Dims[dim].Size < ranks:
				c.Not = fmt.Sprintf("%d cannot be cut over %d", sig.Dims[dim].Size, ranks)
			case dim >= 0 && ir.SequenceParts(n.Attr) > 0 && results[0] == ir.ShardOn(0):
				c.Not = fmt.Sprintf("every %d are one sequence", ir.SequenceParts(n.Attr))
			default:
				tasks := r.microBatches(r.firstRank(n.Stage), n)
				bytes, first, err := r.takes(n, axis, args, results, tasks[0])
				if err != nil {
					c.Not = err.Error()
					break
				}
				unlike := r.unlike(tasks)
				all := cost.Picoseconds(len(tasks)-len(unlike)) * first
				for _, task := range unlike {
					_, time, _ := r.takes(n, axis, args, results, task)
					all += time
				}
				c.Bytes, c.Seconds, c.StepSeconds = bytes, first.Seconds(), all.Seconds()
				c.Weight, c.WeightBytes = r.weightIn(n, axis, args)
			}
			all = append(all, c)
		}
	}
	return all
}

// splitting is the number of ranks over which the first axes of the mesh together split a dimension of a node's signature.
func splitting(n *ir.Node, sig *ir.Signature, axes []ir.Axis, dim int) int {
	ranks := 1
	for axis, a := range axes {
		if on, ok := ruleOn(n, sig, axis); ok && on == dim && !a.Time {
			ranks *= a.Size
		}
	}
	return ranks
}

// alternatives prints the choices of a node.
func (r *Report) alternatives(out io.Writer, n *ir.Node) {
	axis := ""
	for _, c := range r.choices(n) {
		if c.Axis != axis {
			axis = c.Axis
			what := "move, in bytes per run"
			if r.price != nil {
				what += ", and with its kernel take, per run and per step"
			}
			fmt.Fprintf(out, "  over %-7s %s could %s (* is what it does):\n", axis, n.Name, what)
		}
		mark := " "
		if c.Chosen {
			mark = "*"
		}
		if c.Not != "" {
			fmt.Fprintf(out, "    %s %-22s not: %s\n", mark, c.Rule, c.Not)
			continue
		}
		fmt.Fprintf(out, "    %s %-22s %12s", mark, c.Rule, Grouped(c.Bytes))
		if r.price != nil {
			fmt.Fprintf(out, "  %10s  %10s", Seconds(c.Seconds), Seconds(c.StepSeconds))
		}
		if c.Weight != "" {
			fmt.Fprintf(out, "  with %s of %s bytes", c.Weight, Grouped(c.WeightBytes))
		}
		fmt.Fprintln(out)
	}
}

func ruleName(sig *ir.Signature, dim int) string {
	switch dim {
	case ir.ReplicateAll:
		return "repeat on every rank"
	case ir.PassPartial:
		return "pass partial sums on"
	}
	return fmt.Sprintf("split %s of %d", sig.Dims[dim].Name, sig.Dims[dim].Size)
}

// takes returns the bytes that the first rank communicates over an axis in a task that runs a node under a rule, and with a
// prediction the time that this and the kernel take. args and results are the placements that the rule has on the axis.
func (r *Report) takes(n *ir.Node, axis int, args, results []ir.Placement, task codegen.Task) (bytes int64, time cost.Picoseconds, err error) {
	if bytes, time, err = r.moved(n, axis, args, results, task); err == nil && r.price != nil {
		time += r.kernelTime(n, axis, args, results, task)
	}
	return bytes, time, err
}

// moved returns the bytes of takes, and the time that moving them takes.
func (r *Report) moved(n *ir.Node, axis int, args, results []ir.Placement, task codegen.Task) (bytes int64, time cost.Picoseconds, err error) {
	add := func(v *ir.Value, from, to ir.ShardSpec) error {
		b, t, err := r.reshard(v, from, to, n, task)
		bytes, time = bytes+b, time+t
		return err
	}
	for i, a := range n.Args {
		v := origin(a)
		if v.Def.Op == ir.OpParam {
			continue
		}
		to := a.Spec
		to[axis] = args[i]
		from := to
		from[axis] = v.Spec[axis]
		if err := add(v, from, to); err != nil {
			return 0, 0, err
		}
	}
	for i, v := range n.Results {
		from := v.Spec
		from[axis] = results[i]
		to := from
		to[axis] = r.readAs(v, axis)
		if err := add(v, from, to); err != nil {
			return 0, 0, err
		}
	}
	return bytes, time, nil
}

// readAs returns the placement on an axis in which a result is read, after any collective on that axis.
func (r *Report) readAs(v *ir.Value, axis int) ir.Placement {
	for _, m := range r.why.readers[v] {
		if m.Op.Class() == ir.Comm && m.Op != ir.OpSend && m.Results[0].Spec[axis] != v.Spec[axis] {
			return m.Results[0].Spec[axis]
		}
	}
	return v.Spec[axis]
}

// reshard returns the bytes of the collectives that lead from one spec of a value to another, as the runtime counts them,
// and with a prediction their time. They run where and when node at does in a task.
func (r *Report) reshard(v *ir.Value, from, to ir.ShardSpec, at *ir.Node, task codegen.Task) (bytes int64, time cost.Picoseconds, err error) {
	steps, err := partition.Path(r.prog.Mesh, from, to)
	if err != nil {
		return 0, 0, err
	}
	s := r.firstRank(at.Stage)
	for _, step := range steps {
		n := &ir.Node{Op: step.Op, Attr: step.Attr, Stage: at.Stage, Phase: at.Phase, Args: []*ir.Value{{Type: v.Type, Spec: from}}}
		n.Results = []*ir.Value{{Type: v.Type, Def: n, Spec: step.Spec}}
		bytes += r.prog.CommBytes(s, &codegen.Instr{Node: n}, task)
		if r.price != nil {
			t, _ := r.price.Instr(&codegen.Instr{Node: n, Accum: make([]codegen.Accum, 1)}, r.prog.Mesh, r.prog.At(s, task))
			time += t
		}
		from = step.Spec
	}
	return bytes, time, nil
}

// kernelTime is how long the kernel of a node takes on the first rank in a task, if a rule splits it over an axis. args and
// results are as in takes.
func (r *Report) kernelTime(n *ir.Node, axis int, args, results []ir.Placement, task codegen.Task) cost.Picoseconds {
	s := r.firstRank(n.Stage)
	split := *n
	split.Args, split.Results = slices.Clone(n.Args), slices.Clone(n.Results)
	place := func(values []*ir.Value, placed []ir.Placement) {
		for i, v := range values {
			w := *v
			w.Spec[axis] = placed[i]
			values[i] = &w
		}
	}
	place(split.Args, args)
	place(split.Results, results)
	var runs []codegen.Instr // several, if the node is made in parts
	for _, in := range r.prog.Stages[s.Stage].Bodies[n.Phase].Instrs {
		if in.Node == n {
			runs = append(runs, in)
		}
	}
	if len(runs) == 0 {
		runs = []codegen.Instr{{Accum: make([]codegen.Accum, len(n.Results))}}
	}
	var time cost.Picoseconds
	for _, in := range runs {
		in.Node = &split
		t, _ := r.price.Instr(&in, r.prog.Mesh, r.prog.At(s, task))
		time += t
	}
	return time
}

// weightIn returns the spec in which a rule needs the first weight among the operands, and the weight's bytes on a rank.
// It returns "" if no operand is a weight.
func (r *Report) weightIn(n *ir.Node, axis int, args []ir.Placement) (spec string, bytes int64) {
	for i, a := range n.Args {
		if v := origin(a); v.Def.Op == ir.OpParam {
			placed := v.Spec
			placed[axis] = args[i]
			slab := r.prog.Mesh.Local(v.Type.Shape, placed, ir.Coord{})
			return placed.Format(r.prog.Mesh, len(v.Type.Shape)), slab.Elems() * v.Type.DType.Size()
		}
	}
	return "", 0
}
