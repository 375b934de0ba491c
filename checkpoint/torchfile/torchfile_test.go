package torchfile

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint/safetensors"
)

const oracle = "../../testdata/oracle/torchfile/"

func openOracle(t *testing.T, name string) *File {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(oracle, name))
	require.NoError(t, err)
	require.True(t, Is(bytes.NewReader(text)))
	f, err := New(name, bytes.NewReader(text), int64(len(text)))
	require.NoError(t, err)
	return f
}

// TestFilesOfPyTorch: all files have the same numbers.
func TestFilesOfPyTorch(t *testing.T) {
	want, err := safetensors.Open(oracle + "weights.safetensors")
	require.NoError(t, err)
	defer want.Close()
	weights := slices.DeleteFunc(want.Names(), func(n string) bool { return !strings.HasPrefix(n, "transformer.") })
	for file, test := range map[string]struct {
		drop, add  string // of names
		transposes bool   // the projections
		more       []string
		dtypes     []safetensors.DType // of vectors and matrices
	}{
		"pytorch_model.bin": {"", "", true, []string{"lm_head.weight", "transformer.h.0.attn.bias", "transformer.h.1.attn.bias"}, []safetensors.DType{"F32", "F32"}},
		"half.bin":          {"transformer.", "", true, []string{"h.0.attn.bias", "h.0.attn.masked_bias", "h.1.attn.bias", "h.1.attn.masked_bias"}, []safetensors.DType{"F16", "BF16"}},
		"views.pt":          {"", "", false, nil, []safetensors.DType{"F32", "F32"}},
		"ckpt.pt":           {"", "_orig_mod.", false, []string{"_orig_mod.lm_head.weight"}, []safetensors.DType{"F32", "F32"}},
	} {
		t.Run(file, func(t *testing.T) {
			f := openOracle(t, file)
			names := slices.Clone(test.more)
			for _, name := range weights {
				names = append(names, test.add+strings.TrimPrefix(name, test.drop))
			}
			require.ElementsMatch(t, names, f.Names())
			for _, name := range weights {
				w, err := want.Tensor(name)
				require.NoError(t, err)
				values, err := w.Float32s()
				require.NoError(t, err)
				got, err := f.Tensor(test.add + strings.TrimPrefix(name, test.drop))
				require.NoError(t, err)
				info, err := f.Info(got.Name)
				require.NoError(t, err)
				require.Equal(t, got.Info(), info)
				require.Equal(t, test.dtypes[len(w.Shape)-1], got.DType)
				if test.transposes && strings.Contains(name, ".c_") && len(w.Shape) == 2 {
					slices.Reverse(w.Shape)
					values = transposed(values, w.Shape[0], w.Shape[1])
				}
				require.Equal(t, w.Shape, got.Shape, name)
				there, err := got.Float32s()
				require.NoError(t, err)
				require.Equal(t, values, there, name)
			}
		})
	}
	head, err := openOracle(t, "ckpt.pt").Tensor("_orig_mod.lm_head.weight")
	require.NoError(t, err)
	table, err := openOracle(t, "ckpt.pt").Tensor("_orig_mod.transformer.wte.weight")
	require.NoError(t, err)
	require.Equal(t, table.Data, head.Data)
	mask, err := openOracle(t, "pytorch_model.bin").Tensor("transformer.h.0.attn.bias")
	require.NoError(t, err)
	require.Equal(t, safetensors.Bool, mask.DType)
	require.Equal(t, []int{1, 1, 5, 5}, mask.Shape)
	require.Equal(t, []byte{1, 0, 0, 0, 0, 1, 1}, mask.Data[:7])

	require.Empty(t, openOracle(t, "pytorch_model.bin").Metadata())
	require.Equal(t, map[string]string{"n_layer": "2", "n_head": "2", "n_embd": "6", "block_size": "5", "vocab_size": "11", "bias": "true", "dropout": "0.25"},
		openOracle(t, "ckpt.pt").Metadata())
	_, err = openOracle(t, "ckpt.pt").Tensor("none")
	require.ErrorIs(t, err, safetensors.ErrNotFound)
}

// transposed returns the rows x cols matrix whose transpose is given.
func transposed(x []float32, rows, cols int) []float32 {
	y := make([]float32, len(x))
	for i := range x {
		y[i] = x[i%cols*rows+i/cols]
	}
	return y
}

// Pieces of pickles, in the form of torch.save.
const (
	begin  = "\x80\x02}("
	end    = "u."
	params = "ctorch._utils\n_rebuild_parameter\n"
)

func str(s string) string { return "\x8c" + string([]byte{byte(len(s))}) + s }

func num(n int) string { return "J" + string(binary.LittleEndian.AppendUint32(nil, uint32(n))) }

func tuple(n ...int) string {
	s := "("
	for _, x := range n {
		s += num(x)
	}
	return s + "t"
}

func storage(class, key string, numel int) string {
	return "(" + str("storage") + "ctorch\n" + class + "\n" + str(key) + str("cpu") + num(numel) + "tQ"
}

// view is a tensor that is a part of a storage.
func view(storage string, offset int, shape, strides string) string {
	return "ctorch._utils\n_rebuild_tensor_v2\n(" + storage + num(offset) + shape + strides + "\x89ccollections\nOrderedDict\n)RtR"
}

// one is the pickle of one tensor "w".
func one(tensor string) string { return begin + str("w") + tensor + end }

// entries are the parts of a file whose only storage has twelve bytes, numbered from 0.
func entries(pickle string) map[string]string {
	return map[string]string{"x/data.pkl": pickle, "x/byteorder": "little", "x/data/0": "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b"}
}

func zipped(t testing.TB, method uint16, entries map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		e, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: method})
		require.NoError(t, err)
		_, err = io.WriteString(e, entries[name])
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	return b.Bytes()
}

func open(file []byte) (*File, error) { return New("w.pt", bytes.NewReader(file), int64(len(file))) }

// TestViews: elements are found by offset and strides.
func TestViews(t *testing.T) {
	bytesOf := func(offset int, shape, strides []int) []byte {
		f, err := open(zipped(t, zip.Store, entries(one(view(storage("ByteStorage", "0", 12), offset, tuple(shape...), tuple(strides...))))))
		require.NoError(t, err)
		x, err := f.Tensor("w")
		require.NoError(t, err)
		require.Len(t, x.Shape, len(shape))
		return x.Data
	}
	require.Equal(t, []byte{5}, bytesOf(5, nil, nil))
	require.Equal(t, []byte{11}, bytesOf(11, []int{1, 1}, []int{99, 7}), "strides of one element say nothing")
	require.Equal(t, []byte{7, 8, 9, 10, 11}, bytesOf(7, []int{5}, []int{1}))
	require.Equal(t, []byte{1, 4, 7, 10}, bytesOf(1, []int{4}, []int{3}))
	require.Equal(t, []byte{0, 6, 3, 9, 1, 7, 4, 10, 2, 8, 5, 11}, bytesOf(0, []int{3, 2, 2}, []int{1, 3, 6}))
	require.Equal(t, []byte{0, 1, 2, 1, 2, 3}, bytesOf(0, []int{2, 3}, []int{1, 1}), "overlapping")
	require.Empty(t, bytesOf(12, []int{2, 0, 3}, []int{5, 4, 1}))

	// 16 bits each, in a parameter; in one with an attribute, as those of HuggingFace's models have.
	half := view(storage("HalfStorage", "0", 6), 1, tuple(2, 2), tuple(1, 2))
	for _, param := range []string{
		params + "(" + half + "\x88NtR",
		"ctorch._utils\n_rebuild_parameter_with_state\n(" + half + "\x88N}" + str("_is_hf_initialized") + "\x88stR",
	} {
		f, err := open(zipped(t, zip.Store, entries(one(param))))
		require.NoError(t, err)
		x, err := f.Tensor("w")
		require.NoError(t, err)
		require.Equal(t, safetensors.Tensor{Name: "w", DType: safetensors.F16, Shape: []int{2, 2}, Data: []byte{2, 3, 6, 7, 4, 5, 8, 9}}, x)
	}
}

func TestRefusals(t *testing.T) {
	whole := view(storage("ByteStorage", "0", 12), 0, tuple(12), tuple(1))
	of := func(offset int, shape, strides string) string {
		return view(storage("ByteStorage", "0", 12), offset, shape, strides)
	}
	lazy := func(bits string) string { return strings.Replace(whole, ")RtR", ")R"+bits+"tR", 1) }
	const big = 1<<31 - 1
	for text, want := range map[string]string{
		"": "data.pkl: pickle of 0 bytes is cut short",
		"\x80\x02cos\nsystem\n(" + str("true") + "tR.":       "holds what os.system makes, want a dict of tensors by their names",
		"\x80\x02c__main__\nGPT\n)\x81}b.":                   "holds what __main__.GPT makes, want a dict of tensors",
		"\x80\x02" + whole + ".":                             "holds what torch._utils._rebuild_tensor_v2 makes, want a dict",
		"\x80\x02]K\x01a.":                                   "holds a list, want a dict",
		begin + str("model") + "c__main__\nGPT\n)\x81" + end: "model is what __main__.GPT makes, want a dict",
		begin + "K\x03" + whole + end:                        "has 3 where the name of a tensor belongs",
		one("cos\nsystem\n" + str("true") + "\x85R"):         `tensor "w": is what os.system makes, which is not among what weights files need`,
		one("cnumpy\nload\n)R"):                              "is what numpy.load makes",
		one(params + ")R"):                                   "is what torch._utils._rebuild_parameter makes",
		one(params + "(K\x01tR"):                             "is 1, which is not among",
		one(params + "(" + params + "(" + whole + "tRtR"):    "is what torch._utils._rebuild_parameter makes",
		one("K\x01"): "is 1, which is not",
		one("}"):     "is a dict, which is not",
		one("ctorch._utils\n_rebuild_tensor_v2\n)R"):                       "is what torch._utils._rebuild_tensor_v2 makes",
		one("ctorch._utils\n_rebuild_tensor_v3\n)R"):                       "is what torch._utils._rebuild_tensor_v3 makes",
		one(lazy("}" + str("neg") + "\x88s")):                              "is a conjugate or negative view",
		one(view("N", 0, tuple(1), tuple(1))):                              "is a view of None, want a storage",
		one(view(str("storage")+"Q", 0, tuple(1), tuple(1))):               "is a view of a storage, want a storage",
		one(view(storage("QInt8Storage", "0", 12), 0, tuple(1), tuple(1))): "is in a torch.QInt8Storage, which is not among",
		one(view(strings.Replace(storage("ByteStorage", "0", 12), "ctorch\nByteStorage\n", "K\x01", 1), 0, tuple(1), tuple(1))): "is in a 1, which is not among",
		one(view(strings.Replace(storage("ByteStorage", "0", 12), str("0"), "K\x00", 1), 0, tuple(1), tuple(1))):                "has a storage with key 0 of 12 elements",
		one(view(storage("ByteStorage", "1", 12), 0, tuple(1), tuple(1))):                                                       "data/1 is missing",
		one(view(storage("ByteStorage", "../byteorder", 6), 0, tuple(1), tuple(1))):                                             "data/../byteorder is missing",
		one(view(storage("ByteStorage", "0", 13), 0, tuple(1), tuple(1))):                                                       "data/0 has 12 bytes, but a torch.ByteStorage of 13 elements takes 1 each",
		one(view(storage("ByteStorage", "0", -1), 0, tuple(1), tuple(1))):                                                       "of -1 elements",
		one(view(storage("LongStorage", "0", 1), 0, tuple(1), tuple(1))):                                                        "has 12 bytes, but a torch.LongStorage of 1 elements takes 8 each",
		one(of(-1, tuple(1), tuple(1))):                                                                                         "is no view of its storage of 12 elements",
		one(of(13, tuple(0), tuple(1))):                                                                                         "is no view of its storage",
		one(of(0, tuple(-1), tuple(1))):                                                                                         "is no view of its storage",
		one(of(0, tuple(2), tuple(-1))):                                                                                         "is no view of its storage",
		one(of(0, tuple(1, 1), tuple(1))):                                                                                       "is no view of its storage",
		one(of(0, tuple(make([]int, 65)...), tuple(make([]int, 65)...))):                                                        "is no view of its storage",
		one(of(0, "]", tuple())):                                                                                                "is no view of its storage",
		one(of(0, "("+str("a")+"t", tuple(1))):                                                                                  "is no view of its storage",
		one(of(0, "\x8a\x08\x00\x00\x00\x00\x00\x00\x00\x40\x85", tuple(1))):                                                    "is no view of its storage",
		one(of(12, tuple(), tuple())):                                                                                           "shape [] with strides [] is more than the 0 elements",
		one(of(5, tuple(8), tuple(1))):                                                                                          "shape [8] with strides [1] is more than the 7 elements that its storage has from there on",
		one(of(0, tuple(3, 2), tuple(4, 4))):                                                                                    "is more than the 12 elements",
		one(of(0, tuple(13), tuple(0))):                                                                                         "is more than the 12 elements", // expanded
		one(of(0, tuple(big, big, big, big), tuple(0, 0, 0, 0))):                                                                "is more than the 12 elements",
		one(of(0, tuple(2, 2), tuple(big, big))):                                                                                "is more than the 12 elements",
	} {
		require.NotPanics(t, func() {
			_, err := open(zipped(t, zip.Store, entries(text)))
			require.ErrorContains(t, err, want, "%q", text)
			require.ErrorContains(t, err, "torchfile: w.pt: ")
		})
	}
	_, err := open(zipped(t, zip.Store, entries(one(lazy("N")))))
	require.NoError(t, err)
	_, err = open(zipped(t, zip.Store, entries(one(lazy("}")))))
	require.NoError(t, err)
}

// TestPassedOver: what is not read may be anything.
func TestPassedOver(t *testing.T) {
	whole := view(storage("ByteStorage", "0", 12), 0, tuple(12), tuple(1))
	f, err := open(zipped(t, zip.Store, entries(begin+
		str("model")+"}"+str("_orig_mod.w")+whole+"s"+
		str("model_args")+"}("+str("n_head")+num(3)+str("bias")+"\x89"+str("dropout")+"G\x3f\xd0\x00\x00\x00\x00\x00\x00"+str("x")+"NNNu"+
		str("optimizer")+view(storage("ByteStorage", "9", 99), 7, "N", "N")+
		str("args")+"cargparse\nNamespace\n)\x81}q\x00"+str("self")+"h\x00sb"+
		str("best")+"cnumpy.core.multiarray\nscalar\ncnumpy\ndtype\n"+str("f8")+"\x85RC\x08\x00\x00\x00\x00\x00\x00\xf8\x3f\x86R"+end)))
	require.NoError(t, err)
	require.Equal(t, []string{"_orig_mod.w"}, f.Names())
	require.Equal(t, map[string]string{"n_head": "3", "bias": "false", "dropout": "0.25"}, f.Metadata())
}

func TestDamagedArchives(t *testing.T) {
	whole := one(view(storage("ByteStorage", "0", 12), 0, tuple(12), tuple(1)))
	good := zipped(t, zip.Store, entries(whole))
	_, err := open(good)
	require.NoError(t, err)
	with := func(name, text string) []byte {
		e := entries(whole)
		e[name] = text
		return zipped(t, zip.Store, e)
	}
	var twice bytes.Buffer
	z := zip.NewWriter(&twice)
	for range 2 {
		_, err := z.Create("x/data.pkl")
		require.NoError(t, err)
	}
	require.NoError(t, z.Close())
	size := func(n uint32) []byte { // of the storage, which is the last
		b := bytes.Clone(good)
		at := bytes.LastIndex(b, []byte("PK\x01\x02"))
		binary.LittleEndian.PutUint32(b[at+20:], n)
		binary.LittleEndian.PutUint32(b[at+24:], n)
		return b
	}
	for _, test := range []struct {
		file []byte
		want string
	}{
		{good[:len(good)-1], "is a zip archive that is cut short or damaged"},
		{good[:20], "cut short or damaged"},
		{twice.Bytes(), `has "x/data.pkl" twice`},
		{with("y/data.pkl", ""), "has several data.pkl"},
		{zipped(t, zip.Store, map[string]string{"x.txt": ""}), "is a zip archive without a data.pkl"},
		{with("x/byteorder", "big"), `has byteorder "big": only little-endian files are read; save the weights as safetensors`},
		{with("x/byteorder", strings.Repeat("little", 9)), "byteorder of 54 bytes is more than the limit of 16"},
		{with("x/data.pkl", strings.Repeat("N", maxPickle+1)), "data.pkl of 8388609 bytes is more than the limit of 8388608"},
		{zipped(t, zip.Deflate, entries(whole)), "is compressed or encrypted, which torch.save never does"},
		{size(1 << 30), "reaches beyond the file's"},
	} {
		_, err := open(test.file)
		require.ErrorContains(t, err, test.want)
	}
	cut, err := New("w.pt", bytes.NewReader(good), int64(len(good)))
	require.NoError(t, err)
	cut.data = bytes.NewReader(nil)
	_, err = cut.Tensor("w")
	require.ErrorContains(t, err, `torchfile: w.pt: tensor "w": read 12 bytes at`)

	old := entries(whole) // as before 2.1
	delete(old, "x/byteorder")
	_, err = open(zipped(t, zip.Store, old))
	require.NoError(t, err)
	require.False(t, Is(strings.NewReader("PK")))
}

// zeros is a run of zero bytes that [sparse] stores as a count.
var zeros = make([]byte, 1<<20)

// sparse is a file whose zeros take no memory.
type sparse struct {
	parts []part
	size  int64
}

type part struct {
	at   int64
	text []byte
}

func (s *sparse) Write(p []byte) (int, error) {
	if len(p) > 0 && &p[0] != &zeros[0] {
		s.parts = append(s.parts, part{s.size, bytes.Clone(p)})
	}
	s.size += int64(len(p))
	return len(p), nil
}

func (s *sparse) ReadAt(p []byte, at int64) (int, error) {
	n := int(min(int64(len(p)), s.size-at))
	clear(p[:n])
	for _, part := range s.parts {
		if from := max(at, part.at); from < min(at+int64(n), part.at+int64(len(part.text))) {
			copy(p[from-at:n], part.text[from-part.at:])
		}
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// TestLargeFile: of a file of 5 GiB only the tensors are read, one of them beyond 4 GiB and in a
// storage larger than that.
func TestLargeFile(t *testing.T) {
	const numel = 5 << 28 // of 4 bytes each
	file := &sparse{}
	z := zip.NewWriter(file)
	raw := func(name string, size uint64) io.Writer {
		w, err := z.CreateRaw(&zip.FileHeader{Name: name, CompressedSize64: size, UncompressedSize64: size})
		require.NoError(t, err)
		return w
	}
	w := raw("x/data/0", 4*numel)
	for range 4*numel/len(zeros) - 1 {
		_, err := w.Write(zeros)
		require.NoError(t, err)
	}
	_, err := w.Write(bytes.Repeat([]byte{0, 0, 0x80, 0x3f}, len(zeros)/4))
	require.NoError(t, err)
	text := begin + str("last") + view(storage("FloatStorage", "0", numel), numel-3, tuple(3), tuple(1)) +
		str("other") + view(storage("ByteStorage", "1", 2), 1, tuple(1), tuple(1)) + end
	_, err = io.WriteString(raw("x/data/1", 2), "ab")
	require.NoError(t, err)
	_, err = io.WriteString(raw("x/data.pkl", uint64(len(text))), text)
	require.NoError(t, err)
	require.NoError(t, z.Close())

	f, err := New("large", file, file.size)
	require.NoError(t, err)
	x, err := f.Tensor("last")
	require.NoError(t, err)
	values, err := x.Float32s()
	require.NoError(t, err)
	require.Equal(t, []float32{1, 1, 1}, values)
	x, err = f.Tensor("other")
	require.NoError(t, err)
	require.Equal(t, []byte("b"), x.Data)
}

// readAll reads every tensor and compares it with its description.
func readAll(t *testing.T, file []byte) {
	f, err := open(file)
	if err != nil {
		return
	}
	readTensors(t, f, len(file))
	if training, err := f.Training(); err == nil && training != nil {
		readTensors(t, training.Moments, len(file))
	}
}

func readTensors(t *testing.T, f *File, size int) {
	for _, name := range f.Names() {
		x, err := f.Tensor(name)
		require.NoError(t, err)
		n := x.DType.Size()
		for _, d := range x.Shape {
			n *= d
		}
		require.Len(t, x.Data, n)
		require.LessOrEqual(t, n, size)
	}
}

// FuzzPickle reads any pickle beside a storage.
func FuzzPickle(f *testing.F) {
	f.Add([]byte(one(view(storage("ByteStorage", "0", 12), 0, tuple(3, 2), tuple(1, 6)))))
	z, err := zip.OpenReader(oracle + "views.pt")
	require.NoError(f, err)
	defer z.Close()
	r, err := z.Open("views/data.pkl")
	require.NoError(f, err)
	text, err := io.ReadAll(r)
	require.NoError(f, err)
	f.Add(text)
	f.Add([]byte(begin + str("model") + "}" + str("iter_num") + num(1) + str("optimizer") + "}(" + str("state") + "}" + num(0) + "}(" +
		str("step") + num(1) + str("exp_avg") + view(storage("FloatStorage", "0", 3), 0, tuple(3), tuple(1)) +
		str("exp_avg_sq") + view(storage("FloatStorage", "0", 3), 0, tuple(3), tuple(1)) + "us" +
		str("param_groups") + "](}" + str("params") + "]" + num(0) + "as}" + str("params") + "]seu" + end))
	f.Fuzz(func(t *testing.T, text []byte) { readAll(t, zipped(t, zip.Store, entries(string(text)))) })
}

// FuzzFile reads any file.
func FuzzFile(f *testing.F) {
	f.Add(zipped(f, zip.Store, entries(one(view(storage("ByteStorage", "0", 12), 0, tuple(3, 2), tuple(1, 6))))))
	f.Fuzz(readAll)
}
