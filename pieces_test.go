package autopar_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/cuda"
	"github.com/autopar/autopar/cuda/driver/fake"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
)

// piecesModel is a model of sequences that start where tensors may, so that a plan may make products of them in parts.
func piecesModel() gpt.Config {
	m := parityModel
	m.NLayer, m.NHead, m.NKVHead, m.NEmbd, m.BlockSize = 4, 3, 3, 48, 16
	return m
}

// piecesPlans are plans that make products and collectives in parts: fewer, as many and more than there are sequences
// in a micro-batch, of which the last has fewer than the others; weights that ZeRO gathers stand in between.
func piecesPlans() []*partition.Plan {
	var plans []*partition.Plan
	for i, c := range []struct {
		dp, tp, pp, micro, zero, pieces int
		sequence, beside, overlap       bool
		schedule                        partition.Schedule
	}{
		{dp: 1, tp: 3, pp: 1, micro: 11, pieces: 4, sequence: true, beside: true},
		{dp: 1, tp: 2, pp: 1, micro: 4, pieces: 2, beside: true},
		{dp: 2, tp: 2, pp: 1, micro: 3, zero: 3, pieces: 4, sequence: true},
		{dp: 2, tp: 3, pp: 1, micro: 2, zero: 3, pieces: 3, sequence: true, beside: true, overlap: true},
		{dp: 1, tp: 2, pp: 2, micro: 3, pieces: 3, sequence: true, beside: true},
		{dp: 1, tp: 2, pp: 4, micro: 4, pieces: 2, sequence: true, schedule: partition.ZeroBubble},
	} {
		if c.schedule == "" {
			c.schedule = partition.OneFOneB
		}
		p := parityPlan(c.dp, c.tp, c.pp, c.micro, c.schedule, i%2 == 0)
		for s := range p.Stages {
			layers := piecesModel().NLayer
			p.Stages[s] = partition.Stage{First: s * layers / c.pp, Last: (s + 1) * layers / c.pp, Recompute: i % 2}
		}
		p.ZeRO, p.TPPieces, p.SequenceParallel, p.OverlapTP, p.Overlap = c.zero, c.pieces, c.sequence, c.beside, c.overlap
		plans = append(plans, p)
	}
	return plans
}

// TestPiecesParity trains with products and collectives in parts, on the CPU and on GPUs, and compares each step with
// one rank, and with the same plan without parts to the bit. Ranks communicate what the program says, and as many bytes.
func TestPiecesParity(t *testing.T) {
	steps := most(learningSteps, 4) // the fourth is a graph on GPUs
	g := stepOf(t, piecesModel())
	train := func(p *partition.Plan) (trajectory, int64) {
		prog, exec := compile(t, g, p, parityBatch)
		require.NoError(t, exec.InitParams(prog, 1337))
		got := stepsOf(t, prog, exec, parityBatch, steps)
		var received int64
		for r := range exec.Ranks() {
			collectives, bytes := counted(prog, r)
			require.Equal(t, collectives, exec.Counters(r).Collectives, "rank %d of %+v", r, *p)
			require.Equal(t, bytes, exec.Counters(r).CollectiveBytes, "rank %d of %+v", r, *p)
			received += bytes
		}
		return got, received
	}
	alone := parityPlan(1, 1, 1, parityBatch, partition.GPipe, false)
	alone.Stages[0].Last = piecesModel().NLayer
	one, _ := train(alone)
	for i, p := range piecesPlans() {
		t.Run(fmt.Sprintf("dp %d tp %d pp %d in %d", p.DP, p.TP, p.PP(), p.TPPieces), func(t *testing.T) {
			got, bytes := train(p)
			dLoss, dNorm := differences(one, got)
			require.LessOrEqual(t, dLoss, 1e-5)
			require.LessOrEqual(t, dNorm, 1e-6)
			onGPU, _ := stepsOnFake(t, g, p, fake.Options{Devices: 8, Seed: uint64(i)}, cuda.Options{}, steps)
			dLoss, dNorm = differences(one, onGPU)
			require.LessOrEqual(t, dLoss, 1e-5)
			require.LessOrEqual(t, dNorm, 1e-6)
			whole := *p
			whole.TPPieces = 0
			same, sameBytes := train(&whole)
			require.Equal(t, same, got)
			require.Equal(t, sameBytes, bytes)
		})
	}
}

// TestPiecesInPlaces: parts of which there are more than sequences are empty, and take no time and no bytes.
func TestPiecesInPlaces(t *testing.T) {
	g := stepOf(t, piecesModel())
	p := piecesPlans()[0]
	p.MicroBatch, p.TPPieces = 2, 3
	prog, err := codegen.Compile(g, p, parityBatch, nil)
	require.NoError(t, err)
	parts := map[int]int{}
	for i := range prog.Stages[0].Bodies[ir.Forward].Instrs {
		in := &prog.Stages[0].Bodies[ir.Forward].Instrs[i]
		if in.Parts > 0 {
			parts[in.Part] += in.Slab(prog.Mesh, in.Node.Results[0], ir.Coord{}).Local[0]
		}
	}
	require.Equal(t, parts[0], parts[1])
	require.Positive(t, parts[0])
	require.Zero(t, parts[2])
}
