package ir

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Dim is one named dimension of a node's iteration space.
type Dim struct {
	Name string
	Size int // global
	// Frozen dimensions cannot be split: the kernel needs them whole.
	Frozen bool
}

// Signature is the dimension signature of an op, resolved for one node: which
// named dimension each position of each operand and result is.
type Signature struct {
	Op      Op
	Dims    []Dim
	Args    [][]int // indexes into Dims
	Results [][]int
	Types   []DType // of the results

	rules []rule // from PassPartial on
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

// Resolve matches the op's signature with attributes and operand types. It
// fails, naming operand and numbers, when the operands do not fit.
func Resolve(op Op, attr Attr, args []Type) (*Signature, error) {
	tmpl, err := template(op, attr)
	if err != nil {
		return nil, err
	}
	b := binder{sig: &Signature{Op: op}, groups: map[string]int{}}
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

// elements checks the element types of the operands and returns the one that
// those have which the signature leaves open, and so the results.
func elements(op Op, attr Attr, operands []operand, args []Type) (DType, error) {
	if cast, ok := attr.(CastAttr); ok && op == OpCast {
		if !cast.To.Float() || !args[0].DType.Float() {
			return 0, fmt.Errorf("ir: cast: from %s to %s, want floating-point types", args[0].DType, cast.To)
		}
		return cast.To, nil
	}
	if op.Class() == Comm || op == OpRows { // what only moves moves any type
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

// ResultTypes returns the types of the results.
func (s *Signature) ResultTypes() []Type {
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

// Rule returns the placements that one mesh axis puts on every operand and
// result when it splits dimension dim, or for ReplicateAll or PassPartial. ok is
// false when the op does not allow it. What it returns is shared: read only.
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

// FLOPs counts floating-point operations when every operand and result has the
// given shape (a rank's local shapes, or the global ones): the op's factor times
// the points of its iteration space, and for attention times the mean number of
// keys that the causal mask leaves, times two.
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
				if seen[d] || isMarker(s.Dims[d].Name) {
					continue
				}
				seen[d] = true
				points *= float64(shapes[i][j])
				if s.Dims[d].Name == "t" && (s.Op == OpAttention || s.Op == OpAttentionGrad) {
					points *= float64(shapes[i][j])
				}
			}
		}
	}
	mul(s.Args, args)
	mul(s.Results, results)
	switch s.Op {
	case OpAddN:
		points *= float64(len(s.Args))
	case OpRoPE: // all roles but that of values
		points *= float64(args[0][2] - 1)
	}
	return points
}

// The dimensions of attention that group queries: see [binder.group].
const (
	rolesDim   = "roles"
	queryGroup = "g"
)

// isMarker reports dimensions of small size that enumerate roles (k and v of a
// cache), not points of the iteration space.
func isMarker(name string) bool { return name == rolesDim || markerSize(name) > 0 }

// markerSize is the size of a marker that is the same for all graphs, else 0.
func markerSize(name string) int {
	switch name {
	case "one":
		return 1
	case "two":
		return 2
	}
	return 0
}

// operand is one parsed operand or result of a signature line.
type operand struct {
	name     string
	elem     elemMark
	optional bool
	repeated bool
	dims     []dimRef
}

// elemMark is what a signature says of an element type.
type elemMark uint8

const (
	elemOpen elemMark = iota // what other open ones are
	elemI32
	elemF32
	elemQ64
	elemAny // any floating-point type
)

// or returns the type that the mark fixes, else the one given.
func (m elemMark) or(open DType) DType {
	switch m {
	case elemI32:
		return I32
	case elemF32:
		return F32
	case elemQ64:
		return Q64
	}
	return open
}

type dimRef struct {
	name   string
	frozen bool
	group  bool
}

type sigTemplate struct{ args, results []operand }

// template parses the signature line of an op. Lines are short and parsing is
// cheap beside everything done with the result, so nothing is cached.
func template(op Op, attr Attr) (sigTemplate, error) {
	if op <= OpInvalid || op >= numOps {
		return sigTemplate{}, fmt.Errorf("ir: unknown op %d", op)
	}
	line := opTable[op].sig
	if op == OpMatMul {
		a, ok := attr.(MatMulAttr)
		if !ok || int(a.Form) >= len(matMulSigs) || a.K < 1 {
			return sigTemplate{}, fmt.Errorf("ir: matmul: bad attribute %+v", attr)
		}
		line = matMulSigs[a.Form]
	}
	if opTable[op].class == Leaf {
		return sigTemplate{}, fmt.Errorf("ir: %s: a leaf has no operands to infer from", op)
	}
	left, right, _ := strings.Cut(line, "->")
	var t sigTemplate
	t.args = parseOperands(left)
	t.results = parseOperands(right)
	return t, nil
}

func parseOperands(s string) []operand {
	var out []operand
	for _, field := range strings.Split(s, "]") {
		name, dims, ok := strings.Cut(strings.TrimSpace(field), "[")
		if !ok {
			continue
		}
		var o operand
		name, mark, _ := strings.Cut(name, ":")
		o.elem = map[string]elemMark{"i32": elemI32, "f32": elemF32, "q64": elemQ64, "any": elemAny}[mark]
		name, o.optional = strings.CutSuffix(name, "?")
		name, o.repeated = strings.CutSuffix(name, "...")
		o.name = name
		for _, d := range strings.Fields(dims) {
			var r dimRef
			d, r.frozen = strings.CutPrefix(d, "!")
			d, r.group = strings.CutSuffix(d, "*")
			r.name = d
			o.dims = append(o.dims, r)
		}
		out = append(out, o)
	}
	return out
}

// operands matches the template with the number of operands given.
func (t sigTemplate) operands(op Op, n int) ([]operand, error) {
	if len(t.args) == 1 && t.args[0].repeated {
		if n < 1 {
			return nil, fmt.Errorf("ir: %s: no operands", op)
		}
		return slices.Repeat(t.args, n), nil
	}
	need := 0
	for _, a := range t.args {
		if !a.optional {
			need++
		}
	}
	if n < need || n > len(t.args) {
		return nil, fmt.Errorf("ir: %s: %d operands, want %d", op, n, need)
	}
	return t.args[:n], nil
}

// binder gives names of dimensions their indexes and sizes.
type binder struct {
	sig    *Signature
	groups map[string]int // dimensions in each group
	sizes  map[string]int // sizes fixed by attributes, or by group
}

func (b *binder) fromAttr(attr Attr) {
	switch a := attr.(type) {
	case MatMulAttr:
		b.groups["k"] = a.K
	case SumToAttr:
		b.groups["s"] = a.Keep
	case EmbeddingGradAttr:
		b.sizes = map[string]int{"v": a.Rows}
	}
}

// group relates the two dimensions in which attention packs what belongs to a head
// of keys and values: roles counts its queries, one key and one value, in this
// order, and g* the queries alone, where there is more than one (grouped-query
// attention: Ainslie et al. 2023). With one query per head, multi-head attention,
// roles is 3 and g* no dimension. Either size follows from the other.
func (b *binder) group(ops []operand, args []Type) error {
	queries := 0
	for i, o := range ops {
		roles := slices.IndexFunc(o.dims, func(d dimRef) bool { return d.name == rolesDim })
		shared := slices.IndexFunc(o.dims, func(d dimRef) bool { return d.group && d.name == queryGroup })
		shape := args[i].Shape
		switch {
		case roles >= 0 && roles < len(shape):
			if queries = shape[roles] - 2; queries < 1 {
				return fmt.Errorf("ir: %s: dimension %d of %s is %d, want 3 or more: queries, a key and a value", b.sig.Op, roles, o.name, shape[roles])
			}
		case shared >= 0 && queries == 0 && len(shape) == len(o.dims)-1:
			queries = 1
		case shared >= 0 && queries == 0 && len(shape) == len(o.dims):
			if queries = shape[shared]; queries < 2 {
				return fmt.Errorf("ir: %s: dimension %d of %s is %d, want 2 or more queries of a group, or no such dimension", b.sig.Op, shared, o.name, queries)
			}
		}
	}
	if queries == 0 {
		return nil
	}
	b.sizes = map[string]int{rolesDim: queries + 2, queryGroup + "0": queries}
	b.groups[queryGroup] = min(queries-1, 1)
	return nil
}

// rows relates all positions to those of a part of them.
func (b *binder) rows(op Op, attr Attr, args []Type) error {
	switch {
	case op != OpRows && op != OpJoinRows || len(args[0].Shape) < 2:
	case op == OpJoinRows:
		b.sizes = map[string]int{"t": args[0].Shape[1] * len(args)}
	default:
		n, parts := args[0].Shape[1], attr.(RowsAttr).Parts
		if parts < 1 || n%parts != 0 {
			return fmt.Errorf("ir: rows: %d positions are not %d equal parts", n, parts)
		}
		b.sizes = map[string]int{"s": n / parts}
	}
	return nil
}

func hasOptionalResult(attr Attr) bool {
	a, ok := attr.(LayerNormAttr)
	return ok && a.Bias
}

// resolveGroups finds how many dimensions each group stands for, from operands
// that have a single unknown group, until all are known.
func (b *binder) resolveGroups(ops []operand, args []Type) error {
	for progress := true; progress; {
		progress = false
		for i, o := range ops {
			known, unknown := 0, ""
			several := false
			for _, d := range o.dims {
				n, ok := b.groups[d.name]
				switch {
				case !d.group:
					known++
				case ok:
					known += n
				default:
					several = several || unknown != ""
					unknown = d.name
				}
			}
			if unknown == "" || several {
				continue
			}
			n := len(args[i].Shape) - known
			if n < 0 {
				return fmt.Errorf("ir: %s: operand %s %s has %d dimensions, want at least %d", b.sig.Op, o.name, args[i], len(args[i].Shape), known)
			}
			b.groups[unknown] = n
			progress = true
		}
	}
	return nil
}

// expand turns the dimensions of one operand or result into indexes, binding
// sizes from shape when bind is set.
func (b *binder) expand(o operand, shape []int, bind bool) ([]int, error) {
	var names []dimRef
	for _, d := range o.dims {
		if !d.group {
			names = append(names, d)
			continue
		}
		n, ok := b.groups[d.name]
		if !ok || n < 0 {
			return nil, fmt.Errorf("ir: %s: cannot tell how many dimensions %s* of %s has", b.sig.Op, d.name, o.name)
		}
		for i := range n {
			names = append(names, dimRef{name: d.name + strconv.Itoa(i), frozen: d.frozen})
		}
	}
	if bind && len(names) != len(shape) {
		return nil, fmt.Errorf("ir: %s: operand %s has shape %v, want %d dimensions", b.sig.Op, o.name, shape, len(names))
	}
	dims := make([]int, len(names))
	for i, n := range names {
		at := slices.IndexFunc(b.sig.Dims, func(d Dim) bool { return d.Name == n.name })
		size, fixed := b.sizes[n.name]
		switch {
		case bind && fixed && size != shape[i]:
			return nil, fmt.Errorf("ir: %s: dimension %d of operand %s is %d, want %d", b.sig.Op, i, o.name, shape[i], size)
		case bind:
			size, fixed = shape[i], true
		case at >= 0:
			size, fixed = b.sig.Dims[at].Size, true
		}
		if m := markerSize(n.name); !fixed && m > 0 {
			size, fixed = m, true
		}
		if !fixed {
			return nil, fmt.Errorf("ir: %s: size of dimension %s of result %s is unknown", b.sig.Op, n.name, o.name)
		}
		if m := markerSize(n.name); m > 0 && size != m {
			return nil, fmt.Errorf("ir: %s: dimension %d of %s is %d, want %d", b.sig.Op, i, o.name, size, m)
		}
		if at < 0 {
			at = len(b.sig.Dims)
			b.sig.Dims = append(b.sig.Dims, Dim{Name: n.name, Size: size})
		} else if b.sig.Dims[at].Size != size {
			return nil, fmt.Errorf("ir: %s: dimension %d of operand %s is %d, but %s is %d elsewhere",
				b.sig.Op, i, o.name, size, n.name, b.sig.Dims[at].Size)
		}
		b.sig.Dims[at].Frozen = b.sig.Dims[at].Frozen || n.frozen
		dims[i] = at
	}
	return dims, nil
}
