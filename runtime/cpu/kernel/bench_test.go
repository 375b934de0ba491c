package kernel

import (
	"fmt"
	goruntime "runtime"
	"slices"
	"testing"
	"time"
)

// The products of one layer of two models, as tokens, inputs and outputs of the linear layers:
// nanoGPT's CPU configuration and its "baby GPT". Also one of GPT-2's with 124M parameters.
var linears = []struct {
	name    string
	m, k, n int
}{
	{"quick/qkv", 768, 128, 384}, {"quick/proj", 768, 128, 128}, {"quick/fc", 768, 128, 512}, {"quick/fcproj", 768, 512, 128}, {"quick/head", 768, 128, 65},
	{"baby/qkv", 3072, 384, 1152}, {"baby/proj", 3072, 384, 384}, {"baby/fc", 3072, 384, 1536}, {"baby/fcproj", 3072, 1536, 384}, {"baby/head", 3072, 384, 65},
	{"gpt2/qkv", 1024, 768, 2304}, {"gpt2/proj", 1024, 768, 768}, {"gpt2/fc", 1024, 768, 3072}, {"gpt2/fcproj", 1024, 3072, 768}, {"gpt2/head", 1024, 768, 50304},
}

func eachSet(b *testing.B, run func(b *testing.B, p *Pool)) {
	for _, set := range instructionSets() {
		for _, threads := range []int{1, 2} {
			if set.name == "portable" && threads > 1 {
				continue
			}
			p := newPool(threads, set)
			b.Run(fmt.Sprintf("%s-%d", set.name, threads), func(b *testing.B) { run(b, p) })
			p.Close()
		}
	}
}

// The peak rate of all cores that the planner's efficiencies refer to.
func BenchmarkPeak(b *testing.B) {
	p := NewPool(goruntime.GOMAXPROCS(0))
	defer p.Close()
	var flop float64
	for b.Loop() {
		flop += MultiplyAdd(p, 256)
	}
	b.ReportMetric(flop/b.Elapsed().Seconds()/1e9, "GFLOP/s")
}

// Every product of a training step, with its share of the peak measured between them: medians of both.
func BenchmarkMatMul(b *testing.B) {
	rnd := random(b, 1)
	for _, l := range linears {
		x, w, y := arena(b, l.m*l.k), arena(b, l.n*l.k), arena(b, l.m*l.n)
		copy(x, rnd.floats(len(x)))
		copy(w, rnd.floats(len(w)))
		for _, f := range []struct {
			name string
			run  func(p *Pool)
		}{
			{"fwd", func(p *Pool) { MatMulNT(p, l.m, l.n, l.k, x, w, y, false) }},
			{"dX", func(p *Pool) { MatMulNN(p, l.m, l.k, l.n, y, w, x, false) }},
			{"dW", func(p *Pool) { MatMulTN(p, l.n, l.k, l.m, y, x, w, false) }},
		} {
			b.Run(l.name+"/"+f.name, func(b *testing.B) {
				eachSet(b, func(b *testing.B, p *Pool) {
					clear(y)
					flop := 2 * float64(l.m) * float64(l.n) * float64(l.k)
					if p.isa.name == "portable" && flop > 1e10 {
						b.Skip("takes minutes")
					}
					// In turns, because the clock of the processor varies from one millisecond to the next.
					var products, peaks []float64
					for b.Loop() {
						start := time.Now()
						f.run(p)
						products = append(products, time.Since(start).Seconds())
						start = time.Now()
						most := MultiplyAdd(p, 32*p.Threads())
						peaks = append(peaks, most/time.Since(start).Seconds())
					}
					slices.Sort(products)
					slices.Sort(peaks)
					each := products[len(products)/2]
					b.ReportMetric(each*1e9, "ns/op")
					b.ReportMetric(flop/each/1e9, "GFLOP/s")
					b.ReportMetric(100*flop/each/peaks[len(peaks)/2], "%peak")
				})
			})
		}
	}
}

// The gradient of a weight from tensors that the cores have just written, each the rows of some
// tokens, as in a step.
func BenchmarkWeightGrad(b *testing.B) {
	rnd := random(b, 4)
	for _, l := range linears[:10] {
		x, dy, dw := arena(b, l.m*l.k), arena(b, l.m*l.n), arena(b, l.n*l.k)
		copy(x, rnd.floats(len(x)))
		copy(dy, rnd.floats(len(dy)))
		b.Run(l.name, func(b *testing.B) {
			eachSet(b, func(b *testing.B, p *Pool) {
				if p.isa.name == "portable" {
					b.Skip("takes minutes")
				}
				var each []float64
				for b.Loop() {
					Scale(p, x, x, 1)
					Scale(p, dy, dy, 1)
					start := time.Now()
					MatMulTN(p, l.n, l.k, l.m, dy, x, dw, false)
					each = append(each, time.Since(start).Seconds()*1e6)
				}
				slices.Sort(each)
				b.ReportMetric(each[len(each)/2], "us")
			})
		})
	}
}

func BenchmarkElementwise(b *testing.B) {
	const rows, cols = 768, 128 // the activations of nanoGPT's CPU configuration
	const n = rows * cols
	rnd := random(b, 2)
	x, y, z, w := rnd.floats(n), rnd.floats(n), rnd.floats(n), rnd.floats(n)
	scale, mean, rstd := rnd.floats(cols), rnd.floats(rows), rnd.floats(rows)
	slab := Slab{[]int{rows, cols}, []int{0, 0}, []int{rows, cols}}
	for _, f := range []struct {
		name string
		run  func(p *Pool)
	}{
		{"Add", func(p *Pool) { Add(p, y, x, z) }},
		{"Sum", func(p *Pool) { Sum(p, x) }},
		{"ColSum", func(p *Pool) { ColSum(p, rows, cols, scale, x, false) }},
		{"exp", func(p *Pool) { p.isa.expMul(y, x, 0, 1) }},
		{"GELU", func(p *Pool) { GELU(p, y, x, false) }},
		{"GELUTanh", func(p *Pool) { GELU(p, y, x, true) }},
		{"GELUGrad", func(p *Pool) { GELUGrad(p, y, z, x, false) }},
		{"Dropout", func(p *Pool) { Dropout(p, y, x, 0.2, MaskKey{}, slab) }},
		{"LayerNorm", func(p *Pool) { LayerNorm(p, rows, cols, y, mean, rstd, x, scale, nil, 1e-5) }},
		{"LayerNormGrad", func(p *Pool) { LayerNormGrad(p, rows, cols, y, scale, nil, z, x, scale, mean, rstd, false) }},
		{"AdamW", func(p *Pool) {
			AdamW(p, x, y, w, z, AdamWArgs{LR: 1e-3, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, BiasCorrection1: 1, BiasCorrection2: 1, GradScale: 1})
		}},
	} {
		b.Run(f.name, func(b *testing.B) {
			eachSet(b, func(b *testing.B, p *Pool) {
				copy(w, z)
				p.isa.mul(w, w, w)
				for b.Loop() {
					f.run(p)
				}
				b.ReportMetric(b.Elapsed().Seconds()*1e9/float64(b.N)/n, "ns/element")
			})
		})
	}
}

func BenchmarkAttention(b *testing.B) {
	rnd := random(b, 3)
	for _, s := range []AttentionShape{{B: 12, T: 64, H: 4, D: 32}, {B: 2, T: 256, H: 6, D: 64}, {B: 2, T: 256, H: 2, D: 64, G: 3}, {B: 1, T: 1024, H: 12, D: 64}} {
		n := s.B * s.T * s.H
		queries, packed := s.group()*n, s.parts()*n*s.D
		qkv, o, lse, dqkv := rnd.floats(packed), make([]float32, queries*s.D), make([]float32, queries), make([]float32, packed)
		for _, rate := range []float64{0, 0.2} {
			drop := DropoutArgs{P: rate, GlobalHeads: s.H}
			// Of the causal half: two products forward, five backward.
			flops := 2 * float64(queries) * float64(s.T+1) / 2 * float64(s.D)
			b.Run(fmt.Sprintf("T%d/G%d/p%v/fwd", s.T, s.group(), rate), func(b *testing.B) {
				eachSet(b, func(b *testing.B, p *Pool) {
					for b.Loop() {
						Attention(p, o, lse, qkv, s, drop)
					}
					b.ReportMetric(2*flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
				})
			})
			b.Run(fmt.Sprintf("T%d/G%d/p%v/grad", s.T, s.group(), rate), func(b *testing.B) {
				eachSet(b, func(b *testing.B, p *Pool) {
					for b.Loop() {
						AttentionGrad(p, dqkv, o, qkv, o, lse, s, drop)
					}
					b.ReportMetric(5*flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
				})
			})
		}
	}
}

// Handing out a job of two chunks that do nothing.
func BenchmarkDispatch(b *testing.B) {
	eachSet(b, func(b *testing.B, p *Pool) {
		for b.Loop() {
			p.run(nothing{}, 2, 1)
		}
	})
}

type nothing struct{}

func (nothing) do(*worker, int, int) {}
