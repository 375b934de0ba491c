package planner

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
)

// This file lists the buffers of a program of one block per stage, with the part of the model that each belongs to and how
// long it is sure to live. measure.go, relax.go and slices.go add them up. Sizes follow from a value's spec and the mesh of
// the real plan, so that they are computed once for all buffers that are alike (a kind) and for each mesh.

// align rounds up as codegen does, which puts buffers on lines of 64 bytes.
func align(n int64) int64 { return (n + 63) / 64 * 64 }

// held is a buffer in the memory of the device.
type held struct {
	*codegen.Buffer
	block bool // of a block
	lora  bool // of an adapter
	apart bool // an entry besides the buffer's own: weight gradients of a block read it, under a zero-bubble schedule in a later pass
	kind  int  // buffers of a kind have the same size: see sizesOn
	// from and to are when a temporary buffer lives in any case, in instructions of its body. They leave out what kernels beside
	// collectives read and write, and what those collectives make, as other programs may put that off or gather it early. from
	// is after to if it need not be there at all.
	from, to int
	handed   int // of a temporary buffer outside of blocks: see handed; 0 for others
}

// heldKind is what the size of a buffer depends on.
type heldKind struct {
	shape string
	dtype ir.DType
	spec  ir.ShardSpec
	view  bool // it has no bytes of its own on meshes where it lies in a value with spec of: see [codegen.Fits]
	of    ir.ShardSpec
}

// kindValues is a value of a kind, and for a view the value that it is a part of.
type kindValues struct{ part, whole *ir.Value }

// kindOf returns the kind of a buffer, a new one if it is the first.
func (b *blueprint) kindOf(st *codegen.Stage, x *codegen.Buffer) int {
	var shape [32]byte
	v := x.Value
	key, values := heldKind{dtype: v.Type.DType, spec: v.Spec, view: x.View}, kindValues{part: v}
	if x.View {
		values.whole = st.Buffers[x.Of].Value
		key.of = values.whole.Spec
	}
	text := shape[:0]
	for _, d := range v.Type.Shape {
		text = binary.AppendUvarint(text, uint64(d))
	}
	key.shape = string(text)
	kind, known := b.kinds[key]
	if !known {
		kind = len(b.kindValues)
		b.kinds[key], b.kindValues = kind, append(b.kindValues, values)
	}
	return kind
}

// sizesOn returns the bytes of each kind on a mesh. sizes has those that are known so far.
func (b *blueprint) sizesOn(mesh ir.Mesh, sizes []int64) []int64 {
	for _, values := range b.kindValues[len(sizes):] {
		v, size := values.part, int64(0)
		if values.whole == nil || !codegen.Fits(mesh, values.whole, v) {
			size = align(mesh.LocalElems(v.Type.Shape, v.Spec, ir.Coord{}) * v.Type.DType.Size())
		}
		sizes = append(sizes, size)
	}
	return sizes
}

// heldBy lists the buffers of a stage that lie in the memory of the device.
func (b *blueprint) heldBy(st *codegen.Stage) []held {
	used, lives, once, handed := usedBuffers(st), inOrderLives(st), onceOfBlocks(st), b.handed(st)
	forward := len(st.Bodies[ir.Forward].Instrs)
	var all []held
	for _, id := range b.readApart(st) {
		x := &st.Buffers[id]
		all = append(all, held{Buffer: x, block: true, lora: ofAdapter(x.Value), apart: true, kind: b.kindOf(st, x)})
	}
	for id := range st.Buffers {
		x := &st.Buffers[id]
		switch {
		case !used[id] && x.Value.Def.Op.Class() != ir.Leaf:
		case x.Region == codegen.Host:
		case x.Region == codegen.Slot && (x.From >= forward || x.To < forward): // it does not live from the forward pass to the backward pass
		case x.Region == codegen.Temp && x.From < 0:
		default:
			h := held{Buffer: x, block: x.Value.Def.Block() != "" && x.Value.Def.Op != ir.OpRecv && !once[id], lora: ofAdapter(x.Value), kind: b.kindOf(st, x), from: x.From, to: x.To}
			if lives != nil {
				h.from, h.to = lives[id].from, lives[id].to
			}
			if x.Region == codegen.Temp && x.Body == ir.Backward && !h.block {
				h.handed = handed[id]
			}
			all = append(all, h)
		}
	}
	return all
}

// ofAdapter reports whether a value belongs to an adapter.
func ofAdapter(v *ir.Value) bool { return strings.Contains(v.Def.Name, ".lora/") }

// handed returns, by buffer, the last instruction of the backward pass with which a block uses the gradient of its result, or
// what was gathered of it; 0 for other buffers. In a program of one block it comes from the head, or from the next stage; to
// other blocks the next one hands it, and they use it alike.
func (b *blueprint) handed(st *codegen.Stage) []int {
	last := make([]int, len(st.Buffers))
	for i, in := range st.Bodies[ir.Backward].Instrs {
		if !b.ofBlock[in.Node] || in.Async {
			continue
		}
		for _, id := range in.Args {
			for ; st.Buffers[id].View; id = st.Buffers[id].Of {
			}
			last[id] = i
		}
	}
	return last
}

// onceOfBlocks tells which buffers of blocks a stage has once, not once for each block: those that also hold results of the
// update that are of no block, as the sum of all squares lies where that of the first block does; and those from which
// the last block, or backward the first, posts what it makes.
func onceOfBlocks(st *codegen.Stage) []bool {
	once := make([]bool, len(st.Buffers))
	for _, body := range st.Bodies {
		for _, in := range body.Instrs {
			if in.Posted && st.Buffers[in.Args[0]].Region == codegen.Persist {
				once[in.Args[0]] = true
			}
		}
	}
	for _, in := range st.Bodies[ir.Update].Instrs {
		if in.Node.Block() == "" {
			for _, id := range in.Results {
				once[id] = true
			}
		}
	}
	return once
}

type life struct{ from, to int }

// inOrderLives returns the lifetimes for held.from and held.to, nil if nothing runs beside collectives.
func inOrderLives(st *codegen.Stage) []life {
	lives := make([]life, len(st.Buffers))
	for id := range lives {
		lives[id] = life{math.MaxInt, -1}
	}
	some := false
	for _, body := range st.Bodies {
		beside := -1 // the last instruction that runs beside the latest collective
		for i, in := range body.Instrs {
			if in.Beside > 0 {
				beside, some = i+in.Beside, true
			} else if i <= beside || codegen.KeysValues(in.Node) { // keys and values are gathered before such a row of kernels, wherever that is
				continue
			}
			ids := in.Args
			if in.Beside == 0 {
				ids = slices.Concat(in.Args, in.Results)
			}
			for _, id := range ids {
				for {
					l := &lives[id]
					l.from, l.to = min(l.from, i), max(l.to, i)
					if !st.Buffers[id].View {
						break
					}
					id = st.Buffers[id].Of
				}
			}
		}
	}
	if !some {
		return nil
	}
	return lives
}

// readApart lists the buffers that weight gradients of a block read and others made: the block itself, or in the backward pass
// the block after it.
func (b *blueprint) readApart(st *codegen.Stage) []int {
	var all []int
	for _, in := range st.Bodies[ir.Backward].Instrs {
		if !b.ofWeight[in.Node] || !b.ofBlock[in.Node] {
			continue
		}
		for i, v := range in.Node.Args {
			id, def := in.Args[i], v.Def
			region := st.Buffers[id].Region
			near := def.Block() == in.Node.Block() || def.Phase == ir.Backward
			if near && !b.ofWeight[def] && (region == codegen.Slot || region == codegen.Temp) && !slices.Contains(all, id) {
				all = append(all, id)
			}
		}
	}
	return all
}

// holds lists the buffers of a position of the blueprint, and completes the sizes of their kinds on a mesh.
func (b *blueprint) holds(e extent, position int, mesh ir.Mesh, sizes *[]int64) []held {
	if st := b.prog(e).Stages[position]; b.held[e][position] == nil {
		b.held[e][position] = b.heldBy(st)
	}
	*sizes = b.sizesOn(mesh, *sizes)
	return b.held[e][position]
}

// usedBuffers tells which buffers any instruction names. Others were merged into one that is named.
func usedBuffers(st *codegen.Stage) []bool {
	used := make([]bool, len(st.Buffers))
	for _, body := range st.Bodies {
		for _, in := range body.Instrs {
			for _, id := range in.Args {
				used[id] = true
			}
			for _, id := range in.Results {
				used[id] = true
			}
		}
	}
	return used
}
