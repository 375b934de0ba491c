package measured

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
	"github.com/autopar/autopar/planner/cost"
	"github.com/autopar/autopar/trace"
)

// model returns the row's model. Tables do not state the norm and the position encoding: a model with a gated MLP is taken to
// have Llama's, another one GPT's.
func (r *Row) model() gpt.Config {
	c := gpt.Config{
		NLayer: r.Layers, NHead: r.Heads, NKVHead: r.KVHeads, NEmbd: r.Hidden, FFNHidden: r.FFN, BlockSize: r.SeqLen, VocabSize: r.Vocab,
		Bias: !strings.HasPrefix(r.ModelName, "mpt-"), Activation: gpt.GELUTanh, Norm: gpt.LayerNorm, Position: gpt.Learned, TieEmbeddings: r.Tied, Float: trace.BF16,
	}
	if r.Gated {
		c.Bias, c.Activation, c.Norm, c.Position = false, gpt.SwiGLU, gpt.RMSNorm, gpt.RoPE
	}
	if r.DType == "fp16" {
		c.Float = trace.F16
	}
	return c
}

// plan returns the plan of the row, without placements: see [planner.NewEstimator]. It fails if the row does not state its plan
// whole, or states one that cannot be modelled.
func (r *Row) plan() (*partition.Plan, error) {
	p := &partition.Plan{
		PlanNGPUs: r.GPUs, RuntimeNGPUs: r.GPUs, DP: r.DP, CP: r.CP, TP: r.TP, MicroBatch: r.MicroBatch,
		Schedule: partition.OneFOneB, ZeRO: r.ZeRO, SequenceParallel: r.SequenceParallel && r.TP > 1,
	}
	if r.DP*p.ContextParallel() == 1 {
		p.ZeRO = 0
	}
	if p.ZeRO == 2 && (r.frameworkHas("Megatron") || r.Framework == "Alpa") {
		p.ZeRO = 1 // they reduce gradients once a step, not every micro-batch
	}
	if r.VirtualStages > 1 {
		p.Schedule, p.Interleave = partition.Interleaved, r.VirtualStages
	}
	if g := r.ZeROGroup / p.ContextParallel(); p.ZeRO > 0 && g > 1 && g < r.DP && r.DP%g == 0 { // the rows count context-parallel ranks
		p.ZeROGroup = g
	}
	p.Overlap = r.DP > 1 && r.CP == 1 && r.overlaps() // with context parallelism two rows of torchtitan would be 11 and 20 % too fast
	switch {
	case p.ZeRO > 0 && r.CP > 1 && r.ZeROGroup > 0 && r.ZeROGroup != r.DP*r.CP && p.ZeROGroup*r.CP != r.ZeROGroup:
		return nil, fmt.Errorf("zero_shard_degree is %d: groups that do not hold all %d context-parallel ranks of each of theirs are not modelled", r.ZeROGroup, r.CP)
	case r.Experts > 1:
		return nil, fmt.Errorf("ep is %d: experts are not modelled", r.Experts)
	case r.MicroBatch == 0:
		return nil, fmt.Errorf("micro_batch is not stated")
	case r.Recompute == "unstated":
		return nil, fmt.Errorf("recompute is not stated")
	case r.DType == "fp32":
		return nil, fmt.Errorf("dtype is fp32: what is known of software, kernels and memory, is of training in 16 bits")
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
			st.Recompute, st.Selective = r.selective(st.Last - st.First)
		}
		p.Stages = append(p.Stages, st)
		first = st.Last
	}
	return p, nil
}

// overlaps reports whether the row's framework communicates gradients and sharded parameters beside the computation. Frameworks
// built on FSDP, DDP or Megatron-Core do. XLA does not: its loop over layers waits for communication at both ends of an
// iteration, even if its scheduler is told to hide latencies. Megatron-LM of 2021 and DeepSpeed of those years did not overlap
// the reduction of gradients.
func (r *Row) overlaps() bool {
	return r.frameworkHas("FSDP", "torchtitan", "Lightning", "llm.c", "Megatron-Core", "Megatron-Bridge")
}

// clusters maps the names of hardware.csv to built-in clusters.
func clusters() map[string]string {
	return map[string]string{
		"V100-16GB-SXM2": "v100", "V100-32GB-SXM3": "v100-32g", "A10G-24GB": "a10g", "A100-40GB-SXM": "a100-40g", "A100-80GB-SXM": "a100-80g",
		"H100-80GB-SXM": "h100", "H100-96GB-HBM2e-500W": "h100-96g", "H200-141GB-SXM": "h200", "B200-180GB-SXM": "b200",
	}
}

// cluster returns the row's machine, with its nodes and network. It fails if the GPU is unknown.
func (r *Row) cluster() (*cost.Cluster, error) {
	if r.machine != nil {
		return r.onto(r.machine), nil
	}
	name, ok := clusters()[r.GPU]
	if !ok {
		return nil, fmt.Errorf("unknown gpu %s; did you mean %s?", r.GPU, cost.NearestDevice(r.GPU, slices.Sorted(maps.Keys(clusters()))))
	}
	c, err := cost.Load(name)
	if err != nil {
		return nil, err
	}
	return r.onto(c), nil
}

// equipped returns a cluster with the row's software.
func (r *Row) equipped(base *cost.Cluster) *cost.Cluster {
	c := *base
	c.Software = r.software()
	return &c
}

// onto returns a cluster with the row's nodes and network.
func (r *Row) onto(base *cost.Cluster) *cost.Cluster {
	return base.Resized(r.GPUsPerNode, r.Network)
}

// graph traces a training step of the row's model.
func (r *Row) graph() (*ir.Graph, error) {
	return gpt.TrainStep(r.model(), gpt.Optimizer{Beta1: .9, Beta2: .95, Eps: 1e-8, WeightDecay: .1, GradClip: 1}, r.GlobalBatch, r.SeqLen)
}
