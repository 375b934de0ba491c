package measured

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestChoose: a row that does not state its micro-batch and recomputation is predicted as the fastest plan that fits, and never as
// one that contradicts the row.
func TestChoose(t *testing.T) {
	open := strings.Replace(strings.Replace(gptRow, "0,1,1,2,16,none,", "0,0,0,,16,unstated,", 1), ",1,1,2,16,none,", ",1,1,,16,unstated,", 1)
	rows := read(t, header+open+gptRow[:1]+"x"+gptRow[2:])
	_, err := rows[0].plan()
	require.ErrorContains(t, err, "micro_batch is not stated")
	all := rows[0].completions()
	require.Len(t, all, 4*3, "1 to 8 sequences, three ways to recompute")
	_, skipped := Evaluate(rows[:1], nil)
	require.Len(t, skipped, 1)
	chosen, left := Choose(skipped)
	require.Empty(t, left)
	require.Len(t, chosen, 1)
	for _, r := range all {
		o, _ := Evaluate([]Row{r}, nil)
		require.Len(t, o, 1)
		if o[0].PredictedFits {
			require.LessOrEqual(t, chosen[0].PredictedSeconds, o[0].PredictedSeconds)
		}
	}
	require.Equal(t, "none", chosen[0].Recompute, "there is room")
	require.Equal(t, []Row{rows[1]}, rows[1].completions(), "it leaves nothing open")

	r := rows[0]
	r.Layers, r.PP, r.DP, r.Schedule = 12, 2, 1, "unstated"
	chunks := map[int]bool{}
	for _, c := range r.completions() {
		chunks[c.VirtualStages] = true
	}
	require.Equal(t, map[int]bool{1: true, 2: true, 3: true, 6: true}, chunks, "of six blocks a rank")

	none, left := Choose([]Skipped{{Row: Row{ID: "w"}, Reason: "without a time"}})
	require.Empty(t, none)
	require.Len(t, left, 1)
}
