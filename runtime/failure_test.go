package runtime_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/backendtest"
	"github.com/autopar/autopar/runtime/cpu"
)

// TestFailures makes one call of one rank fail. All ranks must stop with one error that says where,
// the executor must stay stopped, and closing it must return.
func TestFailures(t *testing.T) {
	g := trainGraph(t)
	all := shape{dp: 2, tp: 2, pp: 2, micro: 2, schedule: partition.OneFOneB}
	beside := shape{dp: 2, tp: 1, pp: 1, micro: 2, schedule: partition.OneFOneB, zero: 3, overlap: true}
	for name, c := range map[string]struct {
		shape
		fault backendtest.Fault
		want  string // of the error, as a regular expression
	}{
		"kernel fails":     {all, backendtest.Fault{Rank: 5, Call: backendtest.Launch, At: 3}, `^rank 5, step 7, fwd mb=0, \w+ h\.2\.\S+: injected fault$`},
		"kernel panics":    {all, backendtest.Fault{Rank: 1, Call: backendtest.Launch, At: 40, Kind: backendtest.Panic}, `^rank 1, step 7, fwd mb=\d, \w+ \S+: panic: injected panic\n`},
		"collective fails": {all, backendtest.Fault{Rank: 3, Call: backendtest.Collective, At: 5}, `^rank 3, step 7, \w+( mb=\d)?, \w+ \S+: injected fault$`},
		"send fails":       {all, backendtest.Fault{Rank: 0, Call: backendtest.Send, At: 1}, `^rank 0, step 7, fwd mb=1, send \S+@send1: injected fault$`},
		"recv fails":       {all, backendtest.Fault{Rank: 4, Call: backendtest.Recv, At: 1}, `^rank 4, step 7, fwd mb=1, recv \S+@recv1: injected fault$`},
		"kernel hangs": {all, backendtest.Fault{Rank: 2, Call: backendtest.Launch, At: 30, Kind: backendtest.Hang},
			`^rank \d, step 7, .*: waited \d+s for rank .*; rank \d is at `},
		"collective hangs": {all, backendtest.Fault{Rank: 6, Call: backendtest.Collective, At: 2, Kind: backendtest.Hang},
			`^rank \d, step 7, .*: waited \d+s for rank `},
		"send hangs": {all, backendtest.Fault{Rank: 1, Call: backendtest.Send, Kind: backendtest.Hang},
			`^rank \d, step 7, .*: waited \d+s for rank `},
		"handing over a collective fails": {beside, backendtest.Fault{Rank: 1, Call: backendtest.Collective, At: 4}, `^rank 1, step 7, fwd mb=0, all_gather \S+: injected fault$`},
		"communication stream waits in vain": {beside, backendtest.Fault{Rank: 1, Call: backendtest.Launch, At: 30, Kind: backendtest.Hang},
			`^rank 0, step 7, \w+ mb=0, all_gather h\.\S+@all_gather_dp: on the communication stream: waited \d+s for rank 1; rank 1 is at `},
		"the only rank hangs": {oneRank, backendtest.Fault{Rank: 0, Call: backendtest.Launch, At: 9, Kind: backendtest.Hang},
			`^rank 0, step 7, fwd mb=0, \w+ \S+: hangs: no progress for [\d.]+s$`},
	} {
		t.Run(name, func(t *testing.T) {
			timeout := 10 * time.Minute
			if c.fault.Kind == backendtest.Hang {
				timeout = time.Second // for the waits of ranks that do end, on a busy machine too
				if raceEnabled {
					timeout = 15 * time.Second // otherwise another rank gives up before the faulty one hangs
				}
			}
			prog := compile(t, g, c.shape, nil)
			t.Parallel() // it waits for ranks that hang
			b, err := cpu.New(cpu.Options{})
			require.NoError(t, err)
			faulty := backendtest.Inject(b, c.fault)
			defer faulty.Release()
			e, err := runtime.New(prog, faulty, runtime.Options{Timeout: timeout})
			require.NoError(t, err)
			require.NoError(t, e.InitParams(prog, 1))

			began := time.Now()
			_, err = e.Step(context.Background(), prog, feeds(7))
			require.Regexp(t, c.want, err)
			var step *runtime.StepError
			require.ErrorAs(t, err, &step)

			_, again := e.Step(context.Background(), prog, feeds(8))
			require.Equal(t, err, again)
			closed := e.Close()
			require.Less(t, time.Since(began), 2*time.Minute)
			if c.fault.Kind == backendtest.Hang {
				require.ErrorContains(t, closed, "hangs")
			} else {
				require.NoError(t, closed)
				require.False(t, errors.Is(err, runtime.ErrAborted), "the first cause, not what follows from it")
			}
			require.NoError(t, e.Close(), "closing twice")
		})
	}
}

// TestInitFails reports a failure outside of steps.
func TestInitFails(t *testing.T) {
	prog := compile(t, trainGraph(t), oneRank, nil)
	b, err := cpu.New(cpu.Options{})
	require.NoError(t, err)
	e, err := runtime.New(prog, backendtest.Inject(b, backendtest.Fault{Call: backendtest.Upload}), runtime.Options{})
	require.NoError(t, err)
	require.EqualError(t, e.InitParams(prog, 1), "runtime: rank 0: initial value of wte.weight: injected fault")
	require.NoError(t, e.Close())
}

// TestInitPanics: a panic of one of the goroutines that compute initial values is an error.
func TestInitPanics(t *testing.T) {
	prog := compile(t, trainGraph(t), oneRank, nil)
	for _, n := range prog.Graph.Nodes {
		if attr, ok := n.Attr.(ir.ParamAttr); ok && n.Name == "wte.weight" {
			attr.Init = 99
			n.Attr = attr
		}
	}
	b, err := cpu.New(cpu.Options{})
	require.NoError(t, err)
	e, err := runtime.New(prog, b, runtime.Options{})
	require.NoError(t, err)
	require.ErrorContains(t, e.InitParams(prog, 1), "unknown initial distribution 99")
	require.NoError(t, e.Close())
}

// TestPostedInVain shows that the error of a rank that waits for a posted send names the send, not what the rank would do next.
func TestPostedInVain(t *testing.T) {
	g, err := gpt.EvalStep(config(), batch, seqLen)
	require.NoError(t, err)
	p := shape{dp: 1, tp: 1, pp: 2, micro: 1, schedule: partition.OneFOneB}.plan()
	p.OverlapP2P = true
	prog, err := codegen.Compile(g, p, batch, nil)
	require.NoError(t, err)
	t.Parallel() // ranks that hang are waited for
	b, err := cpu.New(cpu.Options{})
	require.NoError(t, err)
	faulty := backendtest.Inject(b, backendtest.Fault{Rank: 1, Call: backendtest.Launch, At: 3, Kind: backendtest.Hang})
	defer faulty.Release()
	e, err := runtime.New(prog, faulty, runtime.Options{Timeout: time.Second})
	require.NoError(t, err)
	require.NoError(t, e.InitParams(prog, 1))
	in := feeds(7)
	for _, name := range []string{"lr", "seed", "step"} {
		delete(in, name)
	}
	_, err = e.Step(context.Background(), prog, in)
	require.Regexp(t, `^rank 0, step 0, fwd mb=2, send \S+@send1: waited 1s for rank 1; rank 1 is at fwd mb=0, `, err)
	require.ErrorContains(t, e.Close(), "hangs")
}

// TestMemoryComesFirst: arenas that do not fit are refused before the tasks are loaded.
func TestMemoryComesFirst(t *testing.T) {
	if _, known := runtime.ReadHostMemory(os.DirFS("/")); !known {
		t.Skip("this system does not say how much memory is free")
	}
	cfg := config()
	cfg.NEmbd = cfg.NHead << 18 // some 100 TiB
	g, err := gpt.TrainStep(cfg, optimizer, batch, seqLen)
	require.NoError(t, err)
	prog, err := codegen.Compile(g, oneRank.plan(), batch, nil)
	require.NoError(t, err)
	prog.Schedules[0].Tasks = nil // which cannot be loaded
	b, err := cpu.New(cpu.Options{})
	require.NoError(t, err)
	_, err = runtime.New(prog, b, runtime.Options{})
	var short *runtime.MemoryError
	require.ErrorAs(t, err, &short)
	require.EqualError(t, err, short.Error(), "it names the rank")
}
