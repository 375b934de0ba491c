package measured

// Choose predicts rows that do not state their micro-batch, their recomputation or how
// they interleave stages, each as the fastest of the plans that agree with it and fit in
// memory: who publishes a step time has tuned it. What is said of these rows hangs on
// that choice, so they belong to no source's error. Those that remain are returned too.
func Choose(skipped []Skipped) ([]Outcome, []Skipped) {
	chosen := make([]*Outcome, len(skipped))
	parallel(len(skipped), func(i int) { chosen[i] = skipped[i].choose() })
	var all []Outcome
	var left []Skipped
	for i, c := range chosen {
		if c == nil {
			left = append(left, skipped[i])
		} else {
			all = append(all, *c)
		}
	}
	return all, left
}

// choose returns the row as the fastest plan, nil if none fits.
func (r *Row) choose() *Outcome {
	if r.StepSeconds == 0 {
		return nil
	}
	var best *Outcome
	rows := r.completions()
	for _, of := range families(rows) {
		var family []Row
		for _, at := range of {
			family = append(family, rows[at])
		}
		cases, errs := compile(family)
		for i, c := range cases {
			if errs[i] != nil {
				continue
			}
			cluster, err := c.Cluster()
			if err != nil {
				panic("BUG: compiled on " + err.Error())
			}
			if o := c.Predict(cluster); o.PredictedFits && (best == nil || o.PredictedSeconds < best.PredictedSeconds) {
				best = &o
			}
		}
	}
	return best
}

// completions lists the rows that state what r leaves open: micro-batches are powers of
// two up to 8, recomputation is none, that of attention or full, and stages of unstated
// schedules are one or more of equal size a rank.
func (r *Row) completions() []Row {
	sizes, extents, chunks := []int{r.MicroBatch}, []string{r.Recompute}, []int{r.VirtualStages}
	if r.MicroBatch == 0 {
		sizes = nil
		for b := 1; b <= 8 && r.GlobalBatch%(b*r.DP) == 0; b *= 2 {
			sizes = append(sizes, b)
		}
	}
	if r.Recompute == "unstated" {
		extents = []string{"none", "selective", "full"}
	}
	if r.Schedule == "unstated" && r.PP > 1 && r.Layers%r.PP == 0 {
		chunks = nil
		for v := 1; v <= r.Layers/r.PP; v++ {
			if r.Layers/r.PP%v == 0 {
				chunks = append(chunks, v)
			}
		}
	}
	var all []Row
	for _, v := range chunks {
		for _, b := range sizes {
			for _, e := range extents {
				c := *r
				c.VirtualStages, c.MicroBatch, c.Recompute = v, b, e
				all = append(all, c)
			}
		}
	}
	return all
}
