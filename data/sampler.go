package data

import (
	"fmt"
	"math/bits"

	"github.com/autopar/autopar/ir/philox"
)

// SamplerOptions says what to sample from, and how.
type SamplerOptions struct {
	Seed uint64
	// Stream names the sequence of draws: "train", "eval/train" and "eval/val"
	// are independent of each other.
	Stream    string
	Tokens    int // in the split, more than BlockSize
	BlockSize int // tokens in a sequence
	Batch     int // sequences in the global batch
	// EachOnce visits every window of an epoch once, in random order. By default windows are drawn
	// independently, as nanoGPT does.
	EachOnce bool
}

func (o SamplerOptions) validate() error {
	switch {
	case o.BlockSize < 1:
		return fmt.Errorf("data: block_size %d is not positive", o.BlockSize)
	case o.Batch < 1:
		return fmt.Errorf("data: a global batch of %d sequences is not positive", o.Batch)
	case o.Tokens <= o.BlockSize:
		return fmt.Errorf("data: %d tokens are too few for block_size %d", o.Tokens, o.BlockSize)
	}
	return nil
}

// Sampler chooses the sequences of every global batch. It has no state: a batch
// is a function of the options and the step, whatever number of ranks asks for
// it and whatever came before.
type Sampler struct {
	opts    SamplerOptions
	key     philox.Key // of the starts; of an epoch's offset with EachOnce
	shuffle philox.Key // of the order within an epoch
}

// NewSampler returns the sampler of the options.
func NewSampler(opts SamplerOptions) (*Sampler, error) {
	if err := opts.validate(); err != nil {
		return nil, err
	}
	return &Sampler{
		opts:    opts,
		key:     philox.Key{Seed: opts.Seed, Op: philox.OpKey("data/" + opts.Stream)},
		shuffle: philox.Key{Seed: opts.Seed, Op: philox.OpKey("data/" + opts.Stream + "/shuffle")},
	}, nil
}

// Batch returns where the sequences of a step's global batch start, in
// [0, Tokens-BlockSize).
func (s *Sampler) Batch(step int) []int {
	if step < 0 {
		panic(fmt.Sprintf("BUG: data: step %d", step))
	}
	starts := make([]int, s.opts.Batch)
	for row := range starts {
		if s.opts.EachOnce {
			starts[row] = s.window(uint64(step)*uint64(s.opts.Batch) + uint64(row))
		} else {
			starts[row] = below(s.key, step, uint64(row), s.opts.Tokens-s.opts.BlockSize)
		}
	}
	return starts
}

// Windows is the number of sequences in an epoch: the split cut into pieces of
// BlockSize tokens, each followed by at least the one token it predicts last.
func (s *Sampler) Windows() int { return (s.opts.Tokens - 1) / s.opts.BlockSize }

// window returns the start of the i-th sequence since step 0. The windows of an epoch are adjacent.
// Tokens that do not fill a window are left out at both ends: an offset is drawn for each epoch.
func (s *Sampler) window(i uint64) int {
	n := uint64(s.Windows())
	epoch := i / n
	slack := s.opts.Tokens - 1 - s.Windows()*s.opts.BlockSize
	offset := below(s.key, int(epoch), 0, slack+1)
	shuffle := s.shuffle
	shuffle.Step = uint32(epoch)
	return offset + int(permute(shuffle, i%n, n))*s.opts.BlockSize
}

// below returns the i-th of a step's uniform draws from [0, n). The bias is
// below n * 2^-64.
func below(key philox.Key, step int, i uint64, n int) int {
	key.Step = uint32(step)
	x := uint64(key.Uint32(2*i))<<32 | uint64(key.Uint32(2*i+1))
	hi, _ := bits.Mul64(x, uint64(n))
	return int(hi)
}

// permute returns the image of i under a keyed permutation of [0, n): a
// balanced Feistel network with Philox as its round function, on the next even
// number of bits, repeated until the value falls below n (Black and Rogaway,
// "Ciphers with arbitrary finite domains", 2002). Fewer than four repetitions
// are expected.
func permute(key philox.Key, i, n uint64) uint64 {
	const rounds = 8
	half := (bits.Len64(n-1) + 1) / 2
	mask := uint64(1)<<half - 1
	for {
		left, right := i>>half, i&mask
		for round := range uint64(rounds) {
			left, right = right, left^uint64(key.Uint32(round<<32|right))&mask
		}
		if i = left<<half | right; i < n {
			return i
		}
	}
}

// Fill reads the sequences at starts and, as their targets, the same
// shifted by one token. Both slices hold len(starts) * BlockSize values, row by
// row. An error is an *InputError that names the file.
func (s *Split) Fill(ids, targets []int32, starts []int) error {
	n := s.blockSize
	if len(ids) != len(starts)*n || len(targets) != len(ids) {
		panic(fmt.Sprintf("BUG: data: %d ids and %d targets for %d rows of %d tokens", len(ids), len(targets), len(starts), n))
	}
	row, buf := make([]int32, n+1), make([]byte, s.width*(n+1))
	for i, start := range starts {
		if start < 0 || start+n >= s.tokens {
			panic(fmt.Sprintf("BUG: data: start %d in %s of %d tokens, block_size %d", start, s.path, s.tokens, n))
		}
		if err := s.read(row, start, buf); err != nil {
			return err
		}
		copy(ids[i*n:(i+1)*n], row)
		copy(targets[i*n:(i+1)*n], row[1:])
	}
	return nil
}
