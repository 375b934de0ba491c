package ir_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/interp"
)

// TestEveryOpIsComplete: each op has a name that parses back, a golden case in
// testdata/ops.txt that builds it through inference, and a kernel in the
// interpreter.
func TestEveryOpIsComplete(t *testing.T) {
	golden, err := os.ReadFile("testdata/ops.txt")
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, op := range ir.Ops() {
		name := op.String()
		require.Regexp(t, `^[a-z][a-z0-9_]*$`, name)
		require.False(t, seen[name], "two ops are called %s", name)
		seen[name] = true
		back, err := ir.ParseOp(name)
		require.NoError(t, err)
		require.Equal(t, op, back)
		require.True(t, slices.ContainsFunc(strings.Split(string(golden), "\n"), func(line string) bool {
			return slices.Contains(strings.Fields(line), name) && strings.HasPrefix(line, "%")
		}), "testdata/ops.txt has no case of %s", name)
		if op.Class() == ir.Compute {
			require.True(t, interp.HasKernel(op), "%s has no kernel", name)
		}
	}
	_, err = ir.ParseOp("softmax")
	require.EqualError(t, err, `ir: unknown op "softmax"`)
}

// TestResolveErrors: an operand that does not fit is named with the numbers.
func TestResolveErrors(t *testing.T) {
	f32 := func(shape ...int) ir.Type { return ir.Type{Shape: shape} }
	i32 := func(shape ...int) ir.Type { return ir.Type{DType: ir.I32, Shape: shape} }
	tests := []struct {
		op   ir.Op
		attr ir.Attr
		args []ir.Type
		want string
	}{
		{ir.OpInvalid, nil, nil, "ir: unknown op 0"},
		{ir.OpParam, ir.ParamAttr{}, nil, "ir: param: a leaf has no operands to infer from"},
		{ir.OpAdd, nil, []ir.Type{f32(2, 3)}, "ir: add: 1 operands, want 2"},
		{ir.OpAdd, nil, []ir.Type{f32(2, 3), f32(4)}, "ir: add: dimension 0 of operand b is 4, but s0 is 3 elsewhere"},
		{ir.OpAdd, nil, []ir.Type{f32(3), f32(2, 3)}, "ir: add: operand a f32[3] has 1 dimensions, want at least 2"},
		{ir.OpAddN, nil, nil, "ir: add_n: no operands"},
		{ir.OpAddN, nil, []ir.Type{f32(2), f32(3)}, "ir: add_n: dimension 0 of operand x is 3, but d0 is 2 elsewhere"},
		{ir.OpScale, nil, []ir.Type{f32(2), f32(1)}, "ir: scale: operand s has shape [1], want 0 dimensions"},
		{ir.OpSumTo, ir.SumToAttr{Keep: 3}, []ir.Type{f32(2, 2)}, "ir: sum_to: operand x f32[2,2] has 2 dimensions, want at least 3"},
		{ir.OpMatMul, nil, []ir.Type{f32(2, 3), f32(4, 3)}, "ir: matmul: bad attribute <nil>"},
		{ir.OpMatMul, ir.MatMulAttr{K: 0}, []ir.Type{f32(2, 3), f32(4, 3)}, "ir: matmul: bad attribute {Form:0 K:0 Frac:0}"},
		{ir.OpMatMul, ir.MatMulAttr{K: 1}, []ir.Type{f32(2, 3), f32(4, 5)}, "ir: matmul: dimension 1 of operand b is 5, but k0 is 3 elsewhere"},
		{ir.OpEmbedding, nil, []ir.Type{f32(65, 24), f32(7)}, "ir: embedding: operand ids is f32, want i32"},
		{ir.OpEmbedding, nil, []ir.Type{f32(65), i32(7)}, "ir: embedding: operand table has shape [65], want 2 dimensions"},
		{ir.OpAttention, ir.DropoutAttr{}, []ir.Type{f32(2, 5, 2, 3, 2), i32(), i32()}, "ir: attention: dimension 2 of qkv is 2, want 3 or more: queries, a key and a value"},
		{ir.OpAttentionGrad, ir.DropoutAttr{}, []ir.Type{f32(2, 5, 4, 3, 2), f32(2, 5, 4, 3, 2), f32(2, 5, 2, 3, 2), f32(2, 2, 3, 5), i32(), i32()},
			"ir: attention_grad: dimension 2 of operand do is 4, want 2"},
		{ir.OpAttentionGrad, ir.DropoutAttr{}, []ir.Type{f32(2, 5, 3, 2), f32(2, 5, 4, 3, 2), f32(2, 5, 2, 3, 2), f32(2, 2, 3, 5), i32(), i32()},
			"ir: attention_grad: operand do has shape [2 5 3 2], want 5 dimensions"},
		{ir.OpJoinQKV, nil, []ir.Type{f32(2, 5, 1, 3, 2), f32(2, 5, 2, 3, 2)},
			"ir: join_qkv: dimension 2 of dq is 1, want 2 or more queries of a group, or no such dimension"},
		{ir.OpJoinQKV, nil, []ir.Type{f32(5, 3, 2), f32(2, 5, 2, 3, 2)}, "ir: join_qkv: operand dq f32[5,3,2] has 3 dimensions, want at least 4"},
		{ir.OpNLL, nil, []ir.Type{f32(7), f32(7), f32(6), i32(7)}, "ir: nll: dimension 0 of operand pick is 6, but r0 is 7 elsewhere"},
	}
	for _, tt := range tests {
		_, err := ir.Resolve(tt.op, tt.attr, tt.args)
		require.EqualError(t, err, tt.want)
	}
}
