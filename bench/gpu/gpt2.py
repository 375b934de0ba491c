"""Times training steps of GPT-2 124M in PyTorch, as nanoGPT trains it: bfloat16 autocast,
flash attention, fused AdamW, gradients clipped at 1, torch.compile. One line a batch size:
batch, milliseconds a step (median), tokens a second, GiB of memory. The host is a step
ahead: it waits for a step when the next is launched, as autopar bench does.

    python3 gpt2.py BATCH... [--steps N] [--burn-in N] [--no-compile]
"""
import argparse
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

L, HEADS, C, T, V = 12, 12, 768, 1024, 50304


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(C, bias=False), nn.LayerNorm(C, bias=False)
        self.c_attn, self.attn_proj = nn.Linear(C, 3 * C, bias=False), nn.Linear(C, C, bias=False)
        self.c_fc, self.mlp_proj = nn.Linear(C, 4 * C, bias=False), nn.Linear(4 * C, C, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, HEADS, C // HEADS).transpose(1, 2) for y in self.c_attn(self.ln_1(x)).split(C, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(y.transpose(1, 2).reshape(b, t, C))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, C), nn.Embedding(T, C)
        self.blocks = nn.ModuleList(Block() for _ in range(L))
        self.ln_f = nn.LayerNorm(C, bias=False)
        self.head = nn.Linear(C, V, bias=False)
        self.head.weight = self.wte.weight
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.ln_f(x)).flatten(0, 1), targets.flatten())


def median_step(batch, steps, burn_in, compiled):
    torch.manual_seed(1337)
    model = GPT().cuda()
    groups = [
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95), fused=True)
    forward = torch.compile(model) if compiled else model
    ids, targets = (torch.randint(V, (batch, T), device="cuda") for _ in range(2))
    ends, times = [], []
    torch.cuda.reset_peak_memory_stats()
    last = time.perf_counter()
    for step in range(burn_in + steps + 1):
        if step < burn_in + steps:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = forward(ids, targets)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            ends.append(torch.cuda.Event())
            ends[-1].record()
        if step > 0:
            ends[step - 1].synchronize()
            now = time.perf_counter()
            if step > burn_in:
                times.append(now - last)
            last = now
    assert torch.isfinite(loss), loss
    return statistics.median(times)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("batches", type=int, nargs="+")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--burn-in", type=int, default=10)
    parser.add_argument("--no-compile", action="store_true")
    args = parser.parse_args()
    torch.set_float32_matmul_precision("high")
    print(f"# PyTorch {torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.get_device_name()}", flush=True)
    for batch in args.batches:
        try:
            seconds = median_step(batch, args.steps, args.burn_in, not args.no_compile)
            print(f"{batch} {seconds * 1e3:.2f} {batch * T / seconds:.0f} {torch.cuda.max_memory_allocated() / 2**30:.2f}", flush=True)
        except torch.cuda.OutOfMemoryError:
            print(f"{batch} - out-of-memory", flush=True)
        torch.cuda.empty_cache()
        torch.compiler.reset()


if __name__ == "__main__":
    sys.exit(main())
