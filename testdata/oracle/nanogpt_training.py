#!/usr/bin/env python3
"""Writes nanogpt/*: checkpoints in the middle of runs as nanoGPT's train.py saves them, and the steps that follow.

    OMP_NUM_THREADS=1 python3 nanogpt_training.py

Needs PyTorch on the CPU, and draws.py, make.py and torchfile.py beside it. README.md says what each file holds. Which windows of the data a
step has follows from the seed by Philox4x32-10, as in data/sampler.go.
"""

import copy
import json
import math
import os
from collections import OrderedDict
from functools import partial

import torch

import draws
import make
import torchfile

HERE = os.path.join(make.HERE, "nanogpt")
L, H, C, T, V = 2, 2, 8, 9, 13
SEED, BATCH, STOP, STEPS = 7654321, 5, 8, 20
LR, MIN_LR, WARMUP, DECAY_ITERS, BETAS, WEIGHT_DECAY, CLIP = 5e-3, 1e-3, 4, 18, (0.9, 0.99), 0.1, 1.0
philox = partial(draws.philox, SEED)


def batch(ids, step):
    windows = []
    for row in range(BATCH):
        draw = philox("data/train", step, 2 * row) << 32 | philox("data/train", step, 2 * row + 1)
        start = draw * (len(ids) - T) >> 64
        windows.append(ids[start : start + T + 1])
    return torch.tensor(windows)


def lr(it):
    if it < WARMUP:
        return LR * (it + 1) / (WARMUP + 1)
    done = min(1, (it - WARMUP) / (DECAY_ITERS - WARMUP))
    return MIN_LR + (LR - MIN_LR) * (1 + math.cos(math.pi * done)) / 2


def configure_optimizers(model):
    """The groups of nanoGPT: its parameters in the order of named_parameters, which has the tied head once."""
    parameters = [p for _, p in model.named_parameters()]
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=LR, betas=BETAS)


def train(c, model, optimizer, ids, first, last):
    losses, norms = [], []
    for it in range(first, last):
        for group in optimizer.param_groups:
            group["lr"] = lr(it)
        optimizer.zero_grad()
        windows = batch(ids, it)
        loss = make.mean_loss(c, make.forward(c, dict(model.named_parameters()), windows[:, :-1]), windows[:, 1:].reshape(-1))
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP).item())
        optimizer.step()
        losses.append(loss.item())
    for group in optimizer.param_groups:
        group["lr"] = lr(last)
    return {"losses": losses, "grad_norms": norms}


def resumed(model, state, weights, dtype):
    """The run that goes on, in another precision."""
    model = torchfile.module({n: w.to(dtype) for n, w in weights.items()})
    optimizer = configure_optimizers(model)
    optimizer.load_state_dict(copy.deepcopy(state))
    return model, optimizer


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    gen = torch.Generator().manual_seed(11)
    ids = [1]
    for noise in torch.randint(3, (220,), generator=gen).tolist():
        ids.append((5 * ids[-1] + noise) % V)
    train_ids, val_ids = ids[:170], ids[170:]
    out = {
        "config": "\n".join([
            f"model: {{n_layer: {L}, n_head: {H}, n_embd: {C}, block_size: {T}, vocab_size: {V}}}",
            f"batch: {{global: {BATCH}}}",
            f"optimizer: {{learning_rate: {LR}, min_lr: {MIN_LR}, warmup_iters: {WARMUP}, lr_decay_iters: {DECAY_ITERS}, beta1: {BETAS[0]}, "
            f"beta2: {BETAS[1]}, weight_decay: {WEIGHT_DECAY}, grad_clip: {CLIP}}}",
            f"train: {{max_iters: {STEPS - 1}, eval_interval: {STEPS}, eval_iters: 1, log_interval: 1, seed: {SEED}}}",
        ]),
        "stop": STOP, "train": train_ids, "val": val_ids,
    }
    for name, bias in (("bias", True), ("nobias", False)):
        c = dict(L=L, H=H, C=C, T=T, V=V, bias=bias, gelu="erf")
        model = torchfile.module(make.draw_weights(c, gen))
        optimizer = configure_optimizers(model)
        train(c, model, optimizer, train_ids, 0, STOP)
        weights = {n: p.detach().clone() for n, p in model.named_parameters()}
        state = optimizer.state_dict()
        if bias:  # a compiled model, without flash attention
            for i in range(L):
                mask = torch.tril(torch.ones(T, T)).view(1, 1, T, T)
                model.transformer.h._modules[str(i)].attn.register_buffer("bias_mask", mask)
            tensors = OrderedDict(("_orig_mod." + n.replace("bias_mask", "bias"), w) for n, w in model.state_dict().items())
        else:  # an old PyTorch
            tensors = model.state_dict()
            for s in state["state"].values():
                s["step"] = int(s["step"])
        args = dict(n_layer=L, n_head=H, n_embd=C, block_size=T, bias=bias, vocab_size=V, dropout=0.0)
        torch.save({
            "model": tensors, "optimizer": state, "model_args": args, "iter_num": STOP, "best_val_loss": torch.tensor(2.125),
            "config": dict(args, learning_rate=LR),
        }, os.path.join(HERE, name + ".pt"))
        for s in state["state"].values():
            s["step"] = torch.tensor(float(s["step"]))
        f32, f64 = (train(c, *resumed(model, state, weights, dtype), train_ids, STOP, STEPS) for dtype in (torch.float32, torch.float64))
        out[name] = f64
        gap = {k: max(abs(x - y) for x, y in zip(f32[k], f64[k])) for k in f64}
        print(name, "losses", f64["losses"][0], "to", f64["losses"][-1], "norms", min(f64["grad_norms"]), "to", max(f64["grad_norms"]), "float32 is off by", gap)
        print(name, os.path.getsize(os.path.join(HERE, name + ".pt")))
    with open(os.path.join(HERE, "training.json"), "w") as f:
        f.write("{\n" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in out.items()) + "\n}\n")


if __name__ == "__main__":
    main()
