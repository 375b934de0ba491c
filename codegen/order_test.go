package codegen_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
)

// outline is a plan with only the fields of the pipeline.
func outline(n, k int, schedule partition.Schedule) *partition.Plan {
	p := &partition.Plan{Schedule: schedule, Stages: make([]partition.Stage, n*k)}
	if k > 1 {
		p.Interleave = k
	}
	return p
}

// leading counts the forward passes before the first backward pass: those of the warm-up, and one more if there
// is one.
func leading(tasks []codegen.Task) int {
	n := 0
	for n < len(tasks) && tasks[n].Phase == ir.Forward {
		n++
	}
	return n
}

// TestInterleavedWarmUp compares the warm-up of interleaved 1F1B with Narayanan et al. SC'21: min(n(k-1) +
// 2(n-1-i), m k) (row 30).
func TestInterleavedWarmUp(t *testing.T) {
	for n := 2; n <= 6; n++ {
		for k := 2; k <= 5; k++ {
			for rounds := 1; rounds <= 5; rounds++ {
				m := rounds * n
				p := outline(n, k, partition.Interleaved)
				for i := range n {
					tasks := codegen.Order(p, i, m, true)
					want := min(n*(k-1)+2*(n-1-i), m*k)
					require.Equal(t, min(want+1, m*k), leading(tasks), "%d ranks, %d chunks, %d micro-batches, rank %d", n, k, m, i)
					// The peak of live micro-batches over all chunks: the warm-up and the pass before the first
					// backward pass, if rounds are complete.
					live, most := 0, 0
					for _, x := range tasks {
						switch x.Phase {
						case ir.Forward:
							live++
						case ir.Backward:
							live--
						}
						most = max(most, live)
					}
					require.Equal(t, min(want+1, m*k), most)
				}
			}
		}
	}
}

// TestOrders: under every schedule each rank runs every micro-batch through every chunk once forward and once
// backward, weight gradients after gradients of activations. It never has more micro-batches in flight than
// slots, nor more than with a larger number of micro-batches.
func TestOrders(t *testing.T) {
	type pass struct {
		phase     ir.Phase
		chunk, mb int
	}
	for _, schedule := range []partition.Schedule{partition.GPipe, partition.OneFOneB, partition.Interleaved, partition.ZeroBubble, partition.EagerOneFOneB, partition.EagerZeroBubble} {
		for n := 1; n <= 5; n++ {
			for k := 1; k <= 4; k++ {
				if (schedule == partition.Interleaved) != (k > 1) || k > 1 && n == 1 {
					continue
				}
				p := outline(n, k, schedule)
				last := codegen.Releases(p, true)
				for i := range n {
					before := make([]int, k)
					for m := 1; m <= 13; m++ {
						slots := codegen.InFlight(p, i, m, true)
						seen := map[pass]bool{}
						live := make([]int, k)
						most := make([]int, k)
						for _, x := range codegen.Order(p, i, m, true) {
							if x.Phase == ir.Update {
								continue
							}
							require.False(t, seen[pass{x.Phase, x.Chunk, x.MicroBatch}])
							if x.Phase != ir.Forward {
								require.True(t, seen[pass{x.Phase - 1, x.Chunk, x.MicroBatch}])
							}
							seen[pass{x.Phase, x.Chunk, x.MicroBatch}] = true
							if x.Phase == ir.Forward {
								live[x.Chunk]++
								most[x.Chunk] = max(most[x.Chunk], live[x.Chunk])
							}
							if x.Phase == last {
								live[x.Chunk]--
							}
						}
						require.Len(t, seen, m*k*(int(last)+1))
						require.Equal(t, most, slots, "%s, %d ranks, %d chunks, %d micro-batches, rank %d", schedule, n, k, m, i)
						for c := range k {
							require.GreaterOrEqual(t, slots[c], before[c])
						}
						before = slots
					}
				}
			}
		}
	}
}

// TestZeroBubbleOrder: the warm-up is that of 1F1B, weight gradients lag behind by the position, and no rank
// has more in flight than the first rank under 1F1B (Qi et al. 2024, ZB-H1).
func TestZeroBubbleOrder(t *testing.T) {
	const n, m = 4, 9
	p := outline(n, 1, partition.ZeroBubble)
	for i := range n {
		tasks := codegen.Order(p, i, m, true)
		require.Equal(t, n-i, leading(tasks))
		require.Equal(t, []int{n}, codegen.InFlight(p, i, m, true))
		backward := 0
		for _, x := range tasks {
			switch x.Phase {
			case ir.Backward:
				backward++
			case ir.WeightGrad:
				if backward < m {
					require.Equal(t, backward-1-i, x.MicroBatch, "position %d", i)
				}
			}
		}
	}
}

// TestEagerOrder: the warm-up is twice as long as that of 1F1B (Zhuang et al. 2023). After it forward and backward passes
// alternate, and weight gradients lag behind so far that all positions have as many micro-batches in flight.
func TestEagerOrder(t *testing.T) {
	const n, m = 4, 13
	for _, schedule := range []partition.Schedule{partition.EagerOneFOneB, partition.EagerZeroBubble} {
		p := outline(n, 1, schedule)
		for i := range n {
			tasks, inFlight := codegen.Order(p, i, m, true), 2*(n-1-i)+1
			require.Equal(t, inFlight, leading(tasks))
			forward, backward := 0, 0
			for _, x := range tasks {
				switch x.Phase {
				case ir.Forward:
					require.Equal(t, max(0, forward+1-inFlight), backward, "%s, position %d", schedule, i)
					forward++
				case ir.Backward:
					backward++
				case ir.WeightGrad:
					if backward < m {
						require.Equal(t, backward-1-2*i, x.MicroBatch, "position %d", i)
					}
				}
			}
			if schedule.SplitsBackward() {
				inFlight = 2*n - 1
			}
			require.Equal(t, []int{inFlight}, codegen.InFlight(p, i, m, true), "%s, position %d", schedule, i)
		}
	}
}

// pipeline is a plan with stages as equal as the number of layers allows, interleaved if there are several
// chunks.
func pipeline(dp, tp, pp, chunks, mb, layers int, recompute bool) *partition.Plan {
	p := plan(dp, tp, pp*chunks, mb, layers, partition.ZeroBubble, recompute)
	p.PlanNGPUs, p.RuntimeNGPUs = dp*tp*pp, dp*tp*pp
	if chunks > 1 {
		p.Schedule, p.Interleave = partition.Interleaved, chunks
	}
	return p
}

// TestPipelinesAreSound checks interleaved, zero-bubble and eager programs for every number of micro-batches, whether
// or not it is a multiple of the ranks, together with all other kinds of parallelism.
func TestPipelinesAreSound(t *testing.T) {
	const layers = 12
	g := trainGraph(t, layers)
	eval, err := gpt.EvalStep(model(layers), batch, 33)
	require.NoError(t, err)
	cases := 0
	for _, x := range [][2]int{{1, 1}, {2, 1}, {4, 1}, {6, 1}, {2, 2}, {2, 3}, {2, 5}, {4, 2}, {4, 3}, {3, 4}, {6, 2}} {
		pp, chunks := x[0], x[1]
		for mb := 1; mb <= 4; mb++ {
			dp, tp := 1+mb%2, 1+(mb/2+pp)%2
			p := pipeline(dp, tp, pp, chunks, mb, layers, (mb+chunks)%2 == 0)
			if chunks == 1 {
				p.Schedule = []partition.Schedule{partition.ZeroBubble, partition.EagerZeroBubble, partition.EagerOneFOneB}[(mb+pp)%3]
			}
			if dp > 1 {
				p.ZeRO = (pp + mb + chunks) % 4
			}
			p.SequenceParallel = tp > 1
			p.Offload = []partition.Offload{partition.OffloadNone, partition.OffloadOptimizer, partition.OffloadParams}[(mb+pp)%3]
			name := fmt.Sprintf("%s dp %d tp %d pp %d micro-batch %d zero %d offload %s", p.ScheduleText(), dp, tp, pp, mb, p.ZeRO, p.Offload)
			prog := generate(t, g, p)
			require.NoError(t, codegen.Check(prog), name)
			shared, err := codegen.Compile(eval, p, batch, prog)
			require.NoError(t, err, name)
			require.NoError(t, codegen.Verify(shared, eval), "evaluation under %s", name)
			for i := range shared.Stages {
				require.LessOrEqual(t, shared.Stages[i].Arena(), prog.Stages[i].Arena(), name)
			}
			cases++
		}
		// Many micro-batches of one sequence, and one rank has fewer than another.
		for _, dp := range []int{1, 2} {
			require.NoError(t, codegen.Check(generate(t, g, pipeline(dp, 1, pp, chunks, 1, layers, false))), "pp %d chunks %d dp %d", pp, chunks, dp)
		}
	}
	t.Logf("%d programs", cases)
}

// TestUnevenInterleaving: no number of micro-batches deadlocks. Only the pipeline matters here, so the model is
// as small as possible.
func TestUnevenInterleaving(t *testing.T) {
	for _, x := range [][2]int{{2, 2}, {3, 3}, {4, 3}, {5, 2}} {
		pp, chunks := x[0], x[1]
		for sequences := 1; sequences <= 11; sequences++ {
			g, err := gpt.TrainStep(model(pp*chunks), gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8}, sequences, 2)
			require.NoError(t, err)
			p := pipeline(1, 1, pp, chunks, 1, pp*chunks, false)
			prog, err := codegen.Compile(g, p, sequences, nil)
			require.NoError(t, err)
			require.NoError(t, codegen.Check(prog), "pp %d chunks %d, %d micro-batches", pp, chunks, sequences)
		}
	}
}

// TestPipelineMutants breaks sound zero-bubble and interleaved programs.
func TestPipelineMutants(t *testing.T) {
	const layers = 4
	g := trainGraph(t, layers)
	swap := func(p *codegen.Program, rank int, a, b codegen.Task) {
		tasks := p.Schedules[rank].Tasks
		i, j := slices.Index(tasks, a), slices.Index(tasks, b)
		require.GreaterOrEqual(t, i, 0)
		require.GreaterOrEqual(t, j, 0)
		tasks[i], tasks[j] = tasks[j], tasks[i]
	}
	first := func(s *codegen.Stage, op ir.Op, phase ir.Phase, chunk int) *codegen.Instr {
		for i := range s.Bodies[phase].Instrs {
			if in := &s.Bodies[phase].Instrs[i]; in.Node.Op == op && in.Chunk == chunk {
				return in
			}
		}
		t.Fatalf("no %s", op)
		return nil
	}
	for name, m := range map[string]struct {
		chunks  int
		breakIt func(*codegen.Program)
		names   string
	}{
		"W before its B": {1, func(p *codegen.Program) {
			swap(p, 0, codegen.Task{Phase: ir.Backward, MicroBatch: 2}, codegen.Task{Phase: ir.WeightGrad, MicroBatch: 2})
		}, "rank 0 (stage 0): wgt mb=2: does not follow its bwd pass"},
		"W dropped": {1, func(p *codegen.Program) {
			s := &p.Schedules[1]
			s.Tasks = slices.DeleteFunc(slices.Clone(s.Tasks), func(t codegen.Task) bool { return t.Phase == ir.WeightGrad && t.MicroBatch == batch-1 })
		}, "rank 1 (stage 1): upd: follows 6 wgt passes of 7 micro-batches"},
		"slot reused before W": {1, func(p *codegen.Program) { p.Stages[1].Chunks[0].Slots-- }, "rank 1 (stage 1): fwd mb=1: takes slot 0 of 1, which micro-batch 0 still needs"},
		"weight's gradient in the wrong body": {1, func(p *codegen.Program) {
			b := &p.Stages[0].Bodies
			n := len(b[ir.WeightGrad].Instrs) - 1
			b[ir.Backward].Instrs = append(b[ir.Backward].Instrs, b[ir.WeightGrad].Instrs[n])
			b[ir.WeightGrad].Instrs = b[ir.WeightGrad].Instrs[:n]
		}, "belongs to the wgt body, stands in the bwd body"},
		"chunk skipped": {2, func(p *codegen.Program) {
			s := &p.Schedules[0]
			s.Tasks = slices.DeleteFunc(slices.Clone(s.Tasks), func(t codegen.Task) bool { return t.Chunk == 1 && t.MicroBatch == 3 && t.Phase == ir.Backward })
		}, "fwd chunk=1 mb=5: takes slot 1 of 2, which micro-batch 3 still needs"},
		"wrong chunk": {2, func(p *codegen.Program) { first(p.Stages[0], ir.OpMatMul, ir.Forward, 1).Chunk = 0 }, "belongs to chunk 1, stands in chunk 0"},
		"activation of another chunk": {2, func(p *codegen.Program) {
			in := first(p.Stages[0], ir.OpRecv, ir.Forward, 1)
			p.Stages[0].Buffers[in.Results[0]].Chunk = 0
		}, "h.1/add_1@recv2: buffer b"},
		"chunks run in the wrong order": {2, func(p *codegen.Program) {
			p.Schedules[0].Tasks = slices.Clone(p.Schedules[0].Tasks)
			slices.SortStableFunc(p.Schedules[0].Tasks, func(a, b codegen.Task) int {
				if a.Phase != ir.Forward || b.Phase != ir.Forward {
					return int(a.Phase) - int(b.Phase)
				}
				return b.Chunk - a.Chunk
			})
			p.Stages[0].Chunks[0].Slots, p.Stages[0].Chunks[1].Slots = batch, batch
		}, "waits for ever"},
	} {
		t.Run(name, func(t *testing.T) {
			p := generate(t, g, pipeline(1, 1, 2, m.chunks, 1, layers, false))
			require.NoError(t, codegen.Check(p))
			m.breakIt(p)
			err := codegen.Check(p)
			require.ErrorContains(t, err, m.names)
			t.Log(err)
		})
	}
}
