// Package philox is the counter-based random number generator behind every
// random tensor: initial weights, dropout masks, and the order of the training
// data.
//
// A draw is a function of where it is used, never of what was drawn before. The
// generator is Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011), a keyed bijection of 128-bit counters.
// The key is the run's seed; the counter holds the element's position:
//
//	word 0  index >> 2, low 32 bits     index: row-major position of the element
//	word 1  index >> 34                 in the whole, unsplit tensor
//	word 2  FNV-1a of the op's structural name
//	word 3  training step
//
// and the element takes lane index & 3 of the four output words. So each rank
// can compute the part of a mask it holds, in any order, again after a restart
// or a recomputation, and get the same bits.
package philox

import (
	"fmt"
	"math"
)

// Multipliers and key increments of Philox4x32 (Random123, philox.h).
const (
	mul0 = 0xD2511F53
	mul1 = 0xCD9E8D57
	inc0 = 0x9E3779B9 // golden ratio
	inc1 = 0xBB67AE85 // sqrt(3) - 1

	rounds = 10
)

// Block returns Philox4x32-10 of the counter ctr under the key (key0, key1).
func Block(key0, key1 uint32, ctr [4]uint32) [4]uint32 {
	c0, c1, c2, c3 := ctr[0], ctr[1], ctr[2], ctr[3]
	for range rounds {
		p0 := uint64(mul0) * uint64(c0)
		p1 := uint64(mul1) * uint64(c2)
		c0, c1, c2, c3 = uint32(p1>>32)^c1^key0, uint32(p1), uint32(p0>>32)^c3^key1, uint32(p0)
		key0 += inc0
		key1 += inc1
	}
	return [4]uint32{c0, c1, c2, c3}
}

// OpKey returns the 32-bit FNV-1a hash of an op's structural name, for Key.Op.
func OpKey(name string) uint32 {
	h := uint32(2166136261)
	for i := range len(name) {
		h = (h ^ uint32(name[i])) * 16777619
	}
	return h
}

// Key names one random tensor of a run: the run's seed, the op that draws it
// (see OpKey) and the training step. Its methods take the element's index in
// the whole tensor. Two keys that differ in any field give independent draws.
type Key struct {
	Seed uint64
	Op   uint32
	Step uint32
}

// Block returns the four words shared by elements 4*n to 4*n+3.
func (k Key) Block(n uint64) [4]uint32 {
	return Block(uint32(k.Seed), uint32(k.Seed>>32), [4]uint32{uint32(n), uint32(n >> 32), k.Op, k.Step})
}

// Uint32 returns the 32 uniformly distributed bits of element i.
func (k Key) Uint32(i uint64) uint32 {
	return k.Block(i >> 2)[i&3]
}

// Uniform returns element i of a uniform distribution over [0, 1), a multiple
// of 2^-24 and so exact in float32.
func (k Key) Uniform(i uint64) float32 {
	return float32(k.Uint32(i)>>8) * 0x1p-24
}

// Normal returns element i of a standard normal distribution. Elements 2n and
// 2n+1 are the two values of one Box-Muller transform.
func (k Key) Normal(i uint64) float64 {
	w := k.Block(i >> 2)
	pair := i & 2
	z0, z1 := boxMuller(w[pair], w[pair+1])
	if i&1 == 0 {
		return z0
	}
	return z1
}

// Keep reports whether dropout of probability p keeps element i. The caller
// scales what is kept by 1/(1-p).
func (k Key) Keep(i uint64, p float64) bool {
	return uint64(k.Uint32(i)) >= Threshold(p)
}

// Threshold returns the bound at or above which dropout of probability p keeps
// an element's Uint32: floor(p * 2^32), which for p = 1 exceeds every uint32.
func Threshold(p float64) uint64 {
	if !(p >= 0 && p <= 1) {
		panic(fmt.Sprintf("BUG: philox: dropout probability %v is not in [0, 1]", p))
	}
	return uint64(p * 0x1p32)
}

// FillNormal sets dst[j] to mean + std * Normal(start+j), computed in float64
// and rounded once.
func (k Key) FillNormal(dst []float32, start uint64, mean, std float64) {
	for len(dst) > 0 {
		w := k.Block(start >> 2)
		var block [4]float32
		for pair := 0; pair < 4; pair += 2 {
			z0, z1 := boxMuller(w[pair], w[pair+1])
			// The inner conversions forbid fusing into a multiply-add, which
			// would make the bits depend on the architecture.
			block[pair] = float32(mean + float64(std*z0))
			block[pair+1] = float32(mean + float64(std*z1))
		}
		n := copy(dst, block[start&3:])
		dst = dst[n:]
		start += uint64(n)
	}
}

// boxMuller turns two uniform words into two independent standard normal
// values (Box and Muller, 1958). The +1 keeps the logarithm finite, so the
// result is bounded by sqrt(64 ln 2), about 6.66.
func boxMuller(x, y uint32) (float64, float64) {
	u1 := (float64(x) + 1) * 0x1p-32
	u2 := float64(y) * 0x1p-32
	r := math.Sqrt(-2 * math.Log(u1))
	sin, cos := math.Sincos(2 * math.Pi * u2)
	return r * cos, r * sin
}
