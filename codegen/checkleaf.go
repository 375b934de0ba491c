package codegen

import (
	"fmt"
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// loaded lists the buffers that the runtime fills before a step. Like the runtime, it finds parameters by name,
// and constants and step inputs in the lists of the stage.
func (s *Stage) loaded() ([]int, *CheckError) {
	var all []int
	add := func(op ir.Op, name string, id int) *CheckError {
		fail := func(format string, args ...any) *CheckError {
			return &CheckError{Rank: -1, Stage: s.Index, Value: name, Msg: fmt.Sprintf(format, args...)}
		}
		if id < 0 || id >= len(s.Buffers) {
			return fail("a %s is loaded into buffer b%d of %d", op, id, len(s.Buffers))
		}
		b := &s.Buffers[id]
		n := b.Value.Def
		switch {
		case n.Op != op || name != "" && partition.BaseName(n.Name) != name:
			return fail("a %s is loaded into b%d, which is for %s %s", op, id, n.Op, n.Name)
		case b.View || b.Region != Persist && !(b.Region == Host && op == ir.OpParam):
			return fail("%s is loaded into b%d of the %s region", n.Name, id, b.Region)
		}
		all = append(all, id)
		return nil
	}
	for _, name := range sorted(s.Params) {
		if err := add(ir.OpParam, name, s.Params[name]); err != nil {
			return nil, err
		}
	}
	for _, id := range s.Consts {
		if err := add(ir.OpConst, "", id); err != nil {
			return nil, err
		}
	}
	for _, id := range s.StepInputs {
		if err := add(ir.OpInput, "", id); err != nil {
			return nil, err
		}
	}
	slices.Sort(all)
	return all, nil
}

// checkLeaves makes sure that the runtime finds every parameter, input and output of the graph by name, that
// loaded values fit their buffers, and that what must survive between steps lies in the durable part of the
// arena.
func checkLeaves(p *Program, s *Stage) error {
	loaded, err := s.loaded()
	if err != nil {
		return err
	}
	for _, id := range loaded {
		b := &s.Buffers[id]
		v := b.Value
		slab := p.Slab(v, ir.Coord{})
		need := slab.Elems() * v.Type.DType.Size()
		switch {
		case need > b.Size:
			return &CheckError{Rank: -1, Stage: s.Index, Value: v.Name(), Msg: fmt.Sprintf("needs %d bytes, b%d has %d", need, id, b.Size)}
		case b.Region == Persist && v.Def.Op != ir.OpInput && b.Offset+b.Size > s.Durable:
			return &CheckError{Rank: -1, Stage: s.Index, Value: v.Name(),
				Msg: fmt.Sprintf("is in b%d at %d+%d, and only the first %d bytes last from step to step", id, b.Offset, b.Size, s.Durable)}
		}
	}
	for _, n := range p.Graph.Nodes {
		position, _ := p.Plan.Position(n.Stage)
		var names map[string]int
		switch n.Op {
		case ir.OpParam:
			names, position = s.Params, n.Stage // the Stage of a parameter is its position, as for all that a step does once
		case ir.OpInput:
			names = s.Inputs
		}
		if names == nil || position != s.Index {
			continue
		}
		named := func(v *ir.Value) bool { // each chunk has its own copy of an input of the batch
			return v == n.Results[0] || n.Op == ir.OpInput && v.Def.Op == n.Op && v.Def.Stage != n.Stage && partition.BaseName(v.Def.Name) == partition.BaseName(n.Name)
		}
		if id, ok := names[partition.BaseName(n.Name)]; !ok || id < 0 || id >= len(s.Buffers) || !named(s.Buffers[id].Value) {
			return &CheckError{Rank: -1, Stage: s.Index, Instr: n.Name, Msg: fmt.Sprintf("is a %s whose name does not lead to its buffer", n.Op)}
		}
	}
	for _, o := range p.Graph.Outputs {
		if position, _ := p.Plan.Position(o.Value.Def.Stage); position != s.Index {
			continue
		}
		if _, ok := s.Outputs[o.Name]; !ok {
			return &CheckError{Rank: -1, Stage: s.Index, Value: o.Name, Msg: "is an output that cannot be found by its name"}
		}
	}
	return nil
}

// CheckShared proves that a program can run in the arenas of another one, between its steps: see [Compile].
// Parameters that both have must lie at the same offsets with the same type and placement, and nothing else may
// lie where the other program keeps what must survive. The error is a [CheckError].
func CheckShared(p, with *Program) error {
	if len(p.Stages) != len(with.Stages) || p.Mesh.String() != with.Mesh.String() {
		return &CheckError{Rank: -1, Stage: len(with.Stages),
			Msg: fmt.Sprintf("a program of %d stages on %s shares the arenas of one of %d on %s", len(p.Stages), p.Mesh, len(with.Stages), with.Mesh)}
	}
	for i, s := range p.Stages {
		other := with.Stages[i]
		fail := func(v *ir.Value, format string, args ...any) error {
			return &CheckError{Rank: -1, Stage: i, Value: v.Name(), Msg: fmt.Sprintf(format, args...)}
		}
		used := s.used()
		for id := range s.Buffers {
			b := &s.Buffers[id]
			v := b.Value
			var at *Buffer
			if of, ok := other.Params[partition.BaseName(v.Def.Name)]; ok && v.Def.Op == ir.OpParam {
				at = &other.Buffers[of]
			}
			switch {
			case b.View || at == nil && !used[id] && v.Def.Op.Class() != ir.Leaf:
			case at != nil && (b.Region != at.Region || b.Offset != at.Offset):
				return fail(v, "is at %d of the %s region, the program whose arenas it shares has it at %d of the %s region",
					b.Offset, b.Region, at.Offset, at.Region)
			case at != nil && (!v.Type.Equal(at.Value.Type) || v.Spec != at.Value.Spec):
				rank := len(v.Type.Shape)
				return fail(v, "is %s placed %s, in the program whose arenas it shares %s placed %s",
					v.Type, v.Spec.Format(p.Mesh, rank), at.Value.Type, at.Value.Spec.Format(with.Mesh, rank))
			case at == nil && b.Region == Persist && b.Offset < other.Durable, at == nil && b.Region == Host && b.Offset < other.Host:
				return fail(v, "is at %d of the %s region, in which the program whose arenas it shares keeps what has to last", b.Offset, b.Region)
			}
		}
		if s.Persist < other.Durable {
			return &CheckError{Rank: -1, Stage: i,
				Msg: fmt.Sprintf("what is not kept begins at %d, of the %d bytes that the program whose arenas it shares keeps", s.Persist, other.Durable)}
		}
	}
	return nil
}
