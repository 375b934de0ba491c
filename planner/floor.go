package planner

import (
	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// A floor is a bound that costs next to nothing: from what every plan with the same
// tensor and context parallelism does for a micro-batch, whatever else it shards and
// however it is cut, so that most of the space is never priced.

// trunk is that work: everything that is made anew with each micro-batch, and the
// products of the gradients of weights; not what gathers, reduces or adds up
// parameters and their gradients.
type trunk struct {
	instrs []trunkInstr
	price  *cost.Program
	plan   partition.Plan // of one data-parallel rank
	known  map[int]*trunkTimes
}

type trunkInstr struct {
	codegen.Instr
	part  int // of the model
	pass  ir.Phase
	ahead bool
}

// The parts of a model.
const (
	beforeBlocks = iota
	inBlock
	afterBlocks
	modelParts
)

// trunkTimes is the time of the parts for a micro-batch of a size, one block.
type trunkTimes [modelParts]struct {
	all   cost.Picoseconds // forward and backward
	input cost.Picoseconds // without gradients of weights
	// ahead is what recomputation may do before the gradient is there.
	ahead cost.Picoseconds
}

type trunkKey struct {
	tp, cp   int
	sequence bool
}

// trunk returns that of outlines, nil where they have no programs.
func (s *searcher) trunk(o outline) *trunk {
	key := trunkKey{o.tp, o.cp, o.sequence}
	t, known := s.trunks[key]
	if !known {
		t = s.newTrunk(o)
		s.trunks[key] = t
	}
	return t
}

func (s *searcher) newTrunk(o outline) *trunk {
	ranks := o.cp * o.tp
	plan, err := s.template(outline{degrees: degrees{ranks, 1, o.cp, o.tp, 1}, sharding: sharding{sequence: o.sequence}})
	if err != nil {
		return nil
	}
	plan.RuntimeNGPUs, plan.MicroBatch, plan.Schedule = ranks, s.batch, partition.OneFOneB
	of, err := s.find(&plan)
	if err != nil {
		return nil
	}
	job := plan
	job.RuntimeNGPUs = s.opts.RuntimeNGPUs // they share the machine, or the network
	t := &trunk{price: cost.NewProgram(s.cluster, &job, plan.Mesh(s.batch)).As(0), plan: plan, known: map[int]*trunkTimes{}}
	mb := plan.Mesh(s.batch).Axis(partition.AxisMB)
	for _, phase := range []ir.Phase{ir.Forward, ir.Backward} {
		part := beforeBlocks
		if phase == ir.Backward {
			part = afterBlocks
		}
		for _, in := range of.progs[kept].Stages[0].Bodies[phase].Instrs {
			n := in.Node
			x := trunkInstr{Instr: in, part: part, pass: phase}
			if of.ofBlock[n] {
				x.part, part = inBlock, afterBlocks
				if phase == ir.Backward {
					part = beforeBlocks
				}
			}
			if of.ofWeight[n] {
				x.pass = ir.WeightGrad
			}
			follows := n.Op == ir.OpMatMul || isAttention(n.Op)
			for _, r := range n.Results {
				follows = follows || r.Spec[mb].Kind == ir.Shard
			}
			if follows {
				x.Accum = make([]codegen.Accum, len(in.Accum)) // gradients may be added up elsewhere
				x.ahead = phase == ir.Backward && n.Op == ir.OpAllGather
				t.instrs = append(t.instrs, x)
			}
		}
	}
	return t
}

// at returns the times for a micro-batch of a size.
func (t *trunk) at(size int) *trunkTimes {
	if known := t.known[size]; known != nil {
		return known
	}
	p := t.plan
	p.MicroBatch = size
	batch := t.plan.MicroBatch
	mesh := p.Mesh(batch)
	x := &trunkTimes{}
	for i := range t.instrs {
		in := &t.instrs[i]
		time, _ := t.price.Instr(&in.Instr, mesh, ir.Coord{})
		part := &x[in.part]
		part.all += time
		if in.pass != ir.WeightGrad {
			part.input += time
		}
		if in.ahead {
			part.ahead += time
		}
	}
	t.known[size] = x
	return x
}

// floor bounds the plans of an outline with micro-batches of a size from below, of a
// schedule.
//
// Position i of a pipeline starts when micro-batch 0 has come through the positions
// before, does all its work, and then its last backward pass goes on to position 0:
// the time is at least that of one micro-batch through the positions before and of
// all micro-batches through position i (PLANNING.md 2.7). How many blocks lie before
// is open; all lie on that way for the last position, and some position has its even
// share.
func (s *searcher) floor(o outline, size int, schedule partition.Schedule) cost.Picoseconds {
	t := s.trunk(o)
	if t == nil {
		return 0
	}
	replicas := o.dp * (s.opts.RuntimeNGPUs / o.plan)
	local := (s.batch + replicas - 1) / replicas
	m := (local + size - 1) / size
	least := s.least(o, t.at(size), t.at(local-(m-1)*size), m, schedule)
	if busy := t.price.Busy(o.pp, m); busy < 1 {
		least = cost.Picoseconds(float64(least) * busy)
	}
	return least
}

// least is the floor of m micro-batches, all but the last of one size, where all ranks
// are busy.
func (s *searcher) least(o outline, first, last *trunkTimes, m int, schedule partition.Schedule) cost.Picoseconds {
	blocks := s.graphs.blocks
	// all is every micro-batch through a part of the model, way one there and back.
	all := func(part, n int) cost.Picoseconds {
		return cost.Picoseconds(n) * (cost.Picoseconds(m-1)*first[part].all + last[part].all)
	}
	way := func(part, n int) cost.Picoseconds {
		if schedule == partition.ZeroBubble {
			return cost.Picoseconds(n) * last[part].input
		}
		return cost.Picoseconds(n) * last[part].all
	}
	if o.pp == 1 {
		return all(beforeBlocks, 1) + all(inBlock, blocks) + all(afterBlocks, 1)
	}
	ahead := max(first[inBlock].ahead, last[inBlock].ahead)
	if o.chunks > 1 {
		bound, before := cost.Picoseconds(0), 0
		cut := evenCut(blocks, o.stages(), func(int) extent { return kept })
		for at := range o.pp {
			mine := 0
			for i := at; i < len(cut); i += o.pp {
				mine += cut[i].Last - cut[i].First
			}
			time := all(inBlock, mine) + way(inBlock, before) - cost.Picoseconds(at)*ahead
			switch at {
			case 0:
				time += all(beforeBlocks, 1)
			case o.pp - 1:
				time += all(afterBlocks, 1)
			}
			bound = max(bound, time)
			before += cut[at].Last - cut[at].First
		}
		return bound
	}
	share := (blocks + o.pp - 1) / o.pp
	bound := max(all(inBlock, share), all(beforeBlocks, 1)+all(inBlock, 1))
	bound = max(bound, way(beforeBlocks, 1)+way(inBlock, blocks-1)+all(inBlock, 1)+all(afterBlocks, 1)-cost.Picoseconds(o.pp-1)*ahead)
	// With blocks that can be divided, positions that all end at once have ever fewer
	// of them: after each, 1-way/all of what was left of the time is.
	if every := all(inBlock, 1); every > 0 {
		ratio, left := float64(way(inBlock, 1))/float64(every), 1.0
		for range o.pp {
			left *= 1 - ratio
		}
		bound = max(bound, cost.Picoseconds(float64(way(inBlock, blocks))/(1-left)*(1-1e-9))-cost.Picoseconds(o.pp-1)*ahead)
	}
	return bound
}
