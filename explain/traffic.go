package explain

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/planner/cost"
)

// This file counts what ranks communicate in a step, by instruction, with codegen's CommBytes: the same
// function that the runtime counts with. [Of] calls it.

func (t Traffic) bytes() int64 { return t.CollectiveBytes + t.TransferBytes + t.HostBytes }

// exchange is an instruction that communicates, with all of its runs in a step of a rank.
type exchange struct {
	node      *ir.Node
	in        *codegen.Instr
	tasks     []codegen.Task // those that run it, without what is as the first: see unlike
	phase     ir.Phase
	fused     bool // it is part of a bucket, counted with the bucket's first collective
	runs      int
	each, all int64 // bytes of the first run, and of all
}

// exchanges calls visit for everything that one rank communicates in a step.
func (r *Report) exchanges(s *codegen.Schedule, visit func(exchange)) {
	for phase, body := range r.prog.Stages[s.Stage].Bodies {
		chunks := make([][]codegen.Task, len(r.prog.Stages[s.Stage].Chunks))
		for chunk := range chunks {
			chunks[chunk] = tasksOf(s, ir.Phase(phase), chunk)
		}
		for i := range body.Instrs {
			in := &body.Instrs[i]
			tasks := chunks[in.Chunk]
			if !communicates(in.Node.Op) || len(tasks) == 0 {
				continue
			}
			if in.Last {
				tasks = tasks[:1]
			}
			x := exchange{node: in.Node, in: in, tasks: r.unlike(tasks), phase: ir.Phase(phase), fused: in.Fused, runs: len(tasks)}
			x.each = r.prog.CommBytes(s, in, tasks[0])
			x.all = int64(x.runs-len(x.tasks)) * x.each
			for _, t := range x.tasks {
				x.all += r.prog.CommBytes(s, in, t)
			}
			visit(x)
		}
	}
}

// unlike returns the first and the last of some tasks: all micro-batches have the size of the first, except that the last may
// be smaller. If the batch is in shares, it returns all.
func (r *Report) unlike(tasks []codegen.Task) []codegen.Task {
	if len(r.prog.Plan.BatchShares) == 0 {
		return []codegen.Task{tasks[0], tasks[len(tasks)-1]}
	}
	return tasks
}

// countTraffic counts what every rank communicates in a step. It counts only one of several ranks that communicate the
// same number of bytes: ranks of one position of the pipeline whose values all axes cut to equal sizes, and whose shares
// of every all_reduce are equally large.
func (r *Report) countTraffic() {
	type place struct {
		position int
		coord    ir.Coord
	}
	canonical := cost.Canonical(r.prog)
	uneven := map[place][]reduced{}
	alike := map[string]Traffic{}
	r.Traffic = make([]Traffic, len(r.prog.Schedules))
	for i := range r.prog.Schedules {
		s := &r.prog.Schedules[i]
		at := place{s.Stage, canonical(s.Coord)}
		reduces, seen := uneven[at]
		if !seen {
			reduces = r.unevenReduces(s)
			uneven[at] = reduces
		}
		shares := fmt.Append(nil, at)
		for _, x := range reduces {
			shares = append(shares, ' ')
			shares = strconv.AppendInt(shares, int64(codegen.ReduceShare(x.elems, r.prog.Mesh.Axes[x.axis].Size, s.Coord[x.axis]).Len), 10)
		}
		total, counted := alike[string(shares)]
		if !counted {
			total = r.traffic(s)
			alike[string(shares)] = total
		}
		total.Rank = i
		r.Traffic[i] = total
	}
}

// reduced is an all_reduce of a number of elements along an axis.
type reduced struct{ axis, elems int }

// unevenReduces lists the all_reduces of a rank whose elements do not divide evenly among the members.
func (r *Report) unevenReduces(s *codegen.Schedule) []reduced {
	var all []reduced
	r.exchanges(s, func(x exchange) {
		attr, ok := x.node.Attr.(ir.CommAttr)
		if !ok || x.node.Op != ir.OpAllReduce {
			return
		}
		axis := r.prog.Mesh.Axis(attr.Axis)
		for _, t := range x.tasks {
			n := reduced{axis, int(x.in.Slab(r.prog.Mesh, x.node.Results[0], r.prog.At(s, t)).Elems())}
			if n.elems%r.prog.Mesh.Axes[axis].Size != 0 && !slices.Contains(all, n) {
				all = append(all, n)
			}
		}
	})
	return all
}

// traffic counts what one rank communicates in a step, as the runtime does.
func (r *Report) traffic(s *codegen.Schedule) Traffic {
	total := Traffic{Rank: s.Rank}
	r.exchanges(s, func(x exchange) {
		switch x.node.Attr.(type) {
		case ir.CommAttr:
			if !x.fused {
				total.Collectives += x.runs
			}
			total.CollectiveBytes += x.all
		case ir.P2PAttr:
			total.Transfers += x.runs
			total.TransferBytes += x.all
		default:
			total.HostCopies += x.runs
			total.HostBytes += x.all
		}
	})
	return total
}

// communication lists what one rank of a stage communicates in a step. What differs in its block alone shares a row.
func (r *Report) communication(st *Stage, s *codegen.Schedule) []Comm {
	type key struct{ name, op, phase, from, to string }
	at := map[key]int{}
	var rows []Comm
	var names [][]string
	r.exchanges(s, func(x exchange) {
		n := x.node
		c := Comm{Op: n.Op.String(), Phase: x.phase.String(), Ranks: 2, Runs: x.runs, Single: x.each, Bytes: x.all}
		switch attr := n.Attr.(type) {
		case ir.CommAttr:
			c.Axis, c.Ranks = attr.Axis, r.prog.Mesh.Size(attr.Axis)
		case ir.P2PAttr:
			peer, _ := r.prog.Plan.Position(attr.Stage)
			c.Peer = &peer
		default:
			c.Host, c.Ranks = true, 1
		}
		v, out := n.Args[0], n.Results[0]
		c.Of = v.Type.String()
		c.From, c.To = v.Spec.Format(r.prog.Mesh, len(v.Type.Shape)), out.Spec.Format(r.prog.Mesh, len(out.Type.Shape))
		k := key{class(n.Name), c.Op, c.Phase, c.From, c.To + fmt.Sprint(c.Of, x.each, x.all)}
		row, seen := at[k]
		if !seen {
			row = len(rows)
			at[k] = row
			rows, names = append(rows, c), append(names, nil)
		} else {
			rows[row].Runs += x.runs
			rows[row].Bytes += x.all
		}
		if !slices.Contains(names[row], n.Name) { // a collective in parts is several instructions of one name
			names[row] = append(names[row], n.Name)
		}
	})
	for i := range rows {
		rows[i].Name = st.merged(names[i])
	}
	return rows
}

// tasksOf lists the tasks of a phase and chunk that a rank runs, by micro-batch.
func tasksOf(s *codegen.Schedule, phase ir.Phase, chunk int) []codegen.Task {
	var tasks []codegen.Task
	for _, t := range s.Tasks {
		if t.Phase == phase && t.Chunk == chunk {
			tasks = append(tasks, t)
		}
	}
	slices.SortFunc(tasks, func(a, b codegen.Task) int { return cmp.Compare(a.MicroBatch, b.MicroBatch) })
	return tasks
}

// communicates reports whether an op moves bytes between ranks, or between a device and host memory.
func communicates(op ir.Op) bool {
	return codegen.Collective(op) || op == ir.OpSend || op == ir.OpRecv || codegen.HostCopy(op)
}
