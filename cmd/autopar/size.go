package main

import (
	"fmt"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/models/gpt"
)

// sizeCmd counts a model.
type sizeCmd struct {
	yamlArgs
	format
}

// Example is shown by --help.
func (sizeCmd) Example() string { return "autopar size examples/gpt2.yaml" }

// sizes is the result of autopar size. Bytes are those of training on one device.
type sizes struct {
	Parameters           int64       `json:"parameters"`
	ParametersNoPosition int64       `json:"parameters_without_positions"` // what nanoGPT prints
	Trained              int64       `json:"trained,omitempty"`            // only with adapters (LoRA): their parameters
	Decayed              group       `json:"decayed"`
	NotDecayed           group       `json:"not_decayed"`
	FLOPs                flops       `json:"flops"`
	Bytes                memoryBytes `json:"bytes"`
}

type group struct {
	Tensors  int   `json:"tensors"`
	Elements int64 `json:"elements"`
}

type flops struct {
	ForwardPerSequence  int64 `json:"forward_per_sequence"`
	Attention           int64 `json:"forward_attention"`
	MLP                 int64 `json:"forward_mlp"`
	Head                int64 `json:"forward_head"`
	TrainingPerToken    int64 `json:"training_per_token"`
	TrainingPerSequence int64 `json:"training_per_sequence"`
	TrainingPerStep     int64 `json:"training_per_step"`
}

type memoryBytes struct {
	Sequences   int   `json:"sequences"` // held at once
	Weights     int64 `json:"weights"`
	Gradients   int64 `json:"gradients"`
	Optimizer   int64 `json:"optimizer"`
	Activations int64 `json:"activations"`
	Total       int64 `json:"total"`
}

func measure(m gpt.Config, master bool, global, micro int) sizes {
	decay, noDecay := m.ParamGroups()
	forward := m.ForwardFLOPs()
	bytes := m.TrainingBytes(micro, master)
	perSequence := m.FLOPsPerToken() * int64(m.BlockSize)
	trained := int64(0)
	if m.LoRARank > 0 {
		trained = m.NumTrained()
	}
	return sizes{
		Parameters:           m.NumParams(),
		ParametersNoPosition: m.NumParamsNoPosition(),
		Trained:              trained,
		Decayed:              group(decay),
		NotDecayed:           group(noDecay),
		FLOPs: flops{
			ForwardPerSequence: forward.Total(), Attention: forward.Attention, MLP: forward.MLP, Head: forward.Head,
			TrainingPerToken: m.FLOPsPerToken(), TrainingPerSequence: perSequence, TrainingPerStep: perSequence * int64(global),
		},
		Bytes: memoryBytes{
			Sequences: micro, Weights: bytes.Weights, Gradients: bytes.Gradients, Optimizer: bytes.Optimizer,
			Activations: bytes.Activations, Total: bytes.Total(),
		},
	}
}

// countable refuses a step with more FLOPs than 64 bits can count. One sequence never has so many, and it keeps even fewer
// bytes.
func (c *sizeCmd) countable(m gpt.Config, global int) error {
	each := float64(m.FLOPsPerToken()) * float64(m.BlockSize)
	if each*float64(global) < 9e18 {
		return nil
	}
	return &config.Error{File: c.Config, Key: "batch.global", Msg: fmt.Sprintf("is %d sequences of %.4g FLOPs each, beyond what can be counted", global, each)}
}

// Run prints the counts.
func (c *sizeCmd) Run(con *console) error {
	cfg, err := c.load()
	if err != nil {
		return err
	}
	m := cfg.Model
	m.Float = cfg.DType()
	if err := c.countable(m, cfg.Batch.Global); err != nil {
		return err
	}
	s := measure(m, cfg.Train.MasterWeights, cfg.Batch.Global, max(1, int(cfg.Batch.Micro)))
	if c.json() {
		return con.json(s)
	}
	name := m.Preset
	if name == "" {
		name = c.Config
	}
	con.heading("%s: %s, %s, C %d, T %d, V %d", name, explain.Count(m.NLayer, "layer"), m.HeadsText(), m.NEmbd, m.BlockSize, m.VocabSize)
	share := func(part int64) string { return percentText(float64(part) / float64(s.FLOPs.ForwardPerSequence)) }
	con.heading("parameters")
	parameters := [][]string{
		{"all", explain.Grouped(s.Parameters)},
		{"without the position table", explain.Grouped(s.ParametersNoPosition), fmt.Sprintf("%.2fM", float64(s.ParametersNoPosition)/1e6)},
	}
	counted := "6N + 12 L C T"
	if s.Trained > 0 {
		parameters = append(parameters, []string{"trained, of adapters", explain.Grouped(s.Trained), percentText(float64(s.Trained) / float64(s.Parameters))})
		counted = "4N + 2 trained + 12 L C T"
	}
	con.table(append(parameters,
		[]string{"decayed", explain.Grouped(s.Decayed.Elements), fmt.Sprintf("%d tensors", s.Decayed.Tensors)},
		[]string{"not decayed", explain.Grouped(s.NotDecayed.Elements), fmt.Sprintf("%d tensors", s.NotDecayed.Tensors)},
	))
	con.heading("FLOPs")
	con.table([][]string{
		{"forward, one sequence", explain.Grouped(s.FLOPs.ForwardPerSequence)},
		{"  attention", explain.Grouped(s.FLOPs.Attention), share(s.FLOPs.Attention)},
		{"  MLP", explain.Grouped(s.FLOPs.MLP), share(s.FLOPs.MLP)},
		{"  head", explain.Grouped(s.FLOPs.Head), share(s.FLOPs.Head)},
		{"training, one token", explain.Grouped(s.FLOPs.TrainingPerToken), counted},
		{"training, one sequence", explain.Grouped(s.FLOPs.TrainingPerSequence)},
		{fmt.Sprintf("training, one step of %d", cfg.Batch.Global), fmt.Sprintf("%.4g", float64(s.FLOPs.TrainingPerStep))},
	})
	kept := ""
	if m.Float.Half() && cfg.Train.MasterWeights {
		kept = " with float32 master weights"
	}
	con.heading("memory in %s%s on one device, %d at once", cfg.Train.DType, kept, s.Bytes.Sequences)
	con.table([][]string{
		{"weights", explain.Bytes(s.Bytes.Weights)},
		{"gradients", explain.Bytes(s.Bytes.Gradients)},
		{"optimizer", explain.Bytes(s.Bytes.Optimizer)},
		{"activations", explain.Bytes(s.Bytes.Activations), "by formula; a plan knows its own exact number"},
		{"total", explain.Bytes(s.Bytes.Total)},
	})
	return nil
}
