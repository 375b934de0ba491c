package planner

import (
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// This file has the little that the search needs to know about stages that go on while what they send is on its way (see
// [Options.OverlapP2P] and codegen's posted). The send is no work of the stage, but its time is on the way of the micro-batch
// to the next one. So bounds that add up what a position does leave it out, and those that follow a micro-batch through the
// positions have it, but for the position whose work ends the chain.
//
// A position that waits takes no less time, but needs no buffers to send from. So waiting is searched where memory is short: see
// relief.go.

// posts reports whether the positions of an outline go on while what they send is on its way.
func (o outline) posts() bool { return o.pp > 1 && !o.waits }

// waits reports whether the stages of a plan wait for what they send.
func waits(p *partition.Plan) bool { return p.PP() > 1 && !p.OverlapP2P }

// returned is the time of a pass back up to what it sends, or of the transfers back.
func (t *partTimes) returned() cost.Picoseconds { return t.way - t.forward }

// posted is how long what the body posts is on its way.
func (b body) posted() (time cost.Picoseconds) {
	for i := range b {
		if b[i].posted {
			time += b[i].fixed
		}
	}
	return time
}

// fromLastStage bounds a step with interleaving by a chain of events through its last stage. It begins when micro-batch 0 has come
// forward through all stages before, and ends when the last micro-batch has gone back from there to position 0, which updates.
// In between the last position does all its work but for its other chunks: forward, of the first micro-batches, as many as there
// are positions, and backward, of the last ones (see [codegen.Order]). So the chain has nearly as much work as the
// position, and every transfer once, which no position waits for. recomputed is the recomputation of the position in a pass.
func (s *searcher) fromLastStage(p *passage, even evenShares, recomputed cost.Picoseconds) cost.Picoseconds {
	last := evenShare(s.graphs.blocks, p.stages(), p.stages()-1)
	before, others := cost.Picoseconds(s.graphs.blocks-last), cost.Picoseconds(even.at[p.pp-1].blocks-last)
	early, late := cost.Picoseconds(min(p.pp, p.m)), cost.Picoseconds((p.m-1)%p.pp+1)
	block := &p.first[inBlock]
	time := p.all(inBlock, even.at[p.pp-1].blocks) - others*(early*block.forward+late*(block.all-block.forward))
	time += p.all(afterBlocks, 1) + max(0, p.recomputing()-late)*recomputed
	time += p.first[beforeBlocks].forward + before*block.forward
	time += p.last[beforeBlocks].returned() + before*p.last[inBlock].returned()
	updated := even.at[0].blocks // what their reductions would delay may have been waiting meanwhile
	time += p.update(updated) - cost.Picoseconds(updated)*p.last[inBlock].delays
	for at := range p.pp {
		time += p.sent[whole][at].forward + p.sent[rest][at].returned()
	}
	return time - cost.Picoseconds(p.stages())*aheadOf(&p.first, &p.last)
}
