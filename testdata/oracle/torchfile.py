#!/usr/bin/env python3
"""Writes torchfile/*: one tiny GPT-2 as torch.save writes it in four ways, and its weights and logits as safetensors.

    OMP_NUM_THREADS=1 python3 torchfile.py

Needs PyTorch on the CPU and make.py beside it. README.md says what each file holds. Weights are whole multiples of 1/256 below
1.5 of at most 8 significant bits, which bfloat16 and float16 hold exactly: all files hold the same numbers.
"""

import os
from collections import OrderedDict

import torch
from torch import nn

import make

MODEL = dict(L=2, H=2, C=6, T=5, V=11, bias=True)
PROJECTIONS = ("c_attn.weight", "c_proj.weight", "c_fc.weight")


def path(name):
    return os.path.join(make.HERE, "torchfile", name)


def draw(gen):
    weights = OrderedDict()
    for name, shape in make.shapes(MODEL).items():
        if "ln_" in name and name.endswith(".weight"):
            weights[name] = 1 + torch.randint(-32, 32, shape, generator=gen) / 64
        else:
            weights[name] = torch.randint(-128, 129, shape, generator=gen) / 256
    return weights


class Module(nn.Module):
    """The weights as parameters of nested modules, so that state_dict is PyTorch's own."""

    def put(self, name, value):
        first, _, rest = name.partition(".")
        if not rest:
            self.register_parameter(first, nn.Parameter(value))
            return
        if first not in self._modules:
            self.add_module(first, Module())
        self._modules[first].put(rest, value)


def module(weights):
    m = Module()
    for name, w in weights.items():
        m.put(name, w.clone())
    m.add_module("lm_head", Module())
    m.lm_head.weight = m.transformer.wte.weight  # tied
    return m


def mask(dtype):
    T = MODEL["T"]
    return torch.tril(torch.ones(T, T)).view(1, 1, T, T).to(dtype)


def huggingface(weights):
    """In x out, with the causal mask that older files hold, as GPT2LMHeadModel.state_dict has them."""
    m = module({n: w.t().contiguous() if n.endswith(PROJECTIONS) else w for n, w in weights.items()})
    for i in range(MODEL["L"]):
        m.transformer.h._modules[str(i)].attn.register_buffer("bias", mask(torch.bool))
    return m.state_dict()


def half(weights):
    """Names of the Hub, without a prefix; matrices in bfloat16, vectors in float16, and masks in what they had in time."""
    out = {}
    for name, w in huggingface(weights).items():
        if name == "lm_head.weight":
            continue
        if w.is_floating_point():
            w = w.to(torch.bfloat16 if w.dim() == 2 else torch.float16)
        out[name.removeprefix("transformer.")] = w
    for i in range(MODEL["L"]):
        out[f"h.{i}.attn.bias"] = mask(torch.uint8)
        out[f"h.{i}.attn.masked_bias"] = torch.tensor(-1e4)
    return out


def views(weights):
    """Parameters that share one storage: matrices lie transposed in it, vectors are every second element."""
    size = sum(w.numel() * (1 if w.dim() == 2 else 2) for w in weights.values())
    flat, at, out = torch.full((size + 3,), 9.0), 3, {}
    for name, w in weights.items():
        if w.dim() == 2:
            view = flat[at : at + w.numel()].view(w.shape[1], w.shape[0]).t()
        else:
            view = flat[at : at + 2 * w.numel()][::2]
        at += w.numel() * (1 if w.dim() == 2 else 2)
        view.copy_(w)
        out[name] = nn.Parameter(view)
        assert not out[name].is_contiguous() and out[name].untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()
    return out


def nanogpt(weights):
    """What nanoGPT's train.py saves of a compiled model: its optimizer has made three steps, of length 0."""
    model = module(weights)
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95))
    for _ in range(3):
        optimizer.zero_grad()
        sum(p.square().sum() for p in parameters).backward()
        optimizer.step()
    args = dict(n_layer=MODEL["L"], n_head=MODEL["H"], n_embd=MODEL["C"], block_size=MODEL["T"], bias=MODEL["bias"], vocab_size=MODEL["V"], dropout=0.25)
    return {
        "model": OrderedDict(("_orig_mod." + n, w) for n, w in model.state_dict().items()),
        "optimizer": optimizer.state_dict(),
        "model_args": args,
        "iter_num": 3,
        "best_val_loss": torch.tensor(1.25),
        "config": dict(args, out_dir="out", learning_rate=6e-4, decay_lr=True, betas=[0.9, 0.95], device=torch.device("cpu"), dtype=torch.float32, note=None),
    }


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    gen = torch.Generator().manual_seed(1601)
    weights = draw(gen)
    for w in weights.values():
        assert torch.equal(w, w.to(torch.bfloat16).float()) and torch.equal(w, w.to(torch.float16).float())
    ids = torch.randint(MODEL["V"], (2, MODEL["T"]), generator=gen)
    out = dict(weights, ids=ids)
    for kind in ("erf", "tanh"):
        out["logits." + kind] = make.forward(dict(MODEL, gelu=kind), weights, ids)
    make.write("torchfile/weights.safetensors", out, dict(torch=torch.__version__))

    torch.save(huggingface(weights), path("pytorch_model.bin"))
    torch.save(half(weights), path("half.bin"))
    torch.save(views(weights), path("views.pt"), pickle_protocol=4)
    torch.save(nanogpt(weights), path("ckpt.pt"))
    for name in sorted(os.listdir(path(""))):
        print(name, os.path.getsize(path(name)))


if __name__ == "__main__":
    main()
