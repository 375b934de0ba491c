package cost

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
)

// two is a shared machine of two cores with round figures.
func two(t *testing.T) *Cluster {
	c, err := Load("cpu")
	require.NoError(t, err)
	c.Device.Cores, c.Device.LaunchOverhead, c.Device.Turn = 2, 1e-6, 50e-6
	c.Device.FLOPS["f32"] = 1e11
	c.Device.Efficiency = Efficiency{Matmul: 1, Attention: 1, Vector: 1, Memory: 1}
	c.IntraNode = Link{Bandwidth: 40e9, Efficiency: 1, Latency: 10e-6}
	return c
}

// TestOnePass compares collectives of 1 MB with times worked out by hand: two cores read and write 40 GB/s together.
func TestOnePass(t *testing.T) {
	equal := func(want, got Picoseconds, why string) { require.InDelta(t, float64(want), float64(got), 2, why) }
	c := two(t)
	all := Group{Size: 4, Fan: Fan{4}}
	m := NewModel(c, 4) // an instruction starts in 2 us
	equal((200+10+50+2)*us, m.Collective(ir.OpAllReduce, 1e6, all), "2 MB of each rank at 10 GB/s; two more ranks than cores")
	equal((300+10+50+2)*us, m.Collective(ir.OpAllGather, 1e6, all), "and where it is written it is read before")
	equal((300+10+50+2)*us, m.Collective(ir.OpAllToAll, 1e6, all), "")
	equal((150+10+50+2)*us, m.Collective(ir.OpReduceScatter, 1e6, all), "a quarter is written, to a place of its own")
	equal((200+10+2)*us, m.Collective(ir.OpAllReduce, 1e6, Group{Size: 2, Fan: Fan{2}}), "a core for each of two")
	equal((200+10)*us, m.Transfer(1e6, Route{}), "")
	require.Zero(t, m.Collective(ir.OpAllReduce, 1e6, Group{Size: 1}))
	equal((100+10+1)*us, NewModel(c, 2).Collective(ir.OpAllReduce, 1e6, Group{Size: 2, Fan: Fan{2}}), "twice the machine")

	c.Collectives = ""
	equal((150+6*20+2)*us, NewModel(c, 4).Collective(ir.OpAllReduce, 1e6, all), "a ring, where nothing is said")
}

// TestKernelsOfSeveralCores: a rank with both cores loses time where one core reads what the other has written, and a
// fixed time whenever they divide a kernel, unless one core alone is faster.
func TestKernelsOfSeveralCores(t *testing.T) {
	c := two(t)
	c.Device.LaunchOverhead, c.Device.Fork = 0, 0
	c.Device.Cache = &Cache{Memory: 8e6, Bandwidth: 1e12, Remote: 5e9}
	equal := func(want Picoseconds, ranks int, w *work, why string) {
		t.Helper()
		require.InDelta(t, float64(want*us), float64(NewModel(c, ranks).kernel(w)), 2, why)
	}
	near, far := &work{class: product, dtype: ir.F32, flops: 2e8, bytes: 1e6}, &work{class: product, dtype: ir.F32, flops: 2e8, bytes: 1e6, across: 1e6}
	equal(1000, 1, near, "")
	equal(1000+50, 1, far, "each core half of 1 MB, of which half from the other at 5 GB/s")
	equal(2000, 2, far, "")
	equal(4000, 4, far, "in turns")
	huge := &work{dtype: ir.F32, flops: 2e8, bytes: 16e6, across: 16e6}
	equal(1000+200, 1, huge, "no more than what one core holds, 4 MB")
	huge.class = product
	equal(1000+800, 1, huge, "but each packs all that it sums")
	c.Device.Fork = 20e-6
	equal(1020, 1, near, "")
	equal(2000, 2, near, "who has one core divides nothing")
	short := &work{class: product, dtype: ir.F32, flops: 2e6, bytes: 1e3}
	equal(20, 1, short, "by one core: both would take 10 us and 20")
	c.Device.Efficiency.Threads = 0.8
	equal(1020, 1, near, "which is of cores that help another rank")
}

// TestPacking: a product packs its right-hand matrix whatever the number of its rows, and its left-hand one. If cores
// divide the product, each packs its part of a matrix or all of it.
func TestPacking(t *testing.T) {
	c := two(t)
	c.Device.LaunchOverhead, c.Device.Fork, c.Device.Pack = 0, 0, 1e-9
	equal := func(want float64, ranks int, w *work, why string) {
		t.Helper()
		require.InDelta(t, want*float64(us), float64(NewModel(c, ranks).kernel(w)), 2, why)
	}
	equal(1000+550, 2, productOf(100, 1000, 500), "of a core, half a million numbers, and a tenth of that of the left-hand matrix")
	equal(2*(1000+550), 4, productOf(100, 1000, 500), "two ranks a core")
	equal(500+500*(0.6+0.05), 1, productOf(100, 1000, 500), "of two cores each half the columns, and half the rows, twice")
	equal(5000+500+250, 1, productOf(1000, 1000, 500), "of many rows each half of them, and all columns")
	sums := productOf(100, 1000, 500)
	sums.across = 1
	equal(500+275, 1, sums, "of a sum over all tokens each half the terms")
	equal(1000, 1, &work{dtype: ir.F32, flops: 2e8}, "no product")
	c.Device.Fork = 20e-6
	equal(0.2+10.5, 1, productOf(1, 20, 500), "a core alone packs all; two would pack 5.75 us, and lose 20")
	faster := c.Faster(Arithmetic, 2)
	require.InDelta(t, 775*float64(us), float64(NewModel(faster, 2).kernel(productOf(100, 1000, 500))), 2)
	instr := Work{Class: "product", FLOPs: 1e8, Rows: 100, Cols: 1000}
	for cores, want := range map[float64][2]float64{1: {5.5e5, 8 * 5e5}, 2: {3.25e5, 8 * 3e5}} {
		numbers, bytes := instr.Packed(cores, 2e6-1)
		require.InDeltaSlice(t, want[:], []float64{numbers, bytes}, 1e-3)
		_, bytes = instr.Packed(cores, 2e6)
		require.Zero(t, bytes, "its cache holds half a million numbers")
	}
	instr.Class = "vector"
	numbers, bytes := instr.Packed(1, 0)
	require.Zero(t, numbers+bytes)

	c.Device.Fork, c.Device.MemoryBandwidth, c.Device.Efficiency.Memory = 0, 16e9, 1
	c.Device.Cache = &Cache{Memory: 4e6 - 2, Bandwidth: 1e12}
	equal(1000+550+500, 2, productOf(100, 1000, 500), "beside that half a million numbers at 8 GB/s, 8 bytes each")
	equal(2*(1000+550+500), 4, productOf(100, 1000, 500), "and at 4 GB/s")
	equal(500+325+300, 1, productOf(100, 1000, 500), "")
	near := NewModel(c, 2).asNear()
	require.InDelta(t, 1550*float64(us), float64(near.kernel(productOf(100, 1000, 500))), 2)
	c.Device.Cache.Memory += 2
	equal(1000+550, 2, productOf(100, 1000, 500), "a cache of a core holds them")
	equal(500+325, 1, productOf(100, 1000, 500), "")
}

// TestPackingBounds: the bounds of [TestProductBounds], for what cores pack.
func TestPackingBounds(t *testing.T) {
	const seed = 12
	r := rand.New(rand.NewPCG(seed, 0))
	for range 3000 {
		c := two(t)
		c.Device.Cores, c.Device.Pack, c.Device.Fork = 1+r.IntN(8), 1e-9*r.Float64(), 1e-5*r.Float64()
		m := NewModel(c, 1+r.IntN(8))
		of := func(rows, cols, terms int64, across bool) *work {
			w := productOf(rows, cols, terms)
			if across {
				w.across = 4 * (rows + cols) * terms
			}
			return w
		}
		sums, parts := r.IntN(2) == 0, 1+r.Int64N(8)
		rows, cols, terms := parts*(1+r.Int64N(3000)), parts*(1+r.Int64N(3000)), parts*(1+r.Int64N(3000))
		whole := m.kernel(of(rows, cols, terms, sums))
		require.LessOrEqual(t, whole, m.kernel(of(rows+r.Int64N(99), cols+r.Int64N(99), terms+r.Int64N(99), sums))+1, "seed %d", seed)
		for _, part := range []*work{of(rows/parts, cols, terms, sums), of(rows, cols/parts, terms, sums), of(rows, cols, terms/parts, sums)} {
			require.LessOrEqual(t, whole, Picoseconds(parts)*m.kernel(part), "seed %d", seed)
		}
	}
}

// TestAcross: how many bytes the parts of a kernel find in the caches of other cores.
func TestAcross(t *testing.T) {
	weight := &ir.Node{Op: ir.OpMatMul, Attr: ir.MatMulAttr{Form: ir.MatMulTN}}
	require.True(t, across(weight))
	weight.Attr = ir.MatMulAttr{Form: ir.MatMulNN}
	require.False(t, across(weight))
	require.True(t, across(&ir.Node{Op: ir.OpAdamW, Phase: ir.Update}))
	require.True(t, across(&ir.Node{Op: ir.OpAdd, Phase: ir.Backward}), "of gradients that were summed over tokens")
	require.False(t, across(&ir.Node{Op: ir.OpAdd}))
	require.False(t, across(&ir.Node{Op: ir.OpGELU}))
}

// TestKernelsByOp: an op has its own rate where the cluster states one. Attention, and separately its gradient,
// reaches less of it with few keys. For an op that computes nothing the rate is a share of the memory bandwidth.
func TestKernelsByOp(t *testing.T) {
	c := two(t)
	c.Device.LaunchOverhead = 0
	c.Device.Kernels = map[string]float64{"gelu": 0.5, "attention": 0.25}
	c.Device.Efficiency.AttentionHalf = 100
	time := func(op ir.Op, class kernelClass) Picoseconds {
		return NewModel(c, 2).kernel(&work{node: &ir.Node{Op: op}, class: class, dtype: ir.F32, flops: 1e8, bytes: 1, scores: 1, keys: 50})
	}
	require.Equal(t, 1000*us, time(ir.OpRMSNorm, vector))
	require.Equal(t, 2000*us, time(ir.OpGELU, vector))
	require.Equal(t, 3000*us, time(ir.OpAttentionGrad, attention))
	require.Equal(t, 12000*us, time(ir.OpAttention, attention))
	c.Device.Efficiency.AttentionGradHalf = 50
	require.Equal(t, 12000*us, time(ir.OpAttention, attention))
	gradient := &work{node: &ir.Node{Op: ir.OpAttentionGrad}, class: attention, dtype: ir.F32, flops: 1e8, bytes: 1, scores: 1, keys: 50, backward: true}
	require.Equal(t, 2000*us, NewModel(c, 2).kernel(gradient))
	c.Device.Efficiency.AttentionGradHalf = 0
	require.Equal(t, 3000*us, NewModel(c, 2).kernel(gradient), "as attention")
	c.Device.Kernels["embedding"], c.Device.Kernels["accumulate"] = 0.5, 0.25
	moved := NewModel(c, 2)
	all := moved.kernel(&work{bytes: 31e3})
	require.Equal(t, 2*all, moved.kernel(&work{node: &ir.Node{Op: ir.OpEmbedding}, bytes: 31e3}))
	require.Equal(t, 4*all, moved.kernel(&work{copy: ir.OpAccumulate, bytes: 31e3}))
	require.Equal(t, all, moved.kernel(&work{copy: ir.OpSlice, bytes: 31e3}))
	copied := c.Clone()
	copied.Device.Kernels["gelu"] = 1
	require.Equal(t, 0.5, c.Device.Kernels["gelu"])
}

// TestSharedYAML: figures of shared machines are read, and refused where they have no meaning.
func TestSharedYAML(t *testing.T) {
	source, err := Source("cpu")
	require.NoError(t, err)
	edit := func(old, new string) (*Cluster, error) {
		require.Contains(t, string(source), old)
		return Parse("x.yaml", []byte(strings.Replace(string(source), old, new, 1)))
	}
	c, err := edit("efficiency: {", "kernels: {gelu: 0.07}\n  cache: {memory: 2MiB, bandwidth: 1e11, remote: 8e9}\n  efficiency: {attention_half_keys: 90, attention_grad_half_keys: 60, ")
	require.NoError(t, err)
	require.Equal(t, map[string]float64{"gelu": 0.07}, c.Device.Kernels)
	require.Equal(t, 8e9, c.Device.Cache.Remote)
	require.Equal(t, 90.0, c.Device.Efficiency.AttentionHalf)
	require.Equal(t, 0.25e-9, c.Device.Pack)
	require.Equal(t, 60.0, c.Device.Efficiency.AttentionGradHalf)
	require.Equal(t, OnePass, c.Collectives)
	for _, tt := range []struct{ old, new, want string }{
		{"efficiency: {", "efficiency: {crowd: 0.8, ", "device.efficiency.crowd: is of an earlier version, whose ranks did not compute for others while they waited: measure the machine again with autopar profile"},
		{"efficiency: {", "kernels: {gello: 0.07}\n  efficiency: {", "device.kernels.gello: is no op of which a rate can be stated; did you mean gelu?"},
		{"efficiency: {", "kernels: {gelu: fast}\n  efficiency: {", "device.kernels.gelu: wants a number"},
		{"efficiency: {", "kernels: {gelu: 1.5}\n  efficiency: {", "x.yaml:16:13: device.kernels.gelu: is 1.5, must be between"},
		{"collectives: one_pass", "collectives: two_pass", "collectives: is two_pass; there is one_pass, and rings and trees where nothing is said"},
		{"turn: 50e-6", "turn: -1", "device.turn: is -1 s, must be between 0 and 1"},
		{"fork: 10e-6", "fork: -1", "device.fork: is -1 s, must be between 0 and 1"},
		{"efficiency: {", "efficiency: {divided: 0.9, ", "device.efficiency.divided: is of an earlier version, in which cores packed one matrix of a product: measure the machine again with autopar profile"},
		{"efficiency: {", "efficiency: {attention_grad_half_keys: -1, ", "device.efficiency.attention_grad_half_keys: is -1 keys, must be between 0 and 100000"},
		{"pack: 0.25e-9", "pack: 3", "device.pack: is 3 s, must be between 0 and 1e-06"},
		{"pack: 0.25e-9", "pack: [3]", "device.pack: wants one value"},
	} {
		_, err := edit(tt.old, tt.new)
		require.ErrorContains(t, err, tt.want)
	}
	h100, err := Source("h100")
	require.NoError(t, err)
	for _, tt := range []struct{ old, new, want string }{
		{"devices_per_node: 8", "devices_per_node: 8\ncollectives: one_pass", "collectives: is one_pass, of ranks that share memory: device.shared is false"},
		{"  memory_bandwidth", "  turn: 1e-6\n  memory_bandwidth", "device.turn: has no meaning where ranks share no cores"},
		{"  memory_bandwidth", "  fork: 1e-6\n  memory_bandwidth", "device.fork: has no meaning where ranks share no cores"},
		{"  memory_bandwidth", "  pack: 1e-10\n  memory_bandwidth", "device.pack: has no meaning where ranks share no cores"},
		{"  memory_bandwidth", "  kernels: {gelu: 0.1}\n  memory_bandwidth", "device.kernels: are of a shared machine"},
		{"  efficiency: {", "  efficiency: {threads: 0.9, ", "device.efficiency.threads: has no meaning where ranks share no cores"},
		{"  efficiency: {", "  efficiency: {attention_half_keys: 9, ", "device.efficiency.attention_half_keys: has no meaning where ranks share no cores"},
		{"  efficiency: {", "  efficiency: {attention_grad_half_keys: 9, ", "device.efficiency.attention_grad_half_keys: has no meaning where ranks share no cores"},
	} {
		require.Contains(t, string(h100), tt.old)
		_, err := Parse("x.yaml", []byte(strings.Replace(string(h100), tt.old, tt.new, 1)))
		require.ErrorContains(t, err, tt.want)
	}
}
