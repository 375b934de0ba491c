package cost

import (
	"math"

	"github.com/autopar/autopar/ir"
)

// This file prices one kernel: the roofline, products by tiles and waves, and attention. program.go determines the
// work of an instruction and calls kernel with it.

// work is what one kernel does at its local shapes.
type work struct {
	node  *ir.Node // nil for a copy
	copy  ir.Op    // the op, if it is a copy
	class kernelClass
	dtype ir.DType
	flops float64
	bytes int64 // of memory traffic

	rows, cols int64   // of the result of a product
	cast       float64 // elements of its operands that are cast for an 8-bit product

	// Of attention: the number of scores without a mask, and of keys per query.
	scores, keys float64
	backward     bool

	block  bool  // a product inside a block
	host   bool  // launched by itself, not in bulk with others
	across int64 // bytes exchanged between cores: see [across]
}

// kernel is the roofline max(arithmetic, traffic) + launch, but at least what the host needs between two launches.
// Explicit conversions keep the compiler from fusing multiply and add, which would give other results on other
// machines. If the ranks lie on several kinds of devices, all wait for the slowest.
func (m *Model) kernel(w *work) Picoseconds {
	if m.kinds != nil {
		var slowest Picoseconds
		for _, k := range m.kinds {
			slowest = max(slowest, k.kernel(w))
		}
		return slowest
	}
	bytes := w.bytes
	if w.node != nil && w.class == vector {
		if bytes = m.software.traffic(w.node, w.bytes); bytes == 0 {
			return 0
		}
	}
	traffic := m.traffic(bytes)
	if w.class == vector && w.flops == 0 {
		traffic /= m.reached(w, 1)
	}
	var arithmetic float64
	switch w.class {
	case product:
		arithmetic = m.product(w)
		if m.fp8(w) {
			arithmetic += float64(m.software.CastBytes*w.cast) / m.memory
		}
	case attention:
		if m.software.Scores {
			return m.launched(w, m.plainAttention(w))
		}
		arithmetic = m.flashAttention(w)
	default:
		arithmetic = w.flops / float64(m.peak*m.reached(w, m.efficiency.Vector))
	}
	return m.launched(w, m.divided(w, max(arithmetic, traffic)))
}

func (m *Model) launched(w *work, t float64) Picoseconds {
	if w.host {
		t = max(t, m.software.Host) + m.software.Sync
	}
	return picoseconds(t + m.launch)
}

// fp8 reports whether a product has its operands cast to 8 bits.
func (m *Model) fp8(w *work) bool { return m.fp8Peak > 0 && w.block }

// rate is the peak rate of products of an element type.
func (m *Model) rate(d ir.DType) float64 {
	if half, ok := m.halfPeak[d]; ok {
		return half
	}
	return m.peak
}

// tile is a block of a product's result that one unit of a device computes. share is its rate relative to that of the
// largest tiles: a smaller tile reads more bytes per operation.
type tile struct {
	rows, cols int64
	share      float64
}

// tiles lists the sizes that libraries of matrix products choose from.
func tiles() [5]tile {
	return [...]tile{{128, 256, 1}, {256, 128, 1}, {128, 128, 0.88}, {128, 64, 0.72}, {64, 64, 0.5}}
}

// product is the time of a product of rows x cols results, each a sum of K terms. If the device states its units,
// tiles are computed in waves of one tile per unit. Each wave takes K steps, and TileFill steps to fill and drain. K
// may be split, which adds writing and reading partial sums. The best tile and split count, as libraries choose them.
//
// The time is monotonic: more rows, columns or terms never take less time, and part of a product never takes longer
// than the product. The search relies on that.
func (m *Model) product(w *work) float64 {
	peak := m.rate(w.dtype)
	eff := m.efficiency.Matmul
	if m.fp8(w) {
		peak, eff = m.fp8Peak, m.efficiency.MatmulF8
	}
	// F / (peak·e·F/(F+half)) is linear in F. What a small product loses is a fixed time, so for a type with a lower
	// rate half is smaller.
	flat := (w.flops + float64(m.efficiency.MatmulHalf*(peak/m.fastest))) / float64(peak*eff)
	if m.units == 0 || w.rows <= 0 || w.cols <= 0 {
		return flat
	}
	terms := w.flops / 2 / float64(w.rows) / float64(w.cols)
	best := math.Inf(1)
	perUnit := float64(peak*eff) / m.units
	for _, t := range tiles() {
		count := float64(ceil(w.rows, t.rows) * ceil(w.cols, t.cols))
		if full := count / m.units * 2 * float64(t.rows*t.cols) * terms / float64(perUnit*t.share); full*(1-1e-9) >= best {
			continue // even if all waves were full, with nothing to fill or drain
		}
		for split := 1.0; split <= 32; split *= 2 {
			partial := 0.0
			if split > 1 {
				if partial = 8 * split * float64(w.rows*w.cols) / m.memory; partial >= best {
					break // more splits have more partial sums
				}
			}
			waves := math.Ceil(count * split / m.units)
			seconds := waves * 2 * float64(t.rows*t.cols) * (terms/split + m.efficiency.TileFill) / float64(perUnit*t.share)
			best = min(best, seconds+partial)
		}
	}
	return best + (flat - w.flops/float64(peak*eff))
}

func ceil(a, b int64) int64 { return (a + b - 1) / b }

// Fused attention reaches less of its rate on short sequences, where blocks on the diagonal are half empty, and with
// narrow heads, whose products are short. Figure 5 of Dao 2023 (FlashAttention-2) has, forward and backward, 88
// TFLOP/s at 512 keys, 140 at 2,048 and 171 at 16,384 with heads of 64, and up to 189 with heads of 128.
const (
	halfKeys = 450 // keys at which half of the rate is lost
	halfHead = 16  // dimensions of a head at which half of the rate is lost
)

// flashAttention is the time of fused attention, which never writes its scores to memory.
func (m *Model) flashAttention(w *work) float64 {
	t := w.flops / float64(m.rate(w.dtype)*m.reached(w, m.efficiency.Attention))
	if w.scores == 0 {
		return t
	}
	if m.units == 0 {
		half := m.efficiency.AttentionHalf
		if w.backward && m.efficiency.AttentionGradHalf > 0 {
			half = m.efficiency.AttentionGradHalf
		}
		return t * (1 + half/w.keys)
	}
	t *= 1 + halfKeys/w.keys
	if s := m.software.Flash; s > 0 { // FlashAttention-1 does not depend on the size of heads
		return t / s
	}
	return t * (1 + halfHead/w.head()) / (1 + halfHead/128.0)
}

// head is the dimension of the heads of attention, from the operations that are counted: 2 forward and 5 backward per
// score and dimension.
func (w *work) head() float64 {
	if w.backward {
		return w.flops / 5 / w.scores
	}
	return w.flops / 2 / w.scores
}

// plainAttention is the time of attention that writes its scores to memory: products of all scores, including those
// that the mask discards, and several passes over the scores in between.
func (m *Model) plainAttention(w *work) float64 {
	// There are two products forward and four backward, over all keys. w.flops counts two and five, over half of the
	// keys.
	flops, passes := 2*w.flops, m.software.ScoreBytes
	if w.backward {
		flops, passes = 2*w.flops/5*4, 1.5*m.software.ScoreBytes
	}
	rate := m.rate(w.dtype)
	if w.scores > 0 && math.Mod(w.head(), 8) != 0 {
		rate = m.peak // rows of a head are no multiple of 16 bytes: without tensor cores
	}
	return flops/float64(rate*m.efficiency.Matmul) + passes*w.scores/m.memory
}
