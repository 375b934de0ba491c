package runtime

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// prepare uploads what is set once per step: constants and step inputs.
func (l *loader) prepare(s *codegen.Schedule, stage *codegen.Stage, t codegen.Task) []*action {
	var actions []*action
	for _, id := range stage.Consts {
		v := stage.Buffers[id].Value
		x := v.Def.Attr.(ir.ConstAttr).Value
		bits := math.Float32bits(float32(x))
		if v.Type.DType == ir.I32 {
			bits = uint32(int32(x))
		}
		word := binary.NativeEndian.AppendUint32(nil, bits)
		actions = append(actions, &action{node: v.Def, feed: &input{data: word}, to: 4, offset: stage.Offset(id, 0)})
	}
	for _, id := range stage.StepInputs {
		v := stage.Buffers[id].Value
		a := l.feed(v, l.program.src.Slab(v, l.program.src.At(s, t)), stage.Offset(id, 0))
		actions = append(actions, &a)
	}
	return actions
}

// feed uploads the rows of an input that a rank needs.
func (l *loader) feed(v *ir.Value, slab ir.Slab, offset int64) action {
	in := l.program.byName[partition.BaseName(v.Def.Name)]
	a := action{node: v.Def, feed: in, to: slab.Elems() * v.Type.DType.Size(), offset: offset}
	if len(slab.Local) > 0 {
		row := v.Type.Bytes() / int64(slab.Global[0])
		a.from = int64(slab.Offset[0]) * row
		a.to += a.from
	}
	return a
}

// action makes the device call of one instruction.
func (l *loader) action(s *codegen.Schedule, stage *codegen.Stage, t codegen.Task, in *codegen.Instr) (action, error) {
	prog, n := l.program.src, in.Node
	a := action{node: n, bytes: prog.CommBytes(s, in, t), part: in.Part, parts: in.Parts}
	switch {
	case n.Op == ir.OpInput:
		v := n.Results[0]
		slab := prog.Slab(v, prog.At(s, t))
		for d := 1; d < len(slab.Local); d++ {
			if slab.Local[d] != slab.Global[d] {
				return a, fmt.Errorf("input is cut in dimension %d; only the batch can be", d)
			}
		}
		return l.feed(v, slab, stage.Offset(in.Results[0], t.MicroBatch)), nil
	case n.Op == ir.OpSend || n.Op == ir.OpRecv:
		return a, l.transfer(&a, s, stage, t, in)
	case codegen.Collective(n.Op):
		l.collective(&a, s, stage, t, in)
		return a, nil
	}
	k := &Kernel{Node: n, Accum: make([]bool, len(in.Results))}
	for i, v := range n.Args {
		k.Args = append(k.Args, l.tensor(s, stage, t, in, v, in.Args[i]))
	}
	for i, v := range n.Results {
		k.Results = append(k.Results, l.tensor(s, stage, t, in, v, in.Results[i]))
		k.Accum[i] = in.Accum[i] == codegen.Always || in.Accum[i] == codegen.AfterFirst && t.MicroBatch > 0
	}
	if _, ok := n.Attr.(ir.CommAttr); ok {
		_, k.Position = prog.Group(s, n)
	}
	if c, ok := l.exec.local(s.Rank).device.(Checker); ok {
		if err := c.Check(k); err != nil {
			return a, err
		}
	}
	a.kernel = k
	return a, nil
}

// tensor returns the part of a value that an instruction accesses: all that the rank has of it in
// the buffer, or if the instruction makes one of several parts, a range of its sequences.
func (l *loader) tensor(s *codegen.Schedule, stage *codegen.Stage, t codegen.Task, in *codegen.Instr, v *ir.Value, buffer int) Tensor {
	prog := l.program.src
	at := prog.At(s, t)
	x := Tensor{Space: spaceOf(stage, buffer), Offset: prog.Offset(s, t, buffer), DType: v.Type.DType, Slab: in.Slab(prog.Mesh, v, at)}
	if share, parts := in.ShareOf(prog.Mesh, v, at); parts {
		x.Offset += int64(share.Off) * ir.Elems(x.Slab.Local[1:]) * v.Type.DType.Size()
	}
	return x
}

func spaceOf(stage *codegen.Stage, buffer int) Space {
	if stage.Buffers[buffer].Region == codegen.Host {
		return OnHost
	}
	return OnDevice
}

func (l *loader) collective(a *action, s *codegen.Schedule, stage *codegen.Stage, t codegen.Task, in *codegen.Instr) {
	prog, n := l.program.src, in.Node
	ranks, position := prog.Group(s, n)
	key := meeting{n, in.Part, t.MicroBatch, ranks[0]}
	if in.Last {
		key.microBatch = 0 // members may differ in which micro-batch is their last
	}
	members, ok := l.members[key]
	if !ok {
		members = make([]Member, len(ranks))
		for i, r := range ranks {
			other := &prog.Schedules[r]
			members[i] = Member{
				Rank: r,
				In:   l.tensor(other, stage, t, in, n.Args[0], in.Args[0]),
				Out:  l.tensor(other, stage, t, in, n.Results[0], in.Results[0]),
			}
		}
		l.members[key] = members
	}
	stream := streamOf(in)
	a.collective = &Collective{Node: n, Attr: n.Attr.(ir.CommAttr), Group: l.group(stream, ranks), Members: members, Position: position, Stream: stream}
}

// streamOf returns the stream of a collective.
func streamOf(in *codegen.Instr) Stream {
	switch {
	case in.Async:
		return Communication
	case in.Beside > 0:
		return Exchange
	}
	return Compute
}

// group returns the number of ranks that make collectives on a stream, and gives it if they have none.
func (l *loader) group(stream Stream, ranks []int) int {
	name := fmt.Sprint(stream, ranks)
	group, ok := l.exec.groups[name]
	if !ok {
		group = len(l.exec.groups)
		l.exec.groups[name] = group
	}
	return group
}

// transfer builds one end of a transfer. A sender writes into the buffer of the receiver's slot, so
// it waits until the micro-batch that had the slot before has left it.
func (l *loader) transfer(a *action, s *codegen.Schedule, stage *codegen.Stage, t codegen.Task, in *codegen.Instr) error {
	prog, n := l.program.src, in.Node
	peer := &prog.Schedules[prog.Peer(s, n)]
	a.transfer = &Transfer{Node: n, Peer: peer.Rank}
	if n.Op == ir.OpRecv {
		a.transfer.Wire = l.wire(wire{n.Args[0].Def, peer.Rank, s.Rank})
		a.transfer.Local = l.tensor(s, stage, t, in, n.Results[0], in.Results[0])
		return nil
	}
	if in.Posted {
		a.transfer.Stream = Transfers
	}
	a.transfer.Wire = l.wire(wire{n, s.Rank, peer.Rank})
	a.transfer.Local = l.tensor(s, stage, t, in, n.Args[0], in.Args[0])

	at := l.landing(n, prog.Stages[peer.Stage], t.Phase)
	tasks := l.order(peer)
	if _, ok := tasks.tasks[codegen.Task{Phase: t.Phase, Chunk: at.chunk, MicroBatch: t.MicroBatch}]; at.buffer < 0 || !ok {
		return fmt.Errorf("rank %d does not receive it in %s", peer.Rank, t)
	}
	a.transfer.Remote = prog.Stages[peer.Stage].Offset(at.buffer, t.MicroBatch)
	if at.room > 0 && t.MicroBatch >= at.room {
		a.after = tasks.ends[tasks.tasks[codegen.Task{Phase: l.last, Chunk: at.chunk, MicroBatch: t.MicroBatch - at.room}]]
	}
	return nil
}

// landing is where a message arrives: a buffer of a chunk, -1 if there is none, with room for so many micro-batches.
type landing struct{ buffer, chunk, room int }

// landing finds where a stage receives what a send of a phase sends.
func (l *loader) landing(send *ir.Node, stage *codegen.Stage, phase ir.Phase) landing {
	at, ok := l.landings[send]
	if ok {
		return at
	}
	at.buffer = -1
	for _, in := range stage.Bodies[phase].Instrs {
		if in.Node.Op == ir.OpRecv && in.Node.Args[0] == send.Results[0] {
			at.buffer, at.chunk = in.Results[0], in.Chunk
		}
	}
	_, at.room = stage.RoomFor(send)
	l.landings[send] = at
	return at
}

func (l *loader) wire(w wire) int {
	id, ok := l.wires[w]
	if !ok {
		id = l.exec.wires
		l.exec.wires++
		l.wires[w] = id
	}
	return id
}
