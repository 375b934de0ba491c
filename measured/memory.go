package measured

import (
	"strings"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/planner"
)

// Memory has the figures from which the memory of training software is predicted, beyond the buffers that codegen lays out
// for the same plan. A figure belongs to a piece of software or to a set of kernels, never to a source or a row.
// [Memory.Constants] has the units, origins and plausible ranges.
type Memory struct {
	Context, Communicator, Fragmentation float64
	Norm, SwiGLU, Gathered, Rounded      float64
	Operand8                             float64
	FlashAttention1                      float64
	EagerScores, EagerLive               float64
	FusedScores, FusedLive               float64
	Logits, LogitsFused, LogitsWhole     float64
	LogitsBefore, LogitsSplit            float64
	LogitsParallel, LogitsHalf           float64
	Buffered, Bucket, Flat               float64
}

// Constant is a figure of [Memory].
type Constant struct {
	Name, Unit string
	Origin     string // what it is, and where it comes from
	Value      *float64
	Default    float64
	Least      float64 // of the plausible range
	Most       float64 // equal to Least if the figure is known
}

// Constants lists the figures of m.
func (m *Memory) Constants() []Constant {
	return []Constant{
		{"context", "GiB", "CUDA's context and the workspaces of its libraries", &m.Context, 0.8, 0.4, 1.5},
		{"communicator", "GiB a group", "NCCL's channels for each of the tensor, data and pipeline groups", &m.Communicator, 0.35, 0.02, 0.5},
		{"fragmentation", "of activations", "gaps between blocks of the caching allocator, and blocks rounded up to 2 MiB", &m.Fragmentation, 0.223, 0.02, 0.3},
		{"norm", "bytes an element", "RMSNorm of several kernels keeps its operand in float32 (4) and the quotient (2)", &m.Norm, 5.6, 4, 7},
		{"swiglu", "bytes an element", "SwiGLU of two kernels keeps silu(gate) in bfloat16", &m.SwiGLU, 2, 2, 2},
		{"rounded", "bytes an element", "bfloat16: what is not kept where it is made again", &m.Rounded, 2, 2, 2},
		{"gathered", "bytes an element", "sequence parallelism keeps what it gathered; autopar gathers again, as Megatron does (Korthikanti et al. 2022, section 4.2.2)", &m.Gathered, 2, 2, 2},
		{"8-bit operand", "bytes an element", "Transformer Engine keeps an operand of a block's product as it multiplies it", &m.Operand8, 1, 1, 1},
		{"flash attention 1", "bytes an element of the result", "copies of its operands without padding", &m.FlashAttention1, 2.7, 0, 6},
		{"eager scores", "bytes a score", "softmax in float32, the mask, the rounded result: kept", &m.EagerScores, 5.4, 4, 8},
		{"eager scores live", "bytes a score", "scores and gradients of them in the backward pass", &m.EagerLive, 7.4, 4, 16},
		{"fused scores", "bytes a score", "operand and result of Megatron's masked softmax: kept", &m.FusedScores, 4, 2, 6},
		{"fused scores live", "bytes a score", "scores and gradients of them in the backward pass", &m.FusedLive, 4.8, 2, 12},
		{"logits", "bytes a logit", "cross entropy of several kernels: a copy in float32 (4), log-softmax (4), gradient (4)", &m.Logits, 12, 10, 14},
		{"fused logits", "bytes a logit", "Megatron's cross entropy: float32 logits, overwritten by exponents and gradients (4), a copy (4)", &m.LogitsFused, 6, 4, 10},
		{"whole logits", "bytes a logit", "the same where every tensor rank has the loss of the whole vocabulary, and figures of it besides", &m.LogitsWhole, 16.2, 14, 24},
		{"logits before", "bytes a logit", "those of the micro-batch before in the last stage's buffer", &m.LogitsBefore, 2.9, 0, 6},
		{"gathered logits", "bytes a logit", "the pieces of the tensor ranks beside the whole, and their gradients", &m.LogitsSplit, 8, 0, 8},
		{"parallel logits", "bytes a logit", "DTensor's loss over a split vocabulary: the logits (2), and in float32 the log-softmax, its exponents, the gradient before and after they are added (4 each)", &m.LogitsParallel, 18, 18, 18},
		{"half logits", "bytes a logit", "a compiled loss or flash-attn's: the logits and their gradients in bfloat16, nothing in float32", &m.LogitsHalf, 4, 4, 4},
		{"stage buffers", "bytes an element", "a stage's results of the micro-batches in flight, which DeepSpeed keeps beside its inputs", &m.Buffered, 2, 2, 2},
		{"flat buffers", "GiB", "DeepSpeed's buckets of gradients and parameters (2 of 5e8 elements each) and copies of its flat partitions", &m.Flat, 6, 1.8, 6},
		{"bucket", "elements", "gradients are reduced in buckets, copied to float32: DeepSpeed's default", &m.Bucket, 5e8, 5e8, 5e8},
	}
}

// defaultMemory returns the figures fitted for bench/validate.md.
func defaultMemory() Memory {
	var m Memory
	for _, c := range m.Constants() {
		*c.Value = c.Default
	}
	return m
}

// habits says what a row's framework does with memory.
type habits struct {
	gradient    float64 // bytes of an element of gradients
	fusedNorm   bool    // RMSNorm is one kernel
	fusedMLP    bool    // SwiGLU is one kernel
	remakesGELU bool    // recomputes GELU for the gradient of the product after it
	fusedLoss   bool    // cross entropy is one kernel, over the parts of the vocabulary
	wholeLogits bool    // every tensor-parallel rank has the logits of the whole vocabulary
	dtensor     bool    // cross entropy is DTensor's kernels, if tensor-parallel ranks share the vocabulary
	half        bool    // cross entropy has logits and gradients in 16 bits only
	gaps        bool    // the allocator fragments, because activations of many sizes come and go; FSDP's and XLA's are planned
	buffers     bool    // keeps the results of a stage for all micro-batches in flight
	buckets     bool    // reduces gradients in separate buckets, in float32
	regathers   bool    // gathers again in the backward pass what sequence parallelism gathered, and does not keep it
	operands8   bool    // keeps operands of the products of blocks in 8 bits
	scores      scores
}

// scores says which attention kernels a framework has, and so what it keeps of the attention scores of a block.
type scores int

const (
	flash        scores = iota // scores are never written
	flashPacked                // FlashAttention 1, called with copies of its operands, as eager AA-Scaling does
	fusedSoftmax               // Megatron's
	eager                      // one kernel per operation
)

// habits tells the habits of the row's framework. Rows without a framework state their kernels: they ran PyTorch, eager
// except for those kernels.
func (r *Row) habits() habits {
	has := r.frameworkHas
	s := habits{gradient: 2, scores: eager}
	switch {
	case r.Framework == "", has("AA-Scaling"):
		s.wholeLogits, s.gaps, s.buckets = true, true, true
	case has("Megatron", "DeepSpeed", "NeMo"):
		s.scores, s.fusedNorm, s.fusedMLP, s.fusedLoss, s.gaps = fusedSoftmax, true, true, true, true
		s.buffers, s.buckets = has("DeepSpeed"), has("DeepSpeed")
		s.regathers, s.operands8 = true, r.DType == "fp8"
	default:
		s.gradient = 4 // the parameters are in float32
		if has("Alpa") {
			s.gradient = 2 // gradients are those of a copy of the parameters in 16 bits (TrainState of its model_util.py)
		}
		s.fusedLoss = has("llm.c")
		s.remakesGELU = has("flash-attn", "llm.c")
		s.fusedNorm = has("torchtitan") // a Triton kernel, if the model is not compiled
		s.dtensor = has("torchtitan")
		// llm-foundry's default is flash-attn's kernel (loss_fn: fused_crossentropy); torchtitan compiles the loss in its rows
		// after 2024.
		s.half = has("llm-foundry", "flash-attn") || has("torchtitan") && r.Compiled && strings.Contains(r.Ref, "_2025")
	}
	switch {
	case r.Kernels == "fused":
		s.scores = fusedSoftmax
	case r.FlashAttention2:
		s.scores = flash
	case r.FlashAttention && s.wholeLogits:
		s.scores = flashPacked
	case r.FlashAttention:
		s.scores = flash
	}
	// A compiler, and selective recomputation, recompute everything between the products that they keep.
	again := r.Compiled || r.Recompute == "selective"
	s.fusedNorm = s.fusedNorm || r.FusedNorm || again
	s.fusedMLP = s.fusedMLP || again
	if r.GradDType == "fp32" {
		s.gradient = 4
	}
	return s
}

// Use is the predicted peak memory of a rank, in bytes, by purpose.
type Use struct {
	States  int64 // weights, gradients, optimizer state
	Saved   int64 // activations of the micro-batches in flight
	Working int64 // of one pass, or of the reduction of gradients if that needs more
	Gaps    int64 // fragmentation of the allocator
	Reserve int64 // CUDA context and communicators
}

// Total returns all bytes.
func (u Use) Total() int64 { return u.States + u.Saved + u.Working + u.Gaps + u.Reserve }

// Use predicts the memory of a rank of the row: the arena of its plan, of which f is the footprint, and what the row's software
// and kernels keep besides.
func (m *Memory) Use(r *Row, f *planner.Footprint) Use {
	const gib = 1 << 30
	s := r.habits()
	states := float64(f.Weights+f.Other+f.State) + s.gradient*float64(f.Elements)
	var kept, live, again, head float64
	for _, made := range f.Forward {
		stays, while := m.besides(&s, r, &made)
		kept += float64(made.Kept) * stays
		live += while
		if made.Again {
			again += stays
		}
		if made.Op == ir.OpRowMax {
			head = m.head(&s, r, float64(made.Source))
		}
	}
	if s.buffers && r.PP > 1 {
		kept += m.Buffered * float64(f.InFlight) * float64(r.MicroBatch*r.SeqLen*r.Hidden)
	}
	// codegen allocates Slots slots, as each chunk has its own ring. Other software allocates on demand, for the AtOnce
	// micro-batches that are in flight at the same time.
	saved, block := (float64(f.Saved)+kept)*float64(f.AtOnce)/float64(f.Slots), float64(f.Temp)+live+again
	gaps := 0.0
	if s.gaps {
		gaps = m.Fragmentation * block
	}
	if s.gaps && r.Recompute != "full" {
		gaps += m.Fragmentation * saved // with full recomputation all saved tensors have one size, which leaves no gaps
	}
	working := max(block, head)
	if s.buckets && r.DP > 1 {
		// A bucket in 16 bits (2) and in float32 (4), and the gradient of the rank's shard in float32, at a time when the
		// activations are gone.
		reduced := 6*min(m.Bucket, float64(f.Elements)) + 4*float64(f.Elements)/float64(r.DP)
		working = max(working, reduced-saved-gaps)
	}
	if s.buffers {
		states += m.Flat * (1 << 30)
		if r.DType == "bf16" {
			states += 2 * float64(f.Elements) // besides the sum of gradients in float32, the last gradient in bfloat16
		}
	}
	groups := 0
	for _, degree := range []int{r.TP, r.PP, r.DP * r.CP} {
		if degree > 1 {
			groups++
		}
	}
	return Use{
		States: int64(states), Saved: int64(saved), Working: int64(working), Gaps: int64(gaps),
		Reserve: int64(gib * (m.Context + m.Communicator*float64(groups))),
	}
}

// besides returns the bytes that the software keeps for one instruction beyond what codegen's program does: kept until its
// backward pass, and live while that runs. They are negative if the software keeps less.
func (m *Memory) besides(s *habits, r *Row, made *planner.Made) (kept, live float64) {
	result, grown := float64(made.Result), float64(made.Result-made.Source)
	switch made.Op {
	case ir.OpRMSNorm:
		switch {
		case !s.fusedNorm:
			kept = m.Norm * result
		case r.Compiled:
			kept = -m.Rounded * result // recomputed, with the operand of the product after it
		}
	case ir.OpGELU:
		if s.remakesGELU {
			kept = -m.Rounded * result
		}
	case ir.OpSwiGLU:
		if !s.fusedMLP {
			kept = m.SwiGLU * result
		}
	case ir.OpAllGather:
		if made.InBlock && r.SequenceParallel && grown > 0 && !s.regathers {
			kept = m.Gathered * grown
		}
	case ir.OpAttention, ir.OpAttentionKV:
		written := result / float64(r.Hidden/r.Heads) * float64(r.SeqLen)
		switch s.scores {
		case flashPacked:
			kept = m.FlashAttention1 * result
		case fusedSoftmax:
			kept, live = m.FusedScores*written, m.FusedLive*written
		case eager:
			kept, live = m.EagerScores*written, m.EagerLive*written
		}
		if s.operands8 {
			kept += m.Operand8 * result // an operand of the next product, besides what attention's own gradient needs
		}
	}
	switch made.Op {
	case ir.OpLayerNorm, ir.OpRMSNorm, ir.OpGELU, ir.OpSwiGLU:
		if s.operands8 && made.InBlock {
			kept += (m.Operand8 - m.Rounded) * result
		}
	}
	return kept, live
}

// head returns the bytes of the working set of the loss, given the number of logits on a rank.
func (m *Memory) head(s *habits, r *Row, logits float64) float64 {
	switch {
	case s.fusedLoss:
		return m.LogitsFused * logits
	case s.half:
		return m.LogitsHalf * logits
	case s.dtensor && r.TP > 1:
		return m.LogitsParallel * logits
	case !s.wholeLogits:
		return m.Logits * logits
	}
	per := m.LogitsWhole
	if r.PP > 1 {
		per += m.LogitsBefore
	}
	if r.TP > 1 {
		per += m.LogitsSplit
	}
	return per * float64(r.MicroBatch*r.SeqLen/r.CP) * float64(r.Vocab)
}

// uses predicts every stage of the case.
func (c *Case) uses(m *Memory) []Use {
	var all []Use
	for i := range c.footprints {
		all = append(all, m.Use(&c.Row, &c.footprints[i]))
	}
	return all
}

// fullest returns the use with the largest total.
func fullest(uses []Use) Use {
	most := uses[0]
	for _, u := range uses[1:] {
		if u.Total() > most.Total() {
			most = u
		}
	}
	return most
}

// judge sets the predictions of memory in o. device is the memory of a GPU in bytes.
func (c *Case) judge(o *Outcome, m *Memory, device int64) {
	uses := c.uses(m)
	o.Use = fullest(uses)
	o.PredictedBytes = o.Use.Total()
	o.PredictedFits = o.PredictedBytes <= device
	for i := range c.footprints {
		o.ArenaBytes = max(o.ArenaBytes, c.footprints[i].Arena())
	}
	if c.Peak > 0 {
		o.PredictedPeak = peakAs(c.PeakKind, uses)
	}
}

// peakAs returns what a published peak of some kind shows, in bytes, given the uses of all stages: nvidia-smi shows all memory
// of a process, torch's "reserved" what its allocator holds, torch's "active" and XLA's peak the buffers without gaps.
func peakAs(kind string, uses []Use) int64 {
	u := fullest(uses)
	switch {
	case strings.HasPrefix(kind, "nvidia_smi"):
		if strings.HasSuffix(kind, "first_stage") {
			u = uses[0]
		}
		return u.Total()
	case strings.Contains(kind, "reserved"):
		return u.Total() - u.Reserve
	}
	return u.Total() - u.Reserve - u.Gaps
}
