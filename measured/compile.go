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

// Case is a row compiled, to be priced.
type Case struct {
	Row
	estimator  *planner.Estimator
	footprints []planner.Footprint // by position of the pipeline
	device     int64               // bytes of a GPU
}

// newCase is a row with what stands for its plan, on its cluster.
func newCase(r Row, e *planner.Estimator) (*Case, error) {
	cluster, err := r.Cluster()
	if err != nil {
		return nil, err
	}
	if _, stated := cluster.Device.FLOPS["f8"]; r.DType == "fp8" && !stated {
		return nil, fmt.Errorf("dtype is fp8, which %s does not compute in", cluster.Device.Name)
	}
	return &Case{r, e, e.Footprints(), cluster.Device.Memory}, nil
}

// Predict prices the case on the cluster of its row, or one with other figures.
func (c *Case) Predict(cluster *cost.Cluster) Outcome {
	p := c.estimator.Price(c.equipped(cluster))
	o := Outcome{Row: c.Row, PredictedSeconds: p.Step.Seconds()}
	m := DefaultMemory()
	c.judge(&o, &m, cluster.Device.Memory)
	return o
}

// alike is the same for rows of which one compilation serves all: those that differ
// in micro-batch and recomputation.
func (r *Row) alike() string {
	same := *r
	same.Line, same.ID, same.Source, same.Ref, same.ModelName, same.Confidence, same.Note = 0, "", "", "", "", "", ""
	same.MicroBatch, same.Recompute, same.RecomputeNote = 0, "", ""
	same.StepSeconds, same.Peak, same.PeakKind, same.Fits = 0, 0, "", nil
	same.FlashAttention, same.FlashAttention2, same.Compiled, same.FusedNorm, same.Kernels = false, false, false, false, ""
	return fmt.Sprintf("%+v %t", same, r.Model().Bias)
}

// families groups rows by what can be compiled together, in order of appearance.
// Cases of one family share an estimator and are priced one after the other.
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

// compile compiles the rows of a family; of each it returns the case or an error.
func compile(rows []Row) ([]*Case, []error) {
	cases, errs := make([]*Case, len(rows)), make([]error, len(rows))
	var first *planner.Estimator
	for i, r := range rows {
		plan, err := r.Plan()
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

func compileAlone(r Row) (*Case, error) {
	plan, err := r.Plan()
	if err != nil {
		return nil, err
	}
	cluster, err := r.Cluster()
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

// parallel calls f for every number below n, on all processors.
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

// compileAll compiles rows by families, and lists those that cannot be modelled.
// progress is told how many are done; it may be nil.
func compileAll(rows []Row, progress func(done int)) ([][]*Case, []Skipped) {
	all := families(rows)
	cases, errs := make([][]*Case, len(all)), make([]error, len(rows))
	var done atomic.Int64
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
			if n := int(done.Add(1)); progress != nil {
				progress(n)
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

// Evaluate predicts rows on the built-in clusters, in the order of the table, and
// lists those that cannot be modelled. progress is told how many are done; it may
// be nil.
func Evaluate(rows []Row, progress func(done int)) ([]Outcome, []Skipped) {
	cases, skipped := compileAll(rows, progress)
	outcomes := make([][]Outcome, len(cases))
	parallel(len(cases), func(k int) {
		for _, c := range cases[k] {
			cluster, err := c.Cluster()
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
