#!/usr/bin/env python3
"""Writes transformers/*: a tiny Llama as save_pretrained of transformers writes it, and tokens that it chooses.

    OMP_NUM_THREADS=1 python3 transformers_llama.py

Needs PyTorch on the CPU, and transformers. README.md says what each file holds.
"""

import os

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "transformers")

config = LlamaConfig(
    num_hidden_layers=2, num_attention_heads=6, num_key_value_heads=3, hidden_size=24, intermediate_size=20, vocab_size=29,
    max_position_embeddings=40, rms_norm_eps=1e-5, rope_parameters={
        "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 3.0,
        "original_max_position_embeddings": 20,  # in which the first of two pairs turns 3.2 times, and the second one 0.14 times
    }, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None,
)
model = LlamaForCausalLM(config).eval()
gen = torch.Generator().manual_seed(11)
for name, p in sorted(model.named_parameters()):
    if p.dim() == 2:
        torch.nn.init.normal_(p, std=0.4, generator=gen)
    else:
        torch.nn.init.uniform_(p, 0.8, 1.2, generator=gen)
model.save_pretrained(HERE)
os.remove(os.path.join(HERE, "generation_config.json"))

tokens, lead = torch.tensor([[3, 1, 4, 1]]), []
with torch.no_grad():
    ids = tokens
    for _ in range(36):
        top = model(ids).logits[0, -1].topk(2)
        lead.append((top.values[0] - top.values[1]).item())
        ids = torch.cat([ids, top.indices[:1].view(1, 1)], 1)
save_file({"prompt": tokens[0].int(), "greedy": ids[0, 4:].int().contiguous()}, os.path.join(HERE, "greedy.safetensors"))
print("the chosen token leads the second by", min(lead), "or more; tokens", ids[0, 4:].tolist())
