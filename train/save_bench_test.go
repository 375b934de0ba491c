package train

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint"
)

// BenchmarkSave is how long a step waits for the checkpoint before it, of a state of 200 MB: until it is on disk, or until
// it is copied.
func BenchmarkSave(b *testing.B) {
	cfg := tinyConfig(b, textData(b), "model.n_embd=832", "model.dropout=0", "batch.global=2")
	job := newJob(b, cfg, planOf(1, 1, 1))
	for _, blocking := range []bool{true, false} {
		b.Run(map[bool]string{true: "blocking", false: "background"}[blocking], func(b *testing.B) {
			r := &run{Job: job, opts: RunOptions{Out: b.TempDir(), Blocking: blocking, Keep: checkpoint.Retention{Last: 1}}, saved: -1}
			require.NoError(b, r.opts.validate(1))
			r.openCheckpoints()
			require.NoError(b, r.reserveMemory())
			require.NoError(b, r.Init())
			save := func(step int) time.Duration {
				require.NoError(b, r.waitForCheckpoint())
				_, err := job.Step(context.Background(), step)
				require.NoError(b, err)
				r.result.Steps = step + 1
				began := time.Now()
				require.NoError(b, r.save(context.Background()))
				return time.Since(began)
			}
			all := time.Duration(0)
			for i := range b.N {
				all += save(i)
			}
			b.ReportMetric(all.Seconds()*1e3/float64(b.N), "ms/save")
			b.ReportMetric(0, "ns/op")
			require.NoError(b, r.closeCheckpoints())
		})
	}
}
