package cost

import (
	"fmt"
	"strings"

	"github.com/autopar/autopar/config"
	"github.com/autopar/autopar/ir"
)

// Software is how the kernels of a generation of training software differ from one
// fused kernel per op, which is what this project's own runtime launches and what
// the zero value stands for. Multiples of traffic are counted from the kernels, not
// fitted: bytes that the software moves by the bytes that one kernel would.
type Software struct {
	Name string `json:"name,omitempty"`

	// Scores has attention write its scores to memory, in several passes over
	// batch x heads x sequence^2 of them; without it a fused kernel keeps them.
	Scores bool `json:"scores,omitempty"`
	// ScoreBytes is what is read and written per score forward; backward 1.5 times
	// as much.
	ScoreBytes float64 `json:"score_bytes,omitempty"`
	// Flash multiplies the rate of fused attention, which clusters state for
	// FlashAttention-2; 0 is that.
	Flash float64 `json:"flash,omitempty"`

	// Bias is whether the bias of a linear layer is added by its product.
	FusedBias bool `json:"fused_bias,omitempty"`
	// Multiples of the traffic of one kernel per op; 0 is 1.
	RMSNorm     float64 `json:"rms_norm,omitempty"`
	Activation  float64 `json:"activation,omitempty"` // GELU, SwiGLU
	Rotation    float64 `json:"rotation,omitempty"`   // RoPE
	Loss        float64 `json:"loss,omitempty"`       // cross-entropy
	Optimizer   float64 `json:"optimizer,omitempty"`  // AdamW
	Elementwise float64 `json:"elementwise,omitempty"`

	// Host is the least time between two kernels, in seconds: what the host needs to
	// launch the kernels of one op of a pass. The update is launched in bulk.
	Host float64 `json:"host,omitempty"`
	// Sync is added to every kernel: a host that waits for it.
	Sync float64 `json:"sync,omitempty"`

	// Cast is the same for the gradients of weights, rounded and summed in f32.
	Cast float64 `json:"cast,omitempty"`
	// WholeBlock recomputes blocks to their end, as autograd does that runs them again:
	// see [Program.unread].
	WholeBlock bool `json:"whole_block,omitempty"`
	// Buffer is how many bytes of gradients or parameters go in one collective of
	// data-parallel ranks; a larger tensor has one of its own. 0 is those of one bucket of
	// the program.
	Buffer float64 `json:"buffer,omitempty"`
	// AllReduce is how many bytes an element has in which all data-parallel ranks sum
	// gradients of which each keeps a part; 0 is that each sums its part, in their type.
	AllReduce float64 `json:"all_reduce,omitempty"`
	// Network multiplies the rate of the network between nodes; 0 is 1.
	Network float64 `json:"network,omitempty"`
	// Replicas multiplies it for collectives of data-parallel ranks alone; 0 is 1.
	Replicas float64 `json:"replicas,omitempty"`
	// AsyncTP runs collectives of tensor parallelism beside products in the backward
	// pass, and ChunkedTP in both passes, in chunks: see [Program.beside].
	AsyncTP   bool `json:"async_tp,omitempty"`
	ChunkedTP bool `json:"chunked_tp,omitempty"`

	// AsyncSend has interleaved stages send while they compute another chunk.
	AsyncSend bool `json:"async_send,omitempty"`

	// Scatter sends what all ranks of a tensor-parallel group have in equal parts,
	// and gathers it after (Narayanan et al. 2021, section 4.1).
	Scatter bool `json:"scatter,omitempty"`
	// FP8 has the products of blocks computed in 8 bits, of operands that are cast.
	FP8 bool `json:"fp8,omitempty"`
	// CastBytes is what is read and written per element of an operand for that.
	CastBytes float64 `json:"cast_bytes,omitempty"`
}

// Current is the software that clusters of GPUs are planned for unless told otherwise.
const Current = "torch-compile"

// Generations is the table of software. Buffers are the defaults of each: one for all
// gradients in Megatron-LM, 40 million elements of 2 bytes in Megatron-Core, 5e8 in
// DeepSpeed (5e7 of parameters that ZeRO-3 gathers ahead). FSDP gathers blocks, which are
// the buckets of the program; XLA combines nothing in its loop over layers, so each tensor
// is larger than its buffer.
func Generations() []Software {
	return []Software{
		// This project's own runtime: one kernel per op.
		{Name: "autopar"},
		// PyTorch programs of kernels by hand, 2020 to 2022: scaled masked softmax, bias
		// and GELU, bias and dropout and addition in one kernel each. Scores are 13 bytes:
		// two written by the product, softmax 4, dropout 5, two read by the next product.
		// Cross-entropy is 60 bytes a logit in f32 passes, beside 10; gradients are summed in
		// 16 bits, 6 bytes beside 10.
		{Name: "megatron-2021", Buffer: 1e10, WholeBlock: true, Scores: true, ScoreBytes: 13, FusedBias: true, Loss: 6, Cast: 0.6, Scatter: true, Host: 6e-6},
		// With sequence parallelism's release: the products of weights add to their sums.
		{Name: "megatron-2022", Buffer: 1e10, WholeBlock: true, Scores: true, ScoreBytes: 13, FusedBias: true, Loss: 6, Cast: 0.4, Scatter: true, Host: 6e-6, AsyncTP: true},
		// DeepSpeed of 2021: Megatron's kernels under its own ZeRO, or under its pipeline.
		// What it sends reaches less of the network than others do: each rank's part of a
		// bucket is reduced by itself.
		{Name: "deepspeed-2021", Buffer: 1e8, WholeBlock: true, Scores: true, ScoreBytes: 13, FusedBias: true, Loss: 6, Cast: 0.6, Host: 6e-6, Replicas: 0.28},
		{Name: "megatron-deepspeed", Buffer: 1e9, WholeBlock: true, Scores: true, ScoreBytes: 13, FusedBias: true, Loss: 6, Cast: 0.6, Scatter: true, Host: 6e-6, Sync: 63e-6, Replicas: 0.28},
		// The same in bfloat16, whose optimizer has no ZeRO's reduction: gradients are summed
		// in f32, 18 bytes beside 10, and all of them by an all-reduce of f32 (DeepSpeed's
		// runtime/bf16_optimizer.py, and _bf16_reduce_grads of its pipe/engine.py).
		{Name: "megatron-deepspeed-bf16", Buffer: 1e9, AllReduce: 4, WholeBlock: true, Scores: true, ScoreBytes: 13, FusedBias: true, Loss: 6, Cast: 1.8, Scatter: true, Host: 6e-6, Sync: 63e-6},
		// PyTorch with its own kernels, one per line of the program. RMSNorm written out is
		// 34 bytes an element forward and 88 backward beside 4 and 6; silu and product 10
		// and 18 beside 6 and 10; rotation 40 beside 12; cross-entropy 36 bytes a logit. The
		// second is the same in Aleph Alpha's Scaling: gradients are added up in 16 bits, 6
		// bytes beside 10, and in buckets of 5e8 summed by an all-reduce in 32, after which
		// each rank updates its part and gathers the others' (its optimizer as published).
		{Name: "torch", CastBytes: 5, WholeBlock: true, Flash: 0.481, FusedBias: true, RMSNorm: 14.1, Activation: 1.7, Rotation: 3.3, Loss: 3.6, Optimizer: 3, Elementwise: 1.11, Host: 10e-6},
		{Name: "scaling", Buffer: 1e9, AllReduce: 4, Cast: 0.6, CastBytes: 5, WholeBlock: true, Flash: 0.481, FusedBias: true, RMSNorm: 14.1, Activation: 1.7, Rotation: 3.3, Loss: 3.6, Optimizer: 3, Elementwise: 1.11, Host: 10e-6, Network: 0.28},
		// torch.compile and XLA: elementwise chains are one kernel. Operands of 8-bit products are
		// read for their largest element, then read and written. Transformer Engine reads an
		// operand once, by the largest element of steps before, and writes it twice, for the
		// two products that have it: 4 bytes, half for each. XLA made a softmax of three kernels
		// unless told otherwise (xla_gpu_enable_triton_softmax_fusion, still off in pull request
		// 14962 of 2024, and among the flags that JAX-Toolbox publishes for Pax): scores are 12
		// bytes, written by the product and read for the maximum, for the sum, for the
		// quotient, which is written, and by the next product.
		{Name: "torch-compile", CastBytes: 5, FusedBias: true, RMSNorm: 1, Activation: 1, Rotation: 1, Loss: 1.5, Optimizer: 1, Elementwise: 0.7, Host: 5e-6},
		{Name: "xla", Buffer: 1, CastBytes: 2, FusedBias: true, Scores: true, ScoreBytes: 12, RMSNorm: 1, Activation: 1, Rotation: 1, Loss: 1.5, Optimizer: 1, Elementwise: 0.7, Host: 1e-6},
		// Kernels by hand for training, since 2022: flash-attn's, Transformer Engine, llm.c.
		{Name: "fused", Buffer: 80e6, FusedBias: true, RMSNorm: 1, Activation: 0.8, Rotation: 1, Loss: 0.6, Optimizer: 1, Elementwise: 0.8, Cast: 0.3, Host: 3e-6, Scatter: true, AsyncTP: true, ChunkedTP: true, AsyncSend: true, CastBytes: 2},
		// The same with PyTorch's automatic mixed precision: f32 weights are cast for every
		// micro-batch, their gradients cast back and added, 24 bytes beside 10.
		{Name: "fused-amp", WholeBlock: true, Flash: 0.481, FusedBias: true, RMSNorm: 1, Activation: 0.8, Rotation: 1, Loss: 0.6, Optimizer: 1, Elementwise: 0.8, Cast: 2.4, Host: 3e-6},
	}
}

// LoadSoftware returns a generation by name.
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

// traffic returns the bytes that the kernels of an op move where one would move the
// given ones.
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
	}
	if multiple == 0 {
		return bytes
	}
	return int64(multiple * float64(bytes))
}
