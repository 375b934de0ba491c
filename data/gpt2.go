package data

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/pkoukk/tiktoken-go"
	loader "github.com/pkoukk/tiktoken-go-loader"
)

// The GPT-2 encoding, as tiktoken defines it.
const (
	gpt2Vocab   = 50257
	gpt2EOT     = 50256
	gpt2Pattern = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
)

// GPT2 is the byte-pair tokenizer of GPT-2. In a prompt "<|endoftext|>" is the token that ends a text, as in nanoGPT's sample.py;
// in a text to train on it is the characters that it is written with, as in its prepare.py.
type GPT2 struct {
	bpe *tiktoken.Tiktoken
}

// NewGPT2 builds the tokenizer from the merge table embedded in the program.
func NewGPT2() (*GPT2, error) {
	// GPT-2's table is published under this name (r50k_base).
	ranks, err := loader.NewOfflineLoader().LoadTiktokenBpe("r50k_base.tiktoken")
	if err != nil {
		return nil, fmt.Errorf("data: GPT-2 merge table: %w", err)
	}
	special := map[string]int{tiktoken.ENDOFTEXT: gpt2EOT}
	core, err := tiktoken.NewCoreBPE(ranks, special, gpt2Pattern)
	if err != nil {
		return nil, fmt.Errorf("data: GPT-2 tokenizer: %w", err)
	}
	encoding := &tiktoken.Encoding{Name: "gpt2", PatStr: gpt2Pattern, MergeableRanks: ranks, SpecialTokens: special, ExplicitNVocab: gpt2Vocab}
	return &GPT2{tiktoken.NewTiktoken(core, encoding, map[string]any{tiktoken.ENDOFTEXT: true})}, nil
}

// Encode implements Tokenizer.
func (t *GPT2) Encode(text string) ([]int, error) {
	if !utf8.ValidString(text) {
		return nil, fmt.Errorf("data: the text to encode is not valid UTF-8")
	}
	ids := []int{}
	for i, part := range strings.Split(text, tiktoken.ENDOFTEXT) {
		if i > 0 {
			ids = append(ids, gpt2EOT)
		}
		ids = append(ids, t.bpe.EncodeOrdinary(part)...)
	}
	return ids, nil
}

// Decode implements Tokenizer. Bytes that do not form a character, as at the
// end of a text cut inside one, read as U+FFFD.
func (t *GPT2) Decode(ids []int) string {
	var b strings.Builder
	for len(ids) > 0 {
		known := 0
		for known < len(ids) && ids[known] >= 0 && ids[known] < gpt2Vocab {
			known++
		}
		b.WriteString(t.bpe.Decode(ids[:known]))
		ids = ids[known:]
		if len(ids) > 0 {
			b.WriteRune(utf8.RuneError)
			ids = ids[1:]
		}
	}
	return strings.ToValidUTF8(b.String(), string(utf8.RuneError))
}

// VocabSize implements Tokenizer.
func (t *GPT2) VocabSize() int { return gpt2Vocab }

// gpt2Stream encodes a text to train on, of any length, in bounded memory, to the ids of the whole.
//
// A text may be cut between a letter and a non-letter, and before white space that follows another
// character. No piece of gpt2Pattern extends across such a place, so it is a boundary between
// pieces of the whole text. The pattern looks ahead only from a run of white space to the character
// after it, which the cut never separates, so the pieces on both sides are the same. (Cutting after
// a newline would be wrong: "\n\nx" has the pieces "\n", "\n", "x", but "\n\n" at the end of a text
// is one piece.)
type gpt2Stream struct {
	bpe   *GPT2
	name  string // of the text, for errors
	emit  func(id int) error
	size  int // bytes after which to cut at the next possible place
	limit int // bytes without a possible place after which the text is refused

	chunk []byte
	last  rune // of chunk
}

const (
	gpt2ChunkSize  = 1 << 14
	gpt2ChunkLimit = 1 << 16 // encoding one word takes time in the square of its length: here 2 s
)

func (s *gpt2Stream) add(c rune) error {
	if len(s.chunk) >= s.size && canCut(s.last, c) {
		if err := s.flush(); err != nil {
			return err
		}
	}
	if len(s.chunk) >= s.limit {
		return inputErrorf(s.name, "%d bytes without a boundary between words, starting %.40q: is it text?", len(s.chunk), s.chunk)
	}
	s.chunk = utf8.AppendRune(s.chunk, c)
	s.last = c
	return nil
}

// canCut reports whether a text may be cut between a and b.
func canCut(a, b rune) bool {
	return unicode.IsLetter(a) && !unicode.IsLetter(b) || !unicode.IsSpace(a) && unicode.IsSpace(b)
}

func (s *gpt2Stream) flush() error {
	if len(s.chunk) == 0 {
		return nil
	}
	ids := s.bpe.bpe.EncodeOrdinary(string(s.chunk))
	s.chunk = s.chunk[:0]
	for _, id := range ids {
		if err := s.emit(id); err != nil {
			return err
		}
	}
	return nil
}
