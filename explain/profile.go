package explain

import (
	"cmp"
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
)

// profile is the memory that a task uses over time. Its instructions are divided into bins of about equal length, and each
// bin has the figures of the instruction with the most live bytes. All tasks of a stage, chunk and phase share a profile.
type profile struct {
	instrs int
	bins   []profileBin
	after  int64 // bytes that the micro-batch keeps when the task is done
}

// profileBin has bytes that are live in the slot and inbox of the micro-batch, and in temporary buffers.
type profileBin struct {
	slot, temp int64
	moment     int // index into the moments of the film
}

type profileKey struct {
	stage, chunk int
	phase        ir.Phase
}

func (p *profile) bin(instr int) int { return instr * len(p.bins) / p.instrs }

// profile returns the profile of a task on a stage, and adds a moment for each bin to the film.
//
// Lifetimes of temporary buffers count in the instructions of their body, those of slots and inboxes in the instructions of
// all bodies in order.
func (e *filmMaker) profile(stage int, t codegen.Task) *profile {
	key := profileKey{stage, t.Chunk, t.Phase}
	if p := e.profiles[key]; p != nil {
		return p
	}
	code := e.report.prog.Stages[stage]
	instrs := code.Run(t)
	body := code.Bodies[t.Phase].Instrs
	from := 0 // where the task starts in its body, which has the tasks of all chunks
	for from < len(body) && len(instrs) > 0 && &body[from] != &instrs[0] {
		from++
	}
	before := 0 // instructions of all earlier bodies
	for phase := range t.Phase {
		before += len(code.Bodies[phase].Instrs)
	}
	p := &profile{instrs: max(1, len(instrs)), bins: make([]profileBin, max(1, min(e.bins, len(instrs))))}
	e.profiles[key] = p
	slot, temp := make([]int64, len(instrs)+2), make([]int64, len(instrs)+2)
	// counted returns where a buffer counts, nil if it is not of this task, and the position of the task's first instruction
	// among those in which the buffer's lifetime counts.
	counted := func(b *codegen.Buffer) (sums []int64, first int) {
		switch {
		case b.Chunk != t.Chunk:
		case b.Region == codegen.Temp && b.Body == t.Phase:
			return temp, from
		case b.Region.InFlight():
			return slot, before + from
		}
		return nil, 0
	}
	ids := occupied(code)
	for _, id := range ids {
		b := &code.Buffers[id]
		sums, first := counted(b)
		lo, hi := max(0, b.From-first), min(len(instrs), b.To-first)
		if sums != nil && lo <= hi && lo < len(instrs) { // else it is not live in the task, or is written right after it
			sums[lo] += b.Size
			sums[hi+1] -= b.Size
		}
	}
	for i := 1; i < len(slot); i++ {
		slot[i] += slot[i-1]
		temp[i] += temp[i-1]
	}
	p.after = slot[len(instrs)]
	most := make([]int, len(p.bins))
	for i := range most {
		most[i] = -1
	}
	for i := range instrs {
		b := p.bin(i)
		if k := most[b]; k < 0 || slot[i]+temp[i] > slot[k]+temp[k] {
			most[b] = i
		}
	}
	for b, i := range most {
		if i < 0 {
			continue
		}
		p.bins[b] = profileBin{slot[i], temp[i], len(e.film.Moments)}
		m := moment{At: instrs[i].Node.Name, Live: []Live{}}
		for _, id := range ids {
			x := &code.Buffers[id]
			if sums, first := counted(x); sums != nil && x.From <= first+i && first+i <= x.To {
				m.Live = append(m.Live, Live{x.Value.Name(), x.Size})
			}
		}
		slices.SortStableFunc(m.Live, func(a, b Live) int { return cmp.Compare(b.Bytes, a.Bytes) })
		m.Live = m.Live[:min(len(m.Live), filmLargest)]
		e.film.Moments = append(e.film.Moments, m)
	}
	return p
}
