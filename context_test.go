package autopar_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
)

// TestContextParity: sharing a sequence of 19 tokens over up to five ranks,
// whatever else is cut, recomputed or sharded, changes nothing that is learned.
// The plans that TestParity samples are here by name.
func TestContextParity(t *testing.T) {
	one := oneRank(t, paritySteps())
	tests := []struct {
		dp, cp, tp, pp int
		change         func(p *partition.Plan)
	}{
		{1, 2, 1, 1, nil},
		{1, 3, 1, 1, nil},
		{1, 4, 1, 1, nil},
		{1, 5, 1, 1, func(p *partition.Plan) { p.MicroBatch = parityBatch }},
		{3, 2, 1, 1, func(p *partition.Plan) { p.ZeRO = 1 }},
		{2, 2, 1, 1, func(p *partition.Plan) { p.ZeRO = 2 }},
		{2, 3, 1, 1, func(p *partition.Plan) { p.ZeRO = 3; p.Stages[0].Recompute = 5 }},
		{1, 2, 1, 1, func(p *partition.Plan) { p.ZeRO = 1 }},
		{1, 3, 1, 1, func(p *partition.Plan) { p.ZeRO = 2; p.Overlap = true }},
		{1, 4, 1, 1, func(p *partition.Plan) { p.ZeRO = 3 }},
		{2, 2, 2, 1, func(p *partition.Plan) { p.ZeRO = 3; p.Overlap = true }},
		{4, 2, 1, 1, func(p *partition.Plan) { p.ZeRO, p.ZeROGroup = 2, 2 }},
		{1, 2, 2, 2, func(p *partition.Plan) { p.ZeRO = 2; p.SequenceParallel = true }},
		{1, 2, 2, 1, nil},
		{1, 2, 2, 1, func(p *partition.Plan) { p.SequenceParallel = true; p.Stages[0].Selective = 8 }},
		{1, 3, 3, 1, func(p *partition.Plan) { p.SequenceParallel = true }},
		{1, 2, 7, 1, func(p *partition.Plan) { p.SequenceParallel = true }}, // more than heads: tp shares positions too
		{1, 2, 1, 2, func(p *partition.Plan) { p.Stages[0].Recompute, p.Stages[1].Selective = 2, 3 }},
		{1, 2, 2, 1, func(p *partition.Plan) { p.SequenceParallel = true; p.Stages[0].Pointwise = 8 }},
		{2, 2, 2, 2, func(p *partition.Plan) { p.ZeRO = 3; p.SequenceParallel = true; p.Stages[1].Recompute = 4 }},
		{1, 3, 1, 2, func(p *partition.Plan) { p.Schedule = partition.GPipe; p.MicroBatch = 1 }},
		{1, 2, 1, 3, func(p *partition.Plan) { p.Schedule = partition.ZeroBubble; p.Stages[1].Recompute = 2 }},
		{2, 2, 1, 2, func(p *partition.Plan) { interleave(p, 2); p.ZeRO = 2; p.Stages[2].Selective = 2 }},
		{1, 3, 2, 2, func(p *partition.Plan) { interleave(p, 3); p.SequenceParallel = true; p.MicroBatch = 1 }},
	}
	for _, tt := range tests {
		p := contextPlan(tt.dp, tt.cp, tt.tp, tt.pp)
		if tt.change != nil {
			tt.change(p)
		}
		t.Run(fmt.Sprintf("%s, %s, ZeRO %d, sequence parallel %t", p.Degrees(), p.ScheduleText(), p.ZeRO, p.SequenceParallel), func(t *testing.T) {
			dLoss, dNorm := differences(one, trainBatch(t, p, parityBatch, paritySteps()))
			t.Logf("|dloss| %.1e, relative |dnorm| %.1e", dLoss, dNorm)
			require.LessOrEqual(t, dLoss, 1e-5)
			require.LessOrEqual(t, dNorm, 1e-6)
		})
	}
}

// TestContextHalfPrecision: keys, values and their gradients go between ranks in two
// bytes an element, and losses stay within what TestHalfPrecisionParity allows.
func TestContextHalfPrecision(t *testing.T) {
	zeroBubble, interleaved := contextPlan(1, 3, 1, 2), contextPlan(2, 2, 1, 2)
	zeroBubble.Schedule = partition.ZeroBubble
	interleave(interleaved, 2)
	interleaved.ZeRO, interleaved.Stages[1].Recompute = 3, 1
	for _, c := range precisions() {
		loss, norm := 5e-4, 4e-3
		if c.float == ir.F16 {
			loss, norm = 6e-5, 5e-4
		}
		prog, exec := trainerIn(t, c, parityPlan(1, 1, 1, parityBatch, partition.GPipe, false), parityBatch)
		one := stepsOf(t, prog, exec, parityBatch, paritySteps())
		for _, p := range []*partition.Plan{zeroBubble, interleaved} {
			prog, exec := trainerIn(t, c, p, parityBatch)
			twoBytesOnTheWire(t, prog)
			dLoss, dNorm := differences(one, stepsOf(t, prog, exec, parityBatch, paritySteps()))
			t.Logf("%s, %s: |dloss| %.1e, relative |dnorm| %.1e", c.name, p.ScheduleText(), dLoss, dNorm)
			require.LessOrEqual(t, dLoss, loss, c.name)
			require.LessOrEqual(t, dNorm, norm, c.name)
		}
	}
}

// TestContextMasks: one step draws the masks that one rank draws. Of other masks
// the loss would differ in the third digit.
func TestContextMasks(t *testing.T) {
	one := oneRank(t, 1)
	got := trainBatch(t, contextPlan(1, 3, 2, 1), parityBatch, 1)
	require.InDelta(t, one.loss[0], got.loss[0], 1e-6)
	require.InEpsilon(t, one.norm[0], got.norm[0], 1e-6)
}

// TestContextIsBalanced counts the pairs of query and key that the causal mask
// leaves each rank: equal where 2·parts divides the tokens, otherwise apart by what
// half a token of each part sees.
func TestContextIsBalanced(t *testing.T) {
	for _, tt := range []struct {
		tokens, parts int
		within        float64
	}{{33, 2, .05}, {33, 3, .06}, {33, 4, .13}, {64, 4, 0}, {1000, 7, .01}, {1024, 8, 0}} {
		mean := float64(tt.tokens*(tt.tokens+1)) / 2 / float64(tt.parts)
		all := 0
		for i := range tt.parts {
			part := ir.Axis{Size: tt.parts}.Cut(tt.tokens, i)
			pairs := 0
			for _, run := range ir.FoldRuns(tt.tokens, tt.parts, part.Off, part.Len) {
				for q := range run.Len {
					pairs += run.Pos + q + 1
				}
			}
			all += pairs
			require.InDelta(t, mean, float64(pairs), tt.within*mean, "rank %d of %d, %d tokens", i, tt.parts, tt.tokens)
		}
		require.Equal(t, tt.tokens*(tt.tokens+1)/2, all, "every pair once")
	}
}

// TestContextTraffic: in the forward pass of a block a rank receives the keys and
// values of the others' tokens, in the backward pass the same again and what
// their queries contribute to the gradients of its own; no activation moves
// otherwise, and gradients of parameters are summed over both axes.
func TestContextTraffic(t *testing.T) {
	const cp = 3
	p := contextPlan(1, cp, 1, 1)
	p.MicroBatch = parityBatch
	prog, exec := trainer(t, p, parityBatch)
	stepsOf(t, prog, exec, parityBatch, 1)
	tokens := parityModel.BlockSize
	row := int64(parityBatch * 2 * parityModel.NEmbd * 4) // keys and values of one position
	for r := range prog.Schedules {
		s := &prog.Schedules[r]
		own := int64(prog.Mesh.Axes[prog.Mesh.Axis(partition.AxisCP)].Cut(tokens, r).Len)
		total := int64(0)
		for _, task := range s.Tasks {
			got := map[ir.Op]int64{}
			for _, in := range prog.Stages[0].Bodies[task.Phase].Instrs {
				bytes := prog.CommBytes(s, &in, task)
				total += bytes
				if in.Node.Block() == "h.3" && codegen.Collective(in.Node.Op) {
					got[in.Node.Op] += bytes
				}
			}
			gather := (int64(tokens) - own) * row
			switch task.Phase {
			case ir.Forward:
				require.Equal(t, map[ir.Op]int64{ir.OpAllGather: gather}, got, "rank %d", r)
			case ir.Backward:
				require.Equal(t, map[ir.Op]int64{ir.OpAllGather: gather, ir.OpReduceScatter: (cp - 1) * own * row}, got, "rank %d", r)
			case ir.Update:
				require.Len(t, got, 1)
				require.Positive(t, got[ir.OpAllReduce])
			}
		}
		require.Equal(t, total, exec.Counters(r).CollectiveBytes)
	}
}

// TestContextZeROTraffic: what ZeRO shards is reduced over context-parallel ranks
// before data-parallel ones, whose links may be slower, and gathered after: these
// exchange the share of one context-parallel rank.
func TestContextZeROTraffic(t *testing.T) {
	const dp, cp = 2, 3
	p := contextPlan(dp, cp, 1, 1)
	p.ZeRO, p.MicroBatch = 1, parityBatch
	prog, exec := trainer(t, p, parityBatch)
	stepsOf(t, prog, exec, parityBatch, 1)
	var params float64
	for _, v := range prog.Graph.Params() {
		if !v.Def.Attr.(ir.ParamAttr).State {
			params += float64(v.Type.Bytes())
		}
	}
	got := map[string]float64{}
	s := &prog.Schedules[0]
	for _, task := range s.Tasks {
		for _, in := range prog.Stages[0].Bodies[task.Phase].Instrs {
			if n := in.Node; codegen.Collective(n.Op) && task.Phase == ir.Update && len(n.Results[0].Type.Shape) > 0 {
				got[n.Op.String()+" "+n.Attr.(ir.CommAttr).Axis] += float64(prog.CommBytes(s, &in, task))
			}
		}
	}
	require.Len(t, got, 4)
	for _, op := range []ir.Op{ir.OpReduceScatter, ir.OpAllGather} {
		require.InEpsilon(t, params*(cp-1)/cp, got[op.String()+" cp"], 0.05, "%s", op)
		require.InEpsilon(t, params/cp*(dp-1)/dp, got[op.String()+" dp"], 0.05, "%s", op)
	}
}

// TestContextEvaluation: the loss without dropout is that of one rank, and logits
// come out in the order of positions.
func TestContextEvaluation(t *testing.T) {
	const batch = 3
	T, V := parityModel.BlockSize, parityModel.VocabSize
	ids, targets := make([]int32, batch*T), make([]int32, batch*T)
	for i := range ids {
		ids[i], targets[i] = int32(i*13%V), int32(i*31%V)
	}
	evaluate := func(p *partition.Plan) (float32, []float32) {
		p.MicroBatch = batch
		eval, err := gpt.EvalStep(parityModel, batch, T)
		require.NoError(t, err)
		prog, exec := compile(t, eval, p, batch)
		require.NoError(t, exec.InitParams(prog, 1))
		feeds := runtime.Feeds{"ids": runtime.Ints(ids...), "positions": runtime.Ints(upTo(T)...)}
		feeds["targets"], feeds["loss_weight"] = runtime.Ints(targets...), runtime.Floats(1/float32(len(ids)))
		out, err := exec.Step(t.Context(), prog, feeds)
		require.NoError(t, err)
		loss := out["loss"]

		g, err := gpt.Logits(parityModel, batch, T)
		require.NoError(t, err)
		prog, exec = compile(t, g, p, batch)
		require.NoError(t, exec.InitParams(prog, 1))
		delete(feeds, "targets")
		delete(feeds, "loss_weight")
		_, err = exec.Step(t.Context(), prog, feeds)
		require.NoError(t, err)
		logits := make([]float32, batch*T*V)
		require.NoError(t, exec.ReadOutput(prog, "logits", logits))
		return loss, logits
	}
	loss, logits := evaluate(parityPlan(1, 1, 1, batch, partition.GPipe, false))
	for _, p := range []*partition.Plan{contextPlan(1, 2, 1, 1), contextPlan(1, 3, 2, 1), contextPlan(1, 4, 1, 2)} {
		gotLoss, got := evaluate(p)
		require.InDelta(t, loss, gotLoss, 1e-6)
		require.InDeltaSlice(t, logits, got, 1e-5)
	}
}

// TestContextRefusals: what cannot be shared is refused with the numbers and the
// nearest legal choice.
func TestContextRefusals(t *testing.T) {
	train, err := gpt.TrainStep(parityModel, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8}, parityBatch, parityModel.BlockSize)
	require.NoError(t, err)
	decode, err := gpt.Decode(parityModel, parityBatch, parityModel.BlockSize)
	require.NoError(t, err)
	sequence := contextPlan(1, 4, 5, 1)
	sequence.SequenceParallel = true
	product := contextPlan(2, 2, 1, 1)
	product.PlanNGPUs, product.RuntimeNGPUs = 6, 6
	negative := contextPlan(1, 1, 1, 1)
	negative.CP = -1
	for _, tt := range []struct {
		g    *ir.Graph
		plan *partition.Plan
		want string
	}{
		{train, contextPlan(1, 10, 1, 1), "plan: cp: 10 ranks cannot share sequences of 19 tokens: each takes an early and a late part, so they need 20; use cp 9 or less"},
		{train, sequence, "plan: cp: cp 4 x tp 5 with sequence parallelism cut sequences of 19 tokens into 20 parts; use cp 3 or less"},
		{train, product, "plan: plan_ngpus: 6 is not dp 2 x cp 2 x tp 1 x 1 stages"},
		{train, negative, "plan: cp: is -1, want at least 0, which stands for 1"},
		{decode, contextPlan(1, 2, 1, 1), "plan: cp: h.0.attn/attention_decode makes one token at a time, so there is no sequence to share; use cp 1"},
	} {
		_, err := partition.Apply(tt.g, tt.plan, parityBatch)
		require.EqualError(t, err, tt.want)
	}
}

// TestContextReproducible: with train.reproducible plans of one context-parallel
// degree have the same bits, whatever else they cut, and losses as one rank has.
func TestContextReproducible(t *testing.T) {
	const steps = 3
	one, _ := exactRun(t, parityPlan(1, 1, 1, parityBatch, partition.GPipe, false), steps)
	want, weights := exactRun(t, contextPlan(1, 3, 1, 1), steps)
	dLoss, dNorm := differences(one, want)
	require.LessOrEqual(t, dLoss, 1e-5)
	require.LessOrEqual(t, dNorm, 1e-6)
	sharded := contextPlan(2, 3, 1, 2)
	sharded.ZeRO, sharded.MicroBatch, sharded.Stages[0].Recompute, sharded.Stages[1].Selective = 3, 1, 2, 3
	zeroBubble := contextPlan(1, 3, 1, 3)
	zeroBubble.Schedule = partition.ZeroBubble
	interleaved := contextPlan(1, 3, 1, 2)
	interleave(interleaved, 2)
	for _, p := range []*partition.Plan{sharded, zeroBubble, interleaved} {
		got, same := exactRun(t, p, steps)
		require.Equal(t, want, got, p.ScheduleText())
		require.Equal(t, weights, same, p.ScheduleText())
	}
}
