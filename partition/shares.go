package partition

import (
	"cmp"
	"slices"
)

// A plan may give data-parallel ranks different shares of the batch. Axes of a mesh are cut into parts of which
// none is larger than the one before, so the mesh numbers data-parallel ranks by share.

// byShare returns the data-parallel ranks in the order in which the mesh has them: by share, the largest first.
// It is nil if the shares are equal.
func (p *Plan) byShare() []int {
	if p.BatchShares == nil {
		return nil
	}
	order := make([]int, len(p.BatchShares))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(p.BatchShares[b], p.BatchShares[a]) })
	return order
}

// sharesInOrder returns the shares in the order of the mesh, nil if they are equal.
func (p *Plan) sharesInOrder() []int {
	shares := slices.Clone(p.BatchShares)
	slices.SortFunc(shares, func(a, b int) int { return cmp.Compare(b, a) })
	return shares
}

// Even returns the plan with equal shares of the batch. Its ranks lie where those of the plan do.
func (p *Plan) Even() *Plan {
	if p.BatchShares == nil {
		return p
	}
	even := *p
	even.BatchShares = nil
	return &even
}

// Sequences returns how many sequences of a batch each data-parallel rank has.
func (p *Plan) Sequences(batch int) []int {
	all := make([]int, p.DataParallel())
	mesh, order := p.Mesh(batch), p.byShare()
	for i := range all {
		rank := i
		if order != nil {
			rank = order[i]
		}
		all[rank] = sequences(mesh, batch, mesh.Coord(p.Device(i, 0)))
	}
	return all
}

// FewestSequences is how many sequences a data-parallel rank needs: one, or one for each of its tensor-parallel
// ranks if these share the batch.
func (p *Plan) FewestSequences() int {
	if p.BatchParallel {
		return p.TP
	}
	return 1
}

// validateShares checks that every data-parallel rank has a share, and a sequence.
func (p *Plan) validateShares(batch int) error {
	if p.BatchShares == nil {
		return nil
	}
	const most = 1 << 15
	dp := p.DataParallel()
	if n := len(p.BatchShares); n != dp || dp == 1 {
		return planErrorf("batch_shares", "are %d, there are %d data-parallel ranks; want a share for each of at least 2, or none", n, dp)
	}
	for i, share := range p.BatchShares {
		if share < 1 || share > most {
			return planErrorf("batch_shares", "of data-parallel rank %d is %d, want 1 to %d", i, share, most)
		}
	}
	if p.Copies() > 1 {
		return planErrorf("batch_shares", "are beside zero_group %d, which cuts the batch by groups; want one of them", p.ZeROGroup)
	}
	least := p.FewestSequences()
	for rank, n := range p.Sequences(batch) {
		if n < least {
			return planErrorf("batch_shares", "leave %d of %d sequences to data-parallel rank %d, want at least %d", n, batch, rank, least)
		}
	}
	return nil
}
