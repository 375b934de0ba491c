package autopar_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/cuda"
	"github.com/autopar/autopar/cuda/cudatest"
	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/cuda/driver/fake"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/exact"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
)

// TestLoopbackParity trains under plans of TestParity on the CUDA backend, all ranks on
// one fake GPU whose streams run in a random order, and compares each step with one rank
// on the CPU. The fake also refuses every access to memory that no event orders.
func TestLoopbackParity(t *testing.T) {
	const steps = 3
	one := oneRank(t, steps)
	plans := allParityPlans()
	plans = sampleOf(t, plans, most(len(plans), 4))
	var worstLoss, worstNorm float64
	for i, c := range plans {
		got, _ := trainOnFake(t, c.plan, fake.Options{Seed: uint64(i)}, cuda.Options{Loopback: true}, steps)
		dLoss, dNorm := differences(one, got)
		if row := fmt.Sprintf("%+v: %.1e %.1e", *c.plan, dLoss, dNorm); !(dLoss <= 1e-5) || !(dNorm <= 1e-6) {
			t.Error(row)
		}
		worstLoss, worstNorm = max(worstLoss, dLoss), max(worstNorm, dNorm)
	}
	t.Logf("%d plans: max abs Δloss %.1e, max rel Δ‖grad‖ %.1e", len(plans), worstLoss, worstNorm)
}

// TestReplay trains one rank with steps that become a graph.
func TestReplay(t *testing.T) {
	const steps = 6
	plan := parityPlan(1, 1, 1, parityBatch, partition.GPipe, false)
	got, driver := trainOnFake(t, plan, fake.Options{}, cuda.Options{}, steps)
	dLoss, _ := differences(trainBatch(t, plan, parityBatch, steps), got)
	require.LessOrEqual(t, dLoss, 1e-5)
	_, graphs := driver.Ran()
	require.Equal(t, steps-3, graphs)
	eager, driver := trainOnFake(t, plan, fake.Options{}, cuda.Options{Eager: true}, steps)
	require.Equal(t, eager, got)
	_, graphs = driver.Ran()
	require.Zero(t, graphs)
}

// TestGraphsOfOneProcess: where NCCL may not run graphs of several GPUs of a process, a step of several ranks is none, and that is
// said once; a step of one rank is.
func TestGraphsOfOneProcess(t *testing.T) {
	const steps = 5
	for ranks, want := range map[int]struct {
		graphs int
		notes  []string
	}{
		1: {steps - 3, nil},
		2: {0, []string{"steps are not replayed as CUDA graphs: this process drives several GPUs, whose graphs may wait for each other in NCCL; autopar launch starts one for each"}},
	} {
		driver := fake.New(fake.Options{Devices: ranks})
		system, err := cudatest.NewSystem(driver)
		require.NoError(t, err)
		system.Together = false
		var notes []string
		opts := cuda.Options{Note: func(text string) { notes = append(notes, text) }}
		prog, exec := compileOn(t, cuda.New(system, opts), stepOf(t, parityModel), parityPlan(ranks, 1, 1, 1, partition.GPipe, false), parityBatch)
		require.NoError(t, exec.InitParams(prog, 1337))
		stepsOf(t, prog, exec, parityBatch, steps)
		require.NoError(t, exec.Close())
		_, graphs := driver.Ran()
		require.Equal(t, want.graphs, graphs, "%d ranks", ranks)
		require.Equal(t, want.notes, notes)
	}
}

// TestReplayedParity trains with steps that become graphs, on one rank and on ranks that
// use NCCL, and compares each step with one rank on the CPU.
func TestReplayedParity(t *testing.T) {
	const steps = 6
	one := oneRank(t, steps)
	overlapped := parityPlan(2, 1, 1, 3, partition.OneFOneB, false)
	overlapped.ZeRO, overlapped.Overlap = 2, true
	sequence := parityPlan(1, 3, 1, 11, partition.OneFOneB, true)
	sequence.SequenceParallel, sequence.Overlap, sequence.OverlapTP = true, true, true
	exchanged := parityPlan(1, 2, 1, 4, partition.OneFOneB, false)
	exchanged.OverlapTP = true
	offloaded := parityPlan(2, 1, 1, 11, partition.OneFOneB, false)
	offloaded.ZeRO, offloaded.Offload = 1, partition.OffloadOptimizer
	for name, p := range map[string]*partition.Plan{
		"one rank":                   parityPlan(1, 1, 1, 4, partition.GPipe, false),
		"data-parallel, overlapped":  overlapped,
		"tensor-parallel, sequences": sequence,
		"tensor-parallel, exchanged": exchanged,
		"context-parallel":           contextPlan(1, 2, 1, 1),
		"offloaded":                  offloaded,
	} {
		t.Run(name, func(t *testing.T) {
			got, driver := trainOnFake(t, p, fake.Options{Devices: 4, Seed: 1}, cuda.Options{}, steps)
			dLoss, dNorm := differences(one, got)
			require.LessOrEqual(t, dLoss, 1e-5)
			require.LessOrEqual(t, dNorm, 1e-6)
			_, graphs := driver.Ran()
			require.Equal(t, (steps-3)*p.RuntimeNGPUs, graphs, "steps after the second that is like the one before it")
		})
	}
	got, driver := trainOnFake(t, overlapped, fake.Options{Seed: 1}, cuda.Options{Loopback: true, Synchronous: true}, steps)
	dLoss, _ := differences(one, got)
	require.LessOrEqual(t, dLoss, 1e-5, "one thing after another")
	_, graphs := driver.Ran()
	require.Zero(t, graphs)
}

// TestPipelinesOverNCCL trains under pipelines of every kind whose ranks have GPUs of their own:
// sends and receives that each hold a stream until the other has come, in steps that become graphs.
func TestPipelinesOverNCCL(t *testing.T) {
	const steps = 4
	one := oneRank(t, steps)
	zero := parityPlan(2, 1, 2, 3, partition.OneFOneB, true)
	zero.ZeRO, zero.Overlap = 2, true
	chunks, bubble := pipelinePlan(2, 1, 2, 2, 1, ""), pipelinePlan(2, 1, 2, 0, 2, "") // gradients reduced beside other tasks
	chunks.ZeRO, chunks.Overlap, bubble.Overlap = 1, true, true
	plans := []*partition.Plan{
		parityPlan(1, 1, 2, 2, partition.GPipe, false), parityPlan(1, 1, 4, 3, partition.GPipe, true),
		parityPlan(3, 1, 2, 1, partition.OneFOneB, false), parityPlan(1, 2, 4, 2, partition.OneFOneB, false), zero,
		pipelinePlan(1, 1, 2, 2, 2, ""), pipelinePlan(1, 2, 2, 3, 3, "full"), pipelinePlan(2, 1, 4, 2, 1, ""),
		pipelinePlan(1, 1, 2, 0, 1, ""), pipelinePlan(2, 2, 2, 0, 2, ""), pipelinePlan(1, 1, 4, 0, 2, "selective"), chunks, bubble,
		parityPlan(1, 1, 4, 1, partition.EagerOneFOneB, false), parityPlan(2, 1, 4, 1, partition.EagerZeroBubble, true),
	}
	for i, p := range plans {
		p.OverlapTP, p.OverlapP2P = p.TP > 1 && !p.Schedule.SplitsBackward(), i%3 > 0
	}
	for i, p := range plans {
		t.Run(fmt.Sprintf("%s dp %d tp %d pp %d", p.ScheduleText(), p.DP, p.TP, p.PP()), func(t *testing.T) {
			got, driver := trainOnFake(t, p, fake.Options{Devices: 8, Seed: uint64(i)}, cuda.Options{}, steps)
			dLoss, dNorm := differences(one, got)
			require.LessOrEqual(t, dLoss, 1e-5)
			require.LessOrEqual(t, dNorm, 1e-6)
			_, graphs := driver.Ran()
			require.Equal(t, (steps-3)*p.RuntimeNGPUs, graphs)
		})
	}
	for name, x := range map[string]struct {
		fakes fake.Options
		opts  cuda.Options
		plans []int
	}{
		"every call waits for its effect":            {fake.Options{Devices: 8}, cuda.Options{Synchronous: true}, []int{2, 11}},
		"a GPU does the work of its streams in turn": {fake.Options{Devices: 8, InTurn: true}, cuda.Options{}, []int{4, 7, 12, 13, 14}},
	} {
		for _, i := range x.plans {
			t.Run(fmt.Sprintf("%s/%s dp %d tp %d pp %d", name, plans[i].ScheduleText(), plans[i].DP, plans[i].TP, plans[i].PP()), func(t *testing.T) {
				got, _ := trainOnFake(t, plans[i], x.fakes, x.opts, steps)
				dLoss, _ := differences(one, got)
				require.LessOrEqual(t, dLoss, 1e-5)
			})
		}
	}
}

// TestGPULoopbackParity trains on a GPU under plans of 1, 2, 4 and 8 ranks that share it,
// and on GPUs of their own over NCCL where there are as many, and compares each step with one
// rank on the CPU: within 1e-4 in float32 and 1 % in bfloat16.
func TestGPULoopbackParity(t *testing.T) {
	system := cudatest.Machine(t)
	visible, err := system.Driver.DeviceCount()
	require.NoError(t, err)
	const steps = 20
	zero := func(p *partition.Plan, stage int, overlap bool) *partition.Plan {
		p.ZeRO, p.Overlap, p.OverlapP2P = stage, overlap, overlap && p.PP() > 1
		return p
	}
	fmt.Println("| element type | ranks | GPUs | dp | tp | pp | zero | overlap | max Δloss |\n|---|---|---|---|---|---|---|---|---|")
	for _, d := range []ir.DType{ir.F32, ir.BF16} {
		model := parityModel
		model.Float = d
		g := stepOf(t, model)
		prog, exec := compile(t, g, parityPlan(1, 1, 1, parityBatch, partition.GPipe, false), parityBatch)
		require.NoError(t, exec.InitParams(prog, 1337))
		one := stepsOf(t, prog, exec, parityBatch, steps)
		for _, p := range []*partition.Plan{
			parityPlan(1, 1, 1, 4, partition.GPipe, false),
			zero(parityPlan(2, 1, 1, 3, partition.OneFOneB, false), 1, true),
			parityPlan(1, 2, 1, 3, partition.OneFOneB, true),
			parityPlan(1, 1, 2, 2, partition.OneFOneB, false),
			zero(parityPlan(2, 2, 1, 3, partition.OneFOneB, false), 2, true),
			zero(parityPlan(2, 1, 2, 2, partition.OneFOneB, true), 3, false),
			parityPlan(1, 1, 4, 1, partition.ZeroBubble, false),
			parityPlan(1, 1, 4, 1, partition.EagerZeroBubble, true),
			zero(parityPlan(2, 2, 2, 2, partition.OneFOneB, false), 1, true),
			zero(parityPlan(4, 2, 1, 1, partition.OneFOneB, false), 3, true),
		} {
			run := func(opts cuda.Options) trajectory {
				prog, exec := compileOn(t, cuda.New(system, opts), g, p, parityBatch)
				require.NoError(t, exec.InitParams(prog, 1337))
				defer func() { require.NoError(t, exec.Close()) }()
				return stepsOf(t, prog, exec, parityBatch, steps)
			}
			ways := []int{1}
			if n := p.RuntimeNGPUs; n > 1 && n <= visible {
				ways = append(ways, n)
			}
			for _, gpus := range ways {
				got := run(cuda.Options{Loopback: gpus < p.RuntimeNGPUs})
				if gpus == p.RuntimeNGPUs {
					require.Equal(t, run(cuda.Options{Eager: true}), got, "the bits of steps that are graphs")
				}
				dLoss, _ := differences(one, got)
				fmt.Printf("| %s | %d | %d | %d | %d | %d | %d | %v | %.1e |\n", d, p.RuntimeNGPUs, gpus, p.DP, p.TP, p.PP(), p.ZeRO, p.Overlap, dLoss)
				limit := 1e-4
				if d == ir.BF16 {
					limit = 0.01 * one.loss[0]
				}
				if !(dLoss <= limit) {
					t.Errorf("%s: %+v on %d GPUs: %.1e", d, *p, gpus, dLoss)
				}
			}
		}
	}
}

// TestReproducibleOverNCCL: sums in fixed point have the same bits whoever adds them up, in steps
// that become graphs too.
func TestReproducibleOverNCCL(t *testing.T) {
	const steps = 4
	g, err := exact.Sums(stepOf(t, parityModel))
	require.NoError(t, err)
	want, _ := stepsOnFake(t, g, parityPlan(1, 1, 1, parityBatch, partition.GPipe, false), fake.Options{}, cuda.Options{Reproducible: true}, steps)
	sharded, pipelined := parityPlan(3, 1, 1, 2, partition.OneFOneB, false), parityPlan(2, 1, 2, 3, partition.OneFOneB, true)
	sharded.ZeRO, pipelined.ZeRO = 2, 1
	for i, p := range []*partition.Plan{parityPlan(2, 1, 1, 1, partition.GPipe, false), sharded, pipelined} {
		got, driver := stepsOnFake(t, g, p, fake.Options{Devices: 4, Seed: uint64(i)}, cuda.Options{Reproducible: true}, steps)
		require.Equal(t, want, got, describePlan(p))
		_, graphs := driver.Ran()
		require.Equal(t, (steps-3)*p.RuntimeNGPUs, graphs)
	}
}

// TestMessagesOfTheNextStep evaluates twice under a pipeline whose ranks share a GPU, the second time before the first is over:
// no rank writes into the inbox that another still reads.
func TestMessagesOfTheNextStep(t *testing.T) {
	g, err := gpt.EvalStep(parityModel, parityBatch, parityModel.BlockSize)
	require.NoError(t, err)
	system, err := cudatest.NewSystem(fake.New(fake.Options{}))
	require.NoError(t, err)
	prog, exec := compileOn(t, cuda.New(system, cuda.Options{Loopback: true}), g, parityPlan(1, 1, 2, parityBatch, partition.GPipe, false), parityBatch)
	require.NoError(t, exec.InitParams(prog, 1337))
	tokens := make([]int32, parityBatch*parityModel.BlockSize)
	feeds := runtime.Feeds{
		"ids": runtime.Ints(tokens...), "targets": runtime.Ints(tokens...), "positions": runtime.Ints(upTo(parityModel.BlockSize)...),
		"loss_weight": runtime.Floats(1 / float32(len(tokens))),
	}
	require.NoError(t, exec.Begin(t.Context(), prog, feeds))
	require.NoError(t, exec.Begin(t.Context(), prog, feeds))
	first, err := exec.Finish(t.Context())
	require.NoError(t, err)
	loss := first["loss"]
	second, err := exec.Finish(t.Context())
	require.NoError(t, err)
	require.Equal(t, loss, second["loss"])
}

// trainOnFake is trainBatch on the CUDA backend over a fake driver.
func trainOnFake(t *testing.T, p *partition.Plan, fakes fake.Options, opts cuda.Options, steps int) (trajectory, *fake.Driver) {
	return stepsOnFake(t, stepOf(t, parityModel), p, fakes, opts, steps)
}

func stepsOnFake(t *testing.T, g *ir.Graph, p *partition.Plan, fakes fake.Options, opts cuda.Options, steps int) (trajectory, *fake.Driver) {
	driver := fake.New(fakes)
	system, err := cudatest.NewSystem(driver)
	require.NoError(t, err)
	batch := g.Inputs()[0].Type.Shape[0]
	prog, exec := compileOn(t, cuda.New(system, opts), g, p, batch)
	require.NoError(t, exec.InitParams(prog, 1337))
	got := stepsOf(t, prog, exec, batch, steps)
	require.NoError(t, exec.Close())
	require.Empty(t, driver.Leaks())
	return got, driver
}

// TestCommunicatorsOfPrograms: a program that is loaded later joins only the communicators that those before it have not, no step
// joins any, and all GPUs join them in one order.
func TestCommunicatorsOfPrograms(t *testing.T) {
	const ranks, steps = 8, 3
	d := fake.New(fake.Options{Devices: ranks, Seed: 5})
	system, err := cudatest.NewSystem(d)
	require.NoError(t, err)
	plan := parityPlan(2, 2, 2, 2, partition.OneFOneB, false)
	plan.ZeRO, plan.Overlap, plan.OverlapTP, plan.OverlapP2P = 2, true, true, true
	evaluation, err := gpt.EvalStep(parityModel, parityBatch, parityModel.BlockSize)
	require.NoError(t, err)
	_, exec := compileOn(t, cuda.New(system, cuda.Options{}), evaluation, plan, parityBatch)
	joined := func() (all [][]driver.ID) {
		for gpu := range ranks {
			all = append(all, d.Joined(gpu))
		}
		return all
	}
	before := joined()
	g := stepOf(t, parityModel)
	prog, err := codegen.Compile(g, plan, parityBatch, nil)
	require.NoError(t, err)
	require.NoError(t, exec.Add(prog))
	after := joined()
	for gpu := range ranks {
		require.NotEmpty(t, before[gpu])
		require.Equal(t, before[gpu], after[gpu][:len(before[gpu])])
		require.Greater(t, len(after[gpu]), len(before[gpu]), "of gradients")
	}
	require.NoError(t, exec.InitParams(prog, 1337))
	stepsOf(t, prog, exec, parityBatch, steps)
	again, err := codegen.Compile(g, plan, parityBatch, nil)
	require.NoError(t, err)
	require.NoError(t, exec.Add(again))
	require.Equal(t, after, joined(), "after steps, and a program of the same groups")
	require.NoError(t, d.JoinedInOrder())
}

// absent is a rank that never joins.
type absent struct {
	*cuda.Device
	end chan struct{}
}

func (a absent) Join() (bool, error) {
	<-a.end
	return false, nil
}

// withAbsent is a backend whose last rank is absent.
type withAbsent struct {
	*cuda.Backend
	end chan struct{}
}

func (b withAbsent) Open(world runtime.World) ([]runtime.Device, error) {
	devices, err := b.Backend.Open(world)
	if err == nil {
		devices[world.Ranks-1] = absent{devices[world.Ranks-1].(*cuda.Device), b.end}
	}
	return devices, err
}

// TestRankThatDoesNotJoin: if a rank does not join the others, loading a program fails in time. The error says who waited, with
// which group, for whom.
func TestRankThatDoesNotJoin(t *testing.T) {
	system, err := cudatest.NewSystem(fake.New(fake.Options{Devices: 3}))
	require.NoError(t, err)
	prog, err := codegen.Compile(stepOf(t, parityModel), parityPlan(3, 1, 1, 4, partition.GPipe, false), parityBatch, nil)
	require.NoError(t, err)
	b := withAbsent{cuda.New(system, cuda.Options{}), make(chan struct{})}
	defer close(b.end)
	start := time.Now()
	_, err = runtime.New(prog, b, runtime.Options{Timeout: 200 * time.Millisecond})
	require.ErrorContains(t, err, "joining NCCL's group 0 (ranks 0, 1, 2): waited 200ms for rank 2")
	require.Less(t, time.Since(start), 20*time.Second)
}
