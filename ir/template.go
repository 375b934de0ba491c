package ir

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// The dimensions of attention for queries that share a head of keys and values: see [binder.group].
const (
	rolesDim   = "roles"
	queryGroup = "g"
)

// isMarker reports whether a dimension enumerates roles (such as k and v of a cache) and is not part of the
// iteration space.
func isMarker(name string) bool { return name == rolesDim || markerSize(name) > 0 }

// markerSize returns the size of a marker that is the same in all graphs, 0 for other names.
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

// elemMark is what a signature says about an element type.
type elemMark uint8

const (
	elemOpen elemMark = iota // the same as all other open ones
	elemI32
	elemF32
	elemQ64
	elemAny // any floating-point type
)

// or returns the type that the mark fixes, or open if it fixes none.
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

// opTemplates, matMulTemplates and ropeRowsTemplate are the parsed signature lines of all ops: read only.
var (
	opTemplates     = parseSignatures()
	matMulTemplates = [...]sigTemplate{
		MatMulNT: parseSignature("a[m* k*] b[n* k*] -> y[m* n*]"),
		MatMulNN: parseSignature("a[m* k*] b[k* n*] -> y[m* n*]"),
		MatMulTN: parseSignature("a[k* m*] b[k* n*] -> y[m* n*]"),
	}
	ropeRowsTemplate = parseSignature(strings.Replace(opTable[OpRoPE].sig, "positions:i32[t]", "positions:i32[b t]", 1))
)

func parseSignatures() (all [numOps]sigTemplate) {
	for op := range all {
		all[op] = parseSignature(opTable[op].sig)
	}
	return all
}

// template returns the signature line of an op. It is shared: read only.
func template(op Op, attr Attr) (*sigTemplate, error) {
	if op <= OpInvalid || op >= numOps {
		return nil, fmt.Errorf("ir: unknown op %d", op)
	}
	if op == OpMatMul {
		a, ok := attr.(MatMulAttr)
		if !ok || int(a.Form) >= len(matMulTemplates) || a.K < 1 {
			return nil, fmt.Errorf("ir: matmul: bad attribute %+v", attr)
		}
		return &matMulTemplates[a.Form], nil
	}
	if a, ok := attr.(RoPEAttr); ok && a.Rows {
		return &ropeRowsTemplate, nil
	}
	if opTable[op].class == Leaf {
		return nil, fmt.Errorf("ir: %s: a leaf has no operands to infer from", op)
	}
	return &opTemplates[op], nil
}

func parseSignature(line string) sigTemplate {
	left, right, _ := strings.Cut(line, "->")
	return sigTemplate{parseOperands(left), parseOperands(right)}
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

// operands returns the template's operands for a number of actual operands, given optional and repeated ones.
func (t *sigTemplate) operands(op Op, n int) ([]operand, error) {
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

// binder assigns indices and sizes to the names of dimensions.
type binder struct {
	sig    *Signature
	groups map[string]int // by name of a group: the number of its dimensions
	sizes  map[string]int // sizes fixed by attributes, or by group and rows
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

// group relates the two dimensions of attention that depend on the number of queries that share a head of keys
// and values. roles enumerates these queries, one key and one value, in this order. g* enumerates the queries
// alone, if there are several (grouped-query attention: Ainslie et al. 2023). With one query per head
// (multi-head attention) roles is 3 and g* no dimension. Either size follows from the other.
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

// rows relates the size of a dimension of all positions to that of a part of them.
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

// resolveGroups finds the number of dimensions of each group: it solves operands with a single unknown group,
// until all groups are known.
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

// expand returns the indices of the dimensions of one operand or result. With bind it takes their sizes from
// shape.
func (b *binder) expand(o operand, shape []int, bind bool) ([]int, error) {
	names := make([]dimRef, 0, max(len(o.dims), len(shape)))
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
			b.sig.Dims = append(b.sig.Dims, Dim{Name: n.name, Size: size, marker: isMarker(n.name)})
		} else if b.sig.Dims[at].Size != size {
			return nil, fmt.Errorf("ir: %s: dimension %d of operand %s is %d, but %s is %d elsewhere",
				b.sig.Op, i, o.name, size, n.name, b.sig.Dims[at].Size)
		}
		b.sig.Dims[at].Frozen = b.sig.Dims[at].Frozen || n.frozen
		dims[i] = at
	}
	return dims, nil
}
