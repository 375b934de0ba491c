package kernel

import (
	"fmt"
	"math"
	"testing"
)

// attentionReference computes Attention and AttentionGrad in float64 from their definition.
func attentionReference(qkv, dout []float32, s AttentionShape, drop DropoutArgs) (o, lse, dqkv []float64) {
	G := s.group()
	o, lse, dqkv = make([]float64, s.B*s.T*G*s.H*s.D), make([]float64, s.B*G*s.H*s.T), make([]float64, len(qkv))
	at := func(b, i, part, h int) int { return (((b*s.T+i)*(G+2)+part)*s.H + h) * s.D }
	scale := 1 / math.Sqrt(float64(s.D))
	for unit := range s.B * G * s.H {
		b, g, h := unit/s.H/G, unit/s.H%G, unit%s.H
		for i := range s.T {
			q, out := at(b, i, g, h), (((b*s.T+i)*G+g)*s.H+h)*s.D
			p, m := make([]float64, i+1), make([]float64, i+1)
			var total float64
			for j := range p {
				k := at(b, j, G, h)
				for d := range s.D {
					p[j] += scale * float64(qkv[q+d]) * float64(qkv[k+d])
				}
				p[j] = math.Exp(p[j])
				total += p[j]
			}
			lse[unit*s.T+i] = math.Log(total)
			var delta float64
			dp := make([]float64, i+1)
			for j := range p {
				p[j] /= total
				m[j] = 1
				if drop.P != 0 {
					head := ((b+drop.BatchOffset)*G+g)*drop.GlobalHeads + h + drop.HeadOffset
					m[j] = 0
					if drop.Key.Keep(uint64((head*s.T+i)*s.T+j), drop.P) {
						m[j] = 1 / (1 - drop.P)
					}
				}
				v := at(b, j, G+1, h)
				for d := range s.D {
					o[out+d] += p[j] * m[j] * float64(qkv[v+d])
					dp[j] += m[j] * float64(dout[out+d]) * float64(qkv[v+d])
					dqkv[v+d] += p[j] * m[j] * float64(dout[out+d])
				}
				delta += p[j] * dp[j]
			}
			for j := range p {
				ds, k := scale*p[j]*(dp[j]-delta), at(b, j, G, h)
				for d := range s.D {
					dqkv[q+d] += ds * float64(qkv[k+d])
					dqkv[k+d] += ds * float64(qkv[q+d])
				}
			}
		}
	}
	return o, lse, dqkv
}

func TestAttention(t *testing.T) {
	rnd := random(t, 61)
	for i, s := range []AttentionShape{
		{B: 1, T: 1, H: 1, D: 1}, {B: 2, T: 33, H: 3, D: 7}, {B: 1, T: 64, H: 2, D: 32}, {B: 2, T: 49, H: 1, D: 16},
		{B: 1, T: 100, H: 3, D: 20}, {B: 1, T: 300, H: 1, D: 33}, {B: 1, T: 600, H: 1, D: 8}, {B: 7, T: 5, H: 3, D: 64},
		// Grouped queries, with more tiles of queries than one and of keys.
		{B: 3, T: 7, H: 3, D: 5, G: 2}, {B: 2, T: 33, H: 1, D: 7, G: 5}, {B: 1, T: 100, H: 3, D: 20, G: 3}, {B: 1, T: 300, H: 2, D: 9, G: 2},
	} {
		var drop DropoutArgs
		if i%2 == 1 {
			drop = DropoutArgs{P: 0.2, Key: MaskKey{Seed: 9, Op: 8, Step: 7}, BatchOffset: 3, HeadOffset: 2, GlobalHeads: 6}
		}
		n := s.B * s.T * s.H
		packed, queries := s.parts()*n*s.D, s.group()*n
		qkv, dout := rnd.floats(packed), rnd.floats(queries*s.D)
		for j := range qkv { // rising scores make later tiles move the running maximum
			qkv[j] *= 1 + float32(j)/float32(len(qkv))
		}
		o, lse, dqkv := attentionReference(qkv, dout, s, drop)
		check(t, fmt.Sprint(s, drop.P), 3e-5, [][]float64{o, lse, dqkv}, func(p *Pool) [][]float32 {
			o, lse, dqkv := make([]float32, queries*s.D), make([]float32, queries), rnd.floats(packed)
			Attention(p, o, lse, qkv, s, drop)
			AttentionGrad(p, dqkv, dout, qkv, o, lse, s, drop)
			return [][]float32{o, lse, dqkv}
		})
	}
}

// Decoding token by token gives what Attention gives at once.
func TestAttentionDecode(t *testing.T) {
	rnd := random(t, 62)
	for _, s := range []AttentionShape{{B: 2, T: 37, H: 3, D: 20}, {B: 2, T: 19, H: 3, D: 10, G: 2}, {B: 3, T: 9, H: 1, D: 7, G: 5}} {
		packed, queries, kv := s.parts()*s.H*s.D, s.group()*s.H*s.D, 2*s.H*s.D
		qkv := rnd.floats(s.B * s.T * packed)
		want, _, _ := attentionReference(qkv, make([]float32, s.B*s.T*queries), s, DropoutArgs{})
		check(t, fmt.Sprint("AttentionDecode ", s), 1e-5, [][]float64{want}, func(p *Pool) [][]float32 {
			out, cache := make([]float32, s.B*s.T*queries), make([]float32, s.B*s.T*kv)
			for i := range s.T {
				token, o := make([]float32, s.B*packed), make([]float32, s.B*queries)
				for b := range s.B {
					copy(token[b*packed:(b+1)*packed], qkv[(b*s.T+i)*packed:])
				}
				AttentionDecode(p, o, token, cache, s, i)
				for b := range s.B {
					copy(out[(b*s.T+i)*queries:], o[b*queries:(b+1)*queries])
				}
			}
			return [][]float32{out}
		})
	}
}
