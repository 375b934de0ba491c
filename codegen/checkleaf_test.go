package codegen_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
)

// TestLeavesAreChecked: a program is refused if its instructions are right, but the runtime would not load
// everything, would not find a value by name, or would let another program overwrite it. Most weights are
// frozen here, so that no update reveals the error.
func TestLeavesAreChecked(t *testing.T) {
	cfg := model(3)
	cfg.LoRARank, cfg.LoRATargets = 2, "."
	traced, err := gpt.TrainStep(cfg, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, GradClip: 1}, batch, 33)
	require.NoError(t, err)
	const frozen, other = "h.1.ln_1.weight", "h.1.ln_2.weight"
	at := func(st *codegen.Stage, match func(in *codegen.Instr) bool) *codegen.Instr {
		for phase := range st.Bodies {
			for i := range st.Bodies[phase].Instrs {
				if in := &st.Bodies[phase].Instrs[i]; match(in) {
					return in
				}
			}
		}
		t.Fatal("no such instruction")
		return nil
	}
	named := func(st *codegen.Stage, name string) *codegen.Instr {
		return at(st, func(in *codegen.Instr) bool { return in.Node.Name == name })
	}
	backward := func(st *codegen.Stage) *codegen.Instr { // instruction that receives a message
		return at(st, func(in *codegen.Instr) bool { return in.Node.Op == ir.OpRecv && in.Node.Phase == ir.Backward })
	}
	for name, c := range map[string]struct {
		breakIt func(st *codegen.Stage) // applied to the second of three stages
		says    string
	}{
		"a constant that is never fed": {func(st *codegen.Stage) { st.Consts = nil }, "before anything is written there"},
		"a step input that is never fed": {func(st *codegen.Stage) {
			st.StepInputs = slices.DeleteFunc(st.StepInputs, func(id int) bool { return partition.BaseName(st.Buffers[id].Value.Name()) == "lr" })
		}, "before anything is written there"},
		"a constant that is fed elsewhere":           {func(st *codegen.Stage) { st.Consts[0] = st.Params[frozen] }, "is for param " + frozen},
		"an input into a buffer that does not exist": {func(st *codegen.Stage) { st.StepInputs[0] = len(st.Buffers) }, "is loaded into buffer b"},
		"a weight without its name":                  {func(st *codegen.Stage) { delete(st.Params, frozen) }, "before anything is written there"},
		"two weights of each other's names": {func(st *codegen.Stage) {
			st.Params[frozen], st.Params[other] = st.Params[other], st.Params[frozen]
		}, "is loaded into b"},
		"an input without its name":  {func(st *codegen.Stage) { delete(st.Inputs, "lr") }, "whose name does not lead to its buffer"},
		"a weight that does not fit": {func(st *codegen.Stage) { st.Buffers[st.Params[frozen]].Size -= 4 }, frozen + ": needs 96 bytes"},
		"weights that do not last":   {func(st *codegen.Stage) { st.Durable -= 64 }, "last from step to step"},
		"a message that comes before its place is free": {func(st *codegen.Stage) {
			st.Buffers[backward(st).Results[0]].From = 1
		}, "at any time, which is live from 1 on only"},
		"a message into what is read before": {func(st *codegen.Stage) { // a gradient arrives where an activation is
			to := backward(st).Results[0]
			named(st, "h.1/add_1").Results[0] = to
			named(st, "h.1/add_1@send2").Args[0] = to
		}, "perhaps before h.1/add_1@send2 is done with it"},
		"a buffer of another body": {func(st *codegen.Stage) {
			st.Buffers[named(st, "h.1.mlp/gelu@dx").Results[0]].Body = ir.WeightGrad
		}, "in the bwd body, which is of the wgt body"},
		"a wait for less than nothing": {func(st *codegen.Stage) { named(st, "h.1.mlp/gelu").Await = -1 }, "waits for -1"},
		"less than no parts":           {func(st *codegen.Stage) { named(st, "h.1.mlp/gelu").Parts = -1 }, "runs 1 times per task"},
		"a chunk that does not exist": {func(st *codegen.Stage) {
			at(st, func(in *codegen.Instr) bool { return in.Last }).Chunk = 1
		}, "stands in chunk 1"},
	} {
		p := plan(2, 1, 3, 2, 3, partition.OneFOneB, false)
		p.Overlap = true
		prog := generate(t, traced, p)
		require.NoError(t, codegen.Check(prog))
		c.breakIt(prog.Stages[1])
		err := codegen.Verify(prog, traced)
		require.Error(t, err, name)
		require.ErrorContains(t, err, c.says, name)
	}
}

// TestSharedArenas: a program is refused if it would read parameters of the other one at another offset or in
// another placement, or write over what the other keeps.
func TestSharedArenas(t *testing.T) {
	traced := trainGraph(t, 2)
	eval, err := gpt.EvalStep(model(2), batch, 33)
	require.NoError(t, err)
	const weight = "h.0.mlp.c_fc.weight"
	for name, c := range map[string]struct {
		breakIt func(p *codegen.Program, st *codegen.Stage)
		says    string
	}{
		"a weight elsewhere":         {func(_ *codegen.Program, st *codegen.Stage) { st.Buffers[st.Params[weight]].Offset += 64 }, weight + ": is at"},
		"the rest over what is kept": {func(_ *codegen.Program, st *codegen.Stage) { st.Persist = 64 }, "begins at 64"},
		"an input over what is kept": {func(_ *codegen.Program, st *codegen.Stage) { st.Buffers[st.StepInputs[0]].Offset = 0 }, "keeps what has to last"},
		"fewer stages":               {func(p *codegen.Program, _ *codegen.Stage) { p.Stages = p.Stages[:1] }, "a program of 1 stages"},
		"other parts of the same size": {func(p *codegen.Program, st *codegen.Stage) {
			v := st.Buffers[st.Params[weight]].Value
			v.Spec[p.Mesh.Axis("tp")] = ir.ShardOn(1)
		}, "placed [_,tp], in the program"},
	} {
		train := generate(t, traced, plan(1, 2, 2, 2, 2, partition.OneFOneB, false))
		shared, err := codegen.Compile(eval, train.Plan, batch, train)
		require.NoError(t, err)
		require.NoError(t, codegen.CheckShared(shared, train))
		c.breakIt(shared, shared.Stages[0])
		require.ErrorContains(t, codegen.CheckShared(shared, train), c.says, name)
	}
}
