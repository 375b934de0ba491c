package runtime_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
)

// TestClip trains with a clip far below the gradient's norm. All ranks must scale by the same bits,
// those of the whole gradient's norm, or ranks with the same parameters drift apart (row 14).
func TestClip(t *testing.T) {
	const steps, clip = 3, 0.05
	opt := optimizer
	opt.GradClip = clip
	g, err := gpt.TrainStep(config(), opt, batch, seqLen)
	require.NoError(t, err)
	want := train(t, g, oneRank, steps)
	for _, s := range []shape{
		{dp: 3, tp: 1, pp: 1, micro: 2, schedule: partition.OneFOneB},
		{dp: 1, tp: 3, pp: 1, micro: 7, schedule: partition.OneFOneB},
		{dp: 1, tp: 1, pp: 2, micro: 3, schedule: partition.OneFOneB},
		{dp: 2, tp: 2, pp: 2, micro: 1, schedule: partition.GPipe},
	} {
		t.Run(s.String(), func(t *testing.T) {
			prog := compile(t, g, s, nil)
			e := start(t, prog, runtime.Options{Timeout: time.Minute})
			for i := range steps {
				out, err := e.Step(context.Background(), prog, feeds(i))
				require.NoError(t, err)
				require.Greater(t, out["grad_norm"], float32(5*clip), "the clip acts")
				require.InEpsilon(t, want[i][0], out["loss"], 2e-6, "loss of step %d", i)
				require.InEpsilon(t, want[i][1], out["grad_norm"], 2e-5, "gradient norm of step %d", i)
			}
			weights(t, e, prog) // fails if ranks disagree
		})
	}
}
