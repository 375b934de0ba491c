package kernel

import (
	"math"
	"testing"
)

// perSequence is an operation on a batch of sequences of T positions that treats each sequence
// independently.
type perSequence struct {
	name    string
	in, out []int // elements per sequence
	// run works on n sequences of the batch, of which first is the first.
	run func(p *Pool, first, n int, in, out [][]float32)
}

// perSequenceOps are the operations of the forward and backward pass except sums over the batch,
// with width C, F and V columns, and H heads of D elements.
func perSequenceOps(T, C, F, V, H, D int, weights [][]float32, ids []int32) []perSequence {
	drop := func(first int) DropoutArgs {
		return DropoutArgs{P: 0.2, Key: MaskKey{Seed: 1, Op: 2, Step: 3}, BatchOffset: first, GlobalHeads: H}
	}
	of := func(first, n int) []int32 { return ids[first*T : (first+n)*T] }
	heads := func(n int) AttentionShape { return AttentionShape{B: n, T: T, H: H, D: D} }
	return []perSequence{
		{"MatMulNT", []int{T * C}, []int{T * F}, func(p *Pool, _, n int, in, out [][]float32) {
			MatMulNT(p, n*T, F, C, in[0], weights[0], out[0], false)
		}},
		{"MatMulNN", []int{T * F}, []int{T * C}, func(p *Pool, _, n int, in, out [][]float32) {
			MatMulNN(p, n*T, C, F, in[0], weights[0], out[0], false)
		}},
		{"Embedding", nil, []int{T * C}, func(p *Pool, first, n int, _, out [][]float32) {
			Embedding(p, C, out[0], weights[2], of(first, n), 0)
		}},
		{"Add", []int{T * C, T * C}, []int{T * C}, func(p *Pool, _, _ int, in, out [][]float32) { Add(p, out[0], in[0], in[1]) }},
		{"AddBias", []int{T * C}, []int{T * C}, func(p *Pool, _, n int, in, out [][]float32) {
			AddBias(p, n*T, C, out[0], in[0], weights[1][:C])
		}},
		{"LayerNorm", []int{T * C}, []int{T * C, T, T}, func(p *Pool, _, n int, in, out [][]float32) {
			LayerNorm(p, n*T, C, out[0], out[1], out[2], in[0], weights[1][:C], weights[1][C:2*C], 1e-5)
		}},
		{"LayerNormGrad", []int{T * C, T * C, T, T}, []int{T * C}, func(p *Pool, _, n int, in, out [][]float32) {
			LayerNormGrad(p, n*T, C, out[0], make([]float32, C), make([]float32, C), in[0], in[1], weights[1][:C], in[2], in[3], false)
		}},
		{"GELU", []int{T * F}, []int{T * F}, func(p *Pool, _, _ int, in, out [][]float32) { GELU(p, out[0], in[0], false) }},
		{"GELU tanh", []int{T * F}, []int{T * F}, func(p *Pool, _, _ int, in, out [][]float32) { GELU(p, out[0], in[0], true) }},
		{"GELUGrad", []int{T * F, T * F}, []int{T * F}, func(p *Pool, _, _ int, in, out [][]float32) { GELUGrad(p, out[0], in[0], in[1], false) }},
		{"GELUGrad tanh", []int{T * F, T * F}, []int{T * F}, func(p *Pool, _, _ int, in, out [][]float32) { GELUGrad(p, out[0], in[0], in[1], true) }},
		{"Dropout", []int{T * C}, []int{T * C}, func(p *Pool, first, n int, in, out [][]float32) {
			slab := Slab{Global: []int{100, T, C}, Offset: []int{first, 0, 0}, Local: []int{n, T, C}}
			Dropout(p, out[0], in[0], 0.2, MaskKey{Seed: 4, Op: 5, Step: 6}, slab)
		}},
		{"Attention", []int{3 * T * H * D}, []int{T * H * D, T * H}, func(p *Pool, first, n int, in, out [][]float32) {
			Attention(p, out[0], out[1], in[0], heads(n), drop(first))
		}},
		{"AttentionGrad", []int{T * H * D, 3 * T * H * D, T * H * D, T * H}, []int{3 * T * H * D}, func(p *Pool, first, n int, in, out [][]float32) {
			AttentionGrad(p, out[0], in[0], in[1], in[2], in[3], heads(n), drop(first))
		}},
		{"cross-entropy", []int{T * V}, []int{T, T, T, T, T * V}, func(p *Pool, first, n int, in, out [][]float32) {
			top, sum, pick, nll, dx := out[0], out[1], out[2], out[3], out[4]
			RowMax(p, n*T, V, top, in[0])
			RowSumExp(p, n*T, V, sum, in[0], top)
			RowPick(p, n*T, V, pick, in[0], of(first, n), 0)
			NLL(p, nll, top, sum, pick, of(first, n))
			CrossEntropyGrad(p, n*T, V, dx, in[0], top, sum, of(first, n), 0, nll)
		}},
	}
}

// A sequence has the same bits alone as in a batch, at any place in it, which train.reproducible
// relies on. Sequences have at least 4 positions, because MatMulNT treats up to dotRows rows
// differently.
func TestSequencesAlone(t *testing.T) {
	const batch = 7
	rnd := random(t, 91)
	for _, T := range []int{dotRows + 1, 5, 19, 50} {
		const C, F, V, H, D = 40, 161, 65, 5, 8
		weights := [][]float32{rnd.floats(F * C), rnd.floats(2 * C), rnd.floats(V * C)}
		for _, op := range perSequenceOps(T, C, F, V, H, D, weights, rnd.ids(batch*T, 0, V)) {
			in := make([][]float32, len(op.in))
			for i, n := range op.in {
				in[i] = rnd.floats(batch * n)
			}
			for _, set := range instructionSets() {
				for _, threads := range []int{1, 3} {
					p := newPool(threads, set)
					want := op.on(p, 0, batch, in)
					for at := 0; at < batch; {
						n := min(1+at%3, batch-at) // 1, 2 and 3 sequences together
						for i, got := range op.on(p, at, n, in) {
							for j, x := range got {
								if w := want[i][at*op.out[i]+j]; math.Float32bits(x) != math.Float32bits(w) {
									t.Fatalf("%s %s, T %d, %d threads: result %d, element %d of sequences %d to %d: %v, in the batch %v",
										set.name, op.name, T, threads, i, j, at, at+n-1, x, w)
								}
							}
						}
						at += n
					}
					p.Close()
				}
			}
		}
	}
}

// on runs the operation on some sequences of the batch.
func (op *perSequence) on(p *Pool, first, n int, batch [][]float32) [][]float32 {
	in, out := make([][]float32, len(op.in)), make([][]float32, len(op.out))
	for i, size := range op.in {
		in[i] = batch[i][first*size : (first+n)*size]
	}
	for i, size := range op.out {
		out[i] = make([]float32, n*size)
	}
	op.run(p, first, n, in, out)
	return out
}
