package data

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/autopar/autopar/infile"
)

// BinsOptions says what the bins must fit.
type BinsOptions struct {
	BlockSize int // tokens in a training sequence, at least 1
	// VocabSize of the model. 0 takes the one in meta.pkl, or defaultVocab where
	// there is none.
	VocabSize int
}

// Bins are the open train.bin and val.bin of a data directory.
type Bins struct {
	Train, Val *Split
	VocabSize  int // every id is below it
	Known      int // how many ids meta.pkl knows; 0 if there is none
}

// OpenBins opens the bins in dir and checks them: they hold a whole number of ids, more
// than BlockSize, and ids are below the vocabulary. The check of ids covers
// the first GiB of a file and a sample of the rest; others are checked as they are read. Errors
// are *InputError and name the file and the numbers.
func OpenBins(dir string, opts BinsOptions) (*Bins, error) {
	if opts.BlockSize < 1 {
		return nil, inputErrorf(dir, "block_size %d is not positive", opts.BlockSize)
	}
	if opts.VocabSize < 0 {
		return nil, inputErrorf(dir, "vocab_size %d is negative", opts.VocabSize)
	}
	b := &Bins{VocabSize: opts.VocabSize}
	meta, err := readMeta(filepath.Join(dir, MetaFile))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if meta != nil {
		b.Known = meta.VocabSize
	}
	b.VocabSize = cmp.Or(b.VocabSize, b.Known, defaultVocab)
	if b.Train, err = openSplit(filepath.Join(dir, TrainFile), opts.BlockSize, b.VocabSize); err != nil {
		return nil, err
	}
	if b.Val, err = openSplit(filepath.Join(dir, ValFile), opts.BlockSize, b.VocabSize); err != nil {
		b.Train.f.Close()
		return nil, err
	}
	return b, nil
}

// Close closes the files.
func (b *Bins) Close() error { return errors.Join(b.Train.f.Close(), b.Val.f.Close()) }

// Split is one open bin. Its methods may be called by several goroutines.
type Split struct {
	f         *os.File
	path      string
	tokens    int
	blockSize int
	vocabSize int
	width     int    // bytes of an id
	sum       uint32 // checksum of the ids that openSplit reads: the first GiB, and a sample of the rest
}

// Contents identifies a file by its length and a checksum of all ids in the first GiB and a sample
// of the rest.
func (s *Split) Contents() string { return fmt.Sprintf("%d tokens, CRC-32 %08x", s.tokens, s.sum) }

// Tokens is the number of ids in the file.
func (s *Split) Tokens() int { return s.tokens }

// maxScan is how many bytes openSplit checks; more would delay the start of a run.
const maxScan = 1 << 30

// samples is how many stretches of ids openSplit checks beyond those.
const samples = 256

// idWidth returns how many bytes the ids of a vocabulary have in a bin: those of a uint16, as in nanoGPT's, or of a uint32
// where that is too small.
func idWidth(vocabSize int) int {
	if vocabSize > 1<<16 {
		return 4
	}
	return 2
}

func openSplit(path string, blockSize, vocabSize int) (*Split, error) {
	f, err := infile.Open(path)
	if err != nil {
		return nil, &InputError{File: path, Detail: "cannot open (`autopar data prepare` writes it)", Err: infile.WithoutPath(err)}
	}
	s := &Split{f: f, path: path, blockSize: blockSize, vocabSize: vocabSize, width: idWidth(vocabSize)}
	if err := s.check(); err != nil {
		f.Close()
		return nil, err
	}
	return s, nil
}

func (s *Split) check() error {
	info, err := s.f.Stat()
	if err != nil {
		return &InputError{File: s.path, Detail: "cannot read", Err: infile.WithoutPath(err)}
	}
	if info.Size()%int64(s.width) != 0 {
		return inputErrorf(s.path, "%d bytes do not hold a whole number of uint%d ids%s: the file is cut short or is not a bin", info.Size(), 8*s.width, s.wide())
	}
	s.tokens = int(info.Size() / int64(s.width))
	if s.tokens <= s.blockSize {
		return inputErrorf(s.path, "%d ids are too few for block_size %d, which needs at least %d", s.tokens, s.blockSize, s.blockSize+1)
	}
	ids := make([]int32, 1<<15)
	buf := make([]byte, s.width*len(ids))
	step, scan := len(ids), maxScan/s.width
	for start := 0; start < s.tokens; start += step {
		if start >= scan { // the rest is sampled
			step = max(step, (s.tokens-scan)/samples)
		}
		n := min(len(ids), s.tokens-start)
		if err := s.read(ids[:n], start, buf); err != nil {
			return err
		}
		s.sum = crc32.Update(s.sum, crc32.IEEETable, buf[:s.width*n])
	}
	return nil
}

// wide says in an error why ids have four bytes, or returns "": a bin does not say how wide its ids are.
func (s *Split) wide() string {
	if s.width == 2 {
		return ""
	}
	return fmt.Sprintf(" (ids have 4 bytes, as vocab_size %d is more than 65536)", s.vocabSize)
}

// read reads ids from position start on. buf has the bytes of as many ids.
func (s *Split) read(ids []int32, start int, buf []byte) error {
	buf = buf[:s.width*len(ids)]
	if n, err := s.f.ReadAt(buf, int64(s.width)*int64(start)); n < len(buf) {
		if errors.Is(err, io.EOF) {
			return inputErrorf(s.path, "ends at byte %d, but had %d bytes when it was opened", s.width*start+n, s.width*s.tokens)
		}
		return &InputError{File: s.path, Detail: "cannot read", Err: infile.WithoutPath(err)}
	}
	for i := range ids {
		var id int64
		if at := buf[s.width*i:]; s.width == 2 {
			id = int64(binary.LittleEndian.Uint16(at))
		} else {
			id = int64(binary.LittleEndian.Uint32(at))
		}
		if id >= int64(s.vocabSize) {
			return inputErrorf(s.path, "id %d at byte %d is not below vocab_size %d%s", id, s.width*(start+i), s.vocabSize, s.wide())
		}
		ids[i] = int32(id)
	}
	return nil
}
