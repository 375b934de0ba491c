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

// TestLossSlicesReduceOnce: from ZeRO stage 2 on a micro-batch reduces the gradient of the head's weight once, however many
// slices add to it, and no more than that one is there whole.
func TestLossSlicesReduceOnce(t *testing.T) {
	const parts = 11
	for _, float := range []ir.DType{ir.F32, ir.BF16} {
		for _, tied := range []bool{true, false} {
			m := model(2)
			m.Float, m.TieEmbeddings = float, tied
			g, err := gpt.TrainStep(m, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8}, batch, 33)
			require.NoError(t, err)
			for _, c := range []struct {
				tp, pp, zero int
				overlap      bool
				schedule     partition.Schedule
			}{
				{1, 1, 2, false, partition.OneFOneB}, {1, 1, 3, true, partition.OneFOneB}, {2, 1, 2, true, partition.OneFOneB}, {1, 2, 3, true, partition.ZeroBubble},
			} {
				p := plan(2, c.tp, c.pp, 1, 2, c.schedule, false)
				p.ZeRO, p.LossSlices, p.Overlap, p.SequenceParallel, p.OverlapTP = c.zero, parts, c.overlap, c.tp > 1, c.tp > 1
				prog := generate(t, g, p)
				require.NoError(t, codegen.Check(prog), "%s, tied %v, %+v", float, tied, c)
				last := prog.Stages[c.pp-1]
				reduced, whole := 0, map[int]bool{}
				for _, body := range last.Bodies[:ir.Update] {
					for _, in := range body.Instrs {
						if name := in.Node.Name; !strings.HasPrefix(name, "lm_head/matmul@dw") {
							continue
						}
						switch in.Node.Op {
						case ir.OpReduceScatter:
							reduced++
						case ir.OpMatMul:
							whole[in.Results[0]] = true
						case ir.OpAddN:
							t.Errorf("%s runs", in.Node.Name)
						}
					}
				}
				require.Equal(t, 1, reduced, "%s, tied %v, %+v", float, tied, c)
				require.Len(t, whole, 1, "%s, tied %v, %+v", float, tied, c)
			}
		}
	}
}

// TestSumsOfSlicesAreChecked: kernels that do not add to the sum of a pass as they should do not pass, whoever looks.
func TestSumsOfSlicesAreChecked(t *testing.T) {
	g := trainGraph(t, 2)
	for name, c := range map[string]struct {
		breakIt      func(slice func(int) *codegen.Instr, other int)
		check, prove string
	}{
		"one overwrites": {func(slice func(int) *codegen.Instr, _ int) { slice(1).Accum[0] = codegen.Overwrite },
			`which has 1 terms of lm_head/matmul@dw@slices, with mode ""`, "misses"},
		"the first adds": {func(slice func(int) *codegen.Instr, _ int) { slice(0).Accum[0] = codegen.Always },
			`which has 0 terms of lm_head/matmul@dw@slices, with mode "+="`, "holds no sum"},
		"one is elsewhere": {func(slice func(int) *codegen.Instr, other int) {
			slice(1).Results[0], slice(1).Accum[0] = other, codegen.Overwrite
		}, "completes lm_head/matmul@dw@slices in b", ""},
		"the last is elsewhere": {func(slice func(int) *codegen.Instr, other int) {
			slice(2).Results[0], slice(2).Accum[0] = other, codegen.Overwrite
		}, "completes lm_head/matmul@dw@slices in b", "misses"},
		"one is added after the first micro-batch": {func(slice func(int) *codegen.Instr, _ int) { slice(1).Accum[0] = codegen.AfterFirst },
			"with mode", ""},
	} {
		p := plan(2, 1, 1, 2, 2, partition.OneFOneB, false)
		p.ZeRO, p.LossSlices = 2, 3
		prog := generate(t, g, p)
		require.NoError(t, codegen.Check(prog))
		st := prog.Stages[0]
		body := st.Bodies[ir.Backward].Instrs
		slice := func(k int) *codegen.Instr {
			at := slices.IndexFunc(body, func(in codegen.Instr) bool { return in.Node.Name == fmt.Sprintf("lm_head/matmul@dw@slice%d", k) })
			require.GreaterOrEqual(t, at, 0)
			return &body[at]
		}
		st.Buffers = append(st.Buffers, st.Buffers[slice(0).Results[0]])
		st.Temp += st.Buffers[slice(0).Results[0]].Size + 1024
		other := &st.Buffers[len(st.Buffers)-1]
		other.Offset = (st.Temp - other.Size) / 64 * 64
		c.breakIt(slice, len(st.Buffers)-1)
		require.ErrorContains(t, codegen.Check(prog), c.check, name)
		require.ErrorContains(t, codegen.CheckEquivalent(prog, g), c.prove, name)
	}
}

// TestLossSlicesFetchOnce: all slices of the loss share one copy of a head's weight that lies in host memory.
func TestLossSlicesFetchOnce(t *testing.T) {
	m := model(2)
	m.TieEmbeddings = false
	g, err := gpt.TrainStep(m, gpt.Optimizer{Beta1: .9, Beta2: .99, Eps: 1e-8}, batch, 33)
	require.NoError(t, err)
	for _, parts := range []int{3, 11} {
		p := plan(2, 1, 1, 2, 2, partition.OneFOneB, false)
		p.ZeRO, p.LossSlices, p.Offload = 2, parts, partition.OffloadParams
		prog := generate(t, g, p)
		require.NoError(t, codegen.Check(prog))
		fetched := 0
		for _, body := range prog.Stages[0].Bodies[:ir.Update] {
			for _, in := range body.Instrs {
				if in.Node.Op == ir.OpFetch && strings.HasPrefix(in.Node.Name, "lm_head.weight@") {
					fetched++
				}
			}
		}
		require.Equal(t, 1, fetched, "%d slices", parts)
	}
}
