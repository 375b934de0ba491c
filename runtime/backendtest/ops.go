package backendtest

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/interp"
	"github.com/autopar/autopar/runtime"
)

// fresh is AUTOPAR_TEST_SEED, which varies the random inputs of ops; by default they are the same
// in every run.
var fresh, _ = strconv.ParseUint(os.Getenv("AUTOPAR_TEST_SEED"), 10, 64)

var opsAll = flag.Bool("ops-all", false, "run ops on all samples, over 2 and over 3 parts each")

// testOps runs every op on the whole value and on the parts of every legal split, and compares the
// combined result with package interp.
func testOps(t *testing.T, open Open, leaveOut func(ir.Op, ir.Attr) bool) {
	missing := map[ir.Op]bool{}
	for _, op := range ir.Ops() {
		missing[op] = op.Class() == ir.Compute
	}
	for i, s := range samples() {
		missing[s.op] = false
		if s.more && !*opsAll || leaveOut(s.op, s.attr) {
			continue
		}
		t.Run(fmt.Sprintf("%s/%d", s.op, i), func(t *testing.T) {
			ds, _ := devices(t, open, 1, time.Minute)
			newOpTest(t, ds[0], s, uint64(i)).run(t)
		})
	}
	for i, s := range samples() {
		if s.more && !*opsAll || leaveOut(s.op, s.attr) {
			continue
		}
		for _, d := range []ir.DType{ir.BF16, ir.F16} {
			if s, n := s.in(d); n > 0 {
				t.Run(fmt.Sprintf("%s/%d/%s", s.op, i, d), func(t *testing.T) {
					ds, _ := devices(t, open, 1, time.Minute)
					newOpTest(t, ds[0], s, uint64(i)).run(t)
				})
			}
		}
	}
	for op, is := range missing {
		require.False(t, is, "no sample of %s", op)
	}
}

// testRandomSizes runs ops, every other time a product, at sizes near those at which kernels change
// their behaviour: whole blocks, and one more or less. The sizes are the same in every run, unless
// AUTOPAR_TEST_SEED is set.
func testRandomSizes(t *testing.T, open Open, leaveOut func(ir.Op, ir.Attr) bool) {
	const (
		draws = 24
		most  = 1 << 22 // points of the op's iteration space
	)
	for i := range draws {
		rng := rand.New(rand.NewPCG(uint64(i), 2+fresh))
		near := func(blocks int) int { return 32*(1+rng.IntN(blocks)) + rng.IntN(3) - 1 }
		z := sizes{B: 1 + rng.IntN(3), T: near(4), NH: 1 + rng.IntN(3), D: []int{16, 32, 64, 1 + rng.IntN(70)}[rng.IntN(4)], G: 2 + rng.IntN(2), C: near(4), V: near(4)}
		for _, longer := range []struct {
			size   *int
			blocks int
		}{{&z.T, 40}, {&z.C, 40}, {&z.V, 80}} {
			if rng.IntN(3) == 0 {
				*longer.size = near(longer.blocks)
			}
		}
		all := slices.DeleteFunc(samplesOf(z), func(s sample) bool {
			return i%2 == 0 && s.op != ir.OpMatMul || leaveOut(s.op, s.attr) || s.work() > most
		})
		if len(all) == 0 {
			continue // all samples are too large
		}
		s := all[rng.IntN(len(all))]
		if d := []ir.DType{ir.F32, ir.BF16, ir.F16}[rng.IntN(3)]; d != ir.F32 {
			s, _ = s.in(d)
		}
		t.Run(fmt.Sprintf("%d/%s/%v", i, s.op, s.args), func(t *testing.T) {
			ds, _ := devices(t, open, 1, time.Minute)
			newOpTest(t, ds[0], s, uint64(i)).run(t)
		})
	}
}

// work returns the number of points of the op's iteration space.
func (s sample) work() int {
	sig, err := ir.Resolve(s.op, s.attr, s.args)
	if err != nil {
		panic(fmt.Sprintf("BUG: backendtest: %s: %v", s.op, err))
	}
	n := 1
	for _, d := range sig.Dims {
		n *= d.Size
	}
	if s.op == ir.OpAttention || s.op == ir.OpAttentionGrad {
		n *= s.args[0].Shape[1] * max(1, ir.SequenceParts(s.attr)) // keys
	}
	return n
}

// RunWideHeads checks attention with heads of 64 and 128 elements in two-byte types. Kernels may
// round probabilities and their gradients to the type, so results may differ by four times its
// epsilon of the largest element.
func RunWideHeads(t *testing.T, open Open) { runWideHeads(t, open, true) }

// RunSomeWideHeads runs two of five samples, in which there are attention and gradients of both widths; all with -ops-all.
func RunSomeWideHeads(t *testing.T, open Open) { runWideHeads(t, open, *opsAll) }

func runWideHeads(t *testing.T, open Open, all bool) {
	for i, s := range wideHeads() {
		if !all && i%5 > 0 && i%5 < 4 {
			continue
		}
		t.Run(fmt.Sprintf("%s/%d/%s", s.op, i, s.args[0]), func(t *testing.T) {
			ds, _ := devices(t, open, 1, time.Minute)
			newOpTest(t, ds[0], s, uint64(i)).run(t)
		})
	}
}

// testManyIDs sums an embedding's gradient over more ids than some hundred threads read at once,
// most of them of few rows.
func testManyIDs(t *testing.T, open Open) {
	ds, _ := devices(t, open, 1, time.Minute)
	c := newChain(t, ds[0], 4)
	ids, dy := c.input(ir.I32, 0, 131, 3, 3001), c.input(ir.BF16, -1, 1, 3, 3001, 8)
	for i, id := range c.values[ids].I {
		if i%3 > 0 {
			c.values[ids].I[i] = id % 5
		}
	}
	c.check(c.do(ir.OpEmbeddingGrad, ir.EmbeddingGradAttr{Rows: 131}, nil, ids, dy)...)
}

// testFirstMoments takes the first step of AdamW, where moments are the complements of the decays
// times the gradient and its square. The complements must be rounded once: if the decay is rounded
// to float32 first, 1 - 0.999 is off by 1.3e-5.
func testFirstMoments(t *testing.T, open Open) {
	ds, _ := devices(t, open, 1, time.Minute)
	c := newChain(t, ds[0], 5)
	w, m, v, g := c.input(ir.F32, -1, 1, 35), c.input(ir.F32, 0, 0, 35), c.input(ir.F32, 0, 0, 35), c.input(ir.F32, -1, 1, 35)
	clip, lr, step := c.input(ir.F32, 1, 1), c.input(ir.F32, 0.1, 0.1), c.input(ir.I32, 0, 1)
	out := c.do(ir.OpAdamW, ir.AdamWAttr{Beta1: 0.9995, Beta2: 0.999, Eps: 1e-8}, nil, w, m, v, g, clip, lr, step)
	require.NoError(t, ds[0].Alloc(runtime.OnDevice, c.end))
	for i, got := range c.results(c.run, out[1:]) {
		for j, x := range decode(ir.F32, got) {
			require.InEpsilon(t, c.values[out[1+i]].F[j], x, 2e-7, "moment %d, element %d", 1+i, j)
		}
	}
}

// testAccumulate sums micro-batches.
func testAccumulate(t *testing.T, open Open) {
	ds, _ := devices(t, open, 1, time.Minute)
	slab := ir.Whole([]int{3, 35})
	var a arena
	x, acc := a.tensor(ir.F32, slab), a.tensor(ir.F32, slab)
	require.NoError(t, ds[0].Alloc(runtime.OnDevice, a.end))
	terms := random(rand.New(rand.NewPCG(1, 1)), slab.Elems())
	upload(t, ds[0], x, terms)
	upload(t, ds[0], acc, random(rand.New(rand.NewPCG(2, 2)), slab.Elems()))
	k := &runtime.Kernel{
		Node: &ir.Node{Op: ir.OpAccumulate, Attr: ir.CommAttr{Axis: "mb"}, Name: "x@accumulate_mb"},
		Args: []runtime.Tensor{x}, Results: []runtime.Tensor{acc},
	}
	for microBatch := range 2 {
		k.Accum = []bool{microBatch > 0}
		require.NoError(t, ds[0].Launch(k))
		for i, got := range download(t, ds[0], acc) {
			require.Equal(t, terms[i]*float32(microBatch+1), got, "element %d after micro-batch %d", i, microBatch)
		}
	}
}

// opTest is a sample with its data.
type opTest struct {
	device runtime.Device
	sample
	seed uint64
	node *ir.Node
	args []interp.Tensor
	want []interp.Tensor
}

func newOpTest(t *testing.T, d runtime.Device, s sample, seed uint64) *opTest {
	o := &opTest{device: d, sample: s, seed: seed}
	rng := rand.New(rand.NewPCG(seed, 1+fresh))
	g := ir.NewGraph("op")
	var values []*ir.Value
	for i, typ := range s.args {
		v, err := g.Leaf(ir.OpInput, fmt.Sprintf("x%d", i), typ, nil)
		require.NoError(t, err)
		values = append(values, v)
		x := interp.Zeros(typ)
		for j := range x.I {
			x.I[j] = s.low + rng.Int32N(s.high-s.low)
		}
		for j, r := range random(rng, int64(len(x.F))) {
			if s.positive&(1<<i) != 0 {
				r = float32(math.Abs(float64(r))) + 0.5
			}
			if s.zero&(1<<i) != 0 {
				r = 0
			}
			if s.large {
				r *= 4
			}
			x.F[j] = typ.DType.Round(float64(r))
			if typ.DType == ir.Q64 {
				x.F[j] = math.Ldexp(math.RoundToEven(math.Ldexp(x.F[j], 40)), -frac(s.op, s.attr, j))
			}
		}
		o.args = append(o.args, x)
	}
	var err error
	o.node, err = g.Add(s.op, s.attr, "sample", ir.Forward, values...)
	require.NoError(t, err)
	o.want, err = interp.Eval(o.node, o.args)
	require.NoError(t, err)
	for i := range o.want {
		for _, n := range o.want[i].I { // small enough for either type
			o.want[i].F = append(o.want[i].F, float64(n))
		}
	}
	return o
}

func (o *opTest) run(t *testing.T) {
	sig := ir.SignatureOf(o.node)
	for rule := ir.ReplicateAll; rule < len(sig.Dims); rule++ {
		args, results, ok := sig.Rule(rule)
		if !ok {
			continue
		}
		for _, parts := range o.cuts(sig, rule) {
			for _, mode := range []mode{apart, inPlace, accumulating} {
				if !o.has(mode) {
					continue
				}
				o.split(t, split{parts, args, results, mode}, fmt.Sprintf("rule %d over %d, %s", rule, parts, mode))
			}
		}
	}
}

// cuts lists the numbers of parts for a rule: 2 and 3, of large samples one of them in turn; for
// two-byte types, of which nothing that depends on the number is special, the larger alone, whose parts
// are uneven more often. Of those f16, which differs from bf16 only in how an element is rounded, is not cut.
func (o *opTest) cuts(sig *ir.Signature, rule int) []int {
	if rule < 0 {
		return []int{1}
	}
	size := sig.Dims[rule].Size
	if sig.Dims[rule].Name == "b" {
		size /= max(1, ir.SequenceParts(o.attr))
	}
	has := func(d ir.DType) bool {
		return slices.ContainsFunc(o.sample.args, func(t ir.Type) bool { return t.DType == d })
	}
	switch {
	case size < 2, has(ir.F16):
		return nil
	case size == 2:
		return []int{2}
	case has(ir.BF16):
		return []int{3}
	case o.work() > 1<<15 && !*opsAll:
		return []int{2 + int(o.seed%2)}
	}
	return []int{2, 3}
}

// mode says where results are stored.
type mode string

const (
	apart        mode = "apart"
	inPlace      mode = "in place"
	accumulating mode = "accumulating"
)

func (o *opTest) has(m mode) bool {
	switch m {
	case inPlace:
		return o.shares(0) >= 0 || o.shares(1) >= 0
	case accumulating:
		for i := range o.node.Results {
			if o.op.Accumulates(i) {
				return true
			}
		}
		return false
	}
	return true
}

// shares returns the index of the operand whose place result i may have, or -1.
func (o *opTest) shares(i int) int {
	switch {
	case o.op.Renews(i) >= 0:
		return o.op.Renews(i)
	case o.op.InPlace() && i == 0 && o.node.Args[0].Type.DType.Size() >= o.node.Results[0].Type.DType.Size():
		return 0
	}
	return -1
}

// split is one way to cut the sample.
type split struct {
	parts         int
	args, results []ir.Placement
	mode
}

const (
	poison     = 1234.5 // value of results before a launch
	halfPoison = 8      // the same for two-byte types
)

// axis cuts into nearly equal parts, or where rows of the batch are parts of sequences into whole sequences.
func (o *opTest) axis(s split) ir.Axis {
	axis := ir.Axis{Name: "x", Size: s.parts}
	if parts := ir.SequenceParts(o.attr); parts > 0 && s.results[0] == ir.ShardOn(0) {
		sequences := o.want[0].Shape[0] / parts
		axis.Chunk = (sequences + s.parts - 1) / s.parts * parts
	}
	return axis
}

// split runs the parts one after another and checks the combined result.
func (o *opTest) split(t *testing.T, s split, what string) {
	mesh := ir.Mesh{Axes: []ir.Axis{o.axis(s)}}
	sums := make([][]float64, len(o.want))
	most := make([]float64, len(o.want)) // largest magnitude that was rounded
	for i, w := range o.want {
		sums[i] = make([]float64, len(w.F))
		if s.results[i] == ir.PartialOf(ir.Max) {
			for j := range sums[i] {
				sums[i][j] = math.Inf(-1)
			}
		}
	}
	for p := range s.parts {
		k, arena := o.kernel(mesh, s, p)
		require.NoError(t, o.device.Alloc(runtime.OnDevice, arena))
		memory := o.fill(t, k, arena)
		require.NoError(t, o.device.Launch(k), what)
		for i, r := range k.Results {
			got := o.download(t, r, k.Accum[i])
			eachRow(r.Slab, func(local, global, n int) {
				to := sums[i][global : global+n]
				for j, x := range got[local : local+n] {
					most[i] = max(most[i], math.Abs(x))
					switch {
					case s.results[i] == ir.PartialOf(ir.Max):
						to[j] = max(to[j], x)
					case s.results[i].Kind == ir.Partial:
						to[j] += x
					default:
						to[j] = x
					}
				}
			})
		}
		o.untouched(t, k, memory, what)
	}
	for i, w := range o.want {
		largest := 0.0
		for _, want := range w.F {
			largest = max(largest, math.Abs(want))
		}
		for j, want := range w.F {
			// The rounding error of a sum follows its largest terms, and those of a small sum may
			// be as large as those of the largest one. An exponential of x has an error of some
			// roundings of x.
			tolerance := 3e-5*(1+math.Abs(want)) + (1e-6+o.loose)*largest
			if s.mode == accumulating && o.op.Accumulates(i) {
				tolerance += 2e-3 * float64(s.parts) // rounding of the poison in float32
			}
			if eps := epsilon(o.node.Results[i].Type.DType); eps > 0 {
				// The sum in float32 may be rounded the other way at a tie; partial sums and sums
				// of micro-batches are rounded separately.
				tolerance += 2 * eps * math.Abs(want)
				if s.results[i].Kind == ir.Partial || s.mode == accumulating {
					tolerance += eps * (most[i] + halfPoison) * float64(s.parts)
				}
			}
			if diff := math.Abs(sums[i][j] - want); !(diff <= tolerance) {
				t.Fatalf("%s: result %d, element %d of %v: got %v, want %v", what, i, j, w.Shape, sums[i][j], want)
			}
		}
	}
}

// kernel makes the launch of one part, with places for operands and results.
func (o *opTest) kernel(mesh ir.Mesh, s split, p int) (*runtime.Kernel, int64) {
	k := &runtime.Kernel{Node: o.node, Accum: make([]bool, len(o.want))}
	var a arena
	slab := func(shape []int, place ir.Placement) ir.Slab {
		return mesh.Local(shape, ir.ShardSpec{place}, ir.Coord{p})
	}
	for i, v := range o.node.Args {
		k.Args = append(k.Args, a.tensor(v.Type.DType, slab(v.Type.Shape, s.args[i])))
	}
	for i, v := range o.node.Results {
		r := a.tensor(v.Type.DType, slab(v.Type.Shape, s.results[i]))
		if from := o.shares(i); s.mode == inPlace && from >= 0 {
			r.Offset = k.Args[from].Offset
		}
		k.Results = append(k.Results, r)
		k.Accum[i] = s.mode == accumulating && o.op.Accumulates(i)
	}
	return k, a.end
}

// fill uploads operands and poisons the rest of the arena. It returns the arena's contents.
func (o *opTest) fill(t *testing.T, k *runtime.Kernel, bytes int64) []float32 {
	memory := slices.Repeat([]float32{poison}, int(bytes/4))
	for i, r := range k.Results {
		if r.DType.Half() && k.Accum[i] {
			x := make([]float32, r.Slab.Elems())
			for j := range x {
				x[j] = halfPoison
			}
			copy(bytesOf(memory)[r.Offset:], encode(r.DType, x))
		}
	}
	for i, a := range k.Args {
		dst := memory[a.Offset/4:]
		if a.DType == ir.Q64 {
			for j, x := range part(o.args[i].F, a.Slab) {
				binary.NativeEndian.PutUint64(bytesOf(dst)[8*j:], uint64(int64(math.Ldexp(x, frac(o.op, o.attr, j)))))
			}
			continue
		}
		of := part(o.args[i].F, whole(a.Slab, o.args[i].F))
		floats := make([]float32, len(of))
		for j, x := range of {
			floats[j] = float32(x)
		}
		copy(bytesOf(dst), encode(a.DType, floats))
		for j, x := range part(o.args[i].I, whole(a.Slab, o.args[i].I)) {
			dst[j] = math.Float32frombits(uint32(x))
		}
	}
	require.NoError(t, o.device.Upload(runtime.OnDevice, 0, bytesOf(memory)))
	return memory
}

// before returns what results of an accumulating kernel hold at first.
func before(d ir.DType) float64 {
	if d.Half() {
		return halfPoison
	}
	return poison
}

// whole returns s, or an empty slab if there are no elements.
func whole[E any](s ir.Slab, x []E) ir.Slab {
	if x == nil {
		return ir.Slab{Global: []int{0}, Offset: []int{0}, Local: []int{0}}
	}
	return s
}

// untouched checks that a launch wrote to its results only.
func (o *opTest) untouched(t *testing.T, k *runtime.Kernel, before []float32, what string) {
	after := make([]float32, len(before))
	require.NoError(t, o.device.Download(bytesOf(after), runtime.OnDevice, 0))
	for _, r := range k.Results {
		end := r.Offset + r.Bytes()
		copy(bytesOf(after)[r.Offset:end], bytesOf(before)[r.Offset:end])
	}
	for i := range before {
		if math.Float32bits(before[i]) != math.Float32bits(after[i]) {
			t.Fatalf("%s: the launch changed word %d of the arena, outside of its results", what, i)
		}
	}
}
