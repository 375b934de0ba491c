// Package interp evaluates graphs in float64, one element at a time, on global values. It defines every op: one
// small function per op, written as the formula in a textbook, without regard to speed. The kernels of every
// backend, autodiff and partition are tested against it.
//
// Values are whole: whatever an [ir.ShardSpec] says about the placement of a value, interp holds all of it. So
// communication is the identity.
package interp

import (
	"fmt"
	"maps"

	"github.com/autopar/autopar/ir"
)

// Options change what [Run] reports. The zero value is a plain run.
type Options struct {
	// Trace, when set, sees every value as it is computed, in graph order.
	Trace func(v *ir.Value, t Tensor)
}

// Result is what a run returns.
type Result struct {
	// Outputs holds the graph's outputs by name.
	Outputs map[string]Tensor
	// State holds every parameter by name, as the next step finds it: the new value of those that are updated,
	// and the others as they were fed. State and the next inputs together are the feeds of the next step.
	State map[string]Tensor
}

// Run evaluates a graph. feeds holds one tensor for every parameter and input, by name; a name that the graph
// does not have is an error. Tensors in the result may share memory with feeds; nothing writes to them.
func Run(g *ir.Graph, feeds map[string]Tensor, opts Options) (Result, error) {
	values := make(map[*ir.Value]Tensor)
	unused := maps.Clone(feeds)
	for _, n := range g.Nodes {
		results, err := evalIn(n, values, feeds)
		if err != nil {
			return Result{}, err
		}
		delete(unused, n.Name)
		for i, r := range n.Results {
			values[r] = results[i]
			if opts.Trace != nil {
				opts.Trace(r, results[i])
			}
		}
	}
	for name := range unused {
		return Result{}, fmt.Errorf("interp: %q is fed, but graph %q has no such parameter or input", name, g.Name)
	}
	res := Result{Outputs: map[string]Tensor{}, State: map[string]Tensor{}}
	for _, o := range g.Outputs {
		res.Outputs[o.Name] = values[o.Value]
	}
	for _, p := range g.Params() {
		res.State[p.Name()] = values[p]
	}
	for _, u := range g.Updates {
		res.State[u.Param.Name()] = values[u.New]
	}
	return res, nil
}

// evalIn evaluates a node, given the values computed so far.
func evalIn(n *ir.Node, values map[*ir.Value]Tensor, feeds map[string]Tensor) ([]Tensor, error) {
	if n.Op == ir.OpParam || n.Op == ir.OpInput {
		t, ok := feeds[n.Name]
		if !ok {
			return nil, fmt.Errorf("interp: %s %q is not fed", n.Op, n.Name)
		}
		if err := t.check(n.Results[0].Type); err != nil {
			return nil, fmt.Errorf("interp: %s %q: %w", n.Op, n.Name, err)
		}
		return []Tensor{t.rounded(n.Results[0].Type.DType)}, nil
	}
	args := make([]Tensor, len(n.Args))
	for i, a := range n.Args {
		t, ok := values[a]
		if !ok {
			return nil, fmt.Errorf("interp: %s %q: operand %d is not computed before its use", n.Op, n.Name, i)
		}
		args[i] = t
	}
	return Eval(n, args)
}

// Eval evaluates one node that is neither a parameter nor an input. The operands must have the types of n.Args.
// Results of 16-bit types are rounded to their format; float64 stands for f32.
func Eval(n *ir.Node, args []Tensor) ([]Tensor, error) {
	kernel := kernelOf(n.Op)
	if kernel == nil {
		return nil, fmt.Errorf("interp: %s %q has no kernel", n.Op, n.Name)
	}
	if len(args) != len(n.Args) {
		return nil, fmt.Errorf("interp: %s %q: %d operands, want %d", n.Op, n.Name, len(args), len(n.Args))
	}
	for i, a := range n.Args {
		if err := args[i].check(a.Type); err != nil {
			return nil, fmt.Errorf("interp: %s %q: operand %d: %w", n.Op, n.Name, i, err)
		}
	}
	results := make([]Tensor, len(n.Results))
	for i, r := range n.Results {
		results[i] = Zeros(r.Type)
	}
	if err := kernel(n, args, results); err != nil {
		return nil, fmt.Errorf("interp: %s %q: %w", n.Op, n.Name, err)
	}
	for i, r := range n.Results {
		results[i] = results[i].rounded(r.Type.DType)
	}
	return results, nil
}

// HasKernel reports whether [Eval] can evaluate the op.
func HasKernel(op ir.Op) bool { return kernelOf(op) != nil }

// kernelFunc computes results, which are zeroed, from operands whose types have been checked. It fails on what
// types do not tell, such as an id out of range.
type kernelFunc func(n *ir.Node, in, out []Tensor) error

func kernelOf(op ir.Op) kernelFunc {
	switch op {
	case ir.OpConst:
		return constant
	case ir.OpAdd:
		return add
	case ir.OpAddN:
		return addN
	case ir.OpScale:
		return scale
	case ir.OpSumTo:
		return sumTo
	case ir.OpExpand:
		return expand
	case ir.OpSum:
		return sum
	case ir.OpSumSquares:
		return sumSquares
	case ir.OpSqrt:
		return sqrt
	case ir.OpClipScale:
		return clipScale
	case ir.OpFromFixed:
		return identity
	case ir.OpFixedSquares:
		return fixedSquares
	case ir.OpFixedRoot:
		return fixedRoot
	case ir.OpMatMul:
		return matMul
	case ir.OpEmbedding:
		return embedding
	case ir.OpEmbeddingGrad:
		return embeddingGrad
	case ir.OpLayerNorm:
		return layerNorm
	case ir.OpLayerNormGrad:
		return layerNormGrad
	case ir.OpRMSNorm:
		return rmsNorm
	case ir.OpRMSNormGrad:
		return rmsNormGrad
	case ir.OpGELU:
		return gelu
	case ir.OpGELUGrad:
		return geluGrad
	case ir.OpSwiGLU:
		return swiGLU
	case ir.OpSwiGLUGrad:
		return swiGLUGrad
	case ir.OpRoPE:
		return rope
	case ir.OpDropout:
		return dropout
	case ir.OpAttention:
		return attention
	case ir.OpAttentionGrad:
		return attentionGrad
	case ir.OpAttentionDecode:
		return attentionDecode
	case ir.OpKeysValues:
		return keysValues
	case ir.OpAttentionKV:
		return attentionKV
	case ir.OpAttentionKVGrad:
		return attentionKVGrad
	case ir.OpJoinQKV:
		return joinQKV
	case ir.OpRows:
		return someRows
	case ir.OpJoinRows:
		return joinRows
	case ir.OpFold, ir.OpUnfold:
		return fold
	case ir.OpRowMax:
		return rowMax
	case ir.OpRowSumExp:
		return rowSumExp
	case ir.OpRowPick:
		return rowPick
	case ir.OpNLL:
		return nll
	case ir.OpCrossEntropyGrad:
		return crossEntropyGrad
	case ir.OpAdamW:
		return adamW
	case ir.OpCast:
		return cast
	case ir.OpLossScale:
		return lossScale
	case ir.OpParam, ir.OpInput, ir.OpInvalid:
		return nil
	}
	if op.Class() == ir.Comm {
		return identity
	}
	return nil
}

// constant returns the scalar in the attributes.
func constant(n *ir.Node, _, out []Tensor) error {
	x := n.Attr.(ir.ConstAttr).Value
	if out[0].I == nil {
		out[0].F[0] = x
		return nil
	}
	out[0].I[0] = int32(x)
	if float64(out[0].I[0]) != x {
		return fmt.Errorf("value %v is not an int32", x)
	}
	return nil
}

// identity evaluates all communication, which moves parts of a value without changing it, and from_fixed,
// because a Tensor holds the numbers that fixed-point elements stand for.
func identity(_ *ir.Node, in, out []Tensor) error {
	out[0] = in[0]
	return nil
}
