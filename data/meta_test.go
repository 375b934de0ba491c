package data

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The files are written by Python: testdata/make_meta.py.
func TestReadMetaOfNanoGPT(t *testing.T) {
	for _, protocol := range []int{2, 3, 4} {
		meta, err := readMeta(fmt.Sprintf("testdata/meta-protocol%d.pkl", protocol))
		require.NoError(t, err)
		require.Equal(t, 10, meta.VocabSize)
		require.Equal(t, "\n !'\\abzé𝄞", strings.Join(meta.Symbols, ""))
	}
}

func TestMetaRoundTrip(t *testing.T) {
	for _, n := range []int{1, 65, 300, 3000, 65536} {
		symbols := make([]string, n)
		for i := range symbols {
			c := rune(i)
			if i >= 0xd800 {
				c += 0x800 // skip the surrogates
			}
			symbols[i] = string(c)
		}
		b := appendMeta(nil, symbols)
		require.LessOrEqual(t, len(b), maxMetaSize)
		meta, err := parseMeta(b)
		require.NoError(t, err)
		require.Equal(t, &Meta{VocabSize: n, Symbols: symbols}, meta)
	}
}

func TestPythonReadsMeta(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip("python3 is not installed")
	}
	path := filepath.Join(t.TempDir(), MetaFile)
	require.NoError(t, os.WriteFile(path, appendMeta(nil, strings.Split("\n aé𝄞", "")), 0o644))
	out, err := exec.Command(python, "-c", "import pickle, sys; print(ascii(pickle.load(open(sys.argv[1], 'rb'))))", path).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, `{'vocab_size': 5, 'itos': {0: '\n', 1: ' ', 2: 'a', 3: '\xe9', 4: '\U0001d11e'}, `+
		`'stoi': {'\n': 0, ' ': 1, 'a': 2, '\xe9': 3, '\U0001d11e': 4}}`+"\n", string(out))
}

func TestMetaWithSizeAlone(t *testing.T) {
	meta, err := parseMeta([]byte("\x80\x02}X\x0a\x00\x00\x00vocab_sizeK\x0cs."))
	require.NoError(t, err)
	require.Equal(t, &Meta{VocabSize: 12}, meta)
}

// TestMetaOfWords: a tokenizer of somebody's own may have symbols of several characters. Its bins are trained on, and its ids decoded.
func TestMetaOfWords(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, MetaFile), appendMeta(nil, []string{"the ", "é", "cat"}), 0o644))
	for _, bin := range []string{TrainFile, ValFile} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, bin), []byte{0, 0, 2, 0, 1, 0}, 0o644))
	}
	bins, err := OpenBins(dir, BinsOptions{BlockSize: 2})
	require.NoError(t, err)
	require.NoError(t, bins.Close())
	require.Equal(t, 3, bins.VocabSize)
	words, err := LoadTokenizer(dir)
	require.NoError(t, err)
	require.Equal(t, "the caté\ufffd", words.Decode([]int{0, 2, 1, 3}))
	ids, err := words.Encode("é")
	require.NoError(t, err)
	require.Equal(t, []int{1}, ids)
	_, err = words.Encode("cat")
	require.ErrorContains(t, err, "character 'c' at byte 0 is not among the 3 symbols")
}

func TestMetaErrors(t *testing.T) {
	ab := appendMeta(nil, strings.Split("ab", ""))
	edit := func(old, new byte, nth int) []byte {
		b := append([]byte(nil), ab...)
		for i := range b {
			if b[i] == old {
				if nth--; nth < 0 {
					b[i] = new
					return b
				}
			}
		}
		panic("not found")
	}
	for name, c := range map[string]struct {
		pickle []byte
		want   string
	}{
		"empty":         {nil, "pickle of 0 bytes is cut short"},
		"cut short":     {ab[:len(ab)-9], "is cut short"},
		"runs code":     {[]byte("cos\nsystem\n(S'true'\ntR."), "pickle opcode 0x53 at byte 12: refused"},
		"names code":    {[]byte("\x80\x02cos\nsystem\n)R."), "the pickle is what os.system makes, not a dict"},
		"itself":        {bytes.Replace(ab, []byte("J\x01\x00\x00\x00uu"), []byte("}q\x00X\x01\x00\x00\x00xh\x00suu"), 1), `but stoi["b"] is a dict`},
		"protocol":      {[]byte("\x80\x09}."), "protocol 9 is not 2 to 5"},
		"not a dict":    {[]byte("\x80\x02K\x01."), "the pickle is 1, not a dict"},
		"no size":       {[]byte("\x80\x02}."), "no integer 'vocab_size'"},
		"huge string":   {[]byte("\x80\x02X\xff\xff\xff\xffa."), "is cut short"},
		"no memo":       {[]byte("\x80\x02}h\x07."), "nothing is stored at index 7"},
		"no mark":       {[]byte("\x80\x02}u."), "no mark on the stack"},
		"too large":     {[]byte("\x80\x02}X\x0a\x00\x00\x00vocab_sizeJ\x01\x00\x00\x01s."), "vocab_size 16777217 is not in [1, 16777216]"},
		"size mismatch": {edit(2, 3, 1), "vocab_size is 3, but itos has 2 entries and stoi 2"},
		"inconsistent":  {edit('b', 'c', 1), `itos[1] is "c", but stoi["c"] is None`},
		"no text":       {bytes.Replace(ab, []byte("X\x01\x00\x00\x00a"), []byte("K\x07"), 1), "itos[0] is 7, not a text"},
		"wrong way":     {bytes.Replace(ab, []byte("J\x01\x00\x00\x00uu"), []byte("J\x00\x00\x00\x00uu"), 1), `itos[1] is "b", but stoi["b"] is 0`},
	} {
		_, err := parseMeta(c.pickle)
		require.ErrorContains(t, err, c.want, name)
	}

	missing := filepath.Join(t.TempDir(), MetaFile)
	_, err := readMeta(missing)
	require.ErrorIs(t, err, fs.ErrNotExist)
	var input *InputError
	require.ErrorAs(t, err, &input)
	require.Equal(t, missing, input.File)
}

// A meta that is accepted must survive being written and read again.
func FuzzParseMeta(f *testing.F) {
	f.Add(appendMeta(nil, strings.Split("\n ab", "")))
	for _, protocol := range []int{2, 3, 4} {
		b, err := os.ReadFile(fmt.Sprintf("testdata/meta-protocol%d.pkl", protocol))
		require.NoError(f, err)
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		meta, err := parseMeta(b)
		if err != nil || meta.Symbols == nil {
			return
		}
		require.Len(t, meta.Symbols, meta.VocabSize)
		again, err := parseMeta(appendMeta(nil, meta.Symbols))
		require.NoError(t, err)
		require.Equal(t, meta, again)
	})
}
