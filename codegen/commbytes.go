package codegen

import "github.com/autopar/autopar/ir"

// CommBytes returns the bytes that a rank receives in one run of a communication instruction (of its part, if
// the instruction makes one of several parts), or for a send the bytes that it sends. It is 0 for anything
// else. It is the exact minimum that any algorithm must receive, also with slices of uneven size:
//
//   - all_gather, all_to_all: the result, without what the rank held already;
//   - reduce_scatter: the rank's share of the result, from each other member;
//   - all_reduce: a reduce_scatter and an all_gather of nearly equal shares, in total 2(n-1)/n of the value
//     where n members divide it evenly;
//   - send, recv, fetch, stash: the value.
func (p *Program) CommBytes(s *Schedule, in *Instr, t Task) int64 {
	n, at := in.Node, p.At(s, t)
	out := in.Slab(p.Mesh, n.Results[0], at)
	elems := out.Elems()
	if attr, ok := n.Attr.(ir.CommAttr); ok {
		axis := p.Mesh.Axis(attr.Axis)
		members := p.Mesh.Axes[axis].Size
		switch n.Op {
		case ir.OpAllGather, ir.OpAllToAll:
			elems -= inCommon(out, in.Slab(p.Mesh, n.Args[0], at))
		case ir.OpReduceScatter:
			elems *= int64(members - 1)
		case ir.OpAllReduce:
			share := ReduceShare(int(elems), members, at[axis])
			elems += int64((members - 2) * share.Len)
		default:
			return 0
		}
	} else if n.Op != ir.OpSend && n.Op != ir.OpRecv && !HostCopy(n.Op) {
		return 0
	}
	return elems * n.Results[0].Type.DType.Size()
}

// ReduceShare returns which elements of an all_reduce the member at a position of the group reduces for all.
func ReduceShare(elems, members, position int) ir.Span {
	return ir.Axis{Size: members}.Cut(elems, position)
}

// inCommon returns the number of elements that two parts of one value have in common.
func inCommon(a, b ir.Slab) int64 {
	n := int64(1)
	for d := range a.Local {
		lo := max(a.Offset[d], b.Offset[d])
		hi := min(a.Offset[d]+a.Local[d], b.Offset[d]+b.Local[d])
		n *= int64(max(0, hi-lo))
	}
	return n
}
