package interp

import (
	"fmt"
	"math"
	"slices"

	"github.com/autopar/autopar/ir"
)

// The parts of a key-value cache.
const (
	key = iota
	value
)

// packed gives access to tensors of shape [B, T, parts, NH, D]. In attention the parts are the queries that
// share a head of keys and values, then one key and one value.
type packed struct {
	Tensor
}

// group returns the number of queries per head of packed queries, keys and values.
func (p packed) group() int { return p.Shape[2] - 2 }

// at returns the index of one element of a part.
func (p packed) at(b, t, part, h, d int) int {
	s := p.Shape
	return (((b*s[1]+t)*s[2]+part)*s[3]+h)*s[4] + d
}

// whole returns packed queries, keys and values of whole sequences, each of which may be several rows of the batch.
func whole(qkv Tensor, attr ir.DropoutAttr) packed {
	if attr.Parts > 0 {
		qkv.Shape = slices.Clone(qkv.Shape)
		qkv.Shape[0] /= attr.Parts
		qkv.Shape[1] *= attr.Parts
	}
	return packed{qkv}
}

// logSum returns the index in lse[B,G,NH,T] of query i of a head. Parts of a sequence are rows of lse, too.
func (p packed) logSum(b, g, h, i int, attr ir.DropoutAttr) int {
	parts := max(1, attr.Parts)
	length := p.Shape[1] / parts
	return (((b*parts+i/length)*p.group()+g)*p.Shape[3]+h)*length + i%length
}

// head returns the vector of a head in one part of a position.
func (p packed) head(b, t, part, h int) []float64 {
	at := p.at(b, t, part, h, 0)
	return p.F[at:][:p.Shape[4]]
}

// dot returns an inner product.
func dot(x, y []float64) float64 {
	s := 0.0
	for d := range x {
		s += x[d] * y[d]
	}
	return s
}

// attention is causal scaled dot-product attention (Vaswani et al., 2017), for each head h of each sequence b,
// and for each of the queries g that share the head (Ainslie et al., "GQA", 2023):
//
//	s_ij = q_i·k_j/√D for j <= i,  lse_i = log Σ_j exp(s_ij)
//	o_i  = Σ_j m_ij exp(s_ij - lse_i) v_j
//
// with the dropout mask m at index (((b G + g) NH + h) T + i) T + j.
func attention(n *ir.Node, in, out []Tensor) error {
	attr := n.Attr.(ir.DropoutAttr)
	qkv := whole(in[0], attr)
	batch, length, group, heads, width := qkv.Shape[0], qkv.Shape[1], qkv.group(), qkv.Shape[3], qkv.Shape[4]
	m := newMask(attr, in[1], in[2])
	o, lse := out[0].F, out[1].F
	scores := make([]float64, length)
	for b := range batch {
		for g := range group {
			for h := range heads {
				for i := range length {
					for j := range i + 1 {
						scores[j] = dot(qkv.head(b, i, g, h), qkv.head(b, j, group+key, h)) / math.Sqrt(float64(width))
					}
					row := ((b*group+g)*heads+h)*length + i
					sum := logSumExp(scores[:i+1])
					lse[qkv.logSum(b, g, h, i, attr)] = sum
					for j := range i + 1 {
						p := math.Exp(scores[j]-sum) * m.at(row*length+j)
						to := o[(((b*length+i)*group+g)*heads+h)*width:]
						for d, v := range qkv.head(b, j, group+value, h) {
							to[d] += p * v
						}
					}
				}
			}
		}
	}
	return nil
}

// attentionGrad recomputes the probabilities from lse, as FlashAttention does (Dao et al., 2022, algorithm 4).
// With p_ij = exp(s_ij - lse_i), for each query, where dv and dk are also summed over the queries that share
// the head,
//
//	dv_j  = Σ_i m_ij p_ij do_i
//	ds_ij = p_ij (m_ij do_i·v_j - do_i·o_i)
//	dq_i  = Σ_j ds_ij k_j/√D,  dk_j = Σ_i ds_ij q_i/√D
func attentionGrad(n *ir.Node, in, out []Tensor) error {
	attr := n.Attr.(ir.DropoutAttr)
	do, qkv, o, lse := in[0].F, whole(in[1], attr), in[2].F, in[3].F
	batch, length, group, heads, width := qkv.Shape[0], qkv.Shape[1], qkv.group(), qkv.Shape[3], qkv.Shape[4]
	m := newMask(attr, in[4], in[5])
	scale := 1 / math.Sqrt(float64(width))
	dqkv := whole(out[0], attr)
	for b := range batch {
		for g := range group {
			for h := range heads {
				for i := range length {
					row := ((b*group+g)*heads+h)*length + i
					at := (((b*length+i)*group+g)*heads + h) * width // of do_i and o_i
					do, q, dq := do[at:][:width], qkv.head(b, i, g, h), dqkv.head(b, i, g, h)
					doDotO, sum := dot(do, o[at:]), lse[qkv.logSum(b, g, h, i, attr)]
					for j := range i + 1 {
						k, v := qkv.head(b, j, group+key, h), qkv.head(b, j, group+value, h)
						dk, dv := dqkv.head(b, j, group+key, h), dqkv.head(b, j, group+value, h)
						p := math.Exp(dot(q, k)*scale - sum)
						mij := m.at(row*length + j)
						ds := p * (mij*dot(do, v) - doDotO)
						for d := range width {
							dq[d] += ds * k[d] * scale
							dk[d] += ds * q[d] * scale
							dv[d] += mij * p * do[d]
						}
					}
				}
			}
		}
	}
	return nil
}

// attentionDecode is attention of one position without dropout, for sampling. next is the cache with the new
// key and value at pos, and o attends to positions 0 to pos of it.
func attentionDecode(_ *ir.Node, in, out []Tensor) error {
	qkv, cache, pos := packed{in[0]}, packed{in[1]}, int(in[2].I[0])
	batch, length, group, heads, width := cache.Shape[0], cache.Shape[1], qkv.group(), cache.Shape[3], cache.Shape[4]
	if pos < 0 || pos >= length {
		return fmt.Errorf("pos %d is out of range [0, %d)", pos, length)
	}
	next, o := packed{out[1]}, out[0].F
	copy(next.F, cache.F)
	scores := make([]float64, pos+1)
	for b := range batch {
		for h := range heads {
			for d := range width {
				next.F[next.at(b, pos, key, h, d)] = qkv.F[qkv.at(b, 0, group+key, h, d)]
				next.F[next.at(b, pos, value, h, d)] = qkv.F[qkv.at(b, 0, group+value, h, d)]
			}
			for g := range group {
				for j := range scores {
					scores[j] = 0
					for d := range width {
						scores[j] += qkv.F[qkv.at(b, 0, g, h, d)] * next.F[next.at(b, j, key, h, d)] / math.Sqrt(float64(width))
					}
				}
				lse := logSumExp(scores)
				for j, s := range scores {
					for d := range width {
						o[((b*group+g)*heads+h)*width+d] += math.Exp(s-lse) * next.F[next.at(b, j, value, h, d)]
					}
				}
			}
		}
	}
	return nil
}

// logSumExp returns log Σ exp(x), computed relative to the largest x.
func logSumExp(xs []float64) float64 {
	top := math.Inf(-1)
	for _, x := range xs {
		top = max(top, x)
	}
	s := 0.0
	for _, x := range xs {
		s += math.Exp(x - top)
	}
	return top + math.Log(s)
}
