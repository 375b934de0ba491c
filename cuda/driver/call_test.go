package driver

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
)

func addressOf(b []byte) uintptr { return uintptr(unsafe.Pointer(&b[0])) }

// TestDriverCalls checks names, order and width of the arguments of every call, and what
// comes back.
func TestDriverCalls(t *testing.T) {
	f := loadFakes(t)
	d, err := newLibcuda(f.lib)
	require.NoError(t, err)
	require.Equal(t, []string{"cuInit 0"}, f.said())

	version, err := d.Version()
	require.NoError(t, err)
	require.Equal(t, 13000, version)
	count, err := d.DeviceCount()
	require.NoError(t, err)
	require.Equal(t, 2, count)
	name, err := d.DeviceName(1)
	require.NoError(t, err)
	require.Equal(t, "Fake 41", name, "by the driver's number of the device")
	bytes, err := d.DeviceMemory(0)
	require.NoError(t, err)
	require.EqualValues(t, 5<<33, bytes)
	major, err := d.Attribute(1, CapabilityMajor)
	require.NoError(t, err)
	require.Equal(t, 75041, major)
	free, total, err := d.MemInfo()
	require.NoError(t, err)
	require.EqualValues(t, []int64{3 << 32, 5 << 33}, []int64{free, total})
	f.said()

	c, err := d.RetainPrimary(1)
	require.NoError(t, err)
	require.EqualValues(t, 0x1111222233334444, c)
	require.NoError(t, d.SetCurrent(c))
	require.NoError(t, d.ReleasePrimary(1))
	p, err := d.Alloc(7 << 33)
	require.NoError(t, err)
	require.EqualValues(t, 0x7f0000001000, p)
	host, err := d.AllocHost(100)
	require.NoError(t, err)
	require.Len(t, host, 100)
	require.EqualValues(t, 7, host[99])
	const s, e = Stream(0x5555), Event(0x6661)
	require.NoError(t, d.CopyToDevice(p+8, host[3:13], s))
	require.NoError(t, d.CopyToHost(host[5:9], p+16, s))
	require.NoError(t, d.Copy(p, p+64, 1<<33, s))
	require.NoError(t, d.Set8(p, 255, 9, s))
	require.NoError(t, d.FreeHost(host))
	require.NoError(t, d.Free(p))
	require.Equal(t, []string{
		"cuDevicePrimaryCtxRetain 29", "cuCtxSetCurrent 1111222233334444", "cuDevicePrimaryCtxRelease_v2 29",
		"cuMemAlloc_v2 e00000000", "cuMemHostAlloc 64 1",
		"cuMemcpyHtoDAsync_v2 7f0000001008 3 a 5555", "cuMemcpyDtoHAsync_v2 5 7f0000001010 4 5555",
		"cuMemcpyAsync 7f0000001000 7f0000001040 200000000 5555", "cuMemsetD8Async 7f0000001000 ff 9 5555",
		"cuMemFreeHost 1", "cuMemFree_v2 7f0000001000",
	}, f.said())

	stream, err := d.CreateStream()
	require.NoError(t, err)
	require.Equal(t, s, stream)
	event, err := d.CreateEvent(false)
	require.NoError(t, err)
	require.Equal(t, e, event)
	_, err = d.CreateEvent(true)
	require.NoError(t, err)
	require.NoError(t, d.RecordEvent(e, s))
	require.NoError(t, d.WaitEvent(s, e))
	done, err := d.EventDone(e)
	require.NoError(t, err)
	require.True(t, done)
	f.failNext("cuEventQuery", 600)
	done, err = d.EventDone(e)
	require.NoError(t, err)
	require.False(t, done, "CUDA_ERROR_NOT_READY is no failure")
	ms, err := d.Elapsed(e, e+1)
	require.NoError(t, err)
	require.EqualValues(t, 9, ms)
	require.NoError(t, d.SyncStream(s))
	require.NoError(t, d.DestroyEvent(e))
	require.NoError(t, d.DestroyStream(s))
	require.Equal(t, []string{
		"cuStreamCreate 1", "cuEventCreate 2", "cuEventCreate 0", "cuEventRecord 6661 5555", "cuStreamWaitEvent 5555 6661 0",
		"cuEventQuery 6661", "cuEventQuery 6661", "cuEventElapsedTime 1", "cuStreamSynchronize 5555", "cuEventDestroy_v2 6661", "cuStreamDestroy_v2 5555",
	}, f.said())

	m, err := d.LoadModule([]byte{0x7f, 'E', 'L', 'F'})
	require.NoError(t, err)
	fn, err := d.ModuleFunction(m, "kernel")
	require.NoError(t, err)
	regs, err := d.FunctionAttribute(fn, Registers)
	require.NoError(t, err)
	require.Equal(t, 77, regs)
	require.NoError(t, d.SetFunctionAttribute(fn, SharedMax, 200<<10))
	args := []uint64{0x7f0000001000, 0xffffffff_00000005, 0xffffffff_00000000 | uint64(math.Float32bits(2.5)), 1 << 40}
	require.NoError(t, d.Launch(fn, Dims{1, 2, 3}, Dims{4, 5, 6}, 7, s, args))
	g := Graph(0xaaaa)
	require.NoError(t, d.BeginCapture(s))
	captured, err := d.EndCapture(s)
	require.NoError(t, err)
	require.Equal(t, g, captured)
	x, err := d.Instantiate(g)
	require.NoError(t, err)
	require.NoError(t, d.LaunchGraph(x, s))
	require.NoError(t, d.DestroyExec(x))
	require.NoError(t, d.DestroyGraph(g))
	require.NoError(t, d.UnloadModule(m))
	require.Equal(t, []string{
		"cuModuleLoadData 7f", "cuModuleGetFunction 8888 6", "cuFuncGetAttribute 4 9999", "cuFuncSetAttribute 9999 8 32000",
		"cuLaunchKernel 9999 1 2 3 4 5 6 7 5555 7f0000001000 5 a 10000000000 0",
		"cuStreamBeginCapture_v2 5555 1", "cuStreamEndCapture 5555", "cuGraphInstantiateWithFlags aaaa 0", "cuGraphLaunch bbbb 5555",
		"cuGraphExecDestroy bbbb", "cuGraphDestroy aaaa", "cuModuleUnload 8888",
	}, f.said())

	f.failNext("cuMemAlloc_v2", 2)
	_, err = d.Alloc(5)
	var refused *Error
	require.ErrorAs(t, err, &refused)
	require.True(t, refused.OutOfMemory())
	require.EqualError(t, err, "cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2)")
}

// TestCompile compiles, fails with the compiler's log, and finds what it compiled before.
func TestCompile(t *testing.T) {
	f := loadFakes(t)
	c, err := newNVRTC(f.lib)
	require.NoError(t, err)
	require.Equal(t, 13000, c.Version())
	cubin, err := c.Compile("a.cu", "right", "sm_90a", []string{"--std=c++17", "-x"})
	require.NoError(t, err)
	require.Equal(t, "a.cu|--gpu-architecture=sm_90a;--std=c++17;-x;", string(cubin))
	require.Equal(t, []string{"nvrtcCreateProgram 5 0 0 0", "nvrtcCompileProgram cccc 3", "nvrtcDestroyProgram cccc"}, f.said())
	_, err = c.Compile("a.cu", "wrong", "sm_80", nil)
	require.ErrorContains(t, err, "compiling a.cu for sm_80: nvrtcCompileProgram: NVRTC_ERROR_COMPILATION (6)\nline 1: wrong")
	_, err = c.Compile("a.cu", "right", "sm_999", nil)
	var missing *MissingError
	require.ErrorAs(t, err, &missing)
	require.ErrorContains(t, err, "has version CUDA 13.0, which does not compile for this GPU (sm_999: invalid value); ")
	f.said()

	dir := filepath.Join(t.TempDir(), "new")
	kept := Cached(c, dir)
	for range 2 {
		cubin, err := kept.Compile("a.cu", "right", "sm_90a", nil)
		require.NoError(t, err)
		require.Equal(t, "a.cu|--gpu-architecture=sm_90a;", string(cubin))
	}
	require.Len(t, f.said(), 3, "once")
	files, err := filepath.Glob(filepath.Join(dir, "*.cubin"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	for i, spoil := range []func(b []byte) []byte{
		func(b []byte) []byte { return b }, func(b []byte) []byte { return b[:len(b)/2] }, func([]byte) []byte { return nil },
		func(b []byte) []byte { b[0]++; return b },
	} {
		file, err := os.ReadFile(files[0])
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(files[0], spoil(file), 0o644))
		cubin, err := Cached(c, dir).Compile("a.cu", "right", "sm_90a", nil)
		require.NoError(t, err)
		require.Equal(t, "a.cu|--gpu-architecture=sm_90a;", string(cubin))
		require.Equal(t, min(i, 1), strings.Count(strings.Join(f.said(), "\n"), "nvrtcCompileProgram"), "a file that is not whole is made again")
	}
	for _, other := range [][2]string{{"b.cu", "sm_90a"}, {"a.cu", "sm_80"}} {
		_, err := kept.Compile(other[0], "right", other[1], nil)
		require.NoError(t, err)
		require.Len(t, f.said(), 3, "%v is another program", other)
	}
	_, err = kept.Compile("a.cu", "right", "sm_90a", []string{"-x"})
	require.NoError(t, err)
	require.Len(t, f.said(), 3)
	slow := &slowCompiler{Compiler: c}
	kept = Cached(slow, t.TempDir())
	var all sync.WaitGroup
	for range 8 { // as GPUs of one process do
		all.Go(func() { kept.Compile("a.cu", "right", "sm_90a", nil) })
	}
	all.Wait()
	require.EqualValues(t, 1, slow.calls.Load())
	f.said()
	for _, dir := range []string{"/proc/nowhere", ""} { // without a directory that can be written
		kept = Cached(c, dir)
		for range 2 {
			cubin, err := kept.Compile("a.cu", "right", "sm_90a", nil)
			require.NoError(t, err)
			require.Equal(t, "a.cu|--gpu-architecture=sm_90a;", string(cubin))
		}
		require.Len(t, f.said(), 3, "once a process in %q", dir)
	}
}

// slowCompiler is not done before all have asked.
type slowCompiler struct {
	Compiler
	calls atomic.Int32
}

func (c *slowCompiler) Compile(name, _, _ string, _ []string) ([]byte, error) {
	c.calls.Add(1)
	time.Sleep(50 * time.Millisecond)
	return []byte(name), nil
}

// TestProducts checks how a product is described, that the fastest candidate is kept for all GPUs
// of a kind and for the next run, and that accumulation works.
func TestProducts(t *testing.T) {
	f := loadFakes(t)
	d, err := newLibcuda(f.lib)
	require.NoError(t, err)
	dir := t.TempDir()
	l, err := newLt(f.lib, LtOptions{Dir: dir})
	require.NoError(t, err)
	require.Equal(t, "13.1.3", l.Version())
	b, err := l.Open(d, "H200")
	require.NoError(t, err)
	f.said()

	g := GEMM{M: 3, N: 5, K: 7, TransA: true, LDA: 7, LDB: 8, LDC: 3, TypeA: ir.BF16, TypeB: ir.BF16, TC: ir.F32}
	choose(t, b, g)
	said := f.said()
	require.Contains(t, said, "cublasLtMatmulDescCreate 44 0", "f32 sums")
	require.Contains(t, said, "cublasLtMatmulDescSetAttribute d1 3 1 4", "a is transposed")
	require.Contains(t, said, "cublasLtMatmulDescSetAttribute d1 4 0 4")
	require.Contains(t, said, "cublasLtMatrixLayoutCreate e 7 3 7", "a as it is stored")
	require.Contains(t, said, "cublasLtMatrixLayoutCreate e 7 5 8")
	require.Contains(t, said, "cublasLtMatrixLayoutCreate 0 3 5 3")
	require.Contains(t, said, "cublasLtMatmulPreferenceSetAttribute f0 1 2000000 8", "workspace")
	require.Contains(t, said, "cublasLtMatmulPreferenceSetAttribute f0 3 2 4", "parts are added in f32")
	for attr := range uint64(4) {
		require.Contains(t, said, line("cublasLtMatmulPreferenceSetAttribute", 0xf0, 5+attr, 64, 4))
	}
	require.Contains(t, said, "cublasLtMatmulAlgoGetHeuristic d0 d1 e0 e1 e2 e2 f0 18")
	require.Contains(t, said, line("cublasLtMatmul", 0xd0, 0xd1, 1, 0xa00, 0xe0, 0xb00, 0xe1, 0, 0xc00, 0xe2, 0x7f0000001000, 0xe2, 100, 107, 0xd00, 32<<20, 0x5555),
		"trials leave the result alone")
	require.Contains(t, said, "cuMemFree_v2 7f0000001000")
	require.NoError(t, b.MatMul(g, 0xa00, 0xb00, 0xc00, 0xd00, 0x5555))
	require.Equal(t, []string{line("cublasLtMatmul", 0xd0, 0xd1, 1, 0xa00, 0xe0, 0xb00, 0xe1, 0, 0xc00, 0xe2, 0xc00, 0xe2, 200, 207, 0xd00, 32<<20, 0x5555)}, f.said(),
		"the second of three was fastest, and is chosen once")
	g.Accumulate = true
	other, err := l.Open(d, "H200")
	require.NoError(t, err)
	require.NoError(t, other.MatMul(g, 0xa00, 0xb00, 0xc00, 0xd00, 0x5555))
	said = f.said()
	require.Contains(t, said[len(said)-1], "cublasLtMatmul d0 d1 1 a00 e0 b00 e1 1 c00", "added to what is there")
	require.NoError(t, b.MatMul(g, 0xa00, 0xb00, 0xc00, 0xd00, 0x5555))
	require.NotContains(t, f.said(), "cublasLtMatmulPreferenceCreate 0", "another GPU of the kind has chosen")

	again, err := newLt(f.lib, LtOptions{Dir: dir})
	require.NoError(t, err)
	next, err := again.Open(d, "H200")
	require.NoError(t, err)
	require.NoError(t, next.MatMul(g, 0xa00, 0xb00, 0xc00, 0xd00, 0x5555))
	require.NotContains(t, f.said(), "cublasLtMatmulPreferenceCreate 0", "the next run finds the choice")
	require.NoError(t, next.Close())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cublaslt-130103.txt"), []byte("nonsense\n00 short\n"), 0o644))
	_, err = newLt(f.lib, LtOptions{Dir: dir})
	require.NoError(t, err)

	fresh, err := newLt(f.lib, LtOptions{})
	require.NoError(t, err)
	b, err = fresh.Open(d, "H200")
	require.NoError(t, err)
	require.NoError(t, b.MatMul(GEMM{M: 1, N: 1, K: 1, LDA: 1, LDB: 1, LDC: 1}, 0xa00, 0xb00, 0xc00, 0xd00, 0x5555))
	f.failNext("cublasLtCreate", 1)
	none, err := fresh.Open(d, "H200")
	require.EqualError(t, err, "cublasLtCreate: CUBLAS_STATUS (1)")
	require.Nil(t, none, "what has no handle is not closed")
	f.failNext("cublasLtMatmulAlgoGetHeuristic", 15)
	err = b.MatMul(GEMM{M: 2, N: 1, K: 1, LDA: 2, LDB: 1, LDC: 2}, 0xa00, 0xb00, 0xc00, 0xd00, 0x5555)
	require.EqualError(t, err, "gemm NN 2x1x1 ld 2 1 2 f32 f32 to f32: cublasLtMatmulAlgoGetHeuristic: CUBLAS_STATUS_NOT_SUPPORTED (15)")
}

// openLt returns a BLAS of the library's cuBLASLt, and a function of the library that changes what that does.
func (f *fakes) openLt(t *testing.T, change string) (BLAS, proc) {
	d, err := newLibcuda(f.lib)
	require.NoError(t, err)
	l, err := newLt(f.lib, LtOptions{})
	require.NoError(t, err)
	b, err := l.Open(d, "H200")
	require.NoError(t, err)
	var missing error
	changes := f.lib.proc(change, &missing)
	require.NoError(t, missing)
	return b, changes
}

// choose has the library try a product without running it.
func choose(t *testing.T, b BLAS, g GEMM) {
	_, err := b.(*lt).known(g, 0xa00, 0xb00, 0xc00, 0, 0xd00, 0x5555, nil)
	require.NoError(t, err)
}

// TestTrialsEnd: if a product takes long, candidates are tried for a second, the library's best
// first, and computing its epilogue apart in any case.
func TestTrialsEnd(t *testing.T) {
	f := loadFakes(t)
	b, slower := f.openLt(t, "fake_slower")
	trials := func(by uintptr, g GEMM) int {
		slower.call(by)
		f.said()
		choose(t, b, g)
		return strings.Count(strings.Join(f.said(), "\n"), "cublasLtMatmul d0")
	}
	g := GEMM{M: 3, N: 5, K: 7, LDA: 3, LDB: 7, LDC: 3, TypeA: ir.BF16, TypeB: ir.BF16, TC: ir.BF16}
	require.Equal(t, 10, trials(1, g), "four runs of each of two, and two of the third, which takes seven times as long as the second")
	g.Accumulate = true
	require.Equal(t, 8, trials(30, g), "630 ms, 420 ms, and no third")
	g.Accumulate, g.Epilogue = false, AddBias
	slower.call(60)
	apart := 0
	require.NoError(t, b.With(g, 0xa00, 0xb00, 0xc00, 0xe00, 0xd00, 0x5555, func() error { apart++; return nil }))
	require.Equal(t, 5, apart, "timed, and chosen")
}

// openLt opens a cuBLASLt that keeps its choices in a folder.
func openLt(t *testing.T, f *fakes, d Driver, dir string) (*Lt, BLAS) {
	t.Helper()
	l, err := newLt(f.lib, LtOptions{Dir: dir})
	require.NoError(t, err)
	b, err := l.Open(d, "H200")
	require.NoError(t, err)
	f.said()
	return l, b
}

// TestUntimedProducts: without memory for trials a product has the library's first algorithm, for
// all GPUs of this run. The next run tries again, and keeps the result.
func TestUntimedProducts(t *testing.T) {
	f := loadFakes(t)
	d, err := newLibcuda(f.lib)
	require.NoError(t, err)
	dir := t.TempDir()
	open := func() (*Lt, BLAS) { return openLt(t, f, d, dir) }
	g := GEMM{M: 3, N: 5, K: 7, LDA: 3, LDB: 7, LDC: 3, TypeA: ir.BF16, TypeB: ir.BF16, TC: ir.BF16}
	tuned := func(b BLAS, g GEMM) []string {
		choose(t, b, g)
		return f.said()
	}
	const asked = "cublasLtMatmulPreferenceCreate 0"
	l, b := open()
	f.failNext("cuMemAlloc_v2", 2)
	require.NotContains(t, strings.Join(tuned(b, g), "\n"), "cublasLtMatmul d0", "no trials")
	other, err := l.Open(d, "H200")
	require.NoError(t, err)
	require.NotContains(t, tuned(other, g), asked, "another GPU of the kind does as the first")
	timed := g
	timed.M, timed.LDA, timed.LDC = 4, 4, 4
	require.Contains(t, tuned(b, timed), asked)

	_, b = open()
	require.NotContains(t, tuned(b, timed), asked, "it was timed")
	require.Contains(t, tuned(b, g), asked, "it was not")
	_, b = open()
	require.NotContains(t, tuned(b, g), asked, "now it was")
}

// TestProcessesChooseTogether: of processes that run at the same time, the first to choose an algorithm
// chooses for all, and the file keeps what each of them has chosen. One that hangs while it chooses does
// not stop the others.
func TestProcessesChooseTogether(t *testing.T) {
	f := loadFakes(t)
	d, err := newLibcuda(f.lib)
	require.NoError(t, err)
	dir := t.TempDir()
	start := func() (*Lt, BLAS) { return openLt(t, f, d, dir) }
	asks := func(b BLAS, m int64) bool {
		g := GEMM{M: m, N: 5, K: 7, LDA: m, LDB: 7, LDC: m, TypeA: ir.BF16, TypeB: ir.BF16, TC: ir.BF16}
		choose(t, b, g)
		return slices.Contains(f.said(), "cublasLtMatmulPreferenceCreate 0")
	}
	_, first := start()
	hasty, second := start()
	require.True(t, asks(first, 1))
	require.False(t, asks(second, 1), "the first has chosen")
	require.True(t, asks(second, 2))
	require.True(t, asks(first, 3))
	f.failNext("cuMemAlloc_v2", 2)
	require.True(t, asks(first, 6), "without memory for trials")
	require.True(t, asks(second, 6))
	require.True(t, asks(first, 7))
	_, third := start()
	for _, m := range []int64{1, 2, 3, 6, 7} {
		require.False(t, asks(third, m), "product %d", m)
	}

	lock := func() func() {
		unlock, busy := lockFile(filepath.Join(dir, "cublaslt-130103.txt.lock"))
		require.False(t, busy)
		return unlock
	}
	unlock := lock()
	saved := filepath.Join(dir, "cublaslt-130103.txt")
	text, err := os.ReadFile(saved)
	require.NoError(t, err)
	digits, _, _ := strings.Cut(string(text), " ")
	chosen := fmt.Appendf(text, "%s H200, %s\n", digits, GEMM{M: 9, N: 5, K: 7, LDA: 9, LDB: 7, LDC: 9, TypeA: ir.BF16, TypeB: ir.BF16, TC: ir.BF16})
	written := make(chan error, 1)
	time.AfterFunc(20*time.Millisecond, func() { written <- os.WriteFile(saved, chosen, 0o644) })
	require.False(t, asks(third, 9), "who has the lock has chosen, and goes on to the next product")
	require.NoError(t, <-written)
	unlock()

	unlock = lock()
	hasty.bound = 10 * time.Millisecond
	require.True(t, asks(second, 4))
	hasty.bound = time.Hour
	require.True(t, asks(second, 5), "it waits once")
	unlock()
	require.False(t, asks(first, 4))

	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o644))
	dir = filepath.Join(dir, "file", "no folder")
	nowhere, fourth := start()
	nowhere.bound = time.Hour
	require.True(t, asks(fourth, 1), "where nothing can be locked nobody waits")
}

// TestInvalidCandidates: of what the library lists, only candidates with the state of success are algorithms.
func TestInvalidCandidates(t *testing.T) {
	f := loadFakes(t)
	b, invalid := f.openLt(t, "fake_invalid")
	invalid.call(0)
	defer invalid.call(^uintptr(0))
	f.failNext("cuMemAlloc_v2", 2) // no memory for trials: the first candidate is chosen
	f.said()
	require.NoError(t, b.MatMul(GEMM{M: 3, N: 5, K: 7, LDA: 3, LDB: 7, LDC: 3, TypeA: ir.BF16, TypeB: ir.BF16, TC: ir.BF16}, 0xa00, 0xb00, 0xc00, 0xd00, 0x5555))
	said := f.said()
	require.Equal(t, line("cublasLtMatmul", 0xd0, 0xd1, 1, 0xa00, 0xe0, 0xb00, 0xe1, 0, 0xc00, 0xe2, 0xc00, 0xe2, 200, 207, 0xd00, 32<<20, 0x5555), said[len(said)-1])
}

// TestCollectiveCalls checks NCCL's arguments, including the 128 bytes that are passed by value.
func TestCollectiveCalls(t *testing.T) {
	f := loadFakes(t)
	n, err := newNCCL(f.lib)
	require.NoError(t, err)
	v, err := n.Version()
	require.NoError(t, err)
	require.Equal(t, 22809, v)
	id, err := n.NewID()
	require.NoError(t, err)
	sum := uint64(0)
	for i, b := range id {
		require.EqualValues(t, byte(i*3), b)
		sum = sum*31 + uint64(b)
	}
	c, err := n.Join(8, id, 5)
	require.NoError(t, err)
	require.Equal(t, []string{line("ncclCommInitRank", 8, sum, 5)}, f.said())

	const s = Stream(0x5555)
	require.NoError(t, n.GroupStart())
	require.NoError(t, c.AllReduce(1, 2, 3<<32, ir.BF16, ir.Sum, s))
	require.NoError(t, c.ReduceScatter(1, 2, 3, ir.F32, ir.Max, s))
	require.NoError(t, c.AllGather(1, 2, 3, ir.F16, s))
	require.NoError(t, c.Reduce(1, 2, 3, ir.Q64, ir.Sum, 4, s))
	require.NoError(t, c.Send(1, 2, ir.F32, 3, s))
	require.NoError(t, c.Recv(1, 2, ir.I32, 3, s))
	require.NoError(t, n.GroupEnd())
	require.NoError(t, c.Failure())
	require.NoError(t, c.Close())
	require.NoError(t, c.Abort(), "it has ended")
	require.Equal(t, []string{
		"ncclGroupStart 0", "ncclAllReduce 1 2 300000000 9 0 cc00 5555", "ncclReduceScatter 1 2 3 7 2 cc00 5555", "ncclAllGather 1 2 3 6 cc00 5555",
		"ncclReduce 1 2 3 4 0 4 cc00 5555", "ncclSend 1 2 7 3 cc00 5555", "ncclRecv 1 2 2 3 cc00 5555", "ncclGroupEnd 0",
		"ncclCommGetAsyncError cc00", "ncclCommDestroy cc00",
	}, f.said())
	require.NoError(t, c.Failure(), "it has ended")
	require.Equal(t, []string{""}, f.said())
	c, err = n.Join(8, id, 5)
	require.NoError(t, err)
	f.async.call(6)
	require.EqualError(t, c.Failure(), "NCCL: remote process exited or there was a network error (6)")
	f.async.call(7)
	require.NoError(t, c.Failure(), "in progress")
	f.async.call(0)
	mu := &c.(*ncclComm).mu
	mu.Lock() // held as while it ends
	asked := make(chan error, 1)
	go func() { asked <- c.Failure() }()
	select {
	case err := <-asked:
		require.NoError(t, err)
	case <-time.After(10 * time.Second):
		require.Fail(t, "a wait for the end of a communicator, which may be for what the waiting thread has to do")
	}
	mu.Unlock()
	f.failNext("ncclAllReduce", 4)
	require.EqualError(t, c.AllReduce(1, 2, 3, ir.F32, ir.Sum, s), "ncclAllReduce: unhandled error (4)")
	f.said()
	require.NoError(t, c.Abort())
	require.NoError(t, c.Close())
	require.ErrorIs(t, c.AllReduce(1, 2, 3, ir.F32, ir.Sum, s), errEnded)
	require.Equal(t, []string{"ncclCommAbort cc00"}, f.said())
}

// TestEpilogues checks how a product with an epilogue is described, that every run sets its vector
// anew, and that the epilogue is computed apart if that is faster or the library has no algorithm,
// in this run and the next.
func TestEpilogues(t *testing.T) {
	f := loadFakes(t)
	d, err := newLibcuda(f.lib)
	require.NoError(t, err)
	dir := t.TempDir()
	open := func() BLAS {
		l, err := newLt(f.lib, LtOptions{Dir: dir})
		require.NoError(t, err)
		b, err := l.Open(d, "H200")
		require.NoError(t, err)
		f.said()
		return b
	}
	b, times := open(), 0
	with := func(g GEMM, vector Ptr) []string {
		times = 0
		require.NoError(t, b.With(g, 0xa00, 0xb00, 0xc00, vector, 0xd00, 0x5555, func() error { times++; return nil }))
		return f.said()
	}
	g := GEMM{M: 3, N: 5, K: 7, LDA: 3, LDB: 7, LDC: 3, TypeA: ir.BF16, TypeB: ir.BF16, TC: ir.BF16, Epilogue: AddBias}
	said := with(g, 0xe00)
	require.Contains(t, said, "cublasLtMatmulDescSetAttribute d1 7 4 4", "with bias")
	require.Contains(t, said, "cublasLtMatmulDescSetAttribute d1 8 e00 8")
	require.Equal(t, 2, times, "apart is a candidate, and a slow one")
	said = with(g, 0xf00)
	require.Equal(t, "cublasLtMatmulDescSetAttribute d1 8 f00 8", said[0])
	require.Contains(t, said[1], "cublasLtMatmul d0 d1", "the second of three candidates was faster than apart")
	require.Len(t, said, 2)
	require.Zero(t, times)

	plain := GEMM{M: 9, N: 5, K: 7, LDA: 9, LDB: 7, LDC: 9, TypeA: ir.BF16, TypeB: ir.BF16, TC: ir.BF16}
	joined := plain
	joined.Epilogue = AddBias
	done := make(chan error, 1)
	go func() {
		done <- b.With(joined, 0xa00, 0xb00, 0xc00, 0xe00, 0xd00, 0x5555, func() error { return b.MatMul(plain, 0xa00, 0xb00, 0xc00, 0xd00, 0x5555) })
	}()
	select {
	case err := <-done:
		require.NoError(t, err)
	case <-time.After(10 * time.Second):
		require.Fail(t, "timing what is done apart waits for the choice of its product, which waits for the timing")
	}
	f.said()

	g.Epilogue = SumB
	choose(t, b, GEMM{M: 3, N: 5, K: 7, LDA: 3, LDB: 7, LDC: 3, TypeA: ir.BF16, TypeB: ir.BF16, TC: ir.BF16})
	f.failNext("cublasLtMatmulAlgoGetHeuristic", 15)
	require.Contains(t, with(g, 0xe00), "cublasLtMatmulDescSetAttribute d1 7 200 4", "sums of b")
	require.Equal(t, 1, times, "no algorithm")
	b = open()
	require.NotContains(t, with(g, 0xe00), "cublasLtMatmulPreferenceCreate 0", "which the next run knows")
	require.Equal(t, 1, times)
}
