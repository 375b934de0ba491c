package data

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/autopar/autopar/wholefile"
)

// Encoding names a way of turning text into ids.
type Encoding string

// The encodings that Prepare writes.
const (
	CharEncoding Encoding = "char" // one id per distinct character; with meta.pkl
	GPT2Encoding Encoding = "gpt2" // GPT-2 byte pairs; without
)

// ParseEncoding returns the encoding of a name, or an *InputError that lists
// the names.
func ParseEncoding(name string) (Encoding, error) {
	switch e := Encoding(name); e {
	case CharEncoding, GPT2Encoding:
		return e, nil
	}
	return "", inputErrorf(name, "not a tokenizer; want %s or %s", CharEncoding, GPT2Encoding)
}

// DatasetEncoding returns the encoding of a data set that nanoGPT has and this
// package can prepare, or an *InputError that lists them.
func DatasetEncoding(dataset string) (Encoding, error) {
	switch dataset {
	case "shakespeare_char":
		return CharEncoding, nil
	case "shakespeare":
		return GPT2Encoding, nil
	}
	return "", inputErrorf(dataset, "not a known data set; want shakespeare_char or shakespeare, or a text of your own as input")
}

// Prepared tells what Prepare wrote.
type Prepared struct {
	Corpus      Corpus
	Encoding    Encoding
	Dir         string
	Characters  int64 // after "\r\n" became "\n"
	VocabSize   int   // ids in the bins are below it
	TrainTokens int64
	ValTokens   int64
}

// Prepare writes the corpus into dir as train.bin, val.bin and, for characters,
// meta.pkl: the files that nanoGPT's prepare.py of shakespeare_char and
// shakespeare writes, with equal bins. The first int(0.9 n) of the n characters
// train; the rest validates.
//
// The text is read twice and never held whole. The files appear when all are
// complete. A text that is empty or one character, is not UTF-8 or has more than
// 65,536 different characters is an *InputError.
func Prepare(ctx context.Context, corpus Corpus, encoding Encoding, dir string) (*Prepared, error) {
	p := &Prepared{Corpus: corpus, Encoding: encoding, Dir: dir}
	symbols, err := p.survey(ctx)
	if err != nil {
		return nil, err
	}
	if p.Characters == 0 {
		return nil, inputErrorf(corpus.Source, "the text is empty")
	}

	var encode func(emit func(id int) error) textEncoder
	var meta []byte
	switch encoding {
	case CharEncoding:
		if len(symbols) > 1<<16 {
			return nil, inputErrorf(corpus.Source, "%d different characters do not fit in uint16 ids", len(symbols))
		}
		char := newChar(symbols)
		encode = func(emit func(int) error) textEncoder { return charStream{char, emit} }
		meta = appendMeta(nil, symbols)
		p.VocabSize = len(symbols)
	case GPT2Encoding:
		bpe, err := NewGPT2()
		if err != nil {
			return nil, err
		}
		encode = func(emit func(int) error) textEncoder {
			return &gpt2Stream{bpe: bpe, name: corpus.Source, emit: emit, size: gpt2ChunkSize, limit: gpt2ChunkLimit}
		}
		p.VocabSize = gpt2Vocab
	default:
		panic(fmt.Sprintf("BUG: data: encoding %q", encoding))
	}
	if err := p.write(ctx, encode, meta); err != nil {
		return nil, err
	}
	return p, nil
}

// survey is the first pass: it counts the characters and returns the different
// ones, sorted.
func (p *Prepared) survey(ctx context.Context) (symbols []string, err error) {
	f, err := p.Corpus.Open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text := newTextReader(ctx, p.Corpus.Source, f)
	seen := map[rune]struct{}{}
	for {
		c, err := text.next()
		if errors.Is(err, io.EOF) {
			for _, c := range slices.Sorted(maps.Keys(seen)) {
				symbols = append(symbols, string(c))
			}
			return symbols, nil
		}
		if err != nil {
			return nil, err
		}
		p.Characters++
		seen[c] = struct{}{}
	}
}

// textEncoder takes a text character by character and emits its ids.
type textEncoder interface {
	add(c rune) error
	flush() error // after the last character
}

// write is the second pass: it encodes both parts and commits the files.
func (p *Prepared) write(ctx context.Context, encode func(emit func(id int) error) textEncoder, meta []byte) error {
	f, err := p.Corpus.Open()
	if err != nil {
		return err
	}
	defer f.Close()
	text := newTextReader(ctx, p.Corpus.Source, f)

	cut := int64(0.9 * float64(p.Characters)) // int(n*0.9), in Python's arithmetic
	if err := os.MkdirAll(p.Dir, 0o777); err != nil {
		return err
	}
	var files []*wholefile.File
	defer func() {
		for _, file := range files {
			file.Discard()
		}
	}()
	create := func(name string) (*wholefile.File, error) {
		file, err := wholefile.Create(filepath.Join(p.Dir, name))
		if err == nil {
			files = append(files, file)
		}
		return file, err
	}
	if meta != nil {
		file, err := create(MetaFile)
		if err != nil {
			return err
		}
		if _, err := file.Write(meta); err != nil {
			return err
		}
	}
	for _, part := range []struct {
		name       string
		characters int64
		tokens     *int64
	}{{TrainFile, cut, &p.TrainTokens}, {ValFile, p.Characters - cut, &p.ValTokens}} {
		file, err := create(part.name)
		if err != nil {
			return err
		}
		bin := bufio.NewWriterSize(file, 1<<16)
		encoder := encode(func(id int) error {
			*part.tokens++
			_, err := bin.Write([]byte{byte(id), byte(id >> 8)})
			return err
		})
		for range part.characters {
			c, err := text.next()
			if errors.Is(err, io.EOF) {
				return inputErrorf(p.Corpus.Source, "the text shrank while it was read; it had %d characters", p.Characters)
			}
			if err != nil {
				return err
			}
			if err := encoder.add(c); err != nil {
				return err
			}
		}
		if err := errors.Join(encoder.flush(), bin.Flush()); err != nil {
			return err
		}
	}
	if p.TrainTokens == 0 {
		return inputErrorf(p.Corpus.Source, "the text is too short: its one character validates, which leaves nothing to train on")
	}
	return commit(p.Dir, files)
}

// commit renames all files after they are complete. val.bin comes last, and an old one is removed
// before the first rename: so no run opens one text to train on and another to validate with. An
// old meta.pkl is removed too, as it would give the new bins a wrong vocabulary.
func commit(dir string, files []*wholefile.File) error {
	for _, file := range files {
		if err := file.Finish(); err != nil {
			return err
		}
	}
	for _, old := range []string{ValFile, MetaFile} {
		if err := os.Remove(filepath.Join(dir, old)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, file := range files {
		if err := file.Commit(); err != nil {
			return err
		}
	}
	return nil
}

// charStream encodes characters as they come.
type charStream struct {
	char *Char
	emit func(id int) error
}

func (s charStream) add(c rune) error {
	id, ok := s.char.ids[c]
	if !ok {
		return fmt.Errorf("data: the text changed while it was read: %q is new", c)
	}
	return s.emit(int(id))
}

func (s charStream) flush() error { return nil }
