"""Times nanoGPT-style training steps in PyTorch, for bench/cpu.sh.

usage: peer.py MODEL WARMUP STEPS [compile]

Prints the milliseconds of each step after the warm-up: forward, loss, backward, clip and AdamW in float32.
Attention is F.scaled_dot_product_attention where this PyTorch has it, else the explicit softmax.
"""
import math
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F
from models import MODELS


class LayerNorm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(c))

    def forward(self, x):
        return F.layer_norm(x, self.weight.shape, self.weight, None, 1e-5)


class Block(nn.Module):
    def __init__(self, heads, c, t):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = LayerNorm(c), LayerNorm(c)
        self.c_attn = nn.Linear(c, 3 * c, bias=False)
        self.c_proj = nn.Linear(c, c, bias=False)
        self.fc, self.proj = nn.Linear(c, 4 * c, bias=False), nn.Linear(4 * c, c, bias=False)
        self.register_buffer("mask", torch.tril(torch.ones(t, t)).view(1, 1, t, t))

    def attention(self, x):
        b, t, c = x.shape
        q, k, v = (y.view(b, t, self.heads, c // self.heads).transpose(1, 2) for y in self.c_attn(x).split(c, dim=2))
        if hasattr(F, "scaled_dot_product_attention"):
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            p = (q @ k.transpose(-2, -1)) / math.sqrt(k.size(-1))
            y = F.softmax(p.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf")), dim=-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.proj(F.gelu(self.fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self, layers, heads, c, t, v):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(v, c), nn.Embedding(t, c)
        self.blocks = nn.ModuleList(Block(heads, c, t) for _ in range(layers))
        self.ln_f = LayerNorm(c)
        for p in self.parameters():
            if p.dim() >= 2:  # as nanoGPT: PyTorch's own makes logits so large that probabilities are denormal, which is slow
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe(torch.arange(ids.size(1)))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def main():
    layers, heads, c, t, b, v = MODELS[sys.argv[1]]
    warmup, steps = int(sys.argv[2]), int(sys.argv[3])
    torch.manual_seed(1337)
    torch.set_num_threads(2)
    model = GPT(layers, heads, c, t, v)
    step_model = torch.compile(model) if "compile" in sys.argv[4:] else model
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=1e-3, betas=(0.9, 0.99))
    for i in range(warmup + steps):
        ids, targets = torch.randint(v, (b, t)), torch.randint(v, (b, t))
        start = time.perf_counter()
        loss = step_model(ids, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()
        if i >= warmup:
            print(f"{(time.perf_counter() - start) * 1e3:.3f}")


main()
