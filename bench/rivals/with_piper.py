"""autopar's plans for Piper's profile of a BERT with 32 layers, judged by Piper's objective beside its own plan: for bench/rivals.sh.

usage: with_piper.py SOURCE AUTOPAR DEVICES [LOG]

SOURCE is a checkout of Piper, AUTOPAR the program. LOG is what Piper's program said when it searched the same job:
2,048 micro-batches on devices of 80 GB that send 25 GB/s. Piper minimises the time that the busiest stage
takes for a micro-batch (sections 3 and 4 of its paper): arithmetic, edges cut and a share of a step's sums of gradients.
"""
import json
import os
import re
import sys

import autopar

source, binary, devices = sys.argv[1], sys.argv[2], int(sys.argv[3])
with open(os.path.join(source, "inputs/bert32a100.json")) as f:
    job = json.load(f)
nodes = {n["id"]: n for n in job["nodes"]}
layers = [n["id"] for n in job["nodes"] if n["name"] == "ParallelTransformerLayer"]
batch, rate, limit = 2048, job["bandwidth"], job["maxMemoryPerDevice"]
SAMPLES, TOKENS, WIDTH = 8, 512, 3840  # of a micro-batch and a layer: 12 WIDTH^2 + 13 WIDTH parameters, 2 SAMPLES TOKENS WIDTH bytes on an edge


def stage(ways, d, t):
    """Piper's seconds of a micro-batch on a stage (nodes with the name of their way to run), bytes of a micro-batch, and other bytes."""
    chosen = {v: next(w for w in nodes[v]["TMPCs"][str(t)] if w["id"] == way) for v, way in ways.items()}
    cut = sum(2 * (e["communicationCost"] + (chosen[e["destId"]]["syncTimeFw"][str(e["sourceId"])] if e["destId"] in ways else chosen[e["sourceId"]]["syncTimeBw"][str(e["destId"])]))
              for e in job["edges"] if (e["sourceId"] in ways) != (e["destId"] in ways))
    sums = 4 * (d - 1) / d / batch * sum(w["parameterSize"] for w in chosen.values())
    return ((cut / d + sums) / rate + sum(w["timePerSample"] for w in chosen.values()) / d,
            sum(w["memoryUsageA"] for w in chosen.values()), sum(w["memoryUsageB"] for w in chosen.values()))


def price(stages):
    """Piper's seconds of a micro-batch on the busiest of stages (nodes, dp, tp), and GB of its fullest device."""
    seconds, memory, after = 0, 0, sum(d for _, d, _ in stages)
    for ways, d, t in stages:
        time, each, other = stage(ways, d, t)
        seconds, memory = max(seconds, time), max(memory, each * -(-after // d) + other)
        after -= d
    return seconds, memory / 1e9


def best_equal():
    """The best plan whose stages all have the same degrees, none recomputed, by listing degrees and dividing nodes: the seconds and its degrees."""
    best = (float("inf"), 0, 0, 0)
    for t in (1, 2, 4, 8):
        for d in (d for d in range(1, devices // t + 1) if batch % d == 0 and devices % (t * d) == 0):
            pp = min(devices // t // d, len(layers))
            cost = {(i, j): stage(nodes_of(i, j), d, t)[0] for j in range(1, len(layers) + 1) for i in range(j)}
            least = [0] + [float("inf")] * len(layers)  # of so many layers on so many stages, the busiest
            for _ in range(pp):
                least = [float("inf")] + [min(max(least[i], cost[i, j]) for i in range(j)) for j in range(1, len(layers) + 1)]
                best = min(best, (least[-1], t, _ + 1, d))
    return best


def nodes_of(first, last, again=0):
    """The nodes of a stage of layers first (included) to last (excluded), of which some recompute, with those before and after all layers."""
    ways = {v: "activation recomp" if i < again else "vanilla" for i, v in enumerate(layers[first:last])}
    outside = [v for v in nodes if v not in layers and (first == 0 and v < layers[-1] or last == len(layers) and v > layers[-1])]
    return ways | {v: "vanilla" for v in outside}


def read(log):
    """The stages of the plan that Piper's program writes down, the first one first."""
    stages, order = [], list(nodes)
    for found in re.finditer(r"formed a stage with nodes \[([\d ]+)\] using d=(\d+) and t=(\d+) .*\n.*total\) = (\d+)/", log):
        ways, again = {order[int(v)]: "vanilla" for v in found[1].split()}, int(found[4])
        for v in [v for v in layers if v in ways][:again]:
            ways[v] = "activation recomp"
        stages.append((ways, int(found[2]), int(found[3])))
    return stages


def translate(plan):
    tp, _, dp, _, _ = autopar.degrees(plan)
    return [(nodes_of(x["first"], x["last"], x["recompute"]), dp, tp) for x in plan["stages"]]


def cluster():
    """Piper's profile as a cluster of autopar's.

    A layer's arithmetic gives the rate of products; what a layer takes longer on 8 devices than an eighth, the links inside nodes.
    All else goes at Piper's one bandwidth. The profile has no head: of a vocabulary of 128 there is next to none.
    """
    time = {t: nodes[layers[5]]["TMPCs"][t][0]["timePerSample"] for t in ("1", "8")}
    rows = SAMPLES * TOKENS
    flops = 3 * (24 * rows * WIDTH**2 + 4 * rows * TOKENS * WIDTH)
    link = 4 * 2 * 7 / 8 * 2 * rows * WIDTH / (time["8"] - time["1"] / 8)
    reached = flops / 312e12 / time["1"]
    return f"""
name: piper-a100
software: megatron-2021
device:
  name: A100
  memory: {int(limit)}
  flops: {{f32: 19.5e12, bf16: 312e12}}
  memory_bandwidth: 2e13 # what is not a product is in the rate of products
  launch_overhead: 0
  efficiency: {{matmul: {reached:.3f}, matmul_half_flops: 0, attention: {reached:.3f}, vector: 1, memory: 1}}
devices_per_node: 8
intra_node: {{bandwidth: {link:.4g}, efficiency: 1, latency: 0}}
inter_node: {{bandwidth: {rate:.4g}, efficiency: 1, latency: 0}}
"""


CONFIG = f"""
model: {{n_layer: {len(layers)}, n_head: 32, n_embd: {WIDTH}, block_size: {TOKENS}, vocab_size: 128}}
batch: {{global: {batch * SAMPLES}, micro: {SAMPLES}}}
train: {{dtype: bfloat16, master_weights: false}}
"""


def main():
    print(f"Piper, BERT-32, {devices} devices, {batch} micro-batches\n")
    print("| plan | ms a micro-batch by Piper | GB | ms by autopar | processor s of the search | |\n|---|---|---|---|---|---|")
    if len(sys.argv) > 4:
        with open(sys.argv[4]) as f:
            log = f.read()
        seconds, memory = price(read(log))
        took = re.search(r"runtime = ([\d.]+)", log)[1]
        print(f"| Piper's | {1e3 * seconds:.4f} | {memory:.1f} | | {took} | " + ", ".join(f"dp {d} tp {t} for {len(set(w) & set(layers))} layers" for w, d, t in read(log)) + " |")
    seconds, t, pp, d = best_equal()
    print(f"| the best with equal degrees | {1e3 * seconds:.4f} | | | listed | tp {t}, pp {pp}, dp {d} |")
    for who, more in (("autopar's", ()), ("autopar's of those degrees", ("--tp", str(t), "--pp", str(pp), "--dp", str(d)))):
        plans, took = autopar.search(binary, CONFIG, cluster(), devices, "--cp", "1", "--offload", "none", "--overlap-p2p", "off", "--schedule", "1f1b", "--recompute", "none",
                                     "--rank-order", "tp-cp-dp-pp", *more, unit=devices)
        p, (seconds, memory) = plans[0], price(translate(plans[0]))
        print(f"| {who} | {1e3 * seconds:.4f} | {memory:.1f} | {1e3 * p['seconds'] / batch:.4f} | {took:.1f} | {autopar.words(p)} |")


if __name__ == "__main__":
    main()
