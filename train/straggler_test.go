package train

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/runtime"
)

// TestStragglers: a straggler takes more than twice as long as expected relative to the median
// rank.
func TestStragglers(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		expected []float64
		takes    []time.Duration
		want     []string
	}{
		"alike":           {nil, []time.Duration{50 * ms, 60 * ms, 40 * ms, 99 * ms}, nil},
		"one of four":     {nil, []time.Duration{50 * ms, 60 * ms, 40 * ms, 150 * ms}, []string{"straggler: rank 3 computes 150.0 ms a step, 3.0 times the 50.0 ms that it would at the median speed"}},
		"one of two":      {nil, []time.Duration{150 * ms, 50 * ms}, []string{"straggler: rank 0 computes 150.0 ms a step, 3.0 times the 50.0 ms that it would at the median speed"}},
		"a larger stage":  {[]float64{1, 3}, []time.Duration{50 * ms, 150 * ms}, nil},
		"a smaller stage": {[]float64{3, 3, 1}, []time.Duration{150 * ms, 150 * ms, 150 * ms}, []string{"straggler: rank 2 computes 150.0 ms a step, 3.0 times the 50.0 ms that it would at the median speed"}},
		"noise":           {nil, []time.Duration{ms, ms, 5 * ms}, nil},
	} {
		s := stragglers{expected: c.expected}
		for range 2 { // two intervals
			for range stragglerSteps {
				require.Empty(t, s.take(), "too few steps")
				s.add(len(c.takes), func(rank int) time.Duration { return c.takes[rank] })
			}
			var got []string
			for _, x := range s.take() {
				got = append(got, x.String())
			}
			require.Equal(t, c.want, got, name)
		}
	}
}

// TestSlowAndQuick: how slow ranks are is known from the third comparison on, as the median of the
// last three, and relative to what was expected.
func TestSlowAndQuick(t *testing.T) {
	s := stragglers{expected: []float64{1, 1, 2, 1}}
	look := func(ms ...time.Duration) []float64 {
		for range stragglerSteps {
			s.add(len(ms), func(rank int) time.Duration { return ms[rank] * time.Millisecond })
		}
		s.take()
		return s.slow()
	}
	require.Nil(t, look(10, 10, 60, 10))
	require.Nil(t, look(10, 80, 60, 10))
	require.Equal(t, []float64{1, 1, 3, 1}, look(10, 10, 60, 10), "one disturbance of rank 1 does not count")
	require.Equal(t, []float64{1, 1, 3, 1}, look(10, 15, 60, 10))
	require.Equal(t, []float64{1, 1, 3, 1}, look(10, 15, 60, 2), "rank 1 is within the noise")
	require.Equal(t, []float64{1, 1, 3, 0.2}, look(10, 20, 60, 2))
	require.Equal(t, []float64{1, 2, 3, 0.2}, look(10, 20, 60, 2))
	require.Nil(t, look(10, 20, 60, 0), "the last rank's time is not known")
}

// slowBackend is a backend whose devices take a little longer for every kernel.
type slowBackend struct{ runtime.Backend }

func (b slowBackend) Open(world runtime.World) ([]runtime.Device, error) {
	devices, err := b.Backend.Open(world)
	for i, d := range devices {
		devices[i] = slowDevice{d}
	}
	return devices, err
}

type slowDevice struct{ runtime.Device }

func (d slowDevice) Launch(k *runtime.Kernel) error {
	time.Sleep(time.Millisecond / 5)
	return d.Device.Launch(k)
}

// TestSlowRankIsNamed slows one of four processes down. The log and the metrics must say which,
// although all wait for it and so take as long. Without, no rank is named. On a busy machine any
// rank may be delayed as much, but hardly in run after run.
func TestSlowRankIsNamed(t *testing.T) {
	cfg := tinyConfig(t, textData(t), "train.log_interval=10", "train.max_iters=21", "train.eval_interval=100")
	for slow, want := range map[int][]string{-1: nil, 2: {"2", "2", "2 in the metrics"}} { // once for each interval of ten steps
		var told []string
		for try := 0; try < 5 && (try == 0 || !slices.Equal(told, want)); try++ {
			told = stragglersTold(t, cfg, slow)
		}
		require.Equal(t, want, told)
	}
}

// TestSlowRankGetsLess: a run of four processes that is told to stop, once speeds are known, is saved
// at the step where it is. With unequal shares of the batch it goes on to the losses of one that was
// never stopped.
func TestSlowRankGetsLess(t *testing.T) {
	cfg := tinyConfig(t, textData(t), "train.log_interval=1", "train.max_iters=49", "train.eval_interval=100")
	whole, parted := t.TempDir(), t.TempDir()
	_, err := trainProcesses(t, cfg, planOf(4, 1, 1), RunOptions{Out: whole}, make([]*os.File, 4), plain)
	require.NoError(t, err)
	var told atomic.Int32
	opts := RunOptions{Out: parted, Slow: func(times []float64, rest time.Duration) bool {
		return told.Add(1) == 4 && len(times) == 4 && rest > 0 // one process is enough
	}}
	log, err := trainProcesses(t, cfg, planOf(4, 1, 1), opts, make([]*os.File, 4), plain)
	require.NoError(t, err)
	require.EqualValues(t, 4, told.Load(), "each process once")
	require.Contains(t, log, "interrupted after 31 iterations, saved in ", "after ten steps of three looks and the one that has begun")
	plan := planOf(4, 1, 1)
	plan.BatchShares = []int{2, 1, 3, 1}
	log, err = trainProcesses(t, cfg, plan, RunOptions{Out: parted, Resume: true}, make([]*os.File, 4), plain)
	require.NoError(t, err)
	require.Contains(t, log, "resuming at iteration 31 from ")
	want, _ := readMetrics(t, whole)
	got, _ := readMetrics(t, parted)
	require.Len(t, got, 50)
	for it := range want {
		require.InDelta(t, want[it].Loss, got[it].Loss, 1e-5, "iteration %d", it)
	}
}

// stragglersTold trains on four processes, one of which is slow unless slow is -1, and returns the
// stragglers that the run names.
func stragglersTold(t *testing.T, cfg *config.Config, slow int) (told []string) {
	out := t.TempDir()
	log, err := trainProcesses(t, cfg, planOf(2, 2, 1), RunOptions{Out: out}, make([]*os.File, 4), func(rank int, b runtime.Backend) runtime.Backend {
		if rank == slow {
			return slowBackend{b}
		}
		return b
	})
	require.NoError(t, err)
	for _, named := range regexp.MustCompile(`(?m)^straggler: rank (\d) computes .* at the median speed of 4 ranks$`).FindAllStringSubmatch(log, -1) {
		told = append(told, named[1])
	}
	steps, _ := readMetrics(t, out)
	if last := steps[20]; last.Straggler != nil {
		require.Greater(t, last.StragglerFactor, 2.0)
		told = append(told, fmt.Sprint(*last.Straggler, " in the metrics"))
	}
	return told
}
