package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/launch"
	"github.com/autopar/autopar/launch/launchtest"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/backendtest"
	"github.com/autopar/autopar/runtime/cpu"
)

// process is what one of several processes does with its executor.
type process func(e *runtime.Executor, rank int) error

// processes runs a program with an executor for each rank, connected like several processes, but in
// this one. perMachine of them share memory. It returns their errors.
func processes(t *testing.T, prog *codegen.Program, perMachine int, timeout time.Duration, backend func(rank int, b *cpu.Backend) runtime.Backend, do process) []error {
	t.Helper()
	addr, err := launchtest.FreeAddr()
	require.NoError(t, err)
	n := len(prog.Schedules)
	errs := make([]error, n)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var all sync.WaitGroup
	for rank := range n {
		all.Go(func() {
			errs[rank] = func() (err error) {
				peers, err := launch.Join(ctx, launch.Place{Rank: rank, World: n, Addr: addr, Node: fmt.Sprint(rank / perMachine)})
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, peers.Close()) }()
				b, err := cpu.New(cpu.Options{Threads: 1})
				if err != nil {
					return err
				}
				e, err := runtime.New(prog, backend(rank, b), runtime.Options{Timeout: timeout, Peers: peers})
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, e.Close()) }()
				if err := e.InitParams(prog, 42); err != nil {
					return err
				}
				return do(e, rank)
			}()
		})
	}
	all.Wait()
	return errs
}

func plain(_ int, b *cpu.Backend) runtime.Backend { return b }

// TestProcesses trains under plans of each kind with a process for each rank, on one machine and on
// several. Losses, norms and counters must have the bits of the same plan in one process, in all
// processes.
func TestProcesses(t *testing.T) {
	const steps = 3
	g := trainGraph(t)
	for _, s := range []shape{
		{dp: 2, tp: 1, pp: 1, micro: 2, schedule: partition.GPipe, zero: 2, overlap: true},
		{dp: 1, tp: 3, pp: 1, micro: 3, schedule: partition.OneFOneB, recompute: true},
		{dp: 1, tp: 1, pp: 4, micro: 1, schedule: partition.OneFOneB},
		{dp: 2, tp: 1, pp: 2, micro: 2, schedule: partition.OneFOneB, zero: 1, overlap: true},
		{dp: 2, tp: 2, pp: 1, micro: 1, schedule: partition.GPipe, zero: 3, overlap: true},
		{dp: 1, tp: 2, pp: 2, micro: 2, schedule: partition.Interleaved, interleave: 2},
	} {
		prog := compile(t, g, s, nil)
		e := start(t, prog, runtime.Options{})
		var want []runtime.Outputs
		for i := range steps {
			out, err := e.Step(context.Background(), prog, feeds(i))
			require.NoError(t, err)
			want = append(want, runtime.Outputs{"loss": out["loss"], "grad_norm": out["grad_norm"]})
		}
		for _, perMachine := range []int{4, 2, 1} {
			if perMachine == 4 && len(prog.Schedules) < 3 || testing.Short() && perMachine == 1 {
				continue
			}
			errs := processes(t, prog, perMachine, time.Minute, plain, func(here *runtime.Executor, rank int) error {
				for i := range steps {
					out, err := here.Step(context.Background(), prog, feeds(i))
					if err != nil {
						return err
					}
					for name, x := range want[i] {
						if out[name] != x {
							return fmt.Errorf("rank %d, step %d: %s is %v, in one process %v", rank, i, name, out[name], x)
						}
					}
				}
				for r := range here.Ranks() {
					if got, want := here.Counters(r), e.Counters(r); got != want {
						return fmt.Errorf("rank %d counts for %d %+v, in one process %+v", rank, r, got, want)
					}
				}
				return nil
			})
			require.NoError(t, errors.Join(errs...), "%s, %d a machine", s, perMachine)
		}
	}
}

// TestProcessesStopTogether cancels the context of one process: all stop before the same step.
func TestProcessesStopTogether(t *testing.T) {
	prog := compile(t, trainGraph(t), shape{dp: 2, tp: 2, pp: 1, micro: 2, schedule: partition.OneFOneB}, nil)
	errs := processes(t, prog, 4, time.Minute, plain, func(e *runtime.Executor, rank int) error {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		for i := range 9 {
			if rank == 2 && i == 4 {
				cancel()
			}
			if _, err := e.Step(ctx, prog, feeds(i)); err != nil {
				return fmt.Errorf("before step %d: %w", i, err)
			}
		}
		return nil
	})
	for _, err := range errs {
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "before step 5")
	}
}

// TestProcessesFail makes one process fail, hang, or load another program. All must end in bounded
// time and say which rank failed, at which step and op.
func TestProcessesFail(t *testing.T) {
	g := trainGraph(t)
	all := shape{dp: 2, tp: 1, pp: 2, micro: 2, schedule: partition.OneFOneB}
	prog := compile(t, g, all, nil)
	steps := func(e *runtime.Executor, _ int) error {
		for i := range 3 {
			if _, err := e.Step(context.Background(), prog, feeds(7+i)); err != nil {
				return err
			}
		}
		return nil
	}
	t.Run("fails", func(t *testing.T) {
		errs := processes(t, prog, 2, time.Minute, func(rank int, b *cpu.Backend) runtime.Backend {
			if rank != 3 {
				return b
			}
			return backendtest.Inject(b, backendtest.Fault{Call: backendtest.Launch, At: 40})
		}, steps)
		require.Regexp(t, `^rank 3, step 7, \w+ mb=\d, \w+ \S+: injected fault$`, errs[3])
		for rank, err := range errs[:3] {
			at := fmt.Sprintf(`^(runtime: (rank %d|loading train)|rank %[1]d, step 7, .*): `, rank) // it may not have begun yet, or not have heard that all have loaded the program
			require.Regexp(t, at+`rank 3 has failed: rank 3, step 7, \w+ mb=\d, \w+ \S+: injected fault$`, err)
		}
	})
	for name, perMachine := range map[string]int{"hangs beside": 4, "hangs afar": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits for ranks that hang
			const timeout = 3 * time.Second
			began := time.Now()
			errs := processes(t, prog, perMachine, timeout, func(rank int, b *cpu.Backend) runtime.Backend {
				if rank != 1 {
					return b
				}
				f := backendtest.Inject(b, backendtest.Fault{Call: backendtest.Launch, At: 40, Kind: backendtest.Hang})
				t.Cleanup(f.Release)
				return f
			}, steps)
			require.Less(t, time.Since(began), time.Minute)
			for _, err := range errs { // those that time out, and those they tell
				require.Regexp(t, `^rank \d, step 7, .*(waited \d+(\.\d)?s for rank|hangs: no progress)`, err)
			}
		})
	}
	square := shape{dp: 2, tp: 2, pp: 1, micro: 2, schedule: partition.OneFOneB}
	for name, change := range map[string]func(*partition.Plan){
		"other program":  func(p *partition.Plan) { p.DP, p.TP = 4, 1 },
		"ranks in order": func(p *partition.Plan) { p.RankOrder = "dp-tp" }, // all run the same, but with other ranks
	} {
		t.Run(name, func(t *testing.T) {
			plan := square.plan()
			change(plan)
			other, err := codegen.Compile(g, plan, batch, nil)
			require.NoError(t, err)
			errs := processes(t, prog, 4, time.Minute, plain, func(e *runtime.Executor, rank int) error {
				if rank == 2 {
					return e.Add(other)
				}
				return e.Add(compile(t, g, square, nil))
			})
			for _, err := range errs {
				require.ErrorContains(t, err, "rank 2 has another program")
			}
			var program *runtime.ProgramError // others may hear of it before they see it
			require.True(t, slices.ContainsFunc(errs, func(err error) bool { return errors.As(err, &program) }), "%v", errs)
		})
	}
}
