package main

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"

	"github.com/autopar/autopar/checkpoint"
	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/train"
)

// checkpointCmd groups the commands about checkpoints.
type checkpointCmd struct {
	Inspect checkpointInspectCmd `cmd:"" help:"Check every file of a checkpoint and tell what it holds."`
	Merge   checkpointMergeCmd   `cmd:"" help:"Write the checkpoint of many ranks as that of one."`
	Export  checkpointExportCmd  `cmd:"" help:"Write the weights as one safetensors file."`
	Reshard checkpointReshardCmd `cmd:"" help:"Cut a checkpoint for the ranks of another plan."`
	Import  checkpointImportCmd  `cmd:"" help:"Make a checkpoint of a weights file."`
}

// Example is shown by --help.
func (checkpointCmd) Example() string {
	return `
autopar checkpoint inspect out-quick
autopar checkpoint export out-quick -o model.safetensors`
}

// fromDir is the checkpoint that a command reads.
type fromDir struct {
	Dir string `arg:"" help:"Directory of a run, for its newest checkpoint, or of one checkpoint."`
}

// convert opens the checkpoint, has write convert it, and prints the path of the result.
func (c *fromDir) convert(con *console, write func(*checkpoint.Checkpoint) (path string, err error)) error {
	ck, err := checkpoint.Open(c.Dir)
	if err != nil {
		return err
	}
	defer ck.Close()
	path, err := write(ck)
	if err != nil {
		return err
	}
	con.printf("%s\n", path)
	return nil
}

// toDir is the directory that a command writes a checkpoint to.
type toDir string

// check refuses a directory that has checkpoints, which would be removed, or to which a run writes, which would remove the new
// one when it saves.
func (d toDir) check() error {
	if err := mayBeRun("checkpoint: -o", string(d)); err != nil {
		return err
	}
	if train.Writing(string(d)) {
		return usagef("checkpoint: -o %s: a run is writing there; wait for its end, or name another directory", d)
	}
	if there := checkpoint.Holds(string(d)); there != "" {
		return usagef("checkpoint: -o %s holds %s already, which would be replaced; name another directory", d, there)
	}
	return nil
}

// checkpointInspectCmd tells what a checkpoint holds.
type checkpointInspectCmd struct {
	fromDir
	format
}

// Example is shown by --help.
func (checkpointInspectCmd) Example() string { return "autopar checkpoint inspect out-quick" }

// Run prints the manifest.
func (c *checkpointInspectCmd) Run(con *console) error {
	ck, err := checkpoint.Open(c.Dir)
	if err != nil {
		return err
	}
	defer ck.Close()
	if c.json() {
		return con.json(ck.Manifest)
	}
	var bytes, elements int64
	for _, f := range ck.Files {
		bytes += f.Bytes
	}
	for _, t := range ck.Tensors {
		elements += ir.Elems(t.Shape)
	}
	best := "none yet"
	if ck.BestVal != nil {
		best = fmt.Sprintf("%.4f at step %d", *ck.BestVal, ck.BestStep)
	}
	con.heading("%s", ck.Dir)
	con.table([][]string{
		{"updates made", explain.Grouped(int64(ck.Step))},
		{"best val loss", best},
		{"files", fmt.Sprintf("%d, %s", len(ck.Files), explain.Bytes(bytes))},
		{"tensors", fmt.Sprintf("%d, %s elements", len(ck.Tensors), explain.Grouped(elements))},
	})
	rows := [][]string{{"TENSOR", "TYPE", "PARTS"}}
	for _, t := range ck.Tensors {
		rows = append(rows, []string{t.Name, fmt.Sprintf("%s%v", t.DType, t.Shape), fmt.Sprint(len(t.Parts))})
	}
	con.table(rows)
	return nil
}

// checkpointMergeCmd writes a checkpoint of many ranks as one of a single rank.
type checkpointMergeCmd struct {
	fromDir
	Out      toDir `short:"o" required:"" placeholder:"DIR" help:"Directory to write, without checkpoints; any plan can resume from it."`
	Adapters bool  `help:"Make adapters (LoRA) part of the weights beside them: the checkpoint is that of the model without adapters, of which all is trained, at step 0."`
}

// Example is shown by --help.
func (checkpointMergeCmd) Example() string { return "autopar checkpoint merge out-quick -o out-merged" }

// Run merges the shards.
func (c *checkpointMergeCmd) Run(con *console) error {
	if err := c.Out.check(); err != nil {
		return err
	}
	return c.convert(con, func(ck *checkpoint.Checkpoint) (string, error) {
		s, err := ck.Snapshot(nil)
		if c.Adapters {
			s, err = train.WithoutAdapters(ck)
		}
		if err != nil {
			return "", err
		}
		return checkpoint.Save(string(c.Out), s, checkpoint.Retention{Last: 1})
	})
}

// checkpointReshardCmd writes a checkpoint as the ranks of another plan would.
type checkpointReshardCmd struct {
	fromDir
	planArg
	Out toDir `short:"o" required:"" placeholder:"DIR" help:"Directory to write, without checkpoints. Any plan can resume from any checkpoint; one cut for its ranks spares them reading files of which they need little."`
}

// Example is shown by --help.
func (checkpointReshardCmd) Example() string {
	return "autopar checkpoint reshard out-quick other-plan.json -o out-other"
}

// Run cuts the checkpoint anew.
func (c *checkpointReshardCmd) Run(con *console) error {
	if err := c.Out.check(); err != nil {
		return err
	}
	doc, err := c.loadPlan()
	if err != nil {
		return err
	}
	return c.convert(con, func(ck *checkpoint.Checkpoint) (string, error) {
		return train.Reshard(ck, doc.Config, doc.Plan, string(c.Out))
	})
}

// checkpointImportCmd makes a checkpoint from the weights of other programs, and from runs of nanoGPT.
type checkpointImportCmd struct {
	File   string   `arg:"" name:"FILE" help:"Weights of a GPT-2, by HuggingFace's names or nanoGPT's, or of a Llama, by HuggingFace's: safetensors, or what torch.save of PyTorch 1.6 or newer wrote, as pytorch_model.bin and nanoGPT's ckpt.pt, or the index (.index.json) of several such files. From a ckpt.pt the run goes on where nanoGPT stopped: with the optimizer's state, at its iteration."`
	Config string   `placeholder:"gpt.yaml" help:"Configuration of the model, and of the precision that it is trained in. The default is read off the tensors, the file's metadata or model_args, and the config.json beside it, in float32."`
	Set    []string `with:"config" sep:"none" placeholder:"SECTION.KEY=VALUE" help:"Override one value of that configuration. May be repeated."`
	Out    toDir    `short:"o" required:"" placeholder:"DIR" help:"Directory to write, without checkpoints. Unless the file is nanoGPT's ckpt.pt, the run that resumes from it is at step 0, its optimizer has seen nothing."`
}

// Example is shown by --help.
func (checkpointImportCmd) Example() string {
	return `
autopar checkpoint import model.safetensors -o out-imported
autopar checkpoint import ckpt.pt -o out-nanogpt`
}

// Run imports the file.
func (c *checkpointImportCmd) Run(con *console) error {
	if err := c.Out.check(); err != nil {
		return err
	}
	cfg, err := c.config()
	if err != nil {
		return err
	}
	weights, err := checkpoint.OpenWeights(c.File, cfg.Model)
	if err != nil {
		return err
	}
	defer weights.Close()
	s, err := c.snapshot(con, cfg, weights)
	if err != nil {
		return err
	}
	dir, err := checkpoint.Save(string(c.Out), s, checkpoint.Retention{Last: 1})
	if err != nil {
		return err
	}
	con.printf("%s\n", dir)
	return nil
}

// snapshot returns what to save: the beginning of a run, or nanoGPT's run so far if the file has that.
func (c *checkpointImportCmd) snapshot(con *console, cfg *config.Config, weights *checkpoint.Weights) (checkpoint.Snapshot, error) {
	run, err := weights.Training()
	if err != nil {
		return checkpoint.Snapshot{}, fmt.Errorf("%w; autopar run --init-from takes the weights alone", err)
	}
	if run == nil {
		return train.Initial(cfg, weights)
	}
	c.settings(con, cfg, run)
	con.note("goes on at iteration %d, with the optimizer's state", run.Step)
	return train.Continued(cfg, weights, run)
}

// settings records how the optimizer of a file is set, or says how a configuration differs.
func (c *checkpointImportCmd) settings(con *console, cfg *config.Config, run *checkpoint.Training) {
	o := &cfg.Optimizer
	for _, k := range []struct {
		key  string
		ours *float64
	}{{"beta1", &o.Beta1}, {"beta2", &o.Beta2}, {"eps", &o.Eps}, {"weight_decay", &o.WeightDecay}} {
		switch was, stated := run.Settings[k.key]; {
		case !stated || was == *k.ours:
		case c.Config == "":
			*k.ours = was
		default:
			con.note("optimizer.%s is %v in %s, was %v in %s", k.key, *k.ours, c.Config, was, c.File)
		}
	}
	if was, stated := run.Settings["lr"]; stated && c.Config != "" && math.Abs(was-o.LR(run.Step)) > 1e-9*was {
		con.note("the learning rate of iteration %d is %v by %s, was %v in %s", run.Step, o.LR(run.Step), c.Config, was, c.File)
	}
}

func (c *checkpointImportCmd) config() (*config.Config, error) {
	if c.Config != "" {
		cfg, err := config.Load(c.Config, c.Set)
		if err != nil {
			return nil, err
		}
		return cfg, cfg.Validate()
	}
	cfg := config.Default()
	var err error
	cfg.Model, err = checkpoint.WeightsConfig(c.File)
	return cfg, err
}

// checkpointExportCmd writes the weights for other programs.
type checkpointExportCmd struct {
	fromDir
	Out    string `short:"o" required:"" placeholder:"FILE" help:"Safetensors file to write. With one that is named model.safetensors, in the layout huggingface, config.json is written beside it, which from_pretrained of transformers wants too."`
	Layout string `enum:"huggingface,nanogpt" default:"huggingface" help:"huggingface (as GPT2LMHeadModel, in x out, or LlamaForCausalLM reads it) or nanogpt (out x in)."`
}

// Example is shown by --help.
func (checkpointExportCmd) Example() string {
	return "autopar checkpoint export out-quick -o model.safetensors"
}

// Run exports the weights.
func (c *checkpointExportCmd) Run(con *console) error {
	if err := toFile("checkpoint: -o", c.Out); err != nil {
		return err
	}
	if info, err := os.Stat(c.Out); err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		return usagef("checkpoint: -o %s is there and no regular file, such as a device or a pipe, which cannot hold weights; name a file", c.Out)
	}
	return c.convert(con, func(ck *checkpoint.Checkpoint) (string, error) {
		if err := apart("checkpoint: -o", c.Out, ck.Paths()...); err != nil {
			return "", err
		}
		cfg, err := config.Parse(ck.Dir, []byte(ck.Config), nil)
		if err != nil {
			return "", err
		}
		layout, err := c.layout(cfg.Model)
		if err != nil {
			return "", err
		}
		beside, err := c.beside(cfg.Model)
		if err != nil {
			return "", err
		}
		path, err := followed(c.Out)
		if err != nil {
			return "", err
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			return "", err
		}
		if err := checkpoint.ExportWeights(path, ck, cfg.Model, layout); err != nil {
			return "", err
		}
		if beside != "" {
			if err := writeFile(beside, config.HuggingFace(cfg.Model)); err != nil {
				return "", err
			}
			con.note("wrote %s", beside)
		}
		if !cfg.Model.Bias && layout == gpt.GPT2 {
			con.note("GPT2LMHeadModel has biases, which this model does not: transformers says that they are missing, and makes them 0")
		}
		return c.Out, nil
	})
}

// layout returns the layout that the weights of a model are written in. The model must fit it.
func (c *checkpointExportCmd) layout(model gpt.Config) (gpt.Layout, error) {
	if c.Layout == string(gpt.NanoGPT) {
		return gpt.NanoGPT, model.Fits(gpt.NanoGPT)
	}
	return model.InTransformers()
}

// beside returns the path of the config.json to write beside the weights; "" for none, if transformers would not read these, or if it
// is there. One of another model is refused.
func (c *checkpointExportCmd) beside(model gpt.Config) (string, error) {
	if c.Layout == string(gpt.NanoGPT) || filepath.Base(c.Out) != "model.safetensors" {
		return "", nil
	}
	path := filepath.Join(filepath.Dir(c.Out), "config.json")
	there, err := config.Load(path, []string{"model.dropout=0"}) // which may differ
	if errors.Is(err, fs.ErrNotExist) {
		return path, nil
	}
	if err == nil {
		want, bad := config.Parse(path, config.HuggingFace(model), nil)
		if bad != nil {
			return "", bad
		}
		err = there.Model.Same(want.Model)
	}
	if err != nil {
		return "", usagef("checkpoint: -o %s: %s is there already, and not of this model: %v; name a file in another directory", c.Out, path, err)
	}
	return "", nil
}
