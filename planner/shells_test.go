package planner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// boundsPutOff holds what is asked of a pipeline before more than one program of its blocks is compiled to the program of a plan and
// its time: what stages have whatever is recomputed, and what a step takes at least.
func boundsPutOff(t *testing.T, s *searcher, o outline, b int, schedule partition.Schedule, prog *codegen.Program, cut []partition.Stage, time cost.Picoseconds, context string) {
	few, err := s.skeleton(o)
	require.NoError(t, err)
	few.most = kept
	c := &cutter{search: s, pipe: openPipeline(few, b, schedule)}
	require.True(t, o.replicate != "" || c.shelled())
	p := c.pipe
	p.stages = few.times(b, schedule)
	if c.chunks() == 1 && schedule != partition.ZeroBubble {
		require.LessOrEqual(t, p.leastKept(), time, "%s: time without recomputation", context)
	}
	p.memory = c.shells()
	var bare []partition.Stage // shells have the least with any recomputation
	for _, st := range cut {
		bare = append(bare, partition.Stage{First: st.First, Last: st.Last})
	}
	for at, st := range prog.Stages {
		shell := int64(0)
		if c.chunks() > 1 {
			shell = p.interleavedPeak(bare, at)
		} else {
			shell = p.memory[at].least(cut[at].Last-cut[at].First, p.room[at])
		}
		require.LessOrEqual(t, shell, st.Arena(), "%s: shell of position %d", context, at)
	}
}
