package codegen_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
)

// posted is a plan with several stages that do not wait for their sends. k varies the schedule, tensor and data
// parallelism, ZeRO, overlap and recomputation.
func posted(k, layers int) *partition.Plan {
	stages := 2 + k/4%2*2
	p := plan(1+k%2, 1+k/2%2, stages, 1+k%2, layers, []partition.Schedule{partition.OneFOneB, partition.GPipe, partition.ZeroBubble}[k%3], k/8%2 == 1)
	if k%4 == 3 {
		p = chunked(plan(1+k%2, 1+k/2%2, 2*stages, 1+k%2, layers, partition.OneFOneB, k/8%2 == 1), 2)
	}
	p.SequenceParallel, p.ZeRO, p.Overlap = p.TP > 1, k%(2*p.DP), p.DP > 1 && k/16%2 == 1
	p.OverlapTP = p.TP > 1 && p.Schedule != partition.ZeroBubble
	p.OverlapP2P = true
	return p
}

// TestVerifyAcceptsPosted: programs whose passes post their sends are sound and compute the traced graph, under
// every schedule. All sends of passes are posted, from memory that lasts, and no other instruction is. The
// bytes are those of the same plan without posted sends. The same holds for evaluation.
func TestVerifyAcceptsPosted(t *testing.T) {
	const layers = 8
	train := trainGraph(t, layers)
	eval, err := gpt.EvalStep(model(layers), batch, 33)
	require.NoError(t, err)
	for k := range 32 {
		p := posted(k, layers)
		name := fmt.Sprintf("%d: %+v", k, *p)
		for _, g := range []*ir.Graph{train, eval} {
			prog := generate(t, g, p)
			require.NoError(t, codegen.Check(prog), name)
			apart := *p
			apart.OverlapP2P = false
			without := generate(t, g, &apart)
			sends := 0
			for s, st := range prog.Stages {
				for phase, body := range st.Bodies {
					require.Equal(t, sentBy(without.Stages[s].Bodies[phase]), sentBy(body), name)
					for i := range body.Instrs {
						in := &body.Instrs[i]
						require.Equal(t, in.Node.Op == ir.OpSend && ir.Phase(phase) != ir.Update, in.Posted, "%s: %s", name, in.Node.Name)
						if in.Posted {
							require.Equal(t, codegen.Persist, st.Buffers[in.Args[0]].Region, "%s: %s", name, in.Node.Name)
							sends++
						}
					}
				}
			}
			require.Positive(t, sends, name)
		}
	}
}

// sentBy lists the sends of a body, in order.
func sentBy(b codegen.Body) (names []string) {
	for i := range b.Instrs {
		if n := b.Instrs[i].Node; n.Op == ir.OpSend {
			names = append(names, n.Name)
		}
	}
	return names
}

// TestPostedIsChecked: a program that may overwrite what is still being sent is refused.
func TestPostedIsChecked(t *testing.T) {
	const layers = 4
	traced := trainGraph(t, layers)
	for name, m := range map[string]struct {
		breakIt func(st *codegen.Stage, body []codegen.Instr, i int)
		says    string
	}{
		"from memory that others have next": {func(st *codegen.Stage, body []codegen.Instr, i int) {
			st.Buffers[body[i].Args[0]].Region = codegen.Temp
		}, "which others may have"},
		"from the slot of a backward pass": {func(st *codegen.Stage, body []codegen.Instr, i int) {
			st.Buffers[body[i].Args[0]].Region = codegen.Slot
		}, "which others may have"},
		"by another chunk, too": {func(st *codegen.Stage, body []codegen.Instr, i int) {
			for k := range body {
				if body[k].Chunk != body[i].Chunk && body[k].Posted {
					of := body[k].Args[0]
					for j := range body {
						for r, id := range body[j].Results {
							if id == of {
								body[j].Results[r] = body[i].Args[0]
							}
						}
					}
				}
			}
		}, "may still be sending"},
		"written again after it": {func(st *codegen.Stage, body []codegen.Instr, i int) {
			for k := i - 1; k >= 0; k-- {
				if len(body[k].Results) > 0 && body[k].Results[0] == body[i].Args[0] {
					body[k], body[i] = body[i], body[k]
					return
				}
			}
		}, "may still be sending"},
		"an update": {func(st *codegen.Stage, body []codegen.Instr, i int) {
			st.Bodies[ir.Update].Instrs[0].Posted = true
		}, "not made on the transfer stream"},
		"what is no send": {func(st *codegen.Stage, body []codegen.Instr, i int) { body[0].Posted = true }, "not made on the transfer stream"},
		"a receive": {func(st *codegen.Stage, body []codegen.Instr, i int) {
			body[slices.IndexFunc(body, func(in codegen.Instr) bool { return in.Node.Op == ir.OpRecv })].Posted = true
		}, "not made on the transfer stream"},
	} {
		t.Run(name, func(t *testing.T) {
			p := chunked(plan(1, 1, 4, 2, layers, partition.OneFOneB, false), 2)
			p.OverlapP2P = true
			prog := generate(t, traced, p)
			require.NoError(t, codegen.Check(prog))
			st := prog.Stages[1] // it sends in both chunks backward, and in the first chunk forward
			body := st.Bodies[ir.Backward].Instrs
			for i := range body {
				if body[i].Posted {
					m.breakIt(st, body, i)
					break
				}
			}
			require.ErrorContains(t, st.CheckStreams(), m.says)
			require.Error(t, codegen.Check(prog))
		})
	}
}

// TestPostedFromSlots shows that the checker refuses a posted send from a slot. Its own backward pass may write the
// slot, with what it recomputes before its gradient has arrived, and so perhaps before the send is done.
func TestPostedFromSlots(t *testing.T) {
	const layers = 4
	traced := trainGraph(t, layers)
	p := plan(1, 1, 2, 2, layers, partition.ZeroBubble, true)
	p.OverlapP2P = true
	prog := generate(t, traced, p)
	st := prog.Stages[0]
	forward, backward := st.Bodies[ir.Forward].Instrs, st.Bodies[ir.Backward].Instrs
	sent := &st.Buffers[forward[slices.IndexFunc(forward, func(in codegen.Instr) bool { return in.Posted })].Args[0]]
	for _, in := range backward[:slices.IndexFunc(backward, func(in codegen.Instr) bool { return in.Node.Op == ir.OpRecv })] {
		for _, id := range in.Results {
			if early := &st.Buffers[id]; early.Region == codegen.Slot && early.From >= len(forward) {
				sent.Region, sent.Offset, sent.From, sent.To = codegen.Slot, early.Offset, 0, len(forward)-1
			}
		}
	}
	require.Equal(t, codegen.Slot, sent.Region)
	require.ErrorContains(t, codegen.Check(prog), "is sent from b")
}
