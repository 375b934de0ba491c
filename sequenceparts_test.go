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

// partsBatch is a batch that one, two and three data-parallel ranks share equally.
const partsBatch = 6

// partsPlan is a plan that cuts sequences.
type partsPlan struct {
	dp, tp, cp, pp, micro, zero, parts, pieces, slices int
	whole                                              bool // the residual stream is, instead of sequence parallel
	beside, overlap                                    bool
	schedule                                           partition.Schedule
}

// TestSequencePartsParity trains with sequences in parts, on the CPU and on GPUs, and compares each step with one rank, and
// with the same parts not made in pieces to the bit: of odd sizes; with dropout, learned and rotary positions and grouped
// heads; micro-batches of one sequence and of several, of which the last is smaller.
func TestSequencePartsParity(t *testing.T) {
	steps := most(learningSteps, 4) // the fourth is a graph on GPUs
	gpt2 := parityModel
	gpt2.NLayer, gpt2.BlockSize = 4, 15
	llama := groupedModels()[0]
	llama.NLayer, llama.BlockSize, llama.Dropout = 4, 18, 0.1
	even := gpt2 // sequences whose parts start where tensors may
	even.NHead, even.NKVHead, even.NEmbd, even.BlockSize = 3, 3, 48, 64
	for i, m := range []gpt.Config{gpt2, llama, even} {
		opt := gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, WeightDecay: .1, GradClip: 1}
		g, err := gpt.TrainStep(m, opt, partsBatch, m.BlockSize)
		require.NoError(t, err)
		train := func(p *partition.Plan) trajectory {
			prog, exec := compile(t, g, p, partsBatch)
			require.NoError(t, exec.InitParams(prog, 1337))
			return stepsOf(t, prog, exec, partsBatch, steps)
		}
		planOf := func(c partsPlan) *partition.Plan {
			if c.schedule == "" {
				c.schedule = partition.OneFOneB
			}
			p := parityPlan(c.dp, c.tp, c.pp, c.micro, c.schedule, false)
			if i == 1 {
				p.Placements = groupedLayout(m, c.tp)
			}
			for s := range p.Stages {
				p.Stages[s] = partition.Stage{First: s * m.NLayer / c.pp, Last: (s + 1) * m.NLayer / c.pp, Recompute: s % 2}
			}
			if c.cp > 1 {
				p.CP, p.PlanNGPUs, p.RuntimeNGPUs = c.cp, p.PlanNGPUs*c.cp, p.RuntimeNGPUs*c.cp
			}
			p.ZeRO, p.TPPieces, p.SequenceParts, p.LossSlices = c.zero, c.pieces, c.parts, c.slices
			p.SequenceParallel, p.OverlapTP, p.Overlap = c.tp > 1 && !c.whole, c.beside, c.overlap
			return p
		}
		one := train(planOf(partsPlan{dp: 1, tp: 1, pp: 1, micro: partsBatch}))
		for k, c := range []partsPlan{
			{dp: 1, tp: 2, pp: 1, micro: 1, parts: 3, pieces: 3, beside: true},
			{dp: 2, tp: 3, pp: 1, micro: 2, zero: 3, parts: 3, pieces: 2, overlap: true},
			{dp: 3, tp: 2, pp: 2, micro: 1, zero: 2, parts: 3, pieces: 3, beside: true},
			{dp: 1, tp: 3, pp: 2, micro: 4, parts: 3, pieces: 4, whole: true},
			{dp: 1, tp: 2, pp: 4, micro: 1, parts: 3, pieces: 2, schedule: partition.ZeroBubble},
			{dp: 2, tp: 1, pp: 2, micro: 2, parts: 3, zero: 1},
			{dp: 2, tp: 2, cp: 2, pp: 1, micro: 1, zero: 3, parts: 3, pieces: 3, beside: true, overlap: true},
			{dp: 1, tp: 1, cp: 2, pp: 2, micro: 2, zero: 1, parts: 3},
			{dp: 1, tp: 2, cp: 2, pp: 2, micro: 2, parts: 3, pieces: 3, schedule: partition.ZeroBubble},
			{dp: 1, tp: 2, pp: 1, micro: 2, parts: 3, pieces: 3, slices: map[int]int{0: 5, 1: 3}[i], beside: true},
		} {
			if i == 2 {
				c.parts = 2 + 2*(k%2)
				if c.slices = 2; c.cp > 1 {
					c.slices = 0
				}
			}
			p := planOf(c)
			t.Run(fmt.Sprintf("%d dp %d cp %d tp %d pp %d in %d of %d", i, p.DP, p.ContextParallel(), p.TP, p.PP(), p.TPPieces, p.SequenceParts), func(t *testing.T) {
				got := train(p)
				dLoss, dNorm := differences(one, got)
				require.LessOrEqual(t, dLoss, 1e-5)
				require.LessOrEqual(t, dNorm, 2e-6)
				if (i+k)%3 == 0 {
					onGPU, _ := stepsOnFake(t, g, p, fake.Options{Devices: 12, Seed: uint64(k)}, cuda.Options{}, steps)
					dLoss, dNorm = differences(one, onGPU)
					require.LessOrEqual(t, dLoss, 1e-5)
					require.LessOrEqual(t, dNorm, 2e-6)
				}
				if p.TPPieces > 1 && i == 2 {
					require.Positive(t, inPieces(t, g, p))
					whole := *p
					whole.TPPieces = 0
					require.Equal(t, train(&whole), got)
				}
			})
		}
	}
}

// inPieces counts the instructions of forward passes that are made in pieces.
func inPieces(t *testing.T, g *ir.Graph, p *partition.Plan) (made int) {
	prog, err := codegen.Compile(g, p, partsBatch, nil)
	require.NoError(t, err)
	for _, st := range prog.Stages {
		for _, in := range st.Bodies[ir.Forward].Instrs {
			made += min(in.Parts, 1)
		}
	}
	return made
}
