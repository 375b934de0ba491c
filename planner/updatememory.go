package planner

import (
	"math"
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
)

// This file bounds from below the temporary bytes of the update of a position with many blocks, from the program with one
// block. An update reduces or narrows the gradients of every block, waits for the norm of all of them, by which they are
// clipped, and runs the AdamW of every block. What one block keeps at a moment between is there for all blocks at once.
// Called from memoryOf, in memory.go.

// updating bounds the temporary bytes of an update with n blocks by most.of(n). What a block keeps for or from its AdamW while
// an instruction that is of no block runs, all blocks keep then; most.block is the largest such sum. The block that is
// updated first, or last, has besides what its AdamW reads and writes. blocks is the same of the blocks alone.
func (b *blueprint) updating(position int, sizes []int64) (most, blocks memoryShare) {
	st := b.prog(kept).Stages[position]
	body := st.Bodies[ir.Update].Instrs
	if b.plan.Chunks() > 1 {
		return b.updatingChunks(position, sizes)
	}
	var updates []int // AdamW of the block
	for k := range body {
		if n := body[k].Node; n.Op == ir.OpAdamW && n.Block() != "" {
			updates = append(updates, k)
		}
	}
	if len(updates) == 0 {
		return most, blocks
	}
	first, last := updates[0], updates[len(updates)-1]
	var temp []*held
	live := make([]memoryShare, len(body)+1) // changes of the bytes that live, by instruction
	for i := range b.held[kept][position] {
		x := &b.held[kept][position][i]
		if x.Region != codegen.Temp || x.Body != ir.Update {
			continue
		}
		temp = append(temp, x)
		if !x.block || x.From <= last && x.To >= first {
			live[x.From].add(sizes[x.kind], x.block)
			live[x.To+1].add(-sizes[x.kind], x.block)
		}
	}
	var now memoryShare
	at := 0 // the instruction at which all blocks have that
	for k := range body {
		now = memoryShare{now.fixed + live[k].fixed, now.block + live[k].block}
		if now.above(most) && body[k].Node.Block() == "" {
			most, at = now, k
		}
	}
	if most.block == 0 {
		return most, blocks
	}
	for _, k := range updates {
		with, alone := -most.block, -most.block
		for _, x := range temp {
			if x.neededAt(st, &body[k], k, at) {
				with += sizes[x.kind]
				if x.block {
					alone += sizes[x.kind]
				}
			}
		}
		most.fixed, blocks.fixed = max(most.fixed, with), max(blocks.fixed, alone)
	}
	blocks.block = most.block
	return most, blocks
}

// neededAt reports whether a temporary buffer lives at instruction k, the AdamW of a block, in any update: it also lives at
// instruction at, or is the block's and read or written by the AdamW.
func (x *held) neededAt(st *codegen.Stage, adam *codegen.Instr, k, at int) bool {
	if k < x.From || k > x.To {
		return false
	}
	mine := func(id int) bool { return x.block && &st.Buffers[id] == x.Buffer }
	return x.From <= at && at <= x.To || slices.ContainsFunc(adam.Args, mine) || slices.ContainsFunc(adam.Results, mine)
}

// updatingChunks is updating with several chunks. Every block counts as one of the chunk whose blocks have the least.
func (b *blueprint) updatingChunks(position int, sizes []int64) (most, blocks memoryShare) {
	st := b.prog(kept).Stages[position]
	body := st.Bodies[ir.Update].Instrs
	var updates [fewChunks][]int // AdamW of blocks, by chunk
	for k := range body {
		if n := body[k].Node; n.Op == ir.OpAdamW && n.Block() != "" {
			chunk := b.chunkOf[n.Block()]
			updates[chunk] = append(updates[chunk], k)
		}
	}
	var temp [fewChunks][]*held
	var live [1 + fewChunks][]int64 // changes of the bytes that live, by chunk, and last those outside of blocks
	for i := range live {
		live[i] = make([]int64, len(body)+1)
	}
	for i := range b.held[kept][position] {
		x := &b.held[kept][position][i]
		if x.Region != codegen.Temp || x.Body != ir.Update {
			continue
		}
		of := fewChunks
		if x.block {
			of = b.chunkOf[x.Value.Def.Block()]
			if temp[of] = append(temp[of], x); x.From > updates[of][len(updates[of])-1] || x.To < updates[of][0] {
				continue
			}
		}
		live[of][x.From] += sizes[x.kind]
		live[of][x.To+1] -= sizes[x.kind]
	}
	var now [1 + fewChunks]int64
	at := -1
	for k := range body {
		for i := range now {
			now[i] += live[i][k]
		}
		if block := slices.Min(now[:fewChunks]); block > most.block && body[k].Node.Block() == "" {
			most, at = memoryShare{now[fewChunks], block}, k
		}
	}
	if at < 0 {
		return most, blocks
	}
	least := int64(math.MaxInt64) // over chunks, of the most that a block has at one of its AdamW
	for chunk, updates := range updates {
		alone := int64(0)
		for _, k := range updates {
			var bytes int64
			for _, x := range temp[chunk] {
				if x.neededAt(st, &body[k], k, at) {
					bytes += sizes[x.kind]
				}
			}
			alone = max(alone, bytes)
		}
		least = min(least, alone)
	}
	return most, memoryShare{least - most.block, most.block}
}
