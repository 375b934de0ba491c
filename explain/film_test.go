package explain

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/planner/sim"
)

// TestFilm: tasks of a rank follow each other within the step, spans lie in them,
// and what is live never exceeds the arena, and comes near it at the peak.
func TestFilm(t *testing.T) {
	for name, s := range shapes() {
		r := report(t, s)
		f, err := r.film()
		require.NoError(t, err)
		require.Len(t, f.Ranks, min(len(r.prog.Schedules), filmRanks), name)
		require.InDelta(t, r.Prediction.StepSeconds*1e9, f.Step, 1)
		for _, x := range f.Ranks {
			sched := &r.prog.Schedules[x.Rank]
			end := int64(0)
			passes := map[string]bool{}
			for _, task := range x.Tasks {
				passes[task.Name] = true
				require.GreaterOrEqual(t, task.Start, end, name)
				require.LessOrEqual(t, task.Start, task.End)
				end = task.End
			}
			require.Len(t, passes, len(sched.Tasks), name)
			require.LessOrEqual(t, end, f.Step)
			for _, span := range x.Spans {
				require.True(t, slices.ContainsFunc(x.Tasks, func(task filmTask) bool { return task.Start <= span.Start && span.End <= task.End }), "%s: rank %d", name, x.Rank)
			}
			most := int64(0)
			slots := int64(0)
			for _, c := range r.Stages[sched.Stage].Memory.Chunks {
				slots += int64(c.Slots)*c.Slot + int64(c.Inboxes)*c.Inbox
			}
			flights := 0
			for _, c := range r.Stages[sched.Stage].Memory.Chunks {
				flights += c.Slots
			}
			for i, p := range x.Points {
				require.GreaterOrEqual(t, p.Time, x.Points[max(i-1, 0)].Time)
				require.LessOrEqual(t, p.Saved, slots, "%s: rank %d", name, x.Rank)
				require.LessOrEqual(t, p.Temp, r.Stages[sched.Stage].Memory.Temp, "%s: rank %d", name, x.Rank)
				require.LessOrEqual(t, p.InFlight, flights, name)
				require.Less(t, p.Moment, len(f.Moments))
				most = max(most, x.Persist+p.Saved+p.Temp)
			}
			require.LessOrEqual(t, most, x.Arena)
			require.Greater(t, float64(most), 0.6*float64(x.Arena), "%s: rank %d", name, x.Rank)
		}
	}
}

// TestFilmOfMany: of a plan with more ranks and instructions than can be shown the
// busiest is there, and what is left out is said.
func TestFilmOfMany(t *testing.T) {
	s := shapes()["pipeline"]
	s.units, s.dp = 1, 7
	r := report(t, s)
	f, err := r.film()
	require.NoError(t, err)
	require.LessOrEqual(t, len(f.Ranks), 4, "one of each stage, and the busiest")
	require.Contains(t, f.Note, "of 21 ranks are shown")
	require.True(t, slices.ContainsFunc(f.Ranks, func(x filmRank) bool { return x.Rank == r.Prediction.Busiest }))
	many := make([]sim.Span, 0, 2*filmSpans)
	for rank := range 3 {
		for range filmSpans/2 - 1 {
			many = append(many, sim.Span{Rank: rank})
		}
	}
	r.Prediction.Busiest = 2
	require.Equal(t, []int{0, 2}, r.detailed(len(many), filmSpans, func(i int) int { return many[i].Rank }))
}
