package data

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func writeBin(t testing.TB, path string, ids ...uint16) {
	b := []byte{}
	for _, id := range ids {
		b = binary.LittleEndian.AppendUint16(b, id)
	}
	require.NoError(t, os.WriteFile(path, b, 0o644))
}

// counting returns the ids 0 to n-1.
func counting(n int) []uint16 {
	ids := make([]uint16, n)
	for i := range ids {
		ids[i] = uint16(i)
	}
	return ids
}

func TestBinsFill(t *testing.T) {
	dir := t.TempDir()
	writeBin(t, filepath.Join(dir, TrainFile), counting(65)...)
	writeBin(t, filepath.Join(dir, ValFile), counting(34)...)
	bins, err := OpenBins(dir, BinsOptions{BlockSize: 33})
	require.NoError(t, err)
	defer bins.Close()
	require.Equal(t, []int{65, 34, defaultVocab}, []int{bins.Train.Tokens(), bins.Val.Tokens(), bins.VocabSize})

	ids, targets := make([]int32, 2*33), make([]int32, 2*33)
	require.NoError(t, bins.Train.Fill(ids, targets, []int{31, 0}))
	for i := range 33 {
		require.Equal(t, []int32{int32(31 + i), int32(32 + i)}, []int32{ids[i], targets[i]})
		require.Equal(t, []int32{int32(i), int32(1 + i)}, []int32{ids[33+i], targets[33+i]})
	}
	require.NoError(t, bins.Train.Fill(nil, nil, nil), "a rank without rows")
	require.PanicsWithValue(t, "BUG: data: start 32 in "+bins.Train.path+" of 65 tokens, block_size 33", func() {
		bins.Train.Fill(ids[:33], targets[:33], []int{32})
	})

	// The file is cut, or an id damaged, after it was opened.
	writeBin(t, bins.Train.path, append(counting(6), 50304, 0, 0)...)
	err = bins.Train.Fill(ids[:33], targets[:33], []int{0})
	require.EqualError(t, err, "data: "+bins.Train.path+": ends at byte 18, but had 130 bytes when it was opened")
	small := *bins.Train
	small.blockSize = 7
	err = small.Fill(ids[:7], targets[:7], []int{1})
	require.EqualError(t, err, "data: "+bins.Train.path+": id 50304 at byte 12 is not below vocab_size 50304")
}

// Ids of a vocabulary that does not fit uint16 have four bytes, those of the largest that does two.
func TestWideBins(t *testing.T) {
	const vocab, block = 128256, 3
	dir := t.TempDir()
	wide := func(ids ...uint32) (b []byte) {
		for _, id := range ids {
			b = binary.LittleEndian.AppendUint32(b, id)
		}
		return b
	}
	write := func(name string, content []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o644))
	}
	write(TrainFile, wide(1, 128255, 65536, 2, 65535, 0))
	write(ValFile, wide(70000, 70001, 70002, 70003))
	write(MetaFile, []byte("\x80\x02}X\x0a\x00\x00\x00vocab_sizeJ\x00\xf5\x01\x00s."))
	for _, size := range []int{vocab, 0} { // of the model, or of meta.pkl
		bins, err := OpenBins(dir, BinsOptions{BlockSize: block, VocabSize: size})
		require.NoError(t, err)
		require.Equal(t, []int{6, 4, vocab}, []int{bins.Train.Tokens(), bins.Val.Tokens(), bins.VocabSize})
		ids, targets := make([]int32, 2*block), make([]int32, 2*block)
		require.NoError(t, bins.Train.Fill(ids, targets, []int{2, 0}))
		require.Equal(t, []int32{65536, 2, 65535, 1, 128255, 65536}, ids)
		require.Equal(t, []int32{2, 65535, 0, 128255, 65536, 2}, targets)
		write(TrainFile, wide(1, 2, 3, 128256, 5, 6))
		require.EqualError(t, bins.Train.Fill(ids, targets, []int{1, 2}), "data: "+bins.Train.path+
			": id 128256 at byte 12 is not below vocab_size 128256 (ids have 4 bytes, as vocab_size 128256 is more than 65536)")
		write(TrainFile, wide(1, 128255, 65536, 2, 65535, 0))
		require.NoError(t, bins.Close())
	}

	// Bins of two bytes are refused.
	for want, ids := range map[string][]uint16{
		"id 131073 at byte 0 is not below vocab_size 128256 (": {1, 2, 3, 4, 5, 6, 7, 8},
		"18 bytes do not hold a whole number of uint32 ids (":  {1, 2, 3, 4, 5, 6, 7, 8, 9},
	} {
		writeBin(t, filepath.Join(dir, TrainFile), ids...)
		_, err := OpenBins(dir, BinsOptions{BlockSize: block, VocabSize: vocab})
		require.ErrorContains(t, err, want+"ids have 4 bytes, as vocab_size 128256 is more than 65536)")
	}
	writeBin(t, filepath.Join(dir, TrainFile), counting(8)...)
	writeBin(t, filepath.Join(dir, ValFile), counting(8)...)
	bins, err := OpenBins(dir, BinsOptions{BlockSize: block, VocabSize: 65536})
	require.NoError(t, err)
	require.Equal(t, 8, bins.Train.Tokens())
	require.NoError(t, bins.Close())
	_, err = OpenBins(dir, BinsOptions{BlockSize: block, VocabSize: 65537})
	require.ErrorContains(t, err, "id 196610 at byte 4 is not below vocab_size 65537 (ids have 4 bytes")
}

func TestOpenBinsErrors(t *testing.T) {
	meta := appendMeta(nil, strings.Split("abcde", ""))
	for name, c := range map[string]struct {
		train, val string
		opts       BinsOptions
		meta       string
		file, want string
	}{
		"missing":     {"", "aabbcc", BinsOptions{BlockSize: 2}, "", TrainFile, "cannot open (`autopar data prepare` writes it): no such file or directory"},
		"odd":         {"aabbccd", "aabbcc", BinsOptions{BlockSize: 2}, "", TrainFile, "7 bytes do not hold a whole number of uint16 ids: the file is cut short or is not a bin"},
		"short":       {"aabbcc", "aabb", BinsOptions{BlockSize: 2}, "", ValFile, "2 ids are too few for block_size 2, which needs at least 3"},
		"id of meta":  {"\x04\x00\x04\x00\x04\x00", "\x00\x00\x01\x00\x05\x00", BinsOptions{BlockSize: 2}, string(meta), ValFile, "id 5 at byte 4 is not below vocab_size 5"},
		"id of model": {"\x02\x00\x00\x00\x03\x00", "\x00\x00\x01\x00\x02\x00", BinsOptions{BlockSize: 2, VocabSize: 3}, string(meta), TrainFile, "id 3 at byte 4 is not below vocab_size 3"},
		"meta":        {"aabbcc", "aabbcc", BinsOptions{BlockSize: 2}, "x", MetaFile, "not a vocabulary: pickle opcode 0x78 at byte 0: refused: data needs no such thing"},
		"block size":  {"aabbcc", "aabbcc", BinsOptions{}, "", "", "block_size 0 is not positive"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, content := range map[string]string{TrainFile: c.train, ValFile: c.val, MetaFile: c.meta} {
				if content != "" {
					require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(content), 0o644))
				}
			}
			_, err := OpenBins(dir, c.opts)
			var input *InputError
			require.ErrorAs(t, err, &input)
			require.Equal(t, filepath.Join(dir, c.file), input.File)
			require.EqualError(t, err, "data: "+input.File+": "+c.want)
		})
	}
}

// Any file is either refused or can be read to its last window.
func FuzzOpenBins(f *testing.F) {
	f.Add([]byte("\x00\x00\x01\x00\x02\x00"), 2, 3)
	f.Add([]byte("\x00"), 1, 65)
	f.Add([]byte("\x00\x00\x01\x00\x02\x00\x00\x00"), 1, 70000)
	f.Fuzz(func(t *testing.T, content []byte, block, vocab int) {
		dir := t.TempDir()
		for _, name := range []string{TrainFile, ValFile} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), content, 0o644))
		}
		bins, err := OpenBins(dir, BinsOptions{BlockSize: block, VocabSize: vocab})
		if err != nil {
			var input *InputError
			require.ErrorAs(t, err, &input)
			return
		}
		defer bins.Close()
		ids, targets := make([]int32, block), make([]int32, block)
		last := bins.Val.Tokens() - block - 1
		require.NoError(t, bins.Val.Fill(ids, targets, []int{last}))
		id := func(at []byte) int {
			if bins.VocabSize > 1<<16 {
				return int(binary.LittleEndian.Uint32(at))
			}
			return int(binary.LittleEndian.Uint16(at))
		}
		width := len(content) / bins.Val.Tokens()
		require.EqualValues(t, id(content[width*last:]), ids[0])
		require.EqualValues(t, id(content[len(content)-width:]), targets[block-1])
	})
}
