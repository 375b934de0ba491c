package cuda_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	goruntime "runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/cuda"
	"github.com/autopar/autopar/cuda/cudatest"
	"github.com/autopar/autopar/cuda/driver"
	"github.com/autopar/autopar/cuda/driver/fake"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/half"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/backendtest"
)

// current makes GPU 0 current on the test's thread, and returns a stream of it.
func current(t *testing.T, system *cuda.System) (driver.Driver, driver.Stream) {
	t.Helper()
	goruntime.LockOSThread()
	t.Cleanup(goruntime.UnlockOSThread)
	drv := system.Driver
	c, err := drv.RetainPrimary(0)
	require.NoError(t, err)
	t.Cleanup(func() { drv.ReleasePrimary(0) })
	require.NoError(t, drv.SetCurrent(c))
	s, err := drv.CreateStream()
	require.NoError(t, err)
	t.Cleanup(func() { drv.DestroyStream(s) })
	return drv, s
}

// TestGPUConformance runs the conformance suite on a GPU, with all ranks on it.
func TestGPUConformance(t *testing.T) {
	system := cudatest.Machine(t)
	t.Log(system.Versions)
	open := func(t *testing.T) runtime.Backend { return cuda.New(system, cuda.Options{Loopback: true}) }
	backendtest.RunAlone(t, open)
	backendtest.RunFused(t, open, func(ir.Op, ir.Attr) bool { return false })
	backendtest.RunTogether(t, open)
}

// TestGPUEpilogues compares products with epilogues of cuBLASLt with float64, even where computing
// the epilogue apart would be faster.
func TestGPUEpilogues(t *testing.T) { testEpilogues(t, cudatest.Machine(t)) }

// TestEpilogues is the same on the fake.
func TestEpilogues(t *testing.T) {
	system, err := cudatest.NewSystem(fake.New(fake.Options{}))
	require.NoError(t, err)
	testEpilogues(t, system)
}

func testEpilogues(t *testing.T, system *cuda.System) {
	drv, s := current(t, system)
	blas, err := system.BLAS(0)
	require.NoError(t, err)
	defer blas.Close()
	const M, N, K, most = 136, 72, 200, 136 * 200
	host, err := drv.AllocHost(4 * most)
	require.NoError(t, err)
	defer drv.FreeHost(host)
	var at [5]driver.Ptr // operands, result, vector, workspace
	for i := range at {
		at[i], err = drv.Alloc(max(4*most, blas.Workspace()))
		require.NoError(t, err)
		defer drv.Free(at[i])
	}
	seed := rand.Uint64()
	t.Log("seed", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	fill := func(p driver.Ptr, d ir.DType, n int) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = d.Round(rng.Float64() - 0.5)
			d.Write(host[int64(i)*d.Size():], float32(x[i]))
		}
		require.NoError(t, drv.CopyToDevice(p, host[:int64(n)*d.Size()], s))
		require.NoError(t, drv.SyncStream(s))
		return x
	}
	compare := func(name string, p driver.Ptr, d ir.DType, want []float64) {
		require.NoError(t, drv.CopyToHost(host[:int64(len(want))*d.Size()], p, s))
		require.NoError(t, drv.SyncStream(s))
		tolerance := map[ir.DType]float64{ir.F32: 1e-4, ir.BF16: 0.05, ir.F16: 0.01}[d]
		half := map[ir.DType]float64{ir.BF16: 0x1p-8, ir.F16: 0x1p-11}[d] // a unit in the last place of large results
		for i, w := range want {
			require.InDelta(t, w, d.Read(host[int64(i)*d.Size():]), max(tolerance, math.Abs(w)*half), "%s of %s, element %d", name, d, i)
		}
	}
	for _, d := range []ir.DType{ir.F32, ir.BF16, ir.F16} {
		for _, g := range []driver.GEMM{
			{M: M, N: N, K: K, TransA: true, LDA: K, LDB: K, LDC: M, Epilogue: driver.AddBias},
			{M: M, N: N, K: K, TransB: true, LDA: M, LDB: N, LDC: M, Epilogue: driver.SumB},
		} {
			g.TypeA, g.TypeB, g.TC = d, d, d
			a, b := fill(at[0], d, M*K), fill(at[1], d, K*N)
			vector, result := fill(at[3], d, max(M, N)), make([]float64, M*N)
			sums := make([]float64, N)
			for n := range N {
				for k := range K {
					y := b[n*K+k]
					if g.TransB {
						y = b[k*N+n]
					}
					sums[n] += y
					for m := range M {
						x := a[k*M+m]
						if g.TransA {
							x = a[m*K+k]
						}
						result[n*M+m] += x * y
					}
				}
				for m := range M {
					if g.Epilogue == driver.AddBias {
						result[n*M+m] += vector[m]
					}
				}
			}
			apart := 0
			slow := func() error { // slow, so that it is not chosen
				apart++
				for range 50 {
					if err := drv.Set8(at[2], 0, 4*most, s); err != nil {
						return err
					}
				}
				return nil
			}
			product := func() error { return blas.With(g, at[0], at[1], at[2], at[3], at[4], s, slow) }
			require.NoError(t, product())
			apart = 0
			require.NoError(t, drv.Set8(at[2], 0xff, 4*most, s))
			require.NoError(t, product())
			if apart > 0 {
				t.Logf("%s: cuBLASLt has no such product", g)
				continue
			}
			compare(g.String(), at[2], d, result)
			if g.Epilogue == driver.SumB {
				compare(g.String(), at[3], d, sums)
			}
		}
	}
}

// TestGPUOneRankNCCL makes every collective with NCCL and one rank, for which each is a copy. It
// checks names, types, streams and IDs. It also sends messages to itself, in a graph too.
func TestGPUOneRankNCCL(t *testing.T) {
	system := cudatest.Machine(t)
	testOneRankNCCL(t, system)
	testMessagesToItself(t, system)
}

// TestOneRankNCCL is the same on the fake.
func TestOneRankNCCL(t *testing.T) {
	system, err := cudatest.NewSystem(fake.New(fake.Options{}))
	require.NoError(t, err)
	testOneRankNCCL(t, system)
	testMessagesToItself(t, system)
}

func testMessagesToItself(t *testing.T, system *cuda.System) {
	lib, err := system.Collectives(1)
	if err != nil {
		t.Skip(err)
	}
	drv, s := current(t, system)
	const elems = 1031
	host, err := drv.AllocHost(4 * elems)
	require.NoError(t, err)
	defer drv.FreeHost(host)
	var at [2]driver.Ptr
	for i := range at {
		at[i], err = drv.Alloc(4 * elems)
		require.NoError(t, err)
		defer drv.Free(at[i])
	}
	id, err := lib.NewID()
	require.NoError(t, err)
	comm, err := lib.Join(1, id, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, comm.Close()) }()
	message := func() error {
		return errors.Join(lib.GroupStart(), comm.Send(at[0], elems, ir.F32, 0, s), comm.Recv(at[1], elems, ir.F32, 0, s), lib.GroupEnd())
	}
	check := func(round byte, send func() error) {
		want := make([]byte, len(host))
		for i := range host {
			want[i] = byte(i) ^ round
		}
		copy(host, want)
		require.NoError(t, drv.CopyToDevice(at[0], host, s))
		require.NoError(t, drv.Set8(at[1], 0xff, 4*elems, s))
		require.NoError(t, send())
		require.NoError(t, drv.SyncStream(s))
		require.NoError(t, drv.CopyToHost(host, at[1], s))
		require.NoError(t, drv.SyncStream(s))
		require.Equal(t, want, append([]byte(nil), host...))
	}
	check(1, message)
	require.NoError(t, drv.BeginCapture(s))
	require.NoError(t, message())
	g, err := drv.EndCapture(s)
	require.NoError(t, err)
	defer drv.DestroyGraph(g)
	exec, err := drv.Instantiate(g)
	require.NoError(t, err)
	defer drv.DestroyExec(exec)
	for round := range byte(3) {
		check(round, func() error { return drv.LaunchGraph(exec, s) })
	}
}

func testOneRankNCCL(t *testing.T, system *cuda.System) {
	lib, err := system.Collectives(1)
	if err != nil {
		t.Skip(err)
	}
	version, err := lib.Version()
	require.NoError(t, err)
	t.Logf("NCCL %d", version)
	for i, d := range []ir.DType{ir.F32, ir.BF16, ir.F16, ir.Q64} {
		for j, op := range []ir.Op{ir.OpAllReduce, ir.OpReduceScatter, ir.OpAllGather, ir.OpAllToAll} {
			for s := range runtime.Host {
				b := cuda.New(system, cuda.Options{})
				ds, err := b.Open(runtime.World{Ranks: 1, Timeout: time.Minute})
				require.NoError(t, err)
				slab := ir.Whole([]int{33, 35})
				in := runtime.Tensor{DType: d, Slab: slab}
				out := runtime.Tensor{DType: d, Slab: slab, Offset: (in.Bytes() + 63) / 64 * 64}
				c := &runtime.Collective{Node: &ir.Node{Op: op, Name: "x@" + op.String()}, Members: []runtime.Member{{In: in, Out: out}}, Stream: s}
				require.NoError(t, backendtest.Load(ds, 2*out.Offset, backendtest.All(*c)))
				want, got := make([]byte, in.Bytes()), make([]byte, in.Bytes())
				rng := rand.New(rand.NewPCG(uint64(i), uint64(j)))
				for k := 0; k < len(want); k += 2 { // as halves and as floats, these are near 1
					want[k], want[k+1] = byte(rng.Uint32()), 0x3f
				}
				require.NoError(t, ds[0].Upload(runtime.OnDevice, in.Offset, want))
				if s != runtime.Compute {
					require.NoError(t, ds[0].Record(runtime.Compute))
					require.NoError(t, ds[0].Wait(s, runtime.Event{Stream: runtime.Compute, N: 1}))
				}
				require.NoError(t, ds[0].Collective(c), "%s of %s", op, d)
				require.NoError(t, ds[0].Record(s))
				require.NoError(t, ds[0].Wait(runtime.Host, runtime.Event{Stream: s, N: 1}))
				require.NoError(t, ds[0].Download(got, runtime.OnDevice, out.Offset))
				require.Equal(t, want, got, "%s of %s", op, d)
				require.NoError(t, ds[0].Close())
			}
		}
	}
}

// TestGPUProductRates times the matrix products of a GPT-2 124M step and prints a table.
func TestGPUProductRates(t *testing.T) {
	if os.Getenv("AUTOPAR_TEST_RATES") == "" {
		t.Skip("AUTOPAR_TEST_RATES is not set: it takes a GPU for a minute, and prints a table")
	}
	system := cudatest.Machine(t)
	drv, s := current(t, system)
	blas, err := system.BLAS(0)
	require.NoError(t, err)
	defer blas.Close()
	const tokens, C, V = 32 * 1024, 768, 50304
	biggest := int64(tokens * V * 4)
	var at [4]driver.Ptr
	for i, bytes := range []int64{biggest, biggest, biggest, blas.Workspace()} {
		at[i], err = drv.Alloc(bytes)
		require.NoError(t, err)
		defer drv.Free(at[i])
	}
	noise(t, drv, at[:2], biggest, s)
	fmt.Println("| product, 32,768 tokens | bf16 TFLOP/s | f32 TFLOP/s |\n|---|---|---|")
	for _, l := range []struct {
		name    string
		in, out int64
	}{{"c_attn", C, 3 * C}, {"attn.c_proj", C, C}, {"c_fc", C, 4 * C}, {"mlp.c_proj", 4 * C, C}, {"head", C, V}} {
		for _, p := range []struct {
			name string
			g    driver.GEMM
		}{
			{"forward", driver.GEMM{M: l.out, N: tokens, K: l.in, TransA: true, LDA: l.in, LDB: l.in, LDC: l.out}},
			{"of inputs", driver.GEMM{M: l.in, N: tokens, K: l.out, LDA: l.in, LDB: l.out, LDC: l.in}},
			{"of weights", driver.GEMM{M: l.in, N: l.out, K: tokens, TransB: true, LDA: l.in, LDB: l.out, LDC: l.in}},
		} {
			row := fmt.Sprintf("| %s %s %dx%dx%d", l.name, p.name, p.g.M, p.g.N, p.g.K)
			for _, d := range []ir.DType{ir.BF16, ir.F32} {
				g := p.g
				g.TypeA, g.TypeB, g.TC = d, d, d
				row += fmt.Sprintf(" | %.1f", rate(t, drv, blas, g, at, s))
			}
			fmt.Println(row + " |")
		}
	}
}

// noise fills memory with numbers of the size of activations, whether read as bf16 or f32.
func noise(t *testing.T, drv driver.Driver, at []driver.Ptr, bytes int64, s driver.Stream) {
	const piece = 1 << 24
	m, err := drv.AllocHost(piece)
	require.NoError(t, err)
	rng := rand.New(rand.NewPCG(1, 1))
	for i := 0; i < piece; i += 2 {
		x := half.BF16(float32(rng.NormFloat64()))
		m[i], m[i+1] = byte(x), byte(x>>8)
	}
	for _, p := range at {
		for from := int64(0); from < bytes; from += piece {
			require.NoError(t, drv.CopyToDevice(p+driver.Ptr(from), m[:min(piece, bytes-from)], s))
		}
	}
	require.NoError(t, drv.SyncStream(s))
	require.NoError(t, drv.FreeHost(m))
}

// rate returns TFLOP/s: the best of five measurements of some 50 ms.
func rate(t *testing.T, drv driver.Driver, blas driver.BLAS, g driver.GEMM, at [4]driver.Ptr, s driver.Stream) float64 {
	flops := 2 * float64(g.M) * float64(g.N) * float64(g.K)
	turns := int(math.Ceil(2e13 / flops))
	run := func(n int) float64 {
		var ends [2]driver.Event
		for i := range ends {
			var err error
			ends[i], err = drv.CreateEvent(true)
			require.NoError(t, err)
			defer drv.DestroyEvent(ends[i])
		}
		require.NoError(t, drv.RecordEvent(ends[0], s))
		for range n {
			require.NoError(t, blas.MatMul(g, at[0], at[1], at[2], at[3], s))
		}
		require.NoError(t, drv.RecordEvent(ends[1], s))
		require.NoError(t, drv.SyncStream(s))
		ms, err := drv.Elapsed(ends[0], ends[1])
		require.NoError(t, err)
		return flops * float64(n) / float64(ms) / 1e9
	}
	run(1)
	best := 0.0
	for range 5 {
		best = max(best, run(turns))
	}
	return best
}
