package measured

// Choose predicts rows that do not state their micro-batch, their recomputation or how they interleave stages. It takes each
// as the fastest plan that agrees with the row and fits in memory, because published step times are tuned ones. As the
// predictions depend on this choice, they do not count in the error of a source. Choose also returns the other rows.
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

// choose predicts the row as the fastest plan that agrees with it. It returns nil if none fits.
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
			cluster, err := c.cluster()
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

// completions lists the rows that agree with r and state what r leaves open: micro-batches of powers of two up to 8;
// recomputation of nothing, of attention, or in full; and for unstated schedules one or more stages of equal size per rank.
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
