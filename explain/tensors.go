package explain

import (
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// Tensor is a buffer that outlives the pass that writes it, or several that differ in their block alone.
type Tensor struct {
	Kind   string `json:"kind"`         // one of the Kind constants
	Name   string `json:"name"`         // structural, repeated blocks as *
	Of     string `json:"of,omitempty"` // the weight that a gradient or optimizer state belongs to
	Count  int    `json:"count"`
	DType  string `json:"dtype"`
	Shape  []int  `json:"shape"` // global
	Spec   string `json:"spec"`
	Region string `json:"region"`
	Bytes  int64  `json:"bytes_each"` // on the rank with the largest slice
	Why    string `json:"why"`
}

// The kinds of tensors.
const (
	KindWeight    = "weight"
	KindOptimizer = "optimizer"
	KindGradient  = "gradient"
	KindInput     = "input"
	KindConstant  = "constant"
	KindSaved     = "saved" // activations, from a micro-batch's forward to its backward
	KindOther     = "other"
)

// kinds lists the kinds in the order in which they are shown.
func kinds() []string {
	return []string{KindWeight, KindOptimizer, KindGradient, KindSaved, KindInput, KindConstant, KindOther}
}

// tensors lists the buffers of a stage, except temporary ones. Buffers that differ in their block alone share a row.
func (r *Report) tensors(st *Stage) []Tensor {
	code := r.prog.Stages[st.Index]
	type key struct{ kind, name, of, typ, spec, region, why string }
	at := map[key]int{}
	var rows []Tensor
	var names, owners [][]string
	for _, id := range occupied(code) {
		b := &code.Buffers[id]
		if b.Region == codegen.Temp {
			continue
		}
		v := b.Value
		t := Tensor{
			Kind: r.why.kind(b), Count: 1, DType: v.Type.DType.String(), Shape: append([]int{}, v.Type.Shape...),
			Spec: v.Spec.Format(r.prog.Mesh, len(v.Type.Shape)), Region: b.Region.String(), Bytes: b.Size, Why: r.why.tensor(b),
		}
		owner := ""
		if weight := r.why.owner[v]; weight != nil {
			owner = partition.BaseName(weight.Name())
		}
		k := key{t.Kind, class(v.Name()), class(owner), v.Type.String(), t.Spec, t.Region, t.Why}
		i, seen := at[k]
		if !seen {
			i = len(rows)
			at[k] = i
			rows = append(rows, t)
			names, owners = append(names, nil), append(owners, nil)
		}
		names[i], owners[i] = append(names[i], v.Name()), append(owners[i], owner)
		rows[i].Count = len(names[i])
	}
	for i := range rows {
		if rows[i].Name = st.merged(names[i]); owners[i][0] != "" {
			rows[i].Of = st.merged(owners[i])
		}
	}
	slices.SortStableFunc(rows, func(a, b Tensor) int {
		return slices.Index(kinds(), a.Kind) - slices.Index(kinds(), b.Kind)
	})
	return rows
}

// occupied lists the buffers that have a place in a stage's arena: those that instructions read or write, and leaves.
// A value that was merged into another's buffer leaves its own unused.
func occupied(code *codegen.Stage) []int {
	used := map[int]bool{}
	for _, body := range code.Bodies {
		for _, in := range body.Instrs {
			for _, id := range slices.Concat(in.Args, in.Results) {
				used[id] = true
			}
		}
	}
	var ids []int
	for id := range code.Buffers {
		if b := &code.Buffers[id]; !b.View && (used[id] || b.Value.Def.Op.Class() == ir.Leaf) {
			ids = append(ids, id)
		}
	}
	return ids
}
