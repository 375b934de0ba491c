package measured

import (
	"fmt"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
)

// Case is a compiled row, which can be priced.
type Case struct {
	Row
	estimator  *planner.Estimator
	footprints []planner.Footprint // by position of the pipeline
	device     int64               // memory of a GPU, in bytes
}

// newCase makes a case of a row and the estimator of its plan. It fails if the row's cluster cannot compute in its type.
func newCase(r Row, e *planner.Estimator) (*Case, error) {
	cluster, err := r.cluster()
	if err != nil {
		return nil, err
	}
	if _, stated := cluster.Device.FLOPS["f8"]; r.DType == "fp8" && !stated {
		return nil, fmt.Errorf("dtype is fp8, which %s does not compute in", cluster.Device.Name)
	}
	return &Case{r, e, e.Footprints(), cluster.Device.Memory}, nil
}

// Predict prices the case on a cluster: that of its row, or the same with other figures.
func (c *Case) Predict(cluster *cost.Cluster) Outcome {
	p := c.estimator.Price(c.equipped(cluster))
	o := Outcome{Row: c.Row, PredictedSeconds: p.Step.Seconds()}
	m := defaultMemory()
	c.judge(&o, &m, cluster.Device.Memory)
	return o
}

// alike returns a key that is equal for rows that share one compilation: those that differ only in micro-batch, recomputation,
// kernels, and what was measured.
func (r *Row) alike() string {
	same := *r
	same.Line, same.ID, same.Source, same.Ref, same.ModelName, same.Confidence, same.Note = 0, "", "", "", "", "", ""
	same.MicroBatch, same.Recompute, same.RecomputeNote = 0, "", ""
	same.StepSeconds, same.Peak, same.PeakKind, same.Fits = 0, 0, "", nil
	same.FlashAttention, same.FlashAttention2, same.Compiled, same.FusedNorm, same.Kernels = false, false, false, false, ""
	return fmt.Sprintf("%+v %t", same, r.model().Bias)
}

// families groups the indices of rows that share one compilation, in order of appearance. Cases of a family share an
// estimator, so they must not be priced concurrently.
func families(rows []Row) [][]int {
	at := map[string]int{}
	var all [][]int
	for i := range rows {
		key := rows[i].alike()
		k, known := at[key]
		if !known {
			k = len(all)
			at[key], all = k, append(all, nil)
		}
		all[k] = append(all[k], i)
	}
	return all
}

// compile compiles the rows of a family. For each it returns the case or an error.
func compile(rows []Row) ([]*Case, []error) {
	cases, errs := make([]*Case, len(rows)), make([]error, len(rows))
	var first *planner.Estimator
	for i, r := range rows {
		plan, err := r.plan()
		if err == nil && first != nil {
			var e *planner.Estimator
			if e, err = first.For(plan); err == nil {
				cases[i], err = newCase(r, e)
			}
		} else if err == nil {
			cases[i], err = compileAlone(r)
			if err == nil {
				first = cases[i].estimator
			}
		}
		errs[i] = err
	}
	return cases, errs
}

// compileAlone compiles a row by itself.
func compileAlone(r Row) (*Case, error) {
	plan, err := r.plan()
	if err != nil {
		return nil, err
	}
	cluster, err := r.cluster()
	if err != nil {
		return nil, err
	}
	g, err := r.graph()
	if err != nil {
		return nil, err
	}
	e, err := planner.NewEstimator(g, r.GlobalBatch, cluster, plan, r.pins()...)
	if err != nil {
		return nil, err
	}
	return newCase(r, e)
}

// parallel calls f for every number from 0 to n-1, on all processors, and returns when all calls have.
func parallel(n int, f func(i int)) {
	var next atomic.Int64
	var group sync.WaitGroup
	for range min(goruntime.GOMAXPROCS(0), n) {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	group.Wait()
}

// compileAll compiles rows, and returns the cases by family and the rows that cannot be modelled. It calls progress, unless that
// is nil, with the number of rows that are done: 1, 2, 3 and so on, one call at a time.
func compileAll(rows []Row, progress func(done int)) ([][]*Case, []Skipped) {
	all := families(rows)
	cases, errs := make([][]*Case, len(all)), make([]error, len(rows))
	var telling sync.Mutex
	done := 0
	parallel(len(all), func(k int) {
		family := make([]Row, len(all[k]))
		for i, at := range all[k] {
			family[i] = rows[at]
		}
		compiled, failed := compile(family)
		for i, at := range all[k] {
			if errs[at] = failed[i]; failed[i] == nil {
				cases[k] = append(cases[k], compiled[i])
			}
		}
		if progress != nil {
			telling.Lock()
			defer telling.Unlock()
			for range all[k] {
				done++
				progress(done)
			}
		}
	})
	var skipped []Skipped
	for i, err := range errs {
		if err != nil {
			skipped = append(skipped, Skipped{rows[i], err.Error()})
		}
	}
	return slices.DeleteFunc(cases, func(f []*Case) bool { return len(f) == 0 }), skipped
}

// Evaluate predicts rows, each on its own cluster. It returns the outcomes in the order of the table, and the rows that cannot
// be modelled. It calls progress, unless that is nil, with the number of rows that are done, one call at a time.
func Evaluate(rows []Row, progress func(done int)) ([]Outcome, []Skipped) {
	cases, skipped := compileAll(rows, progress)
	outcomes := make([][]Outcome, len(cases))
	parallel(len(cases), func(k int) {
		for _, c := range cases[k] {
			cluster, err := c.cluster()
			if err != nil {
				panic("BUG: compiled on " + err.Error())
			}
			outcomes[k] = append(outcomes[k], c.Predict(cluster))
		}
	})
	out := slices.Concat(outcomes...)
	slices.SortFunc(out, func(a, b Outcome) int { return a.Line - b.Line })
	return out, skipped
}
