package kernel

import (
	"fmt"
	"math"
	"testing"
)

// attentionReference computes Attention and AttentionGrad in float64 from their definition.
func attentionReference(qkv, dout []float32, s AttentionShape, drop DropoutArgs) (o, lse, dqkv []float64) {
	o, lse, dqkv = make([]float64, s.B*s.T*s.H*s.D), make([]float64, s.B*s.H*s.T), make([]float64, len(qkv))
	at := func(b, i, part, h int) int { return (((b*s.T+i)*3+part)*s.H + h) * s.D }
	scale := 1 / math.Sqrt(float64(s.D))
	for b := range s.B {
		for h := range s.H {
			for i := range s.T {
				q, out := at(b, i, 0, h), ((b*s.T+i)*s.H+h)*s.D
				p, m := make([]float64, i+1), make([]float64, i+1)
				var total float64
				for j := range p {
					k := at(b, j, 1, h)
					for d := range s.D {
						p[j] += scale * float64(qkv[q+d]) * float64(qkv[k+d])
					}
					p[j] = math.Exp(p[j])
					total += p[j]
				}
				lse[(b*s.H+h)*s.T+i] = math.Log(total)
				var delta float64
				dp := make([]float64, i+1)
				for j := range p {
					p[j] /= total
					m[j] = 1
					if drop.P != 0 {
						index := ((uint64(b+drop.BatchOffset)*uint64(drop.GlobalHeads)+uint64(h+drop.HeadOffset))*uint64(s.T)+uint64(i))*uint64(s.T) + uint64(j)
						m[j] = 0
						if drop.Key.Keep(index, drop.P) {
							m[j] = 1 / (1 - drop.P)
						}
					}
					v := at(b, j, 2, h)
					for d := range s.D {
						o[out+d] += p[j] * m[j] * float64(qkv[v+d])
						dp[j] += m[j] * float64(dout[out+d]) * float64(qkv[v+d])
						dqkv[v+d] += p[j] * m[j] * float64(dout[out+d])
					}
					delta += p[j] * dp[j]
				}
				for j := range p {
					g, k := scale*p[j]*(dp[j]-delta), at(b, j, 1, h)
					for d := range s.D {
						dqkv[q+d] += g * float64(qkv[k+d])
						dqkv[k+d] += g * float64(qkv[q+d])
					}
				}
			}
		}
	}
	return o, lse, dqkv
}

func TestAttention(t *testing.T) {
	rnd := random(t, 61)
	for i, s := range []AttentionShape{{1, 1, 1, 1}, {2, 33, 3, 7}, {1, 64, 2, 32}, {2, 49, 1, 16}, {1, 100, 3, 20}, {1, 300, 1, 33}, {1, 600, 1, 8}, {7, 5, 3, 64}} {
		var drop DropoutArgs
		if i%2 == 1 {
			drop = DropoutArgs{P: 0.2, Key: MaskKey{Seed: 9, Op: 8, Step: 7}, BatchOffset: 3, HeadOffset: 2, GlobalHeads: 6}
		}
		n := s.B * s.T * s.H
		qkv, dout := rnd.floats(3*n*s.D), rnd.floats(n*s.D)
		for j := range qkv { // rising scores make later tiles move the running maximum
			qkv[j] *= 1 + float32(j)/float32(len(qkv))
		}
		o, lse, dqkv := attentionReference(qkv, dout, s, drop)
		check(t, fmt.Sprint(s, drop.P), 3e-5, [][]float64{o, lse, dqkv}, func(p *Pool) [][]float32 {
			o, lse, dqkv := make([]float32, n*s.D), make([]float32, n), rnd.floats(3*n*s.D)
			Attention(p, o, lse, qkv, s, drop)
			AttentionGrad(p, dqkv, dout, qkv, o, lse, s, drop)
			return [][]float32{o, lse, dqkv}
		})
	}
}

// Decoding token by token gives what Attention gives at once.
func TestAttentionDecode(t *testing.T) {
	rnd := random(t, 62)
	s := AttentionShape{B: 2, T: 37, H: 3, D: 20}
	row := s.H * s.D
	qkv := rnd.floats(s.B * s.T * 3 * row)
	want, _, _ := attentionReference(qkv, make([]float32, s.B*s.T*row), s, DropoutArgs{})
	check(t, "AttentionDecode", 1e-5, [][]float64{want}, func(p *Pool) [][]float32 {
		out, cache := make([]float32, s.B*s.T*row), make([]float32, s.B*s.T*2*row)
		for i := range s.T {
			token, o := make([]float32, s.B*3*row), make([]float32, s.B*row)
			for b := range s.B {
				copy(token[b*3*row:(b+1)*3*row], qkv[(b*s.T+i)*3*row:])
			}
			AttentionDecode(p, o, token, cache, s, i)
			for b := range s.B {
				copy(out[(b*s.T+i)*row:], o[b*row:(b+1)*row])
			}
		}
		return [][]float32{out}
	})
}
