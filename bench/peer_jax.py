"""Times the training steps of peer.py in JAX, jitted as a whole.

usage: peer_jax.py MODEL WARMUP STEPS
"""
import math
import sys
import time

import jax
import jax.numpy as jnp
from models import MODELS


def parameters(key, layers, c, t, v):
    keys = iter(jax.random.split(key, 4 * layers + 2))

    def normal(*shape):
        return 0.02 * jax.random.normal(next(keys), shape)

    block = lambda: {"ln1": jnp.ones(c), "qkv": normal(3 * c, c), "proj": normal(c, c),
                     "ln2": jnp.ones(c), "fc": normal(4 * c, c), "out": normal(c, 4 * c)}
    return {"wte": normal(v, c), "wpe": normal(t, c), "blocks": [block() for _ in range(layers)], "ln": jnp.ones(c)}


def norm(x, w):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * w


def loss_of(p, ids, targets, heads):
    b, t = ids.shape
    x = p["wte"][ids] + p["wpe"][:t]
    c = x.shape[-1]
    mask = jnp.tril(jnp.ones((t, t), bool))
    for blk in p["blocks"]:
        q, k, v = (y.reshape(b, t, heads, c // heads) for y in jnp.split(norm(x, blk["ln1"]) @ blk["qkv"].T, 3, axis=-1))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(c // heads)
        probs = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)
        x = x + jnp.einsum("bhqk,bkhd->bqhd", probs, v).reshape(b, t, c) @ blk["proj"].T
        x = x + jax.nn.gelu(norm(x, blk["ln2"]) @ blk["fc"].T, approximate=False) @ blk["out"].T
    logits = norm(x, p["ln"]) @ p["wte"].T
    picked = jnp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]
    return (jax.scipy.special.logsumexp(logits, axis=-1) - picked).mean()


def step(p, m, v, n, ids, targets, heads):
    loss, g = jax.value_and_grad(loss_of)(p, ids, targets, heads)
    size = jnp.sqrt(sum((x * x).sum() for x in jax.tree.leaves(g)))
    g = jax.tree.map(lambda x: x * jnp.minimum(1, 1 / (size + 1e-6)), g)
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
    v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, v, g)

    def update(w, m, v):
        decay = 1 - 1e-3 * 0.1 if w.ndim >= 2 else 1
        return w * decay - 1e-3 / (1 - 0.9**n) * m / (jnp.sqrt(v / (1 - 0.99**n)) + 1e-8)

    return loss, jax.tree.map(update, p, m, v), m, v


def main():
    layers, heads, c, t, b, vocabulary = MODELS[sys.argv[1]]
    warmup, steps = int(sys.argv[2]), int(sys.argv[3])
    key = jax.random.key(1337)
    p = parameters(key, layers, c, t, vocabulary)
    m, v = jax.tree.map(jnp.zeros_like, p), jax.tree.map(jnp.zeros_like, p)
    run = jax.jit(step, static_argnums=6, donate_argnums=(0, 1, 2))
    for i in range(warmup + steps):
        key, one, two = jax.random.split(key, 3)
        ids, targets = (jax.random.randint(k, (b, t), 0, vocabulary).block_until_ready() for k in (one, two))
        start = time.perf_counter()
        loss, p, m, v = run(p, m, v, jnp.float32(i + 1), ids, targets, heads)
        float(loss)
        jax.block_until_ready(p)
        if i >= warmup:
            print(f"{(time.perf_counter() - start) * 1e3:.3f}")


main()
