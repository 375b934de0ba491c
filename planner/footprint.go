package planner

import (
	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// This file divides the peak memory of a rank by what it is for, from the program with one block per stage: [Estimator.Footprints]
// (estimate.go). Package measured prices published training runs with it, and adds what their software holds besides.

// Footprint is the memory of a rank at one position of the pipeline when it holds the most, by what it is for. The bytes are
// those of the buffers that codegen lays out, without the gaps of packing. Gradients of a step with one micro-batch count by
// themselves here, though they may share room with activations.
type Footprint struct {
	Weights   int64 // parameters as the passes read them
	Gradients int64 // accumulators
	State     int64 // of the optimizer: moments and master weights
	Other     int64 // inputs of a step, constants, the gradient norm
	Saved     int64 // activations of the micro-batches in flight, with what the stage before sends
	Temp      int64 // the most that lives in one body
	// Elements is how many elements of gradients there are, whatever their type.
	Elements int64
	InFlight int // micro-batches, of the first chunk
	// Slots is how many micro-batches all chunks have room for, AtOnce how many are in flight at once: chunks of an interleaved
	// schedule do not all have the most at the same time.
	Slots, AtOnce int
	// Forward lists what the forward pass of one micro-batch makes.
	Forward []Made
}

// Arena returns all bytes together.
func (f *Footprint) Arena() int64 {
	return f.Weights + f.Gradients + f.State + f.Other + f.Saved + f.Temp
}

// Made is the first result of an instruction of the forward pass. One block stands for all.
type Made struct {
	Op     ir.Op
	Result int64 // elements on a rank
	Source int64 // elements of the first operand on a rank
	// Kept is how many copies wait for the backward pass at once, over blocks and micro-batches in flight. Those that are
	// recomputed do not count.
	Kept int
	// Again is set where some block computes it again in the backward pass.
	Again bool
	// InBlock is set for what blocks make.
	InBlock bool
}

// footprint divides the peak memory of a position, as [Estimator.Price] has it.
func (p *pipeline) footprint(stages []partition.Stage, at int, peak int64) Footprint {
	s := p.skel
	position, _ := s.of.plan.Position(s.like[at])
	st, mesh := s.of.prog(kept).Stages[position], s.mesh(p.template.MicroBatch)
	mine := p.chunks(at)
	blocks := 0
	f := Footprint{InFlight: p.room[at].Slots}
	for _, i := range mine {
		f.Slots += p.room[i].Slots
		blocks += stages[i].Last - stages[i].First
	}
	live := 0
	for _, t := range codegen.Order(&p.template, at, p.microBatches, true) {
		switch t.Phase {
		case ir.Forward:
			live++
			f.AtOnce = max(f.AtOnce, live)
		case ir.Backward:
			live--
		}
	}
	used := usedBuffers(st)
	for id := range st.Buffers {
		b := &st.Buffers[id]
		n := b.Value.Def
		if b.Region != codegen.Persist && b.Region != codegen.Sums || !used[id] && n.Op.Class() != ir.Leaf {
			continue
		}
		elems := mesh.Local(b.Value.Type.Shape, b.Value.Spec, ir.Coord{}).Elems()
		times := int64(1)
		if n.Block() != "" && n.Op != ir.OpRecv {
			if s.of.chunkOf[n.Block()] > 0 {
				continue // the first chunk's stands for it
			}
			times = int64(blocks)
		}
		size := times * align(elems*b.Value.Type.DType.Size())
		attr, _ := n.Attr.(ir.ParamAttr)
		switch {
		case n.Op == ir.OpParam && !attr.State:
			f.Weights += size
		case n.Op == ir.OpParam:
			f.State += size
		case n.Op.Class() != ir.Leaf && n.Phase == ir.Backward:
			f.Gradients += size
			f.Elements += times * elems
		default:
			f.Other += size
		}
	}
	f.Temp = p.memory[at].update.of(blocks)
	for _, i := range mine {
		for e, count := range recomputationOf(stages[i]).counts(stages[i].Last - stages[i].First) {
			if count > 0 {
				f.Temp = max(f.Temp, p.memory[at].temp[e])
			}
		}
	}
	f.Saved = peak - f.Weights - f.Gradients - f.State - f.Other - f.Temp
	for _, in := range st.Bodies[ir.Forward].Instrs {
		n := in.Node
		if len(n.Results) == 0 || len(n.Args) == 0 || n.Phase != ir.Forward {
			continue
		}
		r, x := n.Results[0], n.Args[0]
		m := Made{
			Op: n.Op, InBlock: s.of.ofBlock[n],
			Result: mesh.Local(r.Type.Shape, r.Spec, ir.Coord{}).Elems(), Source: mesh.Local(x.Type.Shape, x.Spec, ir.Coord{}).Elems(),
		}
		if in.Chunk > 0 && m.InBlock {
			continue // the first chunk's stands for it
		}
		if !m.InBlock {
			chunk := mine[0]
			if in.Chunk > 0 {
				chunk = mine[len(mine)-1]
			}
			m.Kept = p.room[chunk].Slots
			f.Forward = append(f.Forward, m)
			continue
		}
		for _, i := range mine {
			counts := recomputationOf(stages[i]).counts(stages[i].Last - stages[i].First)
			again := 0
			for e, count := range counts {
				if extent(e).covers(n.Op) {
					again += count
				}
			}
			m.Again = m.Again || again > 0
			m.Kept += p.room[i].Slots * (stages[i].Last - stages[i].First - again)
		}
		f.Forward = append(f.Forward, m)
	}
	return f
}

// chunks lists the stages of a position.
func (p *pipeline) chunks(at int) []int {
	var all []int
	for i := at; i < len(p.template.Stages); i += p.template.PP() {
		all = append(all, i)
	}
	return all
}
