package planner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
)

// TestSketchesKeepNoMoreThanPlansNeed: each bound of what the fullest rank needs is at most the one that follows it, up to that of
// laid-out stages, which TestCostIsSimulation holds to plans: of an outline with one micro-batch in flight, of sizes of them, of
// one program, and of all.
func TestSketchesKeepNoMoreThanPlansNeed(t *testing.T) {
	const devices = 4
	for name, x := range map[string]struct{ layers, width, tokens, batch int }{
		"activations": {1, 12, 96, 4},
		"parameters":  {4, 48, 4, 4},
	} {
		t.Run(name, func(t *testing.T) {
			model := tiny(x.layers)
			model.NEmbd, model.BlockSize, model.VocabSize, model.Float, model.Dropout = x.width, x.tokens, 8, ir.BF16, 0
			h100 := cluster(t, "h100")
			opts, err := Options{RuntimeNGPUs: devices}.on(h100, x.batch)
			require.NoError(t, err)
			s := newSearcher(step(t, model, x.batch), x.batch, h100, opts)
			require.NoError(t, s.outlines())
			bounded := 0
			for _, p := range s.unopened() {
				o := p.outline.whole()
				outline := s.leastKept(o)
				for _, b := range s.unbounded(o) {
					one, keeps := s.keepsOfOne(o, b.size, b.schedule), s.keeps(o, b.size, b.schedule)
					require.LessOrEqual(t, outline, one, "%+v", o)
					require.LessOrEqual(t, one, keeps, "%+v, micro-batches of %d under %s", o, b.size, b.schedule)
					k := &sketch{pending: p, size: b.size}
					if !s.sketchable(k) {
						continue
					}
					lasts := k.skel.lasts(b.size)
					k.skel.upTo(full)
					all := &lean{pipeline: newPipeline(k.skel, k.skel.memoryOf(b.size), b.size, b.schedule), recompute: RecomputeSearched, opts: &s.opts}
					needs := all.bound()
					require.LessOrEqual(t, keeps, needs, "%+v, micro-batches of %d under %s", o, b.size, b.schedule)
					require.LessOrEqual(t, lasts, needs, "%+v, micro-batches of %d under %s", o, b.size, b.schedule)
					bounded++
				}
			}
			require.Greater(t, bounded, 100)
		})
	}
}
