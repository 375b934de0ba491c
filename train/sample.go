package train

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/data"
	"github.com/autopar/autopar/infile"
	"github.com/autopar/autopar/ir/philox"
	"github.com/autopar/autopar/models/gpt"
)

// SampleOptions are the options of nanoGPT's sample.py.
type SampleOptions struct {
	// From is the directory of a run or checkpoint, or a file that checkpoint.OpenWeights reads.
	From string
	// Start is the prompt, or FILE:path for the text of a file. It must not be empty.
	Start        string
	NumSamples   int
	MaxNewTokens int
	// Temperature divides the logits. 0 always takes the most likely token.
	Temperature float64
	TopK        int // draw only from the k most likely tokens; 0 is all
	Seed        uint64
	// DataDir is where the tokenizer is: characters if there is a meta.pkl, else GPT-2's. "" is the
	// data directory in the checkpoint's configuration.
	DataDir string
	// Note, if set, is told what is assumed.
	Note func(format string, args ...any)
}

func (o *SampleOptions) validate() error {
	for _, check := range []struct {
		what  string
		value any
		legal bool
		want  string
	}{
		{"num-samples", o.NumSamples, o.NumSamples >= 1, "at least 1"},
		{"max-new-tokens", o.MaxNewTokens, o.MaxNewTokens >= 1, "at least 1"},
		{"temperature", o.Temperature, o.Temperature >= 0 && !math.IsInf(o.Temperature, 1), "finite and at least 0"},
		{"top-k", o.TopK, o.TopK >= 0, "at least 0"},
	} {
		if !check.legal {
			return &InputError{What: check.what, Msg: fmt.Sprintf("is %v, must be %s", check.value, check.want)}
		}
	}
	return nil
}

// Sample writes texts that a model generates, each followed by a line of dashes. One that an error ends,
// as when the caller cancels, is written as far as it goes, without. Tokens are a function of weights, prompt
// and seed: sample i does not depend on the number of samples.
func Sample(ctx context.Context, opts SampleOptions, w io.Writer) error {
	if err := opts.validate(); err != nil {
		return err
	}
	cfg, dataDir, weights, err := openModel(opts.From)
	if err != nil {
		return err
	}
	defer weights.Close()
	if opts.DataDir != "" {
		if info, err := os.Stat(opts.DataDir); err != nil || !info.IsDir() {
			return &InputError{What: "data", Msg: opts.DataDir + " is no directory", Err: err}
		}
		dataDir = opts.DataDir
	}
	tokens, err := loadTokenizer(dataDir, cfg, opts.Note)
	if err != nil {
		return err
	}
	prompt, err := encodeStart(opts.Start, tokens)
	if err != nil {
		return err
	}
	// Only whether prompt and new tokens exceed the context counts; their sum may overflow an int.
	d, err := newDecoder(cfg, weights, len(prompt)-1+min(opts.MaxNewTokens, cfg.BlockSize+1))
	if err != nil {
		return err
	}
	for i := range opts.NumSamples {
		ids, err := d.generate(ctx, prompt, opts.MaxNewTokens, opts.chooser(i))
		if len(ids) > len(prompt) {
			end := "\n---------------\n"
			if err != nil {
				end = "\n"
			}
			_, lost := io.WriteString(w, tokens.Decode(ids)+end)
			err = errors.Join(err, lost)
		}
		if err != nil {
			return errors.Join(err, d.Close())
		}
	}
	return d.Close()
}

// openModel opens the weights of a checkpoint or file. It returns the model's configuration and the
// data directory.
func openModel(from string) (gpt.Config, string, weightSource, error) {
	info, err := os.Stat(from)
	if err != nil {
		return gpt.Config{}, "", nil, &InputError{What: "from", Msg: "is neither a directory with a checkpoint nor a file", Err: err}
	}
	if !info.IsDir() {
		cfg, err := checkpoint.WeightsConfig(from)
		if err != nil {
			return gpt.Config{}, "", nil, err
		}
		weights, err := checkpoint.OpenWeights(from, cfg)
		return cfg, "", weights, err
	}
	c, err := checkpoint.Open(from)
	if err != nil {
		return gpt.Config{}, "", nil, err
	}
	cfg, err := configOf(c)
	if err == nil {
		err = cfg.Validate()
	}
	if err != nil {
		return gpt.Config{}, "", nil, errors.Join(err, c.Close())
	}
	return cfg.Model, cfg.Data.Dir, c, nil
}

// loadTokenizer returns the tokenizer of the data in dir. "" means that no data is named, not the
// current directory. A directory that is not there, as one that has moved, is noted: its tokenizer
// may have been another than GPT-2's. So is a model with many more tokens than the data.
func loadTokenizer(dir string, cfg gpt.Config, note func(format string, args ...any)) (t data.Tokenizer, err error) {
	whose := "that of " + dir
	if dir == "" {
		whose = "no data is named, so it is GPT-2's, which"
		t, err = data.NewGPT2()
	} else if t, err = data.LoadTokenizer(dir); err == nil {
		if _, isChar := t.(*data.Char); !isChar {
			whose = fmt.Sprintf("%s has no %s, so it is GPT-2's, which", dir, data.MetaFile)
		}
	}
	if err != nil {
		return nil, err
	}
	if t.VocabSize() > cfg.VocabSize {
		return nil, &InputError{What: "tokenizer", Msg: fmt.Sprintf("%s has %d tokens, the model %d: name the directory of the data it was trained on with --data", whose, t.VocabSize(), cfg.VocabSize)}
	}
	if has, all := grouped(int64(t.VocabSize())), grouped(int64(cfg.VocabSize)); cfg.VocabSize >= t.VocabSize()+padding && note != nil {
		if _, isChar := t.(*data.Char); isChar {
			note("the data in %s has %s symbols, but the model has %s: if it was trained on other data, name its directory with --data", dir, has, all)
		} else {
			note("tokens are taken for GPT-2's %s, but the model has %s: of one that was trained on others, as a Llama is, the text means nothing", has, all)
		}
	}
	if _, err := os.Stat(dir); dir != "" && errors.Is(err, fs.ErrNotExist) && note != nil {
		note("the data directory %s is not there, so tokens are taken for GPT-2's: if the model was trained on others, name its directory with --data", dir)
	}
	return t, nil
}

// maxStart bounds the bytes of a prompt file, far above any prompt.
const maxStart = 16 << 20

// encodeStart returns the tokens of the prompt. A file is read like a corpus: its lines end in
// "\n".
func encodeStart(start string, tokens data.Tokenizer) ([]int32, error) {
	if path, ok := strings.CutPrefix(start, "FILE:"); ok {
		text, err := infile.Read(path, maxStart)
		if err != nil {
			return nil, &InputError{What: "start", Msg: "cannot be read", Err: err}
		}
		start = strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(string(text))
	}
	if !utf8.ValidString(start) {
		return nil, &InputError{What: "start", Msg: "is not valid UTF-8"}
	}
	ids, err := tokens.Encode(start)
	if err != nil {
		return nil, &InputError{What: "start", Msg: "cannot be encoded", Err: err}
	}
	if len(ids) == 0 {
		return nil, &InputError{What: "start", Msg: "is empty; the model needs at least one token to go on from"}
	}
	prompt := make([]int32, len(ids))
	for i, id := range ids {
		prompt[i] = int32(id)
	}
	return prompt, nil
}

// generate returns the prompt and n more tokens, each chosen from the logits of those before it; fewer with an
// error. choose gets the index i of the new token. The cache of the prompt is kept for the next call.
func (d *decoder) generate(ctx context.Context, prompt []int32, n int, choose func(logits []float32, i int) (int, error)) (ids []int, err error) {
	d.rewind(len(prompt))
	known := slices.Clone(prompt)
	for i := 0; i < n && err == nil; i++ {
		var logits []float32
		if logits, err = d.next(ctx, known); err != nil {
			break
		}
		var id int
		if id, err = choose(logits, i); err == nil {
			known = append(known, int32(id))
		}
	}
	for _, id := range known {
		ids = append(ids, int(id))
	}
	return ids, err
}

// chooser returns the function that chooses the tokens of sample s: by one uniform number per
// token, keyed by seed, sample and position.
func (o *SampleOptions) chooser(s int) func([]float32, int) (int, error) {
	key := philox.Key{Seed: o.Seed, Op: philox.OpKey("sample"), Step: uint32(s)}
	return func(logits []float32, i int) (int, error) {
		if slices.ContainsFunc(logits, func(x float32) bool { return math.IsNaN(float64(x)) || math.IsInf(float64(x), 1) }) {
			return 0, fmt.Errorf("train: sample %d: token %d: the model's logits are not finite", s, i)
		}
		if o.Temperature == 0 {
			return argmax(logits), nil
		}
		return choose(logits, o.Temperature, o.TopK, float64(key.Uniform(uint64(i)))), nil
	}
}

func argmax(x []float32) int {
	best := 0
	for i := range x {
		if x[i] > x[best] {
			best = i
		}
	}
	return best
}

// choose returns the token at quantile u, in [0, 1), of softmax(logits/temperature) over the k most
// likely tokens. Tokens that tie with the k-th are included, as in nanoGPT. k = 0 is all tokens.
func choose(logits []float32, temperature float64, k int, u float64) int {
	least := float32(math.Inf(-1))
	if k > 0 && k < len(logits) {
		sorted := slices.Clone(logits)
		slices.SortFunc(sorted, func(a, b float32) int { return cmp.Compare(b, a) })
		least = sorted[k-1]
	}
	top := float64(slices.Max(logits))
	weight := func(x float32) float64 {
		if x < least {
			return 0
		}
		return math.Exp((float64(x) - top) / temperature)
	}
	sum := 0.0
	for _, x := range logits {
		sum += weight(x)
	}
	rest := u * sum
	last := 0
	for i, x := range logits {
		w := weight(x)
		if w == 0 {
			continue
		}
		last = i
		if rest < w {
			break
		}
		rest -= w
	}
	return last
}
