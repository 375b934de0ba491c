package cuda

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/cuda/kernel"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
)

var update = flag.Bool("update", false, "rewrite bench/gpu/budget.md and calls.md")

// listener is a backend of one device that only records what it would launch.
type listener struct {
	runtime.Device
	groups []kernel.Group
	alone  int
}

func (d *listener) Open(runtime.World) ([]runtime.Device, error) { return []runtime.Device{d}, nil }
func (d *listener) Abort()                                       {}
func (d *listener) Close() error                                 { return nil }
func (d *listener) Alloc(runtime.Space, int64) error             { return nil }
func (d *listener) Check(*runtime.Kernel) error                  { return nil }
func (d *listener) Fuse(run []*runtime.Kernel, uses map[*ir.Value]int) error {
	d.groups = append(d.groups, kernel.Fuse(run, uses)...)
	d.alone += len(run)
	return nil
}

// part is a row of the budget: kernels of one kind.
type part struct {
	kernels, launches int // number of kernels, and of launches after fusion
	alone, bytes      int64
	flops             float64
	rate              float64 // operations per second
	before            int64   // bytes that a kernel of its own reads before the others run
}

// What the time of a part is predicted from. None of it was measured by this project. Memory at 4.3
// TB/s and 788 TFLOP/s for large products are others' figures of an H200; products this narrow are
// assumed to reach 80 % of that. The rates of attention, and the time of a small kernel in a graph,
// are those of public kernels of the same shape on an H100.
const (
	memoryRate    = 4.3e12
	productRate   = 630e12
	forwardRate   = 220e12
	backwardRate  = 170e12
	launchSeconds = 2e-6
)

func (p part) seconds() float64 {
	t := float64(p.bytes) / memoryRate
	if p.rate > 0 {
		t = max(t, p.flops/p.rate)
	}
	return t + float64(p.before)/memoryRate + float64(p.launches)*launchSeconds
}

// TestBudget counts the launches and bytes of a step of GPT-2 124M, and predicts its time on one
// H200 kernel by kernel.
func TestBudget(t *testing.T) {
	const batch, peak = 64, 989e12
	model := gpt.Config{
		NLayer: 12, NHead: 12, NEmbd: 768, BlockSize: 1024, VocabSize: 50304, Float: ir.BF16,
		Activation: gpt.GELU, Norm: gpt.LayerNorm, Position: gpt.Learned, TieEmbeddings: true,
	}
	g, err := gpt.TrainStep(model, gpt.Optimizer{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, GradClip: 1}, batch, model.BlockSize)
	require.NoError(t, err)
	plan := &partition.Plan{
		PlanNGPUs: 1, RuntimeNGPUs: 1, DP: 1, TP: 1, MicroBatch: batch, Schedule: partition.OneFOneB,
		Stages: []partition.Stage{{First: 0, Last: model.NLayer}},
	}
	prog, err := codegen.Compile(g, plan, batch, nil)
	require.NoError(t, err)
	var heard listener
	e, err := runtime.New(prog, &heard, runtime.Options{Timeout: time.Minute})
	require.NoError(t, err)
	require.NoError(t, e.Close())

	parts, names := map[string]*part{}, []string{}
	fused := map[string]int{}
	for _, g := range heard.groups {
		name, p := kindOf(t, g)
		if len(g) > 1 {
			fused[name]++
		}
		sum, ok := parts[name]
		if !ok {
			sum = &part{rate: p.rate}
			parts[name], names = sum, append(names, name)
		}
		sum.kernels += p.kernels
		sum.launches += p.launches
		sum.alone += p.alone
		sum.bytes += p.bytes
		sum.flops += p.flops
		sum.before += p.before
	}
	require.Equal(t, 24, fused["residual sum and norm"], "%v", fused)
	require.Equal(t, 24, fused["norm gradient"], "%v", fused)
	require.Equal(t, 1, fused["softmax statistics"], "%v", fused)
	require.Equal(t, 2, fused["AdamW"], "%v", fused)

	slices.SortFunc(names, func(a, b string) int {
		if parts[a].seconds() != parts[b].seconds() {
			return map[bool]int{true: -1, false: 1}[parts[a].seconds() > parts[b].seconds()]
		}
		return strings.Compare(a, b)
	})
	var all part
	var seconds float64
	var b strings.Builder
	fmt.Fprintf(&b, `# The budget of a training step on one H200, predicted

GPT-2 124M as gpt2.yaml has it, bfloat16, T = 1024, batch %d, as one micro-batch. [measured.md](measured.md) has what it took.

- Launches and bytes are counted from the program, and from what package cuda/kernel launches for it. Bytes are those of operands
  read and results written once.
- Times are predictions from before the first run: bytes at %.1f TB/s, products at %.0f TFLOP/s, attention at %.0f (forward) and %.0f (backward), and %.0f us a
  launch. The backward rate is of all seven products that attention's gradient makes, after a kernel that reads results and their
  gradients.

Printed by `+"`go test ./cuda -run TestBudget -update`"+`.

| kernels | instructions | launches | GB one by one | GB | TFLOP | ms |
|---|---|---|---|---|---|---|
`, batch, memoryRate/1e12, productRate/1e12, forwardRate/1e12, backwardRate/1e12, launchSeconds*1e6)
	for _, name := range names {
		p := parts[name]
		fmt.Fprintf(&b, "| %s | %d | %d | %.2f | %.2f | %.2f | %.2f |\n", name, p.kernels, p.launches, float64(p.alone)/1e9, float64(p.bytes)/1e9, p.flops/1e12, 1e3*p.seconds())
		all.kernels, all.launches, all.alone, all.bytes, all.flops = all.kernels+p.kernels, all.launches+p.launches, all.alone+p.alone, all.bytes+p.bytes, all.flops+p.flops
		seconds += p.seconds()
	}
	const tokens, blocks, width, length = batch * 1024, 12, 768, 1024
	params := float64(50304*width + blocks*(12*width*width+2*width) + width)
	mfu := tokens * (6*params + 12*blocks*width*length) / seconds / peak
	fmt.Fprintf(&b, "| all | %d | %d | %.2f | %.2f | %.2f | %.2f |\n", all.kernels, all.launches, float64(all.alone)/1e9, float64(all.bytes)/1e9, all.flops/1e12, 1e3*seconds)
	fmt.Fprintf(&b, "\n%.0f tokens/s, MFU %.1f %% (6N + 12LCT operations a token, of %.0f TFLOP/s). The bar is 40 %%: %.1f ms.\n",
		tokens/seconds, 100*mfu, peak/1e12, 1e3*seconds*mfu/0.4)
	const file = "../bench/gpu/budget.md"
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(b.String()), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), b.String(), "-update rewrites it")
	require.Greater(t, mfu, 0.4)
}

// kindOf returns the kind of a group and its share of the budget.
func kindOf(t *testing.T, g kernel.Group) (name string, p part) {
	first := g[0]
	p.kernels = len(g)
	seen, made := map[*ir.Value]bool{}, map[*ir.Value]bool{}
	for _, k := range g {
		for i, v := range k.Node.Args {
			p.alone += k.Args[i].Bytes()
			if !seen[v] && !made[v] {
				p.bytes += k.Args[i].Bytes()
			}
			seen[v] = true
		}
		for i, v := range k.Node.Results {
			bytes := k.Results[i].Bytes()
			if k.Accum[i] {
				bytes *= 2
			}
			p.alone += bytes
			p.bytes += bytes
			made[v] = true
		}
	}
	op := first.Node.Op
	switch op {
	case ir.OpMatMul:
		product, _ := gemmOf(first)
		p.launches, p.flops, p.rate = 1, 2*float64(product.M)*float64(product.N)*float64(product.K), productRate
		return "matrix products", p
	case ir.OpAttention, ir.OpAttentionGrad:
		s := first.Args[len(first.Args)-3].Slab.Local // log-sums [batch, heads, rows], for the gradient
		products, name := 7.0, "attention gradient"
		p.rate = backwardRate
		if op == ir.OpAttention {
			s, products, name, p.rate = first.Results[1].Slab.Local, 2, "attention", forwardRate
		} else { // dot products of results with their gradients
			p.before = first.Args[0].Bytes() + first.Args[len(first.Args)-4].Bytes()
		}
		rows := float64(s[len(s)-1] * max(1, ir.SequenceParts(first.Node.Attr)))
		width := float64(first.Args[0].Slab.Local[len(first.Args[0].Slab.Local)-1])
		p.flops = products * 2 * float64(ir.Elems(s)) * rows / 2 * width
		p.launches = launchesOf(t, g)
		return name, p
	}
	p.launches = launchesOf(t, g)
	switch op {
	case ir.OpAdd:
		if len(g) > 1 {
			return "residual sum and norm", p
		}
	case ir.OpLayerNormGrad:
		if len(g) > 1 { // the gradient itself is not stored
			p.bytes -= first.Results[0].Bytes()
		}
		return "norm gradient", p
	case ir.OpRowMax:
		return "softmax statistics", p
	case ir.OpRowPick: // one sector per row
		p.bytes = 32 * first.Results[0].Slab.Elems()
		p.alone = p.bytes
	case ir.OpAdamW:
		return "AdamW", p
	case ir.OpCast:
		if first.Args[0].Offset == first.Results[0].Offset { // through scratch memory
			for _, k := range g {
				p.bytes += 2 * k.Results[0].Bytes()
				p.alone += 2 * k.Results[0].Bytes()
			}
		}
	}
	return strings.ReplaceAll(op.String(), "_", " "), p
}

func launchesOf(t *testing.T, g kernel.Group) int {
	launches, err := kernel.Launches(g, func(t runtime.Tensor) uint64 { return 64 + uint64(t.Offset) }, 0)
	require.NoError(t, err)
	return len(launches)
}
