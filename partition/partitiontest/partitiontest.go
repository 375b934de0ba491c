// Package partitiontest is for tests only: placements of weights that their plans share.
package partitiontest

import "github.com/autopar/autopar/partition"

// Megatron places the weights of a GPT with tied embeddings as Shoeybi et al. 2019, section 3:
// heads, the hidden layer of the MLP and the vocabulary are split over tensor-parallel ranks.
func Megatron() []partition.Placement {
	return []partition.Placement{
		{Match: `h\.[0-9]+\.attn\.c_attn\.weight`, Spec: "[_,tp,_,_]"},
		{Match: `h\.[0-9]+\.attn\.c_attn\.bias`, Spec: "[_,tp,_]"},
		{Match: `h\.[0-9]+\.attn\.c_proj\.weight`, Spec: "[_,tp,_]"},
		{Match: `h\.[0-9]+\.mlp\.c_fc\.weight`, Spec: "[tp,_]"},
		{Match: `h\.[0-9]+\.mlp\.c_fc\.bias`, Spec: "[tp]"},
		{Match: `h\.[0-9]+\.mlp\.c_proj\.weight`, Spec: "[_,tp]"},
		{Match: `wte\.weight`, Spec: "[tp,_]"},
	}
}
