package planner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/models/gpt"
)

// A table of fewer words than ranks is cut by columns. Without learned positions its rows are gathered right before the
// first block reads them, once, not by every block.
func TestColumnsOfATableAreGatheredOnce(t *testing.T) {
	model := tiny(4)
	model.NHead, model.NEmbd, model.VocabSize, model.Position = 6, 36, 3, gpt.RoPE
	g, c := step(t, model, 4), cluster(t, "cpu")
	_, proof, err := SearchCertified(g, 4, c, Options{RuntimeNGPUs: 6, DP: 1, TP: 6, PP: 1, TPRows: 1, SequenceParallel: "off"})
	require.NoError(t, err)
	_, err = Certify(g, 4, c, nil, proof, 20, 1) // prices whole programs
	require.NoError(t, err)
}
