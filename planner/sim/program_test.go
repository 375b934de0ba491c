package sim_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/sim"
)

// program is a training step at odd sizes: 7 sequences over 2 data-parallel
// ranks, 3 heads over 2, two stages.
func program(t *testing.T, schedule partition.Schedule) (*codegen.Program, *cost.Cluster) {
	c := gpt.DefaultConfig()
	c.NLayer, c.NHead, c.NEmbd, c.BlockSize, c.VocabSize, c.Dropout = 3, 3, 24, 33, 65, 0.2
	g, err := gpt.TrainStep(c, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, GradClip: 1}, 7, 33)
	require.NoError(t, err)
	p := &partition.Plan{
		PlanNGPUs: 8, RuntimeNGPUs: 8, DP: 2, TP: 2, MicroBatch: 1, Schedule: schedule,
		Stages: []partition.Stage{{First: 0, Last: 2}, {First: 2, Last: 3, Recompute: 1}},
		Placements: []partition.Placement{
			{Match: `h\.[0-9]+\.attn\.c_attn\.weight`, Spec: "[_,tp,_,_]"},
			{Match: `h\.[0-9]+\.attn\.c_attn\.bias`, Spec: "[_,tp,_]"},
			{Match: `h\.[0-9]+\.attn\.c_proj\.weight`, Spec: "[_,tp,_]"},
			{Match: `wte\.weight`, Spec: "[tp,_]"},
		},
	}
	prog, err := codegen.Compile(g, p, 7, nil)
	require.NoError(t, err)
	cluster, err := cost.Load("a100-80g")
	require.NoError(t, err)
	return prog, cluster
}

func TestSpans(t *testing.T) {
	for _, schedule := range []partition.Schedule{partition.GPipe, partition.OneFOneB} {
		prog, cluster := program(t, schedule)
		line, err := sim.Run(prog, cluster, sim.Options{Spans: true})
		require.NoError(t, err)
		price := cost.NewProgram(cluster, prog.Plan, prog.Mesh)

		at := 0
		var last cost.Picoseconds
		for r, s := range prog.Schedules {
			var now cost.Picoseconds
			var kinds [3]cost.Picoseconds
			for i, task := range s.Tasks {
				instrs := prog.Stages[s.Stage].Run(task)
				for k := 0; k < len(instrs); k++ {
					span, made := line.Spans[at], codegen.Bucket(instrs, k)
					at++
					require.Equal(t, sim.Span{Rank: r, Task: i, Instr: k, Bucket: len(made) - 1, Start: span.Start, End: span.End}, span)
					require.GreaterOrEqual(t, span.Start, now, "spans of a rank do not overlap")
					time, kind := price.Bucket(made, prog.Mesh, prog.At(&s, task))
					k += len(made) - 1
					require.Equal(t, time, span.End-span.Start, "%s of rank %d", instrs[k].Node.Name, r)
					kinds[kind] += time
					now = span.End
				}
			}
			last = max(last, now)
			rank := line.Ranks[r]
			require.Equal(t, line.Step, rank.Breakdown.Total())
			require.Equal(t, kinds, [3]cost.Picoseconds{rank.Breakdown.Compute, rank.Breakdown.Communication, rank.Breakdown.Optimizer})
		}
		require.Equal(t, line.Step, last)
		require.Equal(t, len(line.Spans), at)
		transfers(t, prog, line)

		plain, err := sim.Run(prog, cluster, sim.Options{})
		require.NoError(t, err)
		require.Nil(t, plain.Spans)
		require.Equal(t, line.Step, plain.Step)
		require.Equal(t, line.Breakdown(), plain.Breakdown())
	}
}

// transfers checks that every receive follows its send, and that all members of a group are in a collective at the
// same time.
func transfers(t *testing.T, prog *codegen.Program, line *sim.Timeline) {
	type key struct {
		node       *ir.Node
		device, mb int
	}
	sent, met := map[key]cost.Picoseconds{}, map[key]cost.Picoseconds{}
	visit := func(f func(s codegen.Schedule, task codegen.Task, n *ir.Node, span sim.Span)) {
		for _, span := range line.Spans {
			s := prog.Schedules[span.Rank]
			task := s.Tasks[span.Task]
			f(s, task, prog.Stages[s.Stage].Run(task)[span.Instr].Node, span)
		}
	}
	visit(func(s codegen.Schedule, task codegen.Task, n *ir.Node, span sim.Span) {
		if n.Op == ir.OpSend {
			sent[key{n, s.Device, task.MicroBatch}] = span.End
		}
	})
	received := 0
	visit(func(s codegen.Schedule, task codegen.Task, n *ir.Node, span sim.Span) {
		switch {
		case n.Op == ir.OpRecv:
			end, ok := sent[key{n.Args[0].Def, s.Device, task.MicroBatch}]
			require.True(t, ok)
			require.GreaterOrEqual(t, span.Start, end)
			received++
		case n.Op == ir.OpAllReduce && n.Attr.(ir.CommAttr).Axis == partition.AxisDP:
			c := s.Coord
			c[0] = 0
			k := key{n, prog.Mesh.Device(c), 0}
			if first, ok := met[k]; ok {
				require.Equal(t, first, span.Start)
			}
			met[k] = span.Start
		}
	})
	require.Equal(t, len(sent), received)
	require.NotEmpty(t, met)
}
