package codegen

import (
	"fmt"
	"slices"

	"github.com/autopar/autopar/ir"
)

// CheckError says why a program is unsound. Rank is -1 if it concerns every rank of the stage.
type CheckError struct {
	Rank, Stage int
	Instr       string // the instruction's structural name, or ""
	Value       string // the value concerned, or ""
	Msg         string
}

func (e *CheckError) Error() string {
	who := fmt.Sprintf("stage %d", e.Stage)
	if e.Rank >= 0 {
		who = fmt.Sprintf("rank %d (stage %d)", e.Rank, e.Stage)
	}
	text := "program: " + who
	if e.Instr != "" {
		text += ": " + e.Instr
	}
	if e.Value != "" {
		text += ": value " + e.Value
	}
	return text + ": " + e.Msg
}

// Check proves that a program is sound before it runs:
//
//   - Every value is placed by a legal rule of its op, so that each operand is placed as its consumer needs.
//   - Every node of the graph runs once per task, on exactly the values it names. Nothing is read before it is
//     written, or after all or part of it is overwritten; live buffers do not overlap; views lie where their
//     part of the whole lies, on every rank; what no instruction writes is loaded by the runtime; and messages
//     arrive in memory that is free.
//   - Gradients of all micro-batches are added before they are reduced.
//   - Nothing touches what the communication stream may still be using.
//   - Every rank runs each micro-batch through each of its chunks once forward, then once backward, then once
//     for weight gradients if they have a pass of their own, in a slot that is free.
//   - All members enter collectives in the same order, every send meets its receive, and no cycle of waits
//     exists.
//
// The error is a [CheckError].
func Check(p *Program) error {
	if err := p.Graph.Verify(); err != nil {
		return err
	}
	for _, s := range p.Stages {
		if err := checkLayout(s); err != nil {
			return err
		}
		if err := checkLeaves(p, s); err != nil {
			return err
		}
		if err := checkViews(p, s); err != nil {
			return err
		}
		if err := checkCode(p, s); err != nil {
			return err
		}
		if err := checkStreams(p.Mesh, s); err != nil {
			return err
		}
	}
	last := Releases(p.Plan, p.Training())
	for i := range p.Schedules {
		if err := checkTasks(p, &p.Schedules[i], last); err != nil {
			return err
		}
	}
	return checkProgress(p)
}

// checkLayout makes sure that buffers lie within their region and do not overlap while both are live. (That
// they are large enough for every value is checked by checkCode.)
func checkLayout(s *Stage) error {
	if len(s.Chunks) == 0 {
		return &CheckError{Rank: -1, Stage: s.Index, Msg: "has no chunk"}
	}
	limit := func(b *Buffer) int64 {
		switch b.Region {
		case Slot:
			return s.Chunks[b.Chunk].Slot
		case Inbox:
			return s.Chunks[b.Chunk].Inbox
		case Temp:
			return s.Temp
		case Host:
			return s.Host
		}
		return s.Persist
	}
	used := map[int]bool{}
	for _, body := range s.Bodies {
		for _, in := range body.Instrs {
			for _, id := range slices.Concat(in.Args, in.Results) {
				if id < 0 || id >= len(s.Buffers) {
					return &CheckError{Rank: -1, Stage: s.Index, Instr: in.Node.Name, Msg: fmt.Sprintf("names buffer b%d of %d", id, len(s.Buffers))}
				}
				used[id] = true
			}
		}
	}
	var live []int
	for id := range s.Buffers {
		b := &s.Buffers[id]
		if b.View || !used[id] && b.Value.Def.Op.Class() != ir.Leaf {
			continue // it has no bytes of its own: see checkViews
		}
		if b.Region.InFlight() && (b.Chunk < 0 || b.Chunk >= len(s.Chunks)) {
			return &CheckError{Rank: -1, Stage: s.Index, Value: b.Value.Name(), Msg: fmt.Sprintf("b%d is in the %s of chunk %d of %d", id, b.Region, b.Chunk, len(s.Chunks))}
		}
		if b.Offset < 0 || b.Offset%align != 0 || b.Offset+b.Size > limit(b) {
			return &CheckError{Rank: -1, Stage: s.Index, Value: b.Value.Name(),
				Msg: fmt.Sprintf("buffer b%d at %d+%d does not fit the %s region of %d bytes", id, b.Offset, b.Size, b.Region, limit(b))}
		}
		live = append(live, id)
	}
	for i, x := range live {
		for _, y := range live[:i] {
			a, b := &s.Buffers[x], &s.Buffers[y]
			if a.Region != b.Region || a.Region == Temp && a.Body != b.Body ||
				a.Region.InFlight() && a.Chunk != b.Chunk || a.Size == 0 || b.Size == 0 ||
				a.Offset >= b.Offset+b.Size || b.Offset >= a.Offset+a.Size {
				continue
			}
			if a.Region == Persist || a.Region == Host || a.To >= b.From && b.To >= a.From {
				return &CheckError{Rank: -1, Stage: s.Index, Value: a.Value.Name(),
					Msg: fmt.Sprintf("buffers b%d and b%d (%s) overlap while both are live", x, y, b.Value.Name())}
			}
		}
	}
	return nil
}

// code tracks what a stage's buffers hold through one micro-batch and the update.
type code struct {
	prog    *Program
	stage   *Stage
	holds   map[int]*ir.Value       // by buffer: the value that it holds now
	torn    map[int]*ir.Node        // by buffer without a value: the node that overwrote part of it
	made    map[int]int             // by buffer: the number of parts that exist, of a value that is being made in parts
	near    [][]int                 // by buffer: others that share memory with it
	writers map[int][]Instr         // by buffer: the instructions that accumulate into it, in order
	same    map[*ir.Value]*ir.Value // results of folded sums: the operand that completes them; see canon
	terms   map[*ir.Value]bool      // values that kernels add into an accumulator themselves
	sums    map[*ir.Value]*ir.Node  // values that kernels add into a sum of their pass themselves: that sum
	added   map[*ir.Node]int        // of such a sum, how many terms a buffer has
}

// checkCode executes the bodies of a stage once, over names of values instead of numbers.
func checkCode(p *Program, s *Stage) error {
	c := &code{
		prog: p, stage: s, holds: map[int]*ir.Value{}, torn: map[int]*ir.Node{}, made: map[int]int{}, near: s.near(),
		writers: map[int][]Instr{}, same: map[*ir.Value]*ir.Value{}, terms: map[*ir.Value]bool{},
		sums: map[*ir.Value]*ir.Node{}, added: map[*ir.Node]int{},
	}
	if err := c.checkRuns(); err != nil {
		return err
	}
	loaded, err := s.loaded()
	if err != nil {
		return err
	}
	for _, id := range loaded {
		c.holds[id] = s.Buffers[id].Value
	}
	if err := c.checkBodies(); err != nil {
		return err
	}
	for _, u := range p.Graph.Updates {
		if u.Param.Def.Stage != s.Index { // the Stage of a parameter is its position
			continue
		}
		for id, b := range s.Buffers {
			if b.Value == u.Param && c.holds[id] != c.canon(u.New) {
				return c.fail(u.New.Def, u.New, "never reaches the buffer of %s", u.Param.Name())
			}
		}
	}
	return nil
}

// checkRuns makes sure that the bodies run every node of the stage once per task, except leaves and folded sums,
// and records which sums are folded.
func (c *code) checkRuns() error {
	p, s := c.prog, c.stage
	runs := map[*ir.Node][]*Instr{}
	order, next := map[*ir.Node]int{}, 0 // index of the last instruction of each node
	for _, body := range s.Bodies {
		for at, in := range body.Instrs {
			order[in.Node], next = next, next+1
			runs[in.Node] = append(runs[in.Node], &body.Instrs[at])
			for i, mode := range in.Accum {
				if mode != Overwrite {
					c.writers[in.Results[i]] = append(c.writers[in.Results[i]], in)
				}
			}
		}
	}
	for _, n := range p.Graph.Nodes {
		if position, _ := p.Plan.Position(n.Stage); position != s.Index {
			continue
		}
		want := 1
		switch {
		case n.Op == ir.OpInput && len(runs[n]) == 0:
			continue // loaded before the step
		case n.Op == ir.OpInput:
		case n.Op.Class() == ir.Leaf:
			want = 0
		case len(runs[n]) == 0 && (n.Op == ir.OpAccumulate || n.Op == ir.OpAddN):
			// It is folded into the kernels that make its operands, provided that those add (see accum).
			want = 0
			last := c.canon(n.Args[0]) // the operand that completes the sum
			for _, a := range n.Args {
				if a = c.canon(a); order[a.Def] > order[last.Def] {
					last = a
				}
				c.terms[a] = c.terms[a] || n.Op == ir.OpAccumulate
				if n.Op == ir.OpAddN && n.Phase != ir.Update {
					c.sums[a] = n
				}
			}
			c.same[n.Results[0]] = last
		}
		switch got := len(runs[n]); {
		case want == 1 && got > 0:
			if err := c.checkParts(n, runs[n]); err != nil {
				return err
			}
		case got != want:
			return c.fail(n, nil, "runs %d times per task, want %d", got, want)
		}
	}
	for id, all := range c.writers { // those of a pass's sum leave its buffer to others
		c.writers[id] = slices.DeleteFunc(all, func(in Instr) bool {
			return slices.ContainsFunc(in.Node.Results, func(r *ir.Value) bool { return c.sums[r] != nil })
		})
	}
	return nil
}

// checkBodies executes the bodies, and makes sure that each instruction is in the body of its phase and chunk.
func (c *code) checkBodies() error {
	for phase, body := range c.stage.Bodies {
		chunks := make([]int, len(c.stage.Chunks)) // by chunk: instructions seen so far
		for i, in := range body.Instrs {
			if in.Node.Phase != ir.Phase(phase) && !in.Last {
				return c.fail(in.Node, nil, "belongs to the %s body, stands in the %s body", in.Node.Phase, ir.Phase(phase))
			}
			switch _, chunk := c.prog.Plan.Position(in.Node.Stage); {
			case chunk != in.Chunk && !in.Last || in.Chunk < 0 || in.Chunk >= len(chunks): // what a step does once belongs to the position, not to a chunk
				return c.fail(in.Node, nil, "belongs to chunk %d, stands in chunk %d", chunk, in.Chunk)
			case i > 0 && body.Instrs[i-1].Chunk != in.Chunk && chunks[in.Chunk] > 0:
				return c.fail(in.Node, nil, "stands apart from the rest of chunk %d", in.Chunk)
			default:
				chunks[in.Chunk]++
			}
			if err := c.step(in); err != nil {
				return err
			}
		}
	}
	return nil
}

// canon returns the value that a buffer holds for v: for a folded sum the operand that completes it, else v.
func (c *code) canon(v *ir.Value) *ir.Value {
	if w, ok := c.same[v]; ok {
		return w
	}
	return v
}

func (c *code) fail(n *ir.Node, v *ir.Value, format string, args ...any) error {
	e := &CheckError{Rank: -1, Stage: c.stage.Index, Instr: n.Name, Msg: fmt.Sprintf(format, args...)}
	if v != nil {
		e.Value = v.Name()
	}
	return e
}

// step checks one instruction against what the buffers hold, and records what it writes.
func (c *code) step(in Instr) error {
	n := in.Node
	if n.Op != ir.OpRecv {
		if len(in.Args) != len(n.Args) {
			return c.fail(n, nil, "has %d operands, its node has %d", len(in.Args), len(n.Args))
		}
		for i, a := range n.Args {
			if err := c.inItsSpace(n, a, in.Args[i]); err != nil {
				return err
			}
			switch held := c.holds[in.Args[i]]; {
			case held == nil && c.torn[in.Args[i]] != nil:
				return c.fail(n, a, "operand %d is read from b%d, of which %s has overwritten some", i, in.Args[i], c.torn[in.Args[i]].Name)
			case held == nil:
				return c.fail(n, a, "operand %d is read from b%d before anything is written there", i, in.Args[i])
			case held != c.canon(a):
				return c.fail(n, a, "operand %d is read from b%d, which holds %s by then", i, in.Args[i], held.Name())
			case c.made[in.Args[i]] > 0 && !(in.Part < c.made[in.Args[i]] && in.Parts > 0 && sequenceWise(c.prog.Mesh, a)):
				return c.fail(n, a, "operand %d is read from b%d, which holds the first %d parts of it by then", i, in.Args[i], c.made[in.Args[i]])
			}
		}
	}
	if n.Op == ir.OpSend {
		return nil
	}
	if len(in.Results) != len(n.Results) || len(in.Accum) != len(n.Results) {
		return c.fail(n, nil, "has %d results, its node has %d", len(in.Results), len(n.Results))
	}
	if err := c.aliases(in); err != nil {
		return err
	}
	for i, r := range n.Results {
		id := in.Results[i]
		if err := c.inItsSpace(n, r, id); err != nil {
			return err
		}
		if b := &c.stage.Buffers[id]; b.Region.InFlight() && b.Chunk != in.Chunk {
			return c.fail(n, r, "is written to b%d in the %s of chunk %d", id, b.Region, b.Chunk)
		}
		slab := c.prog.Slab(r, ir.Coord{})
		if need := slab.Elems() * r.Type.DType.Size(); need > c.stage.Buffers[id].Size {
			return c.fail(n, r, "needs %d bytes, b%d has %d", need, id, c.stage.Buffers[id].Size)
		}
		if err := c.accum(in, i, c.writers[id]); err != nil {
			return err
		}
		c.holds[id] = c.canon(r)
		if delete(c.made, id); in.Part+1 < in.Parts {
			c.made[id] = in.Part + 1
		}
		for _, other := range c.near[id] {
			if !in.Idle() {
				c.holds[other], c.torn[other] = nil, n
			}
		}
	}
	return nil
}

// inItsSpace checks that a buffer is in the memory, of device or host, where the graph has the value.
func (c *code) inItsSpace(n *ir.Node, v *ir.Value, id int) error {
	if region := c.stage.Buffers[id].Region; (region == Host) != v.OnHost() {
		return c.fail(n, v, "is in b%d of the %s region", id, region)
	}
	return nil
}

// accum checks the accumulation mode of a result: a value summed over micro-batches is added up, the first of
// several terms of one sum overwrites, and nothing else adds.
func (c *code) accum(in Instr, i int, writers []Instr) error {
	n, r := in.Node, in.Results[i]
	v := n.Results[i]
	if sum := c.sums[v]; sum != nil {
		return c.addsTo(sum, in, i)
	}
	summed := n.Op == ir.OpAccumulate || c.terms[v]
	first := len(writers) > 0 && writers[0].Node == n
	want := Overwrite
	switch {
	case n.Phase == ir.Update: // it reads the complete sum
	case summed && first:
		want = AfterFirst
	case summed:
		want = Always
	case len(writers) > 0:
		return c.fail(n, v, "writes b%d, where %s is summed", r, writers[0].Node.Name)
	}
	if in.Accum[i] != want {
		return c.fail(n, v, "writes b%d with mode %q of %d terms, want %s", r, in.Accum[i], len(writers), [...]string{"to overwrite", "to add after the first micro-batch", "to add"}[want])
	}
	return nil
}

// addsTo checks the mode of a term of a sum that a pass makes: the first to run overwrites, the others add to what
// those before have left, and all have been added when the one that completes the sum has run.
func (c *code) addsTo(sum *ir.Node, in Instr, i int) error {
	v, id := in.Node.Results[i], in.Results[i]
	want := Overwrite
	if held := c.holds[id]; held != nil && c.sums[held] == sum && c.added[sum] > 0 {
		want = Always
	} else {
		c.added[sum] = 0
	}
	if in.Accum[i] != want {
		return c.fail(in.Node, v, "writes b%d, which has %d terms of %s, with mode %q", id, c.added[sum], sum.Name, in.Accum[i])
	}
	if c.added[sum]++; c.canon(sum.Results[0]) == v && c.added[sum] != len(sum.Args) {
		return c.fail(in.Node, v, "completes %s in b%d with %d of its %d terms", sum.Name, id, c.added[sum], len(sum.Args))
	}
	return nil
}

// checkTasks makes sure that a rank runs every micro-batch once through each pass of each chunk, in order, and
// in a slot that an earlier micro-batch has freed by its last pass.
func checkTasks(p *Program, s *Schedule, last ir.Phase) error {
	st := p.Stages[s.Stage]
	fail := func(t Task, format string, args ...any) error {
		return &CheckError{Rank: s.Rank, Stage: s.Stage, Instr: t.String(), Msg: fmt.Sprintf(format, args...)}
	}
	done := make([][ir.Update]int, len(st.Chunks)) // by chunk and phase: the number of micro-batches that have passed
	for i, t := range s.Tasks {
		if t.Phase == ir.Update {
			if i != len(s.Tasks)-1 {
				return fail(t, "is not last")
			}
			break
		}
		if t.Phase > last || t.Chunk < 0 || t.Chunk >= len(st.Chunks) {
			return fail(t, "has no instructions in %d chunks", len(st.Chunks))
		}
		c, chunk := &done[t.Chunk], &st.Chunks[t.Chunk]
		if t.MicroBatch != c[t.Phase] {
			return fail(t, "comes %dth", c[t.Phase])
		}
		if t.Phase == ir.Forward {
			if old := t.MicroBatch - chunk.Slots; last != ir.Forward && old >= c[last] {
				return fail(t, "takes slot %d of %d, which micro-batch %d still needs", t.MicroBatch%chunk.Slots, chunk.Slots, old)
			}
		} else if before := t.Phase - 1; t.MicroBatch >= c[before] {
			return fail(t, "does not follow its %s pass", before)
		}
		c[t.Phase]++
	}
	for chunk := range done {
		for phase := range last + 1 {
			if n := done[chunk][phase]; n != s.MicroBatches {
				return fail(Task{Phase: ir.Update}, "follows %d %s passes of %d micro-batches through chunk %d", n, phase, s.MicroBatches, chunk)
			}
		}
	}
	if n := len(s.Tasks); n == 0 || s.Tasks[n-1].Phase != ir.Update {
		return fail(Task{Phase: ir.Update}, "is missing")
	}
	return nil
}
