package main

import (
	"context"
	"path/filepath"
	"strings"

	"github.com/autopar/autopar/data"
	"github.com/autopar/autopar/explain"
)

// dataCmd groups the commands about training data.
type dataCmd struct {
	Prepare dataPrepareCmd `cmd:"" help:"Write train.bin, val.bin and meta.pkl, as nanoGPT lays them out."`
}

// Example is shown by --help.
func (dataCmd) Example() string { return `autopar data prepare shakespeare_char` }

// dataPrepareCmd writes the token files of a corpus.
type dataPrepareCmd struct {
	Name       string `arg:"" optional:"" help:"shakespeare_char (one id per character) or shakespeare (GPT-2 byte pairs)."`
	Input      string `placeholder:"FILE" help:"Text to prepare. Beside a NAME: the text of that data set, instead of the cache or a download."`
	Tokenizer  string `placeholder:"char|gpt2" help:"One id per character, or GPT-2 byte pairs. The default follows NAME, and is char for a text of your own."`
	Out        string `short:"o" placeholder:"DIR" help:"Directory to write (default data/NAME)."`
	OrGoSource bool   `help:"Where the data set is neither in the cache nor on the network, prepare source text of the Go toolchain instead."`
	Offline    bool   `help:"Do not download."`
	format
}

// Example is shown by --help.
func (dataPrepareCmd) Example() string {
	return `
autopar data prepare shakespeare_char
autopar data prepare --input book.txt --tokenizer char -o data/book`
}

// prepared is the result of autopar data prepare.
type prepared struct {
	Corpus      string `json:"corpus"`
	Source      string `json:"source"`
	Reason      string `json:"reason,omitempty"`
	Tokenizer   string `json:"tokenizer"`
	Dir         string `json:"dir"`
	Characters  int64  `json:"characters"`
	VocabSize   int    `json:"vocab_size"`
	TrainTokens int64  `json:"train_tokens"`
	ValTokens   int64  `json:"val_tokens"`
}

// Run prepares the data.
func (c *dataPrepareCmd) Run(ctx context.Context, con *console) error {
	encoding, err := c.encoding()
	if err != nil {
		return err
	}
	dir := c.Out
	if dir == "" {
		name := c.Name
		if name == "" {
			name = strings.TrimSuffix(filepath.Base(c.Input), filepath.Ext(c.Input))
		}
		dir = filepath.Join("data", name)
	}
	if err := mayBeDirectory("data prepare: -o", dir); err != nil {
		return err
	}
	for _, name := range []string{data.TrainFile, data.ValFile, data.MetaFile} {
		if err := apart("data prepare: -o", filepath.Join(dir, name), c.Input); err != nil {
			return err
		}
	}
	corpus, err := c.corpus(ctx)
	if err != nil {
		return err
	}
	con.note("corpus: %s", corpusText(corpus))
	p, err := data.Prepare(ctx, corpus, encoding, dir)
	if err != nil {
		return err
	}
	if c.json() {
		return con.json(prepared{
			Corpus: corpus.Name, Source: corpus.Source, Reason: corpus.Reason, Tokenizer: string(p.Encoding), Dir: p.Dir,
			Characters: p.Characters, VocabSize: p.VocabSize, TrainTokens: p.TrainTokens, ValTokens: p.ValTokens,
		})
	}
	con.table([][]string{
		{"characters", explain.Grouped(p.Characters)},
		{"vocabulary", explain.Grouped(int64(p.VocabSize))},
		{"training tokens", explain.Grouped(p.TrainTokens), filepath.Join(p.Dir, data.TrainFile)},
		{"validation tokens", explain.Grouped(p.ValTokens), filepath.Join(p.Dir, data.ValFile)},
	})
	return nil
}

func (c *dataPrepareCmd) encoding() (data.Encoding, error) {
	switch {
	case c.Name == "" && c.Input == "":
		return "", usagef("data prepare: give the NAME of a data set (shakespeare_char, shakespeare) or --input FILE")
	case c.Input != "" && c.OrGoSource:
		return "", usagef("data prepare: --or-go-source is of no use with --input %s", c.Input)
	}
	if c.Name != "" {
		named, err := data.DatasetEncoding(c.Name)
		if err != nil || c.Tokenizer == "" {
			return named, err
		}
	}
	if c.Tokenizer == "" {
		return data.CharEncoding, nil
	}
	return data.ParseEncoding(c.Tokenizer)
}

func (c *dataPrepareCmd) corpus(ctx context.Context) (data.Corpus, error) {
	opts := data.CorpusOptions{Path: c.Input, Offline: c.Offline}
	switch {
	case c.Name == "":
		return data.FileCorpus(c.Input)
	case c.OrGoSource:
		return data.ShakespeareOrGoSource(ctx, opts)
	}
	return data.Shakespeare(ctx, opts)
}

func corpusText(c data.Corpus) string {
	text := c.Name
	if c.Source != c.Name { // a text of one's own is its source
		text += ", " + c.Source
	}
	if c.Reason != "" {
		text += " (" + c.Reason + ")"
	}
	return text
}
