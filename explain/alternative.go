package explain

import (
	"fmt"
	"io"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// alternatives lists, for every device axis, what each rule of a node would move
// on one rank in one run: to bring the operands from where they lie to where the
// rule needs them, and the results from where it leaves them to where they are
// read. Weights are taken to lie where the rule wants them: that is the choice.
// Over dp and rep there is none before the update: there the batch is cut.
func (r *Report) alternatives(out io.Writer, n *ir.Node) {
	mesh := r.prog.Mesh
	sig := ir.SignatureOf(n)
	for axis, a := range mesh.Axes {
		if a.Time || a.Size == 1 || partition.FollowsBatch(a) && n.Phase != ir.Update {
			continue
		}
		chosen, known := ruleOn(n, sig, axis)
		fmt.Fprintf(out, "  over %-7s %s could move, in bytes per run (* is what it does):\n", a.Name, n.Name)
		for dim := ir.PassPartial; dim < len(sig.Dims); dim++ {
			args, results, legal := sig.Rule(dim)
			if dim == ir.PassPartial && !legal {
				continue
			}
			name := ruleName(sig, dim)
			mark := " "
			if known && dim == chosen {
				mark = "*"
			}
			switch {
			case !legal:
				fmt.Fprintf(out, "    %s %-22s not: the kernel needs %s whole\n", mark, name, sig.Dims[dim].Name)
			case dim >= 0 && sig.Dims[dim].Size < a.Size:
				fmt.Fprintf(out, "    %s %-22s not: %d cannot be cut over %d\n", mark, name, sig.Dims[dim].Size, a.Size)
			default:
				bytes, err := r.moved(n, axis, args, results)
				if err != nil {
					fmt.Fprintf(out, "    %s %-22s not: %v\n", mark, name, err)
					continue
				}
				fmt.Fprintf(out, "    %s %-22s %12s%s\n", mark, name, Grouped(bytes), r.weightBytes(n, axis, args))
			}
		}
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

// moved is the bytes that a rule of a node moves over an axis on the first rank.
func (r *Report) moved(n *ir.Node, axis int, args, results []ir.Placement) (int64, error) {
	var sum int64
	for i, a := range n.Args {
		v := origin(a)
		if v.Def.Op == ir.OpParam {
			continue
		}
		to := a.Spec
		to[axis] = args[i]
		from := to
		from[axis] = v.Spec[axis]
		bytes, err := r.reshardBytes(v, from, to, n)
		if err != nil {
			return 0, err
		}
		sum += bytes
	}
	for i, v := range n.Results {
		from := v.Spec
		from[axis] = results[i]
		to := from
		to[axis] = r.readAs(v, axis)
		bytes, err := r.reshardBytes(v, from, to, n)
		if err != nil {
			return 0, err
		}
		sum += bytes
	}
	return sum, nil
}

// readAs returns the placement on an axis with which a result is read in the end.
func (r *Report) readAs(v *ir.Value, axis int) ir.Placement {
	for _, m := range r.why.readers[v] {
		if m.Op.Class() == ir.Comm && m.Op != ir.OpSend && m.Results[0].Spec[axis] != v.Spec[axis] {
			return m.Results[0].Spec[axis]
		}
	}
	return v.Spec[axis]
}

// reshardBytes counts the collectives that lead from one spec to another as the
// runtime counts them.
func (r *Report) reshardBytes(v *ir.Value, from, to ir.ShardSpec, at *ir.Node) (int64, error) {
	steps, err := partition.Path(r.prog.Mesh, from, to)
	if err != nil {
		return 0, err
	}
	s := r.firstRank(at.Stage)
	task, _ := r.microBatches(s, at)
	var sum int64
	for _, step := range steps {
		n := &ir.Node{Op: step.Op, Attr: step.Attr, Args: []*ir.Value{{Type: v.Type, Spec: from}}}
		n.Results = []*ir.Value{{Type: v.Type, Def: n, Spec: step.Spec}}
		sum += r.prog.CommBytes(s, n, task)
		from = step.Spec
	}
	return sum, nil
}

// weightBytes says what the weights among the operands would take on a rank.
func (r *Report) weightBytes(n *ir.Node, axis int, args []ir.Placement) string {
	for i, a := range n.Args {
		if v := origin(a); v.Def.Op == ir.OpParam {
			spec := v.Spec
			spec[axis] = args[i]
			slab := r.prog.Mesh.Local(v.Type.Shape, spec, ir.Coord{})
			return fmt.Sprintf("  with %s of %s bytes", spec.Format(r.prog.Mesh, len(v.Type.Shape)), Grouped(slab.Elems()*v.Type.DType.Size()))
		}
	}
	return ""
}
