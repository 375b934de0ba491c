package runtime

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
)

// TestGathers: a part is a view of the whole if nothing uses the whole until the part comes back to it, and then nothing the
// part.
func TestGathers(t *testing.T) {
	const whole, part, other = 0, 1, 2
	instr := func(op ir.Op, from, to int) codegen.Instr {
		return codegen.Instr{Node: &ir.Node{Op: op}, Args: []int{from}, Results: []int{to}}
	}
	update, back := instr(ir.OpAdamW, part, part), instr(ir.OpAllGather, part, whole)
	for name, c := range map[string]struct {
		instrs []codegen.Instr
		want   bool
	}{
		"ZeRO 1":                      {[]codegen.Instr{update, back}, true},
		"others at work":              {[]codegen.Instr{update, instr(ir.OpAdamW, other, other), back, instr(ir.OpSumSquares, whole, other)}, true},
		"it does not come back":       {[]codegen.Instr{update}, false},
		"the whole is read before":    {[]codegen.Instr{update, instr(ir.OpSumSquares, whole, other), back}, false},
		"the whole is written before": {[]codegen.Instr{instr(ir.OpAdamW, other, whole), update, back}, false},
		"another comes to the whole":  {[]codegen.Instr{update, instr(ir.OpAllGather, other, whole)}, false},
		"the part is read after":      {[]codegen.Instr{update, back, instr(ir.OpSumSquares, part, other)}, false},
		"the part is made after":      {[]codegen.Instr{update, back, instr(ir.OpSlice, other, part)}, false},
	} {
		require.Equal(t, c.want, gathers(c.instrs, part, whole), name)
	}
}

// TestPlace: a part in one piece lies in the whole if it starts where a tensor may.
func TestPlace(t *testing.T) {
	v := view{whole: &ir.Value{Type: ir.Type{DType: ir.F32}}}
	whole := ir.Slab{Global: []int{8, 32}, Offset: []int{0, 0}, Local: []int{8, 32}}
	for name, c := range map[string]struct {
		offset, local []int
		want          int64
		ok            bool
	}{
		"rows":              {[]int{2, 0}, []int{3, 32}, 1024 + 4*64, true},
		"part of a row":     {[]int{1, 16}, []int{1, 16}, 1024 + 4*48, true},
		"columns":           {[]int{0, 16}, []int{8, 16}, 0, false},
		"not at its border": {[]int{1, 8}, []int{1, 16}, 0, false},
		"nothing":           {[]int{8, 0}, []int{0, 32}, 0, false},
	} {
		at, ok := v.place(1024, whole, ir.Slab{Global: whole.Global, Offset: c.offset, Local: c.local})
		require.Equal(t, c.ok, ok, name)
		if ok {
			require.Equal(t, c.want, at, name)
		}
	}
}
