package config

// Idle returns an error for every value that somebody wrote and that has no effect with the other
// values. These are no reason to refuse a configuration, as one key may have been changed as a
// trial. Values from a model preset are not reported, and neither are the keys of a learning-rate
// decay that is off, because a single key turns it off.
func (c *Config) Idle() (all []error) {
	o, standard := c.Optimizer, Default()
	for _, x := range []struct {
		key, lacks   string
		idle, differ bool
	}{
		{"model.rope_theta", "position rope", c.Model.Position != "rope", c.Model.RopeTheta != standard.Model.RopeTheta},
		{"optimizer.step_iters", "schedule step", o.Schedule != Step, o.StepIters != standard.Optimizer.StepIters},
		{"optimizer.step_factor", "schedule step", o.Schedule != Step, o.StepFactor != standard.Optimizer.StepFactor},
		{"optimizer.warmup_from_zero", "warmup_iters of at least 1", o.WarmupIters == 0, o.WarmupFromZero},
	} {
		at, written := c.origins[x.key]
		preset, named := c.origins["model.preset"]
		if x.idle && x.differ && written && !(named && at == preset) {
			all = append(all, c.refuse(x.key, "has no effect: it is for %s", x.lacks))
		}
	}
	return all
}
