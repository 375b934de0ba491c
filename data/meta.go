package data

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/autopar/autopar/infile"
	"github.com/autopar/autopar/pickle"
)

// Meta is what meta.pkl says about the bins beside it.
type Meta struct {
	VocabSize int
	// Symbols holds the text of each id: one character, unless a tokenizer of somebody's own has made the bins. It is nil if
	// the file has only the size.
	Symbols []string
}

// maxVocab is larger than any vocabulary.
const maxVocab = 1 << 24

// maxMetaSize bounds meta.pkl: 65,536 symbols in both tables, with room.
const maxMetaSize = 4 << 20

// readMeta reads a meta.pkl, written here or by nanoGPT. An error is an
// *InputError; it wraps fs.ErrNotExist when there is no such file.
func readMeta(path string) (*Meta, error) {
	f, err := infile.Open(path)
	if err != nil {
		return nil, &InputError{File: path, Detail: "cannot open", Err: infile.WithoutPath(err)}
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxMetaSize+1))
	if err != nil {
		return nil, &InputError{File: path, Detail: "cannot read", Err: infile.WithoutPath(err)}
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
	v, err := pickle.Read(b)
	if err != nil {
		return nil, err
	}
	d, ok := v.(pickle.Dict)
	if !ok {
		return nil, fmt.Errorf("the pickle is %s, not a dict", pickle.Describe(v))
	}
	size, ok := d["vocab_size"].(int64)
	if !ok {
		return nil, fmt.Errorf("no integer 'vocab_size'")
	}
	if size < 1 || size > maxVocab {
		return nil, fmt.Errorf("vocab_size %d is not in [1, %d]", size, maxVocab)
	}
	meta := &Meta{VocabSize: int(size)}
	itos, okI := d["itos"].(pickle.Dict)
	stoi, okS := d["stoi"].(pickle.Dict)
	if !okI && !okS {
		return meta, nil
	}
	if len(itos) != meta.VocabSize || len(stoi) != meta.VocabSize {
		return nil, fmt.Errorf("vocab_size is %d, but itos has %d entries and stoi %d", size, len(itos), len(stoi))
	}
	if size > 1<<16 {
		return nil, fmt.Errorf("%d symbols are too many, want at most 65536", size)
	}
	meta.Symbols = make([]string, size)
	for id := range meta.Symbols {
		s, ok := itos[int64(id)].(string)
		if !ok {
			return nil, fmt.Errorf("itos[%d] is %s, not a text", id, pickle.Describe(itos[int64(id)]))
		}
		if back, ok := stoi[s].(int64); !ok || back != int64(id) {
			return nil, fmt.Errorf("itos[%d] is %q, but stoi[%q] is %s", id, s, s, pickle.Describe(stoi[s]))
		}
		meta.Symbols[id] = s
	}
	return meta, nil
}

// appendMeta appends the pickle, in protocol 2, of the dictionary that nanoGPT
// stores: {'vocab_size': n, 'itos': {0: 'a', ...}, 'stoi': {'a': 0, ...}}.
func appendMeta(b []byte, symbols []string) []byte {
	const begin, end = "}(", "u" // of a dict: EMPTY_DICT and MARK, SETITEMS
	if len(symbols) > math.MaxInt32 {
		panic(fmt.Sprintf("BUG: data: %d symbols", len(symbols)))
	}
	str := func(s string) {
		b = append(b, 'X') // BINUNICODE
		b = binary.LittleEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	num := func(i int) {
		b = append(b, 'J') // BININT
		b = binary.LittleEndian.AppendUint32(b, uint32(i))
	}
	b = append(b, "\x80\x02"+begin...)
	str("vocab_size")
	num(len(symbols))
	str("itos")
	b = append(b, begin...)
	for id, c := range symbols {
		num(id)
		str(c)
	}
	b = append(b, end...)
	str("stoi")
	b = append(b, begin...)
	for id, c := range symbols {
		str(c)
		num(id)
	}
	return append(b, end+end+"."...)
}
