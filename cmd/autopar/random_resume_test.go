package main

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/checkpoint"
)

// FuzzResume trains a random model by a random plan, and again in pieces, each of which resumes from the checkpoint of the one
// before. Logs and checkpoints of both have the same bits, whatever is evaluated and saved in between. To try more:
//
//	go test ./cmd/autopar -run FuzzResume -args -first-seed 100 -seeds 1000
func FuzzResume(f *testing.F) {
	addSeeds(f, 2, 3, 4)
	f.Fuzz(func(t *testing.T, seed uint64) {
		c := newRandomRun(t, seed, false)
		options := c.running()
		doc := c.plan("plan.json", c.from(1, 2, 3, 4, 6, 8), options...)
		if doc == nil {
			return
		}
		all := 4 + c.IntN(8) // steps
		run := func(out string, to int, more ...string) {
			args := append([]string{"run", "plan.json", "-q", "--out", out, "--steps", fmt.Sprint(to)}, more...)
			if c.IntN(3) == 0 {
				args = append(args, "--blocking-save")
			}
			c.must(args...)
		}
		run("whole", all)
		to := 1 + c.IntN(3)
		run("pieces", to)
		for to < all {
			to = min(all, to+1+c.IntN(3))
			run("pieces", to, "--resume")
		}
		require.Equal(t, c.logged("whole"), c.logged("pieces"))
		require.Equal(t, c.saved("whole"), c.saved("pieces"))
	})
}

// running returns random options of a run: when it evaluates and saves, in which precision and at which rates it trains.
func (c *randomRun) running() (options []string) {
	set := func(key string, value any) { options = append(options, "--set", fmt.Sprintf("%s=%v", key, value)) }
	set("train.eval_interval", 1+c.IntN(5))
	set("train.eval_iters", 1+c.IntN(3))
	set("train.log_interval", 1+c.IntN(3))
	set("train.checkpoint_interval", c.IntN(5))
	set("train.always_save_checkpoint", c.IntN(2) == 0)
	set("data.sampling", c.word("with_replacement without_replacement"))
	set("optimizer.learning_rate", c.word("1e-4 1e-3"))
	set("optimizer.warmup_iters", c.IntN(6))
	set("optimizer.lr_decay_iters", 6+c.IntN(6))
	set("optimizer.schedule", c.word("cosine step constant"))
	set("optimizer.step_iters", 1+c.IntN(4))
	if !c.reproducible {
		set("train.dtype", c.word("float32 float16 bfloat16"))
	}
	return options
}

// logged is what a run has logged, without times.
func (c *randomRun) logged(dir string) map[logged]float64 {
	all := c.metrics(dir)
	for at := range all {
		switch at.name {
		case "time_ms", "mean_ms", "tokens_per_s", "mfu":
			delete(all, at)
		}
	}
	return all
}

// saved is the newest checkpoint of a run.
func (c *randomRun) saved(dir string) checkpoint.Manifest {
	k, err := checkpoint.Open(dir)
	require.NoError(c, err)
	require.NoError(c, k.Close())
	return k.Manifest
}
