package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"unicode/utf8"

	"github.com/autopar/autopar/infile"
	"github.com/autopar/autopar/wholefile"
)

// A Writer writes a file one tensor at a time, in any order. Nothing is at the file's path until [Writer.Commit], and
// equal contents make equal bytes.
//
//	w, err := safetensors.Create(path, infos, metadata)
//	if err != nil { ... }
//	defer w.Close()
//	for ... { err := w.Write(tensor) ... }
//	err = w.Commit()
type Writer struct {
	path      string
	temp      *wholefile.File // nil once committed or closed
	dataStart int64
	entries   map[string]entry
	missing   map[string]bool // declared and not yet written
}

// WriteFile writes tensors to path, whole or not at all. Metadata may be nil.
func WriteFile(path string, metadata map[string]string, tensors ...Tensor) error {
	infos := make([]Info, len(tensors))
	for i, t := range tensors {
		infos[i] = t.Info()
	}
	w, err := Create(path, infos, metadata)
	if err != nil {
		return err
	}
	defer w.Close()
	for _, t := range tensors {
		if err := w.Write(t); err != nil {
			return err
		}
	}
	return w.Commit()
}

// Create begins a file at path that will hold the tensors that infos describe; metadata may be nil. Data is laid out by
// element size, widest first, then by name, so that every tensor is aligned to its elements.
// Descriptions that the format cannot hold are a *[FormatError].
func Create(path string, infos []Info, metadata map[string]string) (*Writer, error) {
	entries, err := layOut(path, infos)
	if err != nil {
		return nil, err
	}
	text, err := encodeHeader(path, entries, metadata)
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		return nil, fmt.Errorf("safetensors: %s is there and no file, which would be in its place", path) // such as a device
	}
	temp, err := wholefile.Create(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	w := &Writer{path: path, temp: temp, dataStart: int64(len(text)), entries: map[string]entry{}, missing: map[string]bool{}}
	for _, e := range entries {
		w.entries[e.Name] = e
		w.missing[e.Name] = true
	}
	if _, err := temp.Write(text); err != nil {
		return nil, errors.Join(fmt.Errorf("safetensors: %s: write header: %w", path, infile.WithoutPath(err)), w.Close())
	}
	return w, nil
}

// Write writes a declared tensor, each exactly once.
func (w *Writer) Write(t Tensor) error {
	if w.temp == nil {
		return fmt.Errorf("safetensors: %s: write of %q after the file was closed", w.path, t.Name)
	}
	e, ok := w.entries[t.Name]
	switch {
	case !ok:
		return formatErrorf(w.path, t.Name, "not declared to Create")
	case !w.missing[t.Name]:
		return formatErrorf(w.path, t.Name, "written twice")
	case t.DType != e.DType || !slices.Equal(t.Shape, e.Shape):
		return formatErrorf(w.path, t.Name, "is %s %v, but was declared %s %v", t.DType, t.Shape, e.DType, e.Shape)
	}
	if err := t.checkData(); err != nil {
		return formatErrorf(w.path, t.Name, "%v", err)
	}
	if _, err := w.temp.WriteAt(t.Data, w.dataStart+e.begin); err != nil {
		return fmt.Errorf("safetensors: %s: tensor %q: %w", w.path, t.Name, infile.WithoutPath(err))
	}
	delete(w.missing, t.Name)
	return nil
}

// Commit makes the file durable and moves it to its path, replacing what was there. It is an error, and nothing changes
// at the path, if a declared tensor was not written.
func (w *Writer) Commit() error {
	if w.temp == nil {
		return fmt.Errorf("safetensors: %s: commit after the file was closed", w.path)
	}
	if len(w.missing) > 0 {
		names := slices.Sorted(maps.Keys(w.missing))
		return formatErrorf(w.path, names[0], "declared but not written (%d of %d missing)", len(names), len(w.entries))
	}
	err := w.temp.Finish()
	if err == nil {
		err = w.temp.Commit()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("safetensors: %s: commit: %w", w.path, err), w.Close())
	}
	w.temp = nil
	return nil
}

// Close discards the file unless it was committed. It may be called again.
func (w *Writer) Close() error {
	if w.temp == nil {
		return nil
	}
	err := w.temp.Discard()
	w.temp = nil
	if err != nil {
		return fmt.Errorf("safetensors: %s: discard: %w", w.path, err)
	}
	return nil
}

// layOut gives every tensor its range of bytes, in the order described at Create.
func layOut(path string, infos []Info) ([]entry, error) {
	entries := make([]entry, len(infos))
	for i, info := range infos {
		info.Shape = slices.Clone(info.Shape)
		entries[i] = entry{Info: info}
	}
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(b.DType.Size(), a.DType.Size()), cmp.Compare(a.Name, b.Name))
	})
	seen := map[string]bool{}
	var at int64
	for i, e := range entries {
		if err := validateName(e.Name); err != nil {
			return nil, formatErrorf(path, e.Name, "%v", err)
		}
		if seen[e.Name] {
			return nil, formatErrorf(path, e.Name, "declared twice")
		}
		seen[e.Name] = true
		n, err := e.byteLen()
		if err != nil {
			return nil, formatErrorf(path, e.Name, "%v", err)
		}
		if n > 1<<62-at {
			return nil, formatErrorf(path, e.Name, "%d bytes after %d others are more than 2^62", n, at)
		}
		entries[i].begin, entries[i].end = at, at+n
		at += n
	}
	return entries, nil
}

// encodeHeader returns all that comes before the data: the header length and the header, padded with spaces so that the
// data is aligned to 8 bytes.
func encodeHeader(path string, entries []entry, metadata map[string]string) ([]byte, error) {
	var b bytes.Buffer
	b.Write(make([]byte, headerStart))
	field := func(name string, value any) {
		if b.Len() == headerStart {
			b.WriteByte('{')
		} else {
			b.WriteByte(',')
		}
		b.Write(mustMarshal(name))
		b.WriteByte(':')
		b.Write(mustMarshal(value))
	}
	if len(metadata) > 0 {
		for k, v := range metadata {
			if !utf8.ValidString(k) || !utf8.ValidString(v) {
				return nil, formatErrorf(path, "", "metadata %q: %q is not valid UTF-8", k, v)
			}
		}
		field(metadataKey, metadata)
	}
	for _, e := range entries {
		field(e.Name, struct {
			DType   DType    `json:"dtype"`
			Shape   []int    `json:"shape"`
			Offsets [2]int64 `json:"data_offsets"`
		}{e.DType, append([]int{}, e.Shape...), [2]int64{e.begin, e.end}}) // append: a nil shape would be null
	}
	if b.Len() == headerStart {
		b.WriteByte('{')
	}
	b.WriteByte('}')
	for b.Len()%8 != 0 {
		b.WriteByte(' ')
	}
	if n := b.Len() - headerStart; n > maxHeaderBytes {
		return nil, formatErrorf(path, "", "header of %d bytes is more than the limit of %d", n, maxHeaderBytes)
	}
	binary.LittleEndian.PutUint64(b.Bytes(), uint64(b.Len()-headerStart))
	return b.Bytes(), nil
}

// mustMarshal is json.Marshal for values that cannot fail. Maps come out sorted by key.
func mustMarshal(v any) []byte {
	text, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("BUG: safetensors: marshal %v: %v", v, err))
	}
	return text
}
