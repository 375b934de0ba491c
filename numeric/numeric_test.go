package numeric_test

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/numeric"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/partition/partitiontest"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu"
)

// large is GPT-2 with dropout, and a batch that no degree divides.
func large() *config.Config {
	cfg := config.Default()
	cfg.Model, _ = gpt.Preset("gpt2")
	cfg.Model.Dropout = 0.2
	cfg.Batch.Global = 479
	return cfg
}

// cut is a plan for large. The first stage recomputes half of its blocks, the last attention in one.
func cut(dp, tp, pp, units, zero int) *partition.Plan {
	p := &partition.Plan{
		PlanNGPUs: dp * tp * pp, RuntimeNGPUs: dp * tp * pp * units, DP: dp, TP: tp, MicroBatch: 4, ZeRO: zero,
		Schedule: partition.OneFOneB, SequenceParallel: tp > 1 && zero%2 == 0, BatchParallel: tp > 1 && zero%2 == 1,
		Placements: partitiontest.Megatron(),
	}
	for s := range pp {
		p.Stages = append(p.Stages, partition.Stage{First: s * 12 / pp, Last: (s + 1) * 12 / pp})
	}
	p.Stages[0].Recompute = 12 / pp / 2
	p.Stages[pp-1].Selective = 1
	return p
}

func TestRunMatchesTheInterpreter(t *testing.T) {
	for _, c := range []struct{ dp, tp, pp, units, zero int }{
		{1, 1, 1, 1, 0}, {2, 2, 2, 1, 0}, {3, 1, 1, 5, 1}, {2, 1, 2, 1, 2}, {2, 2, 1, 1, 3}, {1, 4, 2, 1, 0},
	} {
		cfg, plan, err := numeric.Shrink(large(), cut(c.dp, c.tp, c.pp, c.units, c.zero))
		require.NoError(t, err)
		report, err := numeric.Run(context.Background(), cfg, plan, numeric.Options{})
		t.Logf("%+v batch %d micro %d %+v", c, cfg.Batch.Global, plan.MicroBatch, cfg.Model)
		t.Logf("%+v", report)
		require.NoError(t, err)
		for _, k := range report.Classes {
			require.Positive(t, k.Tensors, k.Name)
		}
	}
}

// TestAdaptersAreShrunk: adapters whose rank exceeds the width of the reduced model get a lower rank.
func TestAdaptersAreShrunk(t *testing.T) {
	full := large()
	full.Model.LoRARank, full.Model.LoRAAlpha, full.Model.LoRATargets = 64, 32, "."
	cfg, plan, err := numeric.Shrink(full, cut(2, 2, 2, 1, 0))
	require.NoError(t, err)
	require.Equal(t, 5, cfg.Model.LoRARank)
	require.Equal(t, 2.5, cfg.Model.LoRAAlpha)
	report, err := numeric.Run(context.Background(), cfg, plan, numeric.Options{})
	require.NoError(t, err)
	require.Equal(t, numeric.Steps, report.Classes[0].Tensors, "losses; frozen weights are weights")
}

// lying is a backend on which bend changes what kernels compute.
type lying struct {
	runtime.Backend
	bend func(rank int, k *runtime.Kernel)
}

type lyingDevice struct {
	runtime.Device
	rank int
	of   *lying
}

func (b *lying) Open(w runtime.World) ([]runtime.Device, error) {
	devices, err := b.Backend.Open(w)
	for i, d := range devices {
		devices[i] = &lyingDevice{d, i, b}
	}
	return devices, err
}

func (d *lyingDevice) Launch(k *runtime.Kernel) error {
	bent := *k
	node := *k.Node
	bent.Node = &node
	bent.Args, bent.Results = append([]runtime.Tensor{}, k.Args...), append([]runtime.Tensor{}, k.Results...)
	d.of.bend(d.rank, &bent)
	return d.Device.Launch(&bent)
}

// TestRunCatchesKernels has kernels that do not compute what their instruction says, which only a run can show.
func TestRunCatchesKernels(t *testing.T) {
	for name, c := range map[string]struct {
		bend func(rank int, k *runtime.Kernel)
		says string
	}{
		"same dropout mask on every replica": {func(_ int, k *runtime.Kernel) {
			if k.Node.Op == ir.OpDropout {
				for _, x := range [][]runtime.Tensor{k.Args[:1], k.Results} {
					x[0].Slab.Offset = make([]int, len(x[0].Slab.Offset))
				}
			}
		}, "loss of step 0"},
		"another beta2 on all ranks": {func(_ int, k *runtime.Kernel) {
			if a, ok := k.Node.Attr.(ir.AdamWAttr); ok {
				a.Beta2 = math.Sqrt(a.Beta2)
				k.Node.Attr = a
			}
		}, "after step 0"},
		"epsilon of one rank": {func(rank int, k *runtime.Kernel) {
			if a, ok := k.Node.Attr.(ir.LayerNormAttr); ok && rank == 5 {
				a.Eps *= 100
				k.Node.Attr = a
			}
		}, "numeric: "},
		"another mask in the backward pass": {func(_ int, k *runtime.Kernel) {
			if a, ok := k.Node.Attr.(ir.DropoutAttr); ok && k.Node.Phase == ir.Backward {
				a.Key += "?"
				k.Node.Attr = a
			}
		}, "grad_norm of step 0"},
	} {
		t.Run(name, func(t *testing.T) {
			backend, err := cpu.New(cpu.Options{})
			require.NoError(t, err)
			cfg, plan, err := numeric.Shrink(large(), cut(2, 2, 2, 1, 0))
			require.NoError(t, err)
			_, err = numeric.Run(context.Background(), cfg, plan, numeric.Options{Backend: &lying{backend, c.bend}})
			t.Log(err)
			require.ErrorContains(t, err, c.says)
		})
	}
}

// TestPairsAreShrunk: heads that rotary positions turn keep an even width, however many ranks there are for one head.
func TestPairsAreShrunk(t *testing.T) {
	full := large()
	full.Model.NLayer, full.Model.NHead, full.Model.NEmbd, full.Model.Position = 1, 1, 10, gpt.RoPE
	plan := cut(8, 1, 1, 1, 1)
	plan.Stages = []partition.Stage{{First: 0, Last: 1}}
	small, _, err := numeric.Shrink(full, plan)
	require.NoError(t, err)
	require.Equal(t, 10, small.Model.HeadDim())
}

func TestShrinkRefuses(t *testing.T) {
	p := cut(64, 8, 1, 1, 1)
	_, _, err := numeric.Shrink(large(), p)
	require.ErrorContains(t, err, "512 ranks, at most 256")
}

// TestHalfPrecisionIsShrunkToFloat32: the plan of a run in bfloat16 is compared in float32.
func TestHalfPrecisionIsShrunkToFloat32(t *testing.T) {
	cfg := config.Default()
	cfg.Train.DType, cfg.Train.MasterWeights = "bfloat16", false
	cfg.Batch.Global = 2
	plan := &partition.Plan{PlanNGPUs: 2, RuntimeNGPUs: 2, DP: 2, TP: 1, MicroBatch: 1, Schedule: partition.GPipe, Stages: []partition.Stage{{First: 0, Last: 12}}}
	small, reduced, err := numeric.Shrink(cfg, plan)
	require.NoError(t, err)
	_, err = numeric.Run(t.Context(), small, reduced, numeric.Options{})
	require.NoError(t, err)
	require.Equal(t, "bfloat16", cfg.Train.DType, "what was given stays")
}

// TestCutSequencesAreShrunk: parts of sequences stay equal, with a token for each rank, and all ranks have as many.
func TestCutSequencesAreShrunk(t *testing.T) {
	for _, slices := range []int{0, 8} {
		plan := cut(2, 2, 2, 2, 1)
		plan.BatchParallel, plan.SequenceParallel, plan.SequenceParts, plan.TPPieces, plan.LossSlices = false, true, 4, 4, slices
		full := large()
		full.Model.BlockSize = 256
		cfg, small, err := numeric.Shrink(full, plan)
		require.NoError(t, err)
		require.Zero(t, cfg.Model.BlockSize%(4*max(1, small.LossSlices)))
		require.Zero(t, cfg.Batch.Global%small.DataParallel())
		_, err = numeric.Run(context.Background(), cfg, small, numeric.Options{})
		require.NoError(t, err)
	}
}
