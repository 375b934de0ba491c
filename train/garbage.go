package train

import (
	goruntime "runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// garbage has what a run leaves behind collected between its steps, when no rank computes.
// A step leaves nothing, but logs, evaluations and checkpoints do; a collection that begins
// in a step stops the ranks in it until the last is out of its kernel, and one that begins
// between two stops nobody.
type garbage struct {
	percent int              // GOGC, as it was
	heap    []metrics.Sample // bytes in use, and what was in use after the last collection
	last    time.Time        // collection
}

const (
	// headroom is how many bytes a run may leave beside as many as it keeps: as few as the
	// collector's own smallest heap.
	headroom = 4 << 20
	// idleTime is how long a run goes on without a collection. After two minutes the
	// collector would begin one by itself, in a step.
	idleTime = time.Minute
	// backstop is the GOGC of a run: it begins collections only where one step leaves much.
	backstop = 400
)

// collectGarbage begins with a collection. The caller calls between after each step, and
// restore in the end.
func collectGarbage() *garbage {
	g := &garbage{heap: []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/live:bytes"}}}
	if g.percent = debug.SetGCPercent(backstop); g.percent < 0 { // whoever turns it off wants none
		g.restore()
	} else {
		g.collect()
	}
	return g
}

// restore leaves GOGC as it is if another run that has ended, or anybody else, has set it since.
func (g *garbage) restore() {
	if now := debug.SetGCPercent(g.percent); now != backstop {
		debug.SetGCPercent(now)
	}
}

func (g *garbage) collect() {
	goruntime.GC()
	g.last = time.Now()
}

// between collects if there is reason to.
func (g *garbage) between() {
	if g.percent < 0 {
		return
	}
	metrics.Read(g.heap)
	if g.heap[0].Value.Uint64() > 2*g.heap[1].Value.Uint64()+headroom || time.Since(g.last) > idleTime {
		g.collect()
	}
}
