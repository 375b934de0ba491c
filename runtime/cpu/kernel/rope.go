package kernel

import (
	"fmt"
	"math"
)

// RoPE sets y[B, T, G+2, H, D] to qkv with queries and keys rotated by rotary position embedding
// (Su et al., "RoFormer", 2021), in the convention of HuggingFace's Llama: elements i and i + D/2
// of a head are a pair, rotated at position p by p * frequency(i) radians, or backwards with inverse.
// Angles are computed in float64; a pair (a, b) is within 1.5 units in the last place of |a|+|b|.
// positions has T elements; D is even. y may be qkv.
func RoPE(p *Pool, y, qkv []float32, positions []int32, shape AttentionShape, frequency func(i int) float64, inverse bool) {
	shape.check("RoPE", DropoutArgs{})
	row := shape.parts() * shape.H * shape.D // of one position
	n := shape.B * shape.T * row
	checkLen("RoPE", "y", y, n)
	checkLen("RoPE", "qkv", qkv, n)
	if len(positions) != shape.T || shape.D%2 != 0 {
		panic(fmt.Sprintf("BUG: kernel.RoPE: %d positions for %d tokens, heads %d wide", len(positions), shape.T, shape.D))
	}
	p = p.orInline()
	p.sums = grow(p.sums, shape.D/2)
	for i := range p.sums {
		p.sums[i] = frequency(i)
		if inverse {
			p.sums[i] = -p.sums[i]
		}
	}
	p.task.rope = ropeTask{AttentionShape: shape, y: y, qkv: qkv, positions: positions, frequencies: p.sums}
	p.run(&p.task.rope, shape.T, rowGrain(shape.B*row, grainLight))
}

type ropeTask struct {
	AttentionShape
	y, qkv      []float32
	positions   []int32
	frequencies []float64 // of each pair, in radians per position
}

// do computes the sines and cosines of a position once, for all sequences and heads.
func (t *ropeTask) do(w *worker, lo, hi int) {
	half, row := t.D/2, t.parts()*t.H*t.D
	turned := row - t.H*t.D // all but the values
	table := w.scratch(t.D)
	cos, sin := table[:half], table[half:]
	for at := lo; at < hi; at++ {
		for i, f := range t.frequencies {
			s, c := math.Sincos(float64(t.positions[at]) * f)
			cos[i], sin[i] = float32(c), float32(s)
		}
		for b := range t.B {
			start := (b*t.T + at) * row
			for head := start; head < start+turned; head += t.D {
				y, x := t.y[head:head+t.D], t.qkv[head:head+t.D]
				w.isa.rotate(y[:half], y[half:], x[:half], x[half:], cos, sin)
			}
			copy(t.y[start+turned:start+row], t.qkv[start+turned:])
		}
	}
}
