package codegen_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/partition/partitiontest"
)

const batch = 7

func model(layers int) gpt.Config {
	return gpt.Config{
		NLayer: layers, NHead: 3, NKVHead: 3, NEmbd: 24, BlockSize: 33, VocabSize: 65, Dropout: 0.2, Bias: true,
		Activation: "gelu", Norm: "layernorm", Position: "learned", TieEmbeddings: true,
	}
}

func trainGraph(t testing.TB, layers int) *ir.Graph {
	g, err := gpt.TrainStep(model(layers), gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, WeightDecay: .1, GradClip: 1}, batch, 33)
	require.NoError(t, err)
	return g
}

func plan(dp, tp, pp, mb, layers int, schedule partition.Schedule, recompute bool) *partition.Plan {
	p := &partition.Plan{
		PlanNGPUs: dp * tp * pp, RuntimeNGPUs: dp * tp * pp, DP: dp, TP: tp, MicroBatch: mb, Schedule: schedule, Placements: partitiontest.Megatron(),
	}
	for s := range pp {
		st := partition.Stage{First: s * layers / pp, Last: (s + 1) * layers / pp}
		if recompute {
			st.Recompute = st.Last - st.First
		}
		p.Stages = append(p.Stages, st)
	}
	return p
}

// generate compiles a program that computes its graph; whether it is sound is not checked.
func generate(t testing.TB, g *ir.Graph, p *partition.Plan) *codegen.Program {
	prog, err := codegen.Compile(g, p, batch, nil)
	require.NoError(t, err)
	require.NoError(t, codegen.CheckEquivalent(prog, g), "%+v", *p)
	return prog
}

func TestCheckAcceptsEveryProgram(t *testing.T) {
	const layers = 4
	g := trainGraph(t, layers)
	for _, pp := range []int{1, 2, 3, 4} {
		for _, tp := range []int{1, 2, 3} {
			for _, dp := range []int{1, 2, 3, 4} {
				for i, mb := range []int{1, 2, 3, 2} {
					schedule := partition.GPipe
					if (i+pp)%2 == 0 {
						schedule = partition.OneFOneB
					}
					p := plan(dp, tp, pp, mb, layers, schedule, (dp+i)%2 == 0)
					if dp > 1 {
						p.ZeRO = (i + pp) % 4
					}
					if dp == 4 && p.ZeRO > 0 {
						p.ZeROGroup = 2
					}
					p.SequenceParallel = tp > 1 && i%2 == 0
					p.Offload = []partition.Offload{partition.OffloadNone, partition.OffloadOptimizer, partition.OffloadParams}[(i+dp+tp)%3]
					prog := generate(t, g, p)
					require.NoError(t, codegen.Check(prog), "dp %d tp %d pp %d micro-batch %d %s zero %d offload %s", dp, tp, pp, mb, schedule, p.ZeRO, p.Offload)
				}
			}
		}
	}
}

// TestInFlight compares the slots of each stage with schedule theory (row 30).
func TestInFlight(t *testing.T) {
	g := trainGraph(t, 4)
	for s, st := range generate(t, g, plan(1, 1, 4, 1, 4, partition.OneFOneB, false)).Stages {
		require.Equal(t, 4-s, st.Chunks[0].Slots, "1F1B keeps pp - stage micro-batches")
	}
	for _, st := range generate(t, g, plan(1, 1, 4, 1, 4, partition.GPipe, false)).Stages {
		require.Equal(t, batch, st.Chunks[0].Slots, "GPipe keeps all micro-batches")
	}
}

// TestForwardPrograms: one plan also compiles the evaluation, logits and decoding graphs, and evaluation fits
// in the arena of training.
func TestForwardPrograms(t *testing.T) {
	cfg := model(2)
	train := generate(t, trainGraph(t, 2), plan(2, 2, 2, 2, 2, partition.OneFOneB, false))
	eval, err := gpt.EvalStep(cfg, batch, 33)
	require.NoError(t, err)
	shared, err := codegen.Compile(eval, train.Plan, batch, train)
	require.NoError(t, err)
	require.NoError(t, codegen.Verify(shared, eval))
	for s, st := range shared.Stages {
		require.LessOrEqual(t, st.Arena(), train.Stages[s].Arena())
		for name, id := range st.Params {
			require.Equal(t, train.Stages[s].Buffers[train.Stages[s].Params[name]].Offset, st.Buffers[id].Offset, name)
		}
	}
	logits, err := gpt.Logits(cfg, 3, 33)
	require.NoError(t, err)
	decode, err := gpt.Decode(cfg, 3, 33)
	require.NoError(t, err)
	for _, g := range []*ir.Graph{logits, decode} {
		p := plan(1, 1, 1, 3, 2, partition.GPipe, false)
		prog, err := codegen.Compile(g, p, 3, nil)
		require.NoError(t, err)
		require.NoError(t, codegen.Verify(prog, g))
		p.MicroBatch = 2
		_, err = partition.Apply(g, p, 3)
		require.ErrorContains(t, err, "micro_batch")
	}
}

// TestNoFullLogits: under a vocabulary split no rank holds all logits (row 28).
func TestNoFullLogits(t *testing.T) {
	prog := generate(t, trainGraph(t, 1), plan(1, 3, 1, batch, 1, partition.GPipe, false))
	var logits int
	for _, b := range prog.Stages[0].Buffers {
		shape := b.Value.Type.Shape
		if len(shape) == 3 && shape[2] == 65 {
			logits++
			require.LessOrEqual(t, b.Size, int64(batch*33*22*4), b.Value.Name())
		}
	}
	require.Equal(t, 1, logits, "the gradient of the logits overwrites them")
}

// TestZeROBytes compares the persistent bytes of a rank with Rajbhandari et al. 2020, figure 1, in fp32:
// parameters P, gradients P and moments 2P, where moments, gradients and parameters are divided by the
// data-parallel degree from ZeRO stage 1, 2 and 3 on (row 32).
func TestZeROBytes(t *testing.T) {
	const layers, dp = 2, 3
	g := trainGraph(t, layers)
	var params float64
	for _, v := range g.Params() {
		if !v.Def.Attr.(ir.ParamAttr).State {
			params += float64(v.Type.Bytes())
		}
	}
	for stage, want := range []float64{4 * params, 2*params + 2*params/dp, params + 3*params/dp, 4 * params / dp} {
		p := plan(dp, 1, 1, 1, layers, partition.GPipe, false)
		p.ZeRO = stage
		prog := generate(t, g, p)
		require.NoError(t, codegen.Check(prog))
		require.InEpsilon(t, want, float64(prog.Stages[0].Persist), 0.05, "stage %d", stage)
	}
}

// TestSequenceParallelBytes: activations between tensor-parallel regions are saved in 1/tp of the bytes (row
// 29).
func TestSequenceParallelBytes(t *testing.T) {
	const tp = 3
	g := trainGraph(t, 1)
	saved := func(sp bool) map[string]int64 {
		p := plan(1, tp, 1, batch, 1, partition.GPipe, false)
		p.SequenceParallel = sp
		prog := generate(t, g, p)
		require.NoError(t, codegen.Check(prog))
		bytes := map[string]int64{}
		for _, b := range prog.Stages[0].Buffers {
			if b.Region == codegen.Slot {
				bytes[b.Value.Name()] = b.Size
			}
		}
		return bytes
	}
	whole, cut := saved(false), saved(true)
	for _, name := range []string{"h.0.ln_1/layer_norm", "h.0/add", "h.0.ln_2/layer_norm", "h.0/add_1", "ln_f/layer_norm"} {
		require.Equal(t, whole[name], tp*cut[name], name)
	}
	for name, n := range cut {
		require.LessOrEqual(t, n, whole[name], "%s is saved gathered", name)
	}
}

func TestRecomputeShrinksSlots(t *testing.T) {
	g := trainGraph(t, 4)
	keep := generate(t, g, plan(1, 1, 1, 1, 4, partition.GPipe, false)).Stages[0]
	drop := generate(t, g, plan(1, 1, 1, 1, 4, partition.GPipe, true)).Stages[0]
	require.Less(t, drop.Chunks[0].Slot, keep.Chunks[0].Slot/2)
	p := plan(1, 1, 1, 1, 4, partition.GPipe, false)
	p.Stages[0].Selective = 4
	require.Less(t, generate(t, g, p).Stages[0].Chunks[0].Slot, keep.Chunks[0].Slot)
	p.Stages[0].Selective, p.Stages[0].Pointwise = 0, 4
	pointwise := generate(t, g, p).Stages[0]
	require.Less(t, pointwise.Chunks[0].Slot, keep.Chunks[0].Slot)
	for _, b := range pointwise.Buffers {
		again := b.Value.Def.Block() != "" && (b.Value.Def.Op == ir.OpLayerNorm || b.Value.Def.Op == ir.OpGELU)
		require.False(t, again && b.Region == codegen.Slot && b.Value.Def.Phase == ir.Forward && b.Size > 0 && b.To >= len(pointwise.Bodies[ir.Forward].Instrs), "%s is kept", b.Value.Name())
	}
	require.Less(t, drop.Arena(), keep.Arena())
}

func TestProgramsAreDeterministic(t *testing.T) {
	text := func() string {
		prog := generate(t, trainGraph(t, 2), plan(2, 2, 2, 2, 2, partition.OneFOneB, true))
		var b bytes.Buffer
		for r := range prog.Schedules {
			require.NoError(t, prog.Fprint(&b, r))
		}
		return b.String()
	}
	require.Equal(t, text(), text())
}

// TestMutants breaks a sound dp 2 x tp 2 x pp 2 program of 2 micro-batches in ways that have been real bugs
// somewhere. Each must be refused, and the error must name the place.
func TestMutants(t *testing.T) {
	base := func() *codegen.Program {
		return generate(t, trainGraph(t, 2), plan(2, 2, 2, 2, 2, partition.OneFOneB, false))
	}
	find := func(p *codegen.Program, name string) (*codegen.Body, int) {
		for _, s := range p.Stages {
			for phase := range s.Bodies {
				for i, in := range s.Bodies[phase].Instrs {
					if in.Node.Name == name {
						return &s.Bodies[phase], i
					}
				}
			}
		}
		t.Fatalf("no instruction %s", name)
		return nil, 0
	}
	drop := func(p *codegen.Program, name string) codegen.Instr {
		body, i := find(p, name)
		in := body.Instrs[i]
		body.Instrs = append(body.Instrs[:i:i], body.Instrs[i+1:]...)
		return in
	}
	rewire := func(p *codegen.Program, name string) { // consumers read the operand of an instruction instead of its result
		in := drop(p, name)
		for _, n := range p.Graph.Nodes {
			for i, a := range n.Args {
				if a == in.Node.Results[0] {
					n.Args[i] = in.Node.Args[0]
				}
			}
		}
		for i, n := range p.Graph.Nodes {
			if n == in.Node {
				p.Graph.Nodes = append(p.Graph.Nodes[:i:i], p.Graph.Nodes[i+1:]...)
				break
			}
		}
	}
	const (
		rowParallel = "h.0.attn.c_proj/matmul@all_reduce_tp"
		backward    = "h.0.mlp.c_fc/matmul@dx@all_reduce_tp"
		gradSync    = "h.0.mlp.c_fc/matmul@dw@accumulate_mb@all_reduce_dp"
		normSync    = "grad_norm/add_n@all_reduce_tp"
		forwardSend = "h.0/add_1@send1"
		forwardRecv = "h.0/add_1@recv1"
		normGrad    = "h.0.ln_1/layer_norm@dx"
	)
	for name, m := range map[string]struct {
		breakIt func(*codegen.Program)
		names   string
	}{
		"all_reduce dropped":                 {func(p *codegen.Program) { drop(p, rowParallel) }, rowParallel},
		"all_reduce dropped, data flow kept": {func(p *codegen.Program) { rewire(p, rowParallel) }, "h.0.attn.c_proj/add"},
		"backward reduce missing":            {func(p *codegen.Program) { rewire(p, backward) }, "h.0.ln_2/layer_norm@dx"},
		"clip by each shard's own norm":      {func(p *codegen.Program) { rewire(p, normSync) }, "grad_norm/sqrt"},
		"gradient sync missing":              {func(p *codegen.Program) { rewire(p, gradSync) }, "h.0.mlp.c_fc.weight"},
		"all_reduce and all_gather swapped":  {func(p *codegen.Program) { b, i := find(p, rowParallel); b.Instrs[i].Node.Op = ir.OpAllGather }, rowParallel},
		"reduce over the wrong axis": {func(p *codegen.Program) {
			b, i := find(p, rowParallel)
			b.Instrs[i].Node.Attr = ir.CommAttr{Axis: "dp"}
		}, rowParallel},
		"wrong p2p source":                 {func(p *codegen.Program) { b, i := find(p, forwardRecv); b.Instrs[i].Node.Attr = ir.P2PAttr{Stage: 1} }, forwardRecv},
		"wrong p2p destination":            {func(p *codegen.Program) { b, i := find(p, forwardSend); b.Instrs[i].Node.Attr = ir.P2PAttr{Stage: 0} }, ""},
		"send dropped":                     {func(p *codegen.Program) { drop(p, forwardSend) }, forwardSend},
		"receive dropped":                  {func(p *codegen.Program) { drop(p, forwardRecv) }, forwardRecv},
		"two backward outputs swapped":     {func(p *codegen.Program) { b, i := find(p, normGrad); r := b.Instrs[i].Results; r[1], r[2] = r[2], r[1] }, normGrad},
		"gradient overwritten, not added":  {func(p *codegen.Program) { b, i := find(p, normGrad); b.Instrs[i].Accum[1] = codegen.Overwrite }, normGrad},
		"gradient added into stale memory": {func(p *codegen.Program) { b, i := find(p, normGrad); b.Instrs[i].Accum[1] = codegen.Always }, normGrad},
		"gradient reduced before the last backward": {func(p *codegen.Program) {
			in := drop(p, gradSync)
			b := &p.Stages[0].Bodies[ir.Backward]
			b.Instrs = append(b.Instrs, in)
		}, gradSync},
		"tied table's gradient missing one use":      {func(p *codegen.Program) { drop(p, "wte.weight@grad") }, "wte.weight@grad"},
		"optimizer misses a parameter":               {func(p *codegen.Program) { drop(p, "h.0.mlp.c_fc.weight/adamw") }, "h.0.mlp.c_fc.weight/adamw"},
		"micro-batch skipped":                        {func(p *codegen.Program) { s := &p.Schedules[5]; s.Tasks = s.Tasks[2:] }, "rank 5"},
		"slot taken while busy":                      {func(p *codegen.Program) { p.Stages[0].Chunks[0].Slots = 1 }, "rank 0"},
		"ranks disagree on the order of collectives": {func(p *codegen.Program) { swapOrder(t, p) }, ""},
		"buffers overlap":                            {func(p *codegen.Program) { overlap(t, p) }, "overlap"},
	} {
		t.Run(name, func(t *testing.T) {
			p := base()
			require.NoError(t, codegen.Check(p))
			m.breakIt(p)
			err := codegen.Check(p)
			require.Error(t, err)
			require.ErrorContains(t, err, m.names)
			t.Log(err)
		})
	}
}

// swapOrder makes rank 1 run the update before its last backward pass.
func swapOrder(t *testing.T, p *codegen.Program) {
	tasks := p.Schedules[1].Tasks
	n := len(tasks)
	require.Equal(t, ir.Update, tasks[n-1].Phase)
	tasks[n-1], tasks[n-2] = tasks[n-2], tasks[n-1]
}

// overlap moves one saved activation onto another one that is live at the same time.
func overlap(t *testing.T, p *codegen.Program) {
	bufs := p.Stages[0].Buffers
	for i := range bufs {
		for j := range bufs[:i] {
			a, b := &bufs[i], &bufs[j]
			if a.Region == codegen.Slot && b.Region == codegen.Slot && a.Size == b.Size && a.Offset != b.Offset && a.From <= b.To && b.From <= a.To {
				a.Offset = b.Offset
				return
			}
		}
	}
	t.Fatal("nothing to overlap")
}

func ExampleProgram_Fprint() {
	g := ir.NewGraph("g")
	x, _ := g.Leaf(ir.OpInput, "x", ir.Type{Shape: []int{4, 2}}, nil)
	n, _ := g.Add(ir.OpGELU, ir.GELUAttr{}, "y/gelu", ir.Forward, x)
	s, _ := g.Add(ir.OpSum, nil, "y/sum", ir.Forward, n.Results[0])
	g.Outputs = []ir.Output{{Name: "y", Value: s.Results[0]}}
	p := &partition.Plan{PlanNGPUs: 1, RuntimeNGPUs: 1, DP: 1, TP: 1, MicroBatch: 4, Schedule: partition.GPipe, Stages: []partition.Stage{{}}}
	prog, _ := codegen.Compile(g, p, 4, nil)
	var b bytes.Buffer
	_ = prog.Fprint(&b, 0)
	fmt.Print(b.String())
	// Output:
	// rank 0  stage 0  dp=0 tp=0  1 micro-batches  arena 192 bytes (persist 64 + 1 slots of 64 + temp 64)
	//   b0  slot+0  32 bytes  x f32[4,2]
	//   b1  persist+0  4 bytes  y/sum@accumulate_mb f32[]
	//   b2  temp+0  32 bytes  y/gelu f32[4,2]
	//   000 feed     input              b0 <-   fwd mb=0  x
	//   001 compute  gelu               b2 <- b0  fwd mb=0  y/gelu
	//   002 compute  sum                b1 <+ b2  fwd mb=0  y/sum
}
