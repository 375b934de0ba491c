package train

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint/safetensors"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
)

// referenceReader reads whole weights from PyTorch's file of a Llama, which is not a GPT-2 file.
type referenceReader struct {
	file *safetensors.File
	cfg  gpt.Config
}

func (r referenceReader) Read(param string, _ ir.DType, _ ir.Slab, dst []byte) error {
	name := r.cfg.Stored(param, gpt.NanoGPT)[0].Name
	x, err := r.file.Tensor(name)
	if err != nil {
		return err
	}
	values, err := x.Float32s()
	for i, v := range values {
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
	}
	return err
}

// TestLlamaDecodes: with rotary positions, cached keys and windows beyond the context, the tokens
// are PyTorch's greedy ones.
func TestLlamaDecodes(t *testing.T) {
	f, cfg := openOracle(t, "llama")
	d, err := newDecoder(cfg, referenceReader{f, cfg}, cfg.BlockSize+5)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	prompt, want := ints(t, f, "greedy_prompt"), ints(t, f, "greedy")
	opts := SampleOptions{}
	got, err := d.generate(t.Context(), prompt, len(want), opts.chooser(0))
	require.NoError(t, err)
	for i, id := range want {
		require.Equal(t, int(id), got[len(prompt)+i], "token %d", i)
	}

	// Token by token gives the same as the whole context at once.
	T, V := cfg.BlockSize, cfg.VocabSize
	ids := ints(t, f, "ids")[:T]
	_, err = d.window(t.Context(), ids)
	require.NoError(t, err)
	full := d.all
	for p := range T {
		next, err := d.next(t.Context(), ids[:p+1])
		require.NoError(t, err)
		require.InDeltaSlice(t, full[p*V:(p+1)*V], next, 1e-5, "position %d", p)
	}
}

// TestLlamaOfTransformers: a Llama that transformers saved chooses the tokens that it chooses there.
func TestLlamaOfTransformers(t *testing.T) {
	const dir = "../testdata/oracle/transformers/"
	cfg, _, weights, err := openModel(dir + "model.safetensors")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, weights.Close()) })
	d, err := newDecoder(cfg, weights, cfg.BlockSize)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	f, err := safetensors.Open(dir + "greedy.safetensors")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, f.Close()) })
	prompt, want := ints(t, f, "prompt"), ints(t, f, "greedy")
	opts := SampleOptions{}
	got, err := d.generate(t.Context(), prompt, len(want), opts.chooser(0))
	require.NoError(t, err)
	for i, id := range want {
		require.Equal(t, int(id), got[len(prompt)+i], "token %d", i)
	}
}
