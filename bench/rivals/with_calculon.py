"""Calculon's search and autopar's plans for one job, judged by Calculon: for bench/rivals.sh.

usage: with_calculon.py SOURCE AUTOPAR [SYSTEM]

SOURCE is a checkout of Calculon, AUTOPAR the program, SYSTEM one of its systems (a100_80g). The job is its GPT-3 175B on
1,024 devices, of 2,048 sequences of 2,048 tokens. Calculon has blocks alone, without embedding and head: autopar gets
a vocabulary of 128. Calculon's host memory is taken away, with which its search has eight times the cases: autopar
offloads other things than it does.
"""
import itertools
import json
import logging
import os
import resource
import subprocess
import sys
import tempfile
import time

import autopar

GPUS, BATCH = 1024, 2048
source, binary = sys.argv[1:3]
name = sys.argv[3] if len(sys.argv) > 3 else "a100_80g"
sys.path.insert(0, source)

from calculon import System
from calculon.llm import AllExecutions, Llm

with open(os.path.join(source, f"systems/{name}.json")) as f:
    figures = json.load(f)
figures["mem2"]["GiB"] = 0
model = os.path.join(source, "models/gpt3-175B.json")
with open(model) as f:
    app = Llm.Application(json.load(f))
system = System(figures)


def price(x):
    """Calculon's seconds of a step of an execution (JSON), and GiB of a device, or None and why it refuses."""
    try:
        llm = Llm(app, logging.Logger("quiet"))
        llm.compile(system, Llm.Execution.from_json(x))
        llm.run(system)
    except (Llm.Error, AssertionError) as e:
        return None, str(e)
    return llm.get_total_time(), llm.get_mem_tier1_cap_req() / 2**30


def search():
    """Calculon's own search by its command: its processor seconds. It takes an hour."""
    with tempfile.TemporaryDirectory() as folder:
        at, out = os.path.join(folder, "system.json"), os.path.join(folder, "best.json")
        with open(at, "w") as f:
            json.dump(figures, f)
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        subprocess.run(
            [sys.executable, os.path.join(source, "bin/calculon"), "llm-optimal-execution", model, str(GPUS), str(BATCH), "float16", at, out, "-c", "1"],
            env=os.environ | {"PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])}, stdout=subprocess.DEVNULL, check=True)
        took = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
        with open(out) as f:
            return json.load(f)["0"]["execution"], took


def expressible(x):
    """Whether autopar's programs do what an execution does.

    They overlap no collective of tensor parallelism, gather sequences again for the backward pass, keep no scores of
    attention, and are searched with 1, 2 or 4 chunks a rank.
    """
    return (x["tensor_par_overlap"] == "none" and x["tensor_par_comm_type"] != "p2p_rs_ag" and x["pipeline_interleaving"] in (1, 2, 4)
            and x["activation_recompute"] != "none" and x["seq_par_ag_redo"] == Llm.can_redo_ag(x["tensor_par_comm_type"], x["activation_recompute"])
            and (x["pipeline_interleaving"] == 1 or not x["data_par_overlap"]))


def families():
    """Calculon's executions by what decides the time of a step's arithmetic, and the least that this lets a step take."""
    every = {}
    for values in AllExecutions.all_executions(app, system, GPUS, BATCH, "float16", [True]):
        x = dict(zip(Llm.Execution.fields(), values))
        every.setdefault((x["tensor_par"], x["pipeline_par"], x["pipeline_interleaving"], x["microbatch_size"], x["tensor_par_overlap"]), []).append(x)
    return [(floor(xs[0]), xs) for xs in every.values()]


def floor(x):
    """The passes of all micro-batches, and the bubble that they alone leave, were networks free. Norms and dropout are least with sequences shared."""
    free = [n | {"bandwidth": 1e9, "latency": 0, "size": 2 * GPUS, "must_be_filled": False, "processor_usage": 0} for n in figures["networks"]]
    llm = Llm(app, logging.Logger("quiet"))
    try:
        execution = Llm.Execution.from_json(x | {"activation_recompute": "none", "tensor_par_comm_type": "rs_ag", "seq_par_ag_redo": False})
        ideal = System(figures | {"networks": free})
        llm.compile(ideal, execution)
        llm.run(ideal)
    except Llm.Error:  # it takes too much memory, which is told last
        pass
    passes = llm.get_fw_time() + llm.get_bw_time()
    micro_batches = x["batch_size"] // x["data_par"] // x["microbatch_size"]
    return passes * (1 + (x["pipeline_par"] - 1) / (micro_batches * x["pipeline_interleaving"]))


def best(families, may):
    """The best execution of those that may be, as Calculon's search would find it, and how many had to be priced for it."""
    seconds, found, count = float("inf"), None, 0
    for least, family in sorted(families, key=lambda f: f[0]):
        if least >= seconds:
            break
        for x in filter(may, family):
            count += 1
            cost, _ = price(x)
            if cost is not None:
                assert cost >= least, x
                if cost < seconds:
                    seconds, found = cost, x
    return found, count


def cluster():
    """Calculon's figures as a cluster of autopar's.

    Calculon adds the time of a kernel's traffic to that of its arithmetic, of which autopar takes the longer: products get
    the share of the peak that one of a block reaches there. Its collectives in a node take 1.5 times a ring's time, and all-reduces
    between nodes half of a ring's, which a cluster file cannot say.
    """
    matrix, vector = figures["matrix"]["float16"], figures["vector"]["float16"]
    peak, most = matrix["tflops"] * 1e12, matrix["gflops_efficiency"][0][1]
    memory, share = figures["mem1"]["GBps"] * 1e9, figures["mem1"]["MB_efficiency"][0][1]
    rows, terms, cols = app.seq_size, app.hidden, app.feedforward // 8
    flops, traffic = 2 * rows * terms * cols, 2 * (rows * terms + terms * cols + rows * cols)
    reached = flops / peak / (flops / (peak * most) + traffic / (memory * share))
    links = [f"{{bandwidth: {n['bandwidth'] * 1e9}, efficiency: {n['efficiency']}, latency: {n['latency']}}}" for n in figures["networks"]]
    return f"""
name: calculon-{name}
software: megatron-2021 # scores of attention pass through memory
device:
  name: {name}
  memory: {figures['mem1']['GiB']}GiB
  flops: {{f32: {peak / 16}, bf16: {peak}}}
  memory_bandwidth: {memory}
  launch_overhead: 0
  efficiency: {{matmul: {reached:.3f}, matmul_half_flops: 6e8, attention: {reached:.3f}, vector: {vector['tflops'] / matrix['tflops']:.3f}, memory: {share}}}
devices_per_node: {figures['networks'][0]['size']}
intra_node: {links[0]}
inter_node: {links[1]}
"""


CONFIG = f"""
model: {{preset: gpt3-175b, vocab_size: 128, dropout: 0.1}}
batch: {{global: {BATCH}}}
train: {{dtype: bfloat16}}
"""


def translate(plan):
    tp, pp, dp, chunks, blocks = autopar.degrees(plan)
    lies = autopar.inside(plan, figures["networks"][0]["size"])
    full = any(s["recompute"] for s in plan["stages"])
    return {
        "num_procs": GPUS, "tensor_par": tp, "pipeline_par": pp, "data_par": dp,
        "tensor_par_net": int(tp > 1 and not lies["tp"]), "pipeline_par_net": int(pp > 1 and not lies["pp"]), "data_par_net": int(dp > 1 and not lies["dp"]),
        "batch_size": BATCH, "microbatch_size": plan["micro_batch"], "datatype": "float16", "fused_activation": True, "attention_type": "multihead",
        "activation_recompute": "full" if full else "attn_only", "pipeline_interleaving": chunks,
        "optimizer_sharding": plan["zero"] > 0, "tensor_par_comm_type": "rs_ag" if plan["sequence_parallel"] else "ar",
        "tensor_par_overlap": "none", "seq_par_ag_redo": plan["sequence_parallel"] and not full, "data_par_overlap": plan.get("overlap", False) and dp > 1,
        "weight_offload": False, "activations_offload": False, "optimizer_offload": False, "training": True,
    }


def ours():
    """autopar's plans that Calculon can express, the one that it predicts to be fastest first, and the processor seconds of all searches."""
    plans, took = [], 0
    for schedule, recompute, zero in itertools.product(("1f1b", "interleaved"), ("none", "selective", "full"), "01"):
        found, seconds = autopar.search(binary, CONFIG, cluster(), GPUS, "--cp", "1", "--offload", "none", "--schedule", schedule, "--recompute", recompute, "--zero", zero)
        plans += found
        took += seconds
    return sorted(plans, key=lambda p: p["seconds"]), took


def row(who, seconds, memory, against, took, what):
    cost = f"{seconds:.3f} | {memory:.1f} | {seconds / against:.3f}" if seconds else f"{memory} | |"
    print(f"| {who} | {cost} | {took} | {what} |", flush=True)


def describe(x):
    return (f"tp {x['tensor_par']} (net {x['tensor_par_net']}), pp {x['pipeline_par']} x {x['pipeline_interleaving']} (net {x['pipeline_par_net']}), "
            f"dp {x['data_par']} (net {x['data_par_net']}), micro-batch {x['microbatch_size']}, {x['activation_recompute']}, {x['tensor_par_comm_type']}"
            f"{', sharded optimizer' if x['optimizer_sharding'] else ''}{', dp overlap' if x['data_par_overlap'] else ''}"
            f"{', tp overlap ' + x['tensor_par_overlap'] if x['tensor_par_overlap'] != 'none' else ''}")


def main():
    print(f"Calculon, {name}, GPT-3 175B, {GPUS} devices, {BATCH} sequences\n")
    start = time.process_time()
    every = families()
    print(f"{sum(len(xs) for _, xs in every)} executions in Calculon's search; {len(every)} of them priced in {time.process_time() - start:.0f} s of processor time\n")
    print("| plan | s a step by Calculon | GiB | times the best that autopar can run | processor s of the search | |\n|---|---|---|---|---|---|")
    shared, _ = best(every, expressible)
    against, _ = price(shared)
    whole, took = search() if os.environ.get("WHOLE") else (best(every, lambda x: True)[0], float("nan"))
    row("Calculon's", *price(whole), against, f"{took:.0f}", describe(whole))
    row("the best of those that autopar can run", *price(shared), against, "", describe(shared))
    plans, took = ours()
    judged = [(p, *price(translate(p))) for p in plans]
    p, seconds, memory = judged[0]
    row("autopar's", seconds, memory, against, f"{took:.1f}, 12 searches", f"{autopar.words(p)}; {p['seconds']:.3f} s by autopar")
    p, seconds, memory = min((j for j in judged if j[1]), key=lambda j: j[1])
    row(f"the best of the {len(judged)} that autopar lists", seconds, memory, against, "", f"{autopar.words(p)}; {p['seconds']:.3f} s by autopar")


if __name__ == "__main__":
    main()
