package main

import (
	"context"
	"errors"

	"github.com/autopar/autopar/train"
)

// sampleCmd writes text, as nanoGPT's sample.py does and with its defaults.
type sampleCmd struct {
	From         string  `required:"" placeholder:"DIR|FILE" help:"Directory of a run or of a checkpoint, or a file of weights, as for checkpoint import."`
	Start        *string `placeholder:"TEXT|FILE:path" help:"Text to go on from; the default is a line break. Where tokens are those of GPT-2, <|endoftext|> is the one that ends a text."`
	NumSamples   int     `default:"10" help:"Texts to write."`
	MaxNewTokens int     `default:"500" help:"Tokens in each, those of the start not counted."`
	Temperature  float64 `default:"0.8" help:"Less than 1 keeps to what is likely, 0 takes the likeliest token always."`
	TopK         int     `name:"top-k" default:"200" help:"Choose among so many likeliest tokens only; 0 is all."`
	Seed         uint64  `default:"1337" help:"Another seed gives another text."`
	Data         string  `placeholder:"DIR" help:"Directory of the data, for its meta.pkl. The default is that of the run; without a meta.pkl tokens are GPT-2's."`
}

// Example is shown by --help.
func (sampleCmd) Example() string {
	return `autopar sample --from out-quick --start "ROMEO:" --num-samples 2`
}

// Run samples.
func (c *sampleCmd) Run(ctx context.Context, con *console) error {
	start := "\n"
	if c.Start != nil {
		start = *c.Start
	}
	err := train.Sample(ctx, train.SampleOptions{
		From: c.From, Start: start, NumSamples: c.NumSamples, MaxNewTokens: c.MaxNewTokens,
		Temperature: c.Temperature, TopK: c.TopK, Seed: c.Seed, DataDir: c.Data, Note: con.note,
	}, con.stdout)
	if bad, ok := errors.AsType[*train.InputError](err); ok && c.Start == nil && bad.What == "start" {
		return usagef("sample: a text begins with a line break if --start does not say otherwise: %v", err)
	}
	return err
}
