package explain

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu"
)

// checkTrace reads a trace back: spans of a thread nest, and every flow starts
// inside one span and ends inside another, later.
func checkTrace(t *testing.T, data []byte) {
	t.Helper()
	var file struct {
		TraceEvents []struct {
			Name, Ph, Cat string
			Pid, Tid, ID  int
			Ts, Dur       float64
			Args          map[string]any
		}
	}
	require.NoError(t, json.Unmarshal(data, &file))
	type thread struct{ pid, tid int }
	open := map[thread][]float64{} // ends of the spans around
	starts := map[int]float64{}
	spans, flows := 0, 0
	const rounding = 1e-3 // of a microsecond
	for _, e := range file.TraceEvents {
		at := thread{e.Pid, e.Tid}
		switch e.Ph {
		case "X":
			spans++
			for len(open[at]) > 0 && open[at][len(open[at])-1] <= e.Ts+rounding {
				open[at] = open[at][:len(open[at])-1]
			}
			if n := len(open[at]); n > 0 {
				require.LessOrEqual(t, e.Ts+e.Dur, open[at][n-1]+rounding, "%s of rank %d sticks out of the span around it", e.Name, e.Pid)
			}
			open[at] = append(open[at], e.Ts+e.Dur)
		case "C":
			for part, bytes := range e.Args {
				require.GreaterOrEqual(t, bytes, 0.0, "%s of rank %d", part, e.Pid)
			}
		case "s":
			require.NotContains(t, starts, e.ID)
			starts[e.ID] = e.Ts
		case "f":
			flows++
		}
	}
	for _, e := range file.TraceEvents {
		if e.Ph == "f" {
			sent, ok := starts[e.ID]
			require.True(t, ok, "%s is received, never sent", e.Name)
			require.LessOrEqual(t, sent, e.Ts, e.Name)
		}
	}
	require.Len(t, starts, flows)
	require.Positive(t, spans)
}

func TestPredictedTrace(t *testing.T) {
	for name, s := range shapes() {
		r := report(t, s)
		predicted, err := r.Spans()
		require.NoError(t, err)
		_, err = newTimeline(r.prog, predicted, nil)
		require.NoError(t, err, name)
		instrs := 0
		for _, sched := range r.prog.Schedules {
			for _, task := range sched.Tasks {
				for _, in := range r.prog.Stages[sched.Stage].Run(task) {
					if sched.Runs(&in, task) && !in.Fused {
						instrs++
					}
				}
			}
		}
		require.Len(t, predicted, instrs, name)
		var out bytes.Buffer
		note, err := r.PredictedTrace(&out, nil)
		require.NoError(t, err)
		require.Empty(t, note, name)
		checkTrace(t, out.Bytes())
		for rank, passes := range tracedPasses(t, out.Bytes()) {
			require.Equal(t, fmt.Sprint(r.prog.Schedules[rank].Tasks), fmt.Sprint(passes), "%s: rank %d", name, rank)
		}
	}
}

// TestTraceOfMany: of many ranks the trace shows one of each position and the busiest, with arrows between them, and a note says
// how many do the same. Any other rank can be asked for.
func TestTraceOfMany(t *testing.T) {
	r := report(t, shape{dp: 3, tp: 3, units: 1, micro: 1, stages: []partition.Stage{{Last: 2}, {First: 2, Last: 3}}, schedule: partition.OneFOneB})
	var out bytes.Buffer
	note, err := r.PredictedTrace(&out, nil)
	require.NoError(t, err)
	require.Contains(t, out.String(), note)
	checkTrace(t, out.Bytes())
	shown := []int{0, 9} // 7 sequences divide into 3, 2 and 2
	require.Equal(t, shown, tracedRanks(t, out.Bytes()))
	alike := 0
	all, err := r.Spans()
	require.NoError(t, err)
	for _, rank := range shown {
		for other := range r.prog.Schedules {
			if other != rank && slices.Equal(timesOf(all, rank), timesOf(all, other)) {
				alike++
			}
		}
	}
	require.Positive(t, alike)
	require.Equal(t, fmt.Sprintf("ranks 0,9 of 18 (others: %d the same at the same times, %d with parts of other sizes)", alike, 16-alike), note)
	require.Contains(t, out.String(), `tp=0, as 1 other"`)
	require.Contains(t, out.String(), `"cat":"transfer"`)

	// Only tasks and transfers of rank 9.
	spans, err := r.Spans(shown...)
	require.NoError(t, err)
	line, err := newTimeline(r.prog, spans, shown)
	require.NoError(t, err)
	line.detailed = []int{0}
	kinds := map[string]int{}
	for _, e := range line.events() {
		if e.Process == 9 && e.Kind == "X" {
			kinds[e.Category]++
		}
	}
	require.Zero(t, kinds["compute"])
	require.Equal(t, len(r.prog.Schedules[9].Tasks), kinds["task"])
	require.Equal(t, r.Traffic[9].Transfers, kinds["comm"])

	out.Reset()
	rank := 10
	note, err = r.PredictedTrace(&out, &rank)
	require.NoError(t, err)
	require.Contains(t, note, "rank 10 of 18 (others: ")
	checkTrace(t, out.Bytes())
	require.Equal(t, []int{10}, tracedRanks(t, out.Bytes()))
}

// timesOf lists when a rank does what.
func timesOf(spans []runtime.Span, rank int) []string {
	var times []string
	for _, s := range spans {
		if s.Rank == rank {
			times = append(times, fmt.Sprint(s.Name, s.MicroBatch, s.Part, s.Start, s.End))
		}
	}
	return times
}

// tracedRanks lists the processes of a trace.
func tracedRanks(t *testing.T, data []byte) []int {
	var file struct{ TraceEvents []struct{ Pid int } }
	require.NoError(t, json.Unmarshal(data, &file))
	var ranks []int
	for _, e := range file.TraceEvents {
		if !slices.Contains(ranks, e.Pid) {
			ranks = append(ranks, e.Pid)
		}
	}
	return ranks
}

// tracedPasses lists the tasks of a trace by process.
func tracedPasses(t *testing.T, data []byte) map[int][]string {
	var file struct {
		TraceEvents []struct {
			Pid       int
			Name, Cat string
		}
	}
	require.NoError(t, json.Unmarshal(data, &file))
	passes := map[int][]string{}
	for _, e := range file.TraceEvents {
		if e.Cat == "task" {
			passes[e.Pid] = append(passes[e.Pid], e.Name)
		}
	}
	return passes
}

// TestMeasuredRun: the timeline of a run on CPU ranks passes the same checks, and the run counts the bytes that the report lists.
func TestMeasuredRun(t *testing.T) {
	for name, s := range shapes() {
		r := report(t, s)
		backend, err := cpu.New(cpu.Options{})
		require.NoError(t, err)
		var mu sync.Mutex
		var spans []runtime.Span
		exec, err := runtime.New(r.prog, backend, runtime.Options{Trace: func(s runtime.Span) {
			mu.Lock()
			defer mu.Unlock()
			spans = append(spans, s)
		}})
		require.NoError(t, err)
		require.NoError(t, exec.InitParams(r.prog, 1))
		_, err = exec.Step(context.Background(), r.prog, feeds(r.prog))
		require.NoError(t, err, name)
		for rank := range r.Traffic {
			c := exec.Counters(rank)
			require.Equal(t, Traffic{rank, c.Collectives, c.CollectiveBytes, c.Transfers, c.TransferBytes, c.HostCopies, c.HostBytes}, r.Traffic[rank], name)
		}
		require.NoError(t, exec.Close())
		line, err := newTimeline(r.prog, spans, nil)
		require.NoError(t, err, name)
		var out bytes.Buffer
		require.NoError(t, writeTrace(&out, line.events(), ""), name)
		checkTrace(t, out.Bytes())
		out.Reset()
		require.NoError(t, r.TraceBeside(&out, spans), name)
		checkTrace(t, out.Bytes())
		require.Contains(t, out.String(), `"name":"measured"`)
		require.Contains(t, out.String(), `"name":"predicted"`)
	}
}

func feeds(prog *codegen.Program) runtime.Feeds {
	f := runtime.Feeds{}
	for _, v := range prog.Graph.Inputs() {
		if n := int(v.Type.Elems()); v.Type.DType == ir.F32 {
			f[partition.BaseName(v.Name())] = runtime.Floats(make([]float32, n)...)
		} else {
			f[partition.BaseName(v.Name())] = runtime.Ints(make([]int32, n)...)
		}
	}
	return f
}

// TestBrokenTimelines breaks a timeline in several ways, each of which must be refused.
func TestBrokenTimelines(t *testing.T) {
	r := report(t, shapes()["combined"])
	at := func(spans []runtime.Span, op ir.Op) int {
		i := slices.IndexFunc(spans, func(s runtime.Span) bool { return s.Op == op })
		require.GreaterOrEqual(t, i, 0)
		return i
	}
	predicted, err := r.Spans()
	require.NoError(t, err)
	for _, tt := range []struct {
		name, want string
		damage     func([]runtime.Span) []runtime.Span
	}{
		{"a receive is missing", "never receives it", func(s []runtime.Span) []runtime.Span {
			// Rank 0 stops before its last one.
			last := 0
			for i, x := range s {
				if x.Rank == 0 && x.Op == ir.OpRecv {
					last = i
				}
			}
			first := slices.IndexFunc(s, func(x runtime.Span) bool { return x.Rank == 1 })
			return slices.Delete(s, last, first)
		}},
		{"a send is missing", "never sends it", func(s []runtime.Span) []runtime.Span { i := at(s, ir.OpSend); return slices.Delete(s, i, i+1) }},
		{"spans overlap", "inside", func(s []runtime.Span) []runtime.Span {
			i := 1
			for s[i].Rank != s[i-1].Rank || s[i].End == s[i].Start {
				i++
			}
			s[i-1].End = s[i].End
			return s
		}},
		{"a span ends first", "before it starts", func(s []runtime.Span) []runtime.Span { s[0].End = -1; return s }},
		{"operands later", "before its operand", func(s []runtime.Span) []runtime.Span {
			i := at(s, ir.OpAttention)
			s[i].Start, s[i-1].Start = s[i-1].Start, s[i].Start
			s[i].End, s[i-1].End = s[i-1].End, s[i].End
			return s
		}},
		{"another program", "the program has not", func(s []runtime.Span) []runtime.Span { s[0].Name = "h.7/add"; return s }},
	} {
		_, err := newTimeline(r.prog, tt.damage(slices.Clone(predicted)), nil)
		require.ErrorContains(t, err, tt.want, tt.name)
	}
	_, err = (&Report{}).PredictedTrace(&bytes.Buffer{}, nil)
	require.ErrorContains(t, err, "no timeline")
}
