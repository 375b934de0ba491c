package explain

import (
	"io"

	"github.com/autopar/autopar/ir"
)

// Answer is why a tensor or op lies as it does: what [Report.Why] says, for scripts.
type Answer struct {
	Name  string   `json:"name"`
	Also  []string `json:"also,omitempty"` // explained alike
	Op    string   `json:"op"`
	Stage int      `json:"stage"` // of the plan: of chunks of ranks each has its own
	Phase string   `json:"phase"`
	// Results are where what it makes lies, Operands where what it reads must lie.
	Results  []Lies `json:"results"`
	Operands []Lies `json:"operands,omitempty"`
	// Reason is why a parameter, state or input lies so, or which placement of the plan
	// holds for the result of an op.
	Reason string `json:"reason,omitempty"`
	// Rules are what each axis of the mesh does to an op.
	Rules []AxisRule `json:"rules,omitempty"`
	// Choices are the rules that could split the op, or the op that reads a weight.
	Choices []Choice `json:"choices,omitempty"`
}

// Lies is where a value lies.
type Lies struct {
	Name  string `json:"name"`
	Type  string `json:"type"`
	Spec  string `json:"spec"`
	Bytes int64  `json:"bytes"` // on the first rank of its stage, in one micro-batch
	// Moved is what brings it there from where it was made.
	Moved []string `json:"moved,omitempty"`
}

// AxisRule is what an axis does to an op.
type AxisRule struct {
	Axis string `json:"axis"`
	Rule string `json:"rule"`
}

// WhyJSON answers as [Report.Why] does, as a JSON list with an [Answer] for each
// tensor or op that the name means.
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
			a.Rules = append(a.Rules, AxisRule{r.prog.Mesh.Axes[rule.axis].Name, rule.describe(r.prog.Mesh, sig)})
		}
		a.Choices = r.choices(n)
	}
	for _, v := range n.Args {
		a.Operands = append(a.Operands, r.lies(v))
	}
	return a
}

// lies says where a value lies, and how it came there.
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
