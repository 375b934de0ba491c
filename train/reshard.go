package train

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/codegen"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/runtime"
)

// Reshard saves a checkpoint under dir as the ranks of a plan would have saved it, and returns its
// directory. Resuming under another plan does not need it, but with it the ranks of a large job do
// not have to open files of which they need little. The configuration stays that of the checkpoint's
// run: whoever resumes compares his own with it.
func Reshard(c *checkpoint.Checkpoint, cfg *config.Config, plan *partition.Plan, dir string) (string, error) {
	if _, err := resumes(c, cfg.Model, "reshard"); err != nil {
		return "", err
	}
	g, err := cfg.TrainStep()
	if err != nil {
		return "", err
	}
	prog, err := compile(g, plan, cfg.Batch.Global, nil)
	if err != nil {
		return "", err
	}
	snap, err := c.Snapshot(shards(prog))
	if err != nil {
		return "", err
	}
	if snap.Plan, err = json.Marshal(plan); err != nil {
		return "", err
	}
	return checkpoint.Save(dir, snap, checkpoint.Retention{})
}

// configOf returns the configuration that a checkpoint was saved under.
func configOf(c *checkpoint.Checkpoint) (*config.Config, error) {
	return config.Parse(c.Dir+": config", []byte(c.Config), nil)
}

// resumes returns the configuration of a checkpoint, or an error if its model is not the one
// wanted.
func resumes(c *checkpoint.Checkpoint, want gpt.Config, what string) (*config.Config, error) {
	was, err := configOf(c)
	if err != nil {
		return nil, err
	}
	return was, sameModel(c, was.Model, want, what)
}

// sameModel returns an error that says how a checkpoint's model differs from the one wanted.
// Tensors alone would not tell: a checkpoint with fewer layers, or without biases, has all tensors
// of such a model.
func sameModel(c *checkpoint.Checkpoint, is, want gpt.Config, what string) error {
	if differs, ok := errors.AsType[*gpt.ConfigError](is.Same(want)); ok {
		hint := ""
		if is.LoRARank > 0 && want.LoRARank == 0 {
			hint = "; autopar checkpoint merge --adapters makes its adapters part of its weights"
		}
		return &InputError{What: what, Msg: fmt.Sprintf("%s holds another model: its model.%s %s%s", c.Dir, differs.Key, differs.Msg, hint)}
	}
	return nil
}

// Initial returns the checkpoint of a run that has not begun. The weights of the model without
// adapters, and their master copies, are those given. Adapters and other state have the values with
// which any run starts.
func Initial(cfg *config.Config, weights checkpoint.Reader) (checkpoint.Snapshot, error) {
	g, err := cfg.TrainStep()
	if err != nil {
		return checkpoint.Snapshot{}, err
	}
	snap := checkpoint.Snapshot{Config: string(cfg.Marshal())}
	for _, v := range g.Params() {
		attr := v.Def.Attr.(ir.ParamAttr)
		shard := runtime.Shard{Name: v.Def.Name, Type: v.Type, Attr: attr, Slab: ir.Whole(v.Type.Shape)}
		read := func(dst []byte) error { return weights.Read(sourceOf(shard), v.Type.DType, shard.Slab, dst) }
		if source := sourceOf(shard); source == "" || gpt.IsAdapter(source) {
			read = func(dst []byte) error { copy(dst, shard.Initial(uint64(cfg.Train.Seed))); return nil }
		}
		snap.Shards = append(snap.Shards, checkpoint.Shard{Name: shard.Name, Type: v.Type, Slab: shard.Slab, Read: read})
	}
	return snap, nil
}

// Continued returns the checkpoint of nanoGPT's run that a file of weights is of: [Initial] of the weights, with the moments, updates
// and best loss of the run, so that training goes on as it would have.
func Continued(cfg *config.Config, weights *checkpoint.Weights, run *checkpoint.Training) (checkpoint.Snapshot, error) {
	snap, err := Initial(cfg, weights)
	if err != nil {
		return checkpoint.Snapshot{}, err
	}
	snap.Step, snap.BestVal, snap.BestStep = run.Step, run.BestVal, run.Step
	scaler := false
	for i := range snap.Shards {
		s := &snap.Shards[i]
		switch {
		case run.Has(s.Name):
			s.Read = func(dst []byte) error { return run.Read(s.Name, s.Type.DType, s.Slab, dst) }
		case s.Name == "loss_scale.skipped":
			scaler = true
			s.Read = func(dst []byte) error { s.Type.DType.Write(dst, float32(run.Skipped)); return nil }
		}
	}
	if !scaler {
		err = run.Corrects(cfg.Optimizer.Beta1, cfg.Optimizer.Beta2)
	}
	return snap, err
}

// WithoutAdapters merges the adapters of a checkpoint into its weights, and returns [Initial] of
// the resulting model.
func WithoutAdapters(c *checkpoint.Checkpoint) (checkpoint.Snapshot, error) {
	cfg, err := configOf(c)
	if err != nil {
		return checkpoint.Snapshot{}, err
	}
	if cfg.Model.LoRARank == 0 {
		return checkpoint.Snapshot{}, &InputError{What: "adapters", Msg: c.Dir + " has none: its model.lora_rank is 0"}
	}
	weights := checkpoint.Folded(c, cfg.Model)
	cfg.Model = cfg.Model.Base()
	return Initial(cfg, weights)
}

// shards lists the parts of parameters that each rank of a program holds.
func shards(prog *codegen.Program) []checkpoint.Shard {
	var all []checkpoint.Shard
	for rank := range prog.Schedules {
		for _, s := range runtime.Shards(prog, rank) {
			all = append(all, checkpoint.Shard{Rank: rank, Name: s.Name, Type: s.Type, Slab: s.Slab})
		}
	}
	return all
}
