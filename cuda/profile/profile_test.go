package profile

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/cuda"
	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/cuda/driver/fake"
	"github.com/autopar/autopar/cuda/kernel"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/runtime"
)

// The rates of the fake GPUs by their own clock, which advances only while they work.
const (
	launchMS   = 0.002
	memoryRate = 2e12 // bytes/s
	hostRate   = 4e10
	linkRate   = 2e11
	hopMS      = 0.005
	gemmRate   = 6e13 // FLOP/s in f32, 8 times as much in halves
	sharedRate = 1e13 // of attention in f32

	scratchBytes = 4096
)

// gpus are fake GPUs that compute nothing but take time.
type gpus struct {
	*fake.Driver
	extra map[string]float64 // milliseconds that a kernel takes besides its traffic, by name
}

func newGPUs(opts fake.Options) *gpus {
	g := &gpus{extra: map[string]float64{}}
	n := float64(max(opts.Devices, 1))
	opts.Clock = func(what string, bytes int64) float64 {
		ms := func(rate float64) float64 { return 1e3 * float64(bytes) / rate }
		switch {
		case strings.Contains(what, "NCCL"): // each rank accesses the tensor and a part; the time of the last one counts
			passes, tensor := 1.0, ms(linkRate)/(1+1/n)
			if strings.Contains(what, "all_reduce") {
				passes, tensor = 2, ms(linkRate)/2
			}
			return (launchMS + passes*(n-1)*hopMS + passes*(n-1)/n*tensor) / n
		case strings.Contains(what, "cuMemcpyHtoD"), strings.Contains(what, "cuMemcpyDtoH"):
			return 0.01 + ms(hostRate)/2
		}
		at := strings.LastIndexByte(what, '(')
		return launchMS + max(ms(memoryRate), g.extra[strings.TrimSuffix(what[at+1:], ")")])
	}
	g.Driver = fake.New(opts)
	return g
}

func (g *gpus) DeviceName(int) (string, error) { return "fake", nil }

func (g *gpus) system() *cuda.System {
	return &cuda.System{
		Driver: g, BLAS: func(int) (driver.BLAS, error) { return blas{g.BLAS(), g}, nil },
		Engine:      func(int) (cuda.Engine, error) { return engine{gpus: g}, nil },
		Collectives: func(int) (driver.Collectives, error) { return g.Collectives(), nil },
		Versions:    []string{"fakes"},
	}
}

// work puts a kernel on a stream that takes some milliseconds.
func (g *gpus) work(s driver.Stream, what string, ms float64, reads, writes []fake.Range) error {
	what = fmt.Sprintf("%s %g", what, ms)
	g.extra[what] = ms
	return g.Run(s, what, reads, writes, func() error { return nil })
}

// of returns a rate for a type.
func of(d ir.DType, rate float64) float64 {
	if d == ir.F32 {
		return rate
	}
	return 8 * rate
}

type engine struct {
	cuda.Engine // for methods that are not called
	*gpus
}

func (engine) Check(kernel.Group) error       { return nil }
func (engine) CheckExchanges(_, _ bool) error { return nil }
func (engine) Load() error                    { return nil }
func (engine) Scratch(kernel.Group) int64     { return scratchBytes }
func (engine) Close() error                   { return nil }

func (e engine) Prepare(g kernel.Group, at kernel.Place, _ driver.Ptr) (func(driver.Stream) error, error) {
	k := g[0] // timed kernels are launched alone
	var sides [2][]fake.Range
	for i, list := range [][]runtime.Tensor{k.Args, k.Results} {
		for _, t := range list {
			sides[i] = append(sides[i], fake.Range{At: driver.Ptr(at(t)), Bytes: t.Bytes()})
		}
	}
	ms := 0.0
	if strings.HasPrefix(k.Node.Op.String(), "attention") { // causal, forward 2 products, backward 5
		q := k.Args[0].Slab.Local
		if k.Node.Op == ir.OpAttentionGrad {
			q = k.Args[1].Slab.Local
		}
		tokens := q[len(q)-3]
		ms = 1e3 * float64(ir.Elems(q)*int64(tokens)) / of(k.Args[0].DType, sharedRate)
	}
	return func(s driver.Stream) error { return e.work(s, k.Node.Op.String(), ms, sides[0], sides[1]) }, nil
}

type blas struct {
	driver.BLAS
	*gpus
}

func (blas) Close() error { return nil }

func (b blas) MatMul(g driver.GEMM, x, y, z, _ driver.Ptr, s driver.Stream) error {
	ms := 2e3 * float64(g.M) * float64(g.N) * float64(g.K) / of(g.TypeA, gemmRate)
	touch := func(p driver.Ptr, elems int64, d ir.DType) fake.Range {
		return fake.Range{At: p, Bytes: elems * d.Size()}
	}
	return b.work(s, "gemm", ms, []fake.Range{touch(x, g.M*g.K, g.TypeA), touch(y, g.K*g.N, g.TypeB)}, []fake.Range{touch(z, g.M*g.N, g.TC)})
}

// note is told what is measured next.
func note(string) {}

func measure(t *testing.T, opts fake.Options, like *cost.Cluster) (*Result, *cost.Cluster, string) {
	t.Helper()
	g := newGPUs(opts)
	r, err := Measure(context.Background(), g.system(), Options{Budget: 10 * time.Millisecond, Like: like, Note: note})
	require.NoError(t, err)
	require.Empty(t, g.Leaks())
	var text bytes.Buffer
	require.NoError(t, r.WriteYAML(&text))
	read, err := cost.Parse("cluster.yaml", text.Bytes())
	require.NoError(t, err, text.String())
	require.Equal(t, r.Cluster, read, "it is read as it was measured")
	return r, read, text.String()
}

// TestMeasure measures GPUs with a known clock.
func TestMeasure(t *testing.T) {
	r, c, text := measure(t, fake.Options{Devices: 4, Memory: 96 << 20}, nil)
	require.Equal(t, 4, c.DevicesPerNode)
	require.Equal(t, "autopar-cuda", c.Software.Name)
	require.InEpsilon(t, memoryRate, c.Device.MemoryBandwidth, 0.02)
	require.InEpsilon(t, launchMS/1e3, c.Device.LaunchOverhead, 0.1)
	require.InEpsilon(t, linkRate, c.IntraNode.Bandwidth, 0.02)
	require.InEpsilon(t, hopMS/1e3, c.IntraNode.Latency, 0.05)
	require.InEpsilon(t, hostRate, c.Host.Bandwidth, 0.02)
	require.InEpsilon(t, 1e-5, c.Host.Latency, 0.02)
	require.Greater(t, c.Device.FLOPS["bf16"], c.Device.FLOPS["f32"])
	require.Equal(t, c.Device.FLOPS["bf16"], c.Device.FLOPS["f16"])
	require.Contains(t, text, "# NCCL 2.28.9 over 4 GPUs, off 0 %")
	require.NotEmpty(t, r.Collectives)
	for _, class := range []string{vector, collective} { // the fakes behave as the planner assumes
		require.Less(t, r.Off[class], 0.1, class)
	}
}

// TestMeasureOne measures one GPU of a known kind. The network is that of the built-in cluster, and
// the rates are nominal.
func TestMeasureOne(t *testing.T) {
	h200, err := cost.Load("h200")
	require.NoError(t, err)
	r, c, text := measure(t, fake.Options{Memory: 48 << 20}, h200)
	require.Empty(t, r.Collectives)
	require.Equal(t, h200.IntraNode, c.IntraNode)
	require.Equal(t, h200.DevicesPerNode, c.DevicesPerNode)
	require.Equal(t, h200.Device.FLOPS["bf16"], c.Device.FLOPS["bf16"])
	const workspace, flags = 256, 4 * 8
	require.EqualValues(t, workspace+flags+scratchBytes, c.Device.Reserve, "all that a rank takes beside its arena")
	require.Contains(t, text, "# Not measured, for there is one GPU: those of the built-in cluster h200.")
	require.NotContains(t, text, "NCCL")
}

// TestFit: from the planner's own prices on a GPU, the fit finds the constants of that GPU.
func TestFit(t *testing.T) {
	const seed = 7
	rng := rand.New(rand.NewPCG(seed, 0))
	for _, noise := range []float64{0, 0.1} {
		truth := &cost.Cluster{
			Name: "truth", DevicesPerNode: 8, IntraNode: assumedNetwork(), InterNode: assumedNetwork(), Software: software(),
			Device: cost.Device{
				Name: "truth", Cores: 1, Memory: 1 << 37, MemoryBandwidth: 4.8e12, LaunchOverhead: 2e-6, Units: 132,
				FLOPS:      map[string]float64{"f32": 6e13, "bf16": 9.9e14, "f16": 9.9e14},
				Efficiency: cost.Efficiency{Matmul: 0.7, TileFill: 160, Attention: 0.35, Vector: vectorShare, Memory: 0.8},
			},
		}
		require.NoError(t, truth.Validate())
		var steps []*step
		for _, w := range workloads()[:2] {
			for _, float := range []ir.DType{ir.F32, ir.BF16} {
				s, _, err := w.step(float)
				require.NoError(t, err)
				price := s.price.On(truth)
				for i := range s.kernels {
					k := &s.kernels[i]
					k.seconds = k.priced(price, s) * (1 + noise*(2*rng.Float64()-1))
					s.seconds += k.seconds
				}
				steps = append(steps, s)
			}
		}
		r := &Result{Off: map[string]float64{}, like: truth, units: 132, memory: 1 << 37, Streams: []Rate{{1 << 30, 1 << 30 / 4e12}}}
		r.Launch.InGraph = 2e-6
		r.ToHost = []Rate{{1 << 20, 1e-4}, {1 << 24, 1e-3}}
		r.fit(steps)
		got, want := r.Cluster.Device.Efficiency, truth.Device.Efficiency
		tolerance := 0.01 + noise/2
		require.InEpsilon(t, want.Matmul, got.Matmul, tolerance, "seed %d", seed)
		require.InDelta(t, want.TileFill, got.TileFill, 32+1000*noise, "seed %d", seed)
		require.InEpsilon(t, want.Attention, got.Attention, tolerance, "seed %d", seed)
		require.InEpsilon(t, want.Memory, got.Memory, tolerance, "seed %d", seed)
		for class, off := range r.Off {
			require.InDelta(t, noise/2, off, 0.02, class)
		}
	}
}

// TestRefuses: bad input names what is wrong.
func TestRefuses(t *testing.T) {
	missing := &driver.MissingError{Library: "libnccl.so.2 (NCCL)", Msg: "is not here"}
	for _, tt := range []struct {
		opts   fake.Options
		change func(*cuda.System)
		want   string
	}{
		{fake.Options{Devices: 2}, func(s *cuda.System) { s.Driver = s.Driver.(*gpus).Driver }, "GPU 0 is a fake device 0 and GPU 1 a fake device 1"},
		{fake.Options{Major: 7, Minor: 5}, func(*cuda.System) {}, "has compute capability 7.5, want at least 8.0"},
		{fake.Options{Memory: 4 << 10}, func(*cuda.System) {}, "4096 bytes of memory are too few to train anything in"},
		{fake.Options{Devices: 2, Memory: 16 << 20}, func(s *cuda.System) {
			s.Collectives = func(int) (driver.Collectives, error) { return nil, missing }
		}, "libnccl.so.2 (NCCL) is not here; CUDA_VISIBLE_DEVICES=0 measures one GPU without it"},
		{fake.Options{Memory: 16 << 20, LoseAfter: 500}, func(*cuda.System) {}, "the device is lost"},
	} {
		system := newGPUs(tt.opts).system()
		tt.change(system)
		_, err := Measure(context.Background(), system, Options{Budget: time.Millisecond, Note: note})
		require.ErrorContains(t, err, tt.want)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := Measure(ctx, newGPUs(fake.Options{}).system(), Options{Budget: time.Millisecond, Note: note})
	require.ErrorIs(t, err, context.Canceled)
}
