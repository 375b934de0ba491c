package cost

import (
	"github.com/autopar/autopar/ir"
)

// Group is a set of ranks that communicate: Size of them on Nodes nodes, at most
// PerNode on one.
type Group struct{ Size, Nodes, PerNode int }

// Collective is the time of a collective over a group. bytes is the size of the
// whole tensor (before a scatter, after a gather), for all_to_all of one rank's
// part.
//
// Inside a node it is a ring. Over several nodes as many rings run as a node has
// ranks, each over its own network card; the slower of the two kinds of links sets
// the rate, and latencies add up as in rings of rings (PLANNING.md 2.5).
func (m *Model) Collective(op ir.Op, bytes int64, g Group) Picoseconds {
	if g.Size <= 1 {
		return 0
	}
	size, n, per, q := float64(bytes), float64(g.Size), float64(g.PerNode), float64(g.Nodes)
	if op == ir.OpAllToAll {
		inside, outside := per-1, n-per
		t := float64(inside*m.intra.Latency) + inside/n*size/m.intra.Bandwidth
		if g.Nodes > 1 {
			t += float64(outside*m.inter.Latency) + outside/n*size/m.inter.Bandwidth
		}
		return picoseconds(t + m.collective)
	}
	latency, transfer := float64((per-1)*m.intra.Latency), 0.0
	if per > 1 {
		transfer = (per - 1) / per * size / m.intra.among(per).Bandwidth
	}
	if g.Nodes > 1 {
		latency += float64((q - 1) * m.inter.Latency)
		transfer = max(transfer, (q-1)/q*size/(per*m.inter.Bandwidth))
	}
	t := latency + transfer
	if op == ir.OpAllReduce { // reduce-scatter, then all-gather
		t *= 2
	} else {
		t += float64(n * m.software.Gather)
	}
	return picoseconds(t + m.collective)
}

// HostCopy is the time to copy bytes between a device and the memory of its host.
func (m *Model) HostCopy(bytes int64) Picoseconds {
	if m.host.Bandwidth == 0 {
		return longest
	}
	return picoseconds(m.host.Latency + float64(bytes)/m.host.Bandwidth)
}

// Transfer is the time to send bytes to a rank of another stage; crossing says
// that it is on another node.
func (m *Model) Transfer(bytes int64, crossing bool) Picoseconds {
	l := m.intra.among(2)
	if crossing {
		l = m.inter
	}
	return picoseconds(l.Latency + float64(bytes)/l.Bandwidth)
}
