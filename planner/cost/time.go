package cost

import (
	"fmt"
	"math"
	"sync"

	"github.com/autopar/autopar/ir"
)

// This file defines Model, the prices that depend only on the cluster and the number of ranks, not on a
// program: peak rates, bandwidths and the network, divided by the ranks where these share one machine.
// kernel.go prices a kernel with it, topology.go a collective, and program.go the instructions of a compiled
// program.

// Picoseconds is a duration. It is an integer so that sums are exact; a difference of one picosecond means
// nothing.
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

// longest bounds the time of one instruction, so that sums over a step do not overflow: 2^58 ps are 80 hours.
// A slow processor may take hours for the products of a large micro-batch, or the attention of a long sequence. What would
// take longer counts as less than it takes, so that steps which may have it are refused before (priceable in package planner).
const longest = 1 << 58

// picoseconds rounds up, so that no work is free.
func picoseconds(seconds float64) Picoseconds {
	return Picoseconds(min(math.Ceil(seconds*1e12), longest))
}

// Breakdown divides the step of one rank by what the rank does.
type Breakdown struct {
	Compute       Picoseconds // forward and backward kernels
	Communication Picoseconds // collectives and transfers with no kernel beside them
	Optimizer     Picoseconds // kernels of the update phase: gradient norm, clip, AdamW
	Bubble        Picoseconds // waiting for other ranks
	Overlapped    Picoseconds // collectives beside kernels: not part of the step's time
}

// Total is the time of the whole step. Overlapped is not part of it.
func (b Breakdown) Total() Picoseconds { return b.Compute + b.Communication + b.Optimizer + b.Bubble }

// Model prices the work of one rank in a job of a given number of ranks on a cluster.
type Model struct {
	cluster      *Cluster
	peak         float64 // FLOP/s of the rank, in f32
	fastest      float64 // FLOP/s of the rank, in its fastest element type
	halfPeak     map[ir.DType]float64
	memory       float64   // bytes/s that kernels reach
	cache        Cache     // the rank's share of the cache
	near         bool      // price kernels as if all they read and write lay in the cache: see [Program.Near]
	rungs        []rung    // levels of the network, innermost first
	together     []float64 // by level, bytes/s that a device reaches when all ranks send
	host         Link      // between device and host memory; without bandwidth if the cluster states none
	launch       float64
	units        float64   // of the device, which compute tiles of a product in parallel; 0 if unknown
	fp8Peak      float64   // FLOP/s of products of 8-bit operands; 0 if there are none
	ranksPerCore float64   // ranks per core of a shared machine; 0 if the machine is not shared
	onePass      bool      // collectives go through shared memory: see [OnePass]
	turn         float64   // seconds to hand a core from a waiting rank to another: see [Device.Turn]
	alone        float64   // time on one core of the rank divided by time on all of them; 0 if it has at most one core
	fork         float64   // seconds lost by a kernel that is divided over the rank's cores
	pack         float64   // seconds per number that a core packs for a product
	remote       float64   // seconds per byte that a kernel reads from the caches of the rank's other cores; 0 if that does not count
	kernels      []float64 // by op, the share of the peak rate that it reaches; 0 means that Efficiency applies
	shares       *sync.Map // results of [Model.Busy], by busyPipeline
	efficiency   Efficiency
	software     Software
	kinds        []*Model // one per kind of device that the ranks lie on; nil if there is one kind
}

// NewModel returns the prices for one of the given number of ranks of a cluster.
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
		m.ranksPerCore = float64(ranks) / float64(c.Device.Cores)
		m.launch *= max(1, m.ranksPerCore) // ranks that share a core start their kernels one after the other
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

// Overlaps reports whether communication runs beside kernels. Where ranks share processors it takes processor time.
func (m *Model) Overlaps() bool { return !m.cluster.Device.Shared }

// Slows is by how much a collective that takes a time delays the kernels beside it. If the ranks lie on several kinds
// of devices, all wait for the one that it delays most.
func (m *Model) Slows(collective Picoseconds) (most Picoseconds) {
	for _, k := range m.kinds {
		most = max(most, k.Slows(collective))
	}
	if m.kinds != nil || m.efficiency.Beside == 0 || !m.Overlaps() {
		return most
	}
	return Picoseconds((1 - m.efficiency.Beside) * float64(collective))
}

// kernelClass selects the efficiency that applies to a kernel.
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

// traffic is the time, in seconds, to read and write bytes in the cache if they fit there, else in memory.
func (m *Model) traffic(bytes int64) float64 {
	if m.cache.Bandwidth > 0 && (m.near || bytes <= m.cache.Memory) {
		return float64(bytes) / m.cache.Bandwidth
	}
	return float64(bytes) / m.memory
}

// unreachable is the time of a copy to host memory if the cluster states no link to it.
const unreachable = 1 << 46

// HostCopy is the time to copy bytes between a device and the memory of its host.
func (m *Model) HostCopy(bytes int64) Picoseconds {
	if m.host.Bandwidth == 0 {
		return unreachable
	}
	return picoseconds(m.host.Latency + float64(bytes)/m.host.Bandwidth)
}
