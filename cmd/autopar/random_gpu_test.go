package main

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/autopar/autopar/cuda"
	"github.com/autopar/autopar/cuda/cudatest"
	"github.com/autopar/autopar/cuda/driver/fake"
	"github.com/autopar/autopar/cuda/kernel/kerneltest"
)

// FuzzPlansOnGPUs is FuzzPlansTrainAlike on fake GPUs. Their streams run in a random order, and they refuse accesses that no event
// orders. One of the two plans trains over NCCL or with all ranks on one GPU, the other does so, too, or on the CPU. All models
// that must be reproducible or have heads of 64 or 128 elements, and a few others, run the GPU's own kernels, compiled for the
// CPU; the rest run the CPU's kernels.
func FuzzPlansOnGPUs(f *testing.F) {
	addSeeds(f, 3, 4, 5, 10)
	f.Fuzz(func(t *testing.T, seed uint64) {
		const first, all = 3, 7 // steps: the fourth is a graph
		wide := seed%12 == 10
		c := newRandomRun(t, seed, wide)
		devices := [][]string{{"--device", "cuda"}, {"--device", "cuda", "--loopback"}, {"--device", "cpu"}}
		one := devices[2]
		if c.reproducible { // bits are the same on all GPUs, but products are not the CPU's
			devices, one = devices[:2], devices[0]
		}
		at := c.IntN(2)
		own := c.reproducible || seed%6 == 4
		most := 8
		if own {
			most = 4
			c.shrink()
		}
		gpus := c.fakeGPUs(own)
		c.must("plan", "gpt.yaml", "-o", "one.json", "-q", "--dp", "1", "--tp", "1", "--pp", "1", "--recompute", "none")
		c.must(append([]string{"run", "one.json", "-q", "--out", "one", "--steps", fmt.Sprint(all)}, one...)...)
		ranks := min(c.from(2, 3, 4, 4, 5, 6, 6, 7, 8, 8, 8), most)
		if doc := c.plan("first.json", ranks); doc != nil {
			c.must(append([]string{"run", "first.json", "-q", "--out", "run", "--steps", fmt.Sprint(first)}, devices[at]...)...)
			c.like("one", "run", 0, first, doc)
			if doc = c.plan("second.json", c.from(1, 2, 3, 4, ranks)); doc != nil {
				at = c.IntN(len(devices))
				c.must(append([]string{"run", "second.json", "-q", "--out", "run", "--steps", fmt.Sprint(all), "--resume"}, devices[at]...)...)
				c.like("one", "run", first, all, doc)
			}
		}
		for _, d := range gpus.drivers {
			require.Empty(t, d.Leaks())
		}
		if c.reproducible { // a library's products depend on the shape of the batch
			require.Positive(t, gpus.runs("matmul_f32"))
			require.Positive(t, gpus.runs("matmul_fixed_f32"))
		} else if wide {
			for _, kernel := range []string{"attention_mma", "attention_mma_dq", "attention_mma_dkv"} {
				require.Positive(t, gpus.runs(kernel+"_64_bf16")+gpus.runs(kernel+"_128_bf16"), kernel)
			}
		}
	})
}

// shrink makes the model smaller, because a CPU takes long for a GPU's kernels.
func (c *randomRun) shrink() {
	text, err := os.ReadFile("gpt.yaml")
	require.NoError(c, err)
	for _, x := range []struct {
		key  string
		n    *int
		most int
	}{{"n_layer", &c.layers, 2}, {"global", &c.batch, 3}, {"block_size", &c.block, 12}} {
		was := fmt.Sprintf("%s: %d", x.key, *x.n)
		require.Equal(c, 1, bytes.Count(text, []byte(was)), was)
		*x.n = min(*x.n, x.most)
		text = bytes.Replace(text, []byte(was), fmt.Appendf(nil, "%s: %d", x.key, *x.n), 1)
	}
	require.NoError(c, os.WriteFile("gpt.yaml", text, 0o666))
}

// fakeGPUs are the fake GPUs that commands have opened.
type fakeGPUs struct {
	drivers []*fake.Driver
	engines []*kerneltest.Engine // of the GPU's own kernels, if they are used
}

// fakeGPUs has commands run on fake GPUs.
func (c *randomRun) fakeGPUs(own bool) *fakeGPUs {
	opened, real := &fakeGPUs{}, openMachine
	c.Cleanup(func() { openMachine = real })
	openMachine = func(cuda.MachineOptions) (*cuda.System, error) {
		d := fake.New(fake.Options{Devices: 8, Seed: c.Uint64(), InTurn: c.IntN(4) == 0})
		opened.drivers = append(opened.drivers, d)
		system, err := cudatest.NewSystem(d)
		if err == nil && own {
			e := kerneltest.NewEngine(c.T, d)
			opened.engines = append(opened.engines, e)
			system.Engine = func(int) (cuda.Engine, error) { return e, nil }
		}
		return system, err
	}
	return opened
}

// runs returns how often a device function has run.
func (g *fakeGPUs) runs(function string) (n int) {
	for _, e := range g.engines {
		n += e.Runs()[function]
	}
	return n
}
