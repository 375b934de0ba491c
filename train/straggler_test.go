package train

import (
	"fmt"
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/runtime"
)

// TestStragglers: a rank is one that takes more than twice what the median of ranks makes expect of it.
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
		for range 2 { // intervals
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

// slowBackend is one whose devices take a moment more for every kernel.
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

// TestSlowRankIsNamed slows one of four processes down: the log and the metrics say which, though all wait for it and so
// take as long. Without, nobody is named.
func TestSlowRankIsNamed(t *testing.T) {
	cfg := tinyConfig(t, textData(t), "train.log_interval=10", "train.max_iters=21", "train.eval_interval=100")
	for _, slow := range []int{-1, 2} {
		out := t.TempDir()
		log, err := trainProcesses(t, cfg, planOf(2, 2, 1), RunOptions{Out: out}, make([]*os.File, 4), func(rank int, b runtime.Backend) runtime.Backend {
			if rank == slow {
				return slowBackend{b}
			}
			return b
		})
		require.NoError(t, err)
		steps, _ := readMetrics(t, out)
		if slow < 0 {
			require.NotContains(t, log, "straggler")
			require.Nil(t, steps[20].Straggler)
			continue
		}
		named := regexp.MustCompile(`(?m)^straggler: rank (\d) computes .* at the median speed of 4 ranks$`).FindAllStringSubmatch(log, -1)
		require.Len(t, named, 2, "once for each interval of ten steps: %s", log)
		require.Equal(t, fmt.Sprint(slow), named[0][1])
		require.Equal(t, slow, *steps[20].Straggler)
		require.Greater(t, steps[20].StragglerFactor, 2.0)
	}
}
