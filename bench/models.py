"""The models that bench/peers.py and bench/ranks.py time: layers, heads, C, T, batch and vocabulary."""

MODELS = {
    "quick": (4, 4, 128, 64, 12, 65),
    "baby": (6, 6, 384, 256, 12, 65),
    "baby-b64": (6, 6, 384, 256, 64, 65),
    "gpt2-t64": (12, 12, 768, 64, 4, 50304),
    "gpt2-t256": (12, 12, 768, 256, 4, 50304),
    "gpt2-t1024": (12, 12, 768, 1024, 4, 50304),
}


def config(model, whole=False):
    """The model and the batch of a config file of autopar: a whole batch at once, or in micro-batches as the planner likes."""
    layers, heads, c, t, b, v = MODELS[model]
    return (f"model: {{n_layer: {layers}, n_head: {heads}, n_embd: {c}, block_size: {t}, vocab_size: {v}, dropout: 0.0, bias: false}}\n"
            f"batch: {{global: {b}{f', micro: {b}' if whole else ''}}}\n")


def flops(layers, heads, c, t, batch, vocabulary):
    """Floating-point operations of a training step: of the matrix products, thrice those of forward, with the causal half of
    attention."""
    tokens = batch * t
    linear = 2 * tokens * (layers * 12 * c * c + vocabulary * c)
    attention = layers * batch * 2 * (2 * c * t * (t + 1) // 2)
    return 3 * (linear + attention)
