package autopar_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
)

// groupPlan is a plan of dp x tp x pp ranks in which ZeRO shards over groups of
// data-parallel ranks.
func groupPlan(dp, tp, pp, micro, zero, group int) *partition.Plan {
	p := parityPlan(dp, tp, pp, micro, partition.OneFOneB, dp%2 == 0)
	p.ZeRO, p.ZeROGroup = zero, group
	return p
}

// TestGroupParity trains with ZeRO over groups of data-parallel ranks, beside
// tensor and pipeline parallelism and over several units, at batches that nested
// cuts share out otherwise than one flat cut: the losses are those of one rank.
func TestGroupParity(t *testing.T) {
	const steps = 6
	one := map[int]trajectory{}
	for _, c := range []struct{ dp, tp, pp, units, micro, zero, group, batch int }{
		{4, 1, 1, 1, 1, 1, 2, 7},
		{4, 1, 1, 1, 2, 2, 2, 7},
		{4, 1, 1, 1, 1, 3, 2, 7},
		{6, 1, 1, 1, 1, 3, 3, 11},
		{6, 1, 1, 1, 2, 2, 2, 11},
		{6, 1, 1, 1, 1, 1, 2, 7},
		{4, 2, 1, 1, 1, 3, 2, 11},
		{4, 1, 2, 1, 1, 2, 2, 7},
		{4, 1, 2, 1, 2, 1, 2, 11},
		{2, 2, 1, 2, 1, 3, 2, 7},
		{2, 1, 2, 2, 1, 3, 4, 11}, // one group: all ranks
		{3, 1, 1, 2, 1, 2, 2, 13}, // groups that reach over the units
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			want, ok := one[c.batch]
			if !ok {
				want = trainBatch(t, parityPlan(1, 1, 1, c.batch, partition.GPipe, false), c.batch, steps)
				one[c.batch] = want
			}
			p := groupPlan(c.dp, c.tp, c.pp, c.micro, c.zero, c.group)
			p.RuntimeNGPUs *= c.units
			prog, exec := trainer(t, p, c.batch)
			got := stepsOf(t, prog, exec, c.batch, steps)
			for s := range want.loss {
				require.LessOrEqual(t, math.Abs(got.loss[s]-want.loss[s]), 1e-5, "loss of step %d", s)
				require.LessOrEqual(t, math.Abs(got.norm[s]-want.norm[s])/want.norm[s], 1e-6, "gradient norm of step %d", s)
			}
			rows := map[int]int{} // each sequence is fed to the ranks of one position
			for i := range prog.Schedules {
				s := &prog.Schedules[i]
				if s.Stage > 0 || s.Coord[prog.Mesh.Axis(partition.AxisTP)] > 0 {
					continue
				}
				for mb := range s.MicroBatches {
					slab := prog.Slab(prog.Graph.Find("ids").Results[0], prog.At(s, codegen.Task{MicroBatch: mb}))
					for r := range slab.Local[0] {
						rows[slab.Offset[0]+r]++
					}
				}
			}
			require.Len(t, rows, c.batch)
			for r, n := range rows {
				require.Equal(t, 1, n, "sequence %d", r)
			}
			require.Equal(t, max(1, p.DataParallel()/c.group), p.Copies())
			require.Equal(t, p.Copies(), prog.Mesh.Size(partition.AxisRep))
		})
	}
}

// held is what one rank keeps of weights, gradients and optimizer state, in bytes.
type held struct{ weights, gradients, state int64 }

func heldBy(prog *codegen.Program) held {
	var h held
	st := prog.Stages[0]
	written := map[int]bool{} // the terms of one gradient share a buffer
	for _, body := range st.Bodies {
		for _, in := range body.Instrs {
			for _, id := range in.Results {
				written[id] = true
			}
		}
	}
	for id, b := range st.Buffers {
		attr, isParam := b.Value.Def.Attr.(ir.ParamAttr)
		switch {
		case b.Region != codegen.Persist:
		case isParam && attr.State:
			h.state += b.Size
		case isParam:
			h.weights += b.Size
		case b.Value.Def.Op == ir.OpAccumulate && written[id] && len(b.Value.Type.Shape) > 0:
			h.gradients += b.Size
		}
	}
	return h
}

// TestZeROBytes: of P bytes of parameters a rank keeps P, G = P and O = 2P, each
// divided by the ranks that ZeRO shards it over, context-parallel ones among them
// (Rajbhandari et al. 2020, figure 1; row 32). Vectors shorter than the group stay
// whole, and uneven shards round up:
// within 5 %.
func TestZeROBytes(t *testing.T) {
	model := parityModel
	model.NEmbd, model.NLayer = 80, 2
	g, err := gpt.TrainStep(model, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, GradClip: 1}, parityBatch, model.BlockSize)
	require.NoError(t, err)
	var params float64
	for _, v := range g.Params() {
		if !v.Def.Attr.(ir.ParamAttr).State {
			params += float64(v.Type.Bytes())
		}
	}
	for _, ranks := range []struct{ dp, cp int }{{2, 1}, {3, 1}, {4, 1}, {6, 1}, {1, 2}, {1, 5}, {2, 2}, {4, 2}} {
		dp, cp := ranks.dp, ranks.cp
		for zero := range 4 {
			for _, group := range []int{0, 2, 3} {
				if group > 0 && (zero == 0 || dp%group != 0) {
					continue
				}
				p := contextPlan(dp, cp, 1, 1)
				p.MicroBatch, p.ZeRO, p.ZeROGroup, p.Stages = 1, zero, group, []partition.Stage{{Last: 2}}
				prog, err := codegen.Compile(g, p, parityBatch, nil)
				require.NoError(t, err)
				share := func(stage int, bytes float64) float64 {
					if zero >= stage {
						return bytes / float64(p.ShardGroup()*cp)
					}
					return bytes
				}
				got := heldBy(prog)
				require.InEpsilon(t, share(1, 2*params), got.state, 0.05, "state: dp %d cp %d zero %d group %d", dp, cp, zero, group)
				require.InEpsilon(t, share(2, params), got.gradients, 0.05, "gradients: dp %d cp %d zero %d group %d", dp, cp, zero, group)
				require.InEpsilon(t, share(3, params), got.weights, 0.05, "weights: dp %d cp %d zero %d group %d", dp, cp, zero, group)
			}
		}
	}
}

// TestParametersAreHeldOnce: under ZeRO 3 the only place of a parameter between
// two bodies is its shard, and with offload the only one on the host. What is
// gathered or fetched of it lives inside one body.
func TestParametersAreHeldOnce(t *testing.T) {
	for _, c := range []struct {
		zero, group int
		offload     partition.Offload
	}{{3, 0, ""}, {3, 2, ""}, {3, 2, partition.OffloadParams}, {0, 0, partition.OffloadParams}} {
		p := groupPlan(4, 1, 2, 2, c.zero, c.group)
		p.Offload = c.offload
		g, err := gpt.TrainStep(parityModel, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, GradClip: 1}, parityBatch, parityModel.BlockSize)
		require.NoError(t, err)
		prog, err := codegen.Compile(g, p, parityBatch, nil)
		require.NoError(t, err)
		gathers := 0
		for _, st := range prog.Stages {
			param := map[int]bool{} // buffers of parameters
			for _, id := range st.Params {
				param[id] = true
			}
			for _, body := range st.Bodies {
				for _, in := range body.Instrs {
					for i, r := range in.Node.Results {
						b := &st.Buffers[in.Results[i]]
						of := in.Node
						for of.Op == ir.OpAllGather && of.Args[0].Def.Op == ir.OpFetch {
							of = of.Args[0].Def
						}
						if of.Op.Class() == ir.Comm && of.Args[0].Def.Op == ir.OpParam {
							gathers++
							require.Equal(t, codegen.Temp, b.Region, "%s is gathered into the %s region", r.Name(), b.Region)
						}
						if b.Region != codegen.Temp && param[in.Results[i]] {
							require.Contains(t, []ir.Op{ir.OpAdamW, ir.OpStash}, in.Node.Op, "%s writes over a parameter", in.Node.Name)
						}
					}
				}
			}
		}
		require.Positive(t, gathers)
	}
}
