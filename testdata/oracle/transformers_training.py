#!/usr/bin/env python3
"""Writes training/*: a tiny Llama of transformers, and what PyTorch trains it to, whole and by adapters of peft.

    OMP_NUM_THREADS=1 python3 transformers_training.py

Needs PyTorch on the CPU, transformers and peft, and draws.py beside it. README.md says what each file holds. Which windows of the data a step has,
and what the adapters begin with, follow from the seed by Philox4x32-10, as in data/sampler.go.
"""

import copy
import json
import math
import os
from functools import partial

import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

import draws

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "training")
L, H, KV, C, FFN, T, V, NORM_EPS = 2, 4, 2, 8, 5, 9, 13, 1e-3
THETA, FACTOR, LOW, HIGH, ORIGINAL = 700.0, 8.0, 1.0, 4.0, 16  # the one pair of a head turns 2.5 times in 16 positions
SEED, BATCH, MICRO, STEPS, EVAL_ITERS = 1234567, 5, 2, 25, 2
LR, MIN_LR, WARMUP, DECAY_ITERS, BETAS, EPS, WEIGHT_DECAY, CLIP = 5e-3, 1e-3, 4, 20, (0.9, 0.95), 1e-8, 0.1, 1.2
RANK, ALPHA = 2, 6
philox = partial(draws.philox, SEED)


def normal(name, shape, std):
    """Box-Muller: elements 2n and 2n+1 are of words 2n and 2n+1."""
    x = []
    for n in range(0, math.prod(shape) + 1, 2):
        r = math.sqrt(-2 * math.log((philox(name, 0, n) + 1) / 2**32))
        angle = 2 * math.pi * philox(name, 0, n + 1) / 2**32
        x += [std * r * math.cos(angle), std * r * math.sin(angle)]
    return torch.tensor(x[: math.prod(shape)], dtype=torch.float64).reshape(shape)


def batch(ids, stream, step):
    windows = []
    for row in range(BATCH):
        draw = philox("data/" + stream, step, 2 * row) << 32 | philox("data/" + stream, step, 2 * row + 1)
        start = draw * (len(ids) - T) >> 64
        windows.append(ids[start : start + T + 1])
    return torch.tensor(windows)


def loss_of(model, windows):
    logits = model(windows[:, :-1]).logits
    return F.cross_entropy(logits.reshape(-1, V), windows[:, 1:].reshape(-1))


def lr(it):
    if it < WARMUP:
        return LR * (it + 1) / (WARMUP + 1)
    done = min(1, (it - WARMUP) / (DECAY_ITERS - WARMUP))
    return MIN_LR + (LR - MIN_LR) * (1 + math.cos(math.pi * done)) / 2


def train(model, train_ids, val_ids):
    trained = [p for p in model.parameters() if p.requires_grad]
    decayed, others = [p for p in trained if p.dim() > 1], [p for p in trained if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}] + [{"params": others, "weight_decay": 0.0}] * bool(others)
    opt = torch.optim.AdamW(groups, betas=BETAS, eps=EPS)
    with torch.no_grad():
        val = [loss_of(model, batch(val_ids, "eval/val", k)).item() for k in range(EVAL_ITERS)]
    losses, norms = [], []
    for it in range(STEPS):
        for group in opt.param_groups:
            group["lr"] = lr(it)
        opt.zero_grad()
        windows, total = batch(train_ids, "train", it), 0.0
        for i in range(0, BATCH, MICRO):
            micro = windows[i : i + MICRO]
            loss = loss_of(model, micro) * (len(micro) / BATCH)
            loss.backward()
            total += loss.item()
        norms.append(torch.nn.utils.clip_grad_norm_(trained, CLIP).item())
        opt.step()
        losses.append(total)
    return {"val_loss": sum(val) / len(val), "losses": losses, "grad_norms": norms}


def adapted(model, dtype):
    """peft's adapters of o_proj and down_proj, with A as autopar draws it: query heads there come first by group."""
    model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=["o_proj", "down_proj"]))
    for i, layer in enumerate(model.base_model.model.model.layers):
        a = normal(f"h.{i}.attn.c_proj.lora.a", (RANK, H // KV, KV, C // H), 1 / math.sqrt(3 * C))
        b = normal(f"h.{i}.mlp.c_proj.lora.a", (RANK, FFN), 1 / math.sqrt(3 * FFN))
        # To float32 first: the model in float64 begins with the same numbers.
        layer.self_attn.o_proj.lora_A.default.weight.data = a.float().transpose(1, 2).reshape(RANK, C).to(dtype)
        layer.mlp.down_proj.lora_A.default.weight.data = b.float().to(dtype)
    return model


config = LlamaConfig(
    num_hidden_layers=L, num_attention_heads=H, num_key_value_heads=KV, hidden_size=C, intermediate_size=FFN, vocab_size=V,
    max_position_embeddings=T, rms_norm_eps=NORM_EPS, rope_parameters={
        "rope_type": "llama3", "rope_theta": THETA, "factor": FACTOR, "low_freq_factor": LOW, "high_freq_factor": HIGH,
        "original_max_position_embeddings": ORIGINAL,
    }, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None,
)
model = LlamaForCausalLM(config)
gen = torch.Generator().manual_seed(7)
for name, p in sorted(model.named_parameters()):
    if p.dim() == 2:
        torch.nn.init.normal_(p, std=0.4, generator=gen)
    else:
        torch.nn.init.uniform_(p, 0.8, 1.2, generator=gen)
model.save_pretrained(HERE)
os.remove(os.path.join(HERE, "generation_config.json"))

ids = [1]
for noise in torch.randint(3, (220,), generator=gen).tolist():
    ids.append((5 * ids[-1] + noise) % V)
train_ids, val_ids = ids[:170], ids[170:]
out = {
    "config": "\n".join([
        f"model: {{n_layer: {L}, n_head: {H}, n_kv_head: {KV}, n_embd: {C}, ffn_hidden: {FFN}, block_size: {T}, vocab_size: {V}, bias: false, "
        f"activation: swiglu, norm: rmsnorm, position: rope, rope_theta: {THETA}, tie_embeddings: false, norm_eps: {NORM_EPS}, "
        f"rope_factor: {FACTOR}, rope_low_freq_factor: {LOW}, rope_high_freq_factor: {HIGH}, rope_original_block_size: {ORIGINAL}}}",
        f"batch: {{global: {BATCH}}}",
        f"optimizer: {{learning_rate: {LR}, min_lr: {MIN_LR}, warmup_iters: {WARMUP}, lr_decay_iters: {DECAY_ITERS}, beta1: {BETAS[0]}, "
        f"beta2: {BETAS[1]}, eps: {EPS}, weight_decay: {WEIGHT_DECAY}, grad_clip: {CLIP}}}",
        f"train: {{max_iters: {STEPS - 1}, eval_interval: {STEPS}, eval_iters: {EVAL_ITERS}, log_interval: 1, seed: {SEED}}}",
    ]),
    "adapters": [f"model.lora_rank={RANK}", f"model.lora_alpha={ALPHA}", "model.lora_targets=c_proj"],
    "train": train_ids, "val": val_ids,
}
for kind in ("whole", "adapted"):
    both = []
    for dtype in (torch.float32, torch.float64):
        m = copy.deepcopy(model).to(dtype)
        if kind == "adapted":
            m = adapted(m, dtype)
        out[kind] = train(m, train_ids, val_ids)
        if kind == "adapted":
            m = m.merge_and_unload()
        weights = {n: w.detach().float().contiguous() for n, w in m.state_dict().items()}
        both.append((out[kind], weights))
    save_file(weights, os.path.join(HERE, kind + ".safetensors"))
    (a, aw), (b, bw) = both
    gap = {k: max(abs(x - y) for x, y in zip(a[k], b[k])) for k in ("losses", "grad_norms")}
    gap["weights"] = max((aw[n] - bw[n]).abs().max().item() for n in aw)
    print(kind, "losses", b["losses"][0], "to", b["losses"][-1], "norms", min(b["grad_norms"]), "to", max(b["grad_norms"]), "float32 is off by", gap)
with open(os.path.join(HERE, "training.json"), "w") as f:
    f.write("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in out.items()) + "\n}\n")
