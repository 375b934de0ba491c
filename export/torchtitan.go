package export

import (
	"fmt"
	"math"
	"strings"

	"github.com/autopar/autopar/explain"
	"github.com/autopar/autopar/models/gpt"
	"github.com/autopar/autopar/partition"
)

// torchtitan writes a job file for torchtitan 0.2 (torchtitan/config/job_config.py of 0.2.2), which trains Llamas. Its tensor
// parallelism is always with sequence parallelism. Its FSDP shards gradients with the optimizer state: it is ZeRO 2 if
// parameters stay whole from the forward to the backward pass, and ZeRO 3 if not.
func (p *plan) torchtitan(o Options) string {
	p.foreign()
	cfg, m, t := p.Config, &p.Config.Model, &p.Config.Train
	dp, sharded := p.DataParallel(), p.DataParallel()*p.ContextParallel() > 1 && p.ZeRO > 0
	several := p.TP > 1 || p.PP() > 1 || p.ContextParallel() > 1
	p.lack(m.Activation != gpt.SwiGLU || m.Norm != gpt.RMSNorm || m.Position != gpt.RoPE || m.TieEmbeddings || m.Bias || m.Dropout > 0,
		"this model: it trains Llamas (swiglu, rmsnorm, rope, tie_embeddings: false, bias: false, dropout: 0)")
	p.lack(p.TP > 1 && !p.SequenceParallel, "tensor parallelism without sequence parallelism: plan with --sequence-parallel on")
	p.lack(p.TP > 1 && p.OverlapTP, "tensor-parallel communication beside the products of the backward pass: plan with --overlap-tp off")
	p.lack(sharded && p.ZeRO == 1, "optimizer state that is sharded without the gradients: plan with --zero 2")
	p.lack(dp > 1 && p.ZeRO == 0 && several, "data parallelism without ZeRO beside another: plan with --zero 2")
	p.lack(!p.numbered(partition.UsualOrder), "ranks in this order, units outermost: plan with --rank-order tp-cp-dp-pp and one unit")
	p.lack(t.DType == "float16", "float16: train in bfloat16")
	p.lack(t.DType == "bfloat16" && t.MasterWeights && !sharded && several && p.ContextParallel() == 1, "bfloat16 with master weights without FSDP: plan with --zero 2")

	r := m.Rotation()
	p.note(r.Factor != 8 || r.Low != 1 || r.High != 4 || r.Original != 8192, "the angles of rope's long waves are rescaled, as those of Llama 3.1")

	f := &toml{}
	f.section("model")
	f.set("name", "llama3")
	flavor, add := flavorOf(m)
	f.set("flavor", flavor)
	f.section("parallelism")
	replicas, shards := dp, 1
	if sharded {
		replicas, shards = p.Copies(), p.ShardGroup()
	}
	f.set("data_parallel_replicate_degree", replicas)
	f.set("data_parallel_shard_degree", shards)
	if sharded || p.ContextParallel() > 1 { // torchtitan has FSDP over context-parallel ranks even if none are data-parallel
		p.note(!p.Overlap, "FSDP communicates beside the computation")
		p.note(p.ZeRO == 0, "context-parallel ranks shard parameters, gradients and optimizer state")
		f.set("fsdp_reshard_after_forward", map[bool]string{true: "always", false: "never"}[p.ZeRO == 3])
	}
	f.set("tensor_parallel_degree", p.TP)
	f.set("context_parallel_degree", p.ContextParallel())
	local := p.MicroBatch
	if p.PP() > 1 {
		p.lack(p.Schedule.SplitsBackward() || p.Schedule.Eager(), "schedule %s: plan with --schedule 1f1b, interleaved or gpipe", p.Schedule)
		f.set("pipeline_parallel_degree", p.PP())
		f.set("pipeline_parallel_schedule", map[partition.Schedule]string{partition.GPipe: "GPipe", partition.OneFOneB: "1F1B", partition.Interleaved: "Interleaved1F1B"}[p.Schedule])
		f.set("pipeline_parallel_microbatch_size", p.MicroBatch)
		f.set("module_fqns_per_model_part", p.parts())
		local = cfg.Batch.Global / dp
		p.lack(p.Chunks() == 1 && local/p.MicroBatch < p.PP(), "%s in a pipeline of %d: plan with a smaller --micro-batch or --pp", explain.Count(local/p.MicroBatch, "micro-batch"), p.PP())
	}
	p.lack(m.BlockSize%(2*p.TP*p.ContextParallel()) != 0, "%d tokens, which 2 x tp x cp ranks do not divide: plan with a --tp and --cp that do", m.BlockSize)
	f.section("training")
	f.set("seq_len", m.BlockSize)
	f.set("local_batch_size", local)
	f.set("global_batch_size", cfg.Batch.Global)
	f.set("steps", t.MaxIters+1)
	if cfg.Optimizer.GradClip > 0 {
		f.set("max_norm", cfg.Optimizer.GradClip)
	} else {
		f.set("max_norm", math.Inf(1)) // with 0 it would clip all gradients to 0
	}
	f.set("dtype", map[bool]string{true: "float32", false: "bfloat16"}[t.DType != "bfloat16" || t.MasterWeights])
	f.set("mixed_precision_param", t.DType)
	p.note(t.DType == "bfloat16" && dp > 1, "gradients are summed over ranks in 4 bytes, not 2")
	f.section("activation_checkpoint")
	blocks, attention, ok := p.recomputation()
	p.lack(!ok || attention || blocks > 0 && blocks < p.most(), "recomputation of some blocks, of attention or of norms and activation functions alone: plan with --recompute full or none")
	f.set("mode", map[bool]string{true: "full", false: "none"}[blocks > 0])
	f.section("optimizer")
	f.set("name", "AdamW")
	f.set("lr", cfg.Optimizer.LearningRate)
	f.set("beta1", cfg.Optimizer.Beta1)
	f.set("beta2", cfg.Optimizer.Beta2)
	f.set("eps", cfg.Optimizer.Eps)
	f.set("weight_decay", cfg.Optimizer.WeightDecay)
	p.note(cfg.Optimizer.WeightDecay > 0, "the weights of norms decay, too")
	f.section("lr_scheduler")
	if cfg.Optimizer.DecayLR {
		f.set("warmup_steps", cfg.Optimizer.WarmupIters)
		p.note(cfg.Optimizer.WarmupIters > 0, "the warmup reaches its peak one step earlier")
		if cfg.Optimizer.Schedule != "constant" {
			f.set("total_steps", max(cfg.Optimizer.LRDecayIters, cfg.Optimizer.WarmupIters, t.MaxIters+1))
			p.note(cfg.Optimizer.LRDecayIters < t.MaxIters, "the learning rate decays until the last step")
			f.set("decay_type", "cosine")
			if cfg.Optimizer.LearningRate > 0 { // else it does not matter, and is 0/0
				f.set("min_lr_factor", cfg.Optimizer.MinLR/cfg.Optimizer.LearningRate)
			}
		} else {
			f.set("total_steps", max(cfg.Optimizer.WarmupIters, t.MaxIters+1)) // a longer warmup would be cut short
			f.set("decay_ratio", 0.0)
		}
	} else {
		f.set("warmup_steps", 0)
		f.set("decay_ratio", 0.0)
	}
	f.section("metrics")
	f.set("log_freq", t.LogInterval)
	f.section("debug")
	f.set("seed", t.Seed)

	lines := []string{
		"For torchtitan 0.2: from 0.3 on it reads no job files. It also wants a tokenizer and data (model.hf_assets_path,",
		"training.dataset):",
		fmt.Sprintf("  torchrun --nnodes %d --nproc-per-node %d ... -m torchtitan.train --job.config_file FILE", p.machines, p.perNode),
	}
	if add != "" {
		lines = append(lines, "Add this to llama3_args of torchtitan/models/llama3/__init__.py:", "  "+add)
	}
	return p.header(o, lines...) + f.text.String()
}

// parts names the modules of every stage, as torchtitan does.
func (p *plan) parts() [][]string {
	parts := make([][]string, len(p.Stages))
	for i, s := range p.Stages {
		if i == 0 {
			parts[i] = append(parts[i], "tok_embeddings")
		}
		for block := s.First; block < s.Last; block++ {
			parts[i] = append(parts[i], fmt.Sprintf("layers.%d", block))
		}
	}
	last := len(parts) - 1
	parts[last] = append(parts[last], "norm", "output")
	return parts
}

// flavorOf names the model as one of torchtitan's Llamas, which all have a vocabulary of 128256. If it is none of them, add is
// the line that makes it one.
func flavorOf(m *gpt.Config) (name, add string) {
	for _, known := range []struct {
		name                         string
		blocks, heads, kv, width, ff int
	}{
		{"8B", 32, 32, 8, 4096, 14336}, {"70B", 80, 64, 8, 8192, 28672}, {"405B", 126, 128, 8, 16384, 53248},
	} {
		if known.blocks == m.NLayer && known.heads == m.NHead && known.kv == m.KVHeads() && known.width == m.NEmbd && known.ff == m.FFN() && m.VocabSize == 128256 && m.Theta() == 500000 && m.Eps() == 1e-5 {
			return known.name, ""
		}
	}
	// torchtitan's MLP is 8/3 as wide as the model, times the multiplier, rounded up to multiple_of.
	multiplier := math.Min(1, float64(m.FFN())/float64(8*m.NEmbd/3))
	name = "autopar"
	epsilon := ""
	if m.NormEps > 0 {
		epsilon = fmt.Sprintf(", norm_eps=%g", m.NormEps)
	}
	return name, fmt.Sprintf("%q: TransformerModelArgs(dim=%d, n_layers=%d, n_heads=%d, n_kv_heads=%d, vocab_size=%d, multiple_of=%d, ffn_dim_multiplier=%.3f, rope_theta=%g%s),",
		name, m.NEmbd, m.NLayer, m.NHead, m.KVHeads(), m.VocabSize, m.FFN(), math.Floor(multiplier*1000)/1000, m.Theta(), epsilon)
}

// toml is a file of sections, keys and values.
type toml struct{ text strings.Builder }

func (f *toml) section(name string) { fmt.Fprintf(&f.text, "\n[%s]\n", name) }

func (f *toml) set(key string, value any) {
	var text string
	switch v := value.(type) {
	case string:
		text = fmt.Sprintf("%q", v)
	case float64:
		if text = strings.ToLower(fmt.Sprint(v)); !strings.ContainsAny(text, ".ei") { // +inf is a number, too
			text += ".0"
		}
	case [][]string:
		var rows []string
		for _, row := range v {
			rows = append(rows, `    ["`+strings.Join(row, `", "`)+`"],`)
		}
		text = "[\n" + strings.Join(rows, "\n") + "\n]"
	default:
		text = fmt.Sprint(v)
	}
	fmt.Fprintf(&f.text, "%s = %s\n", key, text)
}
