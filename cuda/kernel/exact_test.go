package kernel_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/cuda/kernel"
	"github.com/autopar/autopar/cuda/kernel/kerneltest"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/philox"
	"github.com/autopar/autopar/runtime"
	"github.com/autopar/autopar/runtime/cpu"
)

// arena allocates tensors and knows their contents.
type arena struct {
	t      *testing.T
	d      runtime.Device
	end    int64
	filled []func()
}

func (a *arena) tensor(d ir.DType, slab ir.Slab, data []byte) runtime.Tensor {
	t := runtime.Tensor{Offset: a.end, DType: d, Slab: slab}
	a.end += (t.Bytes() + 63) / 64 * 64
	a.filled = append(a.filled, func() { require.NoError(a.t, a.d.Upload(runtime.OnDevice, t.Offset, data)) })
	return t
}

func (a *arena) launch(k *runtime.Kernel) {
	require.NoError(a.t, a.d.Alloc(runtime.OnDevice, a.end))
	for _, fill := range a.filled {
		fill()
	}
	require.NoError(a.t, a.d.Launch(k))
}

func (a *arena) bytes(t runtime.Tensor) []byte {
	b := make([]byte, t.Bytes())
	require.NoError(a.t, a.d.Download(b, runtime.OnDevice, t.Offset))
	return b
}

func encode(d ir.DType, x []float32) []byte {
	size := int(d.Size())
	b := make([]byte, size*len(x))
	for i, v := range x {
		d.Write(b[size*i:], v)
	}
	return b
}

func ints(x ...int32) (b []byte) {
	for _, v := range x {
		b = binary.NativeEndian.AppendUint32(b, uint32(v))
	}
	return b
}

func openDevice(t *testing.T) *device {
	d := &device{Worker: kerneltest.Start(t, kerneltest.Build(t)), turned: map[string]bool{}}
	return d
}

// TestAttentionMask reads the dropout mask of attention from its result: with equal scores all
// probabilities are equal, and the value of key j is 1 in element j alone. It must be the mask of
// package philox, for the heads and sequences of this part.
func TestAttentionMask(t *testing.T) {
	t.Parallel()
	const batch, length, groups, heads, width, p, seed, step = 2, 50, 2, 2, 64, 0.4, -5, 7
	for _, dtype := range []ir.DType{ir.F32, ir.BF16} {
		t.Run(dtype.String(), func(t *testing.T) {
			a := arena{t: t, d: openDevice(t)}
			qkvSlab := ir.Slab{Global: []int{4, length, groups + 2, 3, width}, Offset: []int{2, 0, 0, 1, 0}, Local: []int{batch, length, groups + 2, heads, width}}
			oSlab := ir.Slab{Global: []int{4, length, groups, 3, width}, Offset: qkvSlab.Offset, Local: []int{batch, length, groups, heads, width}}
			qkv := make([]float32, qkvSlab.Elems())
			for i := range qkv {
				if part := i / (heads * width) % (groups + 2); part == groups+1 && i%width == i/((groups+2)*heads*width)%length {
					qkv[i] = 1
				}
			}
			attr := ir.DropoutAttr{P: p, Key: "h.1.attn/dropout"}
			o := a.tensor(dtype, oSlab, make([]byte, oSlab.Elems()*dtype.Size()))
			lse := a.tensor(ir.F32, ir.Whole([]int{batch, groups, heads, length}), make([]byte, 4*batch*groups*heads*length))
			a.launch(&runtime.Kernel{
				Node: &ir.Node{Op: ir.OpAttention, Attr: attr},
				Args: []runtime.Tensor{a.tensor(dtype, qkvSlab, encode(dtype, qkv)), a.tensor(ir.I32, ir.Whole(nil), ints(seed)),
					a.tensor(ir.I32, ir.Whole(nil), ints(step))},
				Results: []runtime.Tensor{o, lse}, Accum: make([]bool, 2),
			})
			got := a.bytes(o)
			seeded := int32(seed)
			key := philox.Key{Seed: uint64(uint32(seeded)), Op: philox.OpKey(attr.Key), Step: step}
			kept := 0
			for b := range batch {
				for i := range length {
					for g := range groups {
						for h := range heads {
							for j := range i + 1 {
								at := ((((b+2)*groups+g)*3+h+1)*length+i)*length + j
								local := (((b*length+i)*groups+g)*heads+h)*width + j
								value := got[int64(local)*dtype.Size():][:dtype.Size()]
								keep := key.Keep(uint64(at), p)
								require.Equal(t, keep, string(value) != string(make([]byte, len(value))), "sequence %d, query %d of group %d, head %d, key %d", b, i, g, h, j)
								if keep {
									kept++
								}
							}
						}
					}
				}
			}
			require.NotZero(t, kept)
		})
	}
}

// TestDropoutBits compares dropout of parts and folded sequences with the CPU's, bit by bit.
func TestDropoutBits(t *testing.T) {
	t.Parallel()
	for i, slab := range []ir.Slab{
		ir.Whole([]int{3, 33, 35}), ir.Whole([]int{1 << 12}), ir.Whole([]int{7}),
		{Global: []int{5, 66, 3, 35}, Offset: []int{1, 33, 1, 2}, Local: []int{3, 17, 2, 31}},
		{Global: []int{5, 66, 3, 8}, Offset: []int{1, 33, 1, 4}, Local: []int{3, 17, 2, 4}},
	} {
		for _, fold := range []int{0, 3} {
			if fold > 0 && len(slab.Local) < 2 {
				continue
			}
			attr := ir.DropoutAttr{P: 0.3, Key: "drop", Fold: fold, Dim: min(fold, 1)}
			compareWithCPU(t, fmt.Sprint(i, " fold ", fold), &ir.Node{Op: ir.OpDropout, Attr: attr}, 0, ir.F32, slab, slab)
		}
	}
}

// TestMoves compares the ops that only move elements with the CPU's.
func TestMoves(t *testing.T) {
	t.Parallel()
	whole := ir.Whole([]int{4, 18, 5, 7})
	part := ir.Slab{Global: whole.Global, Offset: []int{1, 7, 0, 2}, Local: []int{2, 9, 5, 4}}
	rows := ir.Slab{Global: whole.Global, Offset: []int{0, 6, 0, 0}, Local: []int{4, 9, 5, 7}}
	for _, dtype := range []ir.DType{ir.F32, ir.BF16, ir.I32, ir.Q64} {
		run := func(op ir.Op, attr ir.Attr, position int, x, y ir.Slab) {
			compareWithCPU(t, fmt.Sprint(op, " of ", dtype), &ir.Node{Op: op, Attr: attr}, position, dtype, x, y)
		}
		run(ir.OpSlice, ir.CommAttr{}, 0, whole, part)
		run(ir.OpSlice, ir.CommAttr{}, 0, whole, whole)
		if dtype == ir.I32 || dtype == ir.Q64 {
			if dtype == ir.Q64 {
				run(ir.OpToPartial, ir.CommAttr{}, 1, whole, whole)
			}
			continue // the CPU has no others
		}
		run(ir.OpFold, ir.CommAttr{Dim: 1, Parts: 2}, 0, whole, rows)
		run(ir.OpFold, ir.CommAttr{Dim: 0, Parts: 2}, 0, whole, whole)
		run(ir.OpUnfold, ir.CommAttr{Dim: 1, Parts: 4}, 0, whole, whole)
		run(ir.OpToPartial, ir.CommAttr{}, 0, whole, whole)
		run(ir.OpToPartial, ir.CommAttr{}, 2, whole, whole)
	}
}

// compareWithCPU runs an op of one operand (and for dropout seed and step) on random bits, and
// compares the bits of the results.
func compareWithCPU(t *testing.T, name string, node *ir.Node, position int, dtype ir.DType, x, y ir.Slab) {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	data := make([]byte, x.Elems()*dtype.Size())
	for i := range data {
		data[i] = byte(rng.IntN(127)) // no number is NaN
	}
	backend, err := cpu.New(cpu.Options{})
	require.NoError(t, err)
	devices, err := backend.Open(runtime.World{Ranks: 1, Timeout: time.Minute})
	require.NoError(t, err)
	var results [][]byte
	for _, d := range []runtime.Device{devices[0], openDevice(t)} {
		a := arena{t: t, d: d}
		k := &runtime.Kernel{Node: node, Args: []runtime.Tensor{a.tensor(dtype, x, data)}, Accum: []bool{false}, Position: position}
		if node.Op == ir.OpDropout {
			k.Args = append(k.Args, a.tensor(ir.I32, ir.Whole(nil), ints(11)), a.tensor(ir.I32, ir.Whole(nil), ints(3)))
		}
		k.Results = []runtime.Tensor{a.tensor(dtype, y, make([]byte, y.Elems()*dtype.Size()))}
		a.launch(k)
		results = append(results, a.bytes(k.Results[0]))
		require.NoError(t, d.Close())
	}
	require.Equal(t, results[0], results[1], name)
}

// TestReduce sums 1, 3 and 16 values in order, at sizes with and without a tail, with the result at
// the place of the second.
func TestReduce(t *testing.T) {
	t.Parallel()
	d := openDevice(t)
	rng := rand.New(rand.NewPCG(3, 4))
	for _, dtype := range []ir.DType{ir.F32, ir.BF16, ir.F16} {
		for _, n := range []int{1, 3, kernel.MaxInputs} {
			for _, largest := range []bool{false, true} {
				const elems = 1003
				want := make([]float32, elems)
				var in []uint64
				for i := range n {
					x := make([]float32, elems)
					for j := range x {
						x[j] = float32(dtype.Round(float64(float32(rng.NormFloat64()))))
						switch {
						case i == 0 || largest && x[j] > want[j]:
							want[j] = x[j]
						case !largest:
							want[j] += x[j]
						}
					}
					in = append(in, d.Base+uint64(i*8192))
					d.Write(kerneltest.Bytes{At: int64(i * 8192), Data: encode(dtype, x)})
				}
				out := in[min(1, n-1)]
				l := kernel.Reduce(dtype, out, in, elems)
				if largest {
					l = kernel.ReduceMax(dtype, out, in, elems)
				}
				require.NoError(t, d.Worker.Launch(l))
				got := make([]byte, elems*dtype.Size())
				require.NoError(t, d.Read(kerneltest.Bytes{At: int64(out - d.Base), Data: got}))
				require.Equal(t, encode(dtype, want), got, "%d values of %s", n, dtype)
			}
		}
	}
}

// TestSoftmaxOfNothing: a thread that sees only -Inf in a row adds nothing to the sum of the
// others.
func TestSoftmaxOfNothing(t *testing.T) {
	t.Parallel()
	d := openDevice(t)
	for _, dtype := range []ir.DType{ir.F32, ir.BF16} {
		x := make([]float32, 24)
		for i := range 16 { // those of two threads or more
			x[i] = float32(math.Inf(-1))
		}
		d.Write(kerneltest.Bytes{At: 64, Data: encode(dtype, x)})
		l := kernel.Launch{Program: "loss_" + dtype.String() + ".cu", Name: "row_max_sum_exp_" + dtype.String(), Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{256, 1, 1},
			Args: []uint64{d.Base, d.Base + 4, d.Base + 64, uint64(len(x))}, Sizes: []uint8{8, 8, 8, 8}}
		require.NoError(t, d.Worker.Launch(l))
		got := make([]byte, 8)
		require.NoError(t, d.Read(kerneltest.Bytes{Data: got}))
		require.Equal(t, encode(ir.F32, []float32{0, 8}), got, "%s: largest and sum", dtype)
	}
}

// TestReduceFixed adds fixed-point numbers: a sum that overflows 64 bits is marked, whatever is
// added later.
func TestReduceFixed(t *testing.T) {
	t.Parallel()
	d := openDevice(t)
	const overflow = math.MinInt64
	var in []uint64
	for i, terms := range [][]int64{{1, math.MaxInt64, math.MinInt64 + 1, overflow}, {-3, 1, -1, 5}, {1 << 40, -7, 1, 5}} {
		in = append(in, d.Base+uint64(i*64))
		b, err := binary.Append(nil, binary.NativeEndian, terms)
		require.NoError(t, err)
		d.Write(kerneltest.Bytes{At: int64(i * 64), Data: b})
	}
	require.NoError(t, d.Worker.Launch(kernel.Reduce(ir.Q64, in[1], in, 4)))
	b := make([]byte, 32)
	require.NoError(t, d.Read(kerneltest.Bytes{At: 64, Data: b}))
	got := make([]int64, 4)
	_, err := binary.Decode(b, binary.NativeEndian, got)
	require.NoError(t, err)
	require.Equal(t, []int64{1<<40 - 2, overflow, overflow, overflow}, got)
}

// TestVoidFixed marks all sums as overflows if a term is too large, or is an overflow already.
func TestVoidFixed(t *testing.T) {
	t.Parallel()
	d := openDevice(t)
	const elems, limit, overflow = 700, 1000, math.MinInt64
	flag, x := d.Base, d.Base+64
	for _, tt := range []struct {
		at   int
		term int64
		fits bool
	}{{0, limit, true}, {699, -limit, true}, {0, limit + 1, false}, {699, -limit - 1, false}, {300, overflow, false}} {
		want := make([]int64, 1+elems)
		want[1+tt.at] = tt.term
		write := func(values []int64, at int64) {
			b, err := binary.Append(nil, binary.NativeEndian, values)
			require.NoError(t, err)
			d.Write(kerneltest.Bytes{At: at, Data: b})
		}
		write(want[:1], 0)
		write(want[1:], 64)
		require.NoError(t, d.Worker.Launch(kernel.Exceeds(flag, x, elems, limit), kernel.Void(flag, x, elems)))
		if !tt.fits {
			want[0] = 1
			for i := range want[1:] {
				want[1+i] = overflow
			}
		}
		for i, at := range []int64{0, 64} {
			b := make([]byte, 8*[]int{1, elems}[i])
			require.NoError(t, d.Read(kerneltest.Bytes{At: at, Data: b}))
			got := make([]int64, len(b)/8)
			_, err := binary.Decode(b, binary.NativeEndian, got)
			require.NoError(t, err)
			require.Equal(t, want[i:1+i*elems], got, "%+v", tt)
		}
	}
}
