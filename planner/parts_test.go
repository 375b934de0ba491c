package planner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
)

// TestSequencesOfParts: a sequence that is several rows of the batch is as long as all of them, and attention is cut between
// sequences.
func TestSequencesOfParts(t *testing.T) {
	g := ir.NewGraph("attention")
	leaf := func(d ir.DType, shape ...int) *ir.Value {
		v, err := g.Leaf(ir.OpInput, "x", ir.Type{DType: d, Shape: shape}, nil)
		require.NoError(t, err)
		return v
	}
	number := leaf(ir.I32)
	_, err := g.Add(ir.OpAttention, ir.DropoutAttr{Parts: 4}, "attention", ir.Forward, leaf(ir.F32, 12, 16, 7, 6, 8), number, number)
	require.NoError(t, err)
	require.Equal(t, 64, sequenceTokens(g))
	require.Equal(t, 3, fewestHeads(g), "sequences, of which there are fewer than heads or groups")
}
