package sim

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/planner/cost"
)

// This file simulates a compiled program: it prices every instruction, merges runs of them into ops, and connects the
// ops of ranks to groups and channels. explain, measured and the command line show its Timeline; the search's prices
// are tested against it.

// Options of [Run].
type Options struct {
	// Spans asks for when every instruction ran, on the ranks in Only, or on all if it is nil.
	Spans bool
	Only  []int
	// Account, if not nil, divides the time of instructions over a number of accounts. Rank.Accounts has their sums.
	Account  Account
	Accounts int
	// Slow, if not nil, says how many times as long each rank takes for what it does by itself. Step and End are then
	// of such ranks; what is said of parts of the step is not.
	Slow []float64
}

// Account adds the time of an instruction, or of the collectives of a bucket, at a position of the mesh to the
// accounts that it belongs to. What it adds must sum to the time.
type Account func(instrs []codegen.Instr, at ir.Coord, time cost.Picoseconds, accounts []float64)

// Timeline is the simulated step of a program.
type Timeline struct {
	Step  cost.Picoseconds // when the last rank ends
	Ranks []Rank
	Spans []Span // by rank, then in order; nil unless asked for
}

// Rank is what one rank does with the step.
type Rank struct {
	First     bool           // the first rank of its position, which has the most to do
	Like      int            // the first rank of its position with the same work at the same times
	Breakdown cost.Breakdown // of the whole step; idle time is bubble
	// Accounts are the sums, in picoseconds, of what [Options.Account] added. With the bubble they sum to the step.
	Accounts []float64
}

// Span is one instruction of one task on one rank, or a bucket of collectives. Waiting is between spans.
type Span struct {
	Rank, Task int  // index into the rank's schedule
	Instr      int  // index into [codegen.Stage.Run] of the task
	Bucket     int  // number of further instructions in the same bucket
	Stream     bool // on the rank's communication stream
	Beside     bool // a tensor-parallel collective that runs beside the instructions after it
	Posted     bool // a send on the rank's stream of transfers
	Start, End cost.Picoseconds
}

// Run simulates one step of a program on a cluster. It is deterministic. Ranks at positions of the mesh that every
// axis cuts alike have the same work, as do the ranks that they meet, so they do everything at the same times: one of
// them is simulated for all. It fails if the cluster cannot hold the plan, if ranks wait for each other forever, and
// with a *LongError if the step may take longer than can be counted.
func Run(prog *codegen.Program, c *cost.Cluster, opts Options) (*Timeline, error) {
	return run(prog, c, opts, alike)
}

// alike returns, for every rank, the rank that is simulated for it.
func alike(prog *codegen.Program, canonical func(ir.Coord) ir.Coord) []int {
	like := make([]int, len(prog.Schedules))
	for r := range prog.Schedules {
		s := &prog.Schedules[r]
		like[r] = prog.Plan.WorldRank(s.Stage, prog.Mesh.Device(canonical(s.Coord)))
	}
	return like
}

func run(prog *codegen.Program, c *cost.Cluster, opts Options, alike func(*codegen.Program, func(ir.Coord) ir.Coord) []int) (*Timeline, error) {
	if err := c.Holds(prog.Plan); err != nil {
		return nil, fmt.Errorf("sim: %w", err)
	}
	b := builder{
		prog: prog, price: cost.NewProgram(c, prog.Plan, prog.Mesh), canonical: cost.Canonical(prog),
		bodies: map[bodyKey]*body{}, account: opts.Account, accounts: opts.Accounts, slow: opts.Slow,
		groups: map[groupKey]int{}, channels: map[channelKey]int{},
	}
	b.like = alike(prog, b.canonical)
	if opts.Slow != nil {
		for r := range b.like {
			b.like[r] = r
		}
	}
	if err := b.build(); err != nil {
		return nil, err
	}
	if err := b.countable(c); err != nil {
		return nil, err
	}
	line := &Timeline{Ranks: make([]Rank, len(prog.Schedules))}
	if opts.Spans {
		b.recordSpans(line, opts.Only)
	}
	b.system.Exposed = make([]cost.Picoseconds, len(b.ranks))
	accounts := b.accountWaits()
	ends, err := b.system.Run()
	if err != nil {
		return nil, err
	}
	for p := range ends {
		line.Step = max(line.Step, ends[p])
	}
	for p := range ends {
		line.Ranks[b.ranks[p]] = b.rank(p, line.Step, accounts[p])
	}
	for r, like := range b.like {
		line.Ranks[r] = line.Ranks[like]
		line.Ranks[r].First = prog.Schedules[r].Device == 0
	}
	if opts.Spans {
		sortSpans(line.Spans)
	}
	return line, nil
}

// LongError is a step that may take longer than [cost.Picoseconds] count.
type LongError struct {
	Cluster string
	Days    float64 // that the ranks of all stages are busy, one after another
}

func (e *LongError) Error() string {
	return fmt.Sprintf("sim: the stages of a step are busy for %.3g days on cluster %s: longer than can be counted", e.Days, e.Cluster)
}

// countable refuses a step that may take longer than can be counted. At any time of a step a rank of some stage is busy, and
// ranks of a stage do nearly the same. So the step ends within twice the sum over stages of what their busiest rank does.
func (b *builder) countable(c *cost.Cluster) error {
	const day = 24 * 3600 * 1e12
	busy := map[*body]float64{}
	stages := make([]float64, len(b.prog.Stages))
	for p, used := range b.used {
		sum := 0.0
		for _, x := range used {
			if _, known := busy[x]; !known {
				for i := range x.ops {
					for _, t := range x.ops[i].times {
						busy[x] += float64(t)
					}
				}
			}
			sum += busy[x]
		}
		stage := b.prog.Schedules[b.ranks[p]].Stage
		stages[stage] = max(stages[stage], sum)
	}
	days := 0.0
	for _, sum := range stages {
		days += sum / day
	}
	if 2*days*day >= math.MaxInt64 {
		return &LongError{c.Name, days}
	}
	return nil
}

// recordSpans has the simulation record in a timeline when every instruction ran, on the ranks in only, or on all if it
// is nil.
func (b *builder) recordSpans(line *Timeline, only []int) {
	shown := b.shown(only)
	b.system.Trace = func(p, task, op int, start, end cost.Picoseconds) {
		if len(shown[p]) == 0 {
			return
		}
		body := b.used[p][task]
		o := &body.ops[op]
		if o.silent {
			return
		}
		add := func(x Span) {
			for _, x.Rank = range shown[p] {
				line.Spans = append(line.Spans, x)
			}
		}
		if o.bucket > 0 || o.stream || o.beside || o.posted {
			add(Span{Task: task, Instr: o.instrs[0], Bucket: o.bucket, Stream: o.stream, Beside: o.beside, Posted: o.posted, Start: start, End: end})
			return
		}
		for i, k := range o.instrs {
			// The instructions of one op follow each other. A meeting has only one.
			add(Span{Task: task, Instr: k, Start: start, End: start + o.times[i]})
			start += o.times[i]
		}
	}
}

// accountWaits has the simulation divide what processes wait for their streams over the accounts of what they wait for.
// It returns the accounts by process; nil for each if none are asked for.
func (b *builder) accountWaits() [][]float64 {
	exposed := make([][]float64, len(b.ranks))
	if b.account == nil {
		return exposed
	}
	for p := range exposed {
		exposed[p] = make([]float64, b.accounts)
	}
	b.system.Waited = func(p, task, op int, time cost.Picoseconds) {
		o := &b.used[p][task].ops[op]
		for i, a := range o.accounts {
			if a > 0 {
				exposed[p][i] += a / float64(o.work) * float64(time)
			}
		}
	}
	return exposed
}

// rank returns what a simulated rank does with the step. accounts has what it waited for its streams; the accounts of its
// bodies are added.
func (b *builder) rank(p int, step cost.Picoseconds, accounts []float64) Rank {
	r := b.ranks[p]
	rank := Rank{Like: r, Accounts: accounts}
	for _, body := range b.used[p] {
		rank.Breakdown.Compute += body.spent[cost.Compute]
		rank.Breakdown.Communication += body.spent[cost.Communication]
		rank.Breakdown.Optimizer += body.spent[cost.Optimizer]
		rank.Breakdown.Overlapped += body.beside
		for i, a := range body.accounts {
			accounts[i] += a
		}
	}
	rank.Breakdown.Communication += b.system.Exposed[p]
	rank.Breakdown.Overlapped = max(0, rank.Breakdown.Overlapped-b.system.Exposed[p])
	rank.Breakdown.Bubble = step - rank.Breakdown.Total()
	return rank
}

// builder turns a program into a [System].
type builder struct {
	prog      *codegen.Program
	price     *cost.Program
	canonical func(ir.Coord) ir.Coord
	like      []int // by rank, the rank that is simulated for it
	ranks     []int // those that are simulated, by process
	processes []int // by rank, the process that simulates it
	bodies    map[bodyKey]*body
	groups    map[groupKey]int
	channels  map[channelKey]int
	used      [][]*body // by process and task
	system    System
	account   Account
	accounts  int
	slow      []float64 // as in [Options]
}

// bodyKey identifies bodies in which everything takes the same time. Ranks meet different peers, so ops are made for
// each rank: see ops.
type bodyKey struct {
	stage, chunk int
	phase        ir.Phase
	last         bool // it includes what runs only in the last micro-batch
	at           ir.Coord
}

// body is a straight line of instructions with their times.
type body struct {
	ops   []stretch
	spent [3]cost.Picoseconds
	// beside is the time on the communication stream and the stream of transfers, and of collectives beside kernels,
	// without that by which these delay kernels, which is part of spent.
	beside cost.Picoseconds
	// accounts divide spent. The accounts of what runs on streams are those of its ops.
	accounts []float64
}

// stretch is the instructions of one op.
type stretch struct {
	kind   OpKind
	instrs []int // indexes into the body; of a bucket only the first
	bucket int   // number of further instructions in the bucket
	times  []cost.Picoseconds
	work   cost.Picoseconds
	stream bool
	late   bool             // the end of the task does not wait for it
	silent bool             // it is only a meeting: its work is another op
	await  int              // number of asynchronous ops of the task to wait for
	beside bool             // the next op runs beside it
	posted bool             // a send on the stream of transfers
	slows  cost.Picoseconds // by how much it delays the ops beside it

	accounts []float64 // of an op that runs on a stream or beside others
}

type groupKey struct {
	stage, axis   int
	async, beside bool
	at            ir.Coord // the position of the first member
}

type channelKey struct {
	wire   *ir.Node // the send
	device int
}

// shown lists, for every process, the ranks whose spans are asked for: those in only, or all if it is nil.
func (b *builder) shown(only []int) [][]int {
	shown := make([][]int, len(b.ranks))
	for r, p := range b.processes {
		if only == nil || slices.Contains(only, r) {
			shown[p] = append(shown[p], r)
		}
	}
	return shown
}

func (b *builder) build() error {
	last := codegen.Releases(b.prog.Plan, b.prog.Training())
	b.processes = make([]int, len(b.like))
	for r, like := range b.like {
		if r == like {
			b.processes[r] = len(b.ranks)
			b.ranks = append(b.ranks, r)
		}
	}
	for r, like := range b.like {
		if a, b := b.prog.Schedules[r].MicroBatches, b.prog.Schedules[like].MicroBatches; a != b {
			return fmt.Errorf("sim: rank %d is cut as rank %d, but runs %d micro-batches, not %d", r, like, a, b)
		}
		b.processes[r] = b.processes[like]
	}
	for _, r := range b.ranks {
		s := &b.prog.Schedules[r]
		var proc Process
		ops := map[*body][]Op{}
		var used []*body
		for _, t := range s.Tasks {
			body, err := b.body(s, t)
			if err != nil {
				return err
			}
			if ops[body] == nil {
				ops[body] = b.ops(s, t, body)
			}
			used = append(used, body)
			proc.Tasks = append(proc.Tasks, Task{
				Ops: ops[body], Chunk: t.Chunk, MicroBatch: t.MicroBatch, Releases: t.Phase == last, Joins: t.Phase == ir.Update, Part: PartOf(t),
			})
		}
		b.used = append(b.used, used)
		b.system.Processes = append(b.system.Processes, proc)
	}
	return nil
}

// PartOf returns the [Task.Part] of a task.
func PartOf(t codegen.Task) int { return t.Chunk*int(ir.NumPhases) + int(t.Phase) }

// body returns the instructions of a task with their times, shared by all tasks with the same times.
func (b *builder) body(s *codegen.Schedule, t codegen.Task) (*body, error) {
	at := b.canonical(b.prog.At(s, t))
	instrs := b.prog.Stages[s.Stage].Run(t)
	key := bodyKey{s.Stage, t.Chunk, t.Phase, false, at}
	for i := range instrs {
		key.last = key.last || instrs[i].Last && s.Runs(&instrs[i], t)
	}
	if x, ok := b.bodies[key]; ok {
		return x, nil
	}
	x := &body{accounts: make([]float64, b.accounts)}
	until := 0        // the first instruction after those that run beside a collective
	given := []int{0} // by number of asynchronous instructions of the body so far, how many ops the stream has been given
	for i := 0; i < len(instrs); i++ {
		in, all := &instrs[i], codegen.Bucket(instrs, i)
		bucket := len(all) - 1
		runs := s.Runs(in, t)
		// Where ranks share processors, the work of a bucket or of a posted send takes the time of kernels. But
		// nothing waits for the other members, or for a free slot.
		stream, beside, posted := in.Async, in.Beside > 0, in.Posted
		hidden := stream || beside || posted
		apart := hidden && !b.price.Overlaps()
		for k := 0; in.Async && k <= bucket; k++ {
			n := given[len(given)-1]
			if runs && stream && k == 0 {
				n++
			}
			given = append(given, n)
		}
		first := i
		i += bucket
		if !runs {
			continue
		}
		time, kind := b.price.Bucket(all, b.prog.Mesh, at)
		if time < 0 {
			return nil, fmt.Errorf("sim: %s takes %d ps", in.Node.Name, time)
		}
		if b.account != nil && (!hidden || apart) {
			b.account(all, at, time, x.accounts)
		}
		op, await := opKind(b.prog.Mesh, in.Node), given[in.Await]
		last := len(x.ops) - 1
		if apart {
			x.ops = append(x.ops,
				stretch{kind: Work, instrs: []int{first}, bucket: bucket, work: time, times: []cost.Picoseconds{time}, await: await},
				stretch{kind: op, instrs: []int{first}, stream: stream, beside: beside, posted: posted, late: in.Last, silent: true})
			x.spent[kind] += time
			if beside {
				until = first + 1 + in.Beside
			}
			continue
		}
		if op != Work || bucket > 0 || stream || await > 0 || first == until || last < 0 || x.ops[last].kind != Work || x.ops[last].bucket > 0 || x.ops[last].stream {
			x.ops = append(x.ops, stretch{kind: op, bucket: bucket, stream: stream, beside: beside, posted: posted, late: stream && in.Last, await: await})
			last++
		}
		if beside {
			until = first + 1 + in.Beside
		}
		o := &x.ops[last]
		o.instrs, o.times = append(o.instrs, first), append(o.times, time)
		o.work += time
		if hidden {
			if !posted {
				o.slows = b.price.Slowed(in.Node, time)
				x.spent[kind] += o.slows
			}
			x.beside += time - o.slows
			if b.account != nil {
				o.accounts = make([]float64, b.accounts)
				b.account(all, at, time, o.accounts)
				for i, a := range o.accounts {
					if a > 0 {
						x.accounts[i] += a / float64(time) * float64(o.slows)
					}
				}
			}
		} else {
			x.spent[kind] += time
		}
	}
	b.bodies[key] = x
	return x, nil
}

// opKind returns how an instruction depends on other ranks.
func opKind(mesh ir.Mesh, n *ir.Node) OpKind {
	switch n.Op {
	case ir.OpSend:
		return Send
	case ir.OpRecv:
		return Recv
	case ir.OpAllReduce, ir.OpAllGather, ir.OpReduceScatter, ir.OpAllToAll:
		if mesh.Size(n.Attr.(ir.CommAttr).Axis) > 1 {
			return Join
		}
	}
	return Work
}

// ops returns the ops of a body for one rank, with the groups and channels of that rank.
func (b *builder) ops(s *codegen.Schedule, t codegen.Task, x *body) []Op {
	ops := make([]Op, len(x.ops))
	instrs := b.prog.Stages[s.Stage].Run(t)
	for i := range x.ops {
		o := &x.ops[i]
		in := &instrs[o.instrs[0]]
		n := in.Node
		ops[i] = Op{Kind: o.kind, Time: o.work, Async: o.stream, Late: o.late, Await: o.await, Posted: o.posted, Slows: o.slows}
		if o.beside {
			ops[i].Beside = 1
		}
		switch o.kind {
		case Work:
			if b.slow != nil {
				ops[i].Time = cost.Picoseconds(b.slow[s.Rank] * float64(o.work))
			}
		case Join:
			ops[i].Peer = b.group(s, in)
		case Send:
			ops[i].Peer = b.channel(s, n)
		case Recv:
			ops[i].Peer = b.channel(s, n.Args[0].Def)
		}
	}
	return ops
}

func (b *builder) group(s *codegen.Schedule, in *codegen.Instr) int {
	axis := b.prog.Mesh.Axis(in.Node.Attr.(ir.CommAttr).Axis)
	key := groupKey{s.Stage, axis, in.Async, in.Beside > 0, s.Coord}
	key.at[axis] = 0
	id, ok := b.groups[key]
	if !ok {
		id = len(b.system.Groups)
		b.groups[key] = id
		var members []int
		ranks, _ := b.prog.Group(s, in.Node)
		for _, r := range ranks {
			if b.like[r] == r {
				members = append(members, b.processes[r])
			}
		}
		b.system.Groups = append(b.system.Groups, members)
	}
	return id
}

// channel returns the channel of a send. Sender and receiver get the same one.
func (b *builder) channel(s *codegen.Schedule, send *ir.Node) int {
	key := channelKey{send, s.Device}
	id, ok := b.channels[key]
	if !ok {
		id = len(b.system.Channels)
		b.channels[key] = id
		to := send.Attr.(ir.P2PAttr).Stage
		position, _ := b.prog.Plan.Position(to)
		chunk, room := b.prog.Stages[position].RoomFor(send)
		b.system.Channels = append(b.system.Channels, Channel{
			From: b.processes[b.prog.Plan.WorldRank(send.Stage, s.Device)], To: b.processes[b.prog.Plan.WorldRank(to, s.Device)],
			Chunk: chunk, Room: room,
		})
	}
	return id
}

// Breakdown returns how the busiest rank spends the step: the rank with the least bubble among the first ranks of all
// positions, which have the most to do. Its parts sum to Step.
func (t *Timeline) Breakdown() cost.Breakdown {
	busiest := t.Ranks[0].Breakdown
	for _, r := range t.Ranks {
		if r.First && r.Breakdown.Bubble < busiest.Bubble {
			busiest = r.Breakdown
		}
	}
	return busiest
}

// sortSpans orders spans by rank and time. Spans without duration, such as of a part without sequences, keep the
// order of the program, whatever stream they are on.
func sortSpans(spans []Span) {
	slices.SortFunc(spans, func(a, b Span) int {
		return cmp.Or(cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Start, b.Start), cmp.Compare(a.End, b.End), cmp.Compare(a.Task, b.Task), cmp.Compare(a.Instr, b.Instr))
	})
}
