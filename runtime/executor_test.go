package runtime_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	goruntime "runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/exact"
	"github.com/autopar/autopar/ir/interp"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/partition/partitiontest"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu"
)

const (
	batch  = 7
	seqLen = 33
	vocab  = 65
	layers = 4
)

func config() gpt.Config {
	return gpt.Config{
		NLayer: layers, NHead: 3, NEmbd: 24, BlockSize: seqLen, VocabSize: vocab, Dropout: 0.2, Bias: true,
		Activation: gpt.GELU, Norm: gpt.LayerNorm, Position: gpt.Learned, TieEmbeddings: true,
	}
}

var optimizer = gpt.Optimizer{Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.1, GradClip: 1}

// shape is a way to cut and run the model.
type shape struct {
	dp, tp, pp, units, micro int
	schedule                 partition.Schedule
	recompute                bool
	zero                     int
	overlap                  bool
	interleave               int
}

func (s shape) String() string {
	return fmt.Sprintf("dp%d,tp%d,pp%d,units%d,mb%d,%s,re=%t,zero=%d,overlap=%t", s.dp, s.tp, s.pp, s.units, s.micro, s.plan().ScheduleText(), s.recompute, s.zero, s.overlap)
}

// plan splits heads, MLP and vocabulary as Megatron does (Shoeybi et al. 2019).
func (s shape) plan() *partition.Plan {
	units := max(s.units, 1)
	p := &partition.Plan{
		PlanNGPUs: s.dp * s.tp * s.pp, RuntimeNGPUs: s.dp * s.tp * s.pp * units,
		DP: s.dp, TP: s.tp, MicroBatch: s.micro, Schedule: s.schedule, Interleave: s.interleave,
		ZeRO: s.zero, Overlap: s.overlap, OverlapTP: s.overlap && s.tp > 1, OverlapP2P: s.overlap && s.pp > 1,
		Placements: partitiontest.Megatron(),
	}
	stages := s.pp * max(s.interleave, 1)
	for i := range stages {
		st := partition.Stage{First: i * layers / stages, Last: (i + 1) * layers / stages}
		if s.recompute {
			st.Recompute = st.Last - st.First
		}
		p.Stages = append(p.Stages, st)
	}
	return p
}

func compile(t testing.TB, g *ir.Graph, s shape, share *codegen.Program) *codegen.Program {
	t.Helper()
	p := s.plan()
	prog, err := codegen.Compile(g, p, batch, share)
	require.NoError(t, err)
	require.NoError(t, codegen.Verify(prog, g))
	return prog
}

func trainGraph(t testing.TB) *ir.Graph {
	t.Helper()
	g, err := gpt.TrainStep(config(), optimizer, batch, seqLen)
	require.NoError(t, err)
	return g
}

// feeds makes the inputs of a step. Some of its targets are ignored tokens.
func feeds(step int) runtime.Feeds {
	rng := rand.New(rand.NewPCG(7, uint64(step)))
	ids, targets := make([]int32, batch*seqLen), make([]int32, batch*seqLen)
	counted := 0
	for i := range ids {
		ids[i], targets[i] = int32(rng.IntN(vocab)), int32(rng.IntN(vocab))
		if rng.IntN(10) == 0 {
			targets[i] = -1
		} else {
			counted++
		}
	}
	positions := make([]int32, seqLen)
	for i := range positions {
		positions[i] = int32(i)
	}
	return runtime.Feeds{
		"ids": runtime.Ints(ids...), "targets": runtime.Ints(targets...), "positions": runtime.Ints(positions...),
		"seed": runtime.Ints(1337), "step": runtime.Ints(int32(step)),
		"lr": runtime.Floats(1e-2), "loss_weight": runtime.Floats(1 / float32(counted)),
	}
}

func start(t testing.TB, prog *codegen.Program, opts runtime.Options) *runtime.Executor {
	t.Helper()
	b, err := cpu.New(cpu.Options{})
	require.NoError(t, err)
	e, err := runtime.New(prog, b, opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Close()) })
	require.NoError(t, e.InitParams(prog, 42))
	return e
}

// train returns losses and gradient norms of a few steps.
func train(t testing.TB, g *ir.Graph, s shape, steps int) [][2]float32 {
	prog := compile(t, g, s, nil)
	e := start(t, prog, runtime.Options{})
	var curve [][2]float32
	for i := range steps {
		out, err := e.Step(context.Background(), prog, feeds(i))
		require.NoError(t, err, "%s", s)
		curve = append(curve, [2]float32{out["loss"], out["grad_norm"]})
	}
	return curve
}

// shapes covers each way to cut the model and combinations of them: uneven batches (7 over 2, 3 and
// 4 ranks, last micro-batches of 1), heads (3 over 2) and vocabulary (65 over 2 and 3).
func shapes() []shape {
	return []shape{
		{dp: 1, tp: 1, pp: 1, micro: 2, schedule: partition.OneFOneB},
		{dp: 3, tp: 1, pp: 1, micro: 7, schedule: partition.OneFOneB},
		{dp: 2, tp: 1, pp: 1, units: 2, micro: 1, schedule: partition.GPipe},
		{dp: 1, tp: 2, pp: 1, micro: 7, schedule: partition.OneFOneB},
		{dp: 1, tp: 3, pp: 1, micro: 3, schedule: partition.OneFOneB, recompute: true},
		{dp: 1, tp: 1, pp: 2, micro: 7, schedule: partition.OneFOneB},
		{dp: 1, tp: 1, pp: 2, micro: 2, schedule: partition.GPipe},
		{dp: 1, tp: 1, pp: 4, micro: 1, schedule: partition.OneFOneB},
		{dp: 2, tp: 1, pp: 4, micro: 1, schedule: partition.OneFOneB, recompute: true},
		{dp: 2, tp: 2, pp: 2, micro: 2, schedule: partition.OneFOneB},
		{dp: 2, tp: 2, pp: 1, units: 2, micro: 1, schedule: partition.GPipe, recompute: true},
		{dp: 1, tp: 3, pp: 2, units: 2, micro: 2, schedule: partition.OneFOneB},
		{dp: 2, tp: 1, pp: 2, micro: 2, schedule: partition.OneFOneB, zero: 1, overlap: true},
		{dp: 3, tp: 2, pp: 1, micro: 1, schedule: partition.GPipe, recompute: true, zero: 3, overlap: true},
		{dp: 1, tp: 1, pp: 4, micro: 1, schedule: partition.ZeroBubble},
		{dp: 2, tp: 2, pp: 2, micro: 1, schedule: partition.ZeroBubble, recompute: true},
		{dp: 1, tp: 1, pp: 4, micro: 1, schedule: partition.EagerOneFOneB, recompute: true},
		{dp: 2, tp: 2, pp: 2, micro: 1, schedule: partition.EagerZeroBubble},
		{dp: 1, tp: 1, pp: 2, micro: 2, schedule: partition.Interleaved, interleave: 2},
		{dp: 2, tp: 3, pp: 2, micro: 1, schedule: partition.Interleaved, interleave: 2, recompute: true},
	}
}

var oneRank = shape{dp: 1, tp: 1, pp: 1, micro: batch, schedule: partition.OneFOneB}

// weights returns every parameter of a program whole, by name. Ranks that hold the same part must
// hold the same bits.
func weights(t testing.TB, e *runtime.Executor, prog *codegen.Program) map[string][]float32 {
	t.Helper()
	whole, seen := map[string][]float32{}, map[string][]bool{}
	for r := range e.Ranks() {
		for _, s := range runtime.Shards(prog, r) {
			if whole[s.Name] == nil {
				whole[s.Name], seen[s.Name] = make([]float32, s.Type.Elems()), make([]bool, s.Type.Elems())
			}
			local := make([]byte, s.Bytes())
			require.NoError(t, e.ReadShard(s, local))
			for i := range int(s.Slab.Elems()) {
				x, at := math.Float32frombits(binary.NativeEndian.Uint32(local[4*i:])), s.Slab.GlobalIndex(i)
				if seen[s.Name][at] && math.Float32bits(whole[s.Name][at]) != math.Float32bits(x) {
					t.Fatalf("%s element %d: rank %d has %v, another rank %v", s.Name, at, r, x, whole[s.Name][at])
				}
				whole[s.Name][at], seen[s.Name][at] = x, true
			}
		}
	}
	for name, s := range seen {
		require.NotContains(t, s, false, "an element of %s is on no rank", name)
	}
	return whole
}

// TestInterp compares two steps on one rank with package interp.
func TestInterp(t *testing.T) {
	g := trainGraph(t)
	prog := compile(t, g, oneRank, nil)
	e := start(t, prog, runtime.Options{})
	state := map[string]interp.Tensor{}
	for _, p := range g.Params() {
		state[p.Name()] = interp.InitParam(p.Name(), p.Def.Attr.(ir.ParamAttr), p.Type, 42)
	}
	for step := range 2 {
		got, err := e.Step(context.Background(), prog, feeds(step))
		require.NoError(t, err)
		for _, in := range g.Inputs() {
			state[in.Name()] = tensor(in.Type, feeds(step)[in.Name()])
		}
		want, err := interp.Run(g, state, interp.Options{})
		require.NoError(t, err)
		state = want.State
		for _, name := range []string{"loss", "grad_norm"} {
			require.InEpsilon(t, want.Outputs[name].F[0], got[name], 1e-5, "step %d, %s", step, name)
		}
	}
	for name, got := range weights(t, e, prog) {
		for i, want := range state[name].F {
			require.InDelta(t, want, got[i], 2e-4, "%s, element %d", name, i)
		}
	}
}

func tensor(typ ir.Type, a runtime.Array) interp.Tensor {
	x := interp.Zeros(typ)
	for i := range typ.Elems() {
		word := binary.NativeEndian.Uint32(a.Bytes()[4*i:])
		if typ.DType == ir.I32 {
			x.I[i] = int32(word)
		} else {
			x.F[i] = float64(math.Float32frombits(word))
		}
	}
	return x
}

// TestShapes runs the same steps on many ranks in many ways. The losses must be those of one rank,
// the initial parameters equal bit for bit, and ranks that hold the same parameters must keep them
// equal.
func TestShapes(t *testing.T) {
	const steps = 3
	g := trainGraph(t)
	want := train(t, g, oneRank, steps)
	one := compile(t, g, oneRank, nil)
	initial := weights(t, start(t, one, runtime.Options{}), one)
	for i, s := range shapes() {
		t.Run(s.String(), func(t *testing.T) {
			if testing.Short() && i%3 != 0 {
				t.Skip("-short")
			}
			prog := compile(t, g, s, nil)
			e := start(t, prog, runtime.Options{Timeout: time.Minute})
			require.Equal(t, initial, weights(t, e, prog), "initial parameters")
			for i := range steps {
				out, err := e.Step(context.Background(), prog, feeds(i))
				require.NoError(t, err)
				require.InEpsilon(t, want[i][0], out["loss"], 2e-6, "loss of step %d", i)
				require.InEpsilon(t, want[i][1], out["grad_norm"], 2e-5, "gradient norm of step %d", i)
			}
			weights(t, e, prog)
		})
	}
}

// TestBits checks that two runs give the same bits.
func TestBits(t *testing.T) {
	g := trainGraph(t)
	s := shape{dp: 2, tp: 2, pp: 2, micro: 2, schedule: partition.OneFOneB}
	require.Equal(t, train(t, g, s, 2), train(t, g, s, 2))
}

// TestEvaluation runs evaluations between training steps, in the same arenas: they see the weights
// and do not change them.
func TestEvaluation(t *testing.T) {
	g := trainGraph(t)
	eval, err := gpt.EvalStep(config(), batch, seqLen)
	require.NoError(t, err)
	for _, s := range append(shapes()[12:], oneRank, shape{dp: 2, tp: 2, pp: 2, micro: 1, schedule: partition.OneFOneB}) {
		t.Run(s.String(), func(t *testing.T) {
			want := train(t, g, s, 3)
			prog := compile(t, g, s, nil)
			evalProg := compile(t, eval, s, prog)
			e := start(t, prog, runtime.Options{Timeout: time.Minute})
			require.NoError(t, e.Add(evalProg))
			var losses []float32
			for i := range 3 {
				in := feeds(0)
				for _, name := range []string{"lr", "seed", "step"} {
					delete(in, name)
				}
				out, err := e.Step(context.Background(), evalProg, in)
				require.NoError(t, err)
				losses = append(losses, out["loss"])
				out, err = e.Step(context.Background(), prog, feeds(i))
				require.NoError(t, err)
				require.Equal(t, want[i], [2]float32{out["loss"], out["grad_norm"]}, "step %d", i)
			}
			require.InDelta(t, math.Log(vocab), losses[0], 0.1)
			require.Less(t, losses[1], losses[0], "the weights have been trained on this batch")
			dst := make([]float32, 1)
			require.NoError(t, e.ReadOutput(prog, "loss", dst))
			require.Equal(t, want[2][0], dst[0])
		})
	}
}

// TestCounters checks that ranks communicate what the program says.
func TestCounters(t *testing.T) {
	g := trainGraph(t)
	for _, s := range shapes() {
		prog := compile(t, g, s, nil)
		spans := make([][]runtime.Span, len(prog.Schedules))
		var mu sync.Mutex // two streams of a rank call it concurrently
		e := start(t, prog, runtime.Options{Trace: func(s runtime.Span) {
			mu.Lock()
			defer mu.Unlock()
			spans[s.Rank] = append(spans[s.Rank], s)
		}})
		for range 2 {
			for i := range spans {
				spans[i] = nil
			}
			_, err := e.Step(context.Background(), prog, feeds(0))
			require.NoError(t, err)
		}
		for r := range prog.Schedules {
			var want runtime.Counters
			instrs := 0
			sched := &prog.Schedules[r]
			for _, task := range sched.Tasks {
				for _, in := range prog.Stages[sched.Stage].Run(task) {
					if !sched.Runs(&in, task) {
						continue
					}
					if !in.Fused && !in.Idle() {
						instrs++
					}
					bytes := prog.CommBytes(sched, &in, task)
					switch {
					case codegen.Collective(in.Node.Op):
						if !in.Fused {
							want.Collectives++
						}
						want.CollectiveBytes += bytes
					case in.Node.Op == ir.OpSend || in.Node.Op == ir.OpRecv:
						want.Transfers++
						want.TransferBytes += bytes
					default:
						require.Zero(t, bytes)
					}
				}
			}
			require.Equal(t, want, e.Counters(r), "%s, rank %d", s, r)
			stage := prog.Stages[sched.Stage]
			require.Equal(t, instrs+len(stage.Consts)+len(stage.StepInputs), len(spans[r]), "%s, rank %d", s, r)
			var before [runtime.Host]time.Duration // the end of the last span of each stream
			for _, span := range spans[r] {
				require.LessOrEqual(t, span.Start, span.End)
				require.GreaterOrEqual(t, span.Start, before[span.Stream])
				before[span.Stream] = span.End
			}
		}
	}
}

// TestSteadyState checks that a step allocates nothing.
func TestSteadyState(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	reproducible, err := exact.Sums(trainGraph(t))
	require.NoError(t, err)
	for _, g := range []*ir.Graph{trainGraph(t), reproducible, graphIn(t, ir.F16, false)} {
		for _, s := range []shape{
			oneRank, {dp: 2, tp: 2, pp: 2, micro: 2, schedule: partition.OneFOneB}, {dp: 1, tp: 1, pp: 2, micro: 2, schedule: partition.Interleaved, interleave: 2},
			{dp: 2, tp: 1, pp: 2, micro: 2, schedule: partition.OneFOneB, zero: 3, overlap: true},
		} {
			prog := compile(t, g, s, nil)
			e := start(t, prog, runtime.Options{})
			in := feeds(0)
			ctx := context.Background()
			step := func() {
				if _, err := e.Step(ctx, prog, in); err != nil {
					t.Error(err)
				}
			}
			for range 10 {
				step()
			}
			require.Zero(t, allocations(step), "%s", s)
		}
	}
}

// allocations returns how many allocations ten calls make in all goroutines: the least of several
// attempts, because Go itself allocates now and then when goroutines park, and a core's scratch
// memory grows when it first gets a chunk of some operation.
func allocations(f func()) uint64 {
	least := uint64(math.MaxUint64)
	var before, after goruntime.MemStats
	for try := 0; try < 20 && least > 0; try++ {
		goruntime.ReadMemStats(&before)
		for range 10 {
			f()
		}
		goruntime.ReadMemStats(&after)
		least = min(least, after.Mallocs-before.Mallocs)
	}
	return least
}

// TestFeeds checks the errors for wrong inputs, after which steps still run.
func TestFeeds(t *testing.T) {
	prog := compile(t, trainGraph(t), oneRank, nil)
	e := start(t, prog, runtime.Options{})
	for name, c := range map[string]struct {
		spoil func(runtime.Feeds)
		want  string
	}{
		"missing": {func(f runtime.Feeds) { delete(f, "lr") }, "input lr (f32[]) is not fed"},
		"short":   {func(f runtime.Feeds) { f["ids"] = runtime.Ints(1, 2) }, "input ids is fed 2 elements of i32, want i32[7,33]"},
		"dtype":   {func(f runtime.Feeds) { f["step"] = runtime.Floats(1) }, "input step is fed 1 elements of f32, want i32[]"},
		"unknown": {func(f runtime.Feeds) { f["x"] = runtime.Floats(1) }, `program train has no input "x"`},
	} {
		f := feeds(0)
		c.spoil(f)
		_, err := e.Step(context.Background(), prog, f)
		require.ErrorContains(t, err, c.want, name)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := e.Step(ctx, prog, feeds(0))
	require.ErrorIs(t, err, context.Canceled)
	_, err = e.Step(context.Background(), prog, feeds(0))
	require.NoError(t, err)

	bad := feeds(1)
	ids := make([]int32, batch*seqLen)
	ids[40] = vocab
	bad["ids"] = runtime.Ints(ids...)
	_, err = e.Step(context.Background(), prog, bad)
	require.EqualError(t, err, "rank 0, step 1, fwd mb=0, embedding wte/embedding: id 65 at index 40 is out of range [0, 65)")
}

// TestViews compares steps that update shares of parameters in place with steps that cut them out,
// bit by bit.
func TestViews(t *testing.T) {
	g := trainGraph(t)
	for _, s := range []shape{
		{dp: 3, tp: 1, pp: 1, micro: 1, zero: 1, schedule: partition.GPipe},
		{dp: 2, tp: 1, pp: 2, micro: 2, zero: 2, schedule: partition.OneFOneB, overlap: true},
	} {
		var after [2]map[string][]float32
		for i := range after {
			prog := compile(t, g, s, nil)
			views := 0
			for _, st := range prog.Stages {
				for id := range st.Buffers {
					if b := &st.Buffers[id]; b.View {
						views++
						if i > 0 { // give the buffer its own place
							b.View, b.Offset = false, st.Temp
							st.Temp += (b.Size + 63) / 64 * 64
						}
					}
				}
				for k := range st.Bodies[ir.Update].Instrs {
					in := &st.Bodies[ir.Update].Instrs[k]
					in.InPlace = in.InPlace && i == 0
				}
			}
			require.Positive(t, views)
			require.NoError(t, codegen.Check(prog))
			b, err := cpu.New(cpu.Options{})
			require.NoError(t, err)
			e, err := runtime.New(prog, b, runtime.Options{})
			require.NoError(t, err)
			require.NoError(t, e.InitParams(prog, 42))
			for step := range 3 {
				_, err := e.Step(context.Background(), prog, feeds(step))
				require.NoError(t, err)
			}
			after[i] = weights(t, e, prog)
			require.NoError(t, e.Close())
		}
		require.Equal(t, after[1], after[0], "%s", s)
	}
}
