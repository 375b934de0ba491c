package partition_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// TestBatchParallel: if tensor-parallel ranks share the batch, a block with replicated modules communicates
// nothing over tp. A block that is sharded gathers sequences where under sequence parallelism it gathers
// tokens; the vocabulary communicates the same in both cases. The batch is cut by data-parallel ranks, then
// micro-batches, then tp.
func TestBatchParallel(t *testing.T) {
	block := map[string]map[string]int{ // collectives over tp in a block, forward and backward
		"attn mlp": {},
		"attn":     {"all_gather": 1 + 2, "reduce_scatter": 1 + 1},
		"mlp":      {"all_gather": 1 + 2, "reduce_scatter": 1 + 1},
		"":         {"all_gather": 2 + 4, "reduce_scatter": 2 + 2},
	}
	for modules, want := range block {
		p := newPlan(2, 2, partition.Stage{Last: 2})
		p.BatchParallel, p.Placements = true, replicating(strings.Fields(modules)...)
		g, err := partition.Apply(trainGraph(t, 2), p, batch)
		require.NoError(t, err)
		require.NoError(t, g.Verify())
		count, first, outside := map[string]int{}, map[string]int{}, map[string]int{}
		for _, n := range g.Nodes {
			attr, ok := n.Attr.(ir.CommAttr)
			if !ok || attr.Axis != partition.AxisTP || n.Phase == ir.Update {
				continue
			}
			switch n.Block() {
			case "h.0":
				first[n.Op.String()]++
			case "h.1":
				count[n.Op.String()]++
			}
			if x := n.Args[0]; n.Block() == "" && len(x.Type.Shape) == 3 {
				outside[x.Spec.Format(g.Mesh, 3)+" "+n.Op.String()]++
			}
		}
		require.Equal(t, want, count, modules)
		require.Equal(t, want, first, modules)
		require.Equal(t, map[string]int{
			"[dp.mb,_,_]+{tp} reduce_scatter": 2, "[dp.mb.tp,_,_] all_gather": 3,
		}, outside, modules)
	}
}

// TestSpread: for weights that a placement replicates, ZeRO also shards over tensor-parallel ranks if those
// share the residual stream, in another dimension. Without data parallelism it shards over those alone.
func TestSpread(t *testing.T) {
	for _, x := range []struct {
		dp, zero           int
		batch              bool // shards the stream along the batch, else along the sequence
		state, weight, sum string
	}{
		{1, 1, true, "[tp,_]", "[_,_]", "[_,_]+{tp}"},
		{1, 3, true, "[tp,_]", "[tp,_]", "[tp,_]"},
		{2, 1, true, "[dp,tp]", "[_,_]", "[_,_]+{dp,tp}"},
		{2, 1, false, "[dp,tp]", "[_,_]", "[_,_]+{dp,tp}"},
		{2, 2, true, "[dp,tp]", "[_,_]", "[dp,tp]"},
		{2, 3, false, "[dp,tp]", "[dp,tp]", "[dp,tp]"},
	} {
		p := newPlan(x.dp, 2, partition.Stage{Last: 2})
		p.ZeRO, p.BatchParallel, p.SequenceParallel, p.Placements = x.zero, x.batch, !x.batch, replicating("attn", "mlp")
		require.Equal(t, 2*x.dp, p.Replicas())
		g, err := partition.Apply(trainGraph(t, 2), p, batch)
		require.NoError(t, err)
		require.NoError(t, g.Verify())
		found := 0
		for _, n := range g.Nodes {
			v := n.Results[0]
			text := v.Spec.Format(g.Mesh, len(v.Type.Shape))
			switch n.Name {
			case "h.0.mlp.c_fc.weight":
				require.Equal(t, x.weight, text, "%+v", x)
				found++
			case "h.0.mlp.c_fc.weight.exp_avg":
				require.Equal(t, x.state, text, "%+v", x)
				found++
			case "h.0.ln_1.weight.exp_avg":
				require.NotContains(t, text, "tp", "no placement keeps it")
				found++
			}
			if n.Name == "h.0.mlp.c_fc/matmul" {
				require.Equal(t, ir.Placement{}, n.Args[1].Spec[g.Mesh.Axis(partition.AxisTP)], "%+v: whole in use", x)
				found++
			}
			if n.Op == ir.OpAccumulate && strings.HasPrefix(n.Name, "h.0.mlp.c_fc/matmul@dw") {
				require.Equal(t, x.sum, text, "%+v", x)
				found++
			}
		}
		require.Equal(t, 5, found)
	}
}

// TestBatchParallelRefused checks that errors name field and numbers.
func TestBatchParallelRefused(t *testing.T) {
	for want, change := range map[string]func(*partition.Plan){
		"batch_parallel: needs tp of at least 2":                                                              func(p *partition.Plan) { p.TP, p.PlanNGPUs, p.RuntimeNGPUs = 1, 2, 2 },
		"batch_parallel: and sequence_parallel both shard the residual stream over tp; want one of them":      func(p *partition.Plan) { p.SequenceParallel = true },
		"batch_parallel: micro-batches of 1 sequences cannot be shared by tp 2 ranks; want micro_batch 2 or ": func(p *partition.Plan) { p.MicroBatch = 1 },
		"batch_parallel: 4 data-parallel x tp 2 ranks cannot share a global batch of 7 sequences":             func(p *partition.Plan) { p.DP, p.PlanNGPUs, p.RuntimeNGPUs = 4, 8, 8 },
		"zero: stage 1 needs at least 2 data-parallel ranks": func(p *partition.Plan) {
			p.DP, p.ZeRO, p.PlanNGPUs, p.RuntimeNGPUs = 1, 1, 2, 2
		},
	} {
		p := newPlan(2, 2, partition.Stage{Last: 2})
		p.BatchParallel = true
		change(p)
		require.ErrorContains(t, p.Validate(2, batch), want)
	}
}
