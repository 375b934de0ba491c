package autodiff

import (
	"errors"
	"fmt"

	"github.com/autopar/autopar/ir"
)

// rule gives the operands of the forward node b.fwd their gradients, from b.dy.
type rule func(b *backward) error

// rules has one row per op through which gradients flow. See the op table of
// package ir for what each op computes.
var rules = map[ir.Op]rule{
	ir.OpAdd:    gradAdd,
	ir.OpAddN:   gradAddN,
	ir.OpScale:  gradScale,
	ir.OpSumTo:  gradExpandLike,
	ir.OpSum:    gradExpandLike,
	ir.OpExpand: gradExpand,
	ir.OpCast:   gradCast,

	ir.OpMatMul:    gradMatMul,
	ir.OpEmbedding: gradEmbedding,
	ir.OpLayerNorm: gradLayerNorm,
	ir.OpRMSNorm:   gradRMSNorm,
	ir.OpGELU:      gradGELU,
	ir.OpSwiGLU:    gradSwiGLU,
	ir.OpRoPE:      gradRoPE,
	ir.OpDropout:   gradDropout,
	ir.OpAttention: gradAttention,

	ir.OpNLL:       gradNLL,
	ir.OpRowMax:    gradRow,
	ir.OpRowSumExp: gradRow,
	ir.OpRowPick:   gradRow,
}

// y = a + b with b broadcast: da = dy, db = dy summed over the leading dimensions.
func gradAdd(b *backward) error {
	lhs, rhs := b.fwd.Args[0], b.fwd.Args[1]
	if err := b.give(lhs, b.dy); err != nil {
		return err
	}
	if lhs.Type.Equal(rhs.Type) {
		return b.give(rhs, b.dy)
	}
	return b.emit(1, ir.OpSumTo, ir.SumToAttr{Keep: len(rhs.Type.Shape)}, "db", b.dy)
}

func gradAddN(b *backward) error {
	for _, x := range b.fwd.Args {
		if err := b.give(x, b.dy); err != nil {
			return err
		}
	}
	return nil
}

// y = x s: dx = dy s.
func gradScale(b *backward) error {
	if b.want(1) {
		return fmt.Errorf("the factor %s of scale has no gradient", b.fwd.Args[1].Name())
	}
	return b.emit(0, ir.OpScale, nil, "dx", b.dy, b.fwd.Args[1])
}

// y = x summed over leading (or all) dimensions: dx = dy repeated over them.
func gradExpandLike(b *backward) error {
	return b.emit(0, ir.OpExpand, nil, "dx", b.dy, b.fwd.Args[0])
}

// y = x repeated over the leading dimensions of like, whose values do not matter.
func gradExpand(b *backward) error {
	return b.emit(0, ir.OpSumTo, ir.SumToAttr{Keep: len(b.fwd.Args[0].Type.Shape)}, "dx", b.dy)
}

// y = x in another type: dx = dy in that of x.
func gradCast(b *backward) error {
	return b.emit(0, ir.OpCast, ir.CastAttr{To: b.fwd.Args[0].Type.DType}, "dx", b.dy)
}

// The three forms of matmul are closed under differentiation:
//
//	NT  y = a bᵀ   da = dy b    (NN)   db = dyᵀ a  (TN)
//	NN  y = a b    da = dy bᵀ   (NT)   db = aᵀ dy  (TN)
//	TN  y = aᵀ b   da = b dyᵀ   (NT)   db = a dy   (NN)
//
// Each da contracts the free dimensions of b, each db those of a. The names dx and dw are those of a linear
// layer.
func gradMatMul(b *backward) error {
	lhs, rhs := b.fwd.Args[0], b.fwd.Args[1]
	attr := b.fwd.Attr.(ir.MatMulAttr)
	freeLHS := len(lhs.Type.Shape) - attr.K
	freeRHS := len(rhs.Type.Shape) - attr.K
	if b.want(0) && freeRHS == 0 || b.want(1) && freeLHS == 0 {
		return fmt.Errorf("matmul of %s and %s contracts all dimensions of an operand: such a product has no gradient rule", lhs.Type, rhs.Type)
	}
	type product struct {
		form ir.MatMulForm
		a, b *ir.Value
	}
	var dl, dr product
	switch attr.Form {
	case ir.MatMulNT:
		dl, dr = product{ir.MatMulNN, b.dy, rhs}, product{ir.MatMulTN, b.dy, lhs}
	case ir.MatMulNN:
		dl, dr = product{ir.MatMulNT, b.dy, rhs}, product{ir.MatMulTN, lhs, b.dy}
	case ir.MatMulTN:
		dl, dr = product{ir.MatMulNT, rhs, b.dy}, product{ir.MatMulNN, lhs, b.dy}
	default:
		return fmt.Errorf("no gradient rule for matmul form %d", attr.Form)
	}
	if err := b.emit(0, ir.OpMatMul, ir.MatMulAttr{Form: dl.form, K: freeRHS}, "dx", dl.a, dl.b); err != nil {
		return err
	}
	return b.emit(1, ir.OpMatMul, ir.MatMulAttr{Form: dr.form, K: freeLHS}, "dw", dr.a, dr.b)
}

func gradEmbedding(b *backward) error {
	table, ids := b.fwd.Args[0], b.fwd.Args[1]
	return b.emit(0, ir.OpEmbeddingGrad, ir.EmbeddingGradAttr{Rows: table.Type.Shape[0]}, "dtable", ids, b.dy)
}

// One node computes the gradients of input, weight and bias together.
func gradLayerNorm(b *backward) error {
	x, w := b.fwd.Args[0], b.fwd.Args[1]
	mean, rstd := b.fwd.Results[1], b.fwd.Results[2]
	n, err := b.add(ir.OpLayerNormGrad, b.fwd.Attr, "dx", b.dy, x, w, mean, rstd)
	if err != nil {
		return err
	}
	if len(n.Results) != len(b.fwd.Args) {
		return fmt.Errorf("layer_norm with %d operands has attribute %+v", len(b.fwd.Args), b.fwd.Attr)
	}
	for i, a := range b.fwd.Args {
		if err := b.give(a, n.Results[i]); err != nil {
			return err
		}
	}
	return nil
}

func gradRMSNorm(b *backward) error {
	x, w, rstd := b.fwd.Args[0], b.fwd.Args[1], b.fwd.Results[1]
	n, err := b.add(ir.OpRMSNormGrad, b.fwd.Attr, "dx", b.dy, x, w, rstd)
	if err != nil {
		return err
	}
	if err := b.give(x, n.Results[0]); err != nil {
		return err
	}
	return b.give(w, n.Results[1])
}

func gradGELU(b *backward) error {
	return b.emit(0, ir.OpGELUGrad, b.fwd.Attr, "dx", b.dy, b.fwd.Args[0])
}

func gradSwiGLU(b *backward) error {
	return b.emit(0, ir.OpSwiGLUGrad, nil, "dx", b.fwd.Args[0], b.dy)
}

// The gradient of a rotation is the rotation by the same angles in the opposite direction.
func gradRoPE(b *backward) error {
	attr := b.fwd.Attr.(ir.RoPEAttr)
	attr.Inverse = !attr.Inverse
	return b.emit(0, ir.OpRoPE, attr, "dqkv", b.dy, b.fwd.Args[1])
}

// The mask is a function of key, seed, step and position: dropout of dy with the same attributes and operands
// drops the same elements.
func gradDropout(b *backward) error {
	return b.emit(0, ir.OpDropout, b.fwd.Attr, "dx", b.dy, b.fwd.Args[1], b.fwd.Args[2])
}

func gradAttention(b *backward) error {
	qkv, seed, step := b.fwd.Args[0], b.fwd.Args[1], b.fwd.Args[2]
	o, lse := b.fwd.Results[0], b.fwd.Results[1]
	return b.emit(0, ir.OpAttentionGrad, b.fwd.Attr, "dqkv", b.dy, qkv, o, lse, seed, step)
}

// nll(max, sum, pick) of one x is softmax cross-entropy in parts. It is differentiated as a whole: its gradient
// with respect to x, softmax minus one-hot, needs no gradients of the parts.
func gradNLL(b *backward) error {
	rowMax, rowSum, pick, targets := b.fwd.Args[0], b.fwd.Args[1], b.fwd.Args[2], b.fwd.Args[3]
	for _, part := range []struct {
		value *ir.Value
		op    ir.Op
	}{{rowMax, ir.OpRowMax}, {rowSum, ir.OpRowSumExp}, {pick, ir.OpRowPick}} {
		if part.value.Def.Op != part.op {
			return fmt.Errorf("operand %s is %s, want %s: nll is differentiated as a whole", part.value.Name(), part.value.Def.Op, part.op)
		}
	}
	x := rowMax.Def.Args[0]
	if rowSum.Def.Args[0] != x || pick.Def.Args[0] != x {
		return fmt.Errorf("max, sum and pick are of %s, %s and %s, want one value: nll is differentiated as a whole",
			x.Name(), rowSum.Def.Args[0].Name(), pick.Def.Args[0].Name())
	}
	if rowSum.Def.Args[1] != rowMax || pick.Def.Args[1] != targets {
		return errors.New("sum must use the same max, and pick the same targets: nll is differentiated as a whole")
	}
	n, err := b.add(ir.OpCrossEntropyGrad, nil, "dx", x, rowMax, rowSum, targets, b.dy)
	if err != nil {
		return err
	}
	return b.give(x, n.Results[0])
}

// A gradient arrives here only if the loss uses a row reduction other than through nll.
func gradRow(b *backward) error {
	return fmt.Errorf("%s is differentiable through nll only", b.fwd.Op)
}
