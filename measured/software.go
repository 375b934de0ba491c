package measured

import (
	"slices"
	"strings"

	"github.com/autopar/autopar/planner/cost"
)

// frameworkHas reports whether the row's framework has one of some words in its name.
func (r *Row) frameworkHas(words ...string) bool {
	return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(r.Framework, w) })
}

// generation names the software of a row: see [cost.Generations]. It follows from what the row says about framework, types and
// compilation, never from the row's source.
func (r *Row) generation() string {
	has := r.frameworkHas
	switch {
	case has("DeepSpeed ZeRO"):
		return "deepspeed-2021"
	case has("AA-Scaling"):
		return "scaling"
	case has("Megatron-DeepSpeed") && r.DType == "bf16" && r.GradDType == "fp32":
		return "megatron-deepspeed-bf16"
	case has("Megatron-DeepSpeed"):
		return "megatron-deepspeed"
	case r.Framework == "Megatron-LM" && strings.HasPrefix(r.Ref, "arXiv:21"):
		return "megatron-2021"
	case r.Framework == "Megatron-LM":
		return "megatron-2022"
	case has("Alpa", "XLA"):
		return "xla"
	case has("flash-attn"):
		return "fused-amp"
	case has("llm.c", "Megatron-Core", "Megatron-Bridge"):
		return "fused"
	case r.Compiled, has("torchtitan") && r.DType == "fp8":
		return "torch-compile"
	}
	return "torch"
}

// software describes what the row ran: its generation, with the attention and the kernels that the row names. Unless the row
// states the version, a generation with FlashAttention has the first version; torchtitan has PyTorch's, which is later.
func (r *Row) software() cost.Software { return r.softwareOf(cost.Generations()) }

// softwareOf is software with generations from a table.
func (r *Row) softwareOf(table []cost.Software) cost.Software {
	var s cost.Software
	for _, g := range table {
		if g.Name == r.generation() {
			s = g
		}
	}
	switch {
	case r.FlashAttention, strings.Contains(r.Note, "Transformer Engine layers"):
		s.Scores = false
	case !s.Scores:
		s.Scores, s.ScoreBytes = true, 13
	}
	if r.FlashAttention2 || r.frameworkHas("torchtitan") {
		s.Flash = 0
	}
	if r.frameworkHas("FSDP", "torchtitan") {
		s.WholeBlock = false // their recomputation of a block ends once the last saved tensor is there
	}
	if strings.Contains(r.Note, "async TP") {
		s.AsyncTP, s.ChunkedTP = true, true
	}
	if r.FusedNorm {
		s.RMSNorm = 1
	}
	// torchtitan's only choice is float32 (training.mixed_precision_reduce of its job_config.py).
	if r.frameworkHas("torchtitan") || r.frameworkHas("FSDP") && r.GradDType == "fp32" {
		s.Reduce = 4
	}
	s.FP8 = r.DType == "fp8"
	return s
}

// selective returns how many of n blocks are recomputed in full, and how many recompute attention. If every second product or
// block is recomputed, half of the blocks in full stand for that.
func (r *Row) selective(n int) (full, attention int) {
	if strings.Contains(r.RecomputeNote, "every second") || strings.Contains(r.RecomputeNote, "op-level") {
		return n / 2, 0
	}
	return 0, n
}
