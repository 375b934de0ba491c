package explain

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

// TestFilm: tasks of a rank do not overlap and lie within the step, spans of the rank itself lie in its tasks, spans of a stream
// do not overlap, and the peak of live memory is that of the lifetimes of buffers, to the byte.
func TestFilm(t *testing.T) {
	all := shapes()
	all["on all streams"] = shape{
		dp: 2, tp: 2, units: 1, micro: 2, schedule: partition.OneFOneB, zero: 2, overlap: true, sequence: true, pieces: 2, posted: true,
		stages: []partition.Stage{{Last: 1}, {First: 1, Last: 2}},
	}
	for name, s := range all {
		r := report(t, s)
		if name == "beside the next pass" { // spans of streams run into the next pass
			slow, err := cost.Load("h100")
			require.NoError(t, err)
			slow.IntraNode.Latency, slow.IntraNode.Bandwidth = 0, slow.IntraNode.Bandwidth/10_000
			require.NoError(t, r.Predict(slow))
		}
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
			busy := map[int]int64{} // lanes
			for _, span := range x.Spans {
				require.GreaterOrEqual(t, span.Start, busy[span.Lane], "%s: rank %d, lane %d", name, x.Rank, span.Lane)
				busy[span.Lane] = span.End
				require.LessOrEqual(t, span.End, f.Step)
				require.True(t, span.Lane > 0 || slices.ContainsFunc(x.Tasks, func(task filmTask) bool { return task.Start <= span.Start && span.End <= task.End }), "%s: rank %d", name, x.Rank)
			}
			most := map[string]int64{} // of a pass
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
				for k, task := range slices.Backward(x.Tasks) {
					if task.Start <= p.Time || k == 0 {
						most[task.Name] = max(most[task.Name], p.Saved+p.Temp)
						break
					}
				}
				require.LessOrEqual(t, x.Persist+p.Saved+p.Temp, x.Arena)
			}
			require.Equal(t, mostLive(r.prog, sched), most, "%s: rank %d", name, x.Rank)
		}
	}
}

// mostLive follows a rank through its step, instruction by instruction, and returns the peak of live bytes in each pass, of
// micro-batches in flight and temporary buffers together.
func mostLive(prog *codegen.Program, s *codegen.Schedule) map[string]int64 {
	type pass struct{ chunk, microBatch int }
	code, most := prog.Stages[s.Stage], map[string]int64{}
	ids := occupied(code)
	done := map[pass]int{} // the instructions that each micro-batch has done, over all bodies in order
	for _, task := range s.Tasks {
		bodies, first, own := 0, 0, code.Run(task)
		for phase := range task.Phase {
			bodies += len(code.Bodies[phase].Instrs)
		}
		for first < len(code.Bodies[task.Phase].Instrs) && &code.Bodies[task.Phase].Instrs[first] != &own[0] {
			first++
		}
		at := pass{task.Chunk, task.MicroBatch}
		for i := range own {
			live := int64(0)
			for _, id := range ids {
				b, within, through := &code.Buffers[id], first+i, bodies+first+i
				switch {
				case b.Region == codegen.Temp && b.Body == task.Phase && b.From <= within && within <= b.To:
					live += b.Size
				case !b.Region.InFlight():
				case task.Phase == ir.Update:
					if b.From <= through && through <= b.To {
						live += b.Size
					}
				default:
					if b.Chunk == at.chunk && b.From <= through && through <= b.To {
						live += b.Size
					}
					for other, come := range done {
						if other != at && other.chunk == b.Chunk && b.From <= come && come < b.To {
							live += b.Size
						}
					}
				}
			}
			most[task.String()] = max(most[task.String()], live)
		}
		done[at] = bodies + first + len(own) - 1
	}
	return most
}

// TestPointsOfATask: if the rank itself begins no span in several bins, because a stream or a bucket has their instructions, the
// next point shows the fullest of these bins.
func TestPointsOfATask(t *testing.T) {
	p := &profile{instrs: 6, bins: []profileBin{{1, 0, 0}, {8, 4, 1}, {2, 0, 2}, {9, 0, 3}, {3, 3, 4}, {0, 8, 5}}}
	own := []sim.Span{{Instr: 0, Start: 1000}, {Instr: 2, Bucket: 1, Start: 3000}, {Instr: 4, Start: 5000}}
	require.Equal(t, []point{{Time: 7}, {1, 11, 0, 2, 0}, {3, 18, 4, 2, 1}, {5, 10, 8, 2, 5}}, p.add([]point{{Time: 7}}, own, 10, 2))
	require.Empty(t, p.add(nil, nil, 10, 2))
}

// TestFilmOfMany: of a plan with more ranks and instructions than can be shown, the busiest rank is shown, and a note says what is
// left out.
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
