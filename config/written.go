package config

// CheckWritten refuses a value that somebody wrote and that can have no effect beside the others: unlike Validate, it is for a
// file that is read to be used, not for what plans and checkpoints say they were made with. What a preset says of a model is
// left, and so is what says how a learning rate decays that is constant: one key turns decay off.
func (c *Config) CheckWritten() error {
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
			return c.refuse(x.key, "has no effect: it is for %s", x.lacks)
		}
	}
	return nil
}
