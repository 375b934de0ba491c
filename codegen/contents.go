package codegen

import (
	"fmt"

	"github.com/autopar/autopar/ir"
)

// memory is what the buffers of one stage hold on a rank, during a proof of equivalence.
type memory struct {
	cells [][]content // by buffer, and by slot or inbox where it is in one
	near  [][]int     // by buffer: other buffers that share memory with it, see [Stage.near]
}

// cell returns what a buffer holds in one of its slots.
func (m *memory) cell(buffer, slot, slots int) *content {
	if m.cells[buffer] == nil {
		m.cells[buffer] = make([]content, slots)
	}
	return &m.cells[buffer][slot]
}

// microBatchOf returns the micro-batch that a task runs, or once for the update.
func microBatchOf(t Task) int {
	if t.Phase == ir.Update {
		return once
	}
	return t.MicroBatch
}

// content is what a buffer holds.
type content struct {
	expr *expr
	typ  ir.Type
	spec ir.ShardSpec
	// microBatch is the one that the value was computed from, or once.
	microBatch int
	task       int    // index of the task that wrote it
	terms      []term // instead of expr: a sum over micro-batches that is being accumulated
	// made is the number of parts that exist, of a value that is being made in parts; 0 means all.
	made int
}

// once stands for a value that is the same in every micro-batch.
const once = -1

// term is one summand of a sum over micro-batches.
type term struct {
	expr *expr
	spec ir.ShardSpec
	seen []bool // by micro-batch: whether it has been added
}

// cell returns the contents of a buffer in a task.
func (e *equivalence) cell(c *class, t Task, buffer int) (*content, error) {
	st := e.code(c.Schedule, t)
	m := c.memory[st]
	if buffer < 0 || buffer >= len(st.Buffers) {
		return nil, fmt.Errorf("names buffer b%d of %d", buffer, len(st.Buffers))
	}
	b := &st.Buffers[buffer]
	if !b.Region.InFlight() {
		return m.cell(buffer, 0, 1), nil
	}
	if t.Chunk < 0 || t.Chunk >= len(st.Chunks) || b.Chunk != t.Chunk {
		return nil, fmt.Errorf("names buffer b%d of chunk %d in chunk %d", buffer, b.Chunk, t.Chunk)
	}
	slots := st.Chunks[b.Chunk].Slots
	if b.Region == Inbox {
		slots = st.Chunks[b.Chunk].Inboxes
	}
	if slots < 1 || t.MicroBatch < 0 {
		return nil, fmt.Errorf("runs micro-batch %d in %d slots", t.MicroBatch, slots)
	}
	if t.Phase == ir.Update && c.MicroBatches > 1 {
		return nil, fmt.Errorf("names buffer b%d, of the slot of one of %d micro-batches", buffer, c.MicroBatches)
	}
	return m.cell(buffer, t.MicroBatch%slots, slots), nil
}

// read returns the contents of an operand, after checking that they are complete, of the right type, placement
// and micro-batch.
func (e *equivalence) read(c *class, t Task, in *Instr, v *ir.Value, buffer int) (*content, error) {
	n := in.Node
	held, err := e.cell(c, t, buffer)
	if err != nil {
		return nil, e.fail(c, t, n, v, "%v", err)
	}
	if e.code(c.Schedule, t).Buffers[buffer].Region == Temp && held.task != c.at.task {
		held = &content{}
	}
	if held.expr == nil && held.terms == nil {
		return nil, e.fail(c, t, n, v, "is read from b%d before anything is written there", buffer)
	}
	if held, err = e.total(c, held); err != nil {
		return nil, e.fail(c, t, n, v, "%v", err)
	}
	if held.made > 0 && !(in.Part < held.made && in.Parts > 0 && sequenceWise(e.prog.Mesh, v)) {
		return nil, e.fail(c, t, n, v, "is read from b%d, which holds the first %d parts of it", buffer, held.made)
	}
	if !held.typ.Equal(v.Type) {
		return nil, e.fail(c, t, n, v, "is read as %s from b%d, which holds %s, %s", v.Type, buffer, held.expr.name, held.typ)
	}
	if held.spec != v.Spec {
		rank := len(v.Type.Shape)
		return nil, e.fail(c, t, n, v, "is read as placed %s from b%d, which holds %s placed %s",
			v.Spec.Format(e.prog.Mesh, rank), buffer, held.expr.name, held.spec.Format(e.prog.Mesh, rank))
	}
	if held.microBatch != once && (t.Phase == ir.Update || held.microBatch != t.MicroBatch) {
		return nil, e.fail(c, t, n, v, "is read from b%d, which holds that of micro-batch %d", buffer, held.microBatch)
	}
	return held, nil
}

// total turns an accumulated sum into a value. All micro-batches must have been added.
func (e *equivalence) total(c *class, held *content) (*content, error) {
	if held.terms == nil {
		return held, nil
	}
	var exprs []*expr
	for _, x := range held.terms {
		if x.spec != held.terms[0].spec {
			return nil, fmt.Errorf("is the sum of %s and %s, which lie differently", held.terms[0].expr.name, x.expr.name)
		}
		for mb := range c.MicroBatches {
			if !x.seen[mb] {
				return nil, fmt.Errorf("is read before %s of micro-batch %d is added to it", x.expr.name, mb)
			}
		}
		exprs = append(exprs, x.expr)
	}
	sum := e.exprs.sum(exprs, held.terms[0].expr.name)
	if !sum.known && sum.made.rank < 0 {
		sum.made = held.terms[0].expr.made
		if sum.made.rank < 0 {
			sum.made = site{rank: c.Rank, stage: c.Stage, instr: held.terms[0].expr.name}
		}
	}
	return &content{expr: sum, typ: held.typ, spec: held.terms[0].spec, microBatch: once, task: held.task}, nil
}

// write stores or accumulates result i of an instruction.
func (e *equivalence) write(c *class, t Task, in *Instr, i int, v *ir.Value, x *expr) error {
	n, buffer := in.Node, in.Results[i]
	cell, err := e.cell(c, t, buffer)
	if err != nil {
		return e.fail(c, t, n, v, "%v", err)
	}
	now := content{expr: x, typ: v.Type, spec: v.Spec, microBatch: once, task: c.at.task}
	if e.timeAt >= 0 && v.Spec[e.timeAt].Kind != ir.Replicate {
		now.microBatch = t.MicroBatch
	}
	for _, other := range c.memory[e.code(c.Schedule, t)].near[buffer] {
		if in.Idle() {
			break
		}
		lost, err := e.cell(c, t, other)
		if err != nil {
			return e.fail(c, t, n, v, "%v", err)
		}
		*lost = content{}
	}
	if n.Op != ir.OpAccumulate && in.Accum[i] == Overwrite {
		if in.Part > 0 && (cell.made != in.Part || cell.expr != x || cell.task != now.task || cell.microBatch != now.microBatch) {
			return e.fail(c, t, n, v, "is part %d of what b%d does not hold the %d before of", in.Part, buffer, in.Part)
		}
		if in.Part+1 < in.Parts {
			now.made = in.Part + 1
		}
		*cell = now
		return nil
	}
	if in.Parts > 0 {
		return e.fail(c, t, n, v, "is added to b%d in parts", buffer)
	}
	if in.Accum[i] == Always && cell.terms == nil && cell.expr != nil { // a sum that a pass makes
		if cell.task != now.task || cell.microBatch != now.microBatch || cell.spec != now.spec || !cell.typ.Equal(now.typ) || cell.made > 0 {
			return e.fail(c, t, n, v, "is added to b%d, which holds %s", buffer, cell.expr.name)
		}
		cell.expr = e.exprs.sum([]*expr{cell.expr, x}, cell.expr.name)
		return nil
	}
	if t.MicroBatch < 0 || t.MicroBatch >= c.MicroBatches || t.Phase == ir.Update {
		return e.fail(c, t, n, v, "is added to b%d in no micro-batch of the rank's %d", buffer, c.MicroBatches)
	}
	if n.Op != ir.OpAccumulate {
		if p := v.Spec[e.timeAt]; p != ir.PartialOf(ir.Sum) {
			return e.fail(c, t, n, v, "is added to b%d, but is %s over micro-batches", buffer, p)
		}
		now.spec[e.timeAt] = ir.Placement{}
	}
	adds := in.Accum[i] == Always || in.Accum[i] == AfterFirst && t.MicroBatch > 0
	if !adds {
		*cell = content{typ: v.Type, task: c.at.task}
	} else if cell.terms == nil {
		return e.fail(c, t, n, v, "is added to b%d, which holds no sum", buffer)
	}
	for k := range cell.terms {
		if cell.terms[k].expr == x && cell.terms[k].spec == now.spec {
			if cell.terms[k].seen[t.MicroBatch] {
				return e.fail(c, t, n, v, "is added to b%d twice", buffer)
			}
			cell.terms[k].seen[t.MicroBatch] = true
			return nil
		}
	}
	seen := make([]bool, c.MicroBatches)
	seen[t.MicroBatch] = true
	cell.terms = append(cell.terms, term{x, now.spec, seen})
	return nil
}
