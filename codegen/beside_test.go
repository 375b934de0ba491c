package codegen_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// beside returns, by name, the collectives of a body that run beside kernels, each with those kernels.
func beside(instrs []codegen.Instr) (groups [][]string) {
	for i := range instrs {
		if n := instrs[i].Beside; n > 0 {
			var names []string
			for k := i; k <= i+n; k++ {
				names = append(names, instrs[k].Node.Name)
			}
			groups = append(groups, names)
		}
	}
	return groups
}

// tensorParallel is plan k of 64 with two tensor-parallel ranks. The plans vary the ZeRO stage, sequence
// parallelism, overlap of gradients, interleaving and recomputation.
func tensorParallel(k, layers int) *partition.Plan {
	p := plan(2, 2, 1+k/32*3, 1+k%3, layers, partition.OneFOneB, false)
	if interleaved := k/16%2 == 1; interleaved {
		p = chunked(plan(2, 2, 4, 1+k%2, layers, partition.OneFOneB, false), 2)
	}
	p.ZeRO, p.SequenceParallel, p.Overlap = k%4, k/4%2 == 1, k/8%2 == 1
	recomputeOne(p, k)
	return p
}

// recomputeOne has the first block of every stage recompute nothing or something, as k says.
func recomputeOne(p *partition.Plan, k int) {
	for s := range p.Stages {
		switch k % 5 {
		case 1:
			p.Stages[s].Recompute = 1
		case 2:
			p.Stages[s].Selective = 1
		case 3:
			p.Stages[s].Pointwise = 1
		}
	}
}

// TestVerifyAcceptsOverlapTP: programs in which tensor-parallel collectives run beside kernels are sound and
// compute the traced graph, for all plans of tensorParallel, and communicate the same bytes as the same plan
// without overlap.
func TestVerifyAcceptsOverlapTP(t *testing.T) {
	const layers = 4
	g := trainGraph(t, layers)
	for k := range 64 {
		p := tensorParallel(k, layers)
		p.OverlapTP = true
		name := fmt.Sprintf("%+v", *p)
		prog := generate(t, g, p)
		require.NoError(t, codegen.Check(prog), name)
		groups := 0
		for _, st := range prog.Stages {
			for _, body := range st.Bodies {
				groups += len(beside(body.Instrs))
			}
		}
		require.GreaterOrEqual(t, groups, layers, name)
		apart := *p
		apart.OverlapTP = false
		without := generate(t, g, &apart)
		for r := range prog.Schedules {
			n, bytes := communicated(prog, r)
			m, same := communicated(without, r)
			require.Equal(t, m, n, "%s: rank %d", name, r)
			require.Equal(t, same, bytes, "%s: rank %d", name, r)
		}
	}
}

// TestBeside: in the backward pass of a linear layer, the gradient of the input is summed over ranks while that
// of the weight is computed. Under sequence parallelism the layer's input is gathered while its gradient is
// computed, and the gradient of the attention output is gathered while that of the MLP's last weight is
// computed.
func TestBeside(t *testing.T) {
	g := trainGraph(t, 2)
	p := plan(1, 2, 1, 2, 2, partition.OneFOneB, false)
	p.OverlapTP = true
	block := func() [][]string {
		prog := generate(t, g, p)
		require.NoError(t, codegen.Check(prog))
		require.Empty(t, beside(prog.Stages[0].Bodies[ir.Forward].Instrs))
		var of [][]string
		for _, names := range beside(prog.Stages[0].Bodies[ir.Backward].Instrs) {
			if names[0][:3] == "h.1" {
				of = append(of, names)
			}
		}
		return of
	}
	require.Equal(t, [][]string{
		{"h.1.mlp.c_fc/matmul@dx@all_reduce_tp", "h.1.mlp.c_fc/matmul@dw"},
		{"h.1.attn.c_attn/matmul@dx@all_reduce_tp", "h.1.attn.c_attn/matmul@dw"},
	}, block())
	p.SequenceParallel = true
	require.Equal(t, [][]string{
		{"h.1.ln_2/layer_norm@all_gather_tp_1", "h.1.mlp.c_fc/matmul@dx"},
		{"h.1.mlp.c_fc/matmul@dx@reduce_scatter_tp", "h.1.mlp.c_fc/matmul@dw"},
		{"h.1.attn/dropout@dx@all_gather_tp", "h.1.mlp.c_proj/matmul@dw"},
		{"h.1.ln_1/layer_norm@all_gather_tp_1", "h.1.attn.c_attn/matmul@dx"},
		{"h.1.attn.c_attn/matmul@dx@reduce_scatter_tp", "h.1.attn.c_attn/matmul@dw"},
	}, block())
}

// TestBesideIsChecked: programs in which kernels race with the collective that they run beside are refused,
// even if they would compute the graph when run in order.
func TestBesideIsChecked(t *testing.T) {
	traced := trainGraph(t, 2)
	for name, m := range map[string]struct {
		breakIt func(instrs []codegen.Instr, i int)
		says    string
	}{
		"its result is read beside it":       {func(instrs []codegen.Instr, i int) { instrs[i].Beside++ }, "into which"},
		"its operand is overwritten":         {func(instrs []codegen.Instr, i int) { instrs[i+1].Results[0] = instrs[i].Args[0] }, "matmul@d"},
		"nothing waits for it":               {func(instrs []codegen.Instr, i int) { instrs[i].Beside = len(instrs) - i - 1 }, "and then is waited for"},
		"a kernel with others beside it":     {func(instrs []codegen.Instr, i int) { instrs[i+1].Beside = 1 }, "does not run beside"},
		"a collective beside it":             {func(instrs []codegen.Instr, i int) { instrs[i-2].Beside = 2 }, "cannot run beside"},
		"a kernel that waits for a stream":   {func(instrs []codegen.Instr, i int) { instrs[i+1].Await = 1 }, "waits"},
		"on the communication stream":        {func(instrs []codegen.Instr, i int) { instrs[i].Async = true }, "communication stream"},
		"its operand is freed too early":     {func(instrs []codegen.Instr, i int) { instrs[i].Beside = -1 }, "beside the next -1"},
		"what comes after is not always run": {func(instrs []codegen.Instr, i int) { instrs[i+instrs[i].Beside+1].Async = true }, "waits for"},
	} {
		t.Run(name, func(t *testing.T) {
			p := plan(2, 2, 1, 2, 2, partition.OneFOneB, false)
			p.OverlapTP = true
			prog := generate(t, traced, p)
			require.NoError(t, codegen.Check(prog))
			instrs := prog.Stages[0].Bodies[ir.Backward].Instrs
			for i := range instrs {
				if instrs[i].Node.Name == "h.1.mlp.c_fc/matmul@dx@all_reduce_tp" {
					m.breakIt(instrs, i)
				}
			}
			require.ErrorContains(t, codegen.Check(prog), m.says)
		})
	}
}
