package explain

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

// film is a step over time on some ranks: what runs when, and what is in memory meanwhile. Times are in nanoseconds from
// the start of the step. The HTML page embeds it as JSON for its script; chart.go and plot.go draw it.
type film struct {
	Step  int64      `json:"step"`
	Names []string   `json:"names"` // of instructions
	Ranks []filmRank `json:"ranks"`
	// Moments say what is live in parts of tasks: see [profile].
	Moments []moment `json:"moments"`
	// Note says what is left out, if anything is.
	Note string `json:"note,omitempty"`
}

// filmRank is one rank in a film.
type filmRank struct {
	Rank  int        `json:"rank"`
	Label string     `json:"label"`
	Tasks []filmTask `json:"tasks"`
	Spans []filmSpan `json:"spans"`
	// Arena is what the rank allocates, Persist the part that is live throughout the step, in bytes. Parts divide Persist.
	Arena   int64   `json:"arena"`
	Persist int64   `json:"persist"`
	Parts   []Part  `json:"parts"`
	Points  []point `json:"points"`
}

// filmTask is one pass of a rank. A pass that waits in between is several.
type filmTask struct {
	Start, End int64
	Kind       int // one of the film kinds below
	Name       string
	MicroBatch int
}

// MarshalJSON prints [start, end, kind, name, micro-batch].
func (t filmTask) MarshalJSON() ([]byte, error) {
	return json.Marshal([]any{t.Start, t.End, t.Kind, t.Name, t.MicroBatch})
}

// filmSpan is one instruction. Lane is 0 for what the rank itself runs, else it is that of a stream beside the kernels.
type filmSpan struct {
	Start, End       int64
	Name, Kind, Lane int
}

// MarshalJSON prints [start, end, name, kind, lane].
func (s filmSpan) MarshalJSON() ([]byte, error) {
	return json.Marshal([]int64{s.Start, s.End, int64(s.Name), int64(s.Kind), int64(s.Lane)})
}

// point is the memory of a rank from a time on, in live bytes: Saved is what micro-batches in flight keep, Temp are the
// temporary buffers of the task that runs.
type point struct {
	Time        int64
	Saved, Temp int64
	InFlight    int // micro-batches
	Moment      int // index into the moments of the film
}

// MarshalJSON prints [time, saved, temporary, in flight, moment].
func (p point) MarshalJSON() ([]byte, error) {
	return json.Marshal([]int64{p.Time, p.Saved, p.Temp, int64(p.InFlight), int64(p.Moment)})
}

// moment is the instruction of a part of a task at which the most bytes are live, with the largest live tensors.
type moment struct {
	At   string `json:"at"` // name of the instruction
	Live []Live `json:"live"`
}

// Film kinds: the colours of a timeline.
const (
	filmForward = iota
	filmBackward
	filmWeightGrad
	filmUpdate
	filmCollective
	filmTransfer
	filmHost
	filmRecompute
)

func filmKinds() []string {
	return []string{"forward", "backward", "weight gradients", "optimizer", "collective", "transfer", "host copy", "recomputation"}
}

// The bounds of a film.
const (
	filmRanks   = 16      // ranks shown, at most
	filmSpans   = 40_000  // instructions shown, at most
	filmWork    = 2 << 20 // instructions simulated for it, at most
	filmPoints  = 300     // points of the memory curve of a rank, about
	filmBins    = 12      // parts of a task whose memory is shown, at least
	filmWait    = 200     // a wait is shown if it is longer than the step divided by this
	filmLargest = 6       // tensors named at a moment
)

// chooseRanks chooses the ranks to show: all if they are few, else the first rank of each position of the pipeline and the busiest
// rank. If several are chosen, they run about most instructions together at most.
func (r *Report) chooseRanks(most int) []int {
	var ranks []int
	if len(r.prog.Schedules) <= filmRanks {
		for rank := range r.prog.Schedules {
			ranks = append(ranks, rank)
		}
	} else {
		for _, st := range r.Stages {
			ranks = append(ranks, st.Ranks[0])
		}
		if !slices.Contains(ranks, r.Prediction.Busiest) {
			ranks = append(ranks, r.Prediction.Busiest)
		}
	}
	// If not all fit, take the busiest and others at equal distances.
	work := func(rank int) (n int) {
		s := &r.prog.Schedules[rank]
		for _, t := range s.Tasks {
			n += len(r.prog.Stages[s.Stage].Run(t))
		}
		return n
	}
	fit := min(filmRanks, max(1, most/max(1, work(ranks[0]))))
	if len(ranks) <= fit {
		return ranks
	}
	chosen := []int{r.Prediction.Busiest}
	for i := 0; len(chosen) < fit && i < fit; i++ {
		if rank := ranks[i*len(ranks)/fit]; !slices.Contains(chosen, rank) {
			chosen = append(chosen, rank)
		}
	}
	slices.Sort(chosen)
	return chosen
}

// film simulates the step again and returns it as a film. It fails without a prediction.
func (r *Report) film() (*film, error) {
	if r.Prediction == nil {
		return nil, fmt.Errorf("explain: there is nothing to show over time: nothing was predicted")
	}
	ranks := r.chooseRanks(filmWork)
	line, err := sim.Run(r.prog, r.Prediction.cluster, sim.Options{Spans: true, Only: ranks})
	if err != nil {
		return nil, fmt.Errorf("explain: %w", err)
	}
	f := &film{Step: nanos(line.Step)}
	var notes []string
	if n := len(r.prog.Schedules); len(ranks) < n {
		notes = append(notes, fmt.Sprintf("%d of %d ranks are shown: the busiest, and those of stages beside it", len(ranks), n))
	}
	detailed := r.detailed(len(line.Spans), filmSpans, func(i int) int { return line.Spans[i].Rank })
	if len(detailed) < len(ranks) {
		notes = append(notes, leftOut(detailed, len(line.Spans)))
	}
	f.Note = strings.Join(notes, "; ")
	e := &filmMaker{report: r, film: f, names: map[string]int{}, profiles: map[profileKey]*profile{}, bins: max(filmBins, filmPoints/len(r.prog.Schedules[ranks[0]].Tasks))}
	for from := 0; from < len(line.Spans); {
		to := from
		for to < len(line.Spans) && line.Spans[to].Rank == line.Spans[from].Rank {
			to++
		}
		f.Ranks = append(f.Ranks, e.rank(line.Spans[from:to], slices.Contains(detailed, line.Spans[from].Rank)))
		from = to
	}
	return f, nil
}

// leftOut says on which ranks instructions are shown, if there are too many to show them all.
func leftOut(detailed []int, spans int) string {
	what := "not the instructions of passes"
	if len(detailed) > 0 {
		what = "instructions of passes only on " + rankText(detailed)
	}
	return what + ", for there are " + Grouped(int64(spans))
}

// detailed chooses the ranks whose every instruction is shown: the busiest, and then as many others as there is room for, in
// spans. rank returns the rank of each of the spans.
func (r *Report) detailed(spans, room int, rank func(int) int) []int {
	counts := map[int]int{}
	ranks := []int{}
	for i := range spans {
		of := rank(i)
		if counts[of] == 0 {
			ranks = append(ranks, of)
		}
		counts[of]++
	}
	first := r.Prediction.Busiest
	slices.SortStableFunc(ranks, func(a, b int) int {
		switch first {
		case a:
			return -1
		case b:
			return 1
		}
		return 0
	})
	ranks = slices.DeleteFunc(ranks, func(rank int) bool {
		room -= counts[rank]
		return room < 0
	})
	slices.Sort(ranks)
	return ranks
}

func nanos(p cost.Picoseconds) int64 { return int64(p / 1000) }

// filmMaker makes a film from the spans of a simulation.
type filmMaker struct {
	report   *Report
	film     *film
	names    map[string]int // index into film.Names
	profiles map[profileKey]*profile
	bins     int // parts into which profiles divide a task
}

func (e *filmMaker) name(name string) int {
	i, known := e.names[name]
	if !known {
		i = len(e.film.Names)
		e.names[name] = i
		e.film.Names = append(e.film.Names, name)
	}
	return i
}

// kindOf returns the film kind of an instruction in a task of a phase.
func kindOf(n *ir.Node, phase ir.Phase) int {
	switch {
	case n.Op == ir.OpSend || n.Op == ir.OpRecv:
		return filmTransfer
	case codegen.HostCopy(n.Op):
		return filmHost
	case codegen.Collective(n.Op):
		return filmCollective
	case recomputed(n):
		return filmRecompute
	}
	return phaseKind(phase)
}

func phaseKind(phase ir.Phase) int {
	switch phase {
	case ir.Forward:
		return filmForward
	case ir.WeightGrad:
		return filmWeightGrad
	case ir.Update:
		return filmUpdate
	}
	return filmBackward
}

// rank makes the film of one rank from its spans, which are ordered by time. detailed says whether it has instructions.
func (e *filmMaker) rank(spans []sim.Span, detailed bool) filmRank {
	r := e.report
	s := &r.prog.Schedules[spans[0].Rank]
	code := r.prog.Stages[s.Stage]
	out := filmRank{
		Rank: s.Rank, Label: fmt.Sprintf("rank %d · stage %d", s.Rank, s.Stage), Arena: code.Arena(), Persist: code.Persist,
		Parts: r.Stages[s.Stage].Memory.Parts, Spans: []filmSpan{},
	}
	byTask := map[int][]sim.Span{}
	for _, x := range spans {
		byTask[x.Task] = append(byTask[x.Task], x)
	}
	// Lane 1 is the communication stream; the lanes of tensor-parallel collectives beside products, and of transfers, follow.
	// A stream that the plan does not use has no lane.
	exchange, transfers := 1, 1
	if r.prog.Plan.Overlap {
		exchange, transfers = 2, 2
	}
	if r.prog.Plan.OverlapTP || r.prog.Plan.TPPieces > 1 {
		transfers++
	}
	live := map[[2]int]int64{} // bytes that a micro-batch in flight keeps, by chunk and micro-batch
	release := codegen.Releases(r.prog.Plan, r.prog.Training())
	for i, t := range s.Tasks {
		own, instrs := byTask[i], code.Run(t)
		for _, x := range own {
			lane := 0
			switch {
			case x.Stream:
				lane = 1
			case x.Beside:
				lane = exchange
			case x.Posted:
				lane = transfers
			}
			if n := instrs[x.Instr].Node; detailed && x.End > x.Start {
				out.Spans = append(out.Spans, filmSpan{nanos(x.Start), nanos(x.End), e.name(n.Name), kindOf(n, t.Phase), lane})
			}
		}
		// What a task leaves to streams may end after the next task has begun, so it is no part of the pass.
		own = slices.DeleteFunc(own, func(x sim.Span) bool { return x.Stream || x.Posted })
		out.Tasks = append(out.Tasks, passes(t, own, e.film.Step/filmWait)...)

		p := e.profile(s.Stage, t)
		mine := [2]int{t.Chunk, t.MicroBatch}
		others := int64(0)
		for key, bytes := range live {
			if key != mine {
				others += bytes
			}
		}
		inFlight := len(live)
		if _, there := live[mine]; !there && t.Phase != ir.Update {
			inFlight++
		}
		out.Points = p.add(out.Points, own, others, inFlight)
		switch {
		case t.Phase == release:
			delete(live, mine)
		case t.Phase != ir.Update:
			live[mine] = p.after
		}
	}
	return out
}

// passes turns a task into passes, given the spans that the rank itself runs: several if the rank waits for longer than wait,
// in nanoseconds.
func passes(t codegen.Task, own []sim.Span, wait int64) []filmTask {
	var parts []filmTask
	for i, x := range own {
		from, to := nanos(x.Start), nanos(x.End)
		if i == 0 || from-parts[len(parts)-1].End > wait {
			parts = append(parts, filmTask{from, to, phaseKind(t.Phase), t.String(), t.MicroBatch})
		}
		last := &parts[len(parts)-1]
		last.End = max(last.End, to)
	}
	return parts
}

// add appends the memory of a task to points. own are the spans that the rank itself runs in the task, others the bytes that
// other micro-batches keep, inFlight their number with this one. There is a point whenever a span begins in a later bin than
// the spans before. Its memory is that of the fullest bin up to there since the last point, because streams run what lies
// between.
func (p *profile) add(points []point, own []sim.Span, others int64, inFlight int) []point {
	next := 0 // the first bin that has no point yet
	for i, x := range own {
		to := p.bin(x.Instr+x.Bucket) + 1
		if i == len(own)-1 {
			to = len(p.bins) // streams run what is left
		}
		if to > next {
			b := slices.MaxFunc(p.bins[next:to], func(a, b profileBin) int { return cmp.Compare(a.slot+a.temp, b.slot+b.temp) })
			points = append(points, point{nanos(x.Start), others + b.slot, b.temp, inFlight, b.moment})
			next = to
		}
	}
	return points
}
