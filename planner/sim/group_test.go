package sim_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// TestCanonicalGroups: the position that stands for another has the same times if several axes cut the batch, one
// inside the other. 6 sequences over the two copies of a ZeRO group are 3 and 3, and over the two ranks in each 2 and
// 1, although 6 over two alone is even.
func TestCanonicalGroups(t *testing.T) {
	c := gpt.DefaultConfig()
	c.NLayer, c.NHead, c.NEmbd, c.BlockSize, c.VocabSize = 1, 3, 24, 33, 65
	g, err := gpt.TrainStep(c, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, GradClip: 1}, 6, 33)
	require.NoError(t, err)
	p := &partition.Plan{
		PlanNGPUs: 4, RuntimeNGPUs: 4, DP: 4, TP: 1, MicroBatch: 2, Schedule: partition.GPipe, ZeRO: 2, ZeROGroup: 2,
		Offload: partition.OffloadParams, Stages: []partition.Stage{{Last: 1}},
	}
	prog, err := codegen.Compile(g, p, 6, nil)
	require.NoError(t, err)
	cluster, err := cost.Load("a100-80g")
	require.NoError(t, err)
	price, canonical := cost.NewProgram(cluster, p, prog.Mesh), cost.Canonical(prog)
	sizes := map[int]bool{}
	for i := range prog.Schedules {
		s := &prog.Schedules[i]
		for _, task := range s.Tasks {
			at := prog.At(s, task)
			for k := range prog.Stages[0].Bodies[task.Phase].Instrs {
				in := &prog.Stages[0].Bodies[task.Phase].Instrs[k]
				want, _ := price.Instr(in, prog.Mesh, at)
				got, _ := price.Instr(in, prog.Mesh, canonical(at))
				require.Equal(t, want, got, "%s on rank %d", in.Node.Name, i)
				if in.Node.Op == ir.OpInput {
					sizes[prog.Slab(in.Node.Results[0], at).Local[0]] = true
				}
			}
		}
	}
	require.Equal(t, map[int]bool{1: true, 2: true}, sizes)
}
