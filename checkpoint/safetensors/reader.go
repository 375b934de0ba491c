package safetensors

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/autopar/autopar/infile"
)

// headerStart is the size of the header length, and so where the header begins.
const headerStart = 8

// A File is an open safetensors file. Only the header is in memory; each call reads the tensor it names.
// Methods may be called from several goroutines at once.
type File struct {
	name      string
	data      io.ReaderAt
	dataStart int64
	header    header
	closer    io.Closer
}

// Open opens the file at path and checks its header. What breaks the format is a *[FormatError].
func Open(path string) (*File, error) {
	r, err := infile.Open(path)
	if err != nil {
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	stat, err := r.Stat()
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("safetensors: %w", err)
	}
	f, err := NewFile(path, r, stat.Size())
	if err != nil {
		r.Close()
		return nil, err
	}
	f.closer = r
	return f, nil
}

// NewFile is [Open] for a file of size bytes that r reads. The name only appears in errors. Close does not close r.
func NewFile(name string, r io.ReaderAt, size int64) (*File, error) {
	if size < headerStart {
		return nil, formatErrorf(name, "", "%d bytes is too short for a header length", size)
	}
	var prefix [headerStart]byte
	if err := readFull(r, prefix[:], 0); err != nil {
		return nil, fmt.Errorf("safetensors: %s: read header length: %w", name, err)
	}
	length := binary.LittleEndian.Uint64(prefix[:])
	if length > uint64(size-headerStart) {
		if torchBefore16(r, prefix[:]) {
			return nil, formatErrorf(name, "", "is a pickle or a tar archive, as torch.save wrote before PyTorch 1.6: save the weights with a newer PyTorch, or as safetensors")
		}
		return nil, formatErrorf(name, "", "is another kind of file, or cut short: its header length %d is more than the %d bytes after it", length, size-headerStart)
	}
	if length > maxHeaderBytes {
		return nil, formatErrorf(name, "", "header length %d is more than the limit of %d", length, maxHeaderBytes)
	}
	text := make([]byte, length)
	if err := readFull(r, text, headerStart); err != nil {
		return nil, fmt.Errorf("safetensors: %s: read header: %w", name, err)
	}
	dataStart := headerStart + int64(length)
	h, err := parseHeader(name, text, size-dataStart)
	if err != nil {
		return nil, err
	}
	return &File{name: name, data: r, dataStart: dataStart, header: h}, nil
}

// torchBefore16 reports whether a file with such a beginning is a pickle of the protocols 2 to 5, or a tar archive.
func torchBefore16(r io.ReaderAt, begin []byte) bool {
	const tarMagic, tarMagicAt = "ustar", 257
	var magic [len(tarMagic)]byte
	err := readFull(r, magic[:], tarMagicAt)
	return begin[0] == 0x80 && begin[1] >= 2 && begin[1] <= 5 || err == nil && string(magic[:]) == tarMagic
}

// Close closes a file that Open opened.
func (f *File) Close() error {
	if f.closer == nil {
		return nil
	}
	return f.closer.Close()
}

// Names returns the names of all tensors, sorted.
func (f *File) Names() []string {
	return slices.Sorted(maps.Keys(f.header.entries))
}

// Metadata returns a copy of the file's metadata, which is empty if it has none.
func (f *File) Metadata() map[string]string {
	out := make(map[string]string, len(f.header.metadata))
	maps.Copy(out, f.header.metadata)
	return out
}

// Info describes the tensor without reading its data. The error of an unknown name wraps [ErrNotFound].
func (f *File) Info(name string) (Info, error) {
	e, err := f.entry(name)
	if err != nil {
		return Info{}, err
	}
	e.Shape = slices.Clone(e.Shape)
	return e.Info, nil
}

// Tensor reads a tensor. The error of an unknown name wraps [ErrNotFound].
func (f *File) Tensor(name string) (Tensor, error) {
	e, err := f.entry(name)
	if err != nil {
		return Tensor{}, err
	}
	data := make([]byte, e.end-e.begin)
	if err := readFull(f.data, data, f.dataStart+e.begin); err != nil {
		return Tensor{}, fmt.Errorf("safetensors: %s: tensor %q: read %d bytes at %d: %w", f.name, name, len(data), f.dataStart+e.begin, err)
	}
	return Tensor{Name: name, DType: e.DType, Shape: slices.Clone(e.Shape), Data: data}, nil
}

// Section returns a reader of the tensor's bytes, to read a part of a large tensor. The error of an
// unknown name wraps [ErrNotFound].
func (f *File) Section(name string) (*io.SectionReader, error) {
	e, err := f.entry(name)
	if err != nil {
		return nil, err
	}
	return io.NewSectionReader(f.data, f.dataStart+e.begin, e.end-e.begin), nil
}

func (f *File) entry(name string) (entry, error) {
	e, ok := f.header.entries[name]
	if !ok {
		return entry{}, fmt.Errorf("safetensors: %s: %w: %q (the file has %d)", f.name, ErrNotFound, name, len(f.header.entries))
	}
	return e, nil
}

// readFull fills p from offset. A file that has become shorter is io.ErrUnexpectedEOF.
func readFull(r io.ReaderAt, p []byte, offset int64) error {
	n, err := r.ReadAt(p, offset)
	if n == len(p) {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
