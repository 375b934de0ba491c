"""SimuMax's search and autopar's plans for one job, judged by SimuMax: for bench/rivals.sh.

usage: with_simumax.py SOURCE AUTOPAR

SOURCE is a checkout of SimuMax, AUTOPAR the program. The job is its GPT-3 175B on 1,024 of its A100s (PCIe), of 2,048
sequences of 2,048 tokens. Its search takes the sequences of a micro-batch as given: it is run for each of MICRO.
"""
import contextlib
import io
import json
import os
import sys
import time
import warnings

import autopar

GPUS, BATCH, TOKENS, MICRO, MARGIN = 1024, 2048, 2048, (1,), 6  # MARGIN: GiB that it keeps free unless told otherwise
source, binary = sys.argv[1:3]
sys.path.insert(0, source)
warnings.simplefilter("ignore")

from simumax.core import perf_llm
from simumax.core.config import ModelConfig, StrategyConfig, SystemConfig

PARTS = ("recv", "compute", "send")  # of a pass of a micro-batch

FILES = {name: os.path.join(source, "configs", path + ".json") for name, path in
         (("model", "models/gpt3-175b"), ("system", "system/a100_pcie"), ("strategy", "strategy/tp1_pp2_dp4_mbs1"))}
BASE = StrategyConfig.read_json_file(FILES["strategy"]) | {"seq_len": TOKENS, "enable_sequence_parallel": True}
with open(FILES["system"]) as f:
    figures = json.load(f)


def estimator(strategy):
    m = perf_llm.PerfLLM()
    m.configure(strategy_config=StrategyConfig.init_from_dict(BASE | strategy), model_config=ModelConfig.init_from_config_file(FILES["model"]),
                system_config=SystemConfig.init_from_config_file(FILES["system"]))
    return m


def seconds(tokens_per_device):
    return BATCH * TOKENS / GPUS / tokens_per_device


def price(plan):
    """Seconds of a step, and GiB of the fullest device with what is kept free.

    SimuMax has one recomputation for all stages. Where a plan's differs, its times and bytes of each stage are those that it has of
    the stage's, and its recurrence over the pipeline runs over them.
    """
    kinds = [(s["recompute"], s["selective"]) for s in plan["stages"]]
    with contextlib.redirect_stdout(io.StringIO()):
        models = {}
        for kind in kinds:
            if kind not in models:
                models[kind] = estimator(translate(plan, *kind))
                models[kind].run_estimate()
        m, last = models[kinds[0]], len(kinds) - 1
        chunks = [perf_llm.FIRST_CHUNK if i == 0 else perf_llm.LAST_CHUNK if i == last else perf_llm.MIDDLE_CHUNK for i in range(len(kinds))]
        memory = max(x for i, (kind, chunk) in enumerate(zip(kinds, chunks))
                     for x in m.get_pp_stage_peak_mem(models[kind]._analysis_mem_impl(len(kinds) - i, chunk), "peak_mem_with_reserved", toG=True).values())
        cost = m.analysis_cost().data
        step = seconds(cost["throughput_per_accelerator"])
        if len(models) > 1:
            phases = [models[kind]._compute_single_batch_phase_inputs(chunk) for kind, chunk in zip(kinds, chunks)]
            mixed = m.calculate_1f1b_bubble(len(kinds), m.strategy.micro_batch_num, [sum(p["fwd_" + x] for x in PARTS) for p in phases],
                                            [sum(p["bwd_" + x] for x in PARTS) for p in phases], draw=False, stage_phases=phases)
            step += cost["straggle_ratio"] * (mixed - m._compute_pp_total_time()) / 1000
        return step, memory + MARGIN


def search():
    """The best that SimuMax's search finds, in seconds of a step and words, how many it priced, and its processor seconds."""
    before, best, count = time.process_time(), (float("inf"), ""), 0
    for micro in MICRO:
        priced = {}
        with contextlib.redirect_stdout(io.StringIO()):
            m = estimator({"world_size": GPUS})
            found = m.search_best_parallel_strategy(world_size=GPUS, gmi_error=MARGIN, micro_batch_size=micro, global_batch_size=BATCH, all_search_result=priced, verbose=False)
        count += len(priced.get("mfu", []))
        if found:
            best = min(best, (seconds(found["TGS_per_gpu"]), f"{found['parallelism']}, {found['recompute_status']}"))
    return *best, count, time.process_time() - before


def cluster():
    """SimuMax's figures as a cluster of autopar's.

    Devices of a node share its network. Collectives of 8 devices of a node reach less than those of 4: between the halves
    of a node a ring has what makes the time of 8 SimuMax's. Attention is priced as if no score were masked.
    """
    device, links = figures["accelerator"], figures["networks"]
    product, memory = device["op"]["default"], device["bandwidth"]["default"]
    gib = 2**30
    rate = {n: links[f"intra_node_pcie_{n}x"]["bandwidth"]["gbps"] * gib * links[f"intra_node_pcie_{n}x"]["op"]["all_gather"]["efficient_factor"] for n in (2, 4, 8)}
    halves = 1 / 8 / (7 / 8 / rate[8] - 3 / 4 / rate[4])
    network = links["inter_node"]["bandwidth"]
    return f"""
name: simumax-a100-pcie
device:
  name: A100-PCIe
  memory: {device['mem_gbs']}GiB
  flops: {{f32: {product['tflops'] / 16}e12, bf16: {product['tflops']}e12}}
  memory_bandwidth: {memory['gbps'] * gib}
  launch_overhead: 0
  efficiency: {{matmul: {product['efficient_factor']}, matmul_half_flops: 0, attention: {device['op']['sdp_fwd']['efficient_factor'] / 2}, vector: 0.5, memory: {memory['efficient_factor']}}}
levels:
  - {{name: half, devices: 4, bandwidth: {rate[4]}, efficiency: 1, latency: {links['intra_node_pcie_4x']['op']['all_gather']['latency_us']}e-6}}
  - {{name: node, devices: 8, bandwidth: {halves}, efficiency: 1, latency: {links['intra_node_pcie_8x']['op']['all_gather']['latency_us']}e-6}}
  - {{name: cluster, bandwidth: {network['gbps'] * gib / figures['num_per_node']}, efficiency: {network['efficient_factor']}, latency: {network['latency_us']}e-6}}
"""


CONFIG = f"""
model: {{preset: gpt3-175b, vocab_size: 51200, tie_embeddings: false, norm: rmsnorm, bias: false}}
batch: {{global: {BATCH}}}
train: {{dtype: bfloat16}}
"""


def translate(plan, full, attention):
    """A plan as a strategy, all of whose stages recompute so many blocks, and the attention of so many."""
    tp, pp, dp, _, blocks = autopar.degrees(plan)
    assert not (full and attention), "SimuMax recomputes one thing of a block"
    strategy = {"world_size": GPUS, "tp_size": tp, "pp_size": pp, "micro_batch_size": plan["micro_batch"], "micro_batch_num": BATCH // (dp * plan["micro_batch"]),
                "zero_state": plan["zero"], "enable_sequence_parallel": plan["sequence_parallel"], "enable_recompute": True}
    if min(blocks) != max(blocks):
        strategy |= {"num_layers_in_first_pipeline_stage": blocks[0], "num_layers_in_last_pipeline_stage": blocks[-1]}
    if full or attention:
        strategy |= {"recompute_granularity": "full_block" if full else "sdp_only", "recompute_layer_num": full or attention}
    return strategy


def ours(limit):
    """autopar's plans that SimuMax can express, the one that it predicts to be fastest first, and the processor seconds of its search.

    SimuMax has 1F1B, the usual order of ranks, optimizer state sharded, and no communication beside the computation. limit is GiB.
    """
    return autopar.search(binary, CONFIG, cluster(), GPUS, "--cp", "1", "--offload", "none", "--overlap-p2p", "off", "--schedule", "1f1b", "--zero", "1", "--overlap", "off", "--overlap-tp", "off",
                          "--rank-order", "tp-cp-dp-pp", "--memory-limit", f"{int(limit * 1024)}MiB", unit=GPUS)


def judge(plans):
    for p in plans:
        try:
            yield p, *price(p)
        except AssertionError:  # such as uneven stages between the first and the last
            pass


def main():
    print(f"SimuMax, a100_pcie, GPT-3 175B, {GPUS} devices, {BATCH} sequences\n")
    print("| plan | s a step by SimuMax | GiB of 80 | times SimuMax's | processor s of the search | |\n|---|---|---|---|---|---|")
    best, what, count, took = search()
    print(f"| SimuMax's | {best:.3f} | | 1 | {took:.0f}, {count} priced | {what} |", flush=True)
    memory, took = figures["accelerator"]["mem_gbs"], 0
    limit, needed = (memory - MARGIN) * BASE["mem_factor"], float("inf")
    while needed > memory:  # its memory is not autopar's: the limit is lowered until the plan fits by SimuMax
        plans, spent = ours(limit)
        took += spent
        judged = list(judge(plans))
        p, cost, needed = judged[0]
        print(f"| autopar's, of {limit:.1f} GiB at most | {cost:.3f} | {needed:.1f} | {cost / best:.3f} | {took:.1f} | {autopar.words(p)}; {p['seconds']:.3f} s by autopar |", flush=True)
        limit *= min((memory - MARGIN) / (needed - MARGIN), 0.995)
    p, cost, needed = min((j for j in judged if j[2] <= memory), key=lambda j: j[1])
    print(f"| the best of the {len(judged)} that it lists | {cost:.3f} | {needed:.1f} | {cost / best:.3f} | | {autopar.words(p)}; {p['seconds']:.3f} s by autopar |")


if __name__ == "__main__":
    main()
