package explain

import (
	"io"

	"github.com/autopar/autopar/ir"
)

// Answer is what [Report.Why] says about a tensor or op, for scripts.
type Answer struct {
	Name  string   `json:"name"`
	Also  []string `json:"also,omitempty"` // other tensors or ops with the same answer
	Op    string   `json:"op"`
	Stage int      `json:"stage"` // of the plan: each chunk of a rank is a stage of its own
	Phase string   `json:"phase"`
	// Results say where the results of the op lie, Operands where it needs its operands.
	Results  []Lies `json:"results"`
	Operands []Lies `json:"operands,omitempty"`
	// Reason says why a parameter, optimizer state or input lies as it does, or which placement of the plan applies to
	// the result of an op.
	Reason string `json:"reason,omitempty"`
	// Rules say how each axis of the mesh splits an op.
	Rules []AxisRule `json:"rules,omitempty"`
	// Choices are all rules of the op, or of the ops that read a weight.
	Choices []Choice `json:"choices,omitempty"`
}

// Lies says where a value lies.
type Lies struct {
	Name  string `json:"name"`
	Type  string `json:"type"`
	Spec  string `json:"spec"`
	Bytes int64  `json:"bytes"` // on the first rank of its stage, in one micro-batch
	// Moved lists the collectives that bring it there from where it was made, in order.
	Moved []string `json:"moved,omitempty"`
}

// AxisRule says how an axis splits an op.
type AxisRule struct {
	Axis string `json:"axis"`
	Rule string `json:"rule"`
}

// WhyJSON writes what [Report.Why] says as a JSON list with an [Answer] for each tensor or op that the name means.
func (r *Report) WhyJSON(w io.Writer, name string) error {
	nodes, err := r.find(name)
	if err != nil {
		return err
	}
	answers := []Answer{}
	for _, g := range r.alike(nodes) {
		answers = append(answers, r.answer(g))
	}
	return writeJSON(w, answers)
}

func (r *Report) answer(g *likeNodes) Answer {
	n := g.node
	a := Answer{Name: n.Name, Also: g.also, Op: n.Op.String(), Stage: n.Stage, Phase: n.Phase.String()}
	for _, v := range n.Results {
		a.Results = append(a.Results, r.lies(v))
	}
	switch n.Op.Class() {
	case ir.Leaf:
		a.Reason = r.why.leaf(n.Results[0])
		if attr, ok := n.Attr.(ir.ParamAttr); ok && !attr.State {
			for _, m := range r.why.readers[n.Results[0]] {
				if m.Phase == ir.Forward && m.Op.Class() == ir.Compute {
					a.Choices = append(a.Choices, r.choices(m)...)
				}
			}
		}
		return a
	case ir.Compute:
		a.Reason = r.why.placedBy(n.Results[0])
		sig := ir.SignatureOf(n)
		for _, rule := range rulesOf(r.prog.Mesh, n, sig) {
			a.Rules = append(a.Rules, AxisRule{r.prog.Mesh.Axes[rule.axis].Name, rule.describe(r.prog.Mesh, n, sig)})
		}
		a.Choices = r.choices(n)
	}
	for _, v := range n.Args {
		a.Operands = append(a.Operands, r.lies(v))
	}
	return a
}

// lies says where a value lies, and which collectives brought it there.
func (r *Report) lies(v *ir.Value) Lies {
	s := r.firstRank(v.Def.Stage)
	slab := r.prog.Slab(v, s.Coord)
	out := Lies{Name: v.Name(), Type: v.Type.String(), Spec: r.spec(v), Bytes: slab.Elems() * v.Type.DType.Size()}
	if v.Def.Op == ir.OpSend || v.Def.Op == ir.OpRecv {
		return out
	}
	for was := origin(v); v != was; v = v.Def.Args[0] {
		out.Moved = append([]string{r.commText(v.Def)}, out.Moved...)
	}
	return out
}
