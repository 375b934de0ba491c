package kernel

import (
	"fmt"
	"math"
)

// AttentionDecode appends the key and value of one new token at position pos of each sequence to cache[B,Tmax,2,H,D] and
// sets o[B,G,H,D] to the attention of its queries over positions 0 to pos. qkv[B,G+2,H,D] is the new token's; shape.T is Tmax.
func AttentionDecode(p *Pool, o, qkv, cache []float32, shape AttentionShape, pos int) {
	shape.check("AttentionDecode", DropoutArgs{})
	n := shape.B * shape.H * shape.D
	checkLen("AttentionDecode", "o", o, shape.group()*n)
	checkLen("AttentionDecode", "qkv", qkv, shape.parts()*n)
	checkLen("AttentionDecode", "cache", cache, 2*n*shape.T)
	if pos < 0 || pos >= shape.T {
		panic(fmt.Sprintf("BUG: kernel.AttentionDecode: position %d in a cache of %d", pos, shape.T))
	}
	p = p.orInline()
	p.task.decode = decodeTask{AttentionShape: shape, o: o, qkv: qkv, cache: cache, pos: pos}
	p.run(&p.task.decode, shape.B*shape.H, rowGrain(2*shape.group()*shape.D*(pos+1), grainLight))
}

type decodeTask struct {
	AttentionShape
	o, qkv, cache []float32
	pos           int
}

func (t *decodeTask) do(w *worker, lo, hi int) {
	scores := w.scratch(t.pos + 1)
	scale := float32(1 / math.Sqrt(float64(t.D)))
	for u := lo; u < hi; u++ {
		b, h, group := u/t.H, u%t.H, t.group()
		part := func(which int) []float32 {
			at := ((b*t.parts()+which)*t.H + h) * t.D
			return t.qkv[at : at+t.D]
		}
		cached := func(j, which int) []float32 {
			at := (((b*t.T+j)*2+which)*t.H + h) * t.D
			return t.cache[at : at+t.D]
		}
		copy(cached(t.pos, 0), part(group))
		copy(cached(t.pos, 1), part(group+1))
		for g := range group {
			for j := range scores {
				scores[j] = w.isa.dot(part(g), cached(j, 0))
			}
			total := w.isa.expSum(scores, scores, scale, scale*w.isa.maxOf(scores))
			out := t.o[((b*group+g)*t.H+h)*t.D:][:t.D]
			clear(out)
			for j, s := range scores {
				w.isa.axpy(out, cached(j, 1), s/total)
			}
		}
	}
}
