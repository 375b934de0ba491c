package ir_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/irtest"
)

// TestScripts runs the golden scripts. Commands:
//
//	parse show=a,b   print the graph with these columns (all without show), or the error
//	verify           what Verify says of the parsed graph
//	signature        dimensions, rules and result types of the last node
func TestScripts(t *testing.T) {
	irtest.RunScripts(t, "testdata/*.txt", map[string]irtest.Command{
		"parse":     parseCommand,
		"verify":    verifyCommand,
		"signature": signatureCommand,
	})
}

func parseCommand(t *testing.T, c irtest.Case) string {
	g, err := ir.Parse("input", c.Input)
	if err != nil {
		return err.Error()
	}
	var opts ir.PrintOptions
	if c.Has("show") {
		for _, name := range strings.Split(c.Args["show"], ",") {
			col := slices.Index([]string{"name", "attr", "type", "spec", "phase", "pos"}, name)
			require.GreaterOrEqual(t, col, 0, "%s: unknown column %q", c.Where, name)
			opts.Columns = append(opts.Columns, ir.Column(col))
		}
	}
	var b strings.Builder
	require.NoError(t, g.Fprint(&b, opts))
	back, err := ir.Parse("printed", g.String())
	require.NoError(t, err, c.Where)
	require.Empty(t, irtest.Diff(g, back), c.Where)
	return b.String()
}

func verifyCommand(t *testing.T, c irtest.Case) string {
	g, err := ir.Parse("input", c.Input)
	require.NoError(t, err, c.Where)
	if err := g.Verify(); err != nil {
		return err.Error()
	}
	return "ok"
}

func signatureCommand(t *testing.T, c irtest.Case) string {
	g, err := ir.Parse("input", c.Input)
	if err != nil {
		return err.Error()
	}
	n := g.Nodes[len(g.Nodes)-1]
	sig := ir.SignatureOf(n)
	var b strings.Builder
	for _, r := range n.Results {
		fmt.Fprintf(&b, "%s ", r.Type)
	}
	fmt.Fprintf(&b, "flops=%g\n", sig.FLOPs(shapes(n.Args), shapes(n.Results)))
	for rule := ir.PassPartial; rule < len(sig.Dims); rule++ {
		name := map[int]string{ir.PassPartial: "partial", ir.ReplicateAll: "replicate"}[rule]
		if rule >= 0 {
			name = fmt.Sprintf("%s=%d", sig.Dims[rule].Name, sig.Dims[rule].Size)
		}
		args, results, ok := sig.Rule(rule)
		switch {
		case ok:
			fmt.Fprintf(&b, "  %-9s %v -> %v\n", name, args, results)
		case rule >= 0:
			fmt.Fprintf(&b, "  %-9s frozen\n", name)
		}
	}
	return b.String()
}

func shapes(values []*ir.Value) [][]int {
	var out [][]int
	for _, v := range values {
		out = append(out, v.Type.Shape)
	}
	return out
}

// TestRoundTrip prints and parses random graphs, whole and partitioned, as text
// and as JSON.
func TestRoundTrip(t *testing.T) {
	mesh := ir.Mesh{Axes: []ir.Axis{{Name: "dp", Size: 2}, {Name: "tp", Size: 4}}}
	for seed := range uint64(15) {
		rng := irtest.Rand(t, seed)
		g := irtest.RandomGraph(rng, 10, true).Graph
		for i, n := range g.Nodes {
			n.Stage = i % 3
			if i%2 == 0 {
				n.Pos = fmt.Sprintf("a b/gpt.go:%d", i)
			}
		}
		checkRoundTrip(t, g)
		checkRoundTrip(t, irtest.RandomPartition(rng, g, mesh))
		shuffleIDs(g, rng.Perm)
		checkRoundTrip(t, g)
	}
}

// shuffleIDs gives values other IDs, out of order and with gaps, as rewrites do.
func shuffleIDs(g *ir.Graph, perm func(int) []int) {
	ids := perm(10 * len(g.Nodes))
	for _, n := range g.Nodes {
		for _, r := range n.Results {
			r.ID, ids = ids[0], ids[1:]
		}
	}
}

func checkRoundTrip(t *testing.T, g *ir.Graph) {
	t.Helper()
	require.NoError(t, g.Verify())
	back, err := ir.Parse("text", g.String())
	require.NoError(t, err)
	require.Empty(t, irtest.Diff(g, back))
	require.NoError(t, back.Verify())

	data, err := g.MarshalJSON()
	require.NoError(t, err)
	var decoded ir.Graph
	require.NoError(t, decoded.UnmarshalJSON(data))
	require.Empty(t, irtest.Diff(g, &decoded))
}

// TestParsedGraphGrows: nodes added to a parsed graph get IDs and names of their
// own.
func TestParsedGraphGrows(t *testing.T) {
	g, err := ir.Parse("text", "graph g\n%7 = input \"x\" f32[3]\n%3 = sum %7 \"s\"")
	require.NoError(t, err)
	n, err := g.Add(ir.OpSum, nil, "s", ir.Forward, g.Nodes[0].Results[0])
	require.NoError(t, err)
	require.Equal(t, 8, n.Results[0].ID)
	require.Equal(t, "s_1", n.Name)
	require.NoError(t, g.Verify())
}

// TestPrintBrokenGraph: printing is for finding out what is wrong, so it must
// not fail on a graph that Verify refuses.
func TestPrintBrokenGraph(t *testing.T) {
	g := ir.NewGraph("broken graph")
	g.Mesh.Axes = []ir.Axis{{Name: "dp", Size: 2}}
	x, err := g.Leaf(ir.OpInput, "x", ir.Type{Shape: []int{3}}, nil)
	require.NoError(t, err)
	x.Spec = ir.ShardSpec{ir.ShardOn(5), ir.PartialOf(ir.Max)}
	x.Def.Phase = 9
	x.Def.Attr = ir.ParamAttr{Init: 77}
	g.Nodes = append(g.Nodes, &ir.Node{Op: 200, Args: []*ir.Value{nil}, Results: []*ir.Value{{ID: 1, Type: ir.Type{DType: 9}}}})
	g.Outputs = append(g.Outputs, ir.Output{Name: "y"})
	require.Error(t, g.Verify())
	text := g.String()
	require.Contains(t, text, "[S(5) P(max) R R R]")
	require.Contains(t, text, "init=77")
	require.Contains(t, text, `output "y" %nil`)
}

func TestPrintIsStable(t *testing.T) {
	a := irtest.RandomGraph(irtest.Rand(t, 1), 30, true).Graph.String()
	b := irtest.RandomGraph(irtest.Rand(t, 1), 30, true).Graph.String()
	require.Equal(t, a, b)
}

func FuzzParse(f *testing.F) {
	f.Add("graph g\n  %0 = input \"x\" f32[7,33]\n  %1 = sum_to %0 {keep=1} f32[33] fwd stage=2 // gpt.go:4\n  output \"y\" %1\n")
	f.Add("graph \"a b\" mesh(dp=2, mb=3/2t)\n%0 = param {std=0.02 decay} i32[5] [dp.mb]\nupdate %0 <- %0")
	f.Add("graph g mesh(tp=4)\n%0 = input f32[3,5] [_,tp]\n%1 = all_gather %0 {axis=tp dim=1} [_,_]\n%2, %3, %4 = layer_norm %0 %0 {eps=1e-5 bias}")
	f.Add("graph g\n%0 = input f32[2,5,3,3,2]\n%1 = input \"s\" i32[]\n%2, %3 = attention %0 %1 %1 {p=0.1 key=\"h/0 \\\"\"}")
	for seed := range uint64(3) {
		f.Add(irtest.RandomGraph(irtest.Rand(f, seed), 5, true).Graph.String())
	}
	f.Fuzz(func(t *testing.T, text string) {
		g, err := ir.Parse("fuzz", text)
		if err != nil {
			return
		}
		back, err := ir.Parse("printed", g.String())
		require.NoError(t, err, "%s", g)
		require.Empty(t, irtest.Diff(g, back))
		if g.Verify() != nil {
			return
		}
		data, err := g.MarshalJSON()
		require.NoError(t, err)
		var decoded ir.Graph
		require.NoError(t, decoded.UnmarshalJSON(data))
		require.Empty(t, irtest.Diff(g, &decoded))
	})
}

func FuzzUnmarshalJSON(f *testing.F) {
	for seed := range uint64(3) {
		rng := irtest.Rand(f, seed)
		g := irtest.RandomGraph(rng, 3, true).Graph
		data, err := irtest.RandomPartition(rng, g, ir.Mesh{Axes: []ir.Axis{{Name: "tp", Size: 3}}}).MarshalJSON()
		require.NoError(f, err)
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var g ir.Graph
		if g.UnmarshalJSON(data) == nil {
			checkRoundTrip(t, &g)
		}
	})
}
