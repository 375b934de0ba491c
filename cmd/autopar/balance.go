package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/infile"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/wholefile"
)

// balancer decides, in rank 0 of a launched job, whether the job goes on by a plan in which slow ranks have fewer sequences.
type balancer struct {
	con   *console
	doc   *planner.Document
	to    string        // the file that the launcher reads such a plan from
	start time.Duration // how long this process took until it trained: about what another start costs

	// Shares that do not pay are judged once, unless ranks become slower still.
	judged []int
	slow   float64 // how slow the slowest was then; 0 before
}

const (
	// worthwhile is by which part of its time a step must become faster. Smaller differences of speed come and go.
	worthwhile = 0.2
	// slowRank is how many times as long as at the median speed a rank takes of which the log says that nothing helps.
	slowRank = 2
	// slower is how many times as slow the slowest rank must become for shares to be judged again.
	slower = 1.5
)

// judge is told how many times as long as expected each rank computes, relative to the median, and how long the rest of the run
// takes. It writes a better plan if there is one, and then returns true.
func (b *balancer) judge(times []float64, rest time.Duration) bool {
	shares := planner.Shares(b.doc.Plan, b.doc.Config.Batch.Global, times)
	slowest := slices.Max(times)
	rank := slices.Index(times, slowest)
	if slices.Equal(shares, b.judged) && slowest < slower*b.slow {
		return false
	}
	none := func(format string, args ...any) bool {
		b.judged, b.slow = shares, slowest
		if slowest > slowRank && b.doc.Plan.BatchShares == nil {
			b.con.note("balance: rank %d computes %.1f times as long as at the median speed; the plan stays: "+format, append([]any{rank, slowest}, args...)...)
		}
		return false
	}
	if slices.Equal(shares, b.doc.Plan.BatchShares) {
		return none("no data-parallel rank can have fewer sequences")
	}
	next, err := planner.Balance(b.doc, shares, times)
	if err != nil {
		return none("with other shares of the batch: %v", err)
	}
	gain := 1 - next.Now.Seconds()/next.Was.Seconds()
	saves := time.Duration(gain * float64(rest))
	switch {
	case next.Lacks > 0:
		return none("with the batch shared as %s a rank lacks %s of memory", ir.SharesText(next.Plan.BatchShares), explain.Bytes(next.Lacks))
	case gain < worthwhile:
		return none("with the batch shared as %s a step is predicted to take %s less, too little to start anew", ir.SharesText(next.Plan.BatchShares), percentText(max(0, gain)))
	case saves < b.start:
		return none("with the batch shared as %s the rest is predicted to take %s less, but a start takes %s",
			ir.SharesText(next.Plan.BatchShares), explain.Seconds(saves.Seconds()), explain.Seconds(b.start.Seconds()))
	}
	text, err := next.Marshal()
	if err == nil {
		err = wholefile.Write(b.to, text)
	}
	if err != nil {
		return none("%v", err)
	}
	fastest := slices.Min(times)
	b.con.note("balance: ranks compute %.1f (rank %d) to %.1f (rank %d) times as long as at the median speed; with %s a step is predicted to take %s less",
		fastest, slices.Index(times, fastest), slowest, rank, sharedText(next), percentText(gain))
	return true
}

// sharedText says how the batch of a plan is shared.
func sharedText(d *planner.Balanced) string {
	if d.Plan.BatchShares == nil {
		return "equal shares of the batch"
	}
	return "the batch shared as " + ir.SharesText(d.Plan.BatchShares)
}

// nextPlan passes plans from rank 0 to the launcher on machine 0, through a file. The zero value passes none.
type nextPlan struct {
	dir   string
	plans map[int][]byte // the newest by number of ranks
}

func (n *nextPlan) open() (err error) {
	n.plans = map[int][]byte{}
	if n.dir, err = os.MkdirTemp("", "autopar-"); err != nil {
		return usagef("launch: --rebalance makes a directory for plans in %s, which TMPDIR names: %v", os.TempDir(), infile.WithoutPath(err))
	}
	return nil
}

func (n *nextPlan) close() { os.RemoveAll(n.dir) }

// file is where rank 0 writes a plan, or "".
func (n *nextPlan) file() string {
	if n.dir == "" {
		return ""
	}
	return filepath.Join(n.dir, "plan.json")
}

// of takes what rank 0 has written, and returns the newest plan of some number of ranks, or nil.
func (n *nextPlan) of(con *console, ranks int) []byte {
	n.take(con)
	return n.plans[ranks]
}

// take takes the plan that rank 0 has written, and reports whether there is one.
func (n *nextPlan) take(con *console) bool {
	file := n.file()
	if file == "" {
		return false
	}
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	var doc *planner.Document
	if err == nil {
		doc, err = planner.ParseDocument(file, text)
	}
	if err = errors.Join(err, os.Remove(file)); err != nil {
		con.note("balance: %v", err)
		return false
	}
	n.plans[doc.Plan.RuntimeNGPUs] = text
	con.note("goes on by %s", explain.PlanText(doc.Plan))
	return true
}
