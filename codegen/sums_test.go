package codegen_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// TestSumsInSlots: in a step of one micro-batch gradients take the place of activations; with several
// micro-batches they have memory of their own.
func TestSumsInSlots(t *testing.T) {
	g := trainGraph(t, 4)
	for _, overlap := range []bool{false, true} {
		for dp := 1; dp <= 3; dp++ {
			for zero := range 1 + 3*min(1, dp-1) {
				for _, several := range []bool{false, true} {
					p := overlapped(dp, 1, 1, (batch+dp-1)/dp, 4, zero)
					if p.Overlap = overlap && dp > 1; several {
						p.MicroBatch = 1
					}
					prog := generate(t, g, p)
					require.NoError(t, codegen.Check(prog))
					draft, err := codegen.Draft(g, p, batch, p.Lone(batch))
					require.NoError(t, err)
					arena := func(sums codegen.Region) int64 {
						longer, ok := draft.Longer(0, sums, nil, nil)
						require.True(t, ok)
						r := longer.Regions(prog.Mesh)
						return r.Arena()
					}
					st := prog.Stages[0]
					if several {
						require.Zero(t, st.SumsInSlots())
						require.Equal(t, arena(codegen.Persist), st.Arena())
						continue
					}
					require.Positive(t, st.SumsInSlots())
					require.GreaterOrEqual(t, st.Chunks[0].Slot, st.SumsInSlots())
					require.Equal(t, arena(codegen.Slot), st.Arena())
					require.Less(t, st.Arena(), arena(codegen.Persist)-st.SumsInSlots()/2, "dp %d, zero %d", dp, zero)
				}
			}
		}
	}
}

// TestSumsAreChecked: the next micro-batch would overwrite sums in a slot, and so would the update while they
// are being reduced.
func TestSumsAreChecked(t *testing.T) {
	g := trainGraph(t, 4)
	prog := generate(t, g, plan(1, 1, 1, 4, 4, partition.OneFOneB, false))
	st := prog.Stages[0]
	chunk := &st.Chunks[0]
	for id := range st.Buffers {
		if b := &st.Buffers[id]; b.Region == codegen.Persist && b.Value.Def.Op == ir.OpAccumulate && b.Value.Def.Phase == ir.Backward {
			b.Region, b.Offset, b.From, b.To = codegen.Slot, chunk.Slot, 0, 1e6
			chunk.Slot += (b.Size + 63) / 64 * 64
		}
	}
	require.ErrorContains(t, codegen.Verify(prog, g), "of the slot of one of 2 micro-batches")

	prog = generate(t, g, overlapped(2, 1, 1, 4, 4, 1))
	st = prog.Stages[0]
	body := st.Bodies[ir.Backward].Instrs
	late := &body[slices.IndexFunc(body, func(in codegen.Instr) bool { return in.Async && in.Last })]
	b := &st.Buffers[late.Args[0]]
	require.Equal(t, codegen.Slot, b.Region)
	b.To = len(st.Bodies[ir.Forward].Instrs) + len(body) - 1
	require.ErrorContains(t, codegen.Check(prog), "of the slot region, and in use beyond the end of the task")
}
