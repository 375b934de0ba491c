package gpt

import (
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir/interp"
)

// readOracle reads a safetensors file of F32 and I32 tensors and its metadata.
func readOracle(t *testing.T, file string) (map[string]interp.Tensor, map[string]string) {
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	n := binary.LittleEndian.Uint64(raw)
	var header map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(raw[8:8+n], &header))
	out, meta := map[string]interp.Tensor{}, map[string]string{}
	for name, text := range header {
		if name == "__metadata__" {
			require.NoError(t, json.Unmarshal(text, &meta))
			continue
		}
		var e struct {
			DType   string
			Shape   []int
			Offsets [2]int `json:"data_offsets"`
		}
		require.NoError(t, json.Unmarshal(text, &e))
		data := raw[8+int(n)+e.Offsets[0] : 8+int(n)+e.Offsets[1]]
		x := interp.Tensor{Shape: e.Shape}
		for i := 0; i < len(data); i += 4 {
			bits := binary.LittleEndian.Uint32(data[i:])
			if e.DType == "I32" {
				x.I = append(x.I, int32(bits))
			} else {
				x.F = append(x.F, float64(math.Float32frombits(bits)))
			}
		}
		out[name] = x
	}
	return out, meta
}
