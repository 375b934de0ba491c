package safetensors

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"unicode/utf8"
)

// An entry is a tensor's place: its description and the range [begin, end) of its bytes after the header.
type entry struct {
	Info
	begin, end int64
}

// A header is the parsed and checked JSON header of a file.
type header struct {
	entries  map[string]entry
	metadata map[string]string
}

// parseHeader parses text, the header of a file with dataLen bytes after it, and checks all that the format demands.
// Errors are *FormatError.
func parseHeader(file string, text []byte, dataLen int64) (header, error) {
	if len(text) == 0 || text[0] != '{' {
		return header{}, formatErrorf(file, "", "header of %d bytes does not begin with '{'", len(text))
	}
	if !utf8.Valid(text) {
		return header{}, formatErrorf(file, "", "header is not valid UTF-8")
	}
	p := headerParser{file: file, dec: json.NewDecoder(bytes.NewReader(text))}
	p.dec.UseNumber()
	h := header{entries: map[string]entry{}}
	if err := p.header(&h); err != nil {
		return header{}, err
	}
	if err := checkLayout(file, h.entries, dataLen); err != nil {
		return header{}, err
	}
	return h, nil
}

// checkLayout checks that each tensor's range is as long as its shape says, and that the ranges fill [0, dataLen) exactly.
func checkLayout(file string, entries map[string]entry, dataLen int64) error {
	sorted := slices.SortedFunc(maps.Values(entries), func(a, b entry) int {
		// By end too: an empty tensor comes before the one that begins at the same place. By name only to make the
		// error the same every time.
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end), cmp.Compare(a.Name, b.Name))
	})
	var filled int64
	for _, e := range sorted {
		n, err := e.byteLen()
		if err != nil {
			return formatErrorf(file, e.Name, "%v", err)
		}
		switch {
		case e.end < e.begin || e.end > dataLen:
			return formatErrorf(file, e.Name, "data_offsets [%d, %d] are not a range within the file's %d bytes of data", e.begin, e.end, dataLen)
		case e.end-e.begin != n:
			return formatErrorf(file, e.Name, "data_offsets [%d, %d] span %d bytes, but shape %v of %s takes %d", e.begin, e.end, e.end-e.begin, e.Shape, e.DType, n)
		case e.begin < filled:
			return formatErrorf(file, e.Name, "data begins at %d, inside the tensor before it, which ends at %d", e.begin, filled)
		case e.begin > filled:
			return formatErrorf(file, e.Name, "data begins at %d, leaving a gap after %d", e.begin, filled)
		}
		filled = e.end
	}
	if filled != dataLen {
		return formatErrorf(file, "", "tensors end at %d, but the file has %d bytes of data", filled, dataLen)
	}
	return nil
}

// A headerParser reads the header token by token, because decoding into a map would let the last of several equal
// keys win unseen.
type headerParser struct {
	file   string
	tensor string // being parsed, for errors
	dec    *json.Decoder
}

func (p *headerParser) errorf(format string, args ...any) error {
	return formatErrorf(p.file, p.tensor, format, args...)
}

func (p *headerParser) token() (json.Token, error) {
	t, err := p.dec.Token()
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, p.errorf("header is not JSON at byte %d: %v", p.dec.InputOffset(), err)
	}
	return t, nil
}

// object parses an object, calling value for each key, which must parse the key's value. No key may come twice.
func (p *headerParser) object(what string, value func(key string) error) error {
	t, err := p.token()
	if err != nil {
		return err
	}
	if t != json.Delim('{') {
		return p.errorf("%s is %s, want an object", what, describe(t))
	}
	seen := map[string]bool{}
	for p.dec.More() {
		t, err := p.token()
		if err != nil {
			return err
		}
		key, ok := t.(string)
		if !ok {
			return p.errorf("%s has key %s, want a string", what, describe(t))
		}
		if seen[key] {
			return p.errorf("%s has key %q twice", what, key)
		}
		seen[key] = true
		if err := value(key); err != nil {
			return err
		}
	}
	_, err = p.token()
	return err
}

// text parses a string.
func (p *headerParser) text(what string) (string, error) {
	t, err := p.token()
	if err != nil {
		return "", err
	}
	s, ok := t.(string)
	if !ok {
		return "", p.errorf("%s is %s, want a string", what, describe(t))
	}
	return s, nil
}

// integers parses an array of integers >= 0 that fit bitSize bits, one of them for the sign.
func (p *headerParser) integers(what string, bitSize int) ([]int64, error) {
	t, err := p.token()
	if err != nil {
		return nil, err
	}
	if t != json.Delim('[') {
		return nil, p.errorf("%s is %s, want an array", what, describe(t))
	}
	out := []int64{}
	for p.dec.More() {
		t, err := p.token()
		if err != nil {
			return nil, err
		}
		number, _ := t.(json.Number)
		n, err := strconv.ParseInt(number.String(), 10, bitSize)
		if err != nil || n < 0 {
			return nil, p.errorf("%s holds %s, want an integer from 0 to 2^%d-1", what, describe(t), bitSize-1)
		}
		out = append(out, n)
	}
	_, err = p.token()
	return out, err
}

// header parses the whole header.
func (p *headerParser) header(h *header) error {
	err := p.object("header", func(name string) error {
		if name == metadataKey {
			h.metadata = map[string]string{}
			return p.object(metadataKey, func(key string) (err error) {
				h.metadata[key], err = p.text(fmt.Sprintf("%s value of %q", metadataKey, key))
				return err
			})
		}
		p.tensor = name
		e, err := p.entry()
		if err != nil {
			return err
		}
		p.tensor = ""
		h.entries[name] = e
		return nil
	})
	if err != nil {
		return err
	}
	end := p.dec.InputOffset()
	if _, err := p.dec.Token(); !errors.Is(err, io.EOF) {
		return p.errorf("header goes on after its object, which ends at byte %d", end)
	}
	return nil
}

// entry parses the description of one tensor, whose name is p.tensor.
func (p *headerParser) entry() (entry, error) {
	e := entry{Info: Info{Name: p.tensor}}
	var offsets []int64
	err := p.object("entry", func(key string) error {
		switch key {
		case "dtype":
			s, err := p.text(key)
			e.DType = DType(s)
			return err
		case "shape":
			dims, err := p.integers(key, strconv.IntSize)
			e.Shape = make([]int, len(dims))
			for i, d := range dims {
				e.Shape[i] = int(d)
			}
			return err
		case "data_offsets":
			var err error
			offsets, err = p.integers(key, 64)
			return err
		}
		return p.errorf("entry has unknown key %q, want dtype, shape and data_offsets", key)
	})
	if err != nil {
		return entry{}, err
	}
	switch {
	case e.DType == "":
		return entry{}, p.errorf("entry has no dtype")
	case e.Shape == nil:
		return entry{}, p.errorf("entry has no shape")
	case len(offsets) != 2:
		return entry{}, p.errorf("data_offsets has %d numbers, want 2", len(offsets))
	}
	e.begin, e.end = offsets[0], offsets[1]
	return e, nil
}

// describe names a token for an error message, cut to a length that fits in one.
func describe(t json.Token) string {
	s := fmt.Sprintf("%v", t)
	if text, ok := t.(string); ok {
		s = strconv.QuoteToASCII(text)
	}
	if len(s) > 40 {
		s = s[:40] + "…"
	}
	return s
}
