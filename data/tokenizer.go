package data

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

// Tokenizer maps text to token ids and back.
type Tokenizer interface {
	// Encode returns the ids of text. The error names the first character that
	// has none.
	Encode(text string) ([]int, error)
	// Decode returns the text of ids. An id outside the vocabulary, which a
	// model with a padded vocabulary can produce, reads as U+FFFD.
	Decode(ids []int) string
	// VocabSize is the number of ids: all are in [0, VocabSize).
	VocabSize() int
}

// LoadTokenizer returns the tokenizer of a data directory as nanoGPT's sample.py
// chooses it: characters if dir has a meta.pkl, else GPT-2.
func LoadTokenizer(dir string) (Tokenizer, error) {
	path := filepath.Join(dir, MetaFile)
	meta, err := readMeta(path)
	if errors.Is(err, fs.ErrNotExist) {
		return NewGPT2()
	}
	if err != nil {
		return nil, err
	}
	if meta.Symbols == nil {
		return nil, inputErrorf(path, "has no itos table, so text cannot be encoded")
	}
	return newChar(meta.Symbols), nil
}

// Char is the character tokenizer: id i is the character symbols[i]. Symbols of a tokenizer of somebody's own may be longer: as in
// nanoGPT's sample.py they are decoded, but no text is encoded to them.
type Char struct {
	symbols []string
	ids     map[rune]uint16
}

// newChar returns the tokenizer of distinct symbols, of which there are at most
// 65,536.
func newChar(symbols []string) *Char {
	if len(symbols) > 1<<16 {
		panic(fmt.Sprintf("BUG: data: %d symbols do not fit uint16 ids", len(symbols)))
	}
	ids := make(map[rune]uint16, len(symbols))
	for id, s := range symbols {
		if c, n := utf8.DecodeRuneInString(s); n > 0 && n == len(s) {
			ids[c] = uint16(id)
		}
	}
	return &Char{symbols, ids}
}

// Encode implements Tokenizer.
func (t *Char) Encode(text string) ([]int, error) {
	ids := make([]int, 0, len(text))
	for offset, c := range text {
		id, ok := t.ids[c]
		if !ok {
			return nil, fmt.Errorf("data: character %q at byte %d is not among the %d symbols of the vocabulary", c, offset, len(t.symbols))
		}
		ids = append(ids, int(id))
	}
	return ids, nil
}

// Decode implements Tokenizer.
func (t *Char) Decode(ids []int) string {
	var b strings.Builder
	for _, id := range ids {
		if id < 0 || id >= len(t.symbols) {
			b.WriteRune(utf8.RuneError)
			continue
		}
		b.WriteString(t.symbols[id])
	}
	return b.String()
}

// VocabSize implements Tokenizer.
func (t *Char) VocabSize() int { return len(t.symbols) }
