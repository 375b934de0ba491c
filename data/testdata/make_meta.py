"""Writes meta-protocol{2,3,4}.pkl as nanoGPT's shakespeare_char/prepare.py does.

nanoGPT pickles with Python's default protocol: 3 before Python 3.8, then 4.
"""
import pickle

chars = sorted(set("\n !'é𝄞zab\\"))
meta = {
    "vocab_size": len(chars),
    "itos": {i: ch for i, ch in enumerate(chars)},
    "stoi": {ch: i for i, ch in enumerate(chars)},
}
for protocol in (2, 3, 4):
    with open(f"meta-protocol{protocol}.pkl", "wb") as f:
        pickle.dump(meta, f, protocol)
