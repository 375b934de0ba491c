package planner

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/planner/cost"
)

// TestTrunksTellWhatPartsTake: the program of a trunk tells what the blocks of a forward pass take in any number of parts, as
// programs in so many do, and so the least of all.
func TestTrunksTellWhatPartsTake(t *testing.T) {
	t.Parallel()
	c := preset(t, "gpt2-xl")
	c.Float = ir.BF16
	const devices, batch = 4, 16
	g := step(t, c, batch)
	faster := 0
	for _, slower := range []float64{1, 8} { // links, so that products or what is exchanged take longer
		h100 := *cluster(t, "h100")
		h100.IntraNode.Bandwidth /= slower
		opts, err := Options{RuntimeNGPUs: devices}.on(&h100, batch)
		require.NoError(t, err)
		s := newSearcher(g, batch, &h100, opts)
		for _, sequence := range []bool{false, true} {
			o := outline{degrees: degrees{plan: devices, dp: 1, cp: 1, tp: devices, pp: 1}, sharding: sharding{sequence: sequence}, chunks: 1}
			require.Equal(t, anyPieces, s.pieces(o))
			for _, size := range []int{1, 2, 3, 4, 5, 8} {
				forward := func(w *work, pieces int) cost.Picoseconds {
					return w.at(sizeOn{size: size, pieces: pieces, ofParts: pieces > 0 && s.ofParts(o)}, batch)[inBlock].forward
				}
				least := never
				for _, o.pieces = range []int{0, 2, 3, 4} {
					plan, err := s.template(o)
					require.NoError(t, err)
					inner, err := s.inner(plan, false)
					require.NoError(t, err)
					of := forward(s.work(inner, o, false), 0)
					require.Equal(t, of, forward(s.trunk(o), o.pieces), "%d parts of %d sequences, sequence parallelism %v", o.pieces, size, sequence)
					if o.pieces != 3 { // which is not searched
						least = min(least, of)
					}
				}
				o.pieces = anyPieces
				require.Equal(t, least, forward(s.trunk(o), anyPieces), "%d sequences, sequence parallelism %v", size, sequence)
				if least < forward(s.trunk(o), 0) {
					faster++
				}
			}
		}
	}
	require.Positive(t, faster)
}
