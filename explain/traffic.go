package explain

import (
	"fmt"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
)

func (t Traffic) bytes() int64 { return t.CollectiveBytes + t.TransferBytes + t.HostBytes }

// communication lists what one rank communicates in a step, and counts it as
// the runtime does.
func (r *Report) communication(st *Stage, s *codegen.Schedule) ([]Comm, Traffic) {
	total := Traffic{Rank: s.Rank}
	type key struct{ name, op, phase, from, to string }
	at := map[key]int{}
	var rows []Comm
	var names [][]string
	code := r.prog.Stages[s.Stage]
	for phase, body := range code.Bodies {
		for i := range body.Instrs {
			in := &body.Instrs[i]
			n := in.Node
			first, runs := microBatches(s, ir.Phase(phase), in.Chunk)
			if !communicates(n.Op) || runs == 0 {
				continue
			}
			if in.Last {
				runs = 1
			}
			// All micro-batches have the size of the first, but for the last.
			each := r.prog.CommBytes(s, in, first)
			last := first
			last.MicroBatch += runs - 1
			bytes := int64(runs-1)*each + r.prog.CommBytes(s, in, last)
			c := Comm{Op: n.Op.String(), Phase: ir.Phase(phase).String(), Ranks: 2, Runs: runs, Single: each, Bytes: bytes}
			switch attr := n.Attr.(type) {
			case ir.CommAttr:
				c.Axis, c.Ranks = attr.Axis, r.prog.Mesh.Size(attr.Axis)
				if !in.Fused {
					total.Collectives += runs
				}
				total.CollectiveBytes += bytes
			case ir.P2PAttr:
				c.Peer = &attr.Stage
				total.Transfers += runs
				total.TransferBytes += bytes
			default:
				c.Host, c.Ranks = true, 1
				total.HostCopies += runs
				total.HostBytes += bytes
			}
			v, out := n.Args[0], n.Results[0]
			c.Of = v.Type.String()
			c.From, c.To = v.Spec.Format(r.prog.Mesh, len(v.Type.Shape)), out.Spec.Format(r.prog.Mesh, len(out.Type.Shape))
			k := key{class(n.Name), c.Op, c.Phase, c.From, c.To + fmt.Sprint(c.Of, each, bytes)}
			row, seen := at[k]
			if !seen {
				row = len(rows)
				at[k] = row
				rows, names = append(rows, c), append(names, nil)
			} else {
				rows[row].Runs += runs
				rows[row].Bytes += bytes
			}
			names[row] = append(names[row], n.Name)
		}
	}
	for i := range rows {
		rows[i].Name = st.merged(names[i])
	}
	return rows, total
}

// microBatches returns the first task of a phase of a chunk and how many a rank
// runs.
func microBatches(s *codegen.Schedule, phase ir.Phase, chunk int) (first codegen.Task, runs int) {
	for _, t := range s.Tasks {
		if t.Phase == phase && t.Chunk == chunk {
			if runs == 0 || t.MicroBatch < first.MicroBatch {
				first = t
			}
			runs++
		}
	}
	return first, runs
}

func communicates(op ir.Op) bool {
	return codegen.Collective(op) || op == ir.OpSend || op == ir.OpRecv || codegen.HostCopy(op)
}
