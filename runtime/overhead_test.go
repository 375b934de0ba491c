package runtime_test

import (
	"context"
	goruntime "runtime"
	"runtime/metrics"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
)

// tiny is a training step whose instructions have next to nothing to do.
func tiny(t testing.TB, s shape) (*codegen.Program, runtime.Feeds) {
	cfg := config()
	cfg.NHead, cfg.NEmbd, cfg.VocabSize, cfg.BlockSize, cfg.Dropout = 2, 4, 5, 2, 0
	g, err := gpt.TrainStep(cfg, optimizer, batch, cfg.BlockSize)
	require.NoError(t, err)
	in := feeds(0)
	ids := make([]int32, batch*cfg.BlockSize)
	in["ids"], in["targets"], in["positions"] = runtime.Ints(ids...), runtime.Ints(ids...), runtime.Ints(0, 1)
	return compile(t, g, s, nil), in
}

// BenchmarkOverhead runs steps of instructions that have next to nothing to do: what an instruction takes is the executor, the
// device, and some ten elements of arithmetic.
func BenchmarkOverhead(b *testing.B) {
	for _, s := range []shape{
		oneRank,
		{dp: 1, tp: 1, pp: 1, micro: 1, schedule: partition.GPipe},
		{dp: 2, tp: 1, pp: 1, micro: 1, schedule: partition.GPipe},
		{dp: 1, tp: 1, pp: 2, micro: 1, schedule: partition.OneFOneB},
		{dp: 2, tp: 2, pp: 1, micro: 1, schedule: partition.GPipe},
	} {
		b.Run(s.String(), func(b *testing.B) {
			prog, in := tiny(b, s)
			e := start(b, prog, runtime.Options{})
			ctx := context.Background()
			for range 20 {
				_, err := e.Step(ctx, prog, in)
				require.NoError(b, err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := e.Step(ctx, prog, in); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*instructions(prog)), "ns/instr")
		})
	}
}

// instructions returns how many all ranks run in a step.
func instructions(prog *codegen.Program) int {
	n := 0
	for r := range prog.Schedules {
		s := &prog.Schedules[r]
		for _, task := range s.Tasks {
			for _, in := range prog.Stages[s.Stage].Run(task) {
				if s.Runs(&in, task) {
					n++
				}
			}
		}
	}
	return n
}

// BenchmarkPauses collects garbage during steps, which by themselves make none, and reports how long that stops the ranks.
func BenchmarkPauses(b *testing.B) {
	prog := compile(b, trainGraph(b), shape{dp: 2, tp: 1, pp: 1, micro: 2, schedule: partition.GPipe}, nil)
	e := start(b, prog, runtime.Options{})
	in := feeds(0)
	before := pauses()
	for b.Loop() {
		done := make(chan struct{})
		go func() {
			defer close(done)
			goruntime.GC()
		}()
		for running := true; running; {
			_, err := e.Step(context.Background(), prog, in)
			require.NoError(b, err)
			select {
			case <-done:
				running = false
			default:
			}
		}
	}
	after := pauses()
	require.Greater(b, after.count(), before.count(), "there were pauses")
	for name, q := range map[string]float64{"us-longest": 1, "us-99%": 0.99, "us-median": 0.5} {
		b.ReportMetric(1e6*after.quantile(before, q), name)
	}
}

// pauseTimes are the lengths of the collector's pauses so far, in buckets.
type pauseTimes struct {
	counts []uint64
	bounds []float64 // seconds, one more than counts
}

func pauses() pauseTimes {
	sample := []metrics.Sample{{Name: "/sched/pauses/total/gc:seconds"}}
	metrics.Read(sample)
	h := sample[0].Value.Float64Histogram()
	return pauseTimes{slices.Clone(h.Counts), slices.Clone(h.Buckets)}
}

func (p pauseTimes) count() (n uint64) {
	for _, c := range p.counts {
		n += c
	}
	return n
}

// quantile returns a lower bound of the given quantile of the pauses since before.
func (p pauseTimes) quantile(before pauseTimes, q float64) float64 {
	rest := float64(p.count()-before.count()) * (1 - q)
	for i := len(p.counts) - 1; i >= 0; i-- {
		if n := float64(p.counts[i] - before.counts[i]); n > 0 && n > rest {
			return max(p.bounds[i], 0)
		} else {
			rest -= n
		}
	}
	return 0
}
