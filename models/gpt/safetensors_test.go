package gpt

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint/safetensors"
	"github.com/autopar/autopar/ir/interp"
)

// readOracle reads a safetensors file of F32 and I32 tensors and its metadata.
func readOracle(t *testing.T, path string) (map[string]interp.Tensor, map[string]string) {
	f, err := safetensors.Open(path)
	require.NoError(t, err)
	defer func() { require.NoError(t, f.Close()) }()
	out := map[string]interp.Tensor{}
	for _, name := range f.Names() {
		x, err := f.Tensor(name)
		require.NoError(t, err)
		if x.DType == safetensors.I32 {
			values, err := x.Int32s()
			require.NoError(t, err)
			out[name] = interp.Ints(values, x.Shape...)
			continue
		}
		values, err := x.Float32s()
		require.NoError(t, err)
		wide := make([]float64, len(values))
		for i, v := range values {
			wide[i] = float64(v)
		}
		out[name] = interp.Floats(wide, x.Shape...)
	}
	return out, f.Metadata()
}
