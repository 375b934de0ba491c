package trace

import "github.com/autopar/autopar/ir"

// Scaler is a loss scaler, torch.amp.GradScaler as part of the step [Micikevicius
// et al. 2018, section 3.2].
type Scaler struct {
	Scale   Tensor // factor of the loss
	good    Tensor // consecutive finite steps
	skipped Tensor // skipped steps in total; after Step, including this one
}

// LossScaler declares a scaler's state, three f32 scalars: loss_scale, which
// starts at init, loss_scale.good and loss_scale.skipped.
func (t *Tracer) LossScaler(init float64) *Scaler {
	t = t.Float(ir.F32)
	return &Scaler{
		Scale:   t.Param("loss_scale", nil, ir.ParamAttr{Init: ir.InitConstant, Value: init, State: true}),
		good:    t.Param("loss_scale.good", nil, ir.ParamAttr{State: true}),
		skipped: t.Param("loss_scale.skipped", nil, ir.ParamAttr{State: true}),
	}
}

// Step ends the step of the scaler. norm is that of the scaled gradients. The result is the factor that
// unscales them and their norm: 1/scale, or 0 if norm is not finite and the step is to be skipped. The next
// scale and the number of skipped steps become the outputs loss_scale and skipped_steps.
func (s *Scaler) Step(t *Tracer, norm Tensor, attr ir.LossScaleAttr) (unscale Tensor) {
	r := t.record(ir.OpLossScale, attr, s.Scale, s.good, s.skipped, norm)
	t.Update(s.Scale, r[0])
	t.Update(s.good, r[1])
	t.Update(s.skipped, r[2])
	t.Output("loss_scale", r[0])
	t.Output("skipped_steps", r[2])
	s.skipped = r[2]
	return r[3]
}

// Optimizer says how [Tracer.AdamW] updates weights.
type Optimizer struct {
	ir.AdamWAttr
	// Master keeps an f32 copy of every 16-bit weight, <weight>.master, and moments in f32. The copy is
	// updated, and the weight is the copy rounded.
	Master bool
	// Scaler, if not nil, decides which steps are skipped: those whose clip is not positive. They do not count
	// in the bias corrections.
	Scaler *Scaler
}

// AdamW makes the next value of weight by one AdamW step at rate lr, from its gradient times clip. It declares
// the two moments, <weight>.exp_avg and .exp_avg_sq, as state. Weights declared without Decay are not decayed,
// whatever o says.
func (t *Tracer) AdamW(weight, grad, clip, lr, step Tensor, o Optimizer) {
	if t.rec.err != nil || !t.owns(weight) {
		return
	}
	defer t.rec.hold()()
	declared, ok := weight.v.Def.Attr.(ir.ParamAttr)
	if !ok {
		t.Failf("adamw: %s is not a parameter", describe(weight))
		return
	}
	if !declared.Decay {
		o.WeightDecay = 0
	}
	root := &Tracer{rec: t.rec, phase: t.phase, float: weight.v.Type.DType}
	updated := weight
	master := o.Master && root.float.Half()
	if master {
		root.float = ir.F32
		attr := declared
		attr.State, attr.Master = true, weight.Name()
		updated = root.Param(weight.Name()+".master", weight.Shape(), attr)
	}
	state := ir.ParamAttr{Init: ir.InitZeros, State: true}
	m := root.Param(weight.Name()+".exp_avg", weight.Shape(), state)
	v := root.Param(weight.Name()+".exp_avg_sq", weight.Shape(), state)
	args := []Tensor{updated, m, v, grad, clip, lr, step}
	if o.Scaler != nil {
		args = append(args, o.Scaler.skipped)
	}
	next := t.recordAs(weight.Name(), ir.OpAdamW, o.AdamWAttr, args...)
	if master {
		rounded := t.recordAs(weight.Name(), ir.OpCast, ir.CastAttr{To: weight.v.Type.DType}, next[0])
		t.Update(weight, rounded[0])
	}
	t.Update(updated, next[0])
	t.Update(m, next[1])
	t.Update(v, next[2])
}
