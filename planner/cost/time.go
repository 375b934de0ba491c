package cost

import (
	"fmt"
	"math"
	"sync"

	"github.com/autopar/autopar/ir"
)

// Picoseconds is a duration. Differences of a picosecond mean nothing; integers do.
type Picoseconds int64

// Seconds converts to seconds.
func (p Picoseconds) Seconds() float64 { return float64(p) / 1e12 }

func (p Picoseconds) String() string {
	switch s := p.Seconds(); {
	case s >= 1:
		return fmt.Sprintf("%.3f s", s)
	case s >= 1e-3:
		return fmt.Sprintf("%.3f ms", s*1e3)
	default:
		return fmt.Sprintf("%.3f us", s*1e6)
	}
}

// longest bounds one instruction, so that sums over a step do not overflow: 2^52 ps are
// 75 minutes. A slow processor may take minutes for the products of a large micro-batch.
const longest = 1 << 52

// picoseconds rounds up, so that nothing is free.
func picoseconds(seconds float64) Picoseconds {
	return Picoseconds(min(math.Ceil(seconds*1e12), longest))
}

// Breakdown is how a rank spends a step.
type Breakdown struct {
	Compute       Picoseconds // forward and backward kernels
	Communication Picoseconds // collectives and transfers that nothing else runs beside
	Optimizer     Picoseconds // kernels of the update phase: gradient norm, clip, AdamW
	Bubble        Picoseconds // waiting for other ranks
	Overlapped    Picoseconds // collectives beside kernels: no part of the step's time
}

// Total is the whole step, which does not grow with what is overlapped.
func (b Breakdown) Total() Picoseconds { return b.Compute + b.Communication + b.Optimizer + b.Bubble }

// Model prices work on one of a number of ranks of a cluster.
type Model struct {
	cluster    *Cluster
	peak       float64 // FLOP/s, in f32
	fastest    float64 // FLOP/s, in the fastest element type
	halfPeak   map[ir.DType]float64
	memory     float64   // bytes/s reached
	cache      Cache     // of the rank
	near       bool      // all that kernels read and write lies in it
	rungs      []rung    // of the network, innermost first
	together   []float64 // by level, bytes/s a device reaches when all ranks send
	host       Link      // without bandwidth where there is none
	launch     float64
	units      float64   // that tiles of products are dealt to; 0 where they do not count
	fp8Peak    float64   // FLOP/s, of products of 8-bit operands; 0 where there are none
	crowd      float64   // ranks a core of a shared machine; 0 of another
	onePass    bool      // collectives: see [OnePass]
	turn       float64   // seconds that a core takes from a rank that waits to another
	alone      float64   // how much longer one core of the rank takes than all of them; 0 where it has no more than one
	fork       float64   // seconds that a kernel loses which the rank's cores divide
	pack       float64   // seconds a number that a core packs of a product
	remote     float64   // seconds a byte of a kernel's that lies near all cores of the rank; 0 where that does not count
	kernels    []float64 // by op, the share of the peak it reaches, where not 0
	shares     *sync.Map // of [Model.Busy], by crowd
	efficiency Efficiency
	software   Software
	kinds      []*Model // where the ranks have several kinds of devices; nil with one
}

// NewModel returns the prices that each of ranks ranks pays.
func NewModel(c *Cluster, ranks int) *Model {
	m := &Model{
		cluster: c, peak: c.PeakFLOPS("f32", ranks), launch: c.Device.LaunchOverhead, efficiency: c.Device.Efficiency,
		memory:   c.Device.MemoryBandwidth * c.Device.Efficiency.Memory,
		halfPeak: map[ir.DType]float64{}, shares: new(sync.Map),
		units: float64(c.Device.Units), software: c.Software,
	}
	for _, d := range []ir.DType{ir.BF16, ir.F16} {
		m.halfPeak[d] = c.PeakFLOPS(d.String(), ranks)
	}
	if _, ok := c.Device.FLOPS["f8"]; ok && c.Software.FP8 {
		m.fp8Peak = c.PeakFLOPS("f8", ranks)
	}
	if c.Device.Shared {
		m.crowd = float64(ranks) / float64(c.Device.Cores)
		m.launch *= max(1, m.crowd) // a core starts one after the other
	}
	m.network(c, ranks)
	if c.Host != nil {
		m.host = *c.Host
		m.host.Bandwidth *= c.Host.Efficiency
	}
	for dtype := range c.Device.FLOPS {
		m.fastest = max(m.fastest, c.PeakFLOPS(dtype, ranks))
	}
	if c.Device.Cache != nil {
		m.cache = *c.Device.Cache
	}
	for op, share := range c.Device.Kernels {
		if o, err := ir.ParseOp(op); err == nil {
			m.kernels = append(m.kernels, make([]float64, max(0, int(o)+1-len(m.kernels)))...)
			m.kernels[o] = share
		}
	}
	if c.Device.Shared {
		m.share(c)
		m.cache.Memory /= int64(ranks)
		m.cache.Bandwidth /= float64(ranks)
		m.host.Bandwidth /= float64(ranks)
		m.memory /= float64(ranks)
	}
	return m
}

// Overlaps reports whether communication beside kernels costs them nothing. Where
// all ranks share a device, which is to say processors, it takes their time.
func (m *Model) Overlaps() bool { return !m.cluster.Device.Shared }

// kernelClass is which efficiency a kernel reaches.
type kernelClass uint8

const (
	vector kernelClass = iota
	product
	attention
)

func classOf(op ir.Op) kernelClass {
	switch op {
	case ir.OpMatMul:
		return product
	case ir.OpAttention, ir.OpAttentionGrad, ir.OpAttentionKV, ir.OpAttentionKVGrad, ir.OpAttentionDecode:
		return attention
	}
	return vector
}

// traffic is the time in which a kernel reads and writes bytes.
func (m *Model) traffic(bytes int64) float64 {
	if m.cache.Bandwidth > 0 && (m.near || bytes <= m.cache.Memory) {
		return float64(bytes) / m.cache.Bandwidth
	}
	return float64(bytes) / m.memory
}

// unreachable is what a copy to host memory takes where there is no link to it.
const unreachable = 1 << 46

// HostCopy is the time to copy bytes between a device and the memory of its host.
func (m *Model) HostCopy(bytes int64) Picoseconds {
	if m.host.Bandwidth == 0 {
		return unreachable
	}
	return picoseconds(m.host.Latency + float64(bytes)/m.host.Bandwidth)
}
