package train

import (
	"context"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint"
)

// BenchmarkSave measures how long training waits for a checkpoint of a state of 200 MB: until it is
// on disk, until it is copied to memory of the process, or to memory that outlives it. It also
// prints how long a step takes, and the ten steps after the checkpoint during which it is written.
func BenchmarkSave(b *testing.B) {
	cfg := tinyConfig(b, textData(b), "model.n_embd=832", "model.dropout=0", "batch.global=2")
	job := newJob(b, cfg, planOf(1, 1, 1))
	ctx := context.Background()
	for _, name := range []string{"blocking", "copy", "outliving-copy"} {
		b.Run(name, func(b *testing.B) {
			r := &run{Job: job, opts: RunOptions{Out: b.TempDir(), Blocking: name == "blocking", Keep: checkpoint.Retention{Last: 1}}, saved: -1}
			if name == "outliving-copy" {
				f, err := os.CreateTemp("/dev/shm", "autopar-bench")
				if err != nil {
					b.Skip(err)
				}
				defer f.Close()
				require.NoError(b, os.Remove(f.Name()))
				r.opts.Memory = f
			}
			require.NoError(b, r.opts.validate(1))
			r.openCheckpoints()
			require.NoError(b, r.reserveMemory())
			require.NoError(b, r.Init())
			step := func() {
				_, err := job.Step(ctx, r.result.Steps)
				require.NoError(b, err)
				r.result.Steps++
			}
			var waits, all time.Duration
			for range b.N {
				step()
				began := time.Now()
				require.NoError(b, r.save(ctx))
				waits += time.Since(began)
				for range 10 {
					step()
				}
				all += time.Since(began)
				require.NoError(b, r.waitForCheckpoint())
			}
			b.ReportMetric(waits.Seconds()*1e3/float64(b.N), "ms/save")
			b.ReportMetric(all.Seconds()*1e3/float64(b.N), "ms/save+10steps")
			b.ReportMetric(0, "ns/op")
			require.NoError(b, r.closeCheckpoints())
		})
	}
}
