package ir

import (
	"fmt"
	"slices"
)

// Dim is one named dimension of a node's iteration space.
type Dim struct {
	Name string
	Size int // global
	// Frozen dimensions cannot be split: the kernel needs all of them.
	Frozen bool

	marker bool // see isMarker
}

// Signature is the dimension signature of an op, resolved for one node. It says which named dimension each
// position of each operand and result is.
type Signature struct {
	Op      Op
	Dims    []Dim
	Args    [][]int // indices into Dims
	Results [][]int
	Types   []DType // of the results

	rules []rule // by rule number, from PassPartial on
	parts int    // of attention: how many rows of the batch are one sequence, at least 1
}

// rule is what [Signature.Rule] returns.
type rule struct {
	args, results []Placement
	ok            bool
}

// ReplicateAll and PassPartial are the rules of [Signature.Rule] that split no
// dimension.
const (
	ReplicateAll = -1 // every operand and result replicated
	PassPartial  = -2 // the linear operands Partial, and so the results
)

// Resolve matches the op's signature with attributes and operand types. The error names the operand and the
// sizes that do not fit.
func Resolve(op Op, attr Attr, args []Type) (*Signature, error) {
	tmpl, err := template(op, attr)
	if err != nil {
		return nil, err
	}
	b := binder{sig: &Signature{Op: op, parts: max(1, SequenceParts(attr))}, groups: map[string]int{}}
	b.fromAttr(attr)
	operands, err := tmpl.operands(op, len(args))
	if err != nil {
		return nil, err
	}
	if err := b.group(operands, args); err != nil {
		return nil, err
	}
	if err := b.resolveGroups(operands, args); err != nil {
		return nil, err
	}
	if err := b.rows(op, attr, args); err != nil {
		return nil, err
	}
	elem, err := elements(op, attr, operands, args)
	if err != nil {
		return nil, err
	}
	for i, o := range operands {
		dims, err := b.expand(o, args[i].Shape, true)
		if err != nil {
			return nil, err
		}
		b.sig.Args = append(b.sig.Args, dims)
	}
	for _, r := range tmpl.results {
		if r.optional && !hasOptionalResult(attr) {
			continue
		}
		dims, err := b.expand(r, nil, false)
		if err != nil {
			return nil, err
		}
		b.sig.Types = append(b.sig.Types, resultDType(op, attr, r.elem.or(elem), len(b.sig.Results)))
		b.sig.Results = append(b.sig.Results, dims)
	}
	b.sig.rules = make([]rule, 0, len(b.sig.Dims)-PassPartial)
	for dim := PassPartial; dim < len(b.sig.Dims); dim++ {
		b.sig.rules = append(b.sig.rules, b.sig.rule(dim))
	}
	return b.sig, nil
}

// elements checks the element types of the operands and returns the type of all operands and results whose type
// the signature leaves open.
func elements(op Op, attr Attr, operands []operand, args []Type) (DType, error) {
	if cast, ok := attr.(CastAttr); ok && op == OpCast {
		if !cast.To.Float() || !args[0].DType.Float() {
			return 0, fmt.Errorf("ir: cast: from %s to %s, want floating-point types", args[0].DType, cast.To)
		}
		return cast.To, nil
	}
	if op.Class() == Comm || op == OpRows { // ops that only move data take any type
		return args[0].DType, nil
	}
	open, known := F32, false
	for i, o := range operands {
		got := args[i].DType
		switch {
		case o.elem == elemAny && got.Float():
		case o.elem == elemOpen && !known && (got.Float() || op == OpAddN && got == Q64):
			open, known = got, true
		case o.elem == elemAny || got != o.elem.or(open):
			return 0, fmt.Errorf("ir: %s: operand %s is %s, want %s", op, o.name, got, o.elem.or(open))
		}
	}
	return open, nil
}

// resultTypes returns the types of the results.
func (s *Signature) resultTypes() []Type {
	types := make([]Type, len(s.Results))
	for i, dims := range s.Results {
		shape := make([]int, len(dims))
		for j, d := range dims {
			shape[j] = s.Dims[d].Size
		}
		types[i] = Type{s.Types[i], shape}
	}
	return types
}

// Rule returns the placements on one mesh axis of every operand and result, if the axis splits dimension dim,
// or for ReplicateAll or PassPartial. ok is false if the op does not allow it. The slices are shared: read
// only.
func (s *Signature) Rule(dim int) (args, results []Placement, ok bool) {
	r := &s.rules[dim-PassPartial]
	return r.args, r.results, r.ok
}

func (s *Signature) rule(dim int) rule {
	args := make([]Placement, len(s.Args))
	results := make([]Placement, len(s.Results))
	switch {
	case dim == ReplicateAll:
		return rule{args, results, true}
	case dim == PassPartial:
		linear := opTable[s.Op].linear
		if linear == 0 {
			return rule{}
		}
		for i := range args {
			if linear&(1<<min(i, 31)) != 0 {
				args[i] = PartialOf(Sum)
			}
		}
		for i := range results {
			results[i] = PartialOf(Sum)
		}
		return rule{args, results, true}
	case s.Dims[dim].Frozen:
		return rule{}
	}
	inArgs := false
	for i, dims := range s.Args {
		if at := slices.Index(dims, dim); at >= 0 {
			args[i], inArgs = ShardOn(at), true
		}
	}
	for i, dims := range s.Results {
		if at := slices.Index(dims, dim); at >= 0 {
			results[i] = ShardOn(at)
		} else if inArgs {
			results[i] = PartialOf(opTable[s.Op].reduce)
		}
	}
	return rule{args, results, true}
}

// FLOPs returns the number of floating-point operations if operands and results have the given shapes (a rank's
// local shapes, or the global ones): the op's factor times the points of its iteration space. For attention the
// points are also multiplied by the number of keys t: twice the average number that the causal mask leaves.
func (s *Signature) FLOPs(args, results [][]int) float64 {
	points := opTable[s.Op].flops
	if points == 0 {
		return 0
	}
	var few [16]bool
	seen := few[:]
	if len(s.Dims) > len(few) {
		seen = make([]bool, len(s.Dims))
	}
	mul := func(sides [][]int, shapes [][]int) {
		for i, dims := range sides {
			for j, d := range dims {
				if seen[d] || s.Dims[d].marker {
					continue
				}
				seen[d] = true
				points *= float64(shapes[i][j])
				switch name := s.Dims[d].Name; {
				case name == "t" && (s.Op == OpAttention || s.Op == OpAttentionGrad):
					points *= float64(s.parts * shapes[i][j])
				case name == "s": // keys that are apart
					points *= float64(s.parts)
				}
			}
		}
	}
	mul(s.Args, args)
	mul(s.Results, results)
	switch s.Op {
	case OpAddN:
		points *= float64(len(s.Args))
	case OpRoPE: // values are not rotated
		points *= float64(args[0][2] - 1)
	}
	return points
}
