// Package profile measures the GPUs of this machine as the CUDA backend uses them, and makes a
// [cost.Cluster] of the results (autopar profile --device cuda).
//
// Events of the GPU time every kernel of training steps of small models by itself, and besides
// additions of growing size, copies from and to the host, collectives of NCCL over all GPUs, and a
// kernel that does next to nothing. The constants of the planner are then chosen so that its own
// prices of these kernels add up to the measured times. A time is the least of a few runs, because
// interference can only add.
//
// profile.go runs the measurements and fits the constants (fit.go); bare.go measures single kernels
// and collectives, steps.go training steps; yaml.go writes the result.
package profile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/autopar/autopar/cuda"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/cost/curve"
)

// Options of [Measure].
type Options struct {
	Budget time.Duration // about how long to measure, besides choosing matrix products
	Note   func(string)  // is told what is measured next
	// Like is the built-in cluster of these GPUs, or nil if there is none. It gives their nominal
	// rates, and whatever cannot be measured here.
	Like *cost.Cluster
}

// Result is what was measured.
type Result struct {
	Cluster     *cost.Cluster
	Products    []Product
	Attention   []Attention
	Streams     []Rate // additions of two tensors into a third, by the bytes of all three
	ToHost      []Rate
	FromHost    []Rate
	Collectives []Collective
	// Launch is the time in seconds of a kernel that does next to nothing, launched by itself and
	// in a graph.
	Launch struct{ Alone, InGraph float64 }
	// Off is how far the planner's prices are from the measured times, by class of kernels: the
	// mean absolute difference, as a share of the times.
	Off map[string]float64

	GPU  string // the kind of GPU
	GPUs int    // how many are visible
	NCCL string // version, or "" if collectives were not measured
	When time.Time
	Took time.Duration

	versions []string
	like     *cost.Cluster
	memory   int64 // bytes of a GPU
	held     int64 // of it, the most that was seen in use besides the arena of a rank
	units    int
}

// Product is one measured matrix product.
type Product struct {
	Name        string
	Type        ir.DType
	Rows, Cols  int64
	Terms       int64
	TFLOPS, Off float64 // Off is how far the planner's price is from the time, as a share of the time
}

// Attention is one measured attention kernel.
type Attention struct {
	Name        string
	Type        ir.DType
	TFLOPS, Off float64
}

// Rate is how long some bytes took.
type Rate struct {
	Bytes   int64
	Seconds float64
}

// gbs returns the rate in 1e9 bytes/s.
func (r Rate) gbs() float64 { return float64(r.Bytes) / r.Seconds / 1e9 }

// Collective is one measured collective over all GPUs.
type Collective struct {
	Op      ir.Op
	Ranks   int
	Bytes   int64 // of the whole tensor
	Seconds float64
}

// publishedBeside is [cost.Efficiency.Beside] of GPUs by a fit on published runs (bench/validate.md). It is not measured.
const publishedBeside = 0.813

// Measure measures the visible GPUs, which must be of one kind and otherwise idle. With several
// GPUs it needs NCCL.
func Measure(ctx context.Context, system *cuda.System, opts Options) (*Result, error) {
	r := &Result{When: time.Now().UTC().Truncate(time.Second), Off: map[string]float64{}, like: opts.Like, versions: system.Versions}
	begin := time.Now()
	if err := r.look(system); err != nil {
		return nil, err
	}
	opts.Note("memory, copies and launches")
	var steps []*step
	for _, part := range []func() error{
		func() error { return r.kernels(ctx, system, opts.Budget/8) },
		func() (err error) {
			steps, err = measureSteps(ctx, system, r.memory, opts.Budget/2, opts.Note)
			for _, s := range steps { // with what they have loaded, and scratch memory
				r.held = max(r.held, s.held)
			}
			return err
		},
		func() error { return r.collectives(ctx, system, opts.Budget/4) },
	} {
		if err := errors.Join(ctx.Err(), part()); err != nil {
			return nil, err
		}
	}
	r.fit(steps)
	r.Took = time.Since(begin)
	return r, r.Cluster.Validate()
}

// look finds out which GPUs there are.
func (r *Result) look(system *cuda.System) error {
	d := system.Driver
	count, err := d.DeviceCount()
	if err != nil {
		return fmt.Errorf("cuda: %w", err)
	}
	if count == 0 {
		return &cuda.DeviceError{Msg: "no GPU is visible (see CUDA_VISIBLE_DEVICES)"}
	}
	for i := range count {
		name, err := d.DeviceName(i)
		if err != nil {
			return fmt.Errorf("cuda: GPU %d: %w", i, err)
		}
		if err := cuda.Usable(d, i); err != nil {
			return err
		}
		if i > 0 && name != r.GPU {
			return &cuda.DeviceError{Msg: fmt.Sprintf("GPU 0 is a %s and GPU %d a %s: a profile is of one kind, which CUDA_VISIBLE_DEVICES chooses", r.GPU, i, name)}
		}
		r.GPU = name
	}
	r.GPUs = count
	if r.memory, err = d.DeviceMemory(0); err != nil {
		return fmt.Errorf("cuda: GPU 0: %w", err)
	}
	r.units, err = d.Attribute(0, unitsAttribute)
	return err
}

// fit makes the cluster. Peak rates are nominal where they are known. Efficiencies are such that
// the planner's prices add up to the measured times.
func (r *Result) fit(steps []*step) {
	last := r.Streams[len(r.Streams)-1]
	stream := float64(last.Bytes) / max(last.Seconds-r.Launch.InGraph, last.Seconds/2) // bytes/s
	best := map[ir.DType]float64{}                                                     // FLOP/s
	for _, s := range steps {
		for _, k := range s.kernels {
			if k.work.Class == product {
				best[s.float] = max(best[s.float], k.work.FLOPs/k.seconds)
			}
		}
	}
	fastest := ir.F32
	for d, rate := range best {
		if rate > best[fastest] || rate == best[fastest] && d < fastest {
			fastest = d
		}
	}
	c := &cost.Cluster{
		Name: "gpu-profiled", DevicesPerNode: r.GPUs, Software: software(),
		Source: fmt.Sprintf("autopar profile, %s, %d x %s", r.When.Format("2006-01-02 15:04 MST"), r.GPUs, r.GPU),
		Device: cost.Device{
			Name: r.GPU, Cores: 1, Memory: r.memory, Reserve: r.held, Units: r.units, FLOPS: map[string]float64{},
			MemoryBandwidth: curve.Round(stream), LaunchOverhead: curve.Round(r.Launch.InGraph),
			Efficiency: cost.Efficiency{Matmul: 1, Attention: 1, Vector: vectorShare, Memory: 1},
		},
	}
	nominal := best[fastest]
	if r.like != nil {
		nominal = max(nominal, r.like.Device.FLOPS[fastest.String()])
		c.Device.MemoryBandwidth = max(c.Device.MemoryBandwidth, r.like.Device.MemoryBandwidth)
	}
	peak := func(of float64) {
		for d, rate := range best { // all types share one efficiency: see [cost.Efficiency]
			c.Device.FLOPS[d.String()] = curve.Round(of * rate / best[fastest])
		}
	}
	peak(nominal)
	r.links(c)
	e := &c.Device.Efficiency
	e.Memory, _ = fitShare(c, steps, vector, &e.Memory)
	if e.Matmul, e.TileFill = fitProducts(c, steps); e.Matmul > 1 && r.like == nil { // the fastest product does not reach the peak: its tiles do not fill the GPU
		peak(nominal * e.Matmul)
	}
	e.Attention, _ = fitShare(c, steps, attention, &e.Attention)
	if e.Beside = publishedBeside; r.like != nil {
		e.Beside = r.like.Device.Efficiency.Beside
	}
	e.Matmul, e.Attention, e.Memory = curve.Share(e.Matmul), curve.Share(e.Attention), curve.Share(e.Memory)
	for _, class := range []string{product, attention, vector} {
		_, r.Off[class] = balance(c, steps, class)
	}
	r.Cluster = c
	r.curves(steps)
}

// vectorShare is the assumed efficiency of arithmetic, as a share of the f32 peak, in kernels
// between products. It cannot be measured, because memory bandwidth limits them first.
const vectorShare = 0.5

func software() cost.Software {
	s, err := cost.LoadSoftware("autopar-cuda")
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return s
}

// links sets the network and the link to the host: as measured, or else as the built-in cluster
// says, or a guess. The file says which.
func (r *Result) links(c *cost.Cluster) {
	var all []curve.Exchange
	for _, way := range [][]Rate{r.ToHost, r.FromHost} {
		for _, p := range way {
			all = append(all, curve.Exchange{Messages: 1, Bytes: float64(p.Bytes), Seconds: p.Seconds})
		}
	}
	latency, bandwidth, _ := curve.Link(all)
	c.Host = link(latency, bandwidth)
	c.IntraNode, c.InterNode = *c.Host, assumedNetwork()
	if r.like != nil {
		c.IntraNode, c.InterNode = r.like.IntraNode, r.like.InterNode
	}
	if len(r.Collectives) == 0 {
		if r.like != nil {
			c.DevicesPerNode = r.like.DevicesPerNode
		}
		return
	}
	all = nil
	for _, p := range r.Collectives {
		n, passes := float64(p.Ranks), 1.0
		if p.Op == ir.OpAllReduce {
			passes = 2
		}
		all = append(all, curve.Exchange{
			Messages: passes * (n - 1), Bytes: passes * (n - 1) / n * float64(p.Bytes), Seconds: max(p.Seconds-r.Launch.Alone, p.Seconds/2),
		})
	}
	latency, bandwidth, r.Off[collective] = curve.Link(all)
	c.IntraNode = *link(latency, bandwidth)
}

func link(latency, bandwidth float64) *cost.Link {
	return &cost.Link{Bandwidth: curve.Round(min(bandwidth, 1e15)), Efficiency: 1, Latency: curve.Round(latency)}
}

// assumedNetwork is the network between nodes if nothing is known: one card of 100 Gb/s.
func assumedNetwork() cost.Link { return cost.Link{Bandwidth: 12.5e9, Efficiency: 0.9, Latency: 15e-6} }

// curves lists products and attention with the planner's prices, one of each shape.
func (r *Result) curves(steps []*step) {
	type kind struct {
		float             ir.DType
		op                ir.Op
		rows, cols, terms int64
		flops             float64
	}
	known := map[kind]bool{}
	for _, s := range steps {
		price := s.price.On(r.Cluster)
		for _, k := range s.kernels {
			rate, off := k.work.FLOPs/k.seconds/1e12, k.priced(price, s)/k.seconds-1
			is := kind{float: s.float, op: k.instr.Node.Op, flops: k.work.FLOPs}
			if k.work.Class == product {
				is.rows, is.cols, is.terms = k.shape()
			}
			if known[is] {
				continue
			}
			known[is] = true
			switch k.work.Class {
			case product:
				r.Products = append(r.Products, Product{k.name(), s.float, is.rows, is.cols, is.terms, rate, off})
			case attention:
				r.Attention = append(r.Attention, Attention{k.name(), s.float, rate, off})
			}
		}
	}
	slices.SortStableFunc(r.Products, func(a, b Product) int {
		return cmp.Or(cmp.Compare(a.Type, b.Type), cmp.Compare(a.Rows*a.Cols*a.Terms, b.Rows*b.Cols*b.Terms))
	})
}
