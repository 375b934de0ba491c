package planner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/partition"
)

// boundsPutOff holds what is asked of a pipeline before more than one program of its blocks is compiled to the program of the plan and
// its time: what stages have whatever is recomputed, and what a step takes at least.
func (c *costCase) boundsPutOff(t *testing.T) {
	few, err := c.s.skeleton(c.outline)
	require.NoError(t, err)
	few.most = kept
	x := &cutter{search: c.s, pipe: openPipeline(few, c.b, c.schedule)}
	require.True(t, c.replicate != "" || x.shelled())
	p := x.pipe
	p.stages = few.times(c.b, c.schedule)
	if c.chunks == 1 {
		require.LessOrEqual(t, p.leastKept(), c.time, "%s: time without recomputation", c)
	}
	p.memory = x.shells()
	var bare []partition.Stage // shells have the least with any recomputation
	for _, st := range c.cut {
		bare = append(bare, partition.Stage{First: st.First, Last: st.Last})
	}
	for at, st := range c.prog.Stages {
		shell := int64(0)
		if c.chunks > 1 {
			shell = p.interleavedPeak(bare, at)
		} else {
			shell = p.memory[at].least(c.cut[at].Last-c.cut[at].First, p.room[at])
		}
		require.LessOrEqual(t, shell, st.Arena(), "%s: shell of position %d", c, at)
		if c.chunks == 1 {
			limit, stage := c.s.limit, c.cut[at]
			c.s.limit = 2*st.Arena() - 1
			require.False(t, x.roomy(tried{at, stage.Last - stage.First, recomputationOf(stage)}), "%s: room at position %d", c, at)
			c.s.limit = limit
		}
	}
}
