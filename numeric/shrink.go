package numeric

import (
	"fmt"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
)

// maxRanks bounds a run: every rank is a goroutine of this process.
const maxRanks = 256

// maxTokens bounds the tokens of a batch, as far as the plan allows, because the interpreter is slow.
const maxTokens = 256

// Shrink returns a configuration and a plan of the same structure, at sizes that the interpreter can run: the same degrees,
// stages, schedule, placements, ZeRO stage and kinds of recomputation, but at most two blocks per stage, two units, few and
// narrow heads, short sequences and a small vocabulary. It avoids sizes that the degrees divide, so that splits are uneven.
// It fails if the plan needs more than maxRanks ranks even so.
//
// AdamW's epsilon becomes at least 1e-3. At 1e-8 the first updates are the signs of gradients, and the sign of a gradient
// close to zero depends on rounding. The run is in float32 whatever the configuration's type, because the rounding of two-byte
// types would hide the errors that the tolerances are to show. The casts of those types are part of the symbolic proof.
func Shrink(cfg *config.Config, plan *partition.Plan) (*config.Config, *partition.Plan, error) {
	c, p := *cfg, *plan
	if p.ZeROGroup == 0 {
		p.RuntimeNGPUs = p.PlanNGPUs * min(p.Units(), 2)
	}
	if p.RuntimeNGPUs > maxRanks {
		return nil, nil, fmt.Errorf("numeric: %d ranks, at most %d can be run in one process; make a plan for fewer", p.RuntimeNGPUs, maxRanks)
	}
	p.Stages = shrinkStages(plan.Stages)
	c.Model.Preset = ""
	c.Train.DType, c.Train.MasterWeights = "float32", true
	c.Model.NLayer = p.Stages[len(p.Stages)-1].Last
	m, dp, inner := &c.Model, p.DataParallel(), max(p.TP, p.ContextParallel())

	width, group := max(m.HeadDim(), 4), m.QueryGroup() // the norm of two elements is their signs, and its gradient only rounding
	kvHeads := min(m.KVHeads(), p.TP+1)
	if kvHeads < p.TP { // the plan may split something else
		group = min(group, p.TP)
	} else {
		group = min(group, 2)
	}
	m.NHead = kvHeads * group
	enough := max(8, dp/m.NHead+1)
	if m.Position == gpt.RoPE { // which rotates pairs
		enough += enough % 2
	}
	m.NEmbd = m.NHead * min(width, enough)
	if m.NKVHead > 0 {
		m.NKVHead = kvHeads
	}
	if m.FFNHidden > 0 {
		m.FFNHidden = min(m.FFNHidden, 2*m.NEmbd+1)
	}
	if rank := min(m.LoRARank, 2*p.TP+1, m.NEmbd); rank < m.LoRARank { // adapters keep their factor, alpha / rank
		m.LoRAAlpha *= float64(rank) / float64(m.LoRARank)
		m.LoRARank = rank
	}
	m.BlockSize = min(m.BlockSize, max(9, 2*inner*p.ContextParallel()+1))
	parts := max(1, p.SequenceParts)
	tokens := m.BlockSize / parts
	if parts > 1 { // every rank has some of each part
		tokens = max(tokens, p.TP)
	}
	if p.LossSlices > 1 { // slices must be of equal size
		p.LossSlices = min(p.LossSlices, tokens)
		tokens -= tokens % p.LossSlices
		if parts > 1 && tokens < p.TP {
			tokens += p.LossSlices
		}
	}
	if parts > 1 || p.LossSlices > 1 {
		m.BlockSize = parts * tokens
	}
	m.VocabSize = min(m.VocabSize, max(17, 2*p.TP+1, dp+1))

	// The batch: all micro-batches are full, except the last one of the last rank.
	mesh := plan.Mesh(cfg.Batch.Global)
	microBatches := min(mesh.Size(partition.AxisMB), 2*p.PP())
	least := 1 // sequences of a micro-batch
	if p.BatchParallel {
		least = p.TP
	}
	p.MicroBatch = min(p.MicroBatch, least+1)
	if dp*microBatches*p.MicroBatch*m.BlockSize > maxTokens {
		p.MicroBatch = least
	}
	batch := dp * microBatches * p.MicroBatch
	if p.MicroBatch > least && parts == 1 {
		batch--
	} else if p.MicroBatch > least {
		batch -= dp // with sequences in parts all ranks have as many
	}
	c.Batch.Global = min(c.Batch.Global, batch)
	if p.BatchShares != nil {
		p.BatchShares = shrinkShares(plan.Sequences(cfg.Batch.Global)[:dp])
		if p.Validate(m.NLayer, c.Batch.Global) != nil { // too few sequences
			p.BatchShares = nil
		}
	}
	c.Optimizer.Eps = max(c.Optimizer.Eps, 1e-3)
	return &c, &p, nil
}

// shrinkShares gives two shares to ranks with more sequences than the mean, and one to the others.
func shrinkShares(sequences []int) []int {
	sum := 0
	for _, n := range sequences {
		sum += n
	}
	shares := make([]int, len(sequences))
	for i, n := range sequences {
		shares[i] = 1
		if n*len(sequences) > sum {
			shares[i] = 2
		}
	}
	return shares
}

// shrinkStages keeps at most two blocks of each stage. Of each kind of recomputation it keeps one block as far as there is
// room, or two if all blocks of the stage have it.
func shrinkStages(stages []partition.Stage) []partition.Stage {
	var out []partition.Stage
	next := 0
	for _, s := range stages {
		blocks := min(s.Last-s.First, 2)
		again := min(s.Recompute, blocks)
		if s.Recompute < s.Last-s.First {
			again = min(again, 1)
		}
		selective := min(s.Selective, blocks-again)
		if s.Recompute+s.Selective < s.Last-s.First {
			selective = min(selective, 1)
		}
		pointwise := min(s.Pointwise, blocks-again-selective)
		if s.Recomputed() < s.Last-s.First {
			pointwise = min(pointwise, 1)
		}
		s.First, s.Last, s.Recompute, s.Selective, s.Pointwise = next, next+blocks, again, selective, pointwise
		next = s.Last
		out = append(out, s)
	}
	return out
}
