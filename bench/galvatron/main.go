// Command galvatron searches and prices plans for Llama-2 7B by Galvatron's cost model and
// by autopar's, with the figures of Galvatron's profile files: see bench/galvatron.sh.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/planner/galvatron"
)

func main() {
	var b bench
	mode := flag.String("mode", "search", "search: Galvatron's space by its cost model; plan: autopar's by its own; price: the plan FILE by both")
	checkout := flag.String("checkout", "", "directory of Galvatron's repository")
	gigabytes := flag.Int("memory", 36, "GB of a device")
	flag.IntVar(&b.batch, "batch", 64, "samples of a step")
	flag.StringVar(&b.file, "o", "", "file of the plan in Galvatron's terms")
	flag.Parse()
	if wrong := b.wrong(*mode, *checkout, *gigabytes, flag.Args()); wrong != "" {
		fmt.Fprintln(os.Stderr, "galvatron:", wrong)
		os.Exit(2)
	}
	profile, err := galvatron.Read(galvatron.FilesOf(*checkout, "llama2-7b", 1, 8), 2048)
	if err == nil {
		b.model = &galvatron.Model{Profile: profile, Layers: 32, Hidden: 4096, Tokens: 2048, Devices: 8, Memory: *gigabytes * 1024}
		err = b.run(*mode)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "galvatron:", err)
		os.Exit(1)
	}
}

// bench is a batch, and the job of a node of 8 devices that has it.
type bench struct {
	model *galvatron.Model
	batch int
	file  string
}

// wrong says what is wrong with the flags, "" if nothing is.
func (b *bench) wrong(mode, checkout string, gigabytes int, rest []string) string {
	switch {
	case len(rest) > 0:
		return fmt.Sprintf("%q is no flag", rest[0])
	case mode != "search" && mode != "plan" && mode != "price":
		return fmt.Sprintf("-mode is %q, want search, plan or price", mode)
	case checkout == "":
		return "-checkout is missing: the directory of a clone of Galvatron"
	case gigabytes < 1 || gigabytes > 1<<20:
		return fmt.Sprintf("-memory is %d GB, must be between 1 and %d", gigabytes, 1<<20)
	case b.batch < 1:
		return fmt.Sprintf("-batch is %d, must be at least 1", b.batch)
	case mode == "price" && b.file == "":
		return "-o is missing: the file of the plan to price"
	}
	return ""
}

func (b *bench) run(mode string) error {
	start := time.Now()
	switch mode {
	case "search":
		plan, outlines, err := b.model.Search(b.batch)
		if err != nil {
			return err
		}
		fmt.Printf("%d outlines in %.3f s: ", outlines, time.Since(start).Seconds())
		if err := b.write(plan); err != nil {
			return err
		}
		return b.theirs(plan)
	case "plan":
		g, c, err := b.job()
		if err != nil {
			return err
		}
		traced := time.Now()
		// Without what Galvatron has no terms for: offload, slices of the loss, sharing below a micro-batch, and stages that go on while they send.
		found, err := planner.Search(g, b.batch, c, planner.Options{RuntimeNGPUs: b.model.Devices, CP: 1, Schedule: "1f1b", Offload: "none", OverlapP2P: "off", LossSlices: 1, MemoryLimit: int64(b.model.Limit()) << 20})
		if err != nil {
			return err
		}
		fmt.Printf("%s, micro-batch %d, ZeRO %d, %v in %.3f s: %.1f ms by autopar, ", found.Plan.Degrees(), found.Plan.MicroBatch, found.Plan.ZeRO, found.Plan.Stages, time.Since(traced).Seconds(), 1000*found.Prediction.Step.Seconds())
		plan, err := galvatron.Of(found.Plan, b.batch)
		if err != nil {
			return err
		}
		if err := b.write(plan); err != nil {
			return err
		}
		return b.theirs(plan)
	case "price":
		file, err := os.Open(b.file)
		if err != nil {
			return err
		}
		defer file.Close()
		plan, decoder := &galvatron.Plan{}, json.NewDecoder(file)
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(plan); err != nil {
			return fmt.Errorf("%s: %w", b.file, err)
		}
		if err := b.ours(plan); err != nil {
			fmt.Printf("not by autopar (%v), ", err)
		}
		return b.theirs(plan)
	}
	panic("BUG: mode " + mode)
}

// job is the training step, and the cluster of the profile.
func (b *bench) job() (*ir.Graph, *cost.Cluster, error) {
	model, err := gpt.Preset("llama-2-7b")
	if err != nil {
		return nil, nil, err
	}
	model.Float, model.BlockSize = ir.BF16, b.model.Tokens
	g, err := gpt.TrainStep(model, gpt.Optimizer{Beta1: .9, Beta2: .95, Eps: 1e-8, WeightDecay: .1, GradClip: 1}, b.batch, model.BlockSize)
	if err != nil {
		return nil, nil, err
	}
	base, err := cost.Load("a100-80g")
	if err != nil {
		return nil, nil, err
	}
	c, err := b.model.Cluster(base, g, b.batch)
	return g, c, err
}

// theirs prints what Galvatron's cost model says.
func (b *bench) theirs(plan *galvatron.Plan) error {
	c, err := b.model.Cost(plan)
	if err != nil {
		return err
	}
	fmt.Printf("%.6f ms, %v MB by Galvatron's, fits %v\n", 1000*c.Seconds, c.MB, c.Fits)
	return nil
}

// ours prints what autopar's says.
func (b *bench) ours(plan *galvatron.Plan) error {
	p, err := plan.Partition()
	if err != nil {
		return err
	}
	g, c, err := b.job()
	if err != nil {
		return err
	}
	e, err := planner.NewEstimator(g, b.batch, c, p)
	if err != nil {
		return err
	}
	x := e.Price(c)
	fmt.Printf("%.1f ms, at least %d MB by autopar, ", 1000*x.Step.Seconds(), slices.Max(x.PeakBytes)>>20)
	return nil
}

func (b *bench) write(plan *galvatron.Plan) error {
	if b.file == "" {
		return nil
	}
	text, err := json.Marshal(plan)
	if err != nil {
		return err
	}
	return os.WriteFile(b.file, text, 0o666)
}
