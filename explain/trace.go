package explain

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
)

// The bounds of a predicted trace if no rank was asked for. The file has some 80 MB at most.
const (
	traceWork  = 1 << 20 // instructions of the ranks that are shown, at most
	traceSpans = 300_000 // instructions that are shown, at most
)

// PredictedTrace writes the predicted timeline in the Trace Event Format, which Perfetto and chrome://tracing open. Each rank
// is a process. It has a track of tasks with their kernels, a track of communication, one more for each stream that runs beside
// the kernels, and a curve of memory. Arrows lead from sends to receives. For a collective beside the kernels, arrows lead to
// it from what makes its operands, and from it to what reads its result.
//
// It shows the given rank, or if that is nil all ranks if they are few, else one of each position of the pipeline and the
// busiest, with the instructions of as many as there is room for. It returns a note on what is left out, which the file has,
// too. It fails without a prediction.
func (r *Report) PredictedTrace(w io.Writer, rank *int) (note string, err error) {
	if r.Prediction == nil {
		return "", fmt.Errorf("explain: there is no timeline: nothing was predicted or measured")
	}
	ranks := r.chooseRanks(traceWork)
	if rank != nil {
		ranks = []int{*rank}
	}
	spans, err := r.Spans(ranks...)
	if err != nil {
		return "", err
	}
	line, err := newTimeline(r.prog, spans, ranks)
	if err != nil {
		return "", err
	}
	if len(ranks) < len(r.prog.Schedules) {
		line.like = r.Prediction.like
		note = fmt.Sprintf("%s of %d (others: ", rankText(ranks), len(line.like))
		same := 0
		for _, like := range line.like {
			if slices.ContainsFunc(ranks, func(shown int) bool { return line.like[shown] == like }) {
				same++
			}
		}
		note += fmt.Sprintf("%d the same at the same times", same-len(ranks))
		if left := len(line.like) - same; left > 0 {
			note += fmt.Sprintf(", %d with parts of other sizes", left)
		}
		note += ")"
	}
	if rank == nil {
		line.detailed = r.detailed(len(spans), traceSpans, func(i int) int { return spans[i].Rank })
		if len(line.detailed) < len(ranks) {
			note += "; " + leftOut(line.detailed, len(spans))
		}
	}
	return strings.TrimPrefix(note, "; "), writeTrace(w, line.events(), note)
}

// TraceBeside writes the spans of a run and the predicted ones as two processes, measured and predicted. Each has the tracks
// of all ranks. It fails if either is no timeline of the program.
func (r *Report) TraceBeside(w io.Writer, measured []runtime.Span) error {
	predicted, err := r.Spans()
	if err != nil {
		return err
	}
	var all []event
	for process, of := range []struct {
		name  string
		spans []runtime.Span
	}{{"measured", measured}, {"predicted", predicted}} {
		line, err := newTimeline(r.prog, of.spans, nil)
		if err != nil {
			return fmt.Errorf("%s: %w", of.name, err)
		}
		all = append(all, event{Name: "process_name", Kind: "M", Process: process, Args: map[string]any{"name": of.name}})
		for _, e := range line.events() {
			rank := e.Process
			e.Process, e.Thread = process, rank*transferThread+e.Thread
			if e.ID > 0 {
				e.ID = 2*e.ID + process
			}
			switch e.Kind {
			case "M":
				if e.Name == "process_name" {
					continue
				}
				e.Args = map[string]any{"name": fmt.Sprintf("rank %d %s", rank, e.Args["name"])}
			case "C":
				e.Name = fmt.Sprintf("rank %d %s", rank, e.Name)
			}
			all = append(all, e)
		}
	}
	return writeTrace(w, all, "")
}

// writeTrace writes events in the Trace Event Format, with a note unless it is empty.
func writeTrace(w io.Writer, events []event, note string) error {
	out := bufio.NewWriter(w)
	fmt.Fprint(out, `{"displayTimeUnit":"ms",`)
	if note != "" {
		fmt.Fprintf(out, `"otherData":{"note":%q},`, note)
	}
	fmt.Fprint(out, `"traceEvents":[`)
	for i, e := range events {
		text, err := json.Marshal(e)
		if err != nil {
			return fmt.Errorf("explain: %w", err)
		}
		if i > 0 {
			out.WriteByte(',')
		}
		out.WriteByte('\n')
		out.Write(text)
	}
	fmt.Fprint(out, "\n]}\n")
	return out.Flush()
}

// event is one entry of the Trace Event Format. Times are in microseconds.
type event struct {
	Name      string         `json:"name"`
	Category  string         `json:"cat,omitempty"`
	Kind      string         `json:"ph"`
	Process   int            `json:"pid"`
	Thread    int            `json:"tid"`
	Time      micros         `json:"ts"`
	Duration  *micros        `json:"dur,omitempty"`
	ID        int            `json:"id,omitempty"`
	BindPoint string         `json:"bp,omitempty"`
	Args      map[string]any `json:"args,omitempty"`
}

// micros is a duration that is printed in microseconds, exactly.
type micros time.Duration

// MarshalJSON prints at most three decimals, as many as a nanosecond needs.
func (m micros) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, float64(m)/1000, 'f', -1, 64), nil
}

// The tracks of a rank: threads, in the format's terms.
const (
	computeThread  = 1
	commThread     = 2
	streamThread   = 3
	exchangeThread = 4
	transferThread = 5 // the last: see [Report.TraceBeside]
)

// events lists everything to draw, by rank and time.
func (l *timeline) events() []event {
	var events []event
	ids := map[message]int{}
	// Arrows between streams have ids above those of messages, of which there are fewer than this.
	arrows := len(l.ranks) * len(l.prog.Graph.Nodes) * (l.prog.Mesh.Size(partition.AxisMB) + 1)
	for rank, steps := range l.ranks {
		if len(steps) == 0 {
			continue // the rank is not shown
		}
		detailed := l.detailed == nil || slices.Contains(l.detailed, rank)
		events = append(events, l.labels(rank)...)
		add := func(name, category string, thread int, start, end time.Duration, args map[string]any) {
			length := micros(end - start)
			events = append(events, event{Name: name, Category: category, Kind: "X", Process: rank, Thread: thread, Time: micros(start), Duration: &length, Args: args})
		}
		if detailed {
			for _, a := range streamFlows(steps) {
				arrows++
				events = append(events, a.events(rank, arrows)...)
			}
		}
		stage := l.prog.Stages[l.prog.Schedules[rank].Stage]
		inFlight := make([]int, len(stage.Chunks))
		last := codegen.Releases(l.prog.Plan, l.prog.Training()) // the phase after which a slot is free
		if stage.SumsInSlots() > 0 {
			last = ir.Update
		}
		doing := codegen.Task{MicroBatch: anyMicroBatch} // the task of the compute stream
		for i := range steps {
			s := &steps[i]
			t := l.task(s)
			if s.Stream == runtime.Compute && t != doing {
				doing = t
				add(t.String(), "task", computeThread, s.Start, l.taskEnd(steps[i:]), nil)
				if t.Phase == ir.Forward {
					inFlight[t.Chunk]++
				}
				events = append(events, l.memory(rank, inFlight, s.Start))
				if t.Phase == last {
					inFlight[t.Chunk]--
				}
			}
			if !detailed && s.Op != ir.OpSend && s.Op != ir.OpRecv {
				continue
			}
			args := map[string]any{"op": s.Op.String(), "task": t.String()}
			if !communicates(s.Op) {
				add(s.Name, "compute", computeThread, s.Start, s.End, args)
				continue
			}
			var bytes int64
			for _, n := range s.nodes() {
				bytes += l.prog.CommBytes(&l.prog.Schedules[rank], &codegen.Instr{Node: n, Part: s.Part, Parts: s.Parts}, t)
			}
			args["bytes"] = strconv.FormatInt(bytes, 10)
			if len(s.with) > 0 {
				args["with"] = s.With
			}
			add(s.Name, "comm", s.thread(), s.Start, s.End, args)
			if (s.Op == ir.OpSend || s.Op == ir.OpRecv) && l.shown(l.message(s)) {
				events = append(events, l.arrow(s, ids))
			}
		}
	}
	return events
}

// taskEnd returns when the task of the first step ends on the compute stream. What it leaves to other streams may end later.
func (l *timeline) taskEnd(steps []step) time.Duration {
	end := steps[0].End
	for i := range steps {
		if s := &steps[i]; s.Stream == runtime.Compute {
			if l.task(s) != l.task(&steps[0]) {
				break
			}
			end = max(end, s.End)
		}
	}
	return end
}

// memory is a point of the curve of a rank's memory: the persistent and temporary regions, which are always allocated, and
// the slots and inboxes of the micro-batches in flight, given for each chunk.
func (l *timeline) memory(rank int, inFlight []int, at time.Duration) event {
	st := l.prog.Stages[l.prog.Schedules[rank].Stage]
	saved := int64(0)
	for i, c := range st.Chunks {
		saved += int64(inFlight[i]) * (c.Slot + c.Inbox)
	}
	return event{Name: "arena bytes", Kind: "C", Process: rank, Time: micros(at), Args: map[string]any{
		"1 persistent": st.Persist, "2 saved": saved, "3 temporary": st.Temp,
	}}
}

// labels names the process and tracks of a rank.
func (l *timeline) labels(rank int) []event {
	s := &l.prog.Schedules[rank]
	name := fmt.Sprintf("rank %d: stage %d", rank, s.Stage)
	for i, a := range l.prog.Mesh.Axes {
		if !a.Time {
			name += fmt.Sprintf(" %s=%d", a.Name, s.Coord[i])
		}
	}
	if l.like != nil {
		others := -1
		for _, like := range l.like {
			if like == l.like[rank] {
				others++
			}
		}
		name += ", as " + Count(others, "other")
	}
	labels := []event{
		{Name: "process_name", Kind: "M", Process: rank, Args: map[string]any{"name": name}},
		{Name: "thread_name", Kind: "M", Process: rank, Thread: computeThread, Args: map[string]any{"name": "compute"}},
		{Name: "thread_name", Kind: "M", Process: rank, Thread: commThread, Args: map[string]any{"name": "communication"}},
	}
	if l.prog.Plan.Overlap {
		labels = append(labels, event{Name: "thread_name", Kind: "M", Process: rank, Thread: streamThread, Args: map[string]any{"name": "communication stream"}})
	}
	if l.prog.Plan.OverlapTP || l.prog.Plan.TPPieces > 1 {
		labels = append(labels, event{Name: "thread_name", Kind: "M", Process: rank, Thread: exchangeThread, Args: map[string]any{"name": "exchange stream"}})
	}
	if l.prog.Plan.OverlapP2P {
		labels = append(labels, event{Name: "thread_name", Kind: "M", Process: rank, Thread: transferThread, Args: map[string]any{"name": "transfer stream"}})
	}
	return labels
}

// arrow is one end of the arrow from a send to its receive. Both ends have the id of the message.
func (l *timeline) arrow(s *step, ids map[message]int) event {
	m := l.message(s)
	if ids[m] == 0 {
		ids[m] = len(ids) + 1
	}
	e := event{Name: m.send, Category: "transfer", Process: s.Rank, Thread: s.thread(), ID: ids[m]}
	if s.Op == ir.OpSend {
		e.Kind, e.Time = "s", micros(s.Start)
	} else {
		e.Kind, e.Time, e.BindPoint = "f", micros(s.End), "e"
	}
	return e
}
