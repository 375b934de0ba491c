package cuda

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/cuda/kernel"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// recorder is a driver, and a compiler, that records what the engine asks of it.
type recorder struct {
	driver.Driver
	compiled, launched []string
	shared             map[driver.Function]int
	names              []string
}

func (r *recorder) Compile(name, source, arch string, options []string) ([]byte, error) {
	r.compiled = append(r.compiled, name+" "+arch+" "+strings.Join(options, " "))
	if !strings.Contains(source, "extern \"C\"") {
		return nil, errors.New("no function")
	}
	return []byte(name), nil
}

func (r *recorder) LoadModule([]byte) (driver.Module, error) { return 1, nil }
func (r *recorder) UnloadModule(driver.Module) error         { return nil }
func (r *recorder) ModuleFunction(_ driver.Module, name string) (driver.Function, error) {
	r.names = append(r.names, name)
	return driver.Function(len(r.names)), nil
}
func (r *recorder) SetFunctionAttribute(f driver.Function, a driver.FunctionAttribute, v int) error {
	r.shared[f] = v
	return nil
}
func (r *recorder) Launch(f driver.Function, grid, block driver.Dims, shared uint32, s driver.Stream, args []uint64) error {
	r.launched = append(r.launched, r.names[f-1])
	return sharedLimit(r.shared, f, shared)
}

// sharedLimit refuses a launch as the driver does: a function has 48 KB for its static and dynamic
// shared memory, unless it was told a limit of the latter, which then counts.
func sharedLimit(told map[driver.Function]int, f driver.Function, shared uint32) error {
	const static = 128 // that of norm_grad
	limit, ok := told[f]
	if !ok {
		limit = 48<<10 - static
	}
	if int(shared) > limit {
		return fmt.Errorf("CUDA_ERROR_INVALID_VALUE: %d bytes of dynamic shared memory, want at most %d", shared, limit)
	}
	return nil
}

// together compiles nothing before two programs were asked for.
type together struct {
	stubCompiler
	both *sync.WaitGroup
}

func (c together) Compile(name, _, _ string, _ []string) ([]byte, error) {
	c.both.Done()
	c.both.Wait()
	if name == "norm_f32.cu" {
		return nil, errors.New("norm.cu: line 1")
	}
	return []byte(name), nil
}

// TestProgramsTogether: programs are compiled concurrently, as soon as they are checked, and an
// error of one is reported when they are loaded.
func TestProgramsTogether(t *testing.T) {
	var both sync.WaitGroup
	both.Add(2)
	e := newKernels(&recorder{shared: map[driver.Function]int{}}, together{both: &both}, 90, 227<<10)
	graph := ir.NewGraph("two")
	x, err := graph.Leaf(ir.OpInput, "x", ir.Type{DType: ir.F32, Shape: []int{5, 7}}, nil)
	require.NoError(t, err)
	w, err := graph.Leaf(ir.OpInput, "w", ir.Type{DType: ir.F32, Shape: []int{7}}, nil)
	require.NoError(t, err)
	sum, err := graph.Add(ir.OpAdd, nil, "sum", ir.Forward, x, x)
	require.NoError(t, err)
	norm, err := graph.Add(ir.OpRMSNorm, ir.RMSNormAttr{Eps: 1e-5}, "norm", ir.Forward, x, w)
	require.NoError(t, err)
	for _, n := range []*ir.Node{sum, norm} {
		k := &runtime.Kernel{Node: n, Accum: make([]bool, len(n.Results))}
		for _, v := range n.Args {
			k.Args = append(k.Args, runtime.Tensor{DType: v.Type.DType, Slab: ir.Whole(v.Type.Shape)})
		}
		for _, v := range n.Results {
			k.Results = append(k.Results, runtime.Tensor{DType: v.Type.DType, Slab: ir.Whole(v.Type.Shape)})
		}
		require.NoError(t, e.Check(kernel.Group{k}))
	}
	require.EqualError(t, e.Load(), "norm.cu: line 1")
}

// TestEngine checks that programs are compiled once, before they are launched, for the GPU's
// architecture.
func TestEngine(t *testing.T) {
	r := &recorder{shared: map[driver.Function]int{}}
	e := newKernels(r, compiler{r}, 90, 227<<10)
	graph := ir.NewGraph("add")
	x, err := graph.Leaf(ir.OpInput, "x", ir.Type{DType: ir.F32, Shape: []int{5, 7}}, nil)
	require.NoError(t, err)
	n, err := graph.Add(ir.OpAdd, nil, "y", ir.Forward, x, x)
	require.NoError(t, err)
	at := runtime.Tensor{DType: ir.F32, Slab: ir.Whole([]int{5, 7})}
	g := kernel.Group{{Node: n, Args: []runtime.Tensor{at, at}, Results: []runtime.Tensor{at}, Accum: []bool{false}}}
	require.NoError(t, e.Check(g))
	require.NoError(t, e.Check(g))
	require.NoError(t, e.Load())
	require.Len(t, r.compiled, 1)
	require.Contains(t, r.compiled[0], " sm_90a --std=c++17")
	run, err := e.Prepare(g, func(runtime.Tensor) uint64 { return 0 }, 0)
	require.NoError(t, err)
	require.Empty(t, r.launched)
	for range 2 {
		require.NoError(t, run(1))
	}
	require.Len(t, r.launched, 2)
	require.NoError(t, e.Reduce(1, ir.Sum, ir.BF16, 0x100, []driver.Ptr{0x100, 0x200}, 9))
	require.NoError(t, e.Reduce(1, ir.Max, ir.F32, 0x100, []driver.Ptr{0x100, 0x200}, 9))
	require.Equal(t, []string{"reduce_sum_bf16", "reduce_max_f32"}, r.launched[2:])
	require.ErrorContains(t, e.Reduce(1, ir.Sum, ir.F32, 0x100, make([]driver.Ptr, 17), 9), "17 ranks on one GPU, want at most 16")
	require.NoError(t, e.Close())
	require.Equal(t, "sm_86", archOf(86))
}

// TestSharedMemory launches a function with the shared memory that it was prepared with, whatever
// other launches need, and whatever it was compiled with.
func TestSharedMemory(t *testing.T) {
	r := &recorder{shared: map[driver.Function]int{}}
	e := newKernels(r, compiler{r}, 90, 227<<10)
	var launches []kernel.Launch
	for _, bytes := range []uint32{8 * 6144, 200 << 10, 60 << 10, 1 << 10, 0} {
		launches = append(launches, kernel.Launch{Program: "norm_f32.cu", Name: "norm_grad_f32", Shared: bytes})
		f, err := e.function(launches[len(launches)-1])
		require.NoError(t, err)
		for i := range launches {
			require.NoError(t, e.launch(f, &launches[i], 1))
		}
	}
	require.Len(t, r.names, 1)
}

// TestTooLittleSharedMemory: a kernel whose blocks need more shared memory than those of the GPU have is
// refused when its program is loaded, with both numbers.
func TestTooLittleSharedMemory(t *testing.T) {
	const ampere = 99 << 10 // compute capability 8.6, and 8.9 and 12.0
	whole := func(d ir.DType, shape ...int) runtime.Tensor { return runtime.Tensor{DType: d, Slab: ir.Whole(shape)} }
	check := func(d ir.DType, width int) error {
		o, lse := whole(d, 2, 64, 1, 2, width), whole(ir.F32, 2, 1, 2, 64)
		qkv, number := whole(d, 2, 64, 3, 2, width), whole(ir.I32)
		grad := &runtime.Kernel{
			Node: &ir.Node{Op: ir.OpAttentionGrad, Name: "grad", Attr: ir.DropoutAttr{}}, Accum: []bool{false},
			Args: []runtime.Tensor{o, qkv, o, lse, number, number}, Results: []runtime.Tensor{qkv},
		}
		return newKernels(&recorder{}, stubCompiler{}, 86, ampere).Check(kernel.Group{grad})
	}
	for _, width := range []int{64, 128, 179} {
		require.NoError(t, check(ir.F32, width), "width %d", width)
		require.NoError(t, check(ir.BF16, width), "width %d", width)
	}
	err := check(ir.F32, 256)
	var refused *DeviceError
	require.ErrorAs(t, err, &refused)
	require.EqualError(t, err, "cuda: attention_dq_256_f32 needs 135808 bytes of shared memory in a block, this GPU (sm_86) has at most 101376")
}

// compiler is the recorder as a compiler.
type compiler struct{ *recorder }

func (compiler) Version() int { return 13000 }
