package codegen_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
)

// TestLossSlices: programs that run the head and the loss in slices compute the traced graph, under plans of
// every kind.
func TestLossSlices(t *testing.T) {
	const layers = 2
	g := trainGraph(t, layers)
	for _, c := range []struct{ dp, tp, pp, mb, zero int }{
		{1, 1, 1, 3, 0}, {2, 1, 1, 2, 1}, {1, 3, 1, 2, 0}, {2, 2, 1, 2, 2}, {1, 2, 2, 2, 0}, {3, 1, 2, 1, 1}, {2, 1, 1, 2, 3},
	} {
		for _, parts := range []int{3, 11, 33} {
			p := plan(c.dp, c.tp, c.pp, c.mb, layers, partition.OneFOneB, c.zero%2 == 1)
			p.ZeRO, p.LossSlices = c.zero, parts
			p.SequenceParallel = c.tp > 1 && c.mb == 2
			prog := generate(t, g, p)
			require.NoError(t, codegen.Check(prog), "%+v in %d slices", c, parts)
		}
	}
}

// TestLossSlicesOutOfOrder: the gradient of the head's weight is summed over slices in the order in which they
// run. Some of its products are delayed to run beside tensor-parallel gathers, including those of the first
// slice, which overwrites, and of the last.
func TestLossSlicesOutOfOrder(t *testing.T) {
	for _, tied := range []bool{true, false} {
		m := model(2)
		m.TieEmbeddings = tied
		g, err := gpt.TrainStep(m, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8}, batch, 33)
		require.NoError(t, err)
		moved := 0
		for _, parts := range []int{3, 11} {
			p := plan(2, 2, 1, 2, 2, partition.OneFOneB, false)
			p.LossSlices, p.SequenceParallel, p.OverlapTP = parts, true, true
			p.Placements[len(p.Placements)-1].Spec = "[_,_]" // replicates the table of the vocabulary
			prog := generate(t, g, p)
			require.NoError(t, codegen.Check(prog), "%d slices, tied %v", parts, tied)
			next := 0 // number of the next slice
			for _, in := range prog.Stages[0].Bodies[ir.Backward].Instrs {
				if strings.HasPrefix(in.Node.Name, "lm_head/matmul@dw@slice") {
					if in.Node.Name != fmt.Sprintf("lm_head/matmul@dw@slice%d", next) {
						moved++
					}
					next++
				}
			}
			require.Equal(t, parts, next)
		}
		require.NotZero(t, moved)
	}
}

// TestLossSlicesInHalves: gradients that are rounded or cast before they are added up are rounded slice by
// slice.
func TestLossSlicesInHalves(t *testing.T) {
	for _, float := range []ir.DType{ir.BF16, ir.F16} {
		for _, noMaster := range []bool{false, float == ir.BF16} {
			m := model(2)
			m.Float = float
			g, err := gpt.TrainStep(m, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8, GradClip: 1, NoMaster: noMaster}, batch, 33)
			require.NoError(t, err)
			for _, zero := range []int{0, 1, 2} {
				p := plan(2, 1, 2, 2, 2, partition.OneFOneB, true)
				p.ZeRO, p.LossSlices = zero, 3
				prog := generate(t, g, p)
				require.NoError(t, codegen.Check(prog))
			}
		}
	}
}

// TestLossSlicesAreProven: programs in which a slice is missing or takes the place of another one do not
// compute the traced graph.
func TestLossSlicesAreProven(t *testing.T) {
	g := trainGraph(t, 2)
	for name, c := range map[string]struct {
		breakIt func(st *codegen.Stage, named func(string) *codegen.Instr)
		want    string
	}{
		"joined in another order": {func(_ *codegen.Stage, named func(string) *codegen.Instr) {
			in := named("lm_head/matmul@dx")
			in.Args[0], in.Args[1] = in.Args[1], in.Args[0]
			in.Node.Args[0], in.Node.Args[1] = in.Node.Args[1], in.Node.Args[0]
		}, "lm_head/matmul@dx"},
		"another slice's rows": {func(_ *codegen.Stage, named func(string) *codegen.Instr) {
			named("ln_f/layer_norm@slice1").Node.Attr = ir.RowsAttr{Part: 2, Parts: 3}
		}, "slice"},
		"another slice's targets": {func(_ *codegen.Stage, named func(string) *codegen.Instr) {
			named("targets@slice1").Node.Attr = ir.RowsAttr{Part: 0, Parts: 3}
		}, "slice"},
		"a gradient is not added": {func(st *codegen.Stage, named func(string) *codegen.Instr) {
			in := named("lm_head/matmul@dw@slice1")
			all := st.Bodies[ir.Backward].Instrs
			at := slices.IndexFunc(all, func(x codegen.Instr) bool { return x.Node == in.Node })
			st.Bodies[ir.Backward].Instrs = slices.Delete(slices.Clone(all), at, at+1)
		}, "sums 3 terms, want 2"},
	} {
		p := plan(1, 1, 1, 3, 2, partition.OneFOneB, false)
		p.LossSlices = 3
		prog := generate(t, g, p)
		st := prog.Stages[0]
		c.breakIt(st, func(name string) *codegen.Instr {
			for phase := range st.Bodies {
				for i := range st.Bodies[phase].Instrs {
					if in := &st.Bodies[phase].Instrs[i]; in.Node.Name == name {
						return in
					}
				}
			}
			t.Fatalf("no instruction %s", name)
			return nil
		})
		require.ErrorContains(t, codegen.CheckEquivalent(prog, g), c.want, name)
	}
}
