package planner

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// A shrunk model is the model that has fewer layers, but for the initial values
// that depend on the number of layers.
func TestShrinkIsTheSmallerModel(t *testing.T) {
	columns := ir.PrintOptions{Columns: []ir.Column{ir.NameColumn, ir.TypeColumn, ir.PhaseColumn}}
	text := func(g *ir.Graph) string {
		var b strings.Builder
		require.NoError(t, g.Fprint(&b, columns))
		return b.String()
	}
	for _, layers := range []int{2, 3, 5} {
		for keep := 1; keep < layers; keep++ {
			g := step(t, tiny(layers), 7)
			before := g.String()
			small, ok := Shrink(g, keep)
			require.True(t, ok)
			require.NoError(t, small.Verify())
			require.Equal(t, text(step(t, tiny(keep), 7)), text(small), "%d of %d", keep, layers)
			require.Equal(t, before, g.String(), "the graph was changed")
		}
	}
}

func TestShrinkOnlyWhatIsAlike(t *testing.T) {
	g := step(t, tiny(3), 7)
	_, ok := Shrink(g, 3)
	require.False(t, ok, "nothing to remove")
	_, ok = Shrink(step(t, tiny(1), 7), 1)
	require.False(t, ok)

	for name, spoil := range map[string]func(n *ir.Node){
		"attribute": func(n *ir.Node) {
			if n.Name == "h.1.mlp/gelu" {
				n.Attr = ir.GELUAttr{Tanh: true}
			}
		},
		"dropout": func(n *ir.Node) {
			if n.Name == "h.2.attn/dropout" {
				n.Attr = ir.DropoutAttr{P: 0.3, Key: "h.2.attn/dropout"}
			}
		},
		"wiring": func(n *ir.Node) {
			if n.Name == "h.2/add" { // past its neighbour
				n.Args[0] = g.Find("embed/dropout").Results[0]
			}
		},
	} {
		g = step(t, tiny(3), 7)
		for _, n := range g.Nodes {
			spoil(n)
		}
		_, ok := Shrink(g, 1)
		require.False(t, ok, name)
		// Such a model is planned as a whole.
		res, err := Search(g, 7, cluster(t, "h100"), Options{PlanNGPUs: 2, TopK: 1})
		require.NoError(t, err)
		require.Equal(t, 1, res.Plan.PP())
		require.Equal(t, 3, res.Plan.Stages[0].Last)
	}
}

// The sum of what each group saves alone is what they save together, because
// modules meet in a replicated residual stream. Only the update phase has a term
// of all groups: the norm of the gradients reduces one scalar for them all.
func TestGroupsAreIndependent(t *testing.T) {
	for _, name := range []string{"cpu", "a100-80g"} {
		model := tiny(1)
		model.NHead, model.NEmbd = 4, 128
		l := layouts{graph: step(t, model, 4), batch: 4, ranks: 2, cluster: cluster(t, name), known: map[int][][]partition.Placement{}}
		none, err := l.phases(nil, 1, 2)
		require.NoError(t, err)
		sum := none
		var all []partition.Placement
		for _, g := range l.groups() {
			best := l.solve(g, 1, 2)
			require.NotEmpty(t, best)
			alone, err := l.phases(best, 1, 2)
			require.NoError(t, err)
			for phase := range sum {
				sum[phase] += alone[phase] - none[phase]
			}
			all = append(all, best...)
		}
		joint, err := l.phases(all, 1, 2)
		require.NoError(t, err)
		require.Equal(t, sum[:ir.Update], joint[:ir.Update], name)
		// Every group alone pays for making the others' terms of the norm partial.
		require.GreaterOrEqual(t, sum[ir.Update], joint[ir.Update], name)
	}
}
