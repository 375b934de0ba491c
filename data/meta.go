package data

import (
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/autopar/autopar/infile"
)

// Meta is what meta.pkl says about the bins beside it.
type Meta struct {
	VocabSize int
	// Symbols holds the character of each id, or is nil when the file has the
	// size alone.
	Symbols []rune
}

// maxMetaSize bounds meta.pkl: 65,536 symbols in both tables, with room.
const maxMetaSize = 4 << 20

// readMeta reads a meta.pkl, written here or by nanoGPT. An error is an
// *InputError; it wraps fs.ErrNotExist when there is no such file.
func readMeta(path string) (*Meta, error) {
	f, err := infile.Open(path)
	if err != nil {
		return nil, &InputError{File: path, Detail: "cannot open", Err: withoutPath(err)}
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxMetaSize+1))
	if err != nil {
		return nil, &InputError{File: path, Detail: "cannot read", Err: withoutPath(err)}
	}
	if len(b) > maxMetaSize {
		return nil, inputErrorf(path, "is larger than %d bytes", maxMetaSize)
	}
	meta, err := parseMeta(b)
	if err != nil {
		return nil, &InputError{File: path, Detail: "not a vocabulary", Err: err}
	}
	return meta, nil
}

func parseMeta(b []byte) (*Meta, error) {
	d, err := readPickle(b)
	if err != nil {
		return nil, err
	}
	size, ok := d["vocab_size"].(int64)
	if !ok {
		return nil, fmt.Errorf("no integer 'vocab_size'")
	}
	if size < 1 || size > 1<<16 {
		return nil, fmt.Errorf("vocab_size %d is not in [1, 65536]", size)
	}
	meta := &Meta{VocabSize: int(size)}
	itos, okI := d["itos"].(pickleDict)
	stoi, okS := d["stoi"].(pickleDict)
	if !okI && !okS {
		return meta, nil
	}
	if len(itos) != meta.VocabSize || len(stoi) != meta.VocabSize {
		return nil, fmt.Errorf("vocab_size is %d, but itos has %d entries and stoi %d", size, len(itos), len(stoi))
	}
	meta.Symbols = make([]rune, size)
	for id := range meta.Symbols {
		s, ok := itos[int64(id)].(string)
		c, n := utf8.DecodeRuneInString(s)
		if !ok || n == 0 || n != len(s) {
			return nil, fmt.Errorf("itos[%d] is not one character", id)
		}
		if back, ok := stoi[s].(int64); !ok || back != int64(id) {
			return nil, fmt.Errorf("itos[%d] is %q, but stoi[%q] is %v", id, s, s, stoi[s])
		}
		meta.Symbols[id] = c
	}
	return meta, nil
}
