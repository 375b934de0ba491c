package planner

import (
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
)

// This file adds up the buffers of a program with one block per stage (held.go) by lifetimes, separately for what is there once
// and for what is there once for each block. memory.go makes bounds for any number of blocks of that, leaveHead (slices.go) bounds
// for any number of slices of the loss.

// measured is the memory of one position of a blueprint, with one block for each chunk. Its fields are those of stageMemory.
type measured struct {
	persist         memoryShare
	sums            memoryShare
	afterHead       int64
	slot            [fewChunks]memoryShare // by chunk
	inbox           [fewChunks]int64
	temp            int64 // the peak of temporary values
	tempNotBackward int64 // their peak outside of the backward pass
	tempInner       int64 // their peak, of those of blocks and those that live throughout all of the block
	tempMiddle      int64 // their peak while the block runs, with what the stream has of a block before it and of one after it
	tempAmong       int64 // the same, of blocks alone
	apart           int64 // what weight gradients of a block read
}

// memoryShare is bytes that grow with the number of blocks: some that are fixed, and some for each block.
type memoryShare struct{ fixed, block int64 }

func (m memoryShare) bytes() int64 { return m.of(1) }

// add adds bytes of the block, or fixed ones.
func (m *memoryShare) add(bytes int64, block bool) {
	if block {
		m.block += bytes
	} else {
		m.fixed += bytes
	}
}

// above reports whether it is more than another for many blocks.
func (m memoryShare) above(other memoryShare) bool {
	return m.block > other.block || m.block == other.block && m.fixed > other.fixed
}

// of returns the bytes with n blocks.
func (m memoryShare) of(n int) int64 { return m.fixed + int64(n)*m.block }

// measure adds up the buffers of a position of the blueprint on a mesh, by lifetimes. sizes has those that are known so far.
func (b *blueprint) measure(e extent, position int, mesh ir.Mesh, sizes *[]int64) measured {
	all, st := b.holds(e, position, mesh, sizes), b.prog(e).Stages[position]
	var m measured
	var live, between, among [ir.NumPhases][]int64 // changes of the bytes that live, by body and instruction
	var from, to [ir.NumPhases]int                 // the first and last instruction of the block, by body
	for phase, body := range st.Bodies {
		n := len(body.Instrs) + 1
		changes := make([]int64, 3*n)
		live[phase], between[phase], among[phase] = changes[:n], changes[n:2*n], changes[2*n:]
		ofBlock := func(in codegen.Instr) bool { return b.ofBlock[in.Node] }
		if from[phase] = slices.IndexFunc(body.Instrs, ofBlock); from[phase] >= 0 {
			for to[phase] = len(body.Instrs) - 1; !ofBlock(body.Instrs[to[phase]]); to[phase]-- {
			}
		}
	}
	streams := b.plan.Overlap // otherwise no buffer from outside lives through a part of the block only
	early := b.earlyOf(st)
	blocks := len(st.Bodies[ir.Forward].Instrs) + slices.IndexFunc(st.Bodies[ir.Backward].Instrs, func(in codegen.Instr) bool { return b.ofBlock[in.Node] })
	for i := range all {
		b := &all[i]
		size := (*sizes)[b.kind]
		if b.apart {
			m.apart += size
			continue
		}
		share := &m.persist
		switch b.Region {
		case codegen.Sums:
			if share = &m.sums; b.From <= blocks {
				m.afterHead += size
			}
		case codegen.Slot:
			if share = &m.slot[b.Chunk]; b.To < blocks {
				m.afterHead -= size
			}
		case codegen.Inbox:
			m.inbox[b.Chunk] += size
			continue
		case codegen.Temp:
			add := func(changes *[ir.NumPhases][]int64, to int) {
				changes[b.Body][b.From] += size
				changes[b.Body][to+1] -= size
			}
			own, until := b.block, b.To
			if b.handed > 0 {
				own, until = true, b.handed
			}
			add(&live, b.To)
			if !streams || b.From <= from[b.Body] && b.To >= to[b.Body] && !early[b.Buffer] {
				add(&between, b.To)
			} else if own {
				add(&between, until)
			}
			if own {
				add(&among, until)
			}
			continue
		}
		share.add(size, b.block)
	}
	for phase, changes := range live {
		var now, then, alone int64
		carried, runs := b.carried(st, ir.Phase(phase), *sizes, all)
		for k, c := range changes {
			now, then, alone = now+c, then+between[phase][k], alone+among[phase][k]
			m.temp, m.tempInner = max(m.temp, now), max(m.tempInner, then)
			if k < len(runs) && runs[k] {
				m.tempMiddle, m.tempAmong = max(m.tempMiddle, then+carried), max(m.tempAmong, alone+carried)
			}
			if ir.Phase(phase) != ir.Backward {
				m.tempNotBackward = max(m.tempNotBackward, now)
			}
		}
	}
	return m
}

// earlyOf tells which buffers of a stage its communication stream makes outside of blocks: the head's weights, which it gathers
// beside the last block and beside no other.
func (b *blueprint) earlyOf(st *codegen.Stage) map[*codegen.Buffer]bool {
	early := map[*codegen.Buffer]bool{}
	for phase := range st.Bodies {
		for i := range st.Bodies[phase].Instrs {
			if in := &st.Bodies[phase].Instrs[i]; in.Async && !b.ofBlock[in.Node] {
				for _, id := range in.Results {
					early[&st.Buffers[id]] = true
				}
			}
		}
	}
	return early
}

// carried returns the temporary bytes of other blocks that live while a block between two others runs, in a plan with overlap:
// what the stream gathers for the one, and reduces of the gradients of the other in every micro-batch. runs tells which
// instructions of a body are the block's.
func (b *blueprint) carried(st *codegen.Stage, phase ir.Phase, sizes []int64, all []held) (bytes int64, runs []bool) {
	instrs := st.Bodies[phase].Instrs
	streamed := map[*codegen.Buffer]int{} // by buffer: its chunk, and one
	for i := range instrs {
		in := &instrs[i]
		runs = append(runs, b.ofBlock[in.Node] && !in.Async && !in.Delayed && !in.Last)
		if !in.Async || in.Last || phase == ir.Update || !b.ofBlock[in.Node] {
			continue
		}
		ids := in.Results
		if in.Node.Op != ir.OpAllGather {
			ids = slices.Concat(in.Args, in.Results)
		}
		for _, id := range ids {
			streamed[&st.Buffers[id]] = in.Chunk + 1
		}
	}
	var each [fewChunks]int64
	for i := range all {
		if x := &all[i]; x.Region == codegen.Temp && streamed[x.Buffer] > 0 && !x.apart {
			each[streamed[x.Buffer]-1] += sizes[x.kind]
		}
	}
	return slices.Min(each[:b.plan.Chunks()]), runs
}

// crossing measures, on a blueprint of a zero-bubble schedule, what a slot keeps from the backward pass to the pass of weight
// gradients. apart is what those of a block read that the block has made, or in the backward pass the block after it; fixed is
// what those outside of blocks read that no block has made. What the first block hands to the embedding is there once, and is
// left out.
func (b *blueprint) crossing(e extent, position int, mesh ir.Mesh) (apart, fixed int64) {
	st := b.prog(e).Stages[position]
	size := func(buf *codegen.Buffer) int64 {
		return align(mesh.LocalElems(buf.Value.Type.Shape, buf.Value.Spec, ir.Coord{}) * buf.Value.Type.DType.Size())
	}
	at := len(st.Bodies[ir.Forward].Instrs) + len(st.Bodies[ir.Backward].Instrs)
	read := make([]bool, len(st.Buffers))
	for _, ofBlocks := range []bool{true, false} {
		for _, in := range st.Bodies[ir.WeightGrad].Instrs {
			if b.ofBlock[in.Node] != ofBlocks {
				continue
			}
			for i, id := range in.Args {
				buf, def := &st.Buffers[id], in.Node.Args[i].Def
				if read[id] || buf.Region != codegen.Slot || buf.From >= at || buf.To < at {
					continue
				}
				read[id] = true
				switch {
				case ofBlocks && (def.Block() == in.Node.Block() || def.Phase == ir.Backward):
					apart += size(buf)
				case !ofBlocks && def.Block() == "":
					fixed += size(buf)
				}
			}
		}
	}
	return apart, fixed
}
