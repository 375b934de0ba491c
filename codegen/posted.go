package codegen

import "github.com/autopar/autopar/ir"

// With overlap of point-to-point communication ([partition.Plan.OverlapP2P]) a stage does not wait for what its passes send
// to another stage: it hands the send to a transfer stream and goes on, as Megatron-LM does under interleaved schedules
// (Narayanan et al. SC'21, section 4.1, and its --overlap-p2p-communication). The receiver needs nothing for that: it has had
// room for a message to arrive early before.
//
// What is sent must last. It is made in a persistent buffer of its own, one for each chunk, pass and value, in place of a
// temporary one; before the next task of the same chunk and phase, which writes there, the rank waits until the send before is
// done. By then it mostly is: under a schedule without interleaving a backward pass lies between two forward passes.
//
// Sends of an update are waited for: nothing would run beside them. So is what lies in a slot or an inbox, as no model has it
// (a value that is sent, and kept for a later pass or sent on from where it arrived): what a backward pass writes there before
// its gradient has come does not follow from the arrival of what was sent.

// sentInPasses marks the values that passes send, by ID, nil where all sends are waited for.
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

// isSent reports whether a pass sends a value, without waiting for it where it lies right for that.
func (b *stageBuilder) isSent(v *ir.Value) bool { return b.sent != nil && b.sent[v.ID] }

// posts reports whether an instruction is a send that the rank need not wait for.
func (b *stageBuilder) posts(in *Instr) bool {
	return in.Node.Op == ir.OpSend && b.isSent(in.Node.Args[0]) && in.Node.Phase != ir.Update && b.Buffers[in.Args[0]].Region == Persist
}

// checkPosted makes sure that nothing is written to what a posted send may be reading, a persistent buffer: in its own task after
// it, or in a task of another chunk or phase, which does not wait for it.
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

// writesNone makes sure that instructions write nothing to what a send reads.
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
