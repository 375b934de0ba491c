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
PIECES = int(os.environ.get("PIECES", 1))  # parts in which autopar makes products next to collectives
source, binary = sys.argv[1:3]
name = sys.argv[3] if len(sys.argv) > 3 else "a100_80g"
sys.path.insert(0, source)

from calculon import System
from calculon.llm import Llm, OptimalExecution
from calculon.llm.layers import TPComm

with open(os.path.join(source, f"systems/{name}.json")) as f:
    figures = json.load(f)
figures["mem2"]["GiB"] = 0
model = os.path.join(source, "models/gpt3-175B.json")
with open(model) as f:
    app = Llm.Application(json.load(f))
system = System(figures)


class Beside(Llm):
    """An execution without Calculon's overlap of tensor parallelism, but with autopar's: collectives of the backward pass beside whole products; of
    the forward pass, and the gather that the backward pass of a block begins with, in parts of each sequence, each beside a part of the product next to it.

    Calculon has both passes overlapped tile by tile or neither. Time that is left over and the slowdown of a product are as it has them of its tiles.
    """

    def _build_mlp_block(self):
        super()._build_mlp_block()
        products = {"AttnBlock_F": ("AttnBlock_Query", "AttnBlock_Key", "AttnBlock_Value"), "MlpBlock_F": ("MlpBlock_Mlp1",), "AttnBlock_G": ("MlpBlock_Mlp2",)}
        next_to = products | {"AttnBlock_G": ("AttnBlock_MLP",), "MlpBlock_G": ("MlpBlock_Mlp2",)}
        for comm in self._llm_block:
            if isinstance(comm, TPComm) and comm.name in next_to:
                along = [layer for layer in self._llm_block if layer.name in products.get(comm.name, ())]
                near = [layer for layer in self._llm_block if layer.name in next_to[comm.name]]
                assert near, comm.name
                comm.get_exposed_net_time = lambda stage, baseblock=True, comm=comm, along=along, near=near: self._left(comm, along, near, stage, baseblock)

    def _left(self, comm, along, near, stage, baseblock):
        """What a collective adds: of a gradient beside products for weights, or of what is gathered again beside those for inputs."""
        seconds = comm.compute_net_time(stage, baseblock)
        usage = comm.net.processor_usage
        if stage == "fw" or stage == "agrad" and not along:
            part, slowed = seconds / PIECES, sum(layer.compute_flops_time(stage) for layer in near) / PIECES / (1 - usage)
            return part + (PIECES - 1) * (max(part - slowed, 0) + min(part, slowed) * usage)
        if not along or stage == "wgrad" and self.exe.activation_recompute == "full":  # which is the forward pass again
            return seconds
        slowed = sum(layer.compute_flops_time("wgrad" if stage == "agrad" else "agrad") for layer in along) / (1 - usage)
        return max(seconds - slowed, 0) + min(seconds, slowed) * usage


def evaluator(x, system):
    """Calculon, having compiled an execution (JSON) that may have autopar's overlap of tensor parallelism, which it does not know."""
    x = dict(x)
    llm = (Beside if x.pop("beside", False) else Llm)(app, logging.Logger("quiet"))
    llm.compile(system, Llm.Execution.from_json(x))
    return llm


def price(x):
    """Calculon's seconds of a step of an execution, and GiB of a device, or None and why it refuses."""
    try:
        llm = evaluator(x, system)
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
    """Whether autopar's programs do what an execution does, or may do for some of a group.

    They overlap collectives of tensor parallelism as [Beside] has it, gather sequences again for the backward pass, and keep no scores of attention.
    """
    return (x["tensor_par_overlap"] == "none" and x["tensor_par_comm_type"] != "p2p_rs_ag"
            and x["activation_recompute"] != "none" and x["seq_par_ag_redo"] == Llm.can_redo_ag(x["tensor_par_comm_type"], x["activation_recompute"]))


def families():
    """The executions of Calculon's search by what decides the time of a step's arithmetic, each with a part of its members."""
    for tp in Llm.get_all_tensor_parallelisms(GPUS, app.hidden, app.attn_heads):
        for pp in Llm.get_all_pipeline_parallelisms(GPUS, tp, app.num_blocks):
            dp = Llm.get_data_parallelism(GPUS, tp, pp)
            batch = OptimalExecution.get_batch_size(dp, BATCH)
            for chunks, micro, overlap in itertools.product(
                    Llm.get_valid_pipeline_interleavings(app.num_blocks, pp), Llm.get_valid_microbatch_sizes(app.seq_size, tp, dp, batch, pp) if batch else (),
                    ("none", "ring", "pipe") if tp > 1 else ("none",)):
                yield {"num_procs": GPUS, "tensor_par": tp, "pipeline_par": pp, "data_par": dp, "batch_size": batch, "microbatch_size": micro,
                       "datatype": "float16", "fused_activation": True, "attention_type": "multihead", "pipeline_interleaving": chunks,
                       "tensor_par_overlap": overlap, "weight_offload": False, "activations_offload": False, "optimizer_offload": False, "training": True}


def groups(family):
    """Parts of a family that differ in recomputation and in how tensor parallelism communicates."""
    nets = range(system.num_networks) if family["tensor_par"] > 1 else (0,)
    for recompute, comm, net in itertools.product(("full", "attn_only", "none"), ("ar", "p2p_rs_ag", "rs_ag"), nets):
        for redo in (True, False) if Llm.can_redo_ag(comm, recompute) else (False,):
            yield family | {"activation_recompute": recompute, "tensor_par_comm_type": comm, "tensor_par_net": net, "seq_par_ag_redo": redo}


def members(group):
    """The executions of a group."""
    nets = [range(system.num_networks) if group[axis] > 1 else (0,) for axis in ("pipeline_par", "data_par")]
    several = (True, False) if group["data_par"] > 1 else (False,)
    for sharded, overlap, pn, dn in itertools.product(several, several, *nets):
        yield group | {"optimizer_sharding": sharded, "data_par_overlap": overlap, "pipeline_par_net": pn, "data_par_net": dn}


def floor(group):
    """The least that a group lets a step take: its time if pipelines and data-parallel ranks had a network that takes none."""
    free = len(figures["networks"])
    ideal = System(figures | {"networks": figures["networks"] + [
        figures["networks"][-1] | {"bandwidth": 1e9, "latency": 0, "size": GPUS * GPUS, "must_be_filled": False, "processor_usage": 0}]})
    try:
        llm = evaluator(group | {
            "optimizer_sharding": group["data_par"] > 1, "data_par_overlap": False, "pipeline_par_net": free, "data_par_net": free,
            "tensor_par_net": free if group["tensor_par_net"] is None else group["tensor_par_net"]}, ideal)
        llm.run(ideal)
    except Llm.Error:
        if group["tensor_par_net"] is not None:  # a network is too small, or memory, of which others of the group take no less
            return float("inf")
    if group["tensor_par_net"] is not None:
        return llm.get_total_time()
    micro_batches = group["batch_size"] // group["data_par"] // group["microbatch_size"]
    return (llm.get_fw_time() + llm.get_bw_time()) * (1 + (group["pipeline_par"] - 1) / (micro_batches * group["pipeline_interleaving"]))


def family_floor(family):
    """The same of a family: the passes and the bubble that they alone leave, if no network took time. Norms and dropout are least with sequences shared."""
    return floor(family | {"activation_recompute": "none", "tensor_par_comm_type": "rs_ag", "tensor_par_net": None, "seq_par_ag_redo": False})


def floors(families):
    return sorted(((family_floor(f), f) for f in families), key=lambda f: f[0])


def best(floors, may):
    """The best execution of those that may be, as Calculon's search would find it, and how many had to be priced for it."""
    seconds, found, count = float("inf"), None, 0
    for least, family in floors:
        if least >= seconds:
            break
        for group in groups(family):
            if not may(group):
                continue
            count += 1
            within = floor(group)
            assert within >= least, group
            if within >= seconds:
                continue
            for x in filter(may, members(group)):
                count += 1
                cost, _ = price(x)
                if cost is not None:
                    assert cost >= within, x
                    if cost < seconds:
                        seconds, found = cost, x
    return found, count


def cluster(memory):
    """Calculon's figures as a cluster of autopar's, of devices with so many GiB.

    Calculon adds the time of a kernel's traffic to that of its arithmetic, of which autopar takes the longer: products get
    the share of the peak that one of a block reaches there. Its collectives in a node take 1.5 times a ring's time, and all-reduces
    between nodes half of a ring's, which a cluster file cannot say. Nor has a cluster file a slowdown of kernels for each of its
    networks: it gets that of collectives in a node.
    """
    matrix, vector = figures["matrix"]["float16"], figures["vector"]["float16"]
    peak, most = matrix["tflops"] * 1e12, matrix["gflops_efficiency"][0][1]
    rate, share = figures["mem1"]["GBps"] * 1e9, figures["mem1"]["MB_efficiency"][0][1]
    rows, terms, cols = app.seq_size, app.hidden, app.feedforward // 8
    flops, traffic = 2 * rows * terms * cols, 2 * (rows * terms + terms * cols + rows * cols)
    reached = flops / peak / (flops / (peak * most) + traffic / (rate * share))
    links = [f"{{bandwidth: {n['bandwidth'] * 1e9}, efficiency: {n['efficiency']}, latency: {n['latency']}}}" for n in figures["networks"]]
    return f"""
name: calculon-{name}
software: megatron-2021 # scores of attention pass through memory
device:
  name: {name}
  memory: {memory}GiB
  flops: {{f32: {peak / 16}, bf16: {peak}}}
  memory_bandwidth: {rate}
  launch_overhead: 0
  efficiency: {{matmul: {reached:.3f}, matmul_half_flops: 6e8, attention: {reached:.3f}, vector: {vector['tflops'] / matrix['tflops']:.3f}, memory: {share}, beside: {1 - figures['networks'][0]['processor_usage']}}}
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
        "tensor_par_overlap": "none", "beside": plan.get("overlap_tp", False), "seq_par_ag_redo": plan["sequence_parallel"] and not full, "data_par_overlap": plan.get("overlap", False) and dp > 1,
        "weight_offload": False, "activations_offload": False, "optimizer_offload": False, "training": True,
    }


def ours(memory):
    """autopar's plans that Calculon can express, the one that it predicts to be fastest first, and the processor seconds of all searches."""
    plans, took = [], 0
    for schedule, recompute, zero in itertools.product(("1f1b", "interleaved"), ("none", "selective", "full"), "01"):
        found, seconds = autopar.search(binary, CONFIG, cluster(memory), GPUS, "--cp", "1", "--offload", "none", "--overlap-p2p", "off", "--schedule", schedule, "--recompute", recompute, "--zero", zero, "--tp-pieces", str(PIECES))
        plans += found
        took += seconds
    return sorted(plans, key=lambda p: p["seconds"]), took


def row(who, seconds, memory, against, took, what):
    cost = f"{seconds:.3f} | {memory:.1f} | {seconds / against:.3f}" if seconds else f"{memory} | |"
    print(f"| {who} | {cost} | {took} | {what} |", flush=True)


def describe(x):
    overlap = "autopar's" if x.get("beside") else x["tensor_par_overlap"]
    return (f"tp {x['tensor_par']} (net {x['tensor_par_net']}), pp {x['pipeline_par']} x {x['pipeline_interleaving']} (net {x['pipeline_par_net']}), "
            f"dp {x['data_par']} (net {x['data_par_net']}), micro-batch {x['microbatch_size']}, {x['activation_recompute']}, {x['tensor_par_comm_type']}"
            f"{', sharded optimizer' if x['optimizer_sharding'] else ''}{', dp overlap' if x['data_par_overlap'] else ''}"
            f"{', tp overlap ' + overlap if overlap != 'none' and x['tensor_par'] > 1 else ''}")


def main():
    print(f"Calculon, {name}, GPT-3 175B, {GPUS} devices, {BATCH} sequences\n")
    start = time.process_time()
    every = list(families())
    may_run = [f | {"beside": True} for f in every if f["tensor_par_overlap"] == "none"]
    shared, count = best(floors(may_run), expressible)
    each = (time.process_time() - start) / (len(may_run) + count)
    against, _ = price(shared)
    print("| plan | s a step by Calculon | GiB | times the best that it searches | processor s of the search | |\n|---|---|---|---|---|---|")
    row("the best of those that autopar searches", *price(shared), against, "", describe(shared))
    if os.environ.get("WHOLE"):
        whole, took = search()
        took = f"{took:.0f}"
    else:
        whole, _ = best(floors(every), lambda x: True)
        size = sum(1 for f in every for g in groups(f) for _ in members(g))
        took = f"{size} executions of {1e3 * each:.1f} ms"
    row("Calculon's", *price(whole), against, took, describe(whole))
    for who, memory in (("autopar's", figures["mem1"]["GiB"]), ("autopar's, if Calculon says what fits", 2 * figures["mem1"]["GiB"])):
        plans, took = ours(memory)
        judged = [(p, *price(translate(p))) for p in plans]
        if memory != figures["mem1"]["GiB"]:
            judged = [j for j in judged if j[1]]
        p, seconds, needed = judged[0]
        row(who, seconds, needed, against, f"{took:.1f}, 12 searches", f"{autopar.words(p)}; {p['seconds']:.3f} s by autopar")
        p, seconds, needed = min((j for j in judged if j[1]), key=lambda j: j[1])
        row(f"the best of the {len(judged)} that it lists", seconds, needed, against, "", f"{autopar.words(p)}; {p['seconds']:.3f} s by autopar")


if __name__ == "__main__":
    main()
