package autopar_test

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu"
)

// compile partitions and generates a graph, and opens an executor for it.
func compile(t testing.TB, g *ir.Graph, p *partition.Plan, batch int) (*codegen.Program, *runtime.Executor) {
	backend, err := cpu.New(cpu.Options{})
	require.NoError(t, err)
	return compileOn(t, backend, g, p, batch)
}

func compileOn(t testing.TB, backend runtime.Backend, g *ir.Graph, p *partition.Plan, batch int) (*codegen.Program, *runtime.Executor) {
	prog, err := codegen.Compile(g, p, batch, nil)
	require.NoError(t, err)
	require.NoError(t, codegen.Verify(prog, g))
	exec, err := runtime.New(prog, backend, runtime.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, exec.Close()) })
	return prog, exec
}

// TestAccumulation cuts the same batch of 12 into 1, 2, 3, 4 and 12 micro-batches
// on 1, 2 and 3 data-parallel ranks: losses within 1e-6, over 50 steps with -parity-all
// (row 15).
func TestAccumulation(t *testing.T) {
	const batch = 12
	steps := most(50, 6)
	var want trajectory
	for _, ranks := range []int{1, 2, 3} {
		for _, micro := range []int{12, 6, 4, 3, 1} {
			p := parityPlan(ranks, 1, 1, min(micro, batch/ranks), partition.GPipe, false)
			got := trainBatch(t, p, batch, steps)
			if want.loss == nil {
				want = got
				continue
			}
			for s := range want.loss {
				require.LessOrEqual(t, math.Abs(got.loss[s]-want.loss[s]), 1e-6, "step %d, %d ranks, micro-batch %d", s, ranks, micro)
			}
		}
	}
}

// TestDataParallelForLong follows 2, 3 and 4 data-parallel ranks for 60 steps, and for
// 300 with -parity-all (row 26).
func TestDataParallelForLong(t *testing.T) {
	steps := most(300, 60)
	want := oneRank(t, steps)
	for _, dp := range []int{2, 3, 4} {
		got := trainBatch(t, parityPlan(dp, 1, 1, 2, partition.GPipe, false), parityBatch, steps)
		for s := range want.loss {
			require.LessOrEqual(t, math.Abs(got.loss[s]-want.loss[s]), 1e-5, "step %d, %d ranks", s, dp)
		}
	}
}

// TestCausality changes one token and looks at the logits before it, under
// several plans: not a bit may change (row 3).
func TestCausality(t *testing.T) {
	const batch, changed = 3, 11
	T, V := parityModel.BlockSize, parityModel.VocabSize
	g, err := gpt.Logits(parityModel, batch, T)
	require.NoError(t, err)
	for _, p := range []*partition.Plan{
		parityPlan(1, 1, 1, 3, partition.GPipe, false),
		parityPlan(1, 3, 1, 3, partition.GPipe, false),
		parityPlan(1, 2, 2, 3, partition.GPipe, false),
		parityPlan(1, 5, 4, 3, partition.GPipe, false),
		contextPlan(1, 2, 1, 1),
		contextPlan(1, 3, 2, 2),
		contextPlan(1, 4, 1, 1),
	} {
		p.MicroBatch = batch
		prog, exec := compile(t, g, p, batch)
		require.NoError(t, exec.InitParams(prog, 1))
		logits := func(ids []int32) []float32 {
			_, err := exec.Step(context.Background(), prog, runtime.Feeds{"ids": runtime.Ints(ids...), "positions": runtime.Ints(upTo(T)...)})
			require.NoError(t, err)
			out := make([]float32, batch*T*V)
			require.NoError(t, exec.ReadOutput(prog, "logits", out))
			return out
		}
		ids := make([]int32, batch*T)
		for i := range ids {
			ids[i] = int32(i * 13 % V)
		}
		before := logits(ids)
		for b := range batch {
			ids[b*T+changed] = (ids[b*T+changed] + 1) % int32(V)
		}
		after := logits(ids)
		for b := range batch {
			for at := range T {
				row := (b*T + at) * V
				if at < changed {
					require.Equal(t, before[row:row+V], after[row:row+V], "sequence %d position %d", b, at)
				}
			}
			row := (b*T + changed) * V
			require.NotEqual(t, before[row:row+V], after[row:row+V])
		}
	}
}

// TestInitUnderEverySplit: every element of every parameter starts with the same
// bits, however the parameter is cut (row 5).
func TestInitUnderEverySplit(t *testing.T) {
	g, err := gpt.TrainStep(parityModel, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8}, parityBatch, parityModel.BlockSize)
	require.NoError(t, err)
	var want map[string][]float32
	for _, p := range []*partition.Plan{
		parityPlan(1, 1, 1, 11, partition.GPipe, false),
		parityPlan(2, 1, 1, 2, partition.GPipe, false),
		parityPlan(1, 4, 1, 2, partition.GPipe, false),
		parityPlan(1, 3, 2, 2, partition.GPipe, false),
	} {
		prog, exec := compile(t, g, p, parityBatch)
		require.NoError(t, exec.InitParams(prog, 1337))
		got := gather(t, prog, exec)
		if want == nil {
			want = got
			continue
		}
		require.Equal(t, len(want), len(got))
		for name := range want {
			require.Equal(t, want[name], got[name], name)
		}
	}
	require.NotEqual(t, want["h.0.mlp.c_fc.weight"], want["h.1.mlp.c_fc.weight"])
}

// TestTiedTableStaysEqual trains a pipeline and compares the two copies of the
// token table, bit by bit (row 30).
func TestTiedTableStaysEqual(t *testing.T) {
	p := parityPlan(1, 2, 2, 3, partition.OneFOneB, false)
	prog, exec := trainer(t, p, parityBatch)
	stepsOf(t, prog, exec, parityBatch, 5)
	for tp := range p.TP {
		var copies [][]byte
		for stage := range p.PP() {
			for _, s := range runtime.Shards(prog, p.WorldRank(stage, tp)) {
				if s.Name == "wte.weight" {
					buf := make([]byte, s.Bytes())
					require.NoError(t, exec.ReadShard(s, buf))
					copies = append(copies, buf)
				}
			}
		}
		require.Len(t, copies, 2)
		require.Equal(t, copies[0], copies[1])
	}
}

// TestCountersMatchTheProgram: what the ranks count is what the program says
// (row 44).
func TestCountersMatchTheProgram(t *testing.T) {
	p := parityPlan(2, 2, 2, 2, partition.OneFOneB, true)
	p.Offload = partition.OffloadParams
	prog, exec := trainer(t, p, parityBatch)
	checkCounters(t, prog, exec)
	p.ZeRO = 3
	prog, exec = exactTrainer(t, p, parityBatch)
	checkCounters(t, prog, exec)
}

func checkCounters(t *testing.T, prog *codegen.Program, exec *runtime.Executor) {
	stepsOf(t, prog, exec, parityBatch, 2)
	for r := range prog.Schedules {
		s := &prog.Schedules[r]
		var want runtime.Counters
		for _, task := range s.Tasks {
			for _, in := range prog.Stages[s.Stage].Run(task) {
				bytes := prog.CommBytes(s, &in, task)
				switch op := in.Node.Op; {
				case codegen.Collective(op):
					want.Collectives++
					want.CollectiveBytes += bytes
				case op == ir.OpSend || op == ir.OpRecv:
					want.Transfers++
					want.TransferBytes += bytes
				case codegen.HostCopy(op):
					want.HostCopies++
					want.HostBytes += bytes
				}
			}
		}
		require.Equal(t, want, exec.Counters(r), "rank %d", r)
		require.Positive(t, want.CollectiveBytes)
		require.Positive(t, want.TransferBytes)
		require.Positive(t, want.HostBytes)
	}
}

func upTo(n int) []int32 {
	x := make([]int32, n)
	for i := range x {
		x[i] = int32(i)
	}
	return x
}

// gather assembles all parameters of a program from the ranks' shards.
func gather(t testing.TB, prog *codegen.Program, exec *runtime.Executor) map[string][]float32 {
	whole := map[string][]float32{}
	for r := range prog.Schedules {
		for _, s := range runtime.Shards(prog, r) {
			buf := make([]byte, s.Bytes())
			require.NoError(t, exec.ReadShard(s, buf))
			if whole[s.Name] == nil {
				whole[s.Name] = make([]float32, s.Type.Elems())
			}
			scatter(whole[s.Name], buf, s.Slab)
		}
	}
	return whole
}

// scatter copies a dense slab into the whole array.
func scatter(whole []float32, local []byte, slab ir.Slab) {
	index := make([]int, len(slab.Local))
	for i := range int(slab.Elems()) {
		at := 0
		for d := range index {
			at = at*slab.Global[d] + slab.Offset[d] + index[d]
		}
		bits := uint32(local[4*i]) | uint32(local[4*i+1])<<8 | uint32(local[4*i+2])<<16 | uint32(local[4*i+3])<<24
		whole[at] = math.Float32frombits(bits)
		for d := len(index) - 1; d >= 0; d-- {
			if index[d]++; index[d] < slab.Local[d] {
				break
			}
			index[d] = 0
		}
	}
}
