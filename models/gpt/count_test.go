package gpt

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/trace"
)

func preset(t *testing.T, name string) Config {
	t.Helper()
	c, err := Preset(name)
	require.NoError(t, err)
	return c
}

// notebookGPT2 is the model of nanoGPT's notebooks: GPT-2's vocabulary without biases.
func notebookGPT2(t *testing.T) Config {
	c := preset(t, "gpt2")
	c.Bias = false
	return c
}

// The counts that nanoGPT's model.py gives, and the millions that it prints (without positions).
func TestParameterCounts(t *testing.T) {
	for _, tc := range []struct {
		name   string
		config Config
		params int64
		prints string
	}{
		{"quick", preset(t, "quick"), 804_096, "0.80M"},
		{"shakespeare_char", preset(t, "shakespeare_char"), 10_745_088, "10.65M"},
		{"gpt2", preset(t, "gpt2"), 124_439_808, "123.65M"},
		{"gpt2-medium", preset(t, "gpt2-medium"), 354_823_168, "353.77M"},
		{"gpt2-large", preset(t, "gpt2-large"), 774_030_080, "772.72M"},
		{"gpt2-xl", preset(t, "gpt2-xl"), 1_557_611_200, "1555.97M"},
		{"notebook", notebookGPT2(t), 124_337_664, "123.55M"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			require.Equal(t, tc.params, tc.config.NumParams())
			require.Equal(t, tc.prints, fmt.Sprintf("%.2fM", float64(tc.config.NumParamsNoPosition())/1e6))
		})
	}
}

func TestParamGroups(t *testing.T) {
	decay, noDecay := preset(t, "quick").ParamGroups()
	require.Equal(t, ParamGroup{18, 802_944}, decay)
	require.Equal(t, ParamGroup{9, 1_152}, noDecay)

	// GPT-2 with biases, as nanoGPT prints it: 50 decayed tensors, 98 others.
	decay, noDecay = preset(t, "gpt2").ParamGroups()
	require.Equal(t, ParamGroup{50, 124_318_464}, decay)
	require.Equal(t, ParamGroup{98, 121_344}, noDecay)
}

// Llama-2 7B (Touvron et al. 2023) has none of GPT-2's choices: 6,738,415,616 parameters.
func TestCountsOfOtherArchitectures(t *testing.T) {
	llama := preset(t, "llama-2-7b")
	require.Equal(t, int64(6_738_415_616), llama.NumParams())
	require.Equal(t, llama.NumParams(), llama.NumParamsNoPosition())

	require.Equal(t, int64(13_015_864_320), preset(t, "llama-2-13b").NumParams())
	require.InEpsilon(t, float64(llama.FLOPsPerToken()*4096), float64(3*llama.ForwardFLOPs().Total()), 2e-4)

	// Mistral 7B (Jiang et al. 2023) adds grouped queries: 7,241,732,096 parameters.
	mistral := llama
	mistral.NKVHead, mistral.FFNHidden = 8, 14336
	require.Equal(t, int64(7_241_732_096), mistral.NumParams())
	for name, params := range map[string]int64{
		"llama-2-70b": 68_976_648_192, "llama-3-8b": 8_030_261_248, "llama-3-70b": 70_553_706_496, "llama-3.1-405b": 405_853_388_800,
	} {
		require.Equal(t, params, preset(t, name).NumParams(), name)
	}
}

func TestFLOPs(t *testing.T) {
	c := notebookGPT2(t)
	require.Equal(t, int64(875_062_886_400), c.FLOPsPerToken()*int64(c.BlockSize), "nanoGPT's estimate_mfu per sequence")

	forward := c.ForwardFLOPs()
	require.Equal(t, int64(291_648_307_200), forward.Total(), "transformer_sizing.ipynb")
	share := func(part int64) string { return fmt.Sprintf("%.1f%%", 100*float64(part)/float64(forward.Total())) }
	require.Equal(t, "27.1%", share(forward.Head))
	require.Equal(t, "39.8%", share(forward.MLP))
	require.Equal(t, "33.1%", share(forward.Attention))
	require.InEpsilon(t, float64(c.FLOPsPerToken()*1024), float64(3*forward.Total()), 2e-4)
}

func TestTrainingBytes(t *testing.T) {
	c := preset(t, "quick")
	b := c.TrainingBytes(12, true)
	require.Equal(t, int64(4*804_096), b.Weights)
	require.Equal(t, b.Weights, b.Gradients)
	require.Equal(t, int64(8*804_096), b.Optimizer)
	require.Equal(t, c.ActivationBytes(12, 4), b.Activations)
	require.Equal(t, 16*int64(804_096)+b.Activations, b.Total())

	c.Float = trace.BF16
	half := c.TrainingBytes(12, true)
	require.Equal(t, TrainingBytes{2 * 804_096, 4 * 804_096, 12 * 804_096, c.ActivationBytes(12, 2)}, half)
	all := c.TrainingBytes(12, false)
	require.Equal(t, 8*int64(804_096)+c.ActivationBytes(12, 2), all.Total())
}

// Korthikanti et al. 2023 table 2, per layer: sbh(34 + 5as/h) with dropout in two bytes, and its variants.
func TestActivationBytesPerLayer(t *testing.T) {
	const sequences = 7
	perLayer := func(c Config, elementSize int) int64 {
		more := c
		more.NLayer++
		return more.ActivationBytes(sequences, elementSize) - c.ActivationBytes(sequences, elementSize)
	}
	c := Config{NLayer: 2, NHead: 3, NEmbd: 48, BlockSize: 33, VocabSize: 65, Dropout: 0.1,
		Activation: GELU, Norm: LayerNorm, Position: Learned, TieEmbeddings: true}
	sbh, sbas := int64(33*sequences*48), int64(33*sequences*3*33)
	require.Equal(t, 34*sbh+5*sbas, perLayer(c, 2))
	require.Equal(t, 66*sbh+9*sbas, perLayer(c, 4), "masks keep one byte")

	still := c
	still.Dropout = 0
	require.Equal(t, 32*sbh+2*sbas, perLayer(still, 2))
	require.Equal(t, int64(33*sequences*(2*2*48+4*65+8)), still.ActivationBytes(sequences, 2)-2*perLayer(still, 2), "the ends")

	gated := still
	gated.Activation, gated.FFNHidden, gated.NKVHead = SwiGLU, 96, 1
	require.Equal(t, (4+3*2+4/3.0+2+3*4)*float64(sbh)+2*float64(sbas), float64(perLayer(gated, 2)))
}
