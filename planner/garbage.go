package planner

import (
	"runtime/debug"
	"runtime/metrics"
)

// A search makes some tens of megabytes that it mostly keeps to its end. With the usual GOGC
// the collector would go through them half a dozen times while the heap is small, which took
// a fifth of the time of one that takes a tenth of a second.

// quietHeap is how large the heap may grow in a search before it is collected, in bytes, as
// long as less than half of that is in use.
const quietHeap = 64 << 20

// quiet keeps the collector from starting before the heap has [quietHeap].
type quiet struct {
	was, percent int              // GOGC, before and in between
	live         []metrics.Sample // bytes in use after the last collection
}

func newQuiet() *quiet {
	q := &quiet{live: []metrics.Sample{{Name: "/gc/heap/live:bytes"}}}
	q.percent = q.late()
	if q.was = debug.SetGCPercent(q.percent); q.was < 0 || q.was >= q.percent {
		q.end()
	}
	return q
}

// late is the GOGC under which a heap of [quietHeap] is collected.
func (q *quiet) late() int {
	metrics.Read(q.live)
	const smallest = 4 << 20 // the runtime collects no heap that is smaller, times GOGC / 100
	percent := 100 * quietHeap / smallest
	if live := q.live[0].Value.Uint64(); live > 0 {
		percent = min(percent, int(100*quietHeap/live)-100)
	}
	return percent
}

// heed has it end when so much is in use that it makes no difference any more. There may be none.
func (q *quiet) heed() {
	if q == nil || q.percent == q.was {
		return
	}
	switch late := q.late(); {
	case late <= q.was:
		q.end()
	case late < q.percent:
		q.set(late)
	}
}

func (q *quiet) end() { q.set(q.was) }

// set leaves GOGC as it is if another search that has ended, or anybody else, has set it since.
func (q *quiet) set(percent int) {
	if now := debug.SetGCPercent(percent); now != q.percent {
		debug.SetGCPercent(now)
		percent = q.was
	}
	q.percent = percent
}
