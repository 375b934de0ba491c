package irtest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/ir/interp"
	"github.com/autopar/autopar/ir/irtest"
)

func testMeshes() []ir.Mesh {
	return []ir.Mesh{
		{Axes: []ir.Axis{{Name: "dp", Size: 2}}},
		{Axes: []ir.Axis{{Name: "dp", Size: 2}, {Name: "tp", Size: 3}}},
		{Axes: []ir.Axis{{Name: "a", Size: 2}, {Name: "b", Size: 1}, {Name: "c", Size: 4}}},
	}
}

// TestRandomGraphCoversAllOps also checks that every random value is finite.
func TestRandomGraphCoversAllOps(t *testing.T) {
	seen := map[ir.Op]bool{}
	for seed := range uint64(40) {
		s := irtest.RandomGraph(irtest.Rand(t, seed), 12, true)
		_, err := interp.Run(s.Graph, s.Feeds, interp.Options{Trace: func(v *ir.Value, x interp.Tensor) {
			seen[v.Def.Op] = true
			for _, e := range x.F {
				require.False(t, e != e || e-e != 0, "%s is %v", v.Name(), e)
			}
		}})
		require.NoError(t, err)
	}
	for _, op := range ir.Ops() {
		if op.Class() == ir.Compute {
			require.True(t, seen[op], "no random graph has a %s", op)
		}
	}
}

// TestRandomPartitionKeepsValues checks that a partition computes the same
// outputs and state, with every communication op among them.
func TestRandomPartitionKeepsValues(t *testing.T) {
	seen := map[ir.Op]bool{}
	for seed := range uint64(30) {
		rng := irtest.Rand(t, seed)
		s := irtest.RandomGraph(rng, 8, true)
		want, err := interp.Run(s.Graph, s.Feeds, interp.Options{})
		require.NoError(t, err)
		for _, mesh := range testMeshes() {
			p := irtest.RandomPartition(rng, s.Graph, mesh)
			got, err := interp.Run(p, s.Feeds, interp.Options{})
			require.NoError(t, err)
			require.Equal(t, want, got)
			for _, n := range p.Nodes {
				seen[n.Op] = true
			}
		}
	}
	for _, op := range []ir.Op{ir.OpAllReduce, ir.OpAllGather, ir.OpReduceScatter, ir.OpAllToAll, ir.OpSlice, ir.OpToPartial} {
		require.True(t, seen[op], "no random partition has a %s", op)
	}
}

func TestRandomSpecsFitTheirValues(t *testing.T) {
	rng := irtest.Rand(t, 1)
	s := irtest.RandomGraph(rng, 20, false)
	mesh := testMeshes()[1]
	for v, spec := range irtest.RandomSpecs(rng, s.Graph, mesh) {
		text := spec.Format(mesh, len(v.Type.Shape))
		back, rank, err := ir.ParseSpec(mesh, text)
		require.NoError(t, err)
		require.Equal(t, spec, back)
		require.Equal(t, len(v.Type.Shape), rank)
	}
}

// TestSameSeedSameGraph: tests name a seed to show a failure again.
func TestSameSeedSameGraph(t *testing.T) {
	a := irtest.RandomGraph(irtest.Rand(t, 7), 20, true)
	b := irtest.RandomGraph(irtest.Rand(t, 7), 20, true)
	require.Empty(t, irtest.Diff(a.Graph, b.Graph))
	require.Equal(t, a.Feeds, b.Feeds)
	c := irtest.RandomGraph(irtest.Rand(t, 8), 20, true)
	require.NotEmpty(t, irtest.Diff(a.Graph, c.Graph))
}

func TestRunScripts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.txt")
	script := "# echo\necho k=v flag\none\ntwo\n----\none\ntwo\nv\n\n\necho\n----\n"
	require.NoError(t, os.WriteFile(path, []byte(script), 0o644))
	cases := 0
	irtest.RunScripts(t, path, map[string]irtest.Command{"echo": func(t *testing.T, c irtest.Case) string {
		cases++
		require.Equal(t, c.Has("flag"), c.Has("k"))
		if v := c.Args["k"]; v != "" {
			return c.Input + v
		}
		return c.Input
	}})
	require.Equal(t, 2, cases)
}
