// Package data turns text into token ids on disk, and ids on disk into batches.
//
//	Corpus ── Prepare ──▶ train.bin, val.bin, meta.pkl ── OpenBins ──▶ Split ── Fill ──▶ ids, targets
//	                                                       Sampler ── Batch(step) ──▶ window starts ──┘
//
// The files are those of nanoGPT, in both directions. A bin is raw little-endian uint16 ids without
// a header; uint32 where the vocabulary has more than 65,536 tokens. The Sampler is a function of seed
// and step, so a checkpoint needs no state for the position in the data, and every rank can compute the
// whole global batch and take its own rows.
package data

import "fmt"

// Names of the files in a data directory.
const (
	TrainFile = "train.bin"
	ValFile   = "val.bin"
	MetaFile  = "meta.pkl"
)

// defaultVocab is the vocabulary nanoGPT assumes for bins without meta.pkl: the
// 50,257 tokens of GPT-2, padded to a multiple of 64.
const defaultVocab = 50304

// InputError is a file or a name that the user gave and that is wrong, unlike work that failed.
type InputError struct {
	File   string // the file, or the name, at fault
	Detail string // what is wrong with it, with the numbers
	Err    error  // the cause, or nil
}

func (e *InputError) Error() string {
	s := "data: " + e.File + ": " + e.Detail
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *InputError) Unwrap() error { return e.Err }

func inputErrorf(file, format string, args ...any) error {
	return &InputError{File: file, Detail: fmt.Sprintf(format, args...)}
}
