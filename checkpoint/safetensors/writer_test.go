package safetensors

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/stretchr/testify/require"
)

var allDTypes = []DType{F64, F32, F16, BF16, F8E4M3, F8E5M2, I64, I32, I16, I8, U64, U32, U16, U8, Bool}

// TestWriteBytes fixes the bytes of a file: the wide tensor before the narrow one, the header padded to 8.
func TestWriteBytes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.safetensors")
	require.NoError(t, WriteFile(path, map[string]string{"z": "1", "b": "<2>"},
		Tensor{Name: "a", DType: U8, Data: []byte{7}},
		FromInt32s("w", []int{2}, []int32{1, -2}),
	))
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	header := `{"__metadata__":{"b":"\u003c2\u003e","z":"1"},"w":{"dtype":"I32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"U8","shape":[],"data_offsets":[8,9]}}`
	for len(header)%8 != 0 {
		header += " "
	}
	require.Equal(t, string(image(header, 0))+"\x01\x00\x00\x00\xfe\xff\xff\xff\x07", string(got))
}

func TestWriteEmpty(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.safetensors")
	require.NoError(t, WriteFile(path, nil))
	got, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "\x08\x00\x00\x00\x00\x00\x00\x00{}      ", string(got))
}

// TestRoundTrip writes random tensors in two orders. Both files must have the same bytes, read back
// as written, and have every tensor aligned to its elements.
func TestRoundTrip(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var tensors []Tensor
		for i := range rng.IntN(20) {
			info := Info{Name: string(rune('a'+i)) + "\"é\n.weight", DType: allDTypes[rng.IntN(len(allDTypes))], Shape: []int{}}
			for range rng.IntN(4) {
				info.Shape = append(info.Shape, rng.IntN(6))
			}
			n, err := info.byteLen()
			require.NoError(t, err)
			data := make([]byte, n)
			for j := range data {
				data[j] = byte(rng.Uint32())
			}
			tensors = append(tensors, Tensor{Name: info.Name, DType: info.DType, Shape: info.Shape, Data: data})
		}
		metadata := map[string]string{"seed": "x", "line\nbreak": "ü"}

		dir := t.TempDir()
		first, second := filepath.Join(dir, "1"), filepath.Join(dir, "2")
		require.NoError(t, WriteFile(first, metadata, tensors...))
		f, err := Open(first)
		require.NoError(t, err)
		require.Empty(t, cmp.Diff(tensors, readAll(t, f)), "seed %d", seed)
		require.Equal(t, metadata, f.Metadata())
		for name, e := range f.header.entries {
			require.Zero(t, (f.dataStart+e.begin)%int64(e.DType.Size()), "seed %d: %q is not aligned", seed, name)
		}
		require.NoError(t, f.Close())

		rng.Shuffle(len(tensors), func(i, j int) { tensors[i], tensors[j] = tensors[j], tensors[i] })
		require.NoError(t, WriteFile(second, metadata, tensors...))
		a, err := os.ReadFile(first)
		require.NoError(t, err)
		b, err := os.ReadFile(second)
		require.NoError(t, err)
		require.Equal(t, a, b, "seed %d", seed)
	}
}

func TestCreateErrors(t *testing.T) {
	for _, test := range []struct {
		name     string
		infos    []Info
		metadata map[string]string
		want     string
	}{
		{"twice", []Info{{Name: "a", DType: F32}, {Name: "a", DType: U8}}, nil, `tensor "a": declared twice`},
		{"reserved", []Info{{Name: "__metadata__", DType: F32}}, nil, "is reserved"},
		{"name not UTF-8", []Info{{Name: "\xff", DType: F32}}, nil, "not valid UTF-8"},
		{"dtype", []Info{{Name: "a", DType: "f32"}}, nil, `tensor "a": unknown dtype "f32"`},
		{"negative", []Info{{Name: "a", DType: F32, Shape: []int{0, -1}}}, nil, "shape [0 -1] has a negative dimension"},
		{"overflow", []Info{{Name: "a", DType: F32, Shape: []int{1 << 40, 1 << 40}}}, nil, "more than 2^62 bytes"},
		{"sum overflows", []Info{{Name: "a", DType: U8, Shape: []int{1 << 62}}, {Name: "b", DType: U8, Shape: []int{1}}}, nil, `tensor "b": 1 bytes after`},
		{"metadata not UTF-8", nil, map[string]string{"k": "\xff"}, "not valid UTF-8"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			_, err := Create(filepath.Join(dir, "m.safetensors"), test.infos, test.metadata)
			var format *FormatError
			require.ErrorAs(t, err, &format)
			require.ErrorContains(t, err, test.want)
			requireFiles(t, dir)
		})
	}
}

func TestWriterErrors(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.safetensors")
	a, b := FromInt32s("a", []int{2}, []int32{1, 2}), FromInt32s("b", nil, []int32{3})
	w, err := Create(path, []Info{a.Info(), b.Info()}, nil)
	require.NoError(t, err)
	require.NoError(t, w.Write(a))
	require.ErrorContains(t, w.Write(a), `tensor "a": written twice`)
	require.ErrorContains(t, w.Write(FromInt32s("c", nil, []int32{1})), `tensor "c": not declared`)
	require.ErrorContains(t, w.Write(FromInt32s("b", []int{1}, []int32{1})), `tensor "b": is I32 [1], but was declared I32 []`)
	require.ErrorContains(t, w.Write(FromFloat32s("b", nil, []float32{1})), `tensor "b": is F32 [], but was declared I32 []`)
	require.ErrorContains(t, w.Write(FromInt32s("b", nil, []int32{1, 2})), `tensor "b": 8 bytes of data, but shape [] of I32 takes 4`)
	require.ErrorContains(t, w.Commit(), `tensor "b": declared but not written (1 of 2 missing)`)
	require.NoError(t, w.Write(b), "a failed commit changes nothing")
	require.NoError(t, w.Commit())
	require.Error(t, w.Commit())
	require.Error(t, w.Write(b))
	require.NoError(t, w.Close())
	requireFiles(t, dir, "m.safetensors")
}

// TestWriteAtomic looks into the directory while a file is replaced: the old one stays until
// Commit, and Close leaves nothing behind.
func TestWriteAtomic(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.safetensors")
	read := func() int32 {
		f, err := Open(path)
		require.NoError(t, err)
		defer f.Close()
		tensor, err := f.Tensor("a")
		require.NoError(t, err)
		values, err := tensor.Int32s()
		require.NoError(t, err)
		return values[0]
	}
	scalar := func(v int32) Tensor { return FromInt32s("a", nil, []int32{v}) }
	require.NoError(t, WriteFile(path, nil, scalar(1)))

	w, err := Create(path, []Info{scalar(2).Info()}, nil)
	require.NoError(t, err)
	require.NoError(t, w.Write(scalar(2)))
	require.EqualValues(t, 1, read())
	require.NoError(t, w.Close())
	require.NoError(t, w.Close())
	require.EqualValues(t, 1, read())
	requireFiles(t, dir, "m.safetensors")

	require.NoError(t, WriteFile(path, nil, scalar(3)))
	require.EqualValues(t, 3, read())
	requireFiles(t, dir, "m.safetensors")

	require.Error(t, WriteFile(path, nil, Tensor{Name: "a", DType: F32}), "no data")
	require.EqualValues(t, 3, read())
	requireFiles(t, dir, "m.safetensors")
}

// A commit that cannot move its file (the path is a directory) says so and leaves no temporary file.
func TestCommitFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "m.safetensors")
	w, err := Create(path, nil, nil)
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(path, 0o755))
	require.ErrorContains(t, w.Commit(), "commit")
	requireFiles(t, dir, "m.safetensors")
}

// An error names the file as the caller does, not by the temporary file beside it.
func TestCreateNamesThePath(t *testing.T) {
	dir := t.TempDir()
	require.EqualError(t, WriteFile(dir, nil), "safetensors: create "+dir+": is a directory")
	require.EqualError(t, WriteFile("/", nil), "safetensors: create /: is a directory")
	missing := filepath.Join(dir, "none", "m.safetensors")
	require.EqualError(t, WriteFile(missing, nil), "safetensors: create "+missing+": no such file or directory")
	requireFiles(t, dir)
}

func requireFiles(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	require.Equal(t, want, got)
}
