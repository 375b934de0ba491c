package cuda

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/cuda/driver/fake"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
)

// hollow is a fake driver whose device functions do nothing, but whose address parameters must be
// of allocated memory.
type hollow struct {
	*fake.Driver
	mu       sync.Mutex // of the rest, which all ranks use
	names    []string
	shared   map[driver.Function]int
	launches int
}

func (h *hollow) LoadModule([]byte) (driver.Module, error) { return 1, nil }
func (h *hollow) UnloadModule(driver.Module) error         { return nil }
func (h *hollow) ModuleFunction(_ driver.Module, name string) (driver.Function, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.names = append(h.names, name)
	return driver.Function(len(h.names)), nil
}
func (h *hollow) SetFunctionAttribute(f driver.Function, _ driver.FunctionAttribute, bytes int) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.shared == nil {
		h.shared = map[driver.Function]int{}
	}
	h.shared[f] = bytes
	return nil
}

func (h *hollow) Launch(f driver.Function, grid, block driver.Dims, shared uint32, s driver.Stream, args []uint64) error {
	const lowest = 1 << 52 // the lowest of the fake's addresses
	h.mu.Lock()
	h.launches++
	name := h.names[f-1]
	refused := sharedLimit(h.shared, f, shared)
	h.mu.Unlock()
	if refused != nil {
		return fmt.Errorf("%s: %w", name, refused)
	}
	threads := block[0] * block[1] * block[2]
	if grid[0]*grid[1]*grid[2] == 0 || threads == 0 || threads > 1024 || shared > 227<<10 {
		return errors.New("no GPU launches that")
	}
	var reads []fake.Range
	for _, a := range args {
		if a >= lowest && a < lowest<<1 {
			reads = append(reads, fake.Range{At: driver.Ptr(a), Bytes: 1})
		}
	}
	return h.Run(s, name, reads, nil, func() error { return nil })
}

// hollowBLAS checks where operands lie, and computes nothing.
type hollowBLAS struct {
	driver.BLAS
	*hollow
}

func (b hollowBLAS) Close() error { return nil }

func (b hollowBLAS) MatMul(_ driver.GEMM, x, y, z, _ driver.Ptr, s driver.Stream) error {
	reads := []fake.Range{{At: x, Bytes: 1}, {At: y, Bytes: 1}, {At: z, Bytes: 1}}
	return b.Run(s, "matmul", reads, nil, func() error { return nil })
}

func (hollowBLAS) With(_ driver.GEMM, _, _, _, _, _ driver.Ptr, _ driver.Stream, apart func() error) error {
	return apart()
}

type stubCompiler struct{}

func (stubCompiler) Version() int { return 13000 }
func (stubCompiler) Compile(name, _, _ string, _ []string) ([]byte, error) {
	return []byte(name), nil
}

// TestStepsLaunch launches training steps of GPT-2 and Llama, in every type on one rank, and in
// bfloat16 on four ranks that share a GPU, with the engine for real GPUs.
func TestStepsLaunch(t *testing.T) {
	gpt2 := gpt.Config{
		NLayer: 2, NHead: 2, NEmbd: 128, BlockSize: 33, VocabSize: 65, Dropout: 0.1, Bias: true,
		Activation: gpt.GELU, Norm: gpt.LayerNorm, Position: gpt.Learned, TieEmbeddings: true,
	}
	llama := gpt.Config{
		NLayer: 2, NHead: 4, NKVHead: 2, NEmbd: 64, BlockSize: 33, VocabSize: 65, FFNHidden: 96,
		Activation: gpt.SwiGLU, Norm: gpt.RMSNorm, Position: gpt.RoPE,
	}
	for name, model := range map[string]gpt.Config{"GPT-2": gpt2, "Llama": llama} {
		for _, d := range []ir.DType{ir.F32, ir.BF16, ir.F16} {
			for _, ranks := range []int{1, 4} {
				if ranks > 1 && d != ir.BF16 {
					continue
				}
				t.Run(name+"/"+d.String()+"/"+map[int]string{1: "one rank", 4: "four ranks"}[ranks], func(t *testing.T) {
					model.Float = d
					launchStep(t, model, ranks)
				})
			}
		}
	}
}

func launchStep(t *testing.T, model gpt.Config, ranks int) {
	const batch = 5
	g, err := gpt.TrainStep(model, gpt.Optimizer{Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, GradClip: 1}, batch, model.BlockSize)
	require.NoError(t, err)
	plan := &partition.Plan{
		PlanNGPUs: ranks, RuntimeNGPUs: ranks, DP: 1, TP: 1, MicroBatch: 2, Schedule: partition.OneFOneB,
		Stages: []partition.Stage{{First: 0, Last: model.NLayer}},
	}
	if ranks == 4 {
		plan.DP, plan.TP, plan.ZeRO, plan.Overlap = 2, 2, 2, true
		plan.Placements = []partition.Placement{
			{Match: `h\.[0-9]+\.mlp\.c_fc\.weight`, Spec: "[tp,_]"}, {Match: `wte\.weight`, Spec: "[tp,_]"},
		}
		if model.Activation == gpt.SwiGLU {
			plan.Placements = plan.Placements[1:]
		}
	}
	prog, err := codegen.Compile(g, plan, batch, nil)
	require.NoError(t, err)
	h := &hollow{Driver: fake.New(fake.Options{})}
	backend := New(&System{
		Driver: h, BLAS: func(int) (driver.BLAS, error) { return hollowBLAS{h.BLAS(), h}, nil },
		Engine: func(int) (Engine, error) { return newKernels(h, stubCompiler{}, 90, 227<<10), nil },
	}, Options{Loopback: ranks > 1})
	e, err := runtime.New(prog, backend, runtime.Options{Timeout: time.Minute})
	require.NoError(t, err)
	require.Zero(t, h.Waiting(), "products that were tried must be over: a message may come to the same place")
	require.NoError(t, e.InitParams(prog, 1))
	tokens := make([]int32, batch*model.BlockSize)
	feeds := runtime.Feeds{
		"ids": runtime.Ints(tokens...), "targets": runtime.Ints(tokens...), "positions": runtime.Ints(tokens[:model.BlockSize]...),
		"seed": runtime.Ints(1), "step": runtime.Ints(0), "lr": runtime.Floats(0.1), "loss_weight": runtime.Floats(1),
	}
	for range 4 { // the last ones are a graph
		_, err = e.Step(t.Context(), prog, feeds)
		require.NoError(t, err)
	}
	require.Greater(t, h.launches, 40)
	require.NoError(t, e.Close())
	require.Empty(t, h.Leaks())
}
