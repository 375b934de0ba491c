package ir

import (
	"fmt"
	"slices"
	"strings"
)

// specs checks the placements of one node of a partitioned graph.
func (v *verifier) specs(n *Node) error {
	for i, r := range n.Results {
		if err := v.g.Mesh.checkSpec(r); err != nil {
			return fmt.Errorf("result %d (%%%d): %w", i, r.ID, err)
		}
	}
	if n.Phase == Update && n.Op != OpAccumulate {
		if err := v.oncePerStep(n); err != nil {
			return err
		}
	}
	if err := v.spaces(n); err != nil {
		return err
	}
	switch n.Op.Class() {
	case Leaf:
		return v.leafSpec(n)
	case Comm:
		return v.commSpecs(n)
	}
	return v.computeSpecs(n)
}

// checkSpec checks that a value's spec is possible on the mesh, whatever op made it.
func (m Mesh) checkSpec(r *Value) error {
	local := slices.Clone(r.Type.Shape)
	reductions := map[Reduction]string{}
	for a, p := range r.Spec {
		if a >= len(m.Axes) {
			if p != (Placement{}) {
				return fmt.Errorf("placement %s on axis %d of a mesh with %d axes", p, a, len(m.Axes))
			}
			continue
		}
		axis := m.Axes[a]
		canonical := Placement{Kind: p.Kind}
		switch p.Kind {
		case Replicate:
		case Shard:
			canonical.Dim = p.Dim
			if p.Dim < 0 || int(p.Dim) >= len(r.Type.Shape) {
				return fmt.Errorf("axis %s shards dimension %d of %s", axis.Name, p.Dim, r.Type)
			}
			if size := local[p.Dim]; axis.Chunk > 0 && (size-1)/axis.Chunk >= axis.Size {
				return fmt.Errorf("axis %s: %d pieces of %d do not cover the %d elements of dimension %d of %s",
					axis.Name, axis.Size, axis.Chunk, size, p.Dim, r.Type)
			}
			local[p.Dim] = axis.Cut(local[p.Dim], 0).Len
		case Partial:
			canonical.Reduce = p.Reduce
			if p.Reduce > Max {
				return fmt.Errorf("axis %s: there is no reduction %d", axis.Name, p.Reduce)
			}
			reductions[p.Reduce] = axis.Name
		default:
			return fmt.Errorf("axis %s: there is no placement kind %d", axis.Name, p.Kind)
		}
		if p != canonical {
			return fmt.Errorf("axis %s: placement %s has stray fields %+v", axis.Name, p, p)
		}
	}
	if len(reductions) > 1 {
		return fmt.Errorf("partial by sum over %s and by max over %s: the two do not commute", reductions[Sum], reductions[Max])
	}
	return nil
}

// oncePerStep checks that a node which runs after the last micro-batch reads no value of a single micro-batch.
func (v *verifier) oncePerStep(n *Node) error {
	for a, axis := range v.g.Mesh.Axes {
		for i, arg := range n.Args {
			if axis.Time && arg.Spec[a].Kind != Replicate {
				return fmt.Errorf("operand %d (%s) is %s over time axis %s, but the node runs once per step", i, ref(arg), arg.Spec[a], axis.Name)
			}
		}
	}
	return nil
}

// spaces checks that a node computes on values in device memory: only a fetch reads host memory, and only a
// stash writes it.
func (v *verifier) spaces(n *Node) error {
	for i, a := range n.Args {
		if fetches := n.Op == OpFetch; a.OnHost() != fetches {
			return fmt.Errorf("operand %d (%s) is in %s memory, %s reads the other", i, ref(a), spaceOf(a), n.Op)
		}
	}
	return nil
}

func spaceOf(v *Value) string {
	if v.OnHost() {
		return "host"
	}
	return "device"
}

func (v *verifier) leafSpec(n *Node) error {
	for a, axis := range v.g.Mesh.Axes {
		switch p := n.Results[0].Spec[a]; {
		case p.Kind == Partial:
			return fmt.Errorf("axis %s: a leaf is Partial", axis.Name)
		case n.Op == OpParam && axis.Time && axis.Size > 1 && p.Kind != Replicate:
			// A cache over the batch is allowed, if there is only one micro-batch.
			return fmt.Errorf("axis %s: a parameter is %s over time", axis.Name, p)
		}
	}
	return nil
}

// computeSpecs checks that on each axis the placements are those of one rule.
func (v *verifier) computeSpecs(n *Node) error {
	sig := SignatureOf(n)
	for a, axis := range v.g.Mesh.Axes {
		args, results := axisPlacements(n, a)
		if !sig.allows(args, results) {
			return fmt.Errorf("axis %s: no rule of %s has operands %s -> results %s%s",
				axis.Name, n.Op, describe(args), describe(results), sig.blame(n, args))
		}
	}
	if parts := SequenceParts(n.Attr); parts > 0 {
		return v.g.Mesh.wholeSequences(n.Results[0], parts)
	}
	return nil
}

// wholeSequences checks that no axis cuts a sequence that consists of several rows of the batch.
func (m Mesh) wholeSequences(r *Value, parts int) error {
	rows := r.Type.Shape[0]
	for a, axis := range m.Axes {
		if r.Spec[a] != ShardOn(0) {
			continue
		}
		if axis.Chunk%parts != 0 || axis.Chunk == 0 && (axis.Shares != nil || rows%(parts*axis.Size) != 0) {
			return fmt.Errorf("axis %s cuts %d rows of %s inside of sequences, each of which is %d of them", axis.Name, rows, ref(r), parts)
		}
		rows = axis.Cut(rows, 0).Len
	}
	return nil
}

// axisPlacements returns what axis a does to every operand and result.
func axisPlacements(n *Node, a int) (args, results []Placement) {
	args = make([]Placement, len(n.Args))
	results = make([]Placement, len(n.Results))
	for i, arg := range n.Args {
		args[i] = arg.Spec[a]
	}
	for i, r := range n.Results {
		results[i] = r.Spec[a]
	}
	return args, results
}

// allows reports whether the placements are one rule of the signature.
func (s *Signature) allows(args, results []Placement) bool {
	for rule := PassPartial; rule < len(s.Dims); rule++ {
		wantArgs, wantResults, ok := s.Rule(rule)
		if ok && slices.Equal(args, wantArgs) && slices.Equal(results, wantResults) {
			return true
		}
	}
	return false
}

// blame names the operand to look at first: the first one that no rule fitting the operands before it agrees
// with.
func (s *Signature) blame(n *Node, args []Placement) string {
	fits := 0
	for rule := PassPartial; rule < len(s.Dims); rule++ {
		wantArgs, _, ok := s.Rule(rule)
		if !ok {
			continue
		}
		same := 0
		for same < len(args) && args[same] == wantArgs[same] {
			same++
		}
		fits = max(fits, same)
	}
	if fits == len(args) {
		return ""
	}
	return fmt.Sprintf(": operand %d (%s) is %s", fits, ref(n.Args[fits]), args[fits])
}

// commSpecs checks that a communication changes its axis as declared and leaves the others alone.
func (v *verifier) commSpecs(n *Node) error {
	mesh := v.g.Mesh
	from, to := n.Args[0].Spec, n.Results[0].Spec
	p2p, isP2P := n.Attr.(P2PAttr)
	copies := n.Op == OpFetch || n.Op == OpStash
	if (isP2P || copies) && from != to {
		return fmt.Errorf("operand 0 (%s) is placed %s, the result %s", ref(n.Args[0]), v.g.specText(n.Args[0]), v.g.specText(n.Results[0]))
	}
	if copies {
		return nil
	}
	if isP2P {
		if n.Op == OpRecv && n.Args[0].Def.Op == OpSend {
			sender := n.Args[0].Def
			if peer := sender.Attr.(P2PAttr); peer.Stage != n.Stage || p2p.Stage != sender.Stage {
				return fmt.Errorf("received in stage %d from stage %d, but %q in stage %d sends to stage %d",
					n.Stage, p2p.Stage, sender.Name, sender.Stage, peer.Stage)
			}
		}
		return nil
	}
	attr := n.Attr.(CommAttr)
	at := mesh.Axis(attr.Axis)
	if at < 0 {
		return fmt.Errorf("there is no axis %q in %s", attr.Axis, mesh)
	}
	for a, axis := range mesh.Axes {
		if a != at && from[a] != to[a] {
			return fmt.Errorf("axis %s: changes from %s to %s, but communicates over %s", axis.Name, from[a], to[a], attr.Axis)
		}
	}
	if (n.Op == OpFold || n.Op == OpUnfold) && attr.Parts != mesh.Axes[at].Size {
		return fmt.Errorf("axis %s: folded for %d parts, the axis has size %d", attr.Axis, attr.Parts, mesh.Axes[at].Size)
	}
	want := commChange(n.Op, attr)
	if from[at] != want[0] {
		return fmt.Errorf("axis %s: operand 0 (%s) is %s, want %s", attr.Axis, ref(n.Args[0]), from[at], want[0])
	}
	if to[at] != want[1] {
		return fmt.Errorf("axis %s: result 0 is %s, want %s", attr.Axis, to[at], want[1])
	}
	if err := timeAxis(n.Op, mesh.Axes[at]); err != nil {
		return err
	}
	return mesh.innermost(at, from, to)
}

// commChange returns the placements a communication changes from and to.
func commChange(op Op, a CommAttr) [2]Placement {
	var replicate Placement
	partial, dim, to := PartialOf(a.Reduce), ShardOn(a.Dim), ShardOn(a.To)
	switch op {
	case OpAllReduce, OpAccumulate:
		return [2]Placement{partial, replicate}
	case OpAllGather:
		return [2]Placement{dim, replicate}
	case OpReduceScatter:
		return [2]Placement{partial, dim}
	case OpAllToAll:
		return [2]Placement{dim, to}
	case OpSlice, OpFold:
		return [2]Placement{replicate, dim}
	case OpUnfold:
		return [2]Placement{replicate, replicate}
	case OpToPartial:
		return [2]Placement{replicate, partial}
	}
	panic("BUG: " + op.String() + " is not a communication over an axis")
}

// timeAxis keeps collectives off time axes: micro-batches on one device accumulate instead.
func timeAxis(op Op, axis Axis) error {
	switch op {
	case OpSlice, OpFold, OpUnfold, OpToPartial:
		return nil // no communication
	case OpAccumulate:
		if !axis.Time {
			return fmt.Errorf("axis %s: accumulates over an axis that is not time", axis.Name)
		}
	default:
		if axis.Time {
			return fmt.Errorf("axis %s: a collective over time", axis.Name)
		}
	}
	return nil
}

// innermost checks that no later axis shards a dimension that axis at starts or stops sharding: such an axis
// would hold different elements before and after.
func (m Mesh) innermost(at int, from, to ShardSpec) error {
	for _, p := range []Placement{from[at], to[at]} {
		if p.Kind != Shard {
			continue
		}
		var inner []string
		for a := at + 1; a < len(m.Axes); a++ {
			if from[a] == p {
				inner = append(inner, m.Axes[a].Name)
			}
		}
		if len(inner) > 0 {
			return fmt.Errorf("axis %s: dimension %d is sharded by %s inside of it", m.Axes[at].Name, p.Dim, strings.Join(inner, ", "))
		}
	}
	return nil
}
