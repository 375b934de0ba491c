package runtime

import (
	"time"

	"github.com/autopar/autopar/ir"
)

// Span is one instruction as a rank ran it. Start and End are times since the start of the step, on
// one clock for all ranks. The time of a collective or receive includes waiting for the other
// ranks.
type Span struct {
	Rank       int
	Phase      ir.Phase
	MicroBatch int
	Op         ir.Op
	Name       string // of the node
	Start, End time.Duration
	Stream     Stream
	With       []string // the other nodes of its bucket
	// Part and Parts are those of the instruction: see [codegen.Instr].
	Part, Parts int
}

// Counters say what one rank communicated in one step. A transfer counts on both of its ends. Bytes
// are those of [codegen.Program.CommBytes].
type Counters struct {
	Collectives     int   // a bucket of the program counts once
	CollectiveBytes int64 // received
	Transfers       int
	TransferBytes   int64 // sent and received
	HostCopies      int   // fetches and stashes
	HostBytes       int64
}
