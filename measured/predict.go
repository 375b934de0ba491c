package measured

import (
	"fmt"
	"maps"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/trace"
)

// Model returns the row's model. The tables do not name the norm and the position
// encoding: a gated MLP goes with those of Llama, another with those of GPT.
func (r *Row) Model() gpt.Config {
	c := gpt.Config{
		NLayer: r.Layers, NHead: r.Heads, NKVHead: r.KVHeads, NEmbd: r.Hidden, FFNHidden: r.FFN, BlockSize: r.SeqLen, VocabSize: r.Vocab,
		Bias: true, Activation: gpt.GELUTanh, Norm: gpt.LayerNorm, Position: gpt.Learned, TieEmbeddings: r.Tied, Float: trace.BF16,
	}
	if r.Gated {
		c.Bias, c.Activation, c.Norm, c.Position = false, gpt.SwiGLU, gpt.RMSNorm, gpt.RoPE
	}
	if r.DType == "fp16" {
		c.Float = trace.F16
	}
	return c
}

// Plan returns exactly the plan of the row, but for placements: see
// [planner.Estimate].
func (r *Row) Plan() (*partition.Plan, error) {
	p := &partition.Plan{
		PlanNGPUs: r.GPUs, RuntimeNGPUs: r.GPUs, DP: r.DP, CP: r.CP, TP: r.TP, MicroBatch: r.MicroBatch,
		Schedule: partition.OneFOneB, ZeRO: r.ZeRO, SequenceParallel: r.SequenceParallel && r.TP > 1,
	}
	if r.DP == 1 {
		p.ZeRO = 0
	}
	if r.VirtualStages > 1 {
		p.Schedule, p.Interleave = partition.Interleaved, r.VirtualStages
	}
	if g := r.ZeROGroup; p.ZeRO > 0 && g > 1 && g < r.DP && r.DP%g == 0 {
		p.ZeROGroup = g
	}
	// Interleaved schedules have no overlap here, and with context parallelism it is
	// not priced.
	p.Overlap = r.DP > 1 && r.CP == 1 && r.VirtualStages == 1 && overlaps(r.Framework)
	switch {
	case r.DType == "fp8":
		return nil, fmt.Errorf("fp8 is not modelled")
	case r.MicroBatch == 0:
		return nil, fmt.Errorf("micro_batch is not stated")
	case r.Recompute == "unstated":
		return nil, fmt.Errorf("recompute is not stated")
	}
	stages := r.PP * max(r.VirtualStages, 1)
	if stages > r.Layers {
		return nil, fmt.Errorf("%d stages for %d layers", stages, r.Layers)
	}
	first := 0
	for _, n := range r.cut(stages) {
		st := partition.Stage{First: first, Last: first + n}
		switch r.Recompute {
		case "full":
			st.Recompute = st.Last - st.First
		case "selective":
			st.Selective = st.Last - st.First
		}
		p.Stages = append(p.Stages, st)
		first = st.Last
	}
	return p, nil
}

// overlaps reports whether a framework communicates gradients, and parameters that
// are sharded, beside the computation: what is built on FSDP, DDP, XLA or
// Megatron-Core does. Megatron-LM of 2021 and DeepSpeed of those years did not
// overlap the reduction of gradients.
func overlaps(framework string) bool {
	for _, f := range []string{"FSDP", "torchtitan", "Lightning", "llm.c", "XLA", "Megatron-Core", "Megatron-Bridge"} {
		if strings.Contains(framework, f) {
			return true
		}
	}
	return false
}

// clusters maps the names of hardware.csv to built-in clusters.
func clusters() map[string]string {
	return map[string]string{
		"V100-16GB-SXM2": "v100", "V100-32GB-SXM3": "v100-32g", "A10G-24GB": "a10g", "A100-40GB-SXM": "a100-40g", "A100-80GB-SXM": "a100-80g",
		"H100-80GB-SXM": "h100", "H100-96GB-HBM2e-500W": "h100-96g", "H200-141GB-SXM": "h200", "B200-180GB-SXM": "b200",
	}
}

// Cluster returns the row's machine.
func (r *Row) Cluster() (*cost.Cluster, error) {
	name, ok := clusters()[r.GPU]
	if !ok {
		return nil, fmt.Errorf("unknown gpu %s; did you mean %s?", r.GPU, config.Nearest(r.GPU, slices.Sorted(maps.Keys(clusters()))))
	}
	c, err := cost.Load(name)
	if err != nil {
		return nil, err
	}
	c.DevicesPerNode = r.GPUsPerNode
	if r.Network > 0 {
		c.InterNode.Bandwidth = r.Network
	}
	return c, nil
}

// The rate of attention kernels of the time beside that of FlashAttention-2, which
// is what a cluster file states. Fitted with the clusters' efficiencies on the rows
// of train.csv: see bench/validate.md.
const (
	flashAttention1 = 0.78 // FlashAttention-1 and its kind; plausible 0.4 to 1
	plainAttention  = 0.2  // scores written to memory; plausible 0.05 to 0.4
)

// machine returns the row's cluster as its software used it.
func (r *Row) machine(base *cost.Cluster) *cost.Cluster {
	c := *base
	switch {
	case !r.FlashAttention:
		c.Device.Efficiency.Attention *= plainAttention
	case !r.FlashAttention2:
		c.Device.Efficiency.Attention *= flashAttention1
	}
	return &c
}

// graph traces a training step of the row's model.
func (r *Row) graph() (*ir.Graph, error) {
	return gpt.TrainStep(r.Model(), gpt.Optimizer{Beta1: .9, Beta2: .95, Eps: 1e-8, WeightDecay: .1, GradClip: 1}, r.GlobalBatch, r.SeqLen)
}

// Case is a row compiled, to be priced.
type Case struct {
	Row
	estimator  *planner.Estimator
	footprints []planner.Footprint // by position of the pipeline
	device     int64               // bytes of a GPU
}

// Compile traces the row's model and compiles its plan.
func Compile(r Row) (*Case, error) {
	plan, err := r.Plan()
	if err != nil {
		return nil, err
	}
	cluster, err := r.Cluster()
	if err != nil {
		return nil, err
	}
	g, err := r.graph()
	if err != nil {
		return nil, err
	}
	e, err := planner.NewEstimator(g, r.GlobalBatch, cluster, plan, r.pins()...)
	if err != nil {
		return nil, err
	}
	return &Case{r, e, e.Footprints(), cluster.Device.Memory}, nil
}

// Predict prices the case on the cluster of its row, or one with other figures.
func (c *Case) Predict(cluster *cost.Cluster) Outcome {
	p := c.estimator.Price(c.machine(cluster))
	o := Outcome{Row: c.Row, PredictedSeconds: p.Step.Seconds()}
	m := DefaultMemory()
	c.judge(&o, &m, cluster.Device.Memory)
	return o
}

// Evaluate predicts rows on the built-in clusters, and lists those that cannot be
// modelled. progress is told how many are done; it may be nil.
func Evaluate(rows []Row, progress func(done int)) ([]Outcome, []Skipped) {
	outcomes, errs := make([]*Outcome, len(rows)), make([]error, len(rows))
	var next, done atomic.Int64
	var group sync.WaitGroup
	for range goruntime.GOMAXPROCS(0) {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(rows); i = int(next.Add(1)) - 1 {
				outcomes[i], errs[i] = evaluate(rows[i])
				if n := int(done.Add(1)); progress != nil {
					progress(n)
				}
			}
		})
	}
	group.Wait()
	var out []Outcome
	var skipped []Skipped
	for i, o := range outcomes {
		if errs[i] != nil {
			skipped = append(skipped, Skipped{rows[i], errs[i].Error()})
		} else {
			out = append(out, *o)
		}
	}
	return out, skipped
}

func evaluate(r Row) (*Outcome, error) {
	cluster, err := r.Cluster()
	if err != nil {
		return nil, err
	}
	c, err := Compile(r)
	if err != nil {
		return nil, err
	}
	o := c.Predict(cluster)
	return &o, nil
}
