package ir

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// Verify checks every invariant that the rest of autopar relies on and returns
// the first violation, naming node, operand and mesh axis:
//
//   - operands are defined earlier in the same graph, IDs and names are unique,
//     and Def and Index lead back from a value to its node;
//   - every node has its op's attributes, and the types that inference gives it;
//   - no node uses a value of a later [Phase];
//   - outputs and updates belong to the graph, and an update has its
//     parameter's type;
//   - when the graph has a mesh, the specs of every node's operands and results
//     are, axis by axis, one legal rule of its signature (compute), the change
//     its attributes name (communication), or whole (leaves, outputs).
func (g *Graph) Verify() error {
	v := newVerifier(g)
	if err := g.Mesh.validate(); err != nil {
		return fmt.Errorf("ir: graph %q: %w", g.Name, err)
	}
	if !utf8.ValidString(g.Name) {
		return fmt.Errorf("ir: graph name %q is not valid UTF-8", g.Name)
	}
	for i, n := range g.Nodes {
		if n == nil {
			return fmt.Errorf("ir: graph %q: node %d is nil", g.Name, i)
		}
		if err := v.node(n); err != nil {
			return fmt.Errorf("ir: graph %q: node %d (%s %q): %w", g.Name, i, n.Op, n.Name, err)
		}
	}
	if err := v.ends(); err != nil {
		return fmt.Errorf("ir: graph %q: %w", g.Name, err)
	}
	return nil
}

// VerifyNode checks one node by itself, as [Graph.Verify] does every node of a
// graph: its attributes, its types, and that the placements of its operands and
// results on the mesh are a legal rule of its op.
func (m Mesh) VerifyNode(n *Node) error {
	v := newVerifier(&Graph{Mesh: m})
	for _, a := range n.Args {
		v.defined[a] = true
	}
	return v.node(n)
}

type verifier struct {
	g       *Graph
	defined map[*Value]bool
	ids     map[int]*Node
	names   map[string]bool
	sigs    resolver
}

func newVerifier(g *Graph) verifier {
	return verifier{g: g, defined: map[*Value]bool{}, ids: map[int]*Node{}, names: map[string]bool{}}
}

func (v *verifier) node(n *Node) error {
	if err := v.label(n); err != nil {
		return err
	}
	if err := checkAttr(n.Op, n.Attr); err != nil {
		return err
	}
	for i, a := range n.Args {
		switch {
		case a == nil:
			return fmt.Errorf("operand %d is nil", i)
		case !v.defined[a]:
			return fmt.Errorf("operand %d (%%%d) is not defined before its use", i, a.ID)
		case a.Def.Phase > n.Phase:
			return fmt.Errorf("operand %d (%s) is of phase %s, its user of phase %s", i, ref(a), a.Def.Phase, n.Phase)
		}
	}
	if err := v.results(n); err != nil {
		return err
	}
	if len(v.g.Mesh.Axes) == 0 {
		return nil
	}
	return v.specs(n)
}

// posForm is the form of a source position: file:line.
var posForm = regexp.MustCompile(`^[^\s\pC]([^\pC]*[^\s\pC])?:[0-9]+$`)

// isPos reports whether a string is a source position file:line.
func isPos(s string) bool { return utf8.ValidString(s) && posForm.MatchString(s) }

// label checks what identifies a node.
func (v *verifier) label(n *Node) error {
	switch {
	case n.Op <= OpInvalid || n.Op >= numOps:
		return fmt.Errorf("there is no such op")
	case !utf8.ValidString(n.Name):
		return fmt.Errorf("name is not valid UTF-8")
	case v.names[n.Name]:
		return fmt.Errorf("name is taken by an earlier node")
	case n.Phase >= NumPhases:
		return fmt.Errorf("there is no phase %d", n.Phase)
	case n.Stage < 0:
		return fmt.Errorf("stage is %d", n.Stage)
	case n.Pos != "" && !isPos(n.Pos):
		return fmt.Errorf("position %q is not file:line", n.Pos)
	}
	v.names[n.Name] = true
	return nil
}

// results checks the results against inference and records them as defined.
func (v *verifier) results(n *Node) error {
	types, err := v.inferred(n)
	if err != nil {
		return err
	}
	if len(n.Results) != len(types) {
		return fmt.Errorf("has %d results, want %d", len(n.Results), len(types))
	}
	for i, r := range n.Results {
		if r == nil {
			return fmt.Errorf("result %d is nil", i)
		}
		if r.Def != n || r.Index != i {
			return fmt.Errorf("result %d (%%%d) does not lead back to its node: Index is %d", i, r.ID, r.Index)
		}
		if r.ID < 0 || r.ID > maxID {
			return fmt.Errorf("result %d has ID %d", i, r.ID)
		}
		if other := v.ids[r.ID]; other != nil {
			return fmt.Errorf("result %d has ID %%%d, which is a result of %q too", i, r.ID, other.Name)
		}
		if !r.Type.Equal(types[i]) {
			return fmt.Errorf("result %d (%%%d) has type %s, inference says %s", i, r.ID, r.Type, types[i])
		}
		if err := checkType(r.Type); err != nil {
			return fmt.Errorf("result %d (%%%d): %w", i, r.ID, err)
		}
		v.ids[r.ID] = n
		v.defined[r] = true
	}
	return nil
}

// inferred returns the types that the results of n must have. A leaf may have any type, except that a constant
// is a scalar.
func (v *verifier) inferred(n *Node) ([]Type, error) {
	if n.Op.Class() == Leaf {
		if len(n.Args) != 0 {
			return nil, fmt.Errorf("a leaf has %d operands", len(n.Args))
		}
		if len(n.Results) != 1 || n.Results[0] == nil {
			return nil, fmt.Errorf("has %d results, want 1", len(n.Results))
		}
		if n.Op == OpConst && len(n.Results[0].Type.Shape) > 0 {
			return nil, fmt.Errorf("a constant is a scalar, not %s", n.Results[0].Type)
		}
		return []Type{n.Results[0].Type}, nil
	}
	like, err := v.sigs.resolve(n.Op, n.Attr, n.Args)
	if err != nil {
		return nil, err
	}
	if ln, ok := n.Attr.(LayerNormAttr); ok && n.Op == OpLayerNorm && ln.Bias != (len(n.Args) == 3) {
		return nil, fmt.Errorf("attribute bias is %v, but there are %d operands", ln.Bias, len(n.Args))
	}
	if n.Op == OpRoPE && n.Args[0].Type.Shape[4]%2 != 0 {
		return nil, fmt.Errorf("heads are %d wide; rotating pairs needs an even width", n.Args[0].Type.Shape[4])
	}
	if parts := SequenceParts(n.Attr); parts > 0 && n.Args[0].Type.Shape[0]%parts != 0 {
		return nil, fmt.Errorf("%d rows are not whole sequences of %d parts", n.Args[0].Type.Shape[0], parts)
	}
	return like.results, nil
}

const (
	maxRank  = 127     // Placement.Dim is an int8
	maxElems = 1 << 48 // far above any tensor, far below an overflow of its bytes
	maxID    = 1 << 30
)

// checkType rejects types whose sizes or products would overflow.
func checkType(t Type) error {
	if t.DType >= numDTypes {
		return fmt.Errorf("there is no dtype %d", t.DType)
	}
	if len(t.Shape) > maxRank {
		return fmt.Errorf("%d dimensions, at most %d are supported", len(t.Shape), maxRank)
	}
	elems := 1
	for i, s := range t.Shape {
		if s < 1 {
			return fmt.Errorf("dimension %d of %s is %d, want at least 1", i, t, s)
		}
		if s > maxElems/elems {
			return fmt.Errorf("%s has more than 2^48 elements", t)
		}
		elems *= s
	}
	return nil
}

// ends checks outputs and updates.
func (v *verifier) ends() error {
	seen := map[string]bool{}
	for i, o := range v.g.Outputs {
		switch {
		case seen[o.Name]:
			return fmt.Errorf("output %d: name %q is taken by an earlier output", i, o.Name)
		case !utf8.ValidString(o.Name):
			return fmt.Errorf("output %d: name %q is not valid UTF-8", i, o.Name)
		case o.Value == nil || !v.defined[o.Value]:
			return fmt.Errorf("output %q is not a value of the graph", o.Name)
		case o.Value.Spec.HasPartial():
			return fmt.Errorf("output %q (%s) is Partial: %s", o.Name, ref(o.Value), v.g.specText(o.Value))
		case o.Value.OnHost():
			return fmt.Errorf("output %q (%s) is in host memory", o.Name, ref(o.Value))
		}
		seen[o.Name] = true
	}
	updated := map[*Value]bool{}
	for i, u := range v.g.Updates {
		switch {
		case u.Param == nil || !v.defined[u.Param]:
			return fmt.Errorf("update %d: the parameter is not a value of the graph", i)
		case u.Param.Def.Op != OpParam:
			return fmt.Errorf("update %d: %s is of op %s, want param", i, ref(u.Param), u.Param.Def.Op)
		case updated[u.Param]:
			return fmt.Errorf("update %d: %s is updated twice", i, ref(u.Param))
		case u.New == nil || !v.defined[u.New]:
			return fmt.Errorf("update of %s: the new value is not a value of the graph", ref(u.Param))
		case !u.Param.Type.Equal(u.New.Type):
			return fmt.Errorf("update of %s, a %s: the new value %s is a %s", ref(u.Param), u.Param.Type, ref(u.New), u.New.Type)
		case u.Param.Spec != u.New.Spec:
			return fmt.Errorf("update of %s, placed %s: the new value %s is placed %s",
				ref(u.Param), v.g.specText(u.Param), ref(u.New), v.g.specText(u.New))
		case u.Param.OnHost() != u.New.OnHost():
			return fmt.Errorf("update of %s, in %s memory: the new value %s is in %s memory", ref(u.Param), spaceOf(u.Param), ref(u.New), spaceOf(u.New))
		}
		updated[u.Param] = true
	}
	return nil
}

// ref names a value in an error: its ID and structural name.
func ref(v *Value) string { return fmt.Sprintf("%%%d %q", v.ID, v.Name()) }

var axisName = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_]*$`)

// validate checks names and sizes of the axes.
func (m Mesh) validate() error {
	if len(m.Axes) > MaxAxes {
		return fmt.Errorf("mesh has %d axes, at most %d are supported", len(m.Axes), MaxAxes)
	}
	seen := map[string]bool{}
	for i, a := range m.Axes {
		switch {
		case !axisName.MatchString(a.Name):
			return fmt.Errorf("mesh axis %d: %q is not a name", i, a.Name)
		case seen[a.Name]:
			return fmt.Errorf("mesh axis %q is there twice", a.Name)
		case a.Size < 1 || a.Size > maxAxisSize:
			return fmt.Errorf("mesh axis %q has size %d, want 1 to %d", a.Name, a.Size, maxAxisSize)
		case a.Chunk < 0 || a.Chunk > maxElems:
			return fmt.Errorf("mesh axis %q has chunk %d", a.Name, a.Chunk)
		case a.Shares != nil && !a.sharesFit():
			return fmt.Errorf("mesh axis %q has shares %d, want %d from 1 to %d without increase, and no chunk", a.Name, a.Shares, max(a.Size, 2), maxAxisSize)
		}
		seen[a.Name] = true
	}
	return nil
}

func (a Axis) sharesFit() bool {
	for i, share := range a.Shares {
		if share < 1 || share > maxAxisSize || i > 0 && share > a.Shares[i-1] {
			return false
		}
	}
	return len(a.Shares) == a.Size && a.Size > 1 && a.Chunk == 0
}

// maxAxisSize bounds an axis so that products over a mesh do not overflow.
const maxAxisSize = 1 << 15

// describe prints placements for errors: [S(0) R].
func describe(ps []Placement) string {
	parts := make([]string, len(ps))
	for i, p := range ps {
		parts[i] = p.String()
	}
	return "[" + strings.Join(parts, " ") + "]"
}
