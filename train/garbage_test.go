package train

import (
	goruntime "runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestGarbage: garbage is collected between steps, if there is enough of it or the last collection
// was long ago, and never if the collector is off.
func TestGarbage(t *testing.T) {
	const percent = 777
	defer debug.SetGCPercent(debug.SetGCPercent(percent))
	collections := func() int64 {
		var s debug.GCStats
		debug.ReadGCStats(&s)
		return s.NumGC
	}
	goruntime.GC() // collects what other tests have left
	n := collections()
	g := collectGarbage()
	require.Equal(t, n+1, collections(), "it begins with one")
	g.between()
	require.Equal(t, n+1, collections(), "there is none")
	waste := make([]byte, 2*g.heap[1].Value.Uint64()+headroom)
	g.between()
	require.Equal(t, n+2, collections(), "more than as much again")
	g.between()
	require.Equal(t, n+2, collections(), "of %d bytes, which are in use", len(waste))
	goruntime.KeepAlive(waste)
	g.last = g.last.Add(-idleTime)
	g.between()
	require.Equal(t, n+3, collections())
	g.restore()
	require.Equal(t, percent, debug.SetGCPercent(-1))
	g = collectGarbage()
	g.last = time.Time{}
	g.between()
	require.Equal(t, n+3, collections(), "it is off")
	g.restore()
	require.Equal(t, -1, debug.SetGCPercent(percent))
}

// TestGarbageOfTwoRuns: in the end GOGC is what it was, whichever run ends first, or what somebody
// has set meanwhile.
func TestGarbageOfTwoRuns(t *testing.T) {
	const percent = 777
	defer debug.SetGCPercent(debug.SetGCPercent(percent))
	for last := range 2 {
		runs := [2]*garbage{collectGarbage(), collectGarbage()}
		runs[1-last].restore()
		runs[last].restore()
		require.Equal(t, percent, debug.SetGCPercent(percent), "the run that began as number %d ends last", last)
	}
	g := collectGarbage()
	debug.SetGCPercent(percent + 1)
	g.restore()
	require.Equal(t, percent+1, debug.SetGCPercent(percent))
}

// BenchmarkPauses trains for 300 steps with a line of log each. It reports how often and for how
// long the collector stopped the ranks, and for how long it does if it starts after each step, as
// after an hour.
func BenchmarkPauses(b *testing.B) {
	dir := textData(b)
	j := newJob(b, tinyConfig(b, dir, "train.max_iters=299", "train.eval_interval=100"), planOf(2, 1, 1))
	report := func(run string, before, after pauseTimes) {
		b.ReportMetric(float64(after.count()-before.count())/2, "collections-"+run) // each collection stops all ranks twice
		b.ReportMetric(1e6*after.quantile(before, 0.5), "us-median-"+run)
		b.ReportMetric(1e6*after.quantile(before, 1), "us-longest-"+run)
	}
	start := pauses()
	for b.Loop() {
		_, err := j.Run(b.Context(), RunOptions{})
		require.NoError(b, err)
	}
	report("run", start, pauses())
	g := collectGarbage()
	defer g.restore()
	start = pauses()
	for it := range 300 {
		_, err := j.Step(b.Context(), it)
		require.NoError(b, err)
		g.last = time.Time{}
		g.between()
	}
	report("each-step", start, pauses())
}

// pauseTimes are the lengths of the collector's pauses so far, in buckets.
type pauseTimes struct {
	counts []uint64
	bounds []float64 // in seconds, one more than counts
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

// quantile returns a lower bound of a quantile of the pauses since before.
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
