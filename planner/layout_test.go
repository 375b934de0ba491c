package planner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/partition/partitiontest"
	"github.com/autopar/autopar/planner/cost"
)

func adamW() gpt.Optimizer {
	return gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, WeightDecay: .1, GradClip: 1}
}

// tiny is a model of odd sizes.
func tiny(layers int) gpt.Config {
	c := gpt.DefaultConfig()
	c.NLayer, c.NHead, c.NEmbd, c.BlockSize, c.VocabSize, c.Dropout = layers, 3, 24, 33, 65, 0.2
	return c
}

// llama gives a model Llama's choices.
func llama(c gpt.Config) gpt.Config {
	c.Activation, c.Norm, c.Position, c.TieEmbeddings = gpt.SwiGLU, gpt.RMSNorm, gpt.RoPE, false
	c.FFNHidden = 2*c.NEmbd + 13
	return c
}

func step(t testing.TB, c gpt.Config, batch int) *ir.Graph {
	g, err := gpt.TrainStep(c, adamW(), batch, c.BlockSize)
	require.NoError(t, err)
	return g
}

func cluster(t testing.TB, name string) *cost.Cluster {
	c, err := cost.Load(name)
	require.NoError(t, err)
	return c
}

func TestMegatronIsRediscovered(t *testing.T) {
	for _, name := range []string{"cpu", "a100-80g"} {
		l := layouts{graph: step(t, tiny(1), 7), batch: 7, ranks: 2, cluster: cluster(t, name), known: map[int][][]partition.Placement{}}
		found := l.find(2)
		t.Log(found)
		got := map[string]string{}
		for _, p := range found {
			got[p.Match] = p.Spec
		}
		for _, p := range partitiontest.Megatron() {
			require.Equal(t, p.Spec, got[p.Match], "%s on %s", p.Match, name)
		}
	}
}

// Gate and up are split by columns, both alike, the projection down by rows, and
// the head of its own by the vocabulary.
func TestMegatronOfLlamaIsRediscovered(t *testing.T) {
	for _, name := range []string{"cpu", "a100-80g"} {
		l := layouts{graph: step(t, llama(tiny(1)), 7), batch: 7, ranks: 2, cluster: cluster(t, name), known: map[int][][]partition.Placement{}}
		found := l.find(2)
		require.ElementsMatch(t, []partition.Placement{
			{Match: `h\.[0-9]+\.attn\.c_attn\.weight`, Spec: "[_,tp,_,_]"},
			{Match: `h\.[0-9]+\.attn\.c_attn\.bias`, Spec: "[_,tp,_]"},
			{Match: `h\.[0-9]+\.attn\.c_proj\.weight`, Spec: "[_,tp,_]"},
			{Match: `h\.[0-9]+\.mlp\.c_fc\.weight`, Spec: "[_,tp,_]"},
			{Match: `h\.[0-9]+\.mlp\.c_fc\.bias`, Spec: "[_,tp]"},
			{Match: `h\.[0-9]+\.mlp\.c_proj\.weight`, Spec: "[_,tp]"},
			{Match: `lm_head\.weight`, Spec: "[tp,_]"},
		}, found, name)
	}
}
