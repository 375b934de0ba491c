package planner

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
)

// TestExchangedWhateverTheSize: the blocks of the position that has most exchange no less, in
// micro-batches of any size, than they are said to, and in one of the whole batch no more.
func TestExchangedWhateverTheSize(t *testing.T) {
	const batch = 97
	c := preset(t, "gpt2-xl")
	c.Float = ir.BF16
	s := newSearcher(step(t, c, batch), batch, cluster(t, "h100"), Options{RuntimeNGPUs: 64})
	for _, o := range []outline{
		{degrees: degrees{plan: 64, dp: 8, cp: 1, tp: 4, pp: 2}, ranks: anywhere}, {degrees: degrees{plan: 64, dp: 4, cp: 1, tp: 16, pp: 1}, ranks: anywhere},
		{degrees: degrees{plan: 64, dp: 1, cp: 1, tp: 1, pp: 64}, ranks: anywhere}, {degrees: degrees{plan: 64, dp: 1, cp: 1, tp: 8, pp: 8}, sharding: sharding{sequence: true}},
	} {
		trunk := s.trunk(o)
		exchange := func(size int) (sum cost.Picoseconds) {
			for i := range trunk.instrs {
				if in := &trunk.instrs[i]; in.part == inBlock && in.Node.Op.Class() == ir.Comm {
					sum += least(trunk.prices, in, trunk.meshOf(size, batch))
				}
			}
			return sum
		}
		blocks := cost.Picoseconds((s.graphs.blocks + o.pp - 1) / o.pp)
		said := s.exchanged(o)
		for _, size := range s.sizes(o) {
			m, last := s.split(o, size)
			real := blocks * (cost.Picoseconds(m-1)*exchange(size) + exchange(last))
			require.LessOrEqual(t, said, real, "%+v, micro-batches of %d", o, size)
		}
		local := (batch + o.dp - 1) / o.dp
		if o.tp > 1 {
			require.InEpsilon(t, float64(blocks*exchange(batch))*float64(local)/batch, float64(said), 1e-6, "%+v", o)
		} else {
			require.Zero(t, said)
		}
	}
}

// TestCertificateOfExchanges: tracts whose micro-batches the search never listed are told of, too.
func TestCertificateOfExchanges(t *testing.T) {
	p := &proven{batch: 32, cluster: cluster(t, "h100")}
	c := preset(t, "gpt2")
	c.Float = ir.BF16
	p.g = step(t, c, p.batch)
	opts := Options{RuntimeNGPUs: 32, Overlap: "off", Offload: "none", Schedule: partition.OneFOneB}
	_, s, err := newSearch(p.g, p.batch, p.cluster, opts, thorough)
	require.NoError(t, err)
	unlisted := 0
	for _, x := range s.tracts {
		if x.first.sizes == nil {
			unlisted++
		}
	}
	require.Positive(t, unlisted)
	p.res, p.cert, err = SearchCertified(p.g, p.batch, p.cluster, opts)
	require.NoError(t, err)
	_, err = p.check(p.copy(t), 20)
	require.NoError(t, err)
	for _, ofParts := range []bool{true, false} { // of sequences, or of whole ones where the batch cannot be shared equally
		cert := p.copy(t)
		i := slices.IndexFunc(cert.Regions, func(r Region) bool {
			return r.ofParts == ofParts && slices.Max(r.pieces) > 1 && slices.Max(r.sizes) > 2
		})
		if i < 0 && !ofParts {
			continue
		}
		cert.Regions[i].ofParts = !ofParts
		_, err = p.check(cert, 0)
		require.ErrorContains(t, err, fmt.Sprintf("has %s=", piecesKey(!ofParts)))
	}
}
