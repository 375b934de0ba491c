package codegen

import "github.com/autopar/autopar/ir"

// With [partition.Plan.OverlapP2P] a stage does not wait until its sends to other stages are done. It hands
// each send to a transfer stream and goes on, as Megatron-LM does under interleaved schedules (Narayanan et al.
// SC'21, section 4.1, and its --overlap-p2p-communication). The receiver is unchanged: it has room for a
// message that arrives early in any case.
//
// The data that is being sent must not change, so a posted value gets a persistent buffer of its own in place of a
// temporary one, one for each chunk, pass and value. Before the next task of the same chunk and phase, which
// writes that buffer again, the rank waits until the previous send is done. Mostly it is done by then: without
// interleaving, a backward pass lies between two forward passes.
//
// Two kinds of sends are awaited. Nothing could run at the same time as those of the update. And a value in a slot
// or an inbox (one that is sent, and also kept for a later pass or sent on from where it arrived; no model has one)
// could be overwritten by its own backward pass, which may recompute before its gradient has arrived.

// sentInPasses marks, by ID, the values that passes send. It is nil if all sends are awaited.
func sentInPasses(prog *Program) []bool {
	if !prog.Plan.OverlapP2P {
		return nil
	}
	sent := make([]bool, prog.Graph.IDs())
	for _, n := range prog.Graph.Nodes {
		if n.Op == ir.OpSend && n.Phase != ir.Update {
			sent[n.Args[0].ID] = true
		}
	}
	return sent
}

// isSent reports whether a pass may post a send of a value.
func (b *stageBuilder) isSent(v *ir.Value) bool { return b.sent != nil && b.sent[v.ID] }

// posts reports whether an instruction is a send that the rank does not wait for.
func (b *stageBuilder) posts(in *Instr) bool {
	return in.Node.Op == ir.OpSend && b.isSent(in.Node.Args[0]) && in.Node.Phase != ir.Update && b.Buffers[in.Args[0]].Region == Persist
}

// checkPosted makes sure that the operand of a posted send lies in a persistent buffer, and that nothing writes
// that buffer while the send may still read it: no later instruction of its own task, and no task of another chunk
// or phase, because those do not wait for the send.
func checkPosted(s *Stage) error {
	for phase := range ir.NumPhases {
		for _, instrs := range s.runs(phase) {
			for i := range instrs {
				in := &instrs[i]
				if !in.Posted {
					continue
				}
				if in.Node.Op != ir.OpSend || phase == ir.Update || in.Async {
					return s.failing(in)(nil, "is %s of the %s phase, which is not made on the transfer stream", in.Node.Op, phase)
				}
				v, id := in.Node.Args[0], in.Args[0]
				if s.Buffers[id].View || s.Buffers[id].Region != Persist {
					return s.failing(in)(v, "is sent from b%d of the %s region, which others may have before it has gone", id, s.Buffers[id].Region)
				}
				if err := s.writesNone(instrs[i+1:], in); err != nil {
					return err
				}
				for other := range ir.NumPhases {
					for _, others := range s.runs(other) {
						if len(others) == 0 || other == phase && others[0].Chunk == in.Chunk {
							continue
						}
						if err := s.writesNone(others, in); err != nil {
							return err
						}
					}
				}
			}
		}
	}
	return nil
}

// writesNone makes sure that none of the instructions writes what a send reads.
func (s *Stage) writesNone(instrs []Instr, send *Instr) error {
	for i := range instrs {
		in := &instrs[i]
		for k, id := range in.Results {
			if s.base(id) == s.base(send.Args[0]) && in.Node.Op != ir.OpSend {
				return s.failing(in)(in.Node.Results[k], "writes b%d, which %s may still be sending", id, send.Node.Name)
			}
		}
	}
	return nil
}
