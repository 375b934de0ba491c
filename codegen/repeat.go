package codegen

import (
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// This file computes the memory of a stage with many blocks, or many chunks, from a compiled one with few. All
// inner blocks of a model are alike, so a block whose neighbours have the same instructions and lifetimes can
// stand for any number of copies of itself. The planner prices large models this way without compiling them.

// Repeat says that a block of a program, given by its number in the graph, stands for itself and More copies
// that follow it.
type Repeat struct{ Block, More int }

// Regions is the memory of a stage, in bytes: see [Stage].
type Regions struct {
	Persist, Durable, Host, Temp int64
	Chunks                       []Chunk
}

// Arena returns the bytes a rank of the stage allocates.
func (r *Regions) Arena() int64 {
	bytes := r.Persist + r.Temp
	for i := range r.Chunks {
		bytes += r.Chunks[i].bytes()
	}
	return bytes
}

// Longer is a stage with more blocks or chunks than have been compiled. It knows the lifetimes of their
// buffers.
type Longer struct {
	tape    *tape
	shared  *tape // of the program whose arenas it uses, nil if it has its own
	repeats []Repeat
}

// Longer repeats blocks of a stage of a program. share is the program whose arenas it uses, nil if it has its
// own; sums is the region of [Sums]: see [SumsOn]. It returns false if a block cannot be repeated, because the
// lifetimes in its neighbours are not those of its own.
func (p *Program) Longer(stage int, sums Region, repeats []Repeat, share *Program) (*Longer, bool) {
	return p.longer(stage, false, sums, repeats, share)
}

// MoreChunks is like [Program.Longer], but repeats a whole chunk of the stage, with all of its blocks, more
// times.
func (p *Program) MoreChunks(stage, chunk, more int, share *Program) (*Longer, bool) {
	return p.longer(stage, true, Persist, []Repeat{{chunk, more}}, share)
}

func (p *Program) longer(stage int, chunks bool, sums Region, repeats []Repeat, share *Program) (*Longer, bool) {
	l := &Longer{tape: newTape(p, stage, chunks, sums), repeats: repeats}
	if share != nil {
		l.shared = newTape(share, stage, chunks, sums)
	}
	// Last block first, so that the numbers of the others stay valid.
	for _, r := range slices.SortedFunc(slices.Values(repeats), func(a, b Repeat) int { return b.Block - a.Block }) {
		if r.More > 0 && l.tape.has(r.Block) && !l.tape.repeat(r.Block, r.More) {
			return nil, false
		}
	}
	return l, true
}

// Regions returns the memory that [Compile] would give the longer stage on a mesh with the axes of the
// program's. Sums lie in the region that Longer was given.
func (l *Longer) Regions(mesh ir.Mesh) Regions { return l.regions(mesh, pack) }

// AtMost returns an upper bound of Regions, without packing buffers.
func (l *Longer) AtMost(mesh ir.Mesh) Regions { return l.regions(mesh, packedAtMost) }

// AtLeast returns a lower bound of Regions, without packing buffers.
func (l *Longer) AtLeast(mesh ir.Mesh) Regions { return l.regions(mesh, packedAtLeast) }

func (l *Longer) regions(mesh ir.Mesh, pack func([]Buffer, []int) int64) Regions {
	r := Regions{Chunks: slices.Clone(l.tape.stage.Chunks)}
	if l.shared != nil {
		var first Regions
		l.shared.keep(mesh, l.repeats, nil, &first)
		r.Persist, r.Durable, r.Host = first.Durable, first.Durable, first.Host
		l.tape.keep(mesh, l.repeats, l.shared.stage, &r)
	} else {
		l.tape.keep(mesh, l.repeats, nil, &r)
	}
	l.tape.pack(mesh, &r, pack)
	if l.tape.chunks {
		like := l.repeats[0]
		r.Chunks = slices.Insert(r.Chunks, like.Block, slices.Repeat(r.Chunks[like.Block:][:1], like.More)...)
	}
	return r
}

// tape describes the bodies of a stage as runs of instructions of one block each, and the lifetimes of its
// buffers in terms of those. With chunks set, each chunk counts as one block.
type tape struct {
	stage   *Stage
	chunks  bool
	sums    Region         // the region of [Sums]
	ordinal map[string]int // numbers of blocks by name
	bodies  [ir.NumPhases][]run
	lives   []life
	// apart has, with chunks set, the lifetimes in slots and inboxes. Each chunk has its own, so they are not
	// repeated.
	apart   []life
	buffers []Buffer // scratch space of pack
}

// run is n consecutive instructions of one block, or of no block if block is negative.
type run struct{ block, n int }

// mark identifies an instruction: number at of a run of a body.
type mark struct {
	body ir.Phase
	run  int
	at   int
}

// life is the lifetime of a buffer: its first and last instruction.
type life struct {
	buffer   int
	from, to mark
}

func (t *tape) block(n *ir.Node) int {
	if i, ok := t.ordinal[n.Block()]; ok {
		return i
	}
	return -1
}

// newTape cuts the bodies of a stage into runs and records the lifetimes.
func newTape(p *Program, stage int, chunks bool, sums Region) *tape {
	t := &tape{stage: p.Stages[stage], chunks: chunks, sums: sums, ordinal: map[string]int{}}
	for i, b := range partition.Blocks(p.Graph) {
		if t.ordinal[b] = i; chunks {
			of := slices.IndexFunc(p.Plan.Stages, func(st partition.Stage) bool { return i < st.Last })
			_, t.ordinal[b] = p.Plan.Position(of)
		}
	}
	var marks [ir.NumPhases][]mark
	for phase := range t.stage.Bodies {
		instrs := t.stage.Bodies[phase].Instrs
		last := -2
		marks[phase] = make([]mark, 0, len(instrs))
		for _, block := range t.blocks(ir.Phase(phase), instrs) {
			if block != last {
				t.bodies[phase] = append(t.bodies[phase], run{block: block})
				last = block
			}
			k := len(t.bodies[phase]) - 1
			r := &t.bodies[phase][k]
			marks[phase] = append(marks[phase], mark{ir.Phase(phase), k, r.n})
			r.n++
		}
	}
	flat := slices.Concat(marks[:]...)
	for id := range t.stage.Buffers {
		switch b := &t.stage.Buffers[id]; {
		case b.From < 0:
		case b.Region == Temp:
			t.lives = append(t.lives, life{id, marks[b.Body][b.From], marks[b.Body][b.To]})
		case !t.region(b).InFlight():
		case chunks:
			t.apart = append(t.apart, life{id, flat[b.From], flat[b.To]})
		default:
			t.lives = append(t.lives, life{id, flat[b.From], flat[b.To]})
		}
	}
	return t
}

// region returns the region of a buffer; that of sums is chosen by t.sums.
func (t *tape) region(b *Buffer) Region {
	if b.Region == Sums {
		return t.sums
	}
	return b.Region
}

// sizeOn returns the bytes of a buffer on a mesh, 0 if it is a view there.
func (s *Stage) sizeOn(b *Buffer, mesh ir.Mesh) int64 {
	v := b.Value
	if b.View && Fits(mesh, s.Buffers[b.Of].Value, v) {
		return 0
	}
	return mesh.LocalElems(v.Type.Shape, v.Spec, ir.Coord{}) * v.Type.DType.Size()
}

// blocks returns the block that each instruction of a body counts as part of: that of the last kernel before
// it; in the update its own; and in a body with a communication stream that of the segment during which it is
// issued, or would be if it did not wait for the end of the body: there, too, blocks follow one another.
func (t *tape) blocks(phase ir.Phase, instrs []Instr) []int {
	if t.chunks && phase != ir.Update { // instructions of one chunk are adjacent
		all := make([]int, len(instrs))
		for i := range instrs {
			all[i] = instrs[i].Chunk
		}
		return all
	}
	type place struct{ chunk, segment int }
	of := map[place]int{}
	streams := false
	for i := range instrs {
		in := &instrs[i]
		streams = streams || in.Segment > 0
		at := place{in.Chunk, in.Segment}
		if _, known := of[at]; !known && !in.Delayed && in.Node.Op.Class() == ir.Compute {
			of[at] = t.block(in.Node)
		}
	}
	all := make([]int, len(instrs))
	block := -1
	for i := range instrs {
		switch in := &instrs[i]; {
		case streams:
			n, at := in.Node, in.Segment
			switch {
			case in.Delayed:
				at += 2
			case in.Async && n.Op == ir.OpAllGather && n.Phase != ir.Update:
				at = max(at-1, 0)
			case in.Async:
				at++
			}
			var known bool
			if block, known = of[place{in.Chunk, at}]; !known {
				block = -1
			}
		case in.Node.Op.Class() == ir.Compute || in.Node.Phase == ir.Update:
			block = t.block(in.Node)
		}
		all[i] = block
	}
	return all
}

func (t *tape) has(block int) bool {
	for _, body := range t.bodies {
		if slices.ContainsFunc(body, func(r run) bool { return r.block == block }) {
			return true
		}
	}
	return false
}

// beside returns the run of another block that corresponds to run k of a body: the one in the same section. A
// section is a sequence of consecutive runs whose blocks go up, or down, by one.
func (t *tape) beside(body ir.Phase, k, block int) (int, bool) {
	runs := t.bodies[body]
	for _, dir := range []int{1, -1} {
		for j := k; j >= 0 && j < len(runs) && runs[j].block == runs[k].block+dir*(j-k); j++ {
			if runs[j].block == block {
				return j, true
			}
		}
		for j := k; j >= 0 && j < len(runs) && runs[j].block == runs[k].block+dir*(j-k); j-- {
			if runs[j].block == block {
				return j, true
			}
		}
	}
	return 0, false
}

// relative is a lifetime described relative to the block in which it begins.
type relative struct {
	size     int64
	region   Region
	from, to mark // marks of the same section, but in the runs of the block that it is compared with
	blocks   int  // number of blocks from the one where it begins to the one where it ends
}

// relativeTo describes a lifetime that begins in one block as if it began in another. It returns false if the
// corresponding runs of the other block do not exist.
func (t *tape) relativeTo(l life, block, as int) (relative, bool) {
	b := &t.stage.Buffers[l.buffer]
	r := relative{size: b.Size, region: b.Region, from: l.from, to: l.to}
	var ok bool
	if r.from.run, ok = t.beside(l.from.body, l.from.run, as); !ok {
		return r, false
	}
	end := t.bodies[l.to.body][l.to.run].block
	if end < 0 {
		return r, true
	}
	r.blocks = end - block
	r.to.run, ok = t.beside(l.to.body, l.to.run, as)
	return r, ok
}

// lengthened returns the runs with more copies of a block after it, and the new index of each old run (for the
// block itself, that of the first copy). ok is false if the runs of the neighbours differ from those of the
// block.
func (t *tape) lengthened(block, more int) (bodies [ir.NumPhases][]run, moved [ir.NumPhases][]int, ok bool) {
	for phase, runs := range t.bodies {
		for k, r := range runs {
			moved[phase] = append(moved[phase], len(bodies[phase]))
			switch {
			case r.block > block:
				r.block += more
				bodies[phase] = append(bodies[phase], r)
			case r.block < block:
				bodies[phase] = append(bodies[phase], r)
			default:
				if k == 0 || k == len(runs)-1 || runs[k-1].n != r.n || runs[k+1].n != r.n {
					return bodies, moved, false
				}
				switch [2]int{runs[k-1].block - block, runs[k+1].block - block} {
				case [2]int{-1, 1}:
					for c := range more + 1 {
						bodies[phase] = append(bodies[phase], run{block + c, r.n})
					}
				case [2]int{1, -1}:
					for c := range more + 1 {
						bodies[phase] = append(bodies[phase], run{block + more - c, r.n})
					}
					moved[phase][k] += more
				default:
					return bodies, moved, false
				}
			}
		}
	}
	return bodies, moved, true
}

// beginning lists the lifetimes that begin in a block.
func (t *tape) beginning(block int) []life {
	var all []life
	for _, l := range t.lives {
		if t.bodies[l.from.body][l.from.run].block == block {
			all = append(all, l)
		}
	}
	return all
}

// twins returns the lifetimes that begin in a block. ok is false if a neighbour of the block lacks one of them.
func (t *tape) twins(block int) (twins map[relative]bool, ok bool) {
	begin := t.beginning(block)
	twins = make(map[relative]bool, len(begin))
	for _, l := range begin {
		r, ok := t.relativeTo(l, block, block)
		if !ok {
			return nil, false
		}
		twins[r] = true
	}
	for _, near := range []int{-1, 1} { // each must have what the block has
		begin := t.beginning(block + near)
		found := make(map[relative]bool, len(begin))
		for _, l := range begin {
			if r, ok := t.relativeTo(l, block+near, block); ok {
				found[r] = true
			}
		}
		for r := range twins {
			if !found[r] {
				return nil, false
			}
		}
	}
	return twins, true
}

// repeat inserts copies of a block after it. It returns false if the neighbours of the block are not like it.
func (t *tape) repeat(block, more int) bool {
	bodies, moved, ok := t.lengthened(block, more)
	if !ok {
		return false
	}
	twins, ok := t.twins(block)
	if !ok {
		return false
	}
	grown := insertion{t, block, more, moved}
	lives := make([]life, 0, len(t.lives)+more*len(t.beginning(block)))
	for _, l := range t.lives {
		first, last := t.bodies[l.from.body][l.from.run].block, t.bodies[l.to.body][l.to.run].block
		copies, by := 0, 0
		switch {
		case first > block:
			by = more
		case first == block:
			copies = more
		}
		for c := range copies + 1 {
			next := l
			var ok [2]bool
			next.from, ok[0] = grown.place(l.from, by+c)
			switch r, alike := t.relativeTo(l, first, block); {
			case last < 0: // it ends outside of blocks
				next.to, ok[1] = grown.place(l.to, 0)
			case (first < block && last > block || first > block && last < block) && !(first >= 0 && alike && twins[r]):
				// It begins and ends around the block, or is passed on from block to block: it lives through all copies.
				by := 0
				if last > block {
					by = more
				}
				next.to, ok[1] = grown.place(l.to, by)
			default: // it ends relative to where it begins
				next.to, ok[1] = grown.place(l.to, by+c)
			}
			if !ok[0] || !ok[1] {
				return false
			}
			lives = append(lives, next)
		}
	}
	for i := range t.apart {
		for _, m := range []*mark{&t.apart[i].from, &t.apart[i].to} {
			m.run = moved[m.body][m.run]
		}
	}
	t.bodies, t.lives = bodies, lives
	return true
}

// insertion says how the runs of a tape move when more copies of a block are inserted after it.
type insertion struct {
	*tape       // before that
	block, more int
	moved       [ir.NumPhases][]int // see [tape.lengthened]
}

// place returns the mark, in the longer bodies, of an instruction whose block is now by blocks further along, or of
// its counterpart in such a block.
func (x *insertion) place(m mark, by int) (mark, bool) {
	now := x.bodies[m.body][m.run].block
	if now < 0 || now < x.block && by == 0 || now > x.block && by == x.more {
		m.run = x.moved[m.body][m.run]
		return m, true
	}
	to := now + by
	from := to // the block that was in the place of block to, or that it is a copy of
	switch {
	case to >= x.block && to <= x.block+x.more:
		from = x.block
	case to > x.block+x.more:
		from = to - x.more
	}
	k, ok := x.beside(m.body, m.run, from)
	if !ok {
		return m, false
	}
	m.run = x.moved[m.body][k]
	if from == x.block {
		if up := x.bodies[m.body][k-1].block < x.block; up {
			m.run += to - x.block
		} else {
			m.run -= to - x.block
		}
	}
	return m, true
}

// keep adds the bytes that are kept across micro-batches or steps, as [Stage.allocate] lays them out.
func (t *tape) keep(mesh ir.Mesh, repeats []Repeat, shared *Stage, r *Regions) {
	used := t.stage.used()
	for id := range t.stage.Buffers {
		b := &t.stage.Buffers[id]
		n := b.Value.Def
		if region := t.region(b); region != Host && region != Persist || region == Persist && !used[id] && n.Op.Class() != ir.Leaf {
			continue // merged into another buffer
		}
		if shared != nil && n.Op == ir.OpParam {
			if _, ok := shared.Params[partition.BaseName(n.Name)]; ok {
				continue
			}
		}
		size := alignUp(t.stage.sizeOn(b, mesh))
		block := t.block(n)
		if t.chunks && block < 0 {
			block = b.Chunk
		}
		if at := slices.IndexFunc(repeats, func(r Repeat) bool { return r.Block == block }); at >= 0 {
			size *= int64(1 + repeats[at].More)
		}
		if b.Region == Host {
			r.Host += size
			continue
		}
		r.Persist += size
		if rankOf(n) <= rankConst {
			r.Durable += size
		}
	}
}

// pack adds the bytes of all other regions, as computed by the given packing function.
func (t *tape) pack(mesh ir.Mesh, r *Regions, pack func([]Buffer, []int) int64) {
	var starts [ir.NumPhases][]int
	at := 0
	for phase, runs := range t.bodies {
		for _, x := range runs {
			starts[phase] = append(starts[phase], at)
			at += x.n
		}
	}
	position := func(m mark) int { return starts[m.body][m.run] + m.at }
	buffers := slices.Grow(t.buffers[:0], len(t.lives)+len(t.apart)) // copies of a block come in the order of blocks: that breaks ties of size and start
	slot, inbox := make([][]int, len(r.Chunks)), make([][]int, len(r.Chunks))
	var temp [ir.NumPhases][]int
	sizes := make([]int64, len(t.stage.Buffers))
	for id := range sizes {
		sizes[id] = t.stage.sizeOn(&t.stage.Buffers[id], mesh)
	}
	for _, lives := range [2][]life{t.lives, t.apart} {
		for i := range lives {
			l, id := &lives[i], len(buffers)
			of := &t.stage.Buffers[l.buffer]
			buffers = append(buffers, Buffer{Size: sizes[l.buffer], From: position(l.from), To: position(l.to), Value: of.Value})
			switch t.region(of) {
			case Slot:
				slot[of.Chunk] = append(slot[of.Chunk], id)
			case Inbox:
				inbox[of.Chunk] = append(inbox[of.Chunk], id)
			case Temp:
				temp[of.Body] = append(temp[of.Body], id)
			}
		}
	}
	t.buffers = buffers
	for c := range r.Chunks {
		r.Chunks[c].Slot, r.Chunks[c].Inbox = pack(buffers, slot[c]), pack(buffers, inbox[c])
	}
	r.Temp = 0
	for _, ids := range temp {
		r.Temp = max(r.Temp, pack(buffers, ids))
	}
}
