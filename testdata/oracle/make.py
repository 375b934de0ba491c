#!/usr/bin/env python3
"""Writes the reference values that autopar's tests are held against.

    OMP_NUM_THREADS=1 python3 make.py          # writes *.safetensors beside this script
    OMP_NUM_THREADS=1 python3 make.py llama    # writes one of them
    OMP_NUM_THREADS=1 python3 make.py --gap    # writes nothing; prints float32 against float64

Needs PyTorch on the CPU and nothing else. README.md says what each file holds.

The model below is nanoGPT's, in the plainest form: no fused attention, no module
tricks, one tensor per name in a dict. `llama` is HuggingFace's LlamaModel with the
three projections of attention, and gate and up, stacked in one matrix each; `grouped` is that with heads that share keys
and values, attended by PyTorch's own scaled_dot_product_attention(enable_gqa=True). Shapes use nanoGPT's letters: B batch,
T positions, V vocabulary, C channels, H heads; KV heads of keys and values, G = H/KV.
"""

import array
import json
import math
import os
import struct
import sys

import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))

BATCH = 7
STEPS = 50
LR, BETAS, EPS, WEIGHT_DECAY, CLIP = 1e-3, (0.9, 0.99), 1e-8, 0.1, 1.0
GREEDY_TOKENS = 100
# The smallest lead of the chosen token over the second that a greedy step may have:
# far above float32 noise, so every correct implementation picks the same tokens.
GREEDY_LEAD = 5e-3

# Seeds for which --gap is small and greedy decoding is lively; other seeds can leave one weight
# 5e-5 from its float64 value, because Adam's first steps divide tiny gradients by themselves.
CONFIGS = {
    "nobias": dict(seed=1338, L=2, H=3, C=24, T=33, V=65, bias=False, gelu="erf", ignored=0),
    "bias": dict(seed=1369, L=2, H=4, C=32, T=17, V=65, bias=True, gelu="tanh", ignored=5),
    "llama": dict(seed=1484, L=2, H=3, C=30, F=37, T=19, V=65, bias=False, gelu="silu", ignored=3, llama=True),
    "grouped": dict(seed=1551, L=2, H=6, KV=3, C=24, F=29, T=19, V=65, bias=False, gelu="silu", ignored=3, llama=True),
}


# --- model -------------------------------------------------------------------


def shapes(c):
    """The shape of every parameter, by nanoGPT's name. lm_head.weight is transformer.wte.weight, but in llama."""
    C = c["C"]
    llama, inner = c.get("llama", False), c.get("F", 4 * C)
    out = {"transformer.wte.weight": (c["V"], C)}
    if not llama:
        out["transformer.wpe.weight"] = (c["T"], C)

    def norm(name):
        out[name + ".weight"] = (C,)
        if c["bias"]:
            out[name + ".bias"] = (C,)

    def linear(name, n_out, n_in):
        out[name + ".weight"] = (n_out, n_in)
        if c["bias"]:
            out[name + ".bias"] = (n_out,)

    for i in range(c["L"]):
        h = f"transformer.h.{i}."
        norm(h + "ln_1")
        linear(h + "attn.c_attn", C + 2 * C // c["H"] * c.get("KV", c["H"]), C)
        linear(h + "attn.c_proj", C, C)
        norm(h + "ln_2")
        linear(h + "mlp.c_fc", 2 * inner if llama else inner, C)
        linear(h + "mlp.c_proj", C, inner)
    norm("transformer.ln_f")
    if llama:
        out["lm_head.weight"] = (c["V"], C)
    return out


def draw_weights(c, gen):
    """Not nanoGPT's init (std 0.02, zero biases, unit norms): drawn large enough that
    attention is far from uniform, gradients are far from zero, and greedy decoding does
    not settle on one token."""
    p = {}
    for name, shape in shapes(c).items():
        r = torch.randn(shape, generator=gen)
        if len(shape) == 2:
            p[name] = (0.3 if ".h." in name else 0.2) * r
        elif name.endswith(".bias"):
            p[name] = 0.1 * r
        else:
            p[name] = 1 + 0.1 * r
    return p


def gelu(c, x):
    if c["gelu"] == "erf":
        return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def rotated(x):
    """HuggingFace's apply_rotary_pos_emb of x [B, H, T, D] at positions 0 to T-1, theta 10000."""
    T, D = x.shape[2:]
    inv_freq = 1.0 / 10000 ** (torch.arange(0, D, 2, dtype=torch.float64) / D)
    freqs = torch.outer(torch.arange(T, dtype=torch.float64), inv_freq)
    emb = torch.cat((freqs, freqs), dim=-1)
    rotate_half = torch.cat((-x[..., D // 2 :], x[..., : D // 2]), dim=-1)
    return x * emb.cos().to(x.dtype) + rotate_half * emb.sin().to(x.dtype)


def forward(c, p, ids):
    """Logits [B, T, V] for ids [B, T], dropout 0."""
    B, T = ids.shape
    C, H = c["C"], c["H"]
    D = C // H
    llama = c.get("llama", False)

    def norm(name, x):
        if llama:
            return p[name + ".weight"] * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))
        return F.layer_norm(x, (C,), p[name + ".weight"], p.get(name + ".bias"), 1e-5)

    def linear(name, x):
        y = x @ p[name + ".weight"].T
        return y + p[name + ".bias"] if c["bias"] else y

    KV = c.get("KV", H)

    def heads(x):
        return x.view(B, T, -1, D).transpose(1, 2)

    def grouped(q, k, v):
        """PyTorch's attention of q [B, H, T, D], whose head g*KV + h here is head h*(H/KV) + g there."""
        q = q.view(B, H // KV, KV, T, D).transpose(1, 2).reshape(B, H, T, D)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return o.view(B, KV, H // KV, T, D).transpose(1, 2).reshape(B, H, T, D)

    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    x = p["transformer.wte.weight"][ids]
    if not llama:
        x = x + p["transformer.wpe.weight"][:T]
    for i in range(c["L"]):
        h = f"transformer.h.{i}."
        q, k, v = linear(h + "attn.c_attn", norm(h + "ln_1", x)).split([C, KV * D, KV * D], dim=2)
        q, k = heads(q), heads(k)
        if llama:
            q, k = rotated(q), rotated(k)
        if KV < H:
            mixed = grouped(q, k, heads(v))
        else:
            score = q @ k.transpose(2, 3) / math.sqrt(D)
            score = score.masked_fill(future, float("-inf"))
            mixed = torch.softmax(score, dim=3) @ heads(v)
        x = x + linear(h + "attn.c_proj", mixed.transpose(1, 2).reshape(B, T, C))
        hidden = linear(h + "mlp.c_fc", norm(h + "ln_2", x))
        if llama:
            gate, up = hidden.chunk(2, dim=2)
            hidden = F.silu(gate) * up
        else:
            hidden = gelu(c, hidden)
        x = x + linear(h + "mlp.c_proj", hidden)
    return norm("transformer.ln_f", x) @ p["lm_head.weight" if llama else "transformer.wte.weight"].T


def mean_loss(c, logits, targets):
    """Mean cross-entropy over the targets that are not -1."""
    return F.cross_entropy(logits.view(-1, c["V"]), targets.view(-1), ignore_index=-1)


# --- what is recorded --------------------------------------------------------


def draw_batch(c, gen):
    """ids and targets [BATCH, T]. Token t+1 is 5 times token t, plus 0..3, modulo V: there
    is something to learn. `ignored` targets, at random places, are -1."""
    V, T = c["V"], c["T"]
    seq = torch.randint(V, (BATCH, T + 1), generator=gen)
    noise = torch.randint(4, (BATCH, T), generator=gen)
    for t in range(T):
        seq[:, t + 1] = (5 * seq[:, t] + noise[:, t]) % V
    ids, targets = seq[:, :-1].clone(), seq[:, 1:].clone()
    targets.view(-1)[torch.randperm(BATCH * T, generator=gen)[: c["ignored"]]] = -1
    return ids, targets


def parameters(weights, dtype):
    return {n: w.detach().clone().to(dtype).requires_grad_() for n, w in weights.items()}


def one_step(c, weights, ids, targets, dtype):
    """Logits, loss and every gradient for one batch."""
    p = parameters(weights, dtype)
    logits = forward(c, p, ids)
    loss = mean_loss(c, logits, targets)
    loss.backward()
    out = {"logits": logits.detach(), "loss": loss.detach()}
    out.update({"grad." + n: w.grad for n, w in p.items()})
    return out


def train(c, weights, batches, dtype):
    """Weights after one AdamW step per batch, with each step's loss and gradient norm before clipping."""
    p = parameters(weights, dtype)
    decayed = [w for w in p.values() if w.dim() >= 2]
    others = [w for w in p.values() if w.dim() < 2]
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    opt = torch.optim.AdamW(groups, lr=LR, betas=BETAS, eps=EPS)
    losses, norms = [], []
    for ids, targets in batches:
        opt.zero_grad(set_to_none=True)
        loss = mean_loss(c, forward(c, p, ids), targets)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(list(p.values()), CLIP))
        opt.step()
        losses.append(loss.detach())
    out = {"losses": torch.stack(losses), "grad_norms": torch.stack(norms)}
    out.update({f"after{STEPS}." + n: w.detach() for n, w in p.items()})
    return out


@torch.no_grad()
def greedy(c, weights, prompt, dtype):
    """The tokens after prompt, each the argmax given at most the last T tokens, and the smallest lead."""
    p = parameters(weights, dtype)
    ids, lead = list(prompt), math.inf
    for _ in range(GREEDY_TOKENS):
        last = forward(c, p, torch.tensor([ids[-c["T"] :]]))[0, -1]
        top = torch.topk(last, 2)
        lead = min(lead, (top.values[0] - top.values[1]).item())
        ids.append(top.indices[0].item())
    return torch.tensor(ids[len(prompt) :]), lead


def inputs(c):
    gen = torch.Generator().manual_seed(c["seed"])
    weights = draw_weights(c, gen)
    return weights, draw_batch(c, gen), [draw_batch(c, gen) for _ in range(STEPS)]


def measure(c, dtype):
    """Everything computed from the inputs, in dtype."""
    weights, (ids, targets), batches = inputs(c)
    out = one_step(c, weights, ids, targets, dtype)
    out.update(train(c, weights, batches, dtype))
    prompt = ids[0, :4].tolist()
    tokens, lead = greedy(c, weights, prompt, dtype)
    assert lead > GREEDY_LEAD, f"greedy lead {lead:.2g}: choose another seed"
    assert len(set(tokens.tolist())) >= 15, f"greedy tokens repeat: {tokens.tolist()}"
    out["greedy_prompt"], out["greedy"] = torch.tensor(prompt), tokens
    return out


def model_file(name, c):
    weights, (ids, targets), batches = inputs(c)
    out = dict(weights, ids=ids, targets=targets, **measure(c, torch.float32))
    out["batch_ids"] = torch.stack([b[0] for b in batches])
    out["batch_targets"] = torch.stack([b[1] for b in batches])
    meta = dict(n_layer=c["L"], n_head=c["H"], n_embd=c["C"], block_size=c["T"], vocab_size=c["V"])
    if c.get("llama"):
        meta.update(ffn_hidden=c["F"], activation="swiglu", norm="rmsnorm", position="rope", tie_embeddings="false")
    if "KV" in c:
        meta.update(n_kv_head=c["KV"])
    meta.update(bias=str(c["bias"]).lower(), gelu=c["gelu"], seed=c["seed"], torch=torch.__version__)
    write(name + ".safetensors", out, meta)


def gelu_file():
    """Both GELUs of float32 points, computed in float64 and rounded once."""
    x = torch.linspace(-6, 6, 1201, dtype=torch.float64).float()
    out = {"x": x}
    for kind in ("erf", "tanh"):
        out[kind] = gelu({"gelu": kind}, x.double())
    write("gelu.safetensors", out, dict(torch=torch.__version__))


# --- safetensors -------------------------------------------------------------


def write(name, tensors, meta):
    """On a little-endian machine. The format by hand: header length (8 bytes, little-endian), JSON header padded with
    spaces to a multiple of 8, data in name order. Floats become F32, integers I32."""
    header, blobs, at = {"__metadata__": {k: str(v) for k, v in meta.items()}}, [], 0
    for key in sorted(tensors):
        t = tensors[key]
        if t.is_floating_point():
            assert torch.isfinite(t).all(), key
            dtype, blob = "F32", array.array("f", t.float().flatten().tolist()).tobytes()
        else:
            dtype, blob = "I32", array.array("i", t.flatten().tolist()).tobytes()
        header[key] = {"dtype": dtype, "shape": list(t.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(os.path.join(HERE, name), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    print(f"{name}: {len(tensors)} tensors, {8 + len(text) + at} bytes")


# --- how far float32 is from the truth ----------------------------------------


def gap(name, c):
    """Prints how far the recorded float32 values are from the same run in float64."""
    single, double = measure(c, torch.float32), measure(c, torch.float64)
    worst = {}
    C = c["C"]

    def note(kind, key, value):
        worst[kind] = max(worst.get(kind, (0.0, "")), (float(value), key))

    for key, b in double.items():
        a = single[key].double()
        if key.startswith("grad."):
            if key.endswith("c_attn.bias"):  # the key third is zero but for rounding: see README.md
                note("gradient of key bias, max", key, b[C : 2 * C].abs().max())
                note("gradient of key bias, max in float32", key, a[C : 2 * C].abs().max())
            note("gradient, relative norm", key, (a - b).norm() / b.norm())
        elif key.startswith("after"):
            d = (a - b).abs()
            if key.endswith("c_attn.bias"):
                note("weights after, key bias", key, d[C : 2 * C].max())
                d = torch.cat([d[:C], d[2 * C :]])
            note("weights after, all others", key, d.max())
        else:
            note(key, key, (a - b).abs().max())
    print(f"{name}: largest difference between float32 and float64")
    for kind, (value, key) in worst.items():
        print(f"  {kind:38s} {value:.1e}  {key if key != kind else ''}".rstrip())


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    only = [a for a in sys.argv[1:] if not a.startswith("--")]
    for name, c in CONFIGS.items():
        if only and name not in only:
            continue
        gap(name, c) if "--gap" in sys.argv[1:] else model_file(name, c)
    if not sys.argv[1:]:
        gelu_file()


if __name__ == "__main__":
    main()
