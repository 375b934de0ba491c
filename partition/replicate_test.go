package partition_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/partition/partitiontest"
)

// replicating is [partitiontest.Megatron] with the weights of some modules replicated.
func replicating(modules ...string) []partition.Placement {
	all := partitiontest.Megatron()
	for i := range all {
		if slices.Contains(modules, all[i].Module()) {
			all[i].Spec = strings.ReplaceAll(all[i].Spec, "tp", "_")
		}
	}
	return all
}

// TestReplicatedModules: with sequence parallelism a module with replicated weights communicates nothing,
// except that attention exchanges tokens for heads and back, in both passes. Its gradients are summed over the
// sequence once per step, with any recomputation.
func TestReplicatedModules(t *testing.T) {
	block := map[string]map[string]int{ // collectives over tp in a block, forward and backward
		"":     {"all_gather": 2 + 4, "reduce_scatter": 2 + 2},
		"attn": {"all_gather": 1 + 2, "reduce_scatter": 1 + 1, "all_to_all": 2 + 2},
		"mlp":  {"all_gather": 1 + 2, "reduce_scatter": 1 + 1},
		"wte":  {"all_gather": 2 + 4, "reduce_scatter": 2 + 2},
	}
	for module, want := range block {
		for _, recompute := range []partition.Stage{{Last: 2}, {Last: 2, Recompute: 2}, {Last: 2, Selective: 2}} {
			p := newPlan(2, 2, recompute)
			p.SequenceParallel, p.Placements = true, replicating(module)
			g, err := partition.Apply(trainGraph(t, 2), p, batch)
			require.NoError(t, err)
			require.NoError(t, g.Verify())
			count, updated, outside := map[string]int{}, 0, 0
			for _, n := range g.Nodes {
				attr, ok := n.Attr.(ir.CommAttr)
				if !ok || attr.Axis != partition.AxisTP {
					continue
				}
				for _, op := range []ir.Op{ir.OpAllReduce, ir.OpAllGather, ir.OpReduceScatter, ir.OpAllToAll} {
					switch {
					case n.Op != op:
					case n.Phase == ir.Update && len(n.Args[0].Type.Shape) > 1 && n.Args[0].Spec[g.Mesh.Axis(partition.AxisTP)].Kind == ir.Partial:
						updated++ // gradients of matrices
					case n.Phase != ir.Update && n.Block() == "h.1":
						count[op.String()]++
					case n.Phase != ir.Update && n.Block() == "":
						outside++
					}
				}
			}
			if recompute.Recompute+recompute.Selective == 0 {
				require.Equal(t, want, count, module)
			}
			require.Equal(t, map[string]int{"": 0, "attn": 4, "mlp": 4, "wte": 1}[module], updated, "%s %+v", module, recompute)
			require.Equal(t, module == "wte", outside <= 1, "%s: %d outside of blocks", module, outside) // the one outside is wpe's
		}
	}
}

// TestFewHeadsBetweenTwoAxes: under ZeRO 2 a gradient that attention shards by heads, of a weight that all
// tensor-parallel ranks replicate, is reduced over data-parallel ranks in every micro-batch. Those may shard
// the same dimension, and there may be too few heads for both. A 16-bit gradient is reduced before it is cast
// to f32.
func TestFewHeadsBetweenTwoAxes(t *testing.T) {
	for _, x := range []struct {
		heads, embd, ranks int
		bias               bool
	}{{4, 32, 3, false}, {2, 32, 2, true}, {4, 12, 4, true}} {
		for again := range 3 {
			for _, float := range []ir.DType{ir.F32, ir.BF16} {
				cfg := gpt.Config{
					NLayer: 2, NHead: x.heads, NKVHead: x.heads, NEmbd: x.embd, FFNHidden: 11, BlockSize: 9, VocabSize: 17, Bias: x.bias,
					Activation: "gelu_tanh", Norm: "rmsnorm", Position: "learned", TieEmbeddings: true, Float: float,
				}
				g, err := gpt.TrainStep(cfg, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, WeightDecay: .1, GradClip: 1}, batch, cfg.BlockSize)
				require.NoError(t, err)
				p := newPlan(2, x.ranks, partition.Stage{Last: 2, Recompute: again})
				p.ZeRO, p.SequenceParallel, p.Placements = 2, true, replicating("attn")
				q, err := partition.Apply(g, p, batch)
				require.NoError(t, err)
				require.NoError(t, q.Verify())
			}
		}
	}
}

// TestFewRowsBetweenTwoAxes: the same of an adapter's B, whose gradient is made from what tensor-parallel ranks have cut
// along the rank of the adapter, as its A is. ZeRO shards that dimension over data-parallel or context-parallel ranks.
func TestFewRowsBetweenTwoAxes(t *testing.T) {
	cfg := gpt.Config{
		NLayer: 1, NHead: 3, NKVHead: 1, NEmbd: 96, FFNHidden: 97, BlockSize: 32, VocabSize: 65, Bias: true, LoRARank: 8, LoRAAlpha: 8, LoRATargets: "mlp",
		Activation: "gelu", Norm: "rmsnorm", Position: "learned", TieEmbeddings: true, Float: ir.BF16,
	}
	g, err := gpt.TrainStep(cfg, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, GradClip: 1}, 3, cfg.BlockSize)
	require.NoError(t, err)
	for _, cp := range []int{1, 3} {
		p := newPlan(3/cp, 5, partition.Stage{Last: 1})
		p.CP, p.PlanNGPUs, p.RuntimeNGPUs, p.MicroBatch = cp, 15, 15, 3
		p.ZeRO, p.SequenceParallel, p.Placements = 2, true, nil
		for name, spec := range map[string]string{
			`mlp\.c_fc\.weight`: "[tp,_]", `mlp\.c_fc\.lora\.a`: "[tp,_]", `mlp\.c_fc\.lora\.b`: "[tp,_]", `mlp\.c_fc\.bias`: "[tp]",
			`mlp\.c_proj\.weight`: "[tp,_]", `mlp\.c_proj\.lora\.a`: "[_,tp]", `mlp\.c_proj\.lora\.b`: "[tp,_]", `mlp\.c_proj\.bias`: "[tp]",
			`attn\.c_attn\.weight`: "[_,_,_,_]", `attn\.c_proj\.weight`: "[_,_,_,_]",
		} {
			p.Placements = append(p.Placements, partition.Placement{Match: `h\.[0-9]+\.` + name, Spec: spec})
		}
		p.Placements = append(p.Placements, partition.Placement{Match: `wte\.weight`, Spec: "[_,tp]"})
		q, err := partition.Apply(g, p, 3)
		require.NoError(t, err)
		require.NoError(t, q.Verify())
	}
}

func TestReplicatedText(t *testing.T) {
	p := &partition.Plan{Placements: replicating("wte", "attn")}
	require.Equal(t, []string{"attn", "wte"}, p.Replicated())
	require.Empty(t, (&partition.Plan{Placements: partitiontest.Megatron()}).Replicated())
	require.Equal(t, "lm_head", partition.Placement{Match: `lm_head\.weight`}.Module())
}
