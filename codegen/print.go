package codegen

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/autopar/autopar/ir"
)

// Fprint writes the program of one rank: its stage's memory, then every
// instruction of every task in the order in which the rank runs them.
//
//	rank 0  stage 0  dp=0 tp=0  2 micro-batches  arena 266560 bytes
//	  012 comm     all_reduce     b7 <- b7         fwd mb=0  h.0.attn.c_proj/matmul@all_reduce_tp  group=0,1
func (p *Program) Fprint(w io.Writer, rank int) error {
	out := bufio.NewWriter(w)
	s := &p.Schedules[rank]
	st := p.Stages[s.Stage]
	fmt.Fprintf(out, "rank %d  stage %d ", rank, s.Stage)
	for i, a := range p.Mesh.Axes {
		if !a.Time {
			fmt.Fprintf(out, " %s=%d", a.Name, s.Coord[i])
		}
	}
	fmt.Fprintf(out, "  %d micro-batches  arena %d bytes (persist %d", s.MicroBatches, st.Arena(), st.Persist)
	for _, c := range st.Chunks {
		fmt.Fprintf(out, " + %d slots of %d", c.Slots, c.Slot)
		if c.Inbox > 0 {
			fmt.Fprintf(out, " + %d inboxes of %d", c.Inboxes, c.Inbox)
		}
	}
	fmt.Fprintf(out, " + temp %d)", st.Temp)
	if st.Host > 0 {
		fmt.Fprintf(out, "  host %d bytes", st.Host)
	}
	fmt.Fprintln(out)
	for id, b := range st.Buffers {
		place := fmt.Sprintf("%s+%d", b.Region, b.Offset)
		if b.View {
			place = fmt.Sprintf("%s in b%d", b.Region, b.Of)
		}
		fmt.Fprintf(out, "  b%d  %s  %d bytes  %s %s\n", id, place, b.Size, b.Value.Name(), b.Value.Type)
	}
	at := 0
	for _, task := range s.Tasks {
		for _, in := range st.Run(task) {
			if !s.Runs(&in, task) {
				continue
			}
			fmt.Fprintf(out, "  %03d %s\n", at, p.instrText(s, task, in))
			at++
		}
	}
	return out.Flush()
}

func (p *Program) instrText(s *Schedule, task Task, in Instr) string {
	kind := "compute"
	where := ""
	switch op := in.Node.Op; {
	case op == ir.OpInput:
		kind = "feed"
	case HostCopy(op):
		kind = "comm"
	case op == ir.OpSend || op == ir.OpRecv:
		kind = "comm"
		where = fmt.Sprintf("  peer=%d", p.Peer(s, in.Node))
	case Collective(op):
		kind = "comm"
		group, _ := p.Group(s, in.Node)
		where = "  group=" + strings.Trim(strings.ReplaceAll(fmt.Sprint(group), " ", ","), "[]")
	case op.Class() == ir.Comm:
		kind = "local"
	}
	if in.InPlace {
		where += "  in place"
	}
	if in.Async {
		where += "  async"
	}
	if in.Posted {
		where += "  posted"
	}
	if in.Fused {
		where += " with the last"
	}
	if in.Beside > 0 {
		where += fmt.Sprintf("  beside the next %d", in.Beside)
	}
	if in.Parts > 0 {
		where += fmt.Sprintf("  part %d of %d", in.Part, in.Parts)
	}
	if in.Await > 0 {
		where += fmt.Sprintf("  await=%d", in.Await)
	}
	return fmt.Sprintf("%-7s  %-18s %s %s %s  %s  %s%s", kind, in.Node.Op, names(in.Results),
		arrow(in), names(in.Args), task, in.Node.Name, where)
}

func arrow(in Instr) string {
	for _, a := range in.Accum {
		if a != Overwrite {
			return "<+"
		}
	}
	return "<-"
}

func names(buffers []int) string {
	text := make([]string, len(buffers))
	for i, b := range buffers {
		text[i] = fmt.Sprintf("b%d", b)
	}
	return strings.Join(text, " ")
}

// HostCopy reports whether the op copies between the device memory and the host memory of a rank.
func HostCopy(op ir.Op) bool { return op == ir.OpFetch || op == ir.OpStash }

// Collective reports whether the op is a collective of a group of ranks.
func Collective(op ir.Op) bool {
	switch op {
	case ir.OpAllReduce, ir.OpAllGather, ir.OpReduceScatter, ir.OpAllToAll:
		return true
	}
	return false
}
