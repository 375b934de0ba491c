package config

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestIdle: what somebody wrote and nothing reads is told, not what comes with a preset or is there anyway.
func TestIdle(t *testing.T) {
	for _, tc := range []struct{ yaml, want string }{
		{"model: {rope_theta: 5000}", "gpt.yaml:1:9: model.rope_theta: has no effect: it is for position rope"},
		{"model: {rope_factor: 8}", "gpt.yaml:1:9: model.rope_factor: has no effect: it is for position rope"},
		{"model: {preset: llama-3-8b, rope_low_freq_factor: 2}", "model.rope_low_freq_factor: has no effect: it is for rope_factor"},
		{"model: {preset: llama-3-8b, rope_high_freq_factor: 2}", "model.rope_high_freq_factor: has no effect: it is for rope_factor"},
		{"model: {preset: llama-3-8b, rope_original_block_size: 2}", "model.rope_original_block_size: has no effect: it is for rope_factor"},
		{"model: {preset: llama-3-8b, position: learned, rope_theta: 7}", "model.rope_theta: has no effect"},
		{"optimizer: {step_iters: 7}", "gpt.yaml:1:13: optimizer.step_iters: has no effect: it is for schedule step"},
		{"optimizer: {schedule: constant, step_factor: 0.5}", "optimizer.step_factor: has no effect: it is for schedule step"},
		{"optimizer: {warmup_from_zero: true, warmup_iters: 0}", "optimizer.warmup_from_zero: has no effect: it is for warmup_iters of at least 1"},
		{"model: {rope_theta: 5000, position: rope}", ""},
		{"model: {preset: llama-3-8b, position: learned}", ""},
		{"optimizer: {schedule: step, step_iters: 7, step_factor: 0.5, warmup_from_zero: true}", ""},
		{"optimizer: {decay_lr: false, min_lr: 1e-5, lr_decay_iters: 7}", ""},
		{string(Default().Marshal()), ""},
	} {
		c, err := Parse("gpt.yaml", []byte(tc.yaml), nil)
		require.NoError(t, err, tc.yaml)
		require.NoError(t, c.Validate(), tc.yaml)
		if idle := c.Idle(); tc.want == "" {
			require.Empty(t, idle, tc.yaml)
		} else {
			require.Len(t, idle, 1)
			require.ErrorContains(t, idle[0], tc.want)
		}
	}
	c, err := Parse("gpt.yaml", []byte("model: {n_layer: 2}"), []string{"optimizer.step_iters=7"})
	require.NoError(t, err)
	require.ErrorContains(t, errors.Join(c.Idle()...), "--set: optimizer.step_iters: has no effect")
}
