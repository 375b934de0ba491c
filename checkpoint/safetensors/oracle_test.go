package safetensors

import (
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOracleModels reads the reference files, which another writer made, and checks what holds by their definition.
func TestOracleModels(t *testing.T) {
	for _, name := range []string{"nobias", "bias"} {
		t.Run(name, func(t *testing.T) {
			f := openOracle(t, name)
			dim := func(key string) int {
				n, err := strconv.Atoi(f.Metadata()[key])
				require.NoError(t, err, key)
				return n
			}
			const B, steps = 7, 50
			T, V, C := dim("block_size"), dim("vocab_size"), dim("n_embd")
			for tensor, shape := range map[string][]int{
				"transformer.wte.weight":             {V, C},
				"transformer.wpe.weight":             {T, C},
				"transformer.h.1.attn.c_attn.weight": {3 * C, C},
				"transformer.h.1.mlp.c_proj.weight":  {C, 4 * C},
				"ids":                                {B, T},
				"logits":                             {B, T, V},
				"loss":                               {},
				"batch_targets":                      {steps, B, T},
				"losses":                             {steps},
				"grad_norms":                         {steps},
				"greedy":                             {100},
			} {
				info, err := f.Info(tensor)
				require.NoError(t, err)
				require.Equal(t, shape, info.Shape, tensor)
			}
			for _, tensor := range f.Names() {
				if !strings.HasPrefix(tensor, "transformer.") {
					continue
				}
				weight, err := f.Info(tensor)
				require.NoError(t, err)
				for _, prefix := range []string{"grad.", "after50."} {
					info, err := f.Info(prefix + tensor)
					require.NoError(t, err)
					require.Equal(t, weight.Shape, info.Shape, info.Name)
				}
			}
			require.InDelta(t, crossEntropy(float32s(t, f, "logits"), int32s(t, f, "targets"), V), float32s(t, f, "loss")[0], 1e-6)

			for _, id := range append(int32s(t, f, "batch_ids"), int32s(t, f, "greedy")...) {
				require.GreaterOrEqual(t, id, int32(0))
				require.Less(t, id, int32(V))
			}
		})
	}
}

func TestOracleGELU(t *testing.T) {
	f := openOracle(t, "gelu")
	x, exact := float32s(t, f, "x"), float32s(t, f, "erf")
	require.Len(t, x, 1201)
	for i, v := range x {
		v := float64(v)
		require.InDelta(t, v/2*(1+math.Erf(v/math.Sqrt2)), exact[i], 3e-7, "x = %v", v)
	}
}

// crossEntropy is the mean negative log-likelihood of the targets that are not -1.
func crossEntropy(logits []float32, targets []int32, vocab int) float64 {
	var sum, count float64
	for i, target := range targets {
		if target < 0 {
			continue
		}
		row := logits[i*vocab : (i+1)*vocab]
		var z float64
		for _, l := range row {
			z += math.Exp(float64(l))
		}
		sum += math.Log(z) - float64(row[target])
		count++
	}
	return sum / count
}

func openOracle(t *testing.T, name string) *File {
	f, err := Open(filepath.Join("..", "..", "testdata", "oracle", name+".safetensors"))
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	return f
}

func float32s(t *testing.T, f *File, name string) []float32 {
	tensor, err := f.Tensor(name)
	require.NoError(t, err)
	values, err := tensor.Float32s()
	require.NoError(t, err)
	return values
}

func int32s(t *testing.T, f *File, name string) []int32 {
	tensor, err := f.Tensor(name)
	require.NoError(t, err)
	values, err := tensor.Int32s()
	require.NoError(t, err)
	return values
}
