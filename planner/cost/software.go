package cost

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/ir"
)

// This file describes how other training software differs from this project's own runtime, so that published runs can
// be priced (package measured) and plans can be made for it.

// Software describes how the kernels and the communication of a generation of training software differ from one fused
// kernel per op. The zero value is one fused kernel per op, which is what this project's runtime launches. Multiples
// of traffic are counted from the kernels, not fitted: bytes that the software moves divided by bytes that one kernel
// would move.
type Software struct {
	Name string `json:"name,omitempty"`

	// Scores says that attention writes its scores to memory, in several passes over batch x heads x sequence^2 of
	// them. Without it a fused kernel keeps them on the chip.
	Scores bool `json:"scores,omitempty"`
	// ScoreBytes is how many bytes are read and written per score in the forward pass. The backward pass moves 1.5
	// times as many.
	ScoreBytes float64 `json:"score_bytes,omitempty"`
	// Flash multiplies the rate of fused attention. Clusters state that rate for FlashAttention-2, which 0 stands
	// for.
	Flash float64 `json:"flash,omitempty"`

	// FusedBias says that the product of a linear layer adds its bias.
	FusedBias bool `json:"fused_bias,omitempty"`
	// Multiples of the traffic of one kernel per op; 0 means 1.
	RMSNorm     float64 `json:"rms_norm,omitempty"`
	Activation  float64 `json:"activation,omitempty"` // GELU, SwiGLU
	Rotation    float64 `json:"rotation,omitempty"`   // RoPE
	Loss        float64 `json:"loss,omitempty"`       // cross-entropy
	Optimizer   float64 `json:"optimizer,omitempty"`  // AdamW
	Sum         float64 `json:"sum,omitempty"`        // of two tensors; 0 means as Elementwise
	Elementwise float64 `json:"elementwise,omitempty"`

	// Host is the least time between two kernels, in seconds: what the host needs to launch the kernels of one op of
	// a pass. The update is launched in bulk.
	Host float64 `json:"host,omitempty"`
	// Sync is the seconds added to every kernel by a host that waits for it.
	Sync float64 `json:"sync,omitempty"`

	// Cast is the multiple of the traffic of the gradients of weights, which are rounded, and summed in f32.
	Cast float64 `json:"cast,omitempty"`
	// WholeBlock says that recomputation runs blocks to their end, as autograd does when it runs them again: see
	// [Program.unread].
	WholeBlock bool `json:"whole_block,omitempty"`
	// Buffer is how many bytes of gradients or parameters ranks that have the same combine in one collective; a larger
	// tensor has a collective of its own. 0 means the buckets of the program. These ranks are data-parallel and
	// context-parallel ones.
	Buffer float64 `json:"buffer,omitempty"`
	// Reduce is how many bytes an element has at least in which those ranks reduce gradients; 0 means those of the
	// type of the gradients. AllReduce says that they all-reduce whole gradients even if each keeps only a part.
	Reduce    float64 `json:"reduce,omitempty"`
	AllReduce bool    `json:"all_reduce,omitempty"`
	// Network multiplies the rate of the network between nodes; 0 means 1.
	Network float64 `json:"network,omitempty"`
	// Replicas multiplies it for collectives of those ranks only; 0 means 1.
	Replicas float64 `json:"replicas,omitempty"`
	// AsyncTP runs collectives of tensor parallelism beside products in the backward pass. ChunkedTP does so in both
	// passes, in chunks. See [Program.beside].
	AsyncTP   bool `json:"async_tp,omitempty"`
	ChunkedTP bool `json:"chunked_tp,omitempty"`

	// AsyncSend says that interleaved stages send while they compute another chunk.
	AsyncSend bool `json:"async_send,omitempty"`

	// Scatter sends what all ranks of a tensor-parallel group hold in equal parts, one part per rank, and all-gathers
	// it at the receiver (Narayanan et al. 2021, section 4.1).
	Scatter bool `json:"scatter,omitempty"`
	// FP8 says that the products of blocks are computed in 8 bits, from operands that are cast.
	FP8 bool `json:"fp8,omitempty"`
	// CastBytes is how many bytes are read and written per element of an operand for that cast.
	CastBytes float64 `json:"cast_bytes,omitempty"`
}

// Current is the software that clusters of GPUs are planned for unless they state another.
const Current = "torch-compile"

// Generations is the table of known software. Buffers are each one's default: one for all gradients in Megatron-LM,
// 40 million elements of 2 bytes in Megatron-Core, 5e8 in DeepSpeed (5e7 of parameters that ZeRO-3 gathers ahead).
// FSDP gathers whole blocks, which are the buckets of the program. XLA combines nothing in its loop over layers, so
// its buffer is smaller than any tensor.
func Generations() []Software {
	return []Software{
		// This project's own runtime: one kernel per op.
		{Name: "autopar"},
		// The same on GPUs, where package cuda/kernel does several ops in one kernel. A norm need not read the sum
		// before it, and a sum not the gradient of the norm before it, which need not be written either: of three
		// passes over a tensor two are left forward, and one backward. Statistics of a softmax read logits once, not
		// twice. bench/gpu/budget.md counts both ways.
		{Name: "autopar-cuda", FusedBias: true, Sum: 0.5, Loss: 0.75},
		// PyTorch programs with handwritten kernels, 2020 to 2022. Fused are: scaled masked softmax; bias and GELU;
		// bias, dropout and addition. Scores take 13 bytes: 2 written by the product, 4 by softmax, 5 by dropout, 2
		// read by the next product. Cross-entropy takes 60 bytes a logit in f32 passes, instead of 8. Gradients are
		// summed in 16 bits, with 6 bytes instead of 10.
		{Name: "megatron-2021", Buffer: 1e10, WholeBlock: true, Scores: true, ScoreBytes: 13, FusedBias: true, Loss: 7.5, Cast: 0.6, Scatter: true, Host: 6e-6},
		// Since the release with sequence parallelism: products add weight gradients directly to their sums.
		{Name: "megatron-2022", Buffer: 1e10, WholeBlock: true, Scores: true, ScoreBytes: 13, FusedBias: true, Loss: 7.5, Cast: 0.4, Scatter: true, Host: 6e-6, AsyncTP: true},
		// DeepSpeed of 2021: Megatron's kernels under its own ZeRO, or under its pipeline. Its collectives reach a
		// smaller share of the network: each rank's part of a bucket is reduced by itself.
		{Name: "deepspeed-2021", Buffer: 1e8, WholeBlock: true, Scores: true, ScoreBytes: 13, FusedBias: true, Loss: 7.5, Cast: 0.6, Host: 6e-6, Replicas: 0.28},
		{Name: "megatron-deepspeed", Buffer: 1e9, WholeBlock: true, Scores: true, ScoreBytes: 13, FusedBias: true, Loss: 7.5, Cast: 0.6, Scatter: true, Host: 6e-6, Sync: 79e-6, Replicas: 0.28},
		// The same in bfloat16. That optimizer does not have ZeRO's reduction: gradients are summed in f32, with 18
		// bytes instead of 10, and all-reduced in f32 (DeepSpeed's runtime/bf16_optimizer.py, and _bf16_reduce_grads
		// of its pipe/engine.py).
		{Name: "megatron-deepspeed-bf16", Buffer: 1e9, Reduce: 4, AllReduce: true, WholeBlock: true, Scores: true, ScoreBytes: 13, FusedBias: true, Loss: 7.5, Cast: 1.8, Scatter: true, Host: 6e-6, Sync: 79e-6},
		// PyTorch with its own kernels, one per line of the program. RMSNorm written out takes 34 bytes an element
		// forward and 88 backward, instead of 4 and 6; silu and product 10 and 18 instead of 6 and 10; rotation 40
		// instead of 12; cross-entropy 36 bytes a logit. scaling is the same in Aleph Alpha's Scaling: gradients are
		// added up in 16 bits, with 6 bytes instead of 10. In buckets of 5e8 they are all-reduced in 32 bits, after
		// which each rank updates its part and gathers the others' (its optimizer as published).
		{Name: "torch", CastBytes: 5, WholeBlock: true, Flash: 0.492, FusedBias: true, RMSNorm: 15.3, Activation: 1.7, Rotation: 3.3, Loss: 4.5, Optimizer: 3, Elementwise: 1.13, Host: 10e-6},
		{Name: "scaling", Buffer: 1e9, Reduce: 4, AllReduce: true, Cast: 0.6, CastBytes: 5, WholeBlock: true, Flash: 0.492, FusedBias: true, RMSNorm: 15.3, Activation: 1.7, Rotation: 3.3, Loss: 4.5, Optimizer: 3, Elementwise: 1.13, Host: 10e-6, Network: 0.28},
		// torch.compile and XLA: a chain of elementwise ops is one kernel. An operand of an 8-bit product is read
		// once for its largest element, then read and written. Transformer Engine reads an operand once, with the
		// largest element of earlier steps, and writes it twice, for the two products that use it: 4 bytes, half for
		// each. XLA compiled softmax to three kernels unless told otherwise (xla_gpu_enable_triton_softmax_fusion,
		// still off in pull request 14962 of 2024, and among the flags that JAX-Toolbox publishes for Pax). Scores
		// then take 12 bytes: the product writes them, they are read for the maximum, for the sum and for the
		// quotient, the quotient is written, and the next product reads it.
		{Name: "torch-compile", CastBytes: 5, FusedBias: true, RMSNorm: 1, Activation: 1, Rotation: 1, Loss: 1.875, Optimizer: 1, Elementwise: 0.7, Host: 5e-6},
		{Name: "xla", Buffer: 1, CastBytes: 2, FusedBias: true, Scores: true, ScoreBytes: 12, RMSNorm: 1, Activation: 1, Rotation: 1, Loss: 1.875, Optimizer: 1, Elementwise: 0.7, Host: 1e-6},
		// Handwritten kernels for training, since 2022: flash-attn, Transformer Engine, llm.c.
		{Name: "fused", Buffer: 80e6, FusedBias: true, RMSNorm: 1, Activation: 0.8, Rotation: 1, Loss: 0.75, Optimizer: 1, Elementwise: 0.8, Cast: 0.3, Host: 3e-6, Scatter: true, AsyncTP: true, ChunkedTP: true, AsyncSend: true, CastBytes: 2},
		// The same with PyTorch's automatic mixed precision: f32 weights are cast for every micro-batch, and their
		// gradients are cast back and added, with 24 bytes instead of 10.
		{Name: "fused-amp", WholeBlock: true, Flash: 0.492, FusedBias: true, RMSNorm: 1, Activation: 0.8, Rotation: 1, Loss: 0.75, Optimizer: 1, Elementwise: 0.8, Cast: 2.4, Host: 3e-6},
	}
}

// LoadSoftware returns a generation by name. An unknown name is an error that suggests the nearest one.
func LoadSoftware(name string) (Software, error) {
	var names []string
	for _, s := range Generations() {
		if s.Name == name {
			return s, nil
		}
		names = append(names, s.Name)
	}
	return Software{}, fmt.Errorf("cost: unknown software %q; did you mean %s? There are %s", name, config.Nearest(name, names), strings.Join(names, ", "))
}

// traffic returns the bytes that the software's kernels move for an op for which one kernel would move the given
// bytes.
func (s *Software) traffic(n *ir.Node, bytes int64) int64 {
	multiple := s.Elementwise
	switch n.Op {
	case ir.OpMatMul, ir.OpAttention, ir.OpAttentionGrad, ir.OpAttentionKV, ir.OpAttentionKVGrad, ir.OpAttentionDecode:
		return bytes
	case ir.OpLayerNorm, ir.OpLayerNormGrad, ir.OpEmbedding, ir.OpEmbeddingGrad:
		return bytes
	case ir.OpCast:
		multiple = s.Cast
	case ir.OpRMSNorm, ir.OpRMSNormGrad:
		multiple = s.RMSNorm
	case ir.OpGELU, ir.OpGELUGrad, ir.OpSwiGLU, ir.OpSwiGLUGrad:
		multiple = s.Activation
	case ir.OpRoPE:
		multiple = s.Rotation
	case ir.OpRowMax, ir.OpRowSumExp, ir.OpRowPick, ir.OpNLL, ir.OpCrossEntropyGrad:
		multiple = s.Loss
	case ir.OpAdamW:
		multiple = s.Optimizer
	case ir.OpAdd:
		if s.FusedBias && len(n.Args[1].Type.Shape) < len(n.Args[0].Type.Shape) {
			return 0
		}
		multiple = cmp.Or(s.Sum, s.Elementwise)
	}
	if multiple == 0 {
		return bytes
	}
	return int64(multiple * float64(bytes))
}
