package runtime_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu"
)

// Kernels that a device does as one leave every weight with the bits that they leave by themselves.
func TestFusedKernelsChangeNothing(t *testing.T) {
	for _, s := range []shape{oneRank, {dp: 2, tp: 2, pp: 1, micro: 2, schedule: partition.GPipe}} {
		for _, dropout := range []float64{0, 0.2} {
			cfg := config()
			cfg.Dropout = dropout
			g, err := gpt.TrainStep(cfg, optimizer, batch, seqLen)
			require.NoError(t, err)
			prog := compile(t, g, s, nil)
			weights := func(apart bool) (all [][]byte) {
				b, err := cpu.New(cpu.Options{Apart: apart})
				require.NoError(t, err)
				e, err := runtime.New(prog, b, runtime.Options{})
				require.NoError(t, err)
				defer e.Close()
				require.NoError(t, e.InitParams(prog, 42))
				for step := range 3 {
					_, err := e.Step(context.Background(), prog, feeds(step))
					require.NoError(t, err)
				}
				for rank := range e.Ranks() {
					for _, shard := range e.Shards(prog, rank) {
						data := make([]byte, shard.Slab.Elems()*4)
						require.NoError(t, e.ReadShard(shard, data))
						all = append(all, data)
					}
				}
				return all
			}
			require.Equal(t, weights(true), weights(false), "%s, dropout %v", s, dropout)
		}
	}
}
