package config

// Idle returns an error for every value that somebody wrote and that has no effect with the other
// values. These are no reason to refuse a configuration, as one key may have been changed as a
// trial. Values from a model preset are not reported, and neither are the keys of a learning-rate
// decay that is off, because a single key turns it off.
func (c *Config) Idle() (all []error) {
	m, o, standard := c.Model, c.Optimizer, Default()
	for _, x := range []struct {
		key, lacks   string
		idle, differ bool
	}{
		{"model.rope_theta", "position rope", m.Position != "rope", m.RopeTheta != standard.Model.RopeTheta},
		{"model.rope_factor", "position rope", m.Position != "rope", m.RopeFactor != 0},
		{"model.rope_low_freq_factor", "rope_factor", m.RopeFactor == 0, m.RopeLowFreq != 0},
		{"model.rope_high_freq_factor", "rope_factor", m.RopeFactor == 0, m.RopeHighFreq != 0},
		{"model.rope_original_block_size", "rope_factor", m.RopeFactor == 0, m.RopeOriginalSize != 0},
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
