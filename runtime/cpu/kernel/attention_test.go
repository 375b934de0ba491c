package kernel

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
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
		// Where AMX tiles are used: a last block that is partly beyond the end, of positions and of
		// queries, and several of keys.
		{B: 1, T: 260, H: 1, D: 96}, {B: 1, T: 397, H: 2, D: 64}, {B: 1, T: 201, H: 1, D: 128, G: 2},
		{B: 1, T: 129, H: 1, D: 192},
	} {
		var drop DropoutArgs
		if i%2 == 1 {
			drop = DropoutArgs{P: 0.2, Key: MaskKey{Seed: 9, Op: 8, Step: 7}, BatchOffset: 3, HeadOffset: 2, GlobalHeads: 6}
		}
		n := s.B * s.T * s.H
		packed, queries := s.parts()*n*s.D, s.group()*n
		qkv, dout := rnd.floats(packed), rnd.floats(queries*s.D)
		for j := range qkv { // rising scores make later tiles raise the running maximum
			qkv[j] *= 1 + float32(j)/float32(len(qkv))
		}
		o, lse, dqkv := attentionReference(qkv, dout, s, drop)
		checkOn(t, withTiles(), fmt.Sprint(s, drop.P), 3e-5, [][]float64{o, lse, dqkv}, func(p *Pool) [][]float32 {
			o, lse, dqkv := make([]float32, queries*s.D), make([]float32, queries), rnd.floats(packed)
			Attention(p, o, lse, qkv, s, drop)
			AttentionGrad(p, dqkv, dout, qkv, o, lse, s, drop)
			return [][]float32{o, lse, dqkv}
		})
	}
}

// Some query heads of a group attend as they do among all, and the gradients that the parts leave
// add up to the whole.
func TestAttentionOfSomeQueries(t *testing.T) {
	rnd := random(t, 63)
	s := AttentionShape{B: 2, T: 53, H: 3, D: 7, G: 4}
	drop := DropoutArgs{P: 0.2, Key: MaskKey{Seed: 9, Op: 8, Step: 7}, BatchOffset: 3, HeadOffset: 2, GlobalHeads: 6}
	part := s.H * s.D
	qkv, dout := rnd.floats(s.B*s.T*6*part), rnd.floats(s.B*s.T*4*part)
	o, _, dqkv := attentionReference(qkv, dout, s, drop)
	check(t, "some queries", 3e-5, [][]float64{o, dqkv}, func(p *Pool) [][]float32 {
		o, dqkv := make([]float32, len(dout)), make([]float32, len(qkv))
		for first, count := range map[int]int{0: 1, 1: 3} {
			some := s
			some.First, some.Count = first, count
			size := count * part
			one, do, lse := make([]float32, s.B*s.T*size), make([]float32, s.B*s.T*size), make([]float32, s.B*count*s.H*s.T)
			for row := range s.B * s.T {
				copy(do[row*size:][:size], dout[row*4*part+first*part:])
			}
			Attention(p, one, lse, qkv, some, drop)
			for row := range s.B * s.T {
				copy(o[row*4*part+first*part:][:size], one[row*size:])
			}
			term := rnd.floats(len(qkv)) // nothing of this may remain
			AttentionGrad(p, term, do, qkv, one, lse, some, drop)
			AddInto(p, dqkv, term)
		}
		return [][]float32{o, dqkv}
	})
}

// Queries and keys in runs have the results and gradients that they have in order: all keys, and
// the queries of the part.
func TestAttentionOfRuns(t *testing.T) {
	rnd := random(t, 64)
	for _, s := range []AttentionShape{{B: 2, T: 53, H: 3, D: 7, G: 2}, {B: 1, T: 400, H: 2, D: 64}} {
		drop := DropoutArgs{P: 0.2, Key: MaskKey{Seed: 9, Op: 8, Step: 7}, BatchOffset: 3, HeadOffset: 2, GlobalHeads: 6}
		cut := s.T/4 + 1
		where := Context{Queries: []ir.Run{{Pos: cut, Len: cut}, {Row: cut, Pos: 3 * cut, Len: s.T - 3*cut}}}
		for at, run := range []ir.Run{{Pos: 2 * cut, Len: cut}, {Pos: 0, Len: cut}, {Pos: 3 * cut, Len: s.T - 3*cut}, {Pos: cut, Len: cut}} {
			if run.Row = at * cut; at > 2 {
				run.Row = s.T - cut
			}
			where.Keys = append(where.Keys, run)
		}
		G, part, rows := s.group(), s.H*s.D, where.rows()
		qkv, dout := rnd.floats(s.B*s.T*s.parts()*part), make([]float32, s.B*s.T*G*part)
		here, kv, do := make([]float32, s.B*rows*s.parts()*part), make([]float32, s.B*s.T*2*part), rnd.floats(s.B*rows*G*part)
		// each calls f with the row and position of each query or key, in units of rows of the
		// whole batch.
		each := func(runs []ir.Run, rows int, f func(row, pos int)) {
			for b := range s.B {
				for _, run := range runs {
					for i := range run.Len {
						f(b*rows+run.Row+i, b*s.T+run.Pos+i)
					}
				}
			}
		}
		each(where.Queries, rows, func(row, pos int) {
			copy(here[row*s.parts()*part:][:G*part], qkv[pos*s.parts()*part:])
			copy(dout[pos*G*part:][:G*part], do[row*G*part:])
		})
		each(where.Keys, s.T, func(row, pos int) { copy(kv[row*2*part:][:2*part], qkv[(pos*s.parts()+G)*part:]) })
		o, lse, dqkv := attentionReference(qkv, dout, s, drop)
		wantO, wantLSE := make([]float64, len(do)), make([]float64, s.B*G*s.H*rows)
		wantDQ, wantDKV := make([]float64, len(do)), make([]float64, len(kv))
		each(where.Queries, rows, func(row, pos int) {
			copy(wantO[row*G*part:][:G*part], o[pos*G*part:])
			copy(wantDQ[row*G*part:][:G*part], dqkv[pos*s.parts()*part:])
			for head := range G * s.H {
				wantLSE[(row/rows*G*s.H+head)*rows+row%rows] = lse[(pos/s.T*G*s.H+head)*s.T+pos%s.T]
			}
		})
		each(where.Keys, s.T, func(row, pos int) { copy(wantDKV[row*2*part:][:2*part], dqkv[(pos*s.parts()+G)*part:]) })
		checkOn(t, withTiles(), fmt.Sprint("in runs ", s), 3e-5, [][]float64{wantO, wantLSE, wantDQ, wantDKV}, func(p *Pool) [][]float32 {
			o, lse := make([]float32, len(do)), make([]float32, len(wantLSE))
			dq, dkv := rnd.floats(len(do)), rnd.floats(len(kv))
			AttentionKV(p, o, lse, here, kv, s, where, drop)
			AttentionKVGrad(p, dq, dkv, do, here, kv, o, lse, s, where, drop)
			return [][]float32{o, lse, dq, dkv}
		})
	}
}

// Sequences in parts have the bits that they have whole. Only log-sums lie in another order.
func TestAttentionOfParts(t *testing.T) {
	rnd := random(t, 66)
	for _, s := range []AttentionShape{ // tiles of queries end within parts, at their ends, and have several of them
		{B: 2, T: 69, H: 3, D: 7, G: 4, First: 1, Count: 2, Parts: 3}, {B: 1, T: 192, H: 1, D: 20, Parts: 4}, {B: 2, T: 10, H: 1, D: 5, Parts: 10},
		{B: 1, T: 398, H: 2, D: 64, Parts: 2},
	} {
		drop := DropoutArgs{P: 0.2, Key: MaskKey{Seed: 9, Op: 8, Step: 7}, BatchOffset: 3, HeadOffset: 2, GlobalHeads: 6}
		n, group := s.B*s.T*s.H, s.group()
		qkv, dout := rnd.floats(s.parts()*n*s.D), rnd.floats(group*n*s.D)
		for _, set := range withTiles() {
			run := func(s AttentionShape) (o, lse, dqkv []float32) {
				o, lse, dqkv = make([]float32, group*n*s.D), rnd.floats(group*n), rnd.floats(len(qkv))
				p := newPool(2, set)
				defer p.Close()
				Attention(p, o, lse, qkv, s, drop)
				AttentionGrad(p, dqkv, dout, qkv, o, lse, s, drop)
				return o, lse, dqkv
			}
			o, lse, dqkv := run(s)
			whole := s
			whole.Parts = 0
			wantO, wantLSE, wantDQKV := run(whole)
			require.Equal(t, wantO, o, "%s: %v", set.name, s)
			require.Equal(t, wantDQKV, dqkv, "%s: %v", set.name, s)
			length := s.T / s.Parts
			for i, want := range wantLSE {
				b, head, at := i/s.T/s.H/group, i/s.T%(s.H*group), i%s.T
				require.Equal(t, want, lse[((b*s.Parts+at/length)*group*s.H+head)*length+at%length], "%s: %v", set.name, s)
			}
		}
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

// A value that is not finite reaches the results of its own position and of later ones, and of earlier ones only in the
// same tile of a product, where its probability is a zero that it is multiplied by.
func TestAttentionToInfinity(t *testing.T) {
	const D, at = 20, 70
	s := AttentionShape{B: 1, T: 100, H: 1, D: D}
	rnd := random(t, 65)
	qkv := rnd.floats(3 * s.T * D)
	qkv[(3*at+2)*D+3] = float32(math.Inf(1))
	for _, set := range instructionSets() {
		p := newPool(1, set)
		o, lse := make([]float32, s.T*D), make([]float32, s.T)
		Attention(p, o, lse, qkv, s, DropoutArgs{})
		for i := range s.T {
			require.False(t, math.IsNaN(float64(lse[i])) || math.IsInf(float64(lse[i]), 0), "%s: position %d", set.name, i)
			x := o[i*D+3]
			switch {
			case i >= at:
				require.True(t, math.IsInf(float64(x), 1), "%s: position %d: %v", set.name, i, x)
			case i <= at-set.rows:
				require.Less(t, math.Abs(float64(x)), 10., "%s: position %d", set.name, i)
			}
		}
	}
}
