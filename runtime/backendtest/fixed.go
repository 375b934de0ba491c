package backendtest

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/runtime"
)

// frac returns the number of fraction bits of element i of an op's fixed-point operands and
// results.
func frac(op ir.Op, attr ir.Attr, i int) int {
	switch op {
	case ir.OpFromFixed:
		return attr.(ir.FixedAttr).Frac
	case ir.OpFixedSquares, ir.OpFixedRoot:
		return ir.SquareFrac * (i + 1)
	case ir.OpAddN:
		return ir.GradientFrac
	}
	return ir.Frac(attr)
}

// download returns the values of a result. If the launch accumulated, it subtracts what was there
// before.
func (o *opTest) download(t *testing.T, r runtime.Tensor, added bool) []float64 {
	out := make([]float64, r.Slab.Elems())
	if r.DType == ir.Q64 {
		was := int64(binary.NativeEndian.Uint64(bytesOf([]float32{poison, poison})))
		x := make([]int64, len(out))
		require.NoError(t, o.device.Download(bytesOf(x), runtime.OnDevice, r.Offset))
		for i := range out {
			if added {
				x[i] -= was
			}
			out[i] = math.Ldexp(float64(x[i]), -frac(o.op, o.attr, i))
		}
		return out
	}
	for i, x := range download(t, o.device, r) {
		if r.DType == ir.I32 {
			x = float32(int32(math.Float32bits(x)))
		}
		out[i] = float64(x)
		if added {
			out[i] -= before(r.DType)
		}
	}
	return out
}

// fixedOps are the ops that sum over sequences, with operands.
func fixedOps() []sample {
	const B, T, C, V = 7, 5, 33, 13
	var s []sample
	for _, one := range samples() {
		if ir.Frac(one.attr) > 0 {
			s = append(s, one)
		}
	}
	return append(s, sample{op: ir.OpMatMul, attr: ir.MatMulAttr{Form: ir.MatMulTN, K: 2, Frac: ir.GradientFrac}, args: []ir.Type{f32(B, T, C), f32(B, T, V)}})
}

// testGrouping sums the sequences of a batch at once, one by one, and in two uneven groups with the
// last one first, both by accumulation in the kernel and by add_n. All must have the same bits.
func testGrouping(t *testing.T, open Open, leaveOut func(ir.Op, ir.Attr) bool) {
	for i, s := range fixedOps() {
		if leaveOut(s.op, s.attr) {
			continue
		}
		ds, _ := devices(t, open, 1, time.Minute)
		o := newOpTest(t, ds[0], s, uint64(i))
		batch := s.args[0].Shape[0]
		want := o.sum(t, []ir.Span{{Len: batch}})
		require.NotEmpty(t, want)
		var one []ir.Span
		for b := range batch {
			one = append(one, ir.Span{Off: b, Len: 1})
		}
		require.Equal(t, want, o.sum(t, one), "%s, sequence by sequence", s.op)
		require.Equal(t, want, o.sum(t, []ir.Span{{Off: 2, Len: batch - 2}, {Off: 0, Len: 2}, {Off: 1}}), "%s, in two groups and an empty one", s.op)
	}
}

// sum launches the op on groups of sequences, accumulating, and returns its fixed-point results.
func (o *opTest) sum(t *testing.T, groups []ir.Span) [][]int64 {
	k, end := o.kernel(ir.Mesh{}, split{results: make([]ir.Placement, len(o.want)), args: make([]ir.Placement, len(o.args))}, 0)
	require.NoError(t, o.device.Alloc(runtime.OnDevice, end))
	o.fill(t, k, end)
	whole := *k
	batch := k.Args[0].Slab.Local[0]
	for g, span := range groups {
		part := whole
		part.Args, part.Accum = nil, make([]bool, len(k.Results))
		for _, a := range whole.Args {
			// All operands but a weight have the batch as first dimension.
			if s := a.Slab; len(s.Local) > 1 {
				a.Offset += a.Bytes() / int64(batch) * int64(span.Off)
				a.Slab = ir.Slab{Global: s.Global, Offset: append([]int{span.Off}, s.Offset[1:]...), Local: append([]int{span.Len}, s.Local[1:]...)}
			}
			part.Args = append(part.Args, a)
		}
		part.Results = append([]runtime.Tensor(nil), whole.Results...)
		for i, r := range part.Results {
			if part.Accum[i] = g > 0 && r.DType == ir.Q64; r.DType != ir.Q64 {
				part.Results[i].Slab = part.Args[0].Slab
			}
		}
		require.NoError(t, o.device.Launch(&part))
	}
	var out [][]int64
	for _, r := range whole.Results {
		if r.DType == ir.Q64 {
			x := make([]int64, r.Slab.Elems())
			require.NoError(t, o.device.Download(bytesOf(x), runtime.OnDevice, r.Offset))
			out = append(out, x)
		}
	}
	return out
}

// testOverflow feeds values that overflow.
func testOverflow(t *testing.T, open Open) {
	ds, _ := devices(t, open, 1, time.Minute)
	attr := ir.SumToAttr{Keep: 1, Frac: ir.GradientFrac}
	limit := float32(math.Ldexp(1, 63-ir.GradientFrac))
	below := math.Nextafter32(limit, 0)
	for _, tt := range []struct {
		x  [2]float32 // one per sequence
		ok bool
	}{
		{[2]float32{below, -below}, true},
		{[2]float32{0, -below}, true},
		{[2]float32{limit, -limit}, false},
		{[2]float32{limit / 2, limit / 2}, false},
		{[2]float32{-below, -below}, false},
		{[2]float32{float32(math.NaN()), 0}, false},
		{[2]float32{0, float32(math.Inf(-1))}, false},
		{[2]float32{math.MaxFloat32, 0}, false},
	} {
		for _, at := range []int{0, 8, 17, 34} { // in the vectors and in the tail
			o := newOpTest(t, ds[0], sample{op: ir.OpSumTo, attr: attr, args: []ir.Type{f32(2, 1, 35)}}, 1)
			o.args[0].F[at], o.args[0].F[35+at] = float64(tt.x[0]), float64(tt.x[1])
			k, end := o.kernel(ir.Mesh{}, split{results: make([]ir.Placement, 1), args: make([]ir.Placement, 1)}, 0)
			require.NoError(t, ds[0].Alloc(runtime.OnDevice, end))
			o.fill(t, k, end)
			err := launch(ds[0], k)
			require.Equal(t, tt.ok, err == nil, "%v at element %d: %v", tt.x, at, err)
			if !tt.ok {
				require.ErrorContains(t, err, "train.reproducible")
			}
		}
	}
	huge := newOpTest(t, ds[0], sample{op: ir.OpFixedSquares, args: []ir.Type{f32(35)}}, 1)
	for _, x := range []float64{46341, math.NaN(), math.Inf(1), math.MaxFloat32} {
		huge.args[0].F[20] = x
		k, end := huge.kernel(ir.Mesh{}, split{results: make([]ir.Placement, 1), args: make([]ir.Placement, 1)}, 0)
		require.NoError(t, ds[0].Alloc(runtime.OnDevice, end))
		huge.fill(t, k, end)
		require.ErrorContains(t, launch(ds[0], k), "norm exceeds", "%v", x)
	}
}

// launch runs a kernel and waits for it.
func launch(d runtime.Device, k *runtime.Kernel) error {
	return errors.Join(d.Launch(k), d.Download(make([]byte, 4), runtime.OnDevice, 0))
}

// testFixedCollectives sums over ranks integers too large for any float, and some that overflow.
func testFixedCollectives(t *testing.T, open Open) {
	const ranks, elems = 3, 40_003
	for _, fits := range []bool{true, false} {
		ds, b := devices(t, open, ranks, time.Minute)
		var a arena
		x := a.tensor(ir.Q64, ir.Whole([]int{elems}))
		want := make([]int64, elems)
		rng := rand.New(rand.NewPCG(1, 2))
		members := make([]runtime.Member, ranks)
		for r := range ds {
			members[r] = runtime.Member{Rank: r, In: x, Out: x}
		}
		node := &ir.Node{Op: ir.OpAllReduce, Name: "x@all_reduce"}
		require.NoError(t, Load(ds, a.end, All(runtime.Collective{Node: node, Members: members})))
		for _, d := range ds {
			terms := make([]int64, elems)
			for i := range terms {
				terms[i] = rng.Int64()/ranks - 1<<60
				want[i] += terms[i]
			}
			if !fits {
				terms[elems-1] = math.MaxInt64 / 2
			}
			require.NoError(t, d.Upload(runtime.OnDevice, x.Offset, bytesOf(terms)))
		}
		err := errors.Join(together(ds, func(r int, d runtime.Device) error {
			err := d.Collective(&runtime.Collective{Node: node, Members: members, Position: r})
			if err = errors.Join(err, d.Record(runtime.Compute), d.Wait(runtime.Host, runtime.Event{Rank: r, N: 1})); err != nil {
				b.Abort()
			}
			return err
		})...)
		if !fits {
			require.ErrorContains(t, err, "train.reproducible")
			continue
		}
		require.NoError(t, err)
		for _, d := range ds {
			got := make([]int64, elems)
			require.NoError(t, d.Download(bytesOf(got), runtime.OnDevice, x.Offset))
			require.Equal(t, want, got)
		}
	}
}
