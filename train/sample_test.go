package train

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/checkpoint/safetensors"
	"github.com/autopar/autopar/data"
	"github.com/autopar/autopar/models/gpt"
)

// openOracle opens a reference file, and returns its model.
func openOracle(t *testing.T, name string) (*safetensors.File, gpt.Config) {
	t.Helper()
	f, err := safetensors.Open(filepath.Join("..", "testdata", "oracle", name+".safetensors"))
	require.NoError(t, err)
	t.Cleanup(func() { f.Close() })
	meta := f.Metadata()
	size := func(key string) int {
		n, err := strconv.Atoi(meta[key])
		require.NoError(t, err)
		return n
	}
	cfg := gpt.DefaultConfig()
	cfg.NLayer, cfg.NHead, cfg.NEmbd = size("n_layer"), size("n_head"), size("n_embd")
	cfg.BlockSize, cfg.VocabSize, cfg.Bias = size("block_size"), size("vocab_size"), meta["bias"] == "true"
	if meta["gelu"] == "tanh" {
		cfg.Activation = gpt.GELUTanh
	}
	if meta["activation"] != "" {
		cfg.FFNHidden, cfg.Activation = size("ffn_hidden"), meta["activation"]
		cfg.Norm, cfg.Position, cfg.TieEmbeddings = meta["norm"], meta["position"], meta["tie_embeddings"] == "true"
	}
	return f, cfg
}

// oracleModel adds a file with the weights alone.
func oracleModel(t *testing.T, name string) (*safetensors.File, gpt.Config, string) {
	t.Helper()
	f, cfg := openOracle(t, name)
	var weights []safetensors.Tensor
	for _, n := range f.Names() {
		if strings.HasPrefix(n, "transformer.") {
			w, err := f.Tensor(n)
			require.NoError(t, err)
			weights = append(weights, w)
		}
	}
	path := filepath.Join(t.TempDir(), "weights.safetensors")
	require.NoError(t, safetensors.WriteFile(path, nil, weights...))
	return f, cfg, path
}

func ints(t *testing.T, f *safetensors.File, name string) []int32 {
	t.Helper()
	x, err := f.Tensor(name)
	require.NoError(t, err)
	v, err := x.Int32s()
	require.NoError(t, err)
	return v
}

func newTestDecoder(t *testing.T, cfg gpt.Config, path string, longest int) *decoder {
	t.Helper()
	w, err := checkpoint.OpenWeights(path, cfg)
	require.NoError(t, err)
	defer w.Close()
	d, err := newDecoder(cfg, w, longest)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// TestGreedy: the 100 tokens are PyTorch's. They exceed the context by far, so both ways of
// decoding are used.
func TestGreedy(t *testing.T) {
	for _, name := range []string{"nobias", "bias"} {
		t.Run(name, func(t *testing.T) {
			f, cfg, path := oracleModel(t, name)
			d := newTestDecoder(t, cfg, path, 104)
			prompt, want := ints(t, f, "greedy_prompt"), ints(t, f, "greedy")
			opts := SampleOptions{}
			for range 2 { // the second time the prompt is cached
				got, err := d.generate(t.Context(), prompt, len(want), opts.chooser(0))
				require.NoError(t, err)
				for i, id := range want {
					require.Equal(t, int(id), got[len(prompt)+i], "token %d", i)
				}
			}
		})
	}
}

// TestCacheEqualsFull: token by token gives PyTorch's logits, and so does the whole context at
// once.
func TestCacheEqualsFull(t *testing.T) {
	for _, name := range []string{"nobias", "bias"} {
		f, cfg, path := oracleModel(t, name)
		d := newTestDecoder(t, cfg, path, cfg.BlockSize+1)
		T, V := cfg.BlockSize, cfg.VocabSize
		x, err := f.Tensor("logits")
		require.NoError(t, err)
		want, err := x.Float32s()
		require.NoError(t, err)
		ids := ints(t, f, "ids")[:T] // the first sequence
		_, err = d.window(t.Context(), ids)
		require.NoError(t, err)
		full := d.all
		for p := range T {
			got, err := d.next(t.Context(), ids[:p+1])
			require.NoError(t, err)
			require.InDeltaSlice(t, full[p*V:(p+1)*V], got, 1e-5, "position %d", p)
			require.InDeltaSlice(t, want[p*V:(p+1)*V], got, 1e-5, "position %d", p)
		}
	}
}

// TestTorchFiles: files that PyTorch wrote give PyTorch's logits. nanoGPT's states its model; the
// others have HuggingFace's config.json, with the other GELU, and with other initial weights and
// dropout than here.
func TestTorchFiles(t *testing.T) {
	oracle := filepath.Join("..", "testdata", "oracle", "torchfile")
	f, err := safetensors.Open(filepath.Join(oracle, "weights.safetensors"))
	require.NoError(t, err)
	defer f.Close()
	ids, dir := ints(t, f, "ids")[5:10], t.TempDir() // the second sequence
	config := `{"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 6, "n_positions": 5, "vocab_size": 11, "activation_function": "gelu_new",
		"initializer_range": 0.01, "resid_pdrop": 0.3}`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(config), 0o644))
	for name, gelu := range map[string]string{"ckpt.pt": "erf", "pytorch_model.bin": "tanh", "half.bin": "tanh", "views.pt": "tanh"} {
		path := filepath.Join(oracle, name)
		if gelu == "tanh" {
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			path = filepath.Join(dir, name)
			require.NoError(t, os.WriteFile(path, text, 0o644))
		}
		cfg, _, weights, err := openModel(path)
		require.NoError(t, err)
		defer weights.Close()
		d, err := newDecoder(cfg, weights, cfg.BlockSize)
		require.NoError(t, err)
		x, err := f.Tensor("logits." + gelu)
		require.NoError(t, err)
		want, err := x.Float32s()
		require.NoError(t, err)
		for p := range ids {
			got, err := d.next(t.Context(), ids[:p+1])
			require.NoError(t, err)
			require.InDeltaSlice(t, want[(5+p)*11:(6+p)*11], got, 1e-5, "position %d of %s", p, name)
		}
		require.NoError(t, d.Close())
	}
}

// TestChoose: tokens are as frequent as the softmax says, among the k most likely.
func TestChoose(t *testing.T) {
	logits := []float32{1, 3, float32(math.Inf(-1)), 2, 3, -1}
	frequencies := func(temperature float64, k int) []float64 {
		rng := rand.New(rand.NewPCG(5, 6))
		f := make([]float64, len(logits))
		const n = 40000
		for range n {
			f[choose(logits, temperature, k, rng.Float64())] += 1.0 / n
		}
		return f
	}
	softmax := func(temperature float64, allowed ...int) []float64 {
		p, sum := make([]float64, len(logits)), 0.0
		for _, i := range allowed {
			p[i] = math.Exp(float64(logits[i]) / temperature)
			sum += p[i]
		}
		for i := range p {
			p[i] /= sum
		}
		return p
	}
	for _, temperature := range []float64{0.5, 1, 3} {
		require.InDeltaSlice(t, softmax(temperature, 0, 1, 3, 4, 5), frequencies(temperature, 0), 0.01)
		require.InDeltaSlice(t, softmax(temperature, 0, 1, 3, 4, 5), frequencies(temperature, 200), 0.01)
		require.InDeltaSlice(t, softmax(temperature, 1, 3, 4), frequencies(temperature, 3), 0.01)
		require.InDeltaSlice(t, softmax(temperature, 1, 4), frequencies(temperature, 1), 0.01, "ties with the last are in")
	}
	// The ends of the range, and a temperature near 0, which is greedy.
	require.Equal(t, 0, choose(logits, 1, 0, 0))
	require.Equal(t, 5, choose(logits, 1, 0, math.Nextafter(1, 0)))
	require.Equal(t, 3, choose([]float32{1, 2, 3, 4}, 1e-9, 0, 0.999))
}

// TestSample: the output is a function of weights, start and seed, from a checkpoint or an exported
// file.
func TestSample(t *testing.T) {
	dir := textData(t)
	cfg := tinyConfig(t, dir, "train.max_iters=60", "train.eval_interval=100")
	out := t.TempDir()
	train(t, cfg, planOf(1, 2, 2), RunOptions{Out: out})
	opts := SampleOptions{From: out, Start: "ab", NumSamples: 2, MaxNewTokens: 30, Temperature: 0.8, TopK: 20, Seed: 3}
	sample := func(change func(*SampleOptions)) []string {
		o := opts
		change(&o)
		var b bytes.Buffer
		require.NoError(t, Sample(t.Context(), o, &b))
		texts := strings.Split(b.String(), "\n---------------\n")
		require.Empty(t, texts[len(texts)-1])
		return texts[:len(texts)-1]
	}
	texts := sample(func(*SampleOptions) {})
	require.Len(t, texts, 2)
	require.Len(t, texts[0], 32)
	require.True(t, strings.HasPrefix(texts[0], "ab"))
	require.NotEqual(t, texts[0], texts[1])
	require.Equal(t, texts, sample(func(*SampleOptions) {}))
	require.Equal(t, texts[:1], sample(func(o *SampleOptions) { o.NumSamples = 1 }))
	require.NotEqual(t, texts, sample(func(o *SampleOptions) { o.Seed++ }))

	file := filepath.Join(t.TempDir(), "model.safetensors")
	c, err := checkpoint.Open(out)
	require.NoError(t, err)
	defer c.Close()
	for _, layout := range []gpt.Layout{gpt.NanoGPT, gpt.GPT2} {
		require.NoError(t, checkpoint.ExportWeights(file, c, cfg.Model, layout))
		require.Equal(t, texts, sample(func(o *SampleOptions) { o.From, o.DataDir = file, dir }))
	}

	prompt := filepath.Join(t.TempDir(), "prompt")
	require.NoError(t, os.WriteFile(prompt, []byte("ab"), 0o644))
	require.Equal(t, texts, sample(func(o *SampleOptions) { o.Start = "FILE:" + prompt }))

	for written, want := range map[string]string{"a\nb": "a\nb", "a\r\nb": "a\nb", "a\rb": "a\nb"} { // lines end as in the corpus
		require.NoError(t, os.WriteFile(prompt, []byte(written), 0o644))
		require.True(t, strings.HasPrefix(sample(func(o *SampleOptions) { o.Start = "FILE:" + prompt })[0], want), "%q", written)
	}
	for name, test := range map[string]struct {
		change func(*SampleOptions)
		want   string
	}{
		"no samples":      {func(o *SampleOptions) { o.NumSamples = 0 }, "num-samples: is 0"},
		"no tokens":       {func(o *SampleOptions) { o.MaxNewTokens = 0 }, "max-new-tokens: is 0"},
		"cold":            {func(o *SampleOptions) { o.Temperature = -1 }, "temperature: is -1"},
		"NaN":             {func(o *SampleOptions) { o.Temperature = math.NaN() }, "temperature: is NaN"},
		"negative k":      {func(o *SampleOptions) { o.TopK = -1 }, "top-k: is -1"},
		"no start":        {func(o *SampleOptions) { o.Start = "" }, "start: is empty"},
		"foreign start":   {func(o *SampleOptions) { o.Start = "aé" }, "start: cannot be encoded"},
		"no text":         {func(o *SampleOptions) { o.Start = "a\xff" }, "start: is not valid UTF-8"},
		"no data":         {func(o *SampleOptions) { o.DataDir = prompt + "/none" }, "data: " + prompt + "/none is no directory"},
		"missing file":    {func(o *SampleOptions) { o.Start = "FILE:" + prompt + "2" }, "start: cannot be read"},
		"nothing there":   {func(o *SampleOptions) { o.From += "/none" }, "from: is neither"},
		"large tokenizer": {func(o *SampleOptions) { o.DataDir = t.TempDir() }, "has no meta.pkl, so it is GPT-2's, which has 50257 tokens, the model 65"},
		"data of others":  {func(o *SampleOptions) { o.From = file; t.Chdir(dir) }, "no data is named, so it is GPT-2's, which has 50257 tokens"},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.Contains(test.want, "GPT-2") {
				if _, err := data.NewGPT2(); err != nil {
					t.Skip(err)
				}
			}
			o := opts
			test.change(&o)
			require.ErrorContains(t, Sample(t.Context(), o, &bytes.Buffer{}), test.want)
		})
	}
}

// TestSampleWithoutEnd: if more tokens are asked for than memory holds or an int counts, they are
// made until the caller cancels. What was made until then is written.
func TestSampleWithoutEnd(t *testing.T) {
	dir, out := textData(t), t.TempDir()
	train(t, tinyConfig(t, dir), planOf(1, 1, 1), RunOptions{Out: out, Steps: 1})
	for _, n := range []int{math.MaxInt, 1 << 40} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		var text bytes.Buffer
		err := Sample(ctx, SampleOptions{From: out, Start: "ab", NumSamples: 1, MaxNewTokens: n, Temperature: 1}, &text)
		cancel()
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Regexp(t, `^ab[^-]`, text.String(), "what there is so far")
		require.NotContains(t, text.String(), "---")
	}
}

// TestTokenizerOfDataThatMoved: text by GPT-2's tokens may be of no use if the data had others, which nothing tells any more. A
// directory that has no vocabulary is GPT-2's, and needs no word.
func TestTokenizerOfDataThatMoved(t *testing.T) {
	cfg := gpt.DefaultConfig()
	cfg.VocabSize = 50304
	there := t.TempDir()
	for dir, want := range map[string]bool{there: false, filepath.Join(there, "gone"): true, "": false} {
		var notes []string
		tokens, err := loadTokenizer(dir, cfg, func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) })
		require.NoError(t, err)
		require.Equal(t, 50257, tokens.VocabSize())
		if !want {
			require.Empty(t, notes, dir)
			continue
		}
		require.Len(t, notes, 1)
		require.Contains(t, notes[0], "the data directory "+dir+" is not there, so tokens are taken for GPT-2's")
	}
	_, err := loadTokenizer(filepath.Join(there, "gone"), cfg, nil)
	require.NoError(t, err)

	cfg.VocabSize = 128256 // Llama 3's
	var notes []string
	_, err = loadTokenizer("", cfg, func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) })
	require.NoError(t, err)
	require.Len(t, notes, 1)
	require.Contains(t, notes[0], "tokens are taken for GPT-2's 50,257, but the model has 128,256: ")

	text := filepath.Join(there, "input.txt")
	require.NoError(t, os.WriteFile(text, []byte(strings.Repeat("abc\n", 100)), 0o644))
	corpus, err := data.FileCorpus(text)
	require.NoError(t, err)
	_, err = data.Prepare(t.Context(), corpus, data.CharEncoding, there)
	require.NoError(t, err)
	for size, want := range map[int]int{4: 0, 64: 0, 50257: 1} {
		cfg.VocabSize, notes = size, nil
		_, err = loadTokenizer(there, cfg, func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) })
		require.NoError(t, err)
		require.Len(t, notes, want, size)
		for _, n := range notes {
			require.Contains(t, n, "has 4 symbols, but the model has 50,257: ")
		}
	}
}
