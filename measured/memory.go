package measured

import (
	"slices"
	"strings"

	"github.com/autopar/autopar/ir"
	"github.com/autopar/autopar/planner"
)

// Memory is what training software holds on a device besides the buffers that
// codegen lays out for the same plan. A figure belongs to a piece of software or to
// a set of kernels, never to a source or a row. [Memory.Constants] has units,
// origins and plausible ranges.
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
	Most       float64 // the same as Least for what is known
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

// DefaultMemory returns the figures fitted for bench/validate.md.
func DefaultMemory() Memory {
	var m Memory
	for _, c := range m.Constants() {
		*c.Value = c.Default
	}
	return m
}

// habits is what the rows' frameworks do with memory.
type habits struct {
	gradient    float64 // bytes of an element of gradients where the row does not state their type
	fusedNorm   bool    // RMSNorm of one kernel
	fusedMLP    bool    // SwiGLU of one kernel
	remakesGELU bool    // computes GELU again for the gradient of the product after it
	fusedLoss   bool    // cross entropy of one kernel, over the vocabulary's parts
	wholeLogits bool    // every tensor rank has the logits of the whole vocabulary
	dtensor     bool    // cross entropy of DTensor's kernels where tensor ranks share the vocabulary
	half        bool    // cross entropy has logits and gradients in 16 bits alone
	gaps        bool    // activations of many sizes come and go; FSDP's and XLA's are planned
	buffers     bool    // keeps the results of the stage for the micro-batches in flight
	buckets     bool    // reduces gradients in separate buckets, in float32
	regathers   bool    // does not keep what sequence parallelism gathered
	operands8   bool    // keeps operands of the products of blocks in 8 bits
	scores      scores
}

// scores is what becomes of the attention scores of a block.
type scores int

const (
	flash        scores = iota // never written
	flashPacked                // FlashAttention 1, called with copies, as eager AA-Scaling does
	fusedSoftmax               // Megatron's
	eager                      // one kernel per operation
)

// habits tells what the row ran. Rows without a framework state their kernels;
// theirs is PyTorch, eager but for those.
func (r *Row) habits() habits {
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(r.Framework, w) })
	}
	s := habits{gradient: 2, scores: eager}
	switch {
	case r.Framework == "", has("AA-Scaling"):
		s.wholeLogits, s.gaps, s.buckets = true, true, true
	case has("Megatron", "DeepSpeed", "NeMo"):
		s.scores, s.fusedNorm, s.fusedMLP, s.fusedLoss, s.gaps = fusedSoftmax, true, true, true, true
		s.buffers, s.buckets = has("DeepSpeed"), has("DeepSpeed")
		s.regathers, s.operands8 = true, r.DType == "fp8"
	default:
		s.gradient = 4 // with the parameters in float32
		if has("Alpa") {
			s.gradient = 2 // of a copy of them in 16 bits (TrainState of its model_util.py)
		}
		s.fusedLoss = has("llm.c")
		s.remakesGELU = has("flash-attn", "llm.c")
		s.fusedNorm = has("torchtitan") // in Triton, where it is not compiled
		s.dtensor = has("torchtitan")
		// flash-attn's kernel, the default of llm-foundry (loss_fn: fused_crossentropy), and
		// the loss that torchtitan compiles, later than its rows of 2024.
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
	// Between the products that selective recomputation keeps, everything is made again.
	again := r.Compiled || r.Recompute == "selective"
	s.fusedNorm = s.fusedNorm || r.FusedNorm || again
	s.fusedMLP = s.fusedMLP || again
	if r.GradDType == "fp32" {
		s.gradient = 4
	}
	return s
}

// Use is the predicted memory of a rank at its fullest, in bytes, by what it is for.
type Use struct {
	States  int64 // weights, gradients, optimizer state
	Saved   int64 // for the micro-batches in flight
	Working int64 // of one pass, or of the optimizer where that is more
	Gaps    int64 // of the allocator, between the blocks in use
	Reserve int64 // context and communicators
}

// Total returns all bytes.
func (u Use) Total() int64 { return u.States + u.Saved + u.Working + u.Gaps + u.Reserve }

// Use predicts what a rank of the row holds: the arena of its plan, f, and what
// the row's software and kernels keep besides.
func (m *Memory) Use(r *Row, f *planner.Footprint) Use {
	const gib = 1 << 30
	s := r.habits()
	states, sharded := float64(f.Weights+f.Other)+s.gradient*float64(f.Elements), float64(f.State)
	if over := r.DP * r.CP; r.ZeRO > 0 && (r.ZeROGroup == 0 || r.ZeROGroup == over) {
		sharded /= float64(r.CP) // where autopar shards over data-parallel ranks alone
		if r.ZeRO == 3 {
			states /= float64(r.CP)
		}
	}
	states += sharded
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
	// Slots are rings of a chunk; software takes memory as it needs it.
	saved, block := (float64(f.Saved)+kept)*float64(f.AtOnce)/float64(f.Slots), float64(f.Temp)+live+again
	gaps := 0.0
	if s.gaps {
		gaps = m.Fragmentation * block
	}
	if s.gaps && r.Recompute != "full" {
		gaps += m.Fragmentation * saved // what full recomputation keeps is of one size
	}
	working := max(block, head)
	if s.buckets && r.DP > 1 {
		// A bucket as it is and in float32, and the gradient of the shard in float32,
		// when the activations are gone.
		reduced := 6*min(m.Bucket, float64(f.Elements)) + 4*float64(f.Elements)/float64(r.DP)
		working = max(working, reduced-saved-gaps)
	}
	if s.buffers {
		states += m.Flat * (1 << 30)
		if r.DType == "bf16" {
			states += 2 * float64(f.Elements) // of every gradient the sum in float32 and the last in bfloat16
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

// besides returns the bytes that the software keeps of one instruction's work
// besides what codegen does, until its backward pass and while that runs.
func (m *Memory) besides(s *habits, r *Row, made *planner.Made) (kept, live float64) {
	result, grown := float64(made.Result), float64(made.Result-made.Source)
	switch made.Op {
	case ir.OpRMSNorm:
		switch {
		case !s.fusedNorm:
			kept = m.Norm * result
		case r.Compiled:
			kept = -m.Rounded * result // made again, with the product's operand
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
			kept += m.Operand8 * result // beside what its own gradient needs
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

// head returns the working set of the loss, with so many logits on a rank.
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

// fullest returns the use of the rank that holds most.
func fullest(uses []Use) Use {
	most := uses[0]
	for _, u := range uses[1:] {
		if u.Total() > most.Total() {
			most = u
		}
	}
	return most
}

// judge fills in what is predicted of memory, on devices with so many bytes.
func (c *Case) judge(o *Outcome, m *Memory, device int64) {
	uses := c.uses(m)
	o.Use = fullest(uses)
	o.PredictedBytes = o.Use.Total()
	o.PredictedFits = o.PredictedBytes <= device
	for i := range c.footprints {
		o.ArenaBytes = max(o.ArenaBytes, c.footprints[i].Arena())
	}
	if c.Peak > 0 {
		o.PredictedPeak = int64(peakAs(c.PeakKind, uses))
	}
}

// peakAs returns what of the predicted use a published peak shows, in bytes:
// nvidia-smi sees all of a process, torch's "reserved" what its allocator holds,
// its "active" and XLA's peak the buffers without gaps.
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
