package runtime_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
)

// tiny is a training step whose instructions do next to nothing.
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

// BenchmarkOverhead runs steps whose instructions do next to nothing. Their time is that of the
// executor, the device, and some ten elements of arithmetic.
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

// instructions returns how many instructions all ranks run in a step.
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
