package checkpoint

import (
	"errors"
	"math"
	"slices"
	"strings"

	"github.com/autopar/autopar/checkpoint/torchfile"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
)

// Training is how far the run of a ckpt.pt has come, and the moments of its AdamW.
type Training struct {
	// Step is iter_num, the number of updates made: nanoGPT saves before the update of that iteration.
	Step int
	// Skipped is how many of these a loss scaler has skipped, so that AdamW does not count them.
	Skipped int
	BestVal *float32 // best_val_loss, which nanoGPT has measured before it saves; nil if the file has none
	// Settings are lr, beta1, beta2, eps and weight_decay, as far as the file has them.
	Settings map[string]float64

	of      *Weights
	moments *torchfile.File
	order   []string // the parameters, by their numbers in the optimizer's state
}

// Training returns how far the run has come that the weights are of. It returns nil if there is nothing to go on with: in files that
// are no ckpt.pt of nanoGPT's model, have no optimizer's state, or one from before the first update; and for a model with adapters,
// which trains others than the weights of the file. What does not fit the weights is an *Error.
func (w *Weights) Training() (*Training, error) {
	file, ok := w.file.(*torchfile.File)
	if !ok || w.layout != gpt.NanoGPT || w.cfg.LoRARank > 0 {
		return nil, nil
	}
	is, err := file.Training()
	if err != nil {
		return nil, &Error{File: w.path, Err: err}
	}
	if is == nil || len(is.Steps) == 0 && is.Iter == 0 {
		return nil, nil
	}
	switch {
	case is.Iter < 0 || is.Iter > math.MaxInt32:
		return nil, errorf(w.path, "", "iter_num is %d, must be between 0 and %d", is.Iter, math.MaxInt32)
	case len(is.Steps) == 0:
		return nil, errorf(w.path, "", "iter_num is %d, but optimizer.state is empty", is.Iter)
	}
	t := &Training{Step: int(is.Iter), Settings: is.Groups[0].Settings, of: w, moments: is.Moments}
	if is.BestVal != nil {
		best := float32(*is.BestVal)
		if t.BestVal = &best; math.IsNaN(*is.BestVal) || math.IsInf(float64(best), 0) {
			return nil, errorf(w.path, "", "best_val_loss is %v, want a finite number", *is.BestVal)
		}
	}
	for _, key := range []string{"beta1", "beta2", "eps", "weight_decay"} {
		x, stated := t.Settings[key]
		if stated && (!(x >= 0) || math.IsInf(x, 1) || x >= 1 && strings.HasPrefix(key, "beta") || x == 0 && key == "eps") {
			return nil, errorf(w.path, "", "optimizer.param_groups[0] has %s %v, out of range", key, x)
		}
	}
	if err := t.enumerate(is.Groups); err != nil {
		return nil, err
	}
	return t, t.check(is.Steps)
}

// enumerate numbers the parameters as nanoGPT's configure_optimizers does: first those of two dimensions, which decay, then the
// others, in the order of its modules. The head is the token table.
func (t *Training) enumerate(groups [2]torchfile.Group) error {
	var order [2][]string
	for _, p := range parameters(t.of.cfg) {
		group := 0
		if len(t.of.stored(p)[0].Shape) < 2 {
			group = 1
		}
		order[group] = append(order[group], p)
	}
	for i, want := range order {
		if n := groups[i].Params; n != len(want) {
			return errorf(t.of.path, "", "optimizer.param_groups[%d] has %d parameters, nanoGPT's of this model %d", i, n, len(want))
		}
	}
	t.order = slices.Concat(order[0], order[1])
	return nil
}

// check compares the optimizer's state with the weights.
func (t *Training) check(steps []float64) error {
	path, first := t.of.path, steps[0]
	if first < 0 || first > float64(t.Step) || first != math.Trunc(first) {
		return errorf(path, torchfile.Moment(0, "step"), "is %v, but iter_num %d: nanoGPT saves before the update of that iteration", first, t.Step)
	}
	t.Skipped = t.Step - int(first)
	for i, p := range t.order {
		name := t.of.stored(p)[0].Name
		if steps[i] != first {
			return errorf(path, torchfile.Moment(i, "step"), "of %s is %v, that of the first parameter %v", name, steps[i], first)
		}
		weight, err := t.of.file.Info(name)
		if err != nil {
			return &Error{File: path, Err: err}
		}
		for _, entry := range []string{"exp_avg", "exp_avg_sq"} {
			moment, err := t.moments.Info(torchfile.Moment(i, entry))
			if err != nil {
				return &Error{File: path, Err: err}
			}
			if !slices.Equal(moment.Shape, weight.Shape) {
				return errorf(path, moment.Name, "has shape %v, its parameter %s %v", moment.Shape, name, weight.Shape)
			}
		}
	}
	return nil
}

// Has reports whether a tensor of a run is a moment.
func (t *Training) Has(name string) bool {
	i, _ := t.moment(name)
	return i >= 0
}

// moment returns the number of a moment's parameter, -1 if name is none, and the entry of the optimizer's state that it is.
func (t *Training) moment(name string) (number int, entry string) {
	for _, entry := range []string{"exp_avg", "exp_avg_sq"} {
		if param, ok := strings.CutSuffix(name, "."+entry); ok {
			return slices.Index(t.order, param), entry
		}
	}
	return -1, ""
}

// Read implements [Reader] for the moments, as [Weights.Read] does for the weights.
func (t *Training) Read(name string, dtype ir.DType, slab ir.Slab, dst []byte) error {
	i, entry := t.moment(name)
	if i < 0 {
		return errorf(t.of.path, name, "is no moment of the optimizer")
	}
	stored := t.of.stored(t.order[i]) // one tensor, in this layout
	weight := stored[0].Name
	stored[0].Name = torchfile.Moment(i, entry)
	err := t.of.read(t.moments, stored, t.order[i], dtype, slab, dst)
	for at := 0; err == nil && entry == "exp_avg_sq" && at < len(dst); at += int(dtype.Size()) {
		if x := dtype.Read(dst[at:]); x < 0 {
			err = errorf(t.of.path, stored[0].Name, "holds %v, but is a mean of squares", x)
		}
	}
	if bad, is := errors.AsType[*Error](err); is {
		bad.Msg = strings.TrimSuffix("of "+weight+": "+bad.Msg, ": ")
	}
	return err
}

// Corrects returns an *Error if a run that counts all updates, because it has no loss scaler, corrects the bias of moments with these
// betas otherwise than this one.
func (t *Training) Corrects(betas ...float64) error {
	for _, beta := range betas {
		correction := func(updates int) float32 { return float32(1 - math.Pow(beta, float64(updates+1))) }
		if made := t.Step - t.Skipped; correction(made) != correction(t.Step) {
			return errorf(t.of.path, torchfile.Moment(0, "step"), "is %d, but iter_num %d: only a run with train.dtype float16 has a loss scaler, which skips updates", made, t.Step)
		}
	}
	return nil
}
