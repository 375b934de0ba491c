package lp

import (
	"fmt"
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
)

// most is the largest number of binary variables of a program. It is about what a solver reads in a minute, and
// compiling a position for each takes about as long.
const most = 50_000

// Options of [New].
type Options struct {
	Limit     int64             // bytes per rank, on the roomiest kind of device; smaller kinds have less
	Recompute planner.Recompute // which kinds of recomputation to choose from, as in a search: see [planner.Options]
	// Eval is a graph that runs between steps in the same memory; nil for none.
	Eval *ir.Graph
}

// Choice is what a pipeline position may hold: a number of blocks. The first Full of them are recomputed in full, the
// next Selective recompute attention, and the next Pointwise recompute norms and activation functions.
type Choice struct {
	Blocks, Full, Selective, Pointwise int
	Bytes                              int64 // of the arena
}

// Program is a mixed integer program. Its binary variables are Choices, its continuous variables events.
type Program struct {
	plan    partition.Plan // complete but for the cut
	options Options
	blocks  int
	limits  []int64 // by position
	// Choices lists, by position, what it may hold.
	Choices [][]Choice

	durations []duration
	events    []string     // names
	order     []precedence // constraints on events
	ends      []expression // when the positions end
}

// duration is a time that a position takes, by its choice.
type duration struct {
	name     string
	position int
	times    []cost.Picoseconds
}

// New states the cut and recomputation of a plan as a mixed integer program. Of the plan's stages only their number
// counts. It fails for interleaved plans, whose stages are cut evenly; for overlap under a zero-bubble schedule; and
// for models with too many blocks.
func New(g *ir.Graph, batch int, c *cost.Cluster, plan *partition.Plan, options Options) (*Program, error) {
	blocks := len(partition.Blocks(g))
	if plan.Chunks() > 1 {
		return nil, fmt.Errorf("lp: the plan has %d chunks per rank, which are cut evenly: there is nothing to choose; want interleave 1", plan.Chunks())
	}
	if plan.Overlap && plan.Schedule.SplitsBackward() {
		return nil, fmt.Errorf("lp: communication that goes on beside the next pass, as with overlap under schedule %s, cannot be stated in this version; want overlap off, or schedule 1f1b", plan.Schedule)
	}
	if err := plan.Validate(blocks, batch); err != nil {
		return nil, err
	}
	if err := c.Holds(plan); err != nil {
		return nil, err
	}
	if options.Recompute == planner.RecomputeSearched && len(plan.Replicated()) > 0 {
		options.Recompute = planner.RecomputeNone
	}
	p := &Program{plan: *plan, options: options, blocks: blocks}
	binaries := 0
	for at := range plan.PP() {
		limit := options.Limit
		if len(c.Pools) > 0 {
			limit = min(limit, c.MemoryAt(plan, at))
		}
		p.limits = append(p.limits, limit)
		var all []Choice
		for n := 1; n <= blocks-plan.PP()+1; n++ {
			all = append(all, choices(n, options.Recompute)...)
		}
		if plan.PP() == 1 {
			all = slices.DeleteFunc(all, func(x Choice) bool { return x.Blocks < blocks })
		}
		binaries += len(all)
		p.Choices = append(p.Choices, all)
	}
	if binaries > most {
		return nil, fmt.Errorf("lp: %d blocks in %d stages with any recomputation take %d binary variables, more than %d; fix the recomputation or take a smaller model",
			blocks, plan.PP(), binaries, most)
	}
	r := reader{Program: p, graph: g, batch: batch, cluster: c, bodies: make([]map[pass][][]segment, plan.PP())}
	if err := r.read(); err != nil {
		return nil, err
	}
	if err := p.schedule(&r); err != nil {
		return nil, err
	}
	return p, nil
}

// Limit is the bytes that a rank at a position may use.
func (p *Program) Limit(at int) int64 { return p.limits[at] }

// choices lists the ways to recompute n blocks.
func choices(n int, of planner.Recompute) []Choice {
	switch of {
	case planner.RecomputeNone:
		return []Choice{{Blocks: n}}
	case planner.RecomputePointwise:
		return []Choice{{Blocks: n, Pointwise: n}}
	case planner.RecomputeSelective:
		return []Choice{{Blocks: n, Selective: n}}
	case planner.RecomputeFull:
		return []Choice{{Blocks: n, Full: n}}
	}
	var all []Choice
	for f := range n + 1 {
		all = append(all, Choice{Blocks: n, Full: f})
		for k := 1; k <= n-f; k++ {
			all = append(all, Choice{Blocks: n, Full: f, Selective: k}, Choice{Blocks: n, Full: f, Pointwise: k})
		}
	}
	return all
}

// reader reads the times and bytes of all choices from compiled programs.
type reader struct {
	*Program
	graph        *ir.Graph
	batch        int
	cluster      *cost.Cluster
	microBatches int
	bodies       []map[pass][][]segment // by position, then by choice
}

// pass is a phase of a micro-batch. The last micro-batch is apart: it may be smaller, and some instructions run only
// in it.
type pass struct {
	phase ir.Phase
	last  bool
}

func passOf(t codegen.Task, microBatches int) pass {
	return pass{t.Phase, t.Phase != ir.Update && t.MicroBatch == microBatches-1}
}

// read compiles programs until it has seen every choice of every position. A program shows one choice of each
// position, so there are hardly more programs than choices of one position.
func (r *reader) read() error {
	for at := range r.bodies {
		r.bodies[at] = map[pass][][]segment{}
	}
	known := make([][]bool, len(r.Choices))
	for at := range known {
		known[at] = make([]bool, len(r.Choices[at]))
	}
	for _, all := range []bool{true, false} { // first only programs in which every position shows something new
		if err := r.cuts(nil, r.blocks, func(cut []int) error {
			for {
				picked, unknown := make([]int, len(cut)), 0
				for at, n := range cut {
					has := func(k int) bool { return r.Choices[at][k].Blocks == n }
					first := slices.IndexFunc(r.Choices[at], func(x Choice) bool { return x.Blocks == n })
					picked[at] = first
					for k := first; k < len(r.Choices[at]) && has(k); k++ {
						if !known[at][k] {
							picked[at] = k
							unknown++
							break
						}
					}
				}
				if unknown == 0 || all && unknown < len(cut) {
					return nil
				}
				if err := r.compile(picked); err != nil {
					return err
				}
				for at, k := range picked {
					known[at][k] = true
				}
			}
		}); err != nil {
			return err
		}
	}
	return nil
}

// cuts calls f with every way to divide the remaining blocks over the remaining positions.
func (r *reader) cuts(cut []int, left int, f func(cut []int) error) error {
	after := r.plan.PP() - len(cut) - 1
	if after == 0 {
		return f(append(slices.Clip(cut), left))
	}
	for n := 1; n <= left-after; n++ {
		if err := r.cuts(append(slices.Clip(cut), n), left-n, f); err != nil {
			return err
		}
	}
	return nil
}

// Plan returns the plan for a choice of every position, given by its index in Choices.
func (p *Program) Plan(picked []int) *partition.Plan {
	plan := p.plan
	plan.Stages = nil
	first := 0
	for at, k := range picked {
		x := p.Choices[at][k]
		plan.Stages = append(plan.Stages, partition.Stage{First: first, Last: first + x.Blocks, Recompute: x.Full, Selective: x.Selective, Pointwise: x.Pointwise})
		first += x.Blocks
	}
	return &plan
}

// compile compiles a program with one choice of every position and reads their times and bytes.
func (r *reader) compile(picked []int) error {
	plan := r.Plan(picked)
	prog, err := codegen.Compile(r.graph, plan, r.batch, nil)
	if err != nil {
		return err
	}
	arenas := make([]int64, len(prog.Stages))
	for at, st := range prog.Stages {
		arenas[at] = st.Arena()
	}
	if r.options.Eval != nil {
		eval, err := codegen.Compile(r.options.Eval, plan, r.batch, prog)
		if err != nil {
			return fmt.Errorf("lp: evaluation: %w", err)
		}
		for at, st := range eval.Stages {
			arenas[at] = max(arenas[at], st.Arena())
		}
	}
	b := bodyReader{prog: prog, price: cost.NewProgram(r.cluster, plan, prog.Mesh), wires: wires(prog)}
	for at := range picked {
		r.Choices[at][picked[at]].Bytes = arenas[at]
		s := first(prog, at)
		r.microBatches = max(r.microBatches, s.MicroBatches)
		for _, task := range s.Tasks {
			key := passOf(task, s.MicroBatches)
			if r.bodies[at][key] == nil {
				r.bodies[at][key] = make([][]segment, len(r.Choices[at]))
			}
			if r.bodies[at][key][picked[at]] == nil {
				r.bodies[at][key][picked[at]] = b.body(s, task)
			}
		}
	}
	return nil
}

// first returns what the first rank of a position runs. It has the largest slices and the most micro-batches, so the
// other ranks wait for it, and it stands for them.
func first(prog *codegen.Program, position int) *codegen.Schedule {
	return &prog.Schedules[prog.Plan.WorldRank(position, 0)]
}
