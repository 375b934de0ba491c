package planner

import (
	"maps"
	"slices"
	"sort"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

// This file bounds the step time of a pipeline (an outline with a micro-batch size and a schedule) from below, for cuts of
// which only a part is known: the number of blocks and the recomputation of one stage, and perhaps what lies before it.
// cut.go branches over cuts by these bounds, slices.go and relief.go compare them, and certify_cuts.go checks a certificate
// with them. Interleaved schedules, which have one even cut, need none.

// bounds are lower bounds of the step time given the number of blocks and the recomputation of a stage i, whatever the other
// stages have. They follow from a chain of events that every schedule without interleaving has: micro-batch 0 goes forward
// through all stages and backward down to stage i; i then does the work that it has left; the last backward pass goes on to
// stage 0, which updates, and what waits for that update follows (see tails). Whatever the cut, that chain passes every block
// once forward and once backward. Two others end earlier: with the update of i itself, or with all the work of i. They may begin with a
// later micro-batch than 0: see turn. Another goes through the later stages several times: see rounds.
//
// Few numbers of blocks are of interest: those of stages of about equal time. So only these are bounded, when they are asked for;
// floors, which need no recomputation, tell which.
type bounds struct {
	pipe    *pipeline
	limit   int64 // bytes
	opts    Options
	learned map[tried]bool     // stages that were found not to fit
	stages  []stageBounds      // by stage
	through []line             // by stage: what it adds to the chains of later stages, micro-batch 0 forward and the last one backward
	work    []line             // by stage: all work, that of the communication stream included
	ahead   []cost.Picoseconds // by stage: see gathersAhead
	end     cost.Picoseconds   // what follows the last backward pass of stage 0
	before  []line             // by stage: through of the stages before, a block at the fastest of them
	weights line               // the least of a pass of stage 0 for weight gradients, of a whole micro-batch
	overall cost.Picoseconds   // see ofAll, 0 until it is asked for
}

// stageBounds bound plans by the number of blocks of a stage.
type stageBounds struct {
	pipe  *pipeline
	stage int
	works *stageWork
	tails *tails
	// start is micro-batch 0 forward through all stages and back through those from this one on, but for blocks on the way back.
	// flow adds the last micro-batch back to stage 0, with all blocks as if it alone went back through them.
	start, flow cost.Picoseconds
	posted      cost.Picoseconds
	rounds      rounds
	turns       [3]turn
	slower      cost.Picoseconds    // by how much longer micro-batch 0 takes through a block here than on the fastest other stage
	back, last  cost.Picoseconds    // micro-batch 0 and the last one back through a block, at the fastest other stage
	pair        cost.Picoseconds    // a block forward and back, at the fastest other stage
	end         cost.Picoseconds    // see bounds
	fit         int                 // the most blocks that may fit
	floor       []cost.Picoseconds  // by number of blocks less one: with so many or more, whatever is recomputed
	known       []*stageBlockBounds // by number of blocks less one; nil until asked for
}

// rounds are a chain of events through the stages from one on. Where a stage has k micro-batches in flight, it goes forward with
// micro-batch j+k when it has gone back with j (see [codegen.Order]). So micro-batches 0, k, 2k and so on go through these stages and
// back one after the other; when the last of them is back, the stage has the backward passes of the others left. Before the first
// there may be rounds of stage 0, as before a turn.
type rounds struct {
	before  turn // instead of micro-batch 0 its first one goes through these stages first
	number  int
	fixed   cost.Picoseconds // all of them without blocks, and what follows
	weights int              // passes for weight gradients between them and the last backward pass
	left    int              // backward passes after the last round
}

// roundsOf returns the rounds of stage i after a turn.
func (p *pipeline) roundsOf(i int, before turn, c *chainTimes) rounds {
	m, k := p.microBatches, p.early[i]
	last := before.first + (m-1-before.first)/k*k // the micro-batch of the last round
	r := rounds{before: before, number: (last-before.first)/k + 1, left: m - 1 - last}
	if last == m-1 && p.size(last) != c.first { // of it only the backward pass counts
		r.number, r.left = r.number-1, 1
	}
	r.fixed = cost.Picoseconds(r.number) * (c.round[i] - p.body(i, ir.Backward, c.first).posted())
	if i > 0 && r.left == 0 { // else the last of those has it
		r.fixed += p.body(i, ir.Backward, rest).posted()
	}
	if p.template.Schedule.SplitsBackward() {
		for j := before.first; j < m-1; j++ {
			if j >= codegen.WeightLag(p.template.Schedule, i) {
				r.weights++
			}
			if j < last {
				j += k - 1
			}
		}
	}
	return r
}

// longestRounds returns the rounds of a stage, after those of stage 0 with which they take longest if all stages have about as many blocks.
func (x *stageBounds) longestRounds(c *chainTimes) (longest rounds) {
	p, stages := x.pipe, len(x.pipe.stages)
	if p.template.Schedule == partition.GPipe {
		return rounds{}
	}
	n, left := evenShare(p.skel.blocks, stages, x.stage), 0
	for i := x.stage; i < stages; i++ {
		left += evenShare(p.skel.blocks, stages, i)
	}
	waits, most := x.works.waiting(n, recomputation{}), cost.Picoseconds(-1)
	for number := 0; number < stages && (number == 0 || number*p.early[0] < p.microBatches-1); number++ {
		some := p.roundsOf(x.stage, x.turnOf(number, c), c)
		if time := x.around(&some, x.works, n, recomputation{}, waits) + cost.Picoseconds(some.number*left)*x.pair; time > most {
			most, longest = time, some
		}
	}
	return longest
}

// turn is a micro-batch with which a chain reaches the work of a stage, instead of micro-batch 0. Those before it have gone through
// all stages and back one after the other, as in rounds of stage 0.
type turn struct {
	first  int              // the micro-batch
	rounds int              // before it
	time   cost.Picoseconds // of these, with all blocks as fast as at the fastest other stage
}

// turnOf returns the turn after so many rounds of stage 0.
func (x *stageBounds) turnOf(rounds int, c *chainTimes) turn {
	p := x.pipe
	return turn{rounds * p.early[0], rounds, cost.Picoseconds(rounds) * (c.round[0] + cost.Picoseconds(p.skel.blocks)*x.pair)}
}

// turnsOf returns the turns of a stage: after no round, after one, and after as many as leave more than the last micro-batch.
func (x *stageBounds) turnsOf(c *chainTimes) [3]turn {
	most := 0
	if p := x.pipe; p.template.Schedule != partition.GPipe {
		most = max(0, p.microBatches-2) / p.early[0]
	}
	return [3]turn{{}, x.turnOf(min(1, most), c), x.turnOf(most, c)}
}

// before is how long the rounds of stage 0 before a turn take if the stage has n blocks, and makes gradients of their weights in so
// much time. If it is another than stage 0, what that makes between rounds is left out: see passed.
func (x *stageBounds) before(t *turn, n int, weight cost.Picoseconds) cost.Picoseconds {
	if x.stage > 0 {
		weight = 0
	}
	return t.time + cost.Picoseconds(t.rounds)*(weight+cost.Picoseconds(n)*x.slower)
}

// stageBlockBounds are those of one number of blocks.
type stageBlockBounds struct {
	time     cost.Picoseconds // the least with any recomputation; never if none fits
	options  []option         // nil until asked for
	front    []option         // see [bounds.front]; nil until asked for
	compared bool             // see [bounds.choices]
}

// never is the bound of what does not fit: later than any time.
const never = cost.Picoseconds(1) << 62

// newBounds bounds the cuts of a pipeline under a memory limit. learned are stages that were found not to fit.
func newBounds(p *pipeline, limit int64, opts Options, learned map[tried]bool) *bounds {
	opts.Recompute = opts.recompute(p.skel.outline.replicate)
	b := &bounds{pipe: p, limit: limit, opts: opts, learned: maps.Clone(learned)}
	c := b.chain()
	tails := newTails(p)
	b.weights = c.works[0].weight[whole]
	b.weights.lower()
	b.end = tails.of(0, 1) + c.works[0].weight[rest].at(1, recomputation{}) - c.works[0].weight[rest].spares()
	for i := range p.stages {
		b.stages = append(b.stages, b.ofStage(i, c, tails))
	}
	before := line{}
	for i := range b.through {
		l := &b.through[i]
		b.before = append(b.before, before)
		if before.fixed += l.fixed - l.gathersAhead(); i == 0 || l.least() < before.block[kept] {
			before.block[kept] = l.least()
		}
	}
	return b
}

// chainTimes are the times of which the chain of events consists. Blocks are alike, but a stage may have slower links or
// devices than another.
type chainTimes struct {
	first     int                   // the size of micro-batch 0: whole, or rest if it is the only one
	forward   cost.Picoseconds      // micro-batch 0 forward through all stages, without blocks
	ahead     fastest               // forward through a block
	back      [2][]line             // by size and stage, a micro-batch backward through the stage
	backFixed [2][]cost.Picoseconds // what back has outside of blocks
	round     []cost.Picoseconds    // by stage, micro-batch 0 forward and backward through it and all later ones, without blocks
	block     [2]fastest            // by size, a micro-batch backward through a block
	works     []stageWork           // by stage
}

// chain adds up the times of the chain, and notes for each stage what bounds keep of it.
func (b *bounds) chain() *chainTimes {
	p, stages := b.pipe, len(b.pipe.stages)
	c := &chainTimes{
		first: p.size(0), back: [2][]line{make([]line, stages), make([]line, stages)}, works: make([]stageWork, stages),
	}
	same := map[*stageTimes]int{} // the first of the stages that take the same times
	for i, s := range p.stages {
		f := p.ahead(i)
		c.forward += f.fixed
		c.ahead.note(f.block[kept])
		if k, known := same[s]; known {
			c.works[i], c.back[c.first][i], c.back[rest][i] = c.works[k], c.back[c.first][k], c.back[rest][k]
			b.like(k)
			continue
		}
		same[s] = i
		c.works[i] = newStageWork(p, i, cost.Picoseconds(p.microBatches))
		for _, size := range []int{c.first, rest} {
			c.back[size][i] = p.body(i, ir.Backward, size).through()
		}
		f = s.forward[c.first].through()
		x := &c.back[rest][i]
		for e := range extents {
			f.block[e] += x.block[e]
			f.early[e] += x.early[e]
		}
		f.fixed += x.fixed
		ahead := cost.Picoseconds(0)
		for size := range 2 {
			l := p.body(i, ir.Backward, size).through()
			ahead = max(ahead, l.gathersAhead(), c.works[i].weight[size].spares())
		}
		b.ahead = append(b.ahead, ahead)
		b.through = append(b.through, f)
		b.work = append(b.work, c.works[i].both)
	}
	for size := range c.backFixed {
		for _, l := range c.back[size] {
			c.backFixed[size] = append(c.backFixed[size], l.fixed-l.gathersAhead())
			c.block[size].note(l.least())
		}
	}
	c.round = slices.Clone(c.backFixed[c.first])
	for i := stages - 1; i >= 0; i-- {
		if c.round[i] += p.ahead(i).fixed; i+1 < stages {
			c.round[i] += c.round[i+1]
		}
	}
	return c
}

// ofStage prepares bounds of plans by what stage i has.
func (b *bounds) ofStage(i int, c *chainTimes, tails *tails) stageBounds {
	p, stages, blocks, first := b.pipe, len(b.pipe.stages), b.pipe.skel.blocks, c.first
	x := stageBounds{pipe: p, stage: i, works: &c.works[i], tails: tails, back: c.block[first].besides(i), last: c.block[rest].besides(i), end: b.end, known: make([]*stageBlockBounds, blocks-stages+1)}
	ahead := c.ahead.besides(i)
	x.pair, x.start = ahead+x.back, c.forward+cost.Picoseconds(blocks)*ahead
	x.flow = x.start + cost.Picoseconds(blocks)*x.last + b.end
	for j := range stages {
		size := first
		if j < i {
			size = rest
		}
		x.flow += c.backFixed[size][j]
		if j >= i {
			x.start += c.backFixed[size][j]
		}
	}
	// The stage goes on while a gradient that it has posted is on its way. So that of micro-batch 0 delays none of its own
	// work, unless micro-batch 0 is the last one as well, and that of the last micro-batch delays stage 0 alone, on flow.
	posted := p.body(i, ir.Backward, first).posted()
	x.start -= posted
	if p.microBatches > 1 {
		x.flow -= posted
		x.posted = p.body(i, ir.Backward, rest).posted()
	}
	x.slower = p.ahead(i).block[kept] + c.back[first][i].least() - x.pair
	x.rounds, x.turns = x.longestRounds(c), x.turnsOf(c)
	x.fit = sort.Search(len(x.known), func(n int) bool { return p.memory[i].least(n+1, p.room[i]) > b.limit })
	least := x.works.least()
	for n := range x.known {
		x.floor = append(x.floor, x.option(&least, n+1, recomputation{}, tails.inOrder(i, n+1)).time)
	}
	for n := len(x.floor) - 2; n >= 0; n-- {
		x.floor[n] = min(x.floor[n], x.floor[n+1])
	}
	return x
}

// option bounds plans in which the stage has n blocks, recomputed as r says, and a tail.
func (x *stageBounds) option(w *stageWork, n int, r recomputation, tail cost.Picoseconds) option {
	p, stages := x.pipe, len(x.pipe.stages)
	from := n + stages - 1 - x.stage // at least so many blocks are not before the stage: micro-batch 0 goes back through them
	if x.stage == 0 {
		from = p.skel.blocks
	}
	m1, m := cost.Picoseconds(p.microBatches-1), cost.Picoseconds(p.microBatches)
	waits := w.waiting(n, r)
	weight, lag := w.weight[whole].at(n, r)+waits.weight, codegen.WeightLag(p.template.Schedule, x.stage)
	passes := max(w.passes.at(n, r)+m1*(waits.forward+waits.backward), w.posting(p, x.stage, n, r))
	o := option{recomputation: r, passes: passes, around: x.around(&x.rounds, w, n, r, waits)}
	o.time = max(w.all.at(n, r)+w.waits(m, n, r, waits)+tail, o.around+cost.Picoseconds(x.rounds.number*from)*x.pair+x.end)
	for i := range x.turns {
		t := &x.turns[i]
		others := p.microBatches - 1 - t.first
		own := x.before(t, n, weight) + cost.Picoseconds(n)*x.slower + w.left(p, x.stage, t.first, n, r)
		own += cost.Picoseconds(others)*waits.backward + cost.Picoseconds(max(0, others-p.early[x.stage]))*waits.forward
		made := max(0, t.first-lag) // of so many micro-batches weight gradients are made before: see [codegen.Order]
		o.flow[i] = x.flow + own + cost.Picoseconds(max(0, others-max(0, lag-t.first)))*weight
		o.late[i] = x.start + own - x.posted + w.weights.at(n, r) + m1*waits.weight - cost.Picoseconds(made)*weight + tail
		o.time = max(o.time, x.after(&o, i, from))
	}
	return o
}

// after is the bound of an option's turn if so many blocks are not before the stage.
func (x *stageBounds) after(o *option, turn, left int) cost.Picoseconds {
	return max(o.flow[turn]+cost.Picoseconds(left)*(x.back-x.last), o.late[turn]+cost.Picoseconds(left)*x.back)
}

// around bounds rounds of the stage, but for blocks that take as long as at the fastest other stage.
func (x *stageBounds) around(rounds *rounds, w *stageWork, n int, r recomputation, waits waiting) cost.Picoseconds {
	time := x.before(&rounds.before, n, w.weight[whole].at(n, r)+waits.weight)
	time += rounds.fixed + cost.Picoseconds(max(0, rounds.number-1+rounds.left))*waits.backward + cost.Picoseconds(rounds.weights)*waits.weight
	time += cost.Picoseconds(rounds.number*n) * x.slower
	if left := rounds.left; left > 0 {
		time += cost.Picoseconds(left-1)*w.backward[whole].at(n, r) + w.last.at(n, r)
	}
	if rounds.weights > 0 {
		time += cost.Picoseconds(rounds.weights) * w.weight[whole].at(n, r)
	}
	return time
}

// blocks returns the bounds of n blocks of a stage.
func (b *bounds) blocks(stage, n int) *stageBlockBounds {
	x := &b.stages[stage]
	if known := x.known[n-1]; known != nil {
		return known
	}
	of := &stageBlockBounds{time: never}
	x.known[n-1] = of
	tail := x.tails.of(stage, n)
	b.eachThatFits(stage, n, func(r recomputation) {
		if o := x.option(x.works, n, r, tail); o.time < of.time { // outlasting it takes longer to find out
			of.time = min(of.time, x.option(x.works, n, r, tail+x.pipe.lastPass(stage).outlasts(n, r)).time)
		}
	})
	return of
}

// time is the least bound of n blocks of a stage with any recomputation, never if they do not fit.
func (b *bounds) time(stage, n int) cost.Picoseconds { return b.blocks(stage, n).time }

// options lists the recomputations with which n blocks of a stage may fit, with their bounds.
func (b *bounds) options(stage, n int) []option {
	of, x := b.blocks(stage, n), &b.stages[stage]
	if of.options == nil && of.time < never {
		tail := x.tails.of(stage, n)
		for _, r := range b.recomputations(stage, n) {
			tail := tail + x.pipe.lastPass(stage).outlasts(n, r)
			of.options = append(of.options, x.option(x.works, n, r, tail))
		}
	}
	return of.options
}

// front lists, of the options, those that [bounds.from] may be least of.
func (b *bounds) front(stage, n int) []option {
	of := b.blocks(stage, n)
	if of.front != nil {
		return of.front
	}
	for _, o := range b.options(stage, n) {
		if !slices.ContainsFunc(of.front, func(x option) bool {
			return x.time <= o.time && x.around <= o.around && x.passes <= o.passes && allAtMost(x.late, o.late) && allAtMost(x.flow, o.flow)
		}) {
			of.front = append(of.front, o)
		}
	}
	return of.front
}

// allAtMost reports whether every time of a is at most that of b.
func allAtMost(a, b [3]cost.Picoseconds) bool { return a[0] <= b[0] && a[1] <= b[1] && a[2] <= b[2] }

// leave forbids numbers of blocks of a stage: those for which some, by number less one, is false.
func (b *bounds) leave(stage int, some []bool) {
	for n, ok := range some {
		if !ok {
			b.stages[stage].known[n] = &stageBlockBounds{time: never}
		}
	}
}

// lastPass is the last pass of a step at stage i, in which its gradients are completed.
func (p *pipeline) lastPass(i int) body {
	if p.template.Schedule.SplitsBackward() {
		return p.body(i, ir.WeightGrad, rest)
	}
	return p.body(i, ir.Backward, rest)
}

// outlasts bounds from below by how much the communication stream outlasts a pass over n blocks, from what the pass hands to it
// after the last receive.
func (b body) outlasts(n int, r recomputation) cost.Picoseconds {
	all := b[0].flow.outlasts(tally{n}, r)
	if all == nil {
		return 0
	}
	from := 0
	for k := range b {
		if b[k].kind == sim.Recv {
			from = b[k].nth
		}
	}
	return slices.Max(all[from:])
}

// ahead is the least time of a forward pass of stage i on the way of a micro-batch through all stages. That is micro-batch 0
// or, under gpipe, where a stage runs all forward passes before it goes back, the first one up to some stage and the last
// one after it.
func (p *pipeline) ahead(i int) line {
	l := p.stages[i].forward[p.size(0)].through()
	if p.template.Schedule == partition.GPipe {
		last := p.stages[i].forward[rest].through()
		l.fixed, l.block[kept] = min(l.fixed, last.fixed), min(l.block[kept], last.block[kept])
	}
	return l
}

// like adds a stage that takes the same times as an earlier one.
func (b *bounds) like(stage int) {
	b.ahead = append(b.ahead, b.ahead[stage])
	b.through = append(b.through, b.through[stage])
	b.work = append(b.work, b.work[stage])
}

// least is the time of a block, to whatever extent it is recomputed. With more to compute it may take less: other products
// may then run beside its collectives.
func (l *line) least() cost.Picoseconds { return slices.Min(l.block[:]) }

// gathersAhead is by how much less the last block of a stage may take in the backward pass, from when its gradient arrives,
// if the block is recomputed: recomputation has then gathered weights, keys and values already.
func (l *line) gathersAhead() cost.Picoseconds {
	var less cost.Picoseconds
	for e := range extents {
		less = max(less, l.block[kept]-l.block[e]-l.early[e])
	}
	return less
}

// spares is by how much less the weight gradients of a block may take in a pass of their own if the block is recomputed:
// recomputation has gathered what they read.
func (l *line) spares() cost.Picoseconds {
	return max(0, l.block[kept]-l.block[selective], l.block[kept]-l.block[full])
}

// stageWork is the work of a stage in a step, without its update.
type stageWork struct {
	forward, backward, weight [2]line
	last                      line       // a backward pass over the last micro-batch, up to what it sends
	passes                    line       // all forward and backward passes, the last one up to what it sends
	weights                   line       // all passes for weight gradients, where they have their own
	all                       line       // passes in full, and weights
	both                      line       // all, and what communication streams do
	beside                    *stageWork // what communication streams do in forward, backward and weight
	// leads are those of the passes, and of the last backward pass and the last one for weight gradients: see [body.leads].
	leads struct{ forward, backward, weight [2]cost.Picoseconds }
	// streams are passes over a whole micro-batch that end when their stream is done: see [body.outlasts].
	streams struct{ backward, weight body }
	known   map[flowKey][2]cost.Picoseconds // what these outlast
	// sent are passes up to what they send, that included, where passes of a kind follow each other: the next one waits until it
	// is sent. Otherwise they are nothing.
	sent struct{ forward, backward line }
	// posts are passes up to what they post, by size, and all that they post, one message after the other.
	posts struct {
		forward, backward [2]line
		all               cost.Picoseconds
	}
}

// newStageWork adds up the work of stage i over m micro-batches.
func newStageWork(p *pipeline, i int, m cost.Picoseconds) stageWork {
	var w, beside stageWork
	for size := range 2 {
		forward, backward, weight := p.body(i, ir.Forward, size), p.body(i, ir.Backward, size), p.body(i, ir.WeightGrad, size)
		w.forward[size], w.backward[size], w.weight[size] = forward.busy(), backward.busy(), weight.busy()
		if p.spared != nil {
			for e := range extents {
				w.weight[size].block[e] -= p.spared[i]
			}
		}
		beside.forward[size], beside.backward[size], beside.weight[size] = forward.beside(), backward.beside(), weight.beside()
		w.leads.forward[size], w.leads.backward[size], w.leads.weight[size] = forward.leads(), backward.leads(), weight.leads()
	}
	if p.spared == nil {
		w.streams.backward, w.streams.weight = p.body(i, ir.Backward, whole), p.body(i, ir.WeightGrad, whole)
	}
	w.known = map[flowKey][2]cost.Picoseconds{}
	for size, times := range [2]cost.Picoseconds{whole: m - 1, rest: 1} {
		forward, backward := p.body(i, ir.Forward, size), p.body(i, ir.Backward, size)
		w.posts.forward[size], w.posts.backward[size] = forward.sent(), backward.sent()
		w.posts.forward[size].fixed -= forward.posted()
		w.posts.backward[size].fixed -= backward.posted()
		w.posts.all += times * (forward.posted() + backward.posted())
	}
	if p.template.Schedule == partition.GPipe {
		w.sent.forward, w.sent.backward = p.body(i, ir.Forward, whole).sent(), p.body(i, ir.Backward, whole).sent()
	}
	w.total(m)
	beside.total(m)
	w.both, w.beside = w.all.plus(beside.all), &beside
	w.last = p.body(i, ir.Backward, rest).sent()
	w.passes = w.passes.plus(w.last)
	w.passes.fixed -= w.backward[rest].fixed
	for e := range extents {
		w.passes.block[e] -= w.backward[rest].block[e]
	}
	return w
}

// total adds up the passes of m micro-batches, of which the last may be smaller.
func (w *stageWork) total(m cost.Picoseconds) {
	sum := func(total *line, of [2]line) {
		total.fixed += (m-1)*of[whole].fixed + of[rest].fixed
		for e := range extents {
			total.block[e] += (m-1)*of[whole].block[e] + of[rest].block[e]
		}
	}
	sum(&w.passes, w.forward)
	sum(&w.passes, w.backward)
	sum(&w.weights, w.weight)
	w.all = w.passes.plus(w.weights)
}

// plus adds two lines. The second must have no early part.
func (l line) plus(m line) line {
	l.fixed += m.fixed
	for e := range extents {
		l.block[e] += m.block[e]
	}
	return l
}

// least is the work that blocks have whatever they recompute.
func (w *stageWork) least() stageWork {
	l := *w
	for size := range 2 {
		for _, x := range []*line{&l.forward[size], &l.backward[size], &l.weight[size], &l.posts.forward[size], &l.posts.backward[size]} {
			x.lower()
		}
	}
	for _, x := range []*line{&l.last, &l.passes, &l.weights, &l.all} {
		x.lower()
	}
	l.beside, l.sent.forward, l.sent.backward, l.streams.backward, l.streams.weight = &stageWork{}, line{}, line{}, nil, nil
	return l
}

// lower takes the least of all recomputation for blocks that recompute nothing.
func (l *line) lower() {
	l.fixed += slices.Min(l.early[:])
	l.block = [extents]cost.Picoseconds{kept: l.least()}
	l.early = [extents]cost.Picoseconds{}
}

// waiting is how long a stage waits in its passes over a whole micro-batch.
type waiting struct{ forward, backward, weight cost.Picoseconds }

// waiting returns how long a stage waits: for what its passes gather first, or for all that they give to the stream, as each ends
// only when that is done, or until what they have posted is sent.
func (w *stageWork) waiting(n int, r recomputation) waiting {
	b, l := w.beside, &w.leads
	backward, weight := w.outlasts(n, r)
	return waiting{
		max(wait(&b.forward[whole], &w.forward[whole], l.forward[whole], n, r), w.sent.forward.at(n, r)-w.forward[whole].at(n, r)),
		max(wait(&b.backward[whole], &w.backward[whole], l.backward[whole], n, r), w.sent.backward.at(n, r)-w.backward[whole].at(n, r), backward),
		wait(&b.weight[whole], &w.weight[whole], l.weight[whole]+weight, n, r),
	}
}

// outlasts is by how much the stream outlasts a backward pass, and one for weight gradients.
func (w *stageWork) outlasts(n int, r recomputation) (backward, weight cost.Picoseconds) {
	if w.streams.backward == nil {
		return 0, 0
	}
	key := flowKey{tally{n}, r}
	times, known := w.known[key]
	if !known {
		for k, b := range []body{w.streams.backward, w.streams.weight} {
			if len(b) > 0 {
				times[k] = b.outlasts(n, r)
			}
		}
		w.known[key] = times
	}
	return times[0], times[1]
}

func wait(stream, order *line, lead cost.Picoseconds, n int, r recomputation) cost.Picoseconds {
	return max(lead, stream.at(n, r)-order.at(n, r))
}

// waits is how long a stage waits in all passes. The last backward pass may end earlier (see outlast).
func (w *stageWork) waits(m cost.Picoseconds, n int, r recomputation, each waiting) cost.Picoseconds {
	return (m-1)*(each.forward+each.backward+each.weight) +
		wait(&w.beside.forward[rest], &w.forward[rest], w.leads.forward[rest], n, r) + w.leads.backward[rest] + w.leads.weight[rest]
}

// left is what stage i has left to do after its backward pass over the first of some micro-batches: the other backward passes, and the
// forward passes that do not run while the first one is on its way (see earlyForwards).
func (w *stageWork) left(p *pipeline, i, first, n int, r recomputation) cost.Picoseconds {
	var t cost.Picoseconds
	if m := p.microBatches - first; m > 1 {
		t += cost.Picoseconds(m-2)*w.backward[whole].at(n, r) + w.last.at(n, r)
	}
	if late := p.microBatches - first - p.early[i]; late > 0 {
		t += cost.Picoseconds(late-1)*w.forward[whole].at(n, r) + w.forward[rest].at(n, r)
	}
	return t
}

// posting is how long stage i takes from when it has micro-batch 0 until all that it posts is sent, one message after the other. The
// forward passes before its first backward pass, and the backward passes after its last forward pass, wait for the message of the one
// before.
func (w *stageWork) posting(p *pipeline, i, n int, r recomputation) cost.Picoseconds {
	time, some := w.posts.all, p.early[i]
	for _, passes := range []*[2]line{&w.posts.forward, &w.posts.backward} {
		last := whole
		if passes == &w.posts.backward || some == p.microBatches {
			last = rest
		}
		if some > 1 {
			time += cost.Picoseconds(some-2)*passes[whole].at(n, r) + passes[last].at(n, r)
		}
	}
	return time + w.posts.forward[p.size(0)].at(n, r)
}

// most returns the most blocks that a stage can have within a time, 0 if not even one.
func (b *bounds) most(stage int, time cost.Picoseconds) int {
	n := b.stages[stage].most(time)
	for n > 0 && b.time(stage, n) > time {
		n--
	}
	return n
}

// most returns the most blocks that may fit and of which the floor is within a time.
func (x *stageBounds) most(time cost.Picoseconds) int {
	return sort.Search(x.fit, func(i int) bool { return x.floor[i] > time })
}

// passed is what chains take with the stages before some stage.
type passed struct {
	time    cost.Picoseconds // micro-batch 0 forward and the last one backward
	weights cost.Picoseconds // after each round of stage 0: its pass for weight gradients
}

// past adds a stage with n blocks, recomputed as r says, to what is before the next one.
func (b *bounds) past(before passed, stage, n int, r recomputation) passed {
	if before.time += b.through[stage].at(n, r); stage == 0 {
		w := b.stages[0].works
		before.weights = w.weight[whole].at(n, r) + w.waiting(n, r).weight
	}
	return before
}

// leastPassed bounds what chains take with the stages before some stage, which have so many blocks between them, stage 0 no fewer
// than some.
func (b *bounds) leastPassed(stage, blocks, some int) passed {
	before := passed{time: b.before[stage].at(blocks, recomputation{})}
	if stage > 0 {
		before.weights = b.weights.at(some, recomputation{})
	}
	return before
}

// from bounds plans in which stage i is as an option says, and left is the number of blocks that are not before it, its own
// included. before is the least that the stages before add to chains.
func (b *bounds) from(i, left int, o *option, before passed) cost.Picoseconds {
	x := &b.stages[i]
	around := o.around + cost.Picoseconds(x.rounds.number*left)*x.pair + cost.Picoseconds(x.rounds.before.rounds)*before.weights
	time := max(o.time, before.time+max(o.passes, around)+b.end)
	for k := range x.turns {
		time = max(time, x.after(o, k, left)+cost.Picoseconds(x.turns[k].rounds)*before.weights)
	}
	return time
}

// ofAll bounds all plans of the pipeline. It is never where there are none.
func (b *bounds) ofAll() cost.Picoseconds {
	if b.overall > 0 {
		return b.overall
	}
	b.overall = b.best()
	for more := b.overall/256 + 1; b.overall < never; more *= 4 { // the higher the ceiling, the more is bounded
		ceiling := min(b.overall+more, never-1)
		if all := b.reach(ceiling, 0)[0][b.pipe.skel.blocks]; all < never || ceiling == never-1 {
			b.overall = all
			break
		}
	}
	return b.overall
}

// reach bounds, by stage and number of blocks, the plans in which the stages from that one on have so many blocks between
// them: a dynamic program from the last stage back. What takes longer than the ceiling is never, and so is what is part of no
// plan: every stage has at least the blocks that the others cannot have within the ceiling. With some, stage 0 has so many.
func (b *bounds) reach(ceiling cost.Picoseconds, some int) [][]cost.Picoseconds {
	stages, blocks := len(b.stages), b.pipe.skel.blocks
	all := make([][]cost.Picoseconds, stages+1)
	for i := range all {
		all[i] = slices.Repeat([]cost.Picoseconds{never}, blocks+1)
	}
	all[stages][0] = 0
	spare, most := -blocks, make([]int, stages) // the blocks that the stages can have, less those that there are
	for i := range most {
		if most[i] = b.most(i, ceiling); i == 0 && some > 0 {
			most[i] = some
		}
		spare += most[i]
	}
	if spare < 0 {
		return all
	}
	first := max(1, most[0]-spare, some)
	for i, later := stages-1, 0; i >= 0; i-- { // later: the most that later stages have
		least := max(1, most[i]-spare)
		if i == 0 {
			least = first
		}
		for left := max(stages-i, later+most[i]-spare); left <= min(later+most[i], blocks-i); left++ {
			before := b.leastPassed(i, blocks-left, first)
			time := never
			for n := max(least, left-later); n <= min(most[i], left-(stages-1-i)); n++ {
				after := all[i+1][left-n]
				if after >= time || b.time(i, n) > ceiling {
					continue
				}
				for k := range b.front(i, n) {
					time = min(time, max(after, b.from(i, left, &b.front(i, n)[k], before)))
				}
			}
			if time <= ceiling {
				all[i][left] = time
			}
		}
		later += most[i]
	}
	return all
}

// best is a lower bound over all cuts that is cheaper than ofAll: the least time in which the stages can hold all blocks
// between them, each by its own bounds. It is never if they cannot.
func (b *bounds) best() cost.Picoseconds {
	// hold reports whether stages can hold all blocks between them, given how many each can.
	hold := func(most func(stage int) int) bool {
		left := b.pipe.skel.blocks
		for i := range b.stages {
			n := most(i)
			if n == 0 {
				return false
			}
			left -= n
		}
		return left <= 0
	}
	fit := make([]int, len(b.stages)) // the most blocks that fit
	for i := range fit {
		fit[i] = b.most(i, never-1)
	}
	if !hold(func(i int) int { return fit[i] }) {
		return never
	}
	low := leastTime(1, func(t cost.Picoseconds) bool {
		return hold(func(i int) int { return min(fit[i], b.stages[i].most(t)) })
	})
	return leastTime(low, func(t cost.Picoseconds) bool { return hold(func(i int) int { return b.most(i, t) }) })
}

// leastTime returns the least time from low on that is enough.
func leastTime(low cost.Picoseconds, enough func(cost.Picoseconds) bool) cost.Picoseconds {
	if enough(low) {
		return low
	}
	// Double what is added until the time is enough, then bisect.
	step := low/64 + 1
	for ; !enough(min(low+step, never-1)); step *= 2 {
		low += step
	}
	high := min(low+step, never-1)
	for high-low > 1 { // high is enough, low is not
		if half := low + (high-low)/2; enough(half) {
			high = half
		} else {
			low = half
		}
	}
	return high
}
