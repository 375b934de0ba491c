package data

import (
	"context"
	"crypto/md5"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/wholefile"
)

// shakespeareForTest returns tiny Shakespeare, or skips the test.
func shakespeareForTest(t *testing.T) Corpus {
	for _, path := range []string{os.Getenv("AUTOPAR_SHAKESPEARE"), filepath.FromSlash("../../shared/data/shakespeare/input.txt")} {
		if b, err := os.ReadFile(path); err == nil {
			require.NoError(t, tinyShakespeare().verify(b), path)
			corpus, err := FileCorpus(path)
			require.NoError(t, err)
			return corpus
		}
	}
	t.Skip("tiny Shakespeare is not here: set AUTOPAR_SHAKESPEARE to its path")
	return Corpus{}
}

// The sums are of the bins that nanoGPT's prepare.py scripts of the two data
// sets write.
func TestPrepareShakespeareAsNanoGPT(t *testing.T) {
	corpus := shakespeareForTest(t)
	for _, c := range []struct {
		encoding           Encoding
		vocab              int
		train, val         int64
		trainMD5, valMD5   string
		modelVocab, blocks int
	}{
		{CharEncoding, 65, 1_003_854, 111_540, "6262d87c65a610df308d8fe3fe690f59", "27e42271dd1f6c5d01c615ee1cd716f7", 65, 256},
		{GPT2Encoding, 50257, 301_966, 36_059, "f6eea82ee7b1600588720fce07669c52", "61250e280189555fae15c630ea9b5c02", 50304, 1024},
	} {
		dir := t.TempDir()
		p, err := Prepare(t.Context(), corpus, c.encoding, dir)
		require.NoError(t, err)
		require.EqualValues(t, 1_115_394, p.Characters)
		require.Equal(t, c.vocab, p.VocabSize)
		require.Equal(t, []int64{c.train, c.val}, []int64{p.TrainTokens, p.ValTokens})
		require.Equal(t, c.trainMD5, md5Of(t, filepath.Join(dir, TrainFile)))
		require.Equal(t, c.valMD5, md5Of(t, filepath.Join(dir, ValFile)))

		bins, err := OpenBins(dir, BinsOptions{BlockSize: c.blocks})
		require.NoError(t, err)
		require.Equal(t, c.modelVocab, bins.VocabSize)
		require.NoError(t, bins.Close())
	}
}

func md5Of(t *testing.T, path string) string {
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	sum := md5.Sum(b)
	return hex.EncodeToString(sum[:])
}

func fileNames(t *testing.T, dir string) []string {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestPrepareCountsCharactersAsPython(t *testing.T) {
	// 12 characters for Python's text mode, in 18 bytes: line ends count once,
	// "é" and "𝄞" once each. int(0.9 * 12) = 10.
	dir := t.TempDir()
	p, err := Prepare(t.Context(), textCorpus("text", "text", []byte("b\r\né\ra𝄞\r\n\nab\r\r")), CharEncoding, dir)
	require.NoError(t, err)
	require.Equal(t, []int64{12, 10, 2}, []int64{p.Characters, p.TrainTokens, p.ValTokens})
	train, err := os.ReadFile(filepath.Join(dir, TrainFile))
	require.NoError(t, err)
	// sorted: \n 0, a 1, b 2, é 3, 𝄞 4
	require.Equal(t, "\x02\x00\x00\x00\x03\x00\x00\x00\x01\x00\x04\x00\x00\x00\x00\x00\x01\x00\x02\x00", string(train))
	val, err := os.ReadFile(filepath.Join(dir, ValFile))
	require.NoError(t, err)
	require.Equal(t, "\x00\x00\x00\x00", string(val))
	require.Equal(t, []string{MetaFile, TrainFile, ValFile}, fileNames(t, dir))
	meta, err := readMeta(filepath.Join(dir, MetaFile))
	require.NoError(t, err)
	require.Equal(t, "\nabé𝄞", strings.Join(meta.Symbols, ""))

	// Other bins in the same place leave no vocabulary of the old ones.
	_, err = Prepare(t.Context(), textCorpus("text", "text", []byte("To be, or not to be")), GPT2Encoding, dir)
	require.NoError(t, err)
	require.Equal(t, []string{TrainFile, ValFile}, fileNames(t, dir))
}

func TestPrepareRefusesBadText(t *testing.T) {
	var many strings.Builder
	for c := rune(0x10000); c <= 0x20000; c++ {
		many.WriteRune(c)
	}
	for text, want := range map[string]string{
		"":             "data: in.txt: the text is empty",
		"é":            "data: in.txt: the text is too short: its one character validates, which leaves nothing to train on",
		"é\r\nab\xffc": "data: in.txt: the byte at offset 6 is not valid UTF-8",
		many.String():  "data: in.txt: 65537 different characters do not fit in uint16 ids",
	} {
		dir := t.TempDir()
		_, err := Prepare(t.Context(), textCorpus("in", "in.txt", []byte(text)), CharEncoding, dir)
		var input *InputError
		require.ErrorAs(t, err, &input)
		require.EqualError(t, err, want)
		require.Empty(t, fileNames(t, dir))
	}
}

func TestPrepareStopsWithoutTrace(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Prepare(ctx, textCorpus("in", "in.txt", []byte("abc")), CharEncoding, dir)
	require.ErrorIs(t, err, context.Canceled)

	// Bad input that only the second pass sees must not leave half a data set.
	_, err = Prepare(t.Context(), textCorpus("in", "in.txt", []byte(strings.Repeat("x", 2*gpt2ChunkLimit))), GPT2Encoding, dir)
	require.ErrorContains(t, err, "without a boundary between words")
	require.Empty(t, fileNames(t, dir))
}

// TestPrepareIsWholeOrNot: if it stops while it renames the files there are no bins, rather than
// one text to train on and another to validate with.
func TestPrepareIsWholeOrNot(t *testing.T) {
	for ends := range 3 {
		dir := t.TempDir()
		_, err := Prepare(t.Context(), textCorpus("old", "old.txt", []byte(strings.Repeat("abc", 99))), CharEncoding, dir)
		require.NoError(t, err)
		var files []*wholefile.File
		for _, name := range []string{MetaFile, TrainFile, ValFile} {
			f, err := wholefile.Create(filepath.Join(dir, name))
			require.NoError(t, err)
			text := make([]byte, 8)
			if name == MetaFile {
				text = appendMeta(nil, strings.Split("xyz", ""))
			}
			_, err = f.Write(text)
			require.NoError(t, err)
			files = append(files, f)
		}
		require.NoError(t, os.Remove(files[ends].Name())) // so that it cannot be named
		require.Error(t, commit(dir, files))
		_, err = OpenBins(dir, BinsOptions{BlockSize: 2})
		require.ErrorContains(t, err, "val.bin: cannot open", "after %d files", ends)
	}
}

func TestNames(t *testing.T) {
	e, err := DatasetEncoding("shakespeare_char")
	require.NoError(t, err)
	require.Equal(t, CharEncoding, e)
	e, err = DatasetEncoding("shakespeare")
	require.NoError(t, err)
	require.Equal(t, GPT2Encoding, e)
	_, err = DatasetEncoding("openwebtext")
	require.ErrorContains(t, err, "data: openwebtext: not a known data set")
	_, err = ParseEncoding("bpe")
	require.EqualError(t, err, "data: bpe: not a tokenizer; want char or gpt2")
}
