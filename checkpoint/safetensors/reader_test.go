package safetensors

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

// image returns a file with this header and dataLen bytes of data: 0, 1, 2, ...
func image(header string, dataLen int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	for i := range dataLen {
		b = append(b, byte(i))
	}
	return b
}

func open(b []byte) (*File, error) {
	return NewFile("m.safetensors", bytes.NewReader(b), int64(len(b)))
}

func TestRead(t *testing.T) {
	f, err := open(image(`{"__metadata__":{"format":"pt"},
		"b":{"data_offsets":[8,12],"dtype":"I16","shape":[2,1]},
		"none":{"dtype":"F64","shape":[3,0],"data_offsets":[8,8]},
		"\u0061":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
		"scalar":{"dtype":"U8","shape":[],"data_offsets":[12,13]}}   `, 13))
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b", "none", "scalar"}, f.Names())
	require.Equal(t, map[string]string{"format": "pt"}, f.Metadata())
	for _, want := range []Tensor{
		{"a", F32, []int{2}, []byte{0, 1, 2, 3, 4, 5, 6, 7}},
		{"b", I16, []int{2, 1}, []byte{8, 9, 10, 11}},
		{"none", F64, []int{3, 0}, []byte{}},
		{"scalar", U8, []int{}, []byte{12}},
	} {
		got, err := f.Tensor(want.Name)
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(want, got))
		info, err := f.Info(want.Name)
		require.NoError(t, err)
		require.Equal(t, want.Info(), info)
	}
	section, err := f.Section("b")
	require.NoError(t, err)
	part := make([]byte, 2)
	_, err = section.ReadAt(part, 1)
	require.NoError(t, err)
	require.Equal(t, []byte{9, 10}, part)
	_, err = section.ReadAt(part, 3)
	require.ErrorIs(t, err, io.EOF, "a section ends with its tensor")
}

func TestReadUnknownName(t *testing.T) {
	f, err := open(image(`{}`, 0))
	require.NoError(t, err)
	require.Empty(t, f.Names())
	require.Empty(t, f.Metadata())
	_, err = f.Tensor("wte.weight")
	require.ErrorIs(t, err, ErrNotFound)
	require.EqualError(t, err, `safetensors: m.safetensors: no such tensor: "wte.weight" (the file has 0)`)
	_, err = f.Info("wte.weight")
	require.ErrorIs(t, err, ErrNotFound)
	_, err = f.Section("wte.weight")
	require.ErrorIs(t, err, ErrNotFound)
}

func TestReadCorrupt(t *testing.T) {
	const f32 = `"dtype":"F32","shape":[2],"data_offsets":[0,8]`
	good := image(`{"a":{`+f32+`}}`, 8)
	_, err := open(good)
	require.NoError(t, err)
	withLength := func(n uint64) []byte {
		b := bytes.Clone(good)
		binary.LittleEndian.PutUint64(b, n)
		return b
	}
	for _, test := range []struct {
		name   string
		file   []byte
		tensor string
		reason string // a part of it
	}{
		{"empty file", nil, "", "0 bytes is too short"},
		{"short length", good[:7], "", "7 bytes is too short"},
		{"no header", image("", 0), "", "header of 0 bytes does not begin with '{'"},
		{"header cut", good[:20], "", "is more than the 12 bytes after it"},
		{"length beyond file", withLength(uint64(len(good))), "", "is more than the"},
		{"length overflows", withLength(1<<64 - 8), "", "is another kind of file, or cut short: its header length 18446744073709551608 is more"},
		{"of PyTorch 1.5", []byte("\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."), "", "is a pickle or a tar archive, as torch.save wrote before PyTorch 1.6"},
		{"of PyTorch 0.1", []byte("storages\x00" + strings.Repeat("\x00", 248) + "ustar"), "", "is a pickle or a tar archive, as torch.save wrote before PyTorch 1.6"},
		{"length too small", withLength(10), "a", "header is not JSON at byte 6: unexpected EOF"},
		{"data cut", good[:len(good)-1], "a", "[0, 8] are not a range within the file's 7 bytes"},
		{"data too long", append(bytes.Clone(good), 0), "", "tensors end at 8, but the file has 9 bytes"},
		{"data without tensors", image(`{}`, 1), "", "tensors end at 0, but the file has 1 bytes"},
		{"leading space", image(` {}`, 0), "", "does not begin with '{'"},
		{"not an object", image(`["a"]`, 0), "", "does not begin with '{'"},
		{"not JSON", image(`{"a":`, 0), "a", "header is not JSON"},
		{"missing brace", image(`{"a":{`+f32+`}`, 8), "", "header is not JSON"},
		{"trailing object", image(`{}{}`, 0), "", "goes on after its object, which ends at byte 2"},
		{"trailing bytes", image("{}\x00\x00", 0), "", "goes on after its object, which ends at byte 2"},
		{"not UTF-8", image("{\"\xff\":{}}", 0), "", "not valid UTF-8"},
		{"name twice", image(`{"a":{`+f32+`},"a":{`+f32+`}}`, 8), "", `has key "a" twice`},
		{"escaped name twice", image(`{"a":{`+f32+`},"\u0061":{`+f32+`}}`, 8), "", `has key "a" twice`},
		{"entry not an object", image(`{"a":1}`, 0), "a", "entry is 1, want an object"},
		{"entry null", image(`{"a":null}`, 0), "a", "want an object"},
		{"field twice", image(`{"a":{`+f32+`,"shape":[2]}}`, 8), "a", `has key "shape" twice`},
		{"field unknown", image(`{"a":{`+f32+`,"scale":2}}`, 8), "a", `unknown key "scale"`},
		{"no dtype", image(`{"a":{"shape":[2],"data_offsets":[0,8]}}`, 8), "a", "no dtype"},
		{"no shape", image(`{"a":{"dtype":"F32","data_offsets":[0,8]}}`, 8), "a", "no shape"},
		{"no offsets", image(`{"a":{"dtype":"F32","shape":[2]}}`, 8), "a", "has 0 numbers, want 2"},
		{"three offsets", image(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,8]}}`, 8), "a", "has 3 numbers"},
		{"dtype unknown", image(`{"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}}`, 8), "a", `unknown dtype "F33"`},
		{"dtype number", image(`{"a":{"dtype":32,"shape":[2],"data_offsets":[0,8]}}`, 8), "a", "dtype is 32, want a string"},
		{"shape negative", image(`{"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}}`, 8), "a", "shape holds -2"},
		{"shape fraction", image(`{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}`, 8), "a", "shape holds 2.0"},
		{"shape string", image(`{"a":{"dtype":"F32","shape":["2"],"data_offsets":[0,8]}}`, 8), "a", `shape holds "2"`},
		{"shape nested", image(`{"a":{"dtype":"F32","shape":[[2]],"data_offsets":[0,8]}}`, 8), "a", "shape holds ["},
		{"shape beyond int64", image(`{"a":{"dtype":"F32","shape":[9223372036854775808],"data_offsets":[0,8]}}`, 8), "a", "shape holds 9223372036854775808"},
		{"shape overflows to 8 bytes", image(`{"a":{"dtype":"F32","shape":[4611686018427387905,2],"data_offsets":[0,8]}}`, 8), "a", "more than 2^62 bytes"},
		{"shape overflows to 0 bytes", image(`{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, 0), "a", "more than 2^62 bytes"},
		{"span too short", image(`{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}`, 8), "a", "span 8 bytes, but shape [3] of F32 takes 12"},
		{"offsets backwards", image(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}}`, 8), "a", "[8, 0] are not a range"},
		{"offset negative", image(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}}`, 8), "a", "data_offsets holds -8"},
		{"offsets far away", image(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[9223372036854775799,9223372036854775807]}}`, 8), "a", "are not a range within"},
		{"gap at start", image(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3), "a", "begins at 1, leaving a gap after 0"},
		{"gap between", image(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[3,5]}}`, 5), "b", "begins at 3, leaving a gap after 2"},
		{"overlap", image(`{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3), "b", "begins at 1, inside the tensor before it, which ends at 2"},
		{"same bytes", image(`{"a":{`+f32+`},"b":{`+f32+`}}`, 8), "b", "begins at 0, inside"},
		{"empty inside another", image(`{"a":{`+f32+`},"b":{"dtype":"U8","shape":[0],"data_offsets":[4,4]}}`, 8), "b", "begins at 4, inside"},
		{"metadata number", image(`{"__metadata__":{"n":1}}`, 0), "", `__metadata__ value of "n" is 1, want a string`},
		{"metadata array", image(`{"__metadata__":[]}`, 0), "", "__metadata__ is [, want an object"},
		{"metadata key twice", image(`{"__metadata__":{"n":"1","n":"2"}}`, 0), "", `has key "n" twice`},
		{"deep nesting", image(`{"a":`+strings.Repeat("[", 100_000), 0), "a", "want an object"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := open(test.file)
			var format *FormatError
			require.ErrorAs(t, err, &format)
			require.Equal(t, "m.safetensors", format.File)
			require.Equal(t, test.tensor, format.Tensor)
			require.Contains(t, format.Reason, test.reason)
			require.Contains(t, err.Error(), "safetensors: m.safetensors: ")
		})
	}
}

func TestOpenHeaderLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.safetensors")
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, binary.Write(f, binary.LittleEndian, uint64(maxHeaderBytes+1)))
	require.NoError(t, f.Truncate(2*maxHeaderBytes)) // sparse: takes no disk
	require.NoError(t, f.Close())
	_, err = Open(path)
	require.ErrorContains(t, err, "header length 100000001 is more than the limit of 100000000")
}

func TestOpenMissing(t *testing.T) {
	_, err := Open(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// If a file is cut after it was opened, reading fails; it does not return a short tensor.
func TestReadTruncatedLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.safetensors")
	require.NoError(t, WriteFile(path, nil, FromInt32s("a", []int{3}, []int32{1, 2, 3})))
	f, err := Open(path)
	require.NoError(t, err)
	defer f.Close()
	stat, err := os.Stat(path)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(path, stat.Size()-1))
	_, err = f.Tensor("a")
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.ErrorContains(t, err, `tensor "a": read 12 bytes`)
}

// boundedReader fails the test on a read beyond its size.
type boundedReader struct {
	t *testing.T
	r *bytes.Reader
}

func (b boundedReader) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || int64(len(p)) > b.r.Size()-off {
		b.t.Errorf("read of %d bytes at %d of a file of %d", len(p), off, b.r.Size())
	}
	return b.r.ReadAt(p, off)
}

// FuzzRead reads any bytes without a panic, and without a buffer larger than the file. Every
// accepted file must be unchanged after a write and a read.
func FuzzRead(f *testing.F) {
	f.Add(image(`{}`, 0))
	f.Add(image(`{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}`, 8))
	f.Add(image(`{"__metadata__":{"k":"v"},"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"b":{"dtype":"BF16","shape":[0,3],"data_offsets":[1,1]}}`, 1))
	f.Add(image(`{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := NewFile("fuzz", boundedReader{t, bytes.NewReader(b)}, int64(len(b)))
		if err != nil {
			var format *FormatError
			require.ErrorAs(t, err, &format)
			return
		}
		tensors := readAll(t, file)
		path := filepath.Join(t.TempDir(), "m.safetensors")
		require.NoError(t, WriteFile(path, file.Metadata(), tensors...))
		again, err := Open(path)
		require.NoError(t, err)
		defer again.Close()
		require.Empty(t, cmp.Diff(tensors, readAll(t, again)))
		require.Equal(t, file.Metadata(), again.Metadata())
	})
}

func readAll(t *testing.T, f *File) []Tensor {
	var out []Tensor
	for _, name := range f.Names() {
		tensor, err := f.Tensor(name)
		require.NoError(t, err)
		out = append(out, tensor)
	}
	return out
}
