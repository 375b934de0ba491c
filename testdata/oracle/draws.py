"""Random bits by Philox4x32-10, as package ir/philox draws them, for the scripts beside this file."""

M = 0xFFFFFFFF


def philox(seed, name, step, i):
    """32 random bits: element i of the tensor of this name, at a step."""
    op = 2166136261
    for byte in name.encode():
        op = (op ^ byte) * 16777619 & M
    c, k = (i >> 2 & M, i >> 34, op, step), (seed & M, seed >> 32)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = (b >> 32 ^ c[1] ^ k[0], b & M, a >> 32 ^ c[3] ^ k[1], a & M)
        k = (k[0] + 0x9E3779B9 & M, k[1] + 0xBB67AE85 & M)
    return c[i & 3]
