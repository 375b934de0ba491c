package codegen

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/partition"
)

// align keeps buffers on cache lines and on the 64 bytes of the widest vectors.
const align = 64

func alignUp(n int64) int64 { return (n + align - 1) / align * align }

// allocate gives every buffer its offset. Persistent buffers lie one after another, parameters first. Any other
// buffer takes the lowest gap between buffers whose lifetimes overlap its own, the largest buffer first
// (Pisarchyk and Lee 2020, greedy by size).
//
// If shared is not nil, the stage lives in the arenas of that one: see [Compile].
func (s *Stage) allocate(shared *Stage) {
	used := s.used()
	var persist, host []int
	slot, inbox := make([][]int, len(s.Chunks)), make([][]int, len(s.Chunks))
	var temp [ir.NumPhases][]int
	for id := range s.Buffers {
		buf := &s.Buffers[id]
		switch {
		case buf.Region == Host:
			host = append(host, id)
		case buf.Value.Def.Op == ir.OpParam:
			persist = append(persist, id)
		case buf.View || !used[id] && buf.Value.Def.Op.Class() != ir.Leaf:
			// It has no bytes of its own: it lies in another buffer, or nothing uses it.
		case buf.Region == Persist:
			persist = append(persist, id)
		case buf.Region == Slot:
			slot[buf.Chunk] = append(slot[buf.Chunk], id)
		case buf.Region == Inbox:
			inbox[buf.Chunk] = append(inbox[buf.Chunk], id)
		default:
			temp[buf.Body] = append(temp[buf.Body], id)
		}
	}
	for _, ids := range [][]int{persist, host} {
		slices.SortStableFunc(ids, func(x, y int) int { return cmp.Compare(s.rank(x), s.rank(y)) })
	}
	if shared != nil {
		s.Persist, s.Host = shared.Durable, shared.Host
	}
	for _, id := range host {
		if buf := &s.Buffers[id]; !shared.share(buf) {
			buf.Offset = s.Host
			s.Host += alignUp(buf.Size)
		}
	}
	for _, id := range persist {
		buf := &s.Buffers[id]
		if shared.share(buf) {
			continue
		}
		buf.Offset = s.Persist
		s.Persist += alignUp(buf.Size)
		if s.rank(id) <= rankConst {
			s.Durable = s.Persist
		}
	}
	for i := range s.Chunks {
		s.Chunks[i].Slot, s.Chunks[i].Inbox = pack(s.Buffers, slot[i]), pack(s.Buffers, inbox[i])
	}
	for _, ids := range temp {
		s.Temp = max(s.Temp, pack(s.Buffers, ids))
	}
}

// used reports, for each buffer, whether any instruction reads or writes it.
func (s *Stage) used() []bool {
	used := make([]bool, len(s.Buffers))
	for _, body := range s.Bodies {
		for i := range body.Instrs {
			for _, id := range body.Instrs[i].Args {
				used[id] = true
			}
			for _, id := range body.Instrs[i].Results {
				used[id] = true
			}
		}
	}
	return used
}

// share places a parameter of another program, which lives in the arenas of s, where s has the same parameter.
// It returns false if s is nil or does not have it.
func (s *Stage) share(buf *Buffer) bool {
	if s == nil || buf.Value.Def.Op != ir.OpParam {
		return false
	}
	at, ok := s.Params[partition.BaseName(buf.Value.Def.Name)]
	if ok {
		if s.Buffers[at].Region != buf.Region {
			panic(fmt.Sprintf("BUG: %s is in the %s and in the %s region of programs that share it", buf.Value.Name(), s.Buffers[at].Region, buf.Region))
		}
		buf.Offset = s.Buffers[at].Offset
	}
	return ok
}

// The order of persistent buffers. What must survive between steps comes first, so that it is a prefix:
// [Stage.Durable].
const (
	rankWeight = iota
	rankState
	rankConst
	rankStep // step inputs, accumulators, outputs
)

func (s *Stage) rank(id int) int { return rankOf(s.Buffers[id].Value.Def) }

func rankOf(n *ir.Node) int {
	attr, _ := n.Attr.(ir.ParamAttr)
	switch {
	case n.Op == ir.OpParam && !attr.State:
		return rankWeight
	case n.Op == ir.OpParam:
		return rankState
	case n.Op == ir.OpConst:
		return rankConst
	}
	return rankStep
}

// filled is the time at which a buffer is first written: before all instructions if a sender or the runtime
// writes it.
func (b *Buffer) filled() int {
	switch b.Value.Def.Op {
	case ir.OpRecv, ir.OpInput:
		return -1
	}
	return b.From
}

func (b Buffer) String() string {
	if b.View {
		return fmt.Sprintf("%s view of b%d %d bytes live %d..%d %s", b.Region, b.Of, b.Size, b.From, b.To, b.Value.Name())
	}
	return fmt.Sprintf("%s+%d %d bytes live %d..%d %s", b.Region, b.Offset, b.Size, b.From, b.To, b.Value.Name())
}
