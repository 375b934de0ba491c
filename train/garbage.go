package train

import (
	goruntime "runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// garbage runs Go's garbage collections between steps, when no rank computes. A step leaves no
// garbage, but logs, evaluations and checkpoints do. A collection that starts during a step stops
// each rank until the last one is out of its kernel; one that starts between two steps stops
// nobody.
type garbage struct {
	percent int              // GOGC before the run
	heap    []metrics.Sample // bytes in use, and bytes in use after the last collection
	last    time.Time        // time of the last collection
}

const (
	// A collection is due when more than twice the live bytes plus headroom are in use. headroom is
	// the collector's own smallest heap.
	headroom = 4 << 20
	// idleTime is the longest time without a collection. After two minutes the collector would
	// start one by itself, during a step.
	idleTime = time.Minute
	// backstop is the GOGC of a run. With it a collection starts by itself only if one step leaves
	// much garbage.
	backstop = 400
)

// collectGarbage takes over garbage collection, and collects. The caller calls between after each
// step, and restore at the end.
func collectGarbage() *garbage {
	g := &garbage{heap: []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/live:bytes"}}}
	if g.percent = debug.SetGCPercent(backstop); g.percent < 0 { // GOGC=off: the user wants no collections
		g.restore()
	} else {
		g.collect()
	}
	return g
}

// restore restores GOGC, unless somebody else (such as another run that has ended) has changed it
// since.
func (g *garbage) restore() {
	if now := debug.SetGCPercent(g.percent); now != backstop {
		debug.SetGCPercent(now)
	}
}

func (g *garbage) collect() {
	goruntime.GC()
	g.last = time.Now()
}

// between collects if it is due.
func (g *garbage) between() {
	if g.percent < 0 {
		return
	}
	metrics.Read(g.heap)
	if g.heap[0].Value.Uint64() > 2*g.heap[1].Value.Uint64()+headroom || time.Since(g.last) > idleTime {
		g.collect()
	}
}
