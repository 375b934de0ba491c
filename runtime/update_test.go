package runtime

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// TestJoin: a collective is made with the last before it of its kind and group, unless an instruction in between writes
// what it reads or uses what it writes, or there is much to move.
func TestJoin(t *testing.T) {
	const size = joinBytes / 4 // of a buffer
	type instr struct {
		op            ir.Op
		group         int
		args, results []int
	}
	reduce := func(group, from, to int) instr { return instr{ir.OpReduceScatter, group, []int{from}, []int{to}} }
	square := func(from, to int) instr { return instr{ir.OpSumSquares, 0, []int{from}, []int{to}} }
	first, second := reduce(0, 0, 1), reduce(0, 2, 3)
	for name, c := range map[string]struct {
		instrs []instr
		want   [][]int // instructions made together
	}{
		"a sum of squares between":    {[]instr{first, square(1, 4), second, square(3, 5)}, [][]int{{0, 2}, {1}, {3}}},
		"one collective":              {[]instr{first, square(1, 4), square(3, 5)}, [][]int{{0}, {1}, {2}}},
		"another group":               {[]instr{first, reduce(1, 2, 3)}, [][]int{{0}, {1}}},
		"another kind":                {[]instr{first, {ir.OpAllGather, 0, []int{2}, []int{3}}}, [][]int{{0}, {1}}},
		"the operand is made":         {[]instr{first, square(4, 2), second}, [][]int{{0}, {1}, {2}}},
		"the operand is its result":   {[]instr{first, reduce(0, 1, 3)}, [][]int{{0}, {1}}},
		"the result's place is read":  {[]instr{first, square(3, 4), second}, [][]int{{0}, {1}, {2}}},
		"the result's place is made":  {[]instr{first, square(4, 3), second}, [][]int{{0}, {1}, {2}}},
		"the place is shared in part": {[]instr{first, square(9, 4), second}, [][]int{{0}, {1}, {2}}},
		"the place is on the host":    {[]instr{first, square(10, 4), second}, [][]int{{0, 2}, {1}}},
		"a chain":                     {[]instr{first, reduce(1, 1, 1), second, reduce(1, 3, 3)}, [][]int{{0, 2}, {1, 3}}},
		"with the last":               {[]instr{first, square(4, 2), second, reduce(0, 5, 6)}, [][]int{{0}, {1}, {2, 3}}},
		"much":                        {[]instr{first, second, reduce(0, 4, 5)}, [][]int{{0, 1}, {2}}},
	} {
		t.Run(name, func(t *testing.T) {
			stage := &codegen.Stage{}
			for i := range 9 {
				stage.Buffers = append(stage.Buffers, codegen.Buffer{Region: codegen.Persist, Offset: int64(i) * size, Size: size})
			}
			stage.Buffers = append(stage.Buffers, codegen.Buffer{Region: codegen.Persist, Offset: 4*size - 64, Size: 128},
				codegen.Buffer{Region: codegen.Host, Offset: 3 * size, Size: size})
			u := newUpdate(&codegen.Program{Plan: &partition.Plan{}}, stage, codegen.Task{Phase: ir.Update}, []action{{}})
			actions := []action{{}} // a feed comes first
			number := map[*ir.Node]int{}
			for i, in := range c.instrs {
				a := action{node: &ir.Node{Op: in.op}}
				number[a.node] = i
				if in.op != ir.OpSumSquares {
					a.collective = &Collective{Node: a.node, Group: in.group, Stream: Compute}
				}
				if !u.join(actions, &a, &codegen.Instr{Node: a.node, Args: in.args, Results: in.results}) {
					actions = append(actions, a)
				}
			}
			var got [][]int
			for _, a := range actions[1:] {
				made := []int{number[a.node]}
				if a.collective != nil {
					for _, more := range a.collective.More {
						made = append(made, number[more.Node])
					}
				}
				got = append(got, made)
			}
			require.Equal(t, c.want, got)
		})
	}
	t.Run("where not", func(t *testing.T) {
		require.Nil(t, newUpdate(&codegen.Program{Plan: &partition.Plan{}}, nil, codegen.Task{Phase: ir.Backward}, nil))
		require.Nil(t, newUpdate(&codegen.Program{Plan: &partition.Plan{Overlap: true}}, nil, codegen.Task{Phase: ir.Update}, nil))
		require.Nil(t, newUpdate(&codegen.Program{Plan: &partition.Plan{Stages: make([]partition.Stage, 2)}}, nil, codegen.Task{Phase: ir.Update}, nil))
	})
}
