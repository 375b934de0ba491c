package runtime

import (
	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
)

// update puts collectives of the update together. The gradient of every parameter is reduced, squared and summed, and
// every updated parameter gathered, by itself: most are small, and then for ranks to meet takes longer than what they do
// when they have met (DDP puts gradients in buckets for the same reason: Li et al. VLDB'20, section 3.2.2). So a collective
// is made with the last one before it that is of the same kind and group, if nothing in between has to do with it. All
// ranks of a stage run the same instructions in the same places, so all members of a group come to the same answer.
type update struct {
	stage *codegen.Stage
	first int        // action of the update's task; those before it feed the step
	uses  [][]extent // what the actions from there on read and write
	bytes []int64    // that a member's collectives of those actions read and write
}

// joinBytes is how much a member reads and writes in one collective when no more is made with it: a machine that moves
// some ten GB/s spends longer on that than on meeting.
const joinBytes = 2 << 20

// extent is bytes of an arena that an instruction reads or writes.
type extent struct {
	space    Space
	from, to int64
	written  bool
}

// newUpdate returns nil for a task that is not an update; where collectives run beside it, as then the program has put them
// together, and what has been started is to be waited for; and in a pipeline, whose stages come to the update at different
// times: there steps of nanoGPT's model for a CPU took 3 to 7 % longer (dp 2, pp 2 on two cores, 2026-11-22).
func newUpdate(prog *codegen.Program, stage *codegen.Stage, t codegen.Task, actions []action) *update {
	if t.Phase != ir.Update || prog.Plan.Overlap || prog.Plan.PP() > 1 {
		return nil
	}
	return &update{stage: stage, first: len(actions)}
}

// join has the action of the next instruction made with one of those before it, or else says that it stands for itself.
func (u *update) join(actions []action, a *action, in *codegen.Instr) bool {
	if u == nil {
		return false
	}
	uses := u.extents(in)
	var bytes int64
	if a.collective != nil {
		for _, e := range uses {
			bytes += e.to - e.from
		}
		for i := len(u.uses) - 1; i >= 0 && !collide(uses, u.uses[i]); i-- {
			c := actions[u.first+i].collective
			if c == nil || c.Group != a.collective.Group || c.Node.Op != a.collective.Node.Op {
				continue
			}
			if u.bytes[i]+bytes > joinBytes {
				break
			}
			c.More = append(c.More, a.collective)
			actions[u.first+i].bytes += a.bytes
			u.uses[i], u.bytes[i] = append(u.uses[i], uses...), u.bytes[i]+bytes
			return true
		}
	}
	u.uses, u.bytes = append(u.uses, uses), append(u.bytes, bytes)
	return false
}

// extents are as large as they are on any rank of the stage.
func (u *update) extents(in *codegen.Instr) []extent {
	var all []extent
	for i, ids := range [...][]int{in.Args, in.Results} {
		for _, id := range ids {
			from := u.stage.Offset(id, 0)
			all = append(all, extent{spaceOf(u.stage, id), from, from + u.stage.Buffers[id].Size, i == 1})
		}
	}
	return all
}

// collide reports whether one of two instructions writes what the other reads or writes.
func collide(a, b []extent) bool {
	for _, x := range a {
		for _, y := range b {
			if (x.written || y.written) && x.space == y.space && x.from < y.to && y.from < x.to {
				return true
			}
		}
	}
	return false
}
