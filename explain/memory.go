package explain

import (
	"cmp"
	"slices"

	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/ir"
)

// Memory is what the arena of a rank consists of, in bytes:
// Arena = Persist + Temp + the sum over Chunks of (Slots x Slot + Inboxes x Inbox).
type Memory struct {
	Arena   int64   `json:"arena"`
	Persist int64   `json:"persist"`
	Chunks  []Chunk `json:"chunks"`
	Temp    int64   `json:"temp"`
	Host    int64   `json:"host,omitempty"` // the arena in host memory, not part of Arena
	// Parts add up to Persist: one per kind of tensor, and the padding between buffers.
	Parts []Part `json:"persist_parts"`
	// TempPeak is the moment with the most live bytes in temporary buffers. The temporary region may be larger: the
	// difference is fragmentation between buffers of different lifetimes.
	TempPeak Peak `json:"temp_peak"`
}

// Chunk is the memory that a rank has for the micro-batches in flight through one stage of the plan.
type Chunk struct {
	Stage   int   `json:"stage"` // of the plan
	Slots   int   `json:"slots"` // micro-batches in flight
	Slot    int64 `json:"slot"`
	Inboxes int   `json:"inboxes"` // micro-batches that may have arrived from the stage before
	Inbox   int64 `json:"inbox"`
	// SlotPeak is the moment with the most live bytes in a slot, as TempPeak is in the temporary region.
	SlotPeak Peak `json:"slot_peak"`
}

// Part is a share of the persistent region.
type Part struct {
	Kind  string `json:"kind"`
	Bytes int64  `json:"bytes"`
}

// KindPadding names the part that aligns buffers to cache lines.
const KindPadding = "padding"

// Peak is the moment of a micro-batch at which a region has the most live bytes.
type Peak struct {
	At    string `json:"at"`    // name of the instruction that runs
	Phase string `json:"phase"` // its phase
	Bytes int64  `json:"bytes"` // live
	// Largest lists the largest live buffers, at most ten.
	Largest []Live `json:"largest"`
}

// Live is a live buffer.
type Live struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
}

// largestShown bounds the buffers listed for a peak.
const largestShown = 10

// memory describes the arena of a stage of a pipeline with so many stages. tensors are those of the stage.
func memory(code *codegen.Stage, stages int, tensors []Tensor) Memory {
	m := Memory{Arena: code.Arena(), Persist: code.Persist, Temp: code.Temp, Host: code.Host}
	rest := code.Persist
	for _, kind := range kinds() {
		var sum int64
		for _, t := range tensors {
			if t.Kind == kind && t.Region == codegen.Persist.String() {
				sum += int64(t.Count) * t.Bytes
			}
		}
		rest -= sum
		if sum > 0 {
			m.Parts = append(m.Parts, Part{kind, sum})
		}
	}
	m.Parts = append(m.Parts, Part{KindPadding, rest})

	slot := make([][]int, len(code.Chunks))
	var temp [ir.NumPhases][]int
	for _, id := range occupied(code) {
		switch b := &code.Buffers[id]; b.Region {
		case codegen.Slot:
			slot[b.Chunk] = append(slot[b.Chunk], id)
		case codegen.Temp:
			temp[b.Body] = append(temp[b.Body], id)
		}
	}
	var passes []codegen.Instr
	for _, body := range code.Bodies {
		passes = append(passes, body.Instrs...)
	}
	for i, c := range code.Chunks {
		m.Chunks = append(m.Chunks, Chunk{
			Stage: code.Index + i*stages, Slots: c.Slots, Slot: c.Slot, Inboxes: c.Inboxes, Inbox: c.Inbox,
			SlotPeak: peak(code, slot[i], passes),
		})
	}
	for phase, ids := range temp {
		if p := peak(code, ids, code.Bodies[phase].Instrs); p.Bytes > m.TempPeak.Bytes {
			m.TempPeak = p
		}
	}
	return m
}

// peak finds the first instruction at which the live ones of the listed buffers have the most bytes. Lifetimes count
// in instrs.
func peak(code *codegen.Stage, ids []int, instrs []codegen.Instr) Peak {
	if len(ids) == 0 || len(instrs) == 0 {
		return Peak{}
	}
	change := make([]int64, len(instrs)+1)
	for _, id := range ids {
		b := &code.Buffers[id]
		change[b.From] += b.Size
		change[b.To+1] -= b.Size
	}
	var live, most int64
	at := 0
	for i, c := range change {
		if live += c; live > most {
			most, at = live, i
		}
	}
	p := Peak{At: instrs[at].Node.Name, Phase: instrs[at].Node.Phase.String(), Bytes: most}
	for _, id := range ids {
		if b := &code.Buffers[id]; b.From <= at && at <= b.To {
			p.Largest = append(p.Largest, Live{b.Value.Name(), b.Size})
		}
	}
	slices.SortStableFunc(p.Largest, func(a, b Live) int { return cmp.Compare(b.Bytes, a.Bytes) })
	p.Largest = p.Largest[:min(len(p.Largest), largestShown)]
	return p
}
