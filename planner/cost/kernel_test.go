package cost

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// tiled is the round cluster with four units, which share the 500 GFLOP/s that products reach: 125 GFLOP/s each.
func tiled() *Cluster {
	c := round()
	c.Device.Units, c.Device.Efficiency.MatmulHalf, c.Device.Efficiency.TileFill = 4, 0, 0
	return c
}

func productOf(rows, cols, terms int64) *work {
	return &work{class: product, dtype: ir.F32, rows: rows, cols: cols, flops: 2 * float64(rows*cols*terms)}
}

// about compares up to rounding.
func about(t *testing.T, seconds float64, got Picoseconds, why string) {
	require.InEpsilon(t, seconds, got.Seconds(), 1e-6, why)
}

func TestProductInWaves(t *testing.T) {
	m := NewModel(tiled(), 1)
	one := 2 * 128 * 128 * 1000 / (125e9 * 0.88)
	about(t, one, m.kernel(productOf(256, 256, 1000)), "four tiles of 128 x 128 in one wave; two larger ones would leave half idle")
	about(t, 2*128*256*1000/125e9, m.kernel(productOf(512, 256, 1000)), "four tiles of 128 x 256")
	about(t, m.kernel(productOf(640, 256, 1000)).Seconds(), m.kernel(productOf(513, 256, 1000)), "a row more is a row of tiles more")
	require.Less(t, m.kernel(productOf(512, 256, 1000)), m.kernel(productOf(513, 256, 1000)))
	// One tile, of 64,000 terms: split in four, whose partial sums of 4 bytes are written
	// and read.
	about(t, 2*128*128*16000/(125e9*0.88)+8*4*128*128/1e10, m.kernel(productOf(128, 128, 64000)), "split")
	c := tiled()
	c.Device.Efficiency.TileFill = 500
	about(t, one*1.5, NewModel(c, 1).kernel(productOf(256, 256, 1000)), "filled and drained in the time of 500 terms")
	c.Device.Units = 0
	about(t, 2*256*256*1000/500e9, NewModel(c, 1).kernel(productOf(256, 256, 1000)), "no units, no waves")
}

// TestProductBounds: a larger product never takes less time, and part of a product never longer than the product. The
// planner's bounds depend on both.
func TestProductBounds(t *testing.T) {
	const seed = 11
	r := rand.New(rand.NewPCG(seed, 0))
	for range 3000 {
		c := tiled()
		c.Device.Units, c.Device.Efficiency.TileFill = 1+r.IntN(140), r.Float64()*300
		m := NewModel(c, 1)
		parts := 1 + r.Int64N(8)
		rows, cols, terms := parts*(1+r.Int64N(3000)), 1+r.Int64N(3000), parts*(1+r.Int64N(3000))
		whole := m.kernel(productOf(rows, cols, terms))
		require.LessOrEqual(t, whole, m.kernel(productOf(rows+r.Int64N(99), cols+r.Int64N(99), terms+r.Int64N(99))), "seed %d", seed)
		for _, part := range []*work{productOf(rows/parts, cols, terms), productOf(rows, cols, terms/parts)} {
			require.LessOrEqual(t, whole, Picoseconds(parts)*m.kernel(part), "seed %d", seed)
		}
	}
}

func TestEightBitProducts(t *testing.T) {
	c := tiled()
	c.Device.FLOPS["f8"], c.Device.Efficiency.MatmulF8 = 4e12, 0.25
	c.Software = Software{FP8: true, CastBytes: 4}
	w := productOf(512, 256, 1000)
	w.cast = 0.5e6
	about(t, 2*128*256*1000/125e9, NewModel(c, 1).kernel(w), "not of a block")
	w.block = true
	about(t, 2*128*256*1000/250e9+4*0.5e6/1e10, NewModel(c, 1).kernel(w), "twice the rate, and half a million operands cast")
}

// TestWeightsAreCastOnce: the operand of an 8-bit product that differs between micro-batches is cast for each. The
// other is cast once, and each micro-batch pays its share.
func TestWeightsAreCastOnce(t *testing.T) {
	mesh := ir.Mesh{Axes: []ir.Axis{{Name: partition.AxisMB, Size: 5, Chunk: 1, Time: true}}}
	shard := ir.ShardSpec{}
	shard[0] = ir.ShardOn(0)
	n := &ir.Node{Op: ir.OpMatMul, Args: []*ir.Value{{Spec: shard}, {}}}
	require.Equal(t, 3*7+11*13/5.0, castElements(n, [][]int{{3, 7}, {11, 13}}, mesh))
	require.Equal(t, 3*7+11*13.0, castElements(n, [][]int{{3, 7}, {11, 13}}, ir.Mesh{}))
}

// TestPicked: rows of a table, and logits of rows, cost what is picked, however much there is to pick from.
func TestPicked(t *testing.T) {
	g := ir.NewGraph("picked")
	leaf := func(d ir.DType, shape ...int) *ir.Value {
		v, err := g.Leaf(ir.OpInput, "x", ir.Type{DType: d, Shape: shape}, nil)
		require.NoError(t, err)
		return v
	}
	m := NewProgram(round(), &partition.Plan{PlanNGPUs: 1, RuntimeNGPUs: 1, DP: 1, TP: 1, Stages: make([]partition.Stage, 1)}, ir.Mesh{})
	bytes := func(op ir.Op, args ...*ir.Value) int64 {
		n, err := g.Add(op, nil, "n", ir.Forward, args...)
		require.NoError(t, err)
		return m.WorkOf([]codegen.Instr{{Node: n, Accum: make([]codegen.Accum, 1)}}, ir.Mesh{}, ir.Coord{}).Bytes
	}
	ids := leaf(ir.I32, 5)
	require.Equal(t, int64(2*5*3*4), bytes(ir.OpEmbedding, leaf(ir.F32, 1000, 3), ids))
	require.Equal(t, int64(3*5*4), bytes(ir.OpRowPick, leaf(ir.F32, 5, 1000), ids), "a logit, its number and the result")
	require.Equal(t, int64(5*1000*4+5*4), bytes(ir.OpRowMax, leaf(ir.F32, 5, 1000)), "which reads all")
}

func TestAttention(t *testing.T) {
	c := tiled()
	w := &work{class: attention, dtype: ir.F32, scores: 4 * 8 * 512 * 512, keys: 512, flops: 2 * 4 * 8 * 512 * 512 * 128}
	flash := w.flops / 250e9 * (1 + 450.0/512)
	about(t, flash, NewModel(c, 1).kernel(w), "fused, heads of 128")
	c.Software.Flash = 0.5
	about(t, 2*flash, NewModel(c, 1).kernel(w), "FlashAttention-1")
	c.Software = Software{Scores: true, ScoreBytes: 10}
	plain := 2*w.flops/500e9 + 10*w.scores/1e10
	about(t, plain, NewModel(c, 1).kernel(w), "all scores, in two products, and 10 bytes each")
	w.backward, w.flops = true, w.flops/2*5
	about(t, 2*(plain-10*w.scores/1e10)+15*w.scores/1e10, NewModel(c, 1).kernel(w), "four products")
	c.Device.FLOPS["f16"], w.dtype = 16*c.Device.FLOPS["f32"], ir.F16
	products := 8 * w.scores * 128 / 500e9
	about(t, products/16+15*w.scores/1e10, NewModel(c, 1).kernel(w), "on tensor cores")
	w.flops = w.flops / 128 * 108
	about(t, products/128*108+15*w.scores/1e10, NewModel(c, 1).kernel(w), "heads of 108 are no multiple of 16 bytes: at the rate of f32")
}

// TestAttentionOfParts: attention to sequences that are several rows of the batch takes as long as to the same sequences in a
// row each, wherever batch and heads are cut.
func TestAttentionOfParts(t *testing.T) {
	const batch, length, group, heads, width = 7, 240, 2, 5, 64
	plan := &partition.Plan{PlanNGPUs: 1, RuntimeNGPUs: 1, DP: 1, TP: 1, Stages: make([]partition.Stage, 1)}
	shared := tiled()
	shared.Device.Shared, shared.Device.Cores, shared.Device.Fork = true, 3, 1e-6
	for _, c := range []*Cluster{tiled(), shared} {
		for _, software := range []Software{{}, {Scores: true, ScoreBytes: 10}} {
			c.Software = software
			price := func(parts int, cut ir.Placement, at int, gradient bool) (Picoseconds, work) {
				g := ir.NewGraph("attention")
				axis := ir.Axis{Name: partition.AxisDP, Size: 3}
				if cut == ir.ShardOn(0) {
					axis.Chunk = 3 * parts // 3, 3 and 1 sequences
				}
				g.Mesh = ir.Mesh{Axes: []ir.Axis{axis}}
				leaf := func(d ir.DType, cut ir.Placement, shape ...int) *ir.Value {
					var spec ir.ShardSpec
					spec[0] = cut
					v, err := g.Leaf(ir.OpInput, "x", ir.Type{DType: d, Shape: shape}, nil)
					require.NoError(t, err)
					v.Spec = spec
					return v
				}
				lseCut := cut
				if cut == ir.ShardOn(3) {
					lseCut = ir.ShardOn(2)
				}
				rows, tokens := batch*parts, length/parts
				qkv, number := leaf(ir.BF16, cut, rows, tokens, group+2, heads, width), leaf(ir.I32, ir.Placement{})
				op, args := ir.OpAttention, []*ir.Value{qkv, number, number}
				if gradient {
					o, lse := leaf(ir.BF16, cut, rows, tokens, group, heads, width), leaf(ir.F32, lseCut, rows, group, heads, tokens)
					op, args = ir.OpAttentionGrad, []*ir.Value{o, qkv, o, lse, number, number}
				}
				attr := ir.DropoutAttr{P: 0.1, Key: "k"}
				if parts > 1 {
					attr.Parts = parts
				}
				n, err := g.Add(op, attr, "attention", ir.Forward, args...)
				require.NoError(t, err)
				n.Results[0].Spec[0] = cut
				if !gradient {
					n.Results[1].Spec[0] = lseCut
				}
				in := &codegen.Instr{Node: n, Accum: make([]codegen.Accum, len(n.Results))}
				m := NewProgram(c, plan, g.Mesh)
				w := m.workOf(in, g.Mesh, ir.Coord{at})
				w.node = nil
				time, _ := m.instr(in, g.Mesh, ir.Coord{at})
				return time, w
			}
			for _, gradient := range []bool{false, true} {
				for _, cut := range []ir.Placement{{}, ir.ShardOn(0), ir.ShardOn(3)} {
					for at := range 3 {
						want, whole := price(1, cut, at, gradient)
						require.NotZero(t, want)
						for _, parts := range []int{2, 3, 8} {
							got, work := price(parts, cut, at, gradient)
							require.Equal(t, want, got, "in %d parts, cut %v, rank %d, gradient %t", parts, cut, at, gradient)
							require.Equal(t, whole, work)
						}
					}
				}
			}
		}
	}
}

// TestHost: a kernel takes at least as long as the host needs to launch it, except in the update.
func TestHost(t *testing.T) {
	c := tiled()
	c.Software = Software{Host: 1e-3, Sync: 1e-4}
	c.Device.LaunchOverhead = 1e-5
	about(t, 1.11e-3, NewModel(c, 1).kernel(&work{bytes: 1, host: true}), "")
	about(t, 1.0e-5+1e-6, NewModel(c, 1).kernel(&work{bytes: 1e4}), "")
}

func TestTraffic(t *testing.T) {
	value := func(shape ...int) *ir.Value { return &ir.Value{Type: ir.Type{DType: ir.BF16, Shape: shape}} }
	s := Software{RMSNorm: 12, Loss: 3, Elementwise: 2, Activation: 1.5, Rotation: 4, Optimizer: 5, Cast: 0.5, FusedBias: true}
	for op, want := range map[ir.Op]int64{
		ir.OpRMSNorm: 1200, ir.OpRMSNormGrad: 1200, ir.OpLayerNorm: 100, ir.OpRowMax: 300, ir.OpCrossEntropyGrad: 300, ir.OpDropout: 200,
		ir.OpGELU: 150, ir.OpSwiGLUGrad: 150, ir.OpRoPE: 400, ir.OpAdamW: 500, ir.OpCast: 50, ir.OpEmbedding: 100,
	} {
		require.Equal(t, want, s.traffic(&ir.Node{Op: op, Args: []*ir.Value{value(4, 4)}}, 100), op)
		require.Equal(t, int64(100), (&Software{}).traffic(&ir.Node{Op: op, Args: []*ir.Value{value(4, 4)}}, 100), "our own: %s", op)
	}
	bias := &ir.Node{Op: ir.OpAdd, Args: []*ir.Value{value(4, 4), value(4)}}
	residual := &ir.Node{Op: ir.OpAdd, Args: []*ir.Value{value(4, 4), value(4, 4)}}
	require.Zero(t, s.traffic(bias, 100))
	require.Equal(t, int64(200), s.traffic(residual, 100))
	require.Equal(t, int64(100), (&Software{}).traffic(bias, 100))
}

// TestBesideProducts: the sum of an input's gradient is hidden for as long as the product for the weight's gradient
// takes, on the rank where it takes longest; in the forward pass only in chunks.
func TestBesideProducts(t *testing.T) {
	c := round()
	p := &partition.Plan{PlanNGPUs: 4, RuntimeNGPUs: 4, DP: 1, TP: 4, MicroBatch: 1, Schedule: partition.GPipe, Stages: []partition.Stage{{Last: 1}}}
	mesh := p.Mesh(4)
	price := func(s Software, phase ir.Phase, op ir.Op) Picoseconds {
		c.Software = s
		typ := ir.Type{DType: ir.F32, Shape: []int{1000, 1000}}
		value := func() *ir.Value { return &ir.Value{Type: typ} }
		dx := &ir.Node{Name: "h.0.mlp/matmul", Op: ir.OpMatMul, Attr: ir.MatMulAttr{Form: ir.MatMulNN, K: 1}, Phase: phase, Args: []*ir.Value{value(), value()}, Results: []*ir.Value{value()}}
		dx.Results[0].Def = dx
		n := &ir.Node{Name: "h.0.mlp/matmul@sum", Op: op, Attr: ir.CommAttr{Axis: partition.AxisTP}, Phase: phase, Args: dx.Results, Results: []*ir.Value{value()}}
		time, kind := NewProgram(c, p, mesh).Instr(&codegen.Instr{Node: n}, mesh, ir.Coord{})
		require.Equal(t, Communication, kind)
		return time
	}
	all := (6 + 6000) * us     // 4 MB at 1 GB/s, 2·3/4 times
	product := (4000 + 2) * us // 2 GFLOP at half of 1 TFLOP/s
	async := Software{AsyncTP: true}
	require.Equal(t, all, price(Software{}, ir.Backward, ir.OpAllReduce))
	require.InDelta(t, float64(all-product), float64(price(async, ir.Backward, ir.OpAllReduce)), 2)
	require.Equal(t, all, price(async, ir.Forward, ir.OpAllReduce))
	// The last micro-batch is smaller, and one rank has 251 of 1,001 columns, the others 250.
	rest := *p
	rest.MicroBatch = 600
	uneven := func(rank int) Picoseconds {
		c.Software = async
		mesh := rest.Mesh(1000)
		tp, mb := mesh.Axis(partition.AxisTP), mesh.Axis(partition.AxisMB)
		value := func(rows, columns int) *ir.Value {
			return &ir.Value{Type: ir.Type{DType: ir.F32, Shape: []int{rows, columns}}}
		}
		dy, w, dx := value(1000, 1001), value(1001, 1000), value(1000, 1000)
		dy.Spec[mb], dy.Spec[tp], w.Spec[tp], dx.Spec[mb] = ir.ShardOn(0), ir.ShardOn(1), ir.ShardOn(0), ir.ShardOn(0)
		dx.Def = &ir.Node{Op: ir.OpMatMul, Attr: ir.MatMulAttr{Form: ir.MatMulNN, K: 1}, Phase: ir.Backward, Args: []*ir.Value{dy, w}, Results: []*ir.Value{dx}}
		sum := value(1000, 1000)
		sum.Spec[mb] = ir.ShardOn(0)
		n := &ir.Node{Op: ir.OpAllReduce, Attr: ir.CommAttr{Axis: partition.AxisTP}, Phase: ir.Backward, Args: dx.Def.Results, Results: []*ir.Value{sum}}
		at := ir.Coord{}
		at[tp], at[mb] = rank, 1
		time, _ := NewProgram(c, &rest, mesh).Instr(&codegen.Instr{Node: n}, mesh, at)
		return time
	}
	require.Equal(t, uneven(0), uneven(3))
	async.ChunkedTP = true
	require.InDelta(t, float64(all/8), float64(price(async, ir.Forward, ir.OpReduceScatter)), 2)
	require.InDelta(t, float64(all/8), float64(price(async, ir.Forward, ir.OpAllGather)), 2)
}

func TestSoftwareByName(t *testing.T) {
	s, err := LoadSoftware(Current)
	require.NoError(t, err)
	require.Equal(t, Current, s.Name)
	_, err = LoadSoftware("torch-compiled")
	require.ErrorContains(t, err, `unknown software "torch-compiled"; did you mean torch-compile?`)
	h, err := Load("h100")
	require.NoError(t, err)
	require.Equal(t, s, h.Software)
	cpu, err := Load("cpu")
	require.NoError(t, err)
	require.Zero(t, cpu.Software, "this project's own kernels")
}

// TestFewerSequencesTakeNoLonger: of a smaller micro-batch software may hide less of a collective. A rank with fewer sequences
// takes no longer than the one with the most all the same, in every micro-batch.
func TestFewerSequencesTakeNoLonger(t *testing.T) {
	c, err := Load("h100")
	require.NoError(t, err)
	c.Software = Software{AsyncTP: true}
	p := &partition.Plan{PlanNGPUs: 4, RuntimeNGPUs: 4, DP: 2, TP: 2, MicroBatch: 4, Schedule: partition.GPipe, Stages: []partition.Stage{{Last: 1}}}
	const batch = 13 // 7 sequences, the last micro-batch of 3, and 6, of 2
	mesh := p.Mesh(batch)
	dp, mb, tp := mesh.Axis(partition.AxisDP), mesh.Axis(partition.AxisMB), mesh.Axis(partition.AxisTP)
	for tokens := 1; tokens < 1000; tokens += 7 {
		value := func(shape ...int) *ir.Value { return &ir.Value{Type: ir.Type{DType: ir.BF16, Shape: shape}} }
		dy, w, dx, sum := value(batch, tokens, 2048), value(2048, 1024), value(batch, tokens, 1024), value(batch, tokens, 1024)
		for _, v := range []*ir.Value{dy, dx, sum} {
			v.Spec[dp], v.Spec[mb] = ir.ShardOn(0), ir.ShardOn(0)
		}
		dy.Spec[tp], w.Spec[tp] = ir.ShardOn(2), ir.ShardOn(0)
		dx.Def = &ir.Node{Op: ir.OpMatMul, Attr: ir.MatMulAttr{Form: ir.MatMulNN, K: 1}, Phase: ir.Backward, Args: []*ir.Value{dy, w}, Results: []*ir.Value{dx}}
		n := &ir.Node{Op: ir.OpAllReduce, Attr: ir.CommAttr{Axis: partition.AxisTP}, Phase: ir.Backward, Args: dx.Def.Results, Results: []*ir.Value{sum}}
		m := NewProgram(c, p, mesh)
		price := func(rank int) Picoseconds {
			at := ir.Coord{}
			at[dp], at[mb] = rank, 1
			time, _ := m.Instr(&codegen.Instr{Node: n}, mesh, at)
			return time
		}
		require.LessOrEqual(t, price(1), price(0), "%d tokens", tokens)
	}
}
