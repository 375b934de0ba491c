package torchfile

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/autopar/autopar/checkpoint/safetensors"
	"github.com/autopar/autopar/pickle"
)

// Training is what nanoGPT's ckpt.pt has of a run beside its weights.
type Training struct {
	Iter    int64     // iter_num
	BestVal *float64  // best_val_loss, nil if the file has none
	Groups  [2]Group  // of the optimizer's parameters, which are numbered over both: those that decay, and the others
	Steps   []float64 // the updates that AdamW counts, by number of the parameter; none before the first update
	// Moments has the tensors that [Moment] names.
	Moments *File
}

// Group is a group of parameters of an optimizer.
type Group struct {
	Params int // how many
	// Settings are lr, beta1, beta2, eps and weight_decay, as far as the file has them as numbers.
	Settings map[string]float64
}

// Moment names the entry of the optimizer's state for a parameter, by its number: step, exp_avg or exp_avg_sq.
func Moment(i int, entry string) string { return fmt.Sprintf("optimizer.state[%d].%s", i, entry) }

// Training returns what the file has of a run, nil if it has no state of an optimizer. [New] does not look at that, so that the
// weights of a file can be read whatever is beside them.
func (f *File) Training() (*Training, error) {
	if f.beside["optimizer"] == nil {
		return nil, nil
	}
	t := &Training{Moments: &File{name: f.name, data: f.data, tensors: map[string]tensor{}}}
	if err := f.training(t); err != nil {
		return nil, fmt.Errorf("torchfile: %s: %w", f.name, err)
	}
	return t, nil
}

func (f *File) training(t *Training) (err error) {
	var ok bool
	if t.Iter, ok = f.beside["iter_num"].(int64); !ok {
		return fmt.Errorf("iter_num is %s, want an integer", pickle.Describe(f.beside["iter_num"]))
	}
	if v := f.beside["best_val_loss"]; v != nil {
		best, err := f.number("best_val_loss", v)
		if err != nil {
			return err
		}
		t.BestVal = &best
	}
	optimizer, _ := f.beside["optimizer"].(pickle.Dict)
	groups, ok1 := optimizer["param_groups"].(*pickle.List)
	state, ok2 := optimizer["state"].(pickle.Dict)
	if !ok1 || !ok2 {
		return fmt.Errorf("optimizer is %s, want a dict with a list param_groups and a dict state", pickle.Describe(f.beside["optimizer"]))
	}
	if n := len(groups.Items); n != len(t.Groups) {
		return fmt.Errorf("optimizer.param_groups has %d groups, want nanoGPT's %d", n, len(t.Groups))
	}
	total := 0
	for i, v := range groups.Items {
		if t.Groups[i], err = group(v, total); err != nil {
			return fmt.Errorf("optimizer.param_groups[%d]%w", i, err)
		}
		total += t.Groups[i].Params
	}
	switch {
	case len(state) == 0:
		return nil
	case len(state) != total:
		return fmt.Errorf("optimizer.state has %d entries, but param_groups %d parameters", len(state), total)
	}
	t.Steps = make([]float64, total)
	for i := range total {
		if err := f.moments(t, i, state[int64(i)]); err != nil {
			return err
		}
	}
	return nil
}

// group reads a group whose first parameter has the given number.
func group(v any, first int) (Group, error) {
	dict, _ := v.(pickle.Dict)
	params, ok := dict["params"].(*pickle.List)
	if !ok {
		return Group{}, fmt.Errorf(" is %s, want a dict with a list params", pickle.Describe(v))
	}
	g := Group{Params: len(params.Items), Settings: map[string]float64{}}
	for i, p := range params.Items {
		if p != any(int64(first+i)) {
			return Group{}, fmt.Errorf(".params[%d] is %s, want %d", i, pickle.Describe(p), first+i)
		}
	}
	settings := map[string]any{"lr": dict["lr"], "eps": dict["eps"], "weight_decay": dict["weight_decay"]}
	if betas, _ := dict["betas"].(pickle.Tuple); len(betas) == 2 {
		settings["beta1"], settings["beta2"] = betas[0], betas[1]
	}
	for name, v := range settings {
		switch v := v.(type) {
		case int64:
			g.Settings[name] = float64(v)
		case float64:
			g.Settings[name] = v
		}
	}
	return g, nil
}

// moments reads the state of one parameter: what AdamW keeps, and nothing else.
func (f *File) moments(t *Training, i int, v any) error {
	state, ok := v.(pickle.Dict)
	if !ok {
		return fmt.Errorf("optimizer.state[%d] is %s, want a dict", i, pickle.Describe(v))
	}
	for _, entry := range []string{"step", "exp_avg", "exp_avg_sq"} {
		v, ok := state[entry]
		if !ok {
			return fmt.Errorf("%s is missing", Moment(i, entry))
		}
		name, err := Moment(i, entry), error(nil)
		if entry == "step" {
			t.Steps[i], err = f.number(name, v)
		} else if t.Moments.tensors[name], err = f.archive.tensor(name, v); err != nil {
			err = fmt.Errorf("%s: %w", name, err)
		}
		if err != nil {
			return err
		}
	}
	if len(state) > 3 {
		return fmt.Errorf("optimizer.state[%d] has %d entries, want AdamW's step, exp_avg and exp_avg_sq alone", i, len(state))
	}
	return nil
}

// number reads an integer, a float, or a tensor of one.
func (f *File) number(name string, v any) (float64, error) {
	switch v := v.(type) {
	case int64:
		return float64(v), nil
	case float64:
		return v, nil
	}
	t, err := f.archive.tensor(name, v)
	if err == nil && t.elems != 1 {
		err = fmt.Errorf("has shape %v, want one number", t.Shape)
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	x, err := f.read(t)
	if err != nil {
		return 0, err
	}
	switch x.DType {
	case safetensors.F64:
		return math.Float64frombits(binary.LittleEndian.Uint64(x.Data)), nil
	case safetensors.I64:
		return float64(int64(binary.LittleEndian.Uint64(x.Data))), nil
	}
	values, err := x.Float32s()
	if err != nil {
		return 0, err
	}
	return float64(values[0]), nil
}
