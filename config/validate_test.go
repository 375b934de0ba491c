package config

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestValidate(t *testing.T) {
	for _, tc := range []struct{ yaml, want string }{
		{"model:\n  n_embd: 130\n  n_head: 4", "gpt.yaml:2:3: model.n_embd: 130 does not divide by n_head 4"},
		{"model: {n_layer: -1}", "gpt.yaml:1:9: model.n_layer: is -1, must be at least 1"},
		{"model: {dropout: 1}", "gpt.yaml:1:9: model.dropout: is 1, must be in [0, 1)"},
		{"model: {n_kv_head: 5}", "model.n_kv_head: 5 does not divide n_head 12; 4 would do"},
		{"model: {position: rope, n_embd: 84}", "model.n_embd: 84 over n_head 12 makes heads 7 wide; position rope rotates pairs and needs an even width"},
		{"model: {rope_theta: -1}", "model.rope_theta: is -1, must be positive, or 0 for 10000"},
		{"train: {master_weights: false}", "gpt.yaml:1:9: train.master_weights: is false, which needs dtype bfloat16; dtype is float32"},
		{"train: {dtype: fp16, master_weights: false}", "train.master_weights: is false, which needs dtype bfloat16; dtype is float16"},
		{"train: {reproducible: true, dtype: bf16}", "gpt.yaml:1:9: train.reproducible: holds for train.dtype float32 only, not bfloat16"},
		{"train: {reproducible: true}\nmodel: {block_size: 3}", "gpt.yaml:1:9: train.reproducible: needs model.block_size of at least 4, not 3: shorter sequences take other kernels alone than together"},
		{"data: {dataset: ''}", "data.dataset: is empty"},
		{"train: {out_dir: ''}", "train.out_dir: is empty"},
		{"train: {out_dir: -x}", `gpt.yaml:1:9: train.out_dir: is "-x", which other commands take for a flag; write ./-x`},
		{"batch: {global: 0}", "batch.global: is 0, must be at least 1"},
		{"batch: {global: 1000000007}", "batch.global: is 1000000007 sequences, must be at most 16777216"},
		{"batch: {global: 7, micro: 8}", "batch.micro: 8 is more than batch.global 7"},
		{"train: {eval_interval: 0}", "train.eval_interval: is 0, must be at least 1"},
		{"train: {log_interval: -1}", "train.log_interval: is -1, must be at least 1"},
		{"train: {eval_iters: 2147483648}", "train.eval_iters: is 2147483648, must be at most 2147483647"},
		{"train: {max_iters: -1}", "train.max_iters: is -1, must be at least 0"},
		{"train: {max_iters: 2147483647}", "train.max_iters: is 2147483647, must be at most 2147483646"},
		{"train: {seed: 2147483648}", "train.seed: is 2147483648, must be at most 2147483647"},
		{"train: {seed: -1}", "train.seed: is -1, must be at least 0"},
		{"optimizer: {warmup_iters: -1}", "optimizer.warmup_iters: is -1, must be at least 0"},
		{"optimizer: {learning_rate: -1}", "optimizer.learning_rate: is -1, must be at least 0"},
		{"optimizer: {learning_rate: 1e39}", "optimizer.learning_rate: is 1e+39, must be at least 0, and a float32"},
		{"optimizer: {learning_rate: 1e-5}", "gpt.yaml: optimizer.min_lr: 6e-05 is more than learning_rate 1e-05"},
		{"optimizer: {beta1: 1}", "optimizer.beta1: is 1, must be in [0, 1)"},
		{"optimizer: {beta2: 0.99999999}", "optimizer.beta2: is 0.99999999, must be in [0, 1), also as a float32"},
		{"optimizer: {eps: 0}", "optimizer.eps: is 0, must be a normal float32 of more than 0"},
		{"optimizer: {eps: 1e-300}", "optimizer.eps: is 1e-300, must be a normal float32 of more than 0"},
		{"optimizer: {eps: 1e300}", "optimizer.eps: is 1e+300, must be a normal float32 of more than 0"},
		{"optimizer: {grad_clip: -1}", "optimizer.grad_clip: is -1, must be at least 0"},
		{"optimizer: {step_factor: 2}", "optimizer.step_factor: is 2, must be in (0, 1]"},
		{"optimizer: {step_iters: 0}", "optimizer.step_iters: is 0, must be at least 1"},
		{"parallel: {plan_ngpus: 3, runtime_ngpus: 4}", "parallel.runtime_ngpus: 4 is not a multiple of plan_ngpus 3"},
		{"parallel: {plan_ngpus: 4, runtime_ngpus: 2}", "parallel.runtime_ngpus: 2 is not a multiple of plan_ngpus 4"},
		{"parallel: {pin: [{match: '(', placement: [_]}]}", "gpt.yaml:1:19: parallel.pin[0].match: error parsing regexp"},
		{"parallel: {pin: [{match: a, placement: [_]}, {match: b}]}", "parallel.pin: [1] needs both match and placement"},
		{"parallel: {pin: [{match: a, placement: [_, '']}]}", "parallel.pin[0].placement: [1] is empty"},
	} {
		c, err := Parse("gpt.yaml", []byte(tc.yaml), nil)
		require.NoError(t, err, tc.yaml)
		var bad *Error
		require.ErrorAs(t, c.Validate(), &bad, tc.yaml)
		require.Contains(t, bad.Error(), tc.want)
		require.Equal(t, "gpt.yaml", bad.File)
	}

	for _, yaml := range []string{
		"optimizer: {learning_rate: 1e-5, decay_lr: false}", "optimizer: {learning_rate: 1e-5, schedule: constant}",
		"parallel: {plan_ngpus: auto, runtime_ngpus: 6}", "parallel: {plan_ngpus: 3}", "batch: {global: 7, micro: 7}",
		"model: {n_kv_head: 12}", "model: {n_kv_head: 1}", "model: {preset: llama-3.1-405b}", "optimizer: {grad_clip: 0, warmup_iters: 0}",
	} {
		c, err := Parse("gpt.yaml", []byte(yaml), nil)
		require.NoError(t, err, yaml)
		require.NoError(t, c.Validate(), yaml)
	}
}

func TestValidateConfigBuiltInGo(t *testing.T) {
	c := Default()
	c.Data.Dir = "d"
	require.NoError(t, c.Validate())
	c.Optimizer.Schedule = "linear"
	require.EqualError(t, c.Validate(), `optimizer.schedule: is "linear", must be one of [cosine step constant]`)
}
