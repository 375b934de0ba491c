// Package config reads gpt.yaml: the model, its data, the batch, the optimizer, the training run and the devices, in one
// strict file.
//
// A Config is built in layers: nanoGPT's defaults, then the file, then each --set override in
// order. Every layer passes the same checks: an unknown key, a wrong type, a quoted 'False', a null
// or a duplicate is an *Error that names the file, the line, section.key and the nearest valid key.
// The tags of the structs below say once what a key may hold; decoding, printing (Marshal) and
// docs/config.md derive from them. The config.json of a HuggingFace GPT-2 or Llama is
// accepted in place of YAML.
//
// Reading accepts every legal value. Validate refuses values that contradict each other, or that
// this version cannot do yet.
package config

import (
	"fmt"
	"strings"

	"github.com/autopar/autopar/config/strictyaml"
	"github.com/autopar/autopar/infile"
	"github.com/autopar/autopar/models/gpt"
)

// Config is one gpt.yaml. Compare two with Equal: a Config also remembers where each value was written.
type Config struct {
	Model     gpt.Config `yaml:"model"`
	Data      Data       `yaml:"data"`
	Batch     Batch      `yaml:"batch"`
	Optimizer Optimizer  `yaml:"optimizer"`
	Train     Train      `yaml:"train"`
	Parallel  Parallel   `yaml:"parallel"`

	// For the errors of Validate: the file, and where each section.key that is not a default was written.
	file    string
	origins map[string]strictyaml.Origin
	dropout error // of a config.json whose dropout this model does not have
}

// Data names the token files. Dir holds train.bin and val.bin, little-endian uint16, or uint32 for a vocabulary of more than
// 65,536.
type Data struct {
	Dataset  string `yaml:"dataset" help:"name of the corpus"`
	Dir      string `yaml:"dir" help:"directory of train.bin, val.bin and meta; empty is data/DATASET"`
	Sampling string `yaml:"sampling" enum:"with_replacement,without_replacement" help:"independent random windows, or each window once per epoch"`
}

// Batch is the number of sequences per step. Plans change how the global batch is cut, never what
// is in it.
type Batch struct {
	Global int     `yaml:"global" help:"sequences per optimizer step, over all devices"`
	Micro  AutoInt `yaml:"micro" help:"sequences per micro-batch of one data-parallel rank; auto lets the planner choose"`
}

// Optimizer is AdamW and its learning-rate schedule; see LR.
type Optimizer struct {
	Kind           string  `yaml:"kind" enum:"adamw" help:"update rule"`
	LearningRate   float64 `yaml:"learning_rate" help:"peak learning rate"`
	MinLR          float64 `yaml:"min_lr" help:"learning rate that decay ends at"`
	WarmupIters    int     `yaml:"warmup_iters" help:"iterations of linear warmup"`
	WarmupFromZero bool    `yaml:"warmup_from_zero" help:"nanoGPT's form before December 2024: the first step has learning rate 0"`
	LRDecayIters   int     `yaml:"lr_decay_iters" help:"iteration at which the cosine reaches min_lr"`
	DecayLR        bool    `yaml:"decay_lr" help:"false keeps learning_rate throughout, without warmup"`
	Schedule       string  `yaml:"schedule" enum:"cosine,step,constant" help:"what follows the warmup"`
	StepIters      int     `yaml:"step_iters" help:"step schedule: iterations between two drops"`
	StepFactor     float64 `yaml:"step_factor" help:"step schedule: factor of each drop, never below min_lr"`
	WeightDecay    float64 `yaml:"weight_decay" help:"decay of matrices and tables; biases and norms have none"`
	Beta1          float64 `yaml:"beta1" help:"decay of the first moment"`
	Beta2          float64 `yaml:"beta2" help:"decay of the second moment"`
	Eps            float64 `yaml:"eps" help:"added to the root of the second moment"`
	GradClip       float64 `yaml:"grad_clip" help:"largest global gradient norm; 0 is off"`
}

// Train is the run: how long, how often it reports, what it writes.
type Train struct {
	MaxIters             int    `yaml:"max_iters" help:"last iteration; the run makes max_iters+1 updates, as nanoGPT"`
	EvalInterval         int    `yaml:"eval_interval" help:"iterations between two evaluations"`
	EvalIters            int    `yaml:"eval_iters" help:"batches per split and evaluation"`
	EvalOnly             bool   `yaml:"eval_only" help:"evaluate once, the weights of a resumed run as they are, and stop; nothing is written"`
	LogInterval          int    `yaml:"log_interval" help:"iterations between two log lines"`
	OutDir               string `yaml:"out_dir" help:"directory of checkpoints and metrics.jsonl"`
	AlwaysSaveCheckpoint bool   `yaml:"always_save_checkpoint" help:"save after every evaluation, not only after a better one"`
	CheckpointInterval   int    `yaml:"checkpoint_interval" help:"also save every so many iterations; 0 is only after evaluations"`
	Seed                 int    `yaml:"seed" help:"seed of init, dropout and sampling"`
	DType                string `yaml:"dtype" enum:"float32,bfloat16,float16" help:"type of weights, activations, gradients and what ranks exchange; sums inside ops are float32 (fp32, bf16, fp16 are accepted)"`
	MasterWeights        bool   `yaml:"master_weights" help:"keep a float32 copy of weights of two bytes, float32 moments and float32 sums of gradients; false (bfloat16 only) keeps all in bfloat16"`
	Reproducible         bool   `yaml:"reproducible" help:"losses and weights bit-identical under every plan without tensor or context parallelism; float32 only"`
}

// Parallel is what the planner has to work with. RuntimeNGPUs / PlanNGPUs units are data-parallel replicas.
type Parallel struct {
	PlanNGPUs    AutoInt `yaml:"plan_ngpus" help:"devices of one unit, which the planner cuts the model over; auto searches it"`
	RuntimeNGPUs AutoInt `yaml:"runtime_ngpus" help:"devices in all, a multiple of plan_ngpus; auto is one unit"`
	MemoryLimit  Bytes   `yaml:"memory_limit" help:"memory per device (16GiB, 512MiB, or bytes); 0 is all that the device has, which is also the most"`
	Pins         []Pin   `yaml:"pin" help:"placements to keep: {match: REGEX of the whole name of ops or parameters, placement: [tp or _ for each dimension]}"`
}

// Pin fixes the placement of every op or parameter whose whole structural name matches.
type Pin struct {
	Match     string   // regular expression, of the whole name
	Placement []string // one word per tensor dimension
}

// Spec is the placement as plans spell it.
func (p Pin) Spec() string { return "[" + strings.Join(p.Placement, ",") + "]" }

// Default is the configuration of an empty file: nanoGPT's train.py on one device, in float32, with the biases of its GPTConfig.
func Default() *Config {
	return &Config{
		Model: gpt.DefaultConfig(),
		Data:  Data{Dataset: "openwebtext", Sampling: "with_replacement"},
		Batch: Batch{Global: 480},
		Optimizer: Optimizer{
			Kind: "adamw", LearningRate: 6e-4, MinLR: 6e-5, WarmupIters: 2000, LRDecayIters: 600000, DecayLR: true,
			Schedule: Cosine, StepIters: 100000, StepFactor: 0.1,
			WeightDecay: 0.1, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, GradClip: 1,
		},
		Train: Train{
			MaxIters: 600000, EvalInterval: 2000, EvalIters: 200, LogInterval: 1, OutDir: "out",
			AlwaysSaveCheckpoint: true, Seed: 1337, DType: "float32", MasterWeights: true,
		},
		Parallel: Parallel{PlanNGPUs: 1},
	}
}

// maxSize is far above any configuration, in bytes. It stops a data file given by mistake, because the YAML
// parser's time grows faster than its input. A file of that size is longer in a plan, where all is written out
// and a character may take six.
const (
	maxSize = 64 << 10
	maxText = 8 * maxSize
)

// Load reads a gpt.yaml, or the config.json of a HuggingFace GPT-2 or Llama, and applies overrides of the form
// section.key=value in order. It does not call Validate. A config.json with dropout that this model does not have needs
// an override of model.dropout, of any value where weights are only read. A file that cannot be read gives an *Error too.
func Load(path string, overrides []string) (*Config, error) {
	data, err := infile.Read(path, maxSize)
	if err != nil {
		return nil, &Error{File: path, Msg: "cannot be read", Err: infile.WithoutPath(err)}
	}
	return Parse(path, data, overrides)
}

// Parse is Load for bytes in hand; name stands for the file in errors.
func Parse(name string, data []byte, overrides []string) (*Config, error) {
	if len(data) > maxText {
		return nil, &Error{File: name, Msg: fmt.Sprintf("is more than %d bytes, too large for a configuration", maxText)}
	}
	c := Default()
	c.file = name
	decode := c.decodeYAML
	if isHuggingFace(name, data) {
		decode = c.decodeHuggingFace
	}
	if err := decode(name, data); err != nil {
		if other := infile.Mistaken(infile.Configuration, data); other != "" {
			err = &Error{File: name, Line: 1, Msg: other}
		}
		return nil, err
	}
	for _, o := range overrides {
		if err := Override(c, setFlag, o); err != nil {
			return nil, err
		}
	}
	if c.dropout != nil && c.origins["model.dropout"].File != setFlag {
		return nil, c.dropout
	}
	if c.Data.Dir == "" && c.Data.Dataset != "" {
		c.Data.Dir = "data/" + c.Data.Dataset
	}
	return c, nil
}

// Equal reports whether two configurations hold the same values, wherever they were written.
func (c *Config) Equal(other *Config) bool {
	return string(c.Marshal()) == string(other.Marshal())
}
