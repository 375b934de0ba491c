"""nnScaler's dynamic program and autopar's search for one job, judged by nnScaler: for bench/rivals.sh.

usage: with_nnscaler.py SOURCE AUTOPAR [LAYERS]...

SOURCE is a checkout of nnScaler with its solver built in place, AUTOPAR the program, LAYERS the depths of the
GPTs below. nnScaler measures kernels and collectives on the GPUs at hand; here both planners get the same figures
of an A100 node, nnScaler as files of its profiler, autopar as a cluster file.
"""
import collections
import json
import os
import statistics
import sys
import tempfile
import time

os.environ["TRACE_STRATEGY"] = "cpu"

import autopar

source, binary = sys.argv[1:3]
LAYERS = [int(x) for x in sys.argv[3:]] or [1, 6, 12, 24]
WIDTH, HEADS, VOCAB, SEQUENCE, BATCH, GPUS = 1024, 16, 50304, 256, 8, 8
NEVER = 1e6  # seconds
REPEATS, MEMORY_LIMIT = int(os.environ.get("REPEATS", "3")), float(os.environ.get("GIB", "80"))
sys.path.insert(0, source)

import torch
from torch.nn import functional as F

from nnscaler.autodist.autodist_config import AutoDistConfig
from nnscaler.autodist.cost_database import _filter_nodes
from nnscaler.autodist.descs import MeshDesc
from nnscaler.autodist.model_graph import ModelGraph
from nnscaler.autodist.spmd_solver import SPMDSolver
from nnscaler.algorithm.ops.dimops import gen_partitions
from nnscaler.flags import CompileFlag
from nnscaler.graph.function.dimops import IRDimops
from nnscaler.graph.parser.converter import to_fx_graph, to_ir_graph
from nnscaler.ir.cten import IRTensor
from nnscaler.ir.unique import IDGenerator
from nnscaler.profiler.database import ProfileDataBase, ProfiledMetrics

# The figures of both: FLOP/s at peak and of products, bytes/s of memory at peak and reached, bytes/s and seconds of a link, seconds of a launch.
PEAK, PRODUCTS, BANDWIDTH, MEMORY, LINK, LATENCY, LAUNCH = 312e12, 234e12, 2039e9, 1631e9, 234e9, 4e-6, 2e-6


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.proj = (torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH, bias=False), torch.nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x, mask):
        normed = self.norm1(x)
        heads = BATCH, SEQUENCE, HEADS, WIDTH // HEADS
        q, k, v = (f(normed).view(*heads).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = torch.matmul(q, k.transpose(2, 3)) * (WIDTH // HEADS) ** -0.5
        shares = F.dropout(torch.softmax(scores.masked_fill(mask, -1e9), -1), 0.1)
        mixed = torch.matmul(shares, v).transpose(1, 2).contiguous().view(BATCH, SEQUENCE, WIDTH)
        x = x + F.dropout(self.proj(mixed), 0.1)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), 0.1)


class GPT(torch.nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.wte, self.wpe = torch.nn.Embedding(VOCAB, WIDTH), torch.nn.Embedding(SEQUENCE, WIDTH)
        self.blocks = torch.nn.ModuleList(Block() for _ in range(layers))
        self.norm, self.head = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens, positions, mask, targets):
        x = F.dropout(self.wte(tokens) + self.wpe(positions), 0.1)
        for block in self.blocks:
            x = block(x, mask)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1), reduction="sum")


def trace(layers, folder):
    """nnScaler's graph of a GPT with so many blocks, forward and backward."""
    assert CompileFlag.trace_strategy == "cpu"
    IDGenerator().clear()
    with torch.device("meta"):
        model = GPT(layers).to(torch.bfloat16)
    model = model.to_empty(device="cpu").train()
    tokens = torch.zeros(BATCH, SEQUENCE, dtype=torch.long)
    inputs = {"tokens": tokens, "positions": torch.arange(SEQUENCE), "mask": torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool).triu(1)[None, None], "targets": tokens}
    graph = to_ir_graph(to_fx_graph(model, inputs), inputs, attr_savedir=folder)
    graph.backward(graph.output(0))
    return graph


VIEWS = ("view", "transpose", "reshape", "identity", "multiref", "getattr", "getitem")
KEPT = {"linear": (0,), "matmul": (0, 1), "gelu": (0,), "layer_norm": (0,), "softmax": (-1,), "dropout": (-2,), "cross_entropy": (-1,)}


def metrics(node):
    """What nnScaler's profiler would say of an op on the device: of tensors that are kept for the backward pass -1 is a result, -2 a mask of it."""
    ins, outs = ([t for t in ts if isinstance(t, IRTensor)] for ts in (node.inputs(), node.outputs()))
    kind = node.signature.split(".")[-1]
    nbytes = lambda ts: sum(t.byte_size() for t in ts)
    seconds = 0
    if kind not in VIEWS:
        seconds = nbytes(ins + outs) / MEMORY + LAUNCH
    if kind in ("linear", "matmul"):
        seconds = max(2 * outs[0].nelement() * ins[0].shape[-1] / PRODUCTS, seconds)
    kept = [(nbytes(outs) if i == -1 else outs[0].nelement() if i == -2 else ins[i].byte_size(), max(i, -1)) for i in KEPT.get(kind, ())]
    back = 2 if kind in ("linear", "matmul") else 1
    return ProfiledMetrics(
        in_mem_info=[t.byte_size() for t in ins if not t.is_attr()], param_mem_info=[t.byte_size() for t in ins if t.is_param()],
        buffer_mem_info=[t.byte_size() for t in ins if t.is_buffer()], fw_span=1e3 * seconds, bw_span=1e3 * back * seconds,
        infer_memory=nbytes(ins + outs), train_mem_info=[k[0] for k in kept], train_mem2in_idx=[k[1] for k in kept])


def profile(graph, folder):
    """Writes the files of nnScaler's profilers: of every op, whole and split over the devices, and of the collectives in a ring."""
    db = ProfileDataBase()
    for node in _filter_nodes(graph, db):
        for part in [node] + (gen_partitions(node, GPUS, base=GPUS, depth=1) if isinstance(node, IRDimops) else []):
            db.insert(part.signature, db._serialize(part), metrics(part))
    comp, comm = os.path.join(folder, "comp"), os.path.join(folder, "comm")
    os.makedirs(comp), os.makedirs(comm)
    db.dump_ops(comp, override=True)
    sizes = [2.0**i for i in range(-2, 10)]  # MiB of the whole tensor
    ring = lambda n, times, share=1: [sizes, [times * (n - 1) * (LATENCY + s * share * 2**20 / n / LINK) for s in sizes]]
    for n in (2, 4, 8):
        with open(os.path.join(comm, f"intra_{n}.json"), "w") as f:
            import json
            json.dump({"all gather": ring(n, 1), "reduce scatter": ring(n, 1), "all reduce": ring(n, 2), "all to all": ring(n, 1, 1 / n)}, f)


def solver(graph, folder, gib, memory=True):
    """nnScaler's solver with the costs of every choice of every op.

    Its program keeps of each state the plans of more and more bytes and less and less time, in an order that the two largest tensors
    of a plan upset, and so loses some. If memory is not counted it is exact: one plan a state.
    """
    config = AutoDistConfig(
        profile_dir=folder, mesh_row=1, mesh_col=GPUS, world_size=GPUS, memory_constraint=gib, memory_granularity=1024, zero_stage=1, zero_ngroups=1,
        opt_resident_coef=6, opt_transient_coef=0, parallel_profile=False, consider_mem=memory)
    model = ModelGraph(ir_graph=graph, autodist_config=config)
    return SPMDSolver(graph=model, mesh_desc=MeshDesc(1, GPUS), autodist_config=config, stage_num=1, micro_batch_num=1)


def allowed(plan, op, part):
    """Whether autopar's plan splits an op over all devices as a choice of nnScaler's does; of ops that autopar has not, or fuses, all do."""
    whole, shapes = ([t.shape for t in (*cell.outputs(), *cell.inputs()) if isinstance(t, IRTensor)] for cell in (op.ir_cell, part.ir_cell))
    if plan.get("batch_parallel"):  # blocks share the batch, table and head are split over the vocabulary
        if op.op_name.endswith(("embedding", "linear")) and whole[2][0] == VOCAB:
            return shapes[2][0] * GPUS == VOCAB
        if any(VOCAB in w for w in whole):
            return True
    inner = any(4 * WIDTH in w for w in whole) and not any("mlp" in p["match"] and "tp" not in p["spec"] for p in plan["placements"])
    if plan["dp"] == GPUS or plan.get("batch_parallel") and not inner:  # an MLP that is not replicated is split by its width
        i = next((i for i, w in enumerate(whole) if w[0] in (BATCH, BATCH * SEQUENCE)), None)
        return i is None or shapes[i][0] * GPUS == whole[i][0]
    heads = next((i for i, w in enumerate(whole) if len(w) == 4), None)
    if heads is not None:
        return HEADS // GPUS in shapes[heads]
    residual = BATCH, SEQUENCE // GPUS if plan["sequence_parallel"] else SEQUENCE, WIDTH
    if op.op_name.endswith("embedding"):
        return shapes[2][0] * GPUS == VOCAB if whole[2][0] == VOCAB else shapes[0][0] == residual[1]
    if op.op_name.endswith("linear"):
        weight = whole[2]
        columns = op.ir_cell.inputs()[1].name.split(".")[-2] in ("query", "key", "value", "up", "head")
        return shapes[2][0] * GPUS == weight[0] if columns else shapes[2][1] * GPUS == weight[1]
    if op.op_name.endswith("gelu"):
        return shapes[0][2] * GPUS == 4 * WIDTH
    return tuple(whole[0]) != (BATCH, SEQUENCE, WIDTH) or tuple(shapes[0]) == residual


def judge(fast, planner, plan=None):
    """The plan of least time of nnScaler's choices, of those that agree with autopar's plan if there is one, its seconds, and its GiB: fast counts no memory."""
    kept = []
    for op, parts, choices in zip(fast.graph.operator_list, fast._op_partitions, fast.partition_info):
        agree = [plan is None or allowed(plan, op, part) for part in parts]
        for info, agrees in zip(choices, agree):
            if any(agree) and not agrees:  # all choices of an op, such as to copy the targets, may be others than autopar's
                kept.append((info, info.comp_time))
                info.comp_time = NEVER
    found = fast.do_dp([(0, fast.graph.op_num - 1)], 1)[0][0]
    for info, seconds in kept:
        info.comp_time = seconds
    assert found.all_time < NEVER, plan
    path = [(i, fast.node_desc2idx(i, d)) for i, d in enumerate(found.desc.partition_descs.values())]
    assert abs(planner.calc_inner_time_cost(path) + planner.calc_intra_time_cost(path) - found.all_time) < 1e-9
    return found, found.all_time, planner.calc_mem_cost(path).total_cost / 2**30


def describe(planner, found):
    """How many of a plan's ops are split over which dimension, in nnScaler's names of them."""
    splits = collections.Counter()
    for i, op in enumerate(found.desc.partition_descs.values()):
        part = planner._op_partitions[i][planner.node_desc2idx(i, op)]
        shapes = [(w.shape, t.shape) for w, t in zip(planner.get_operator(i).ir_cell.outputs(), part.ir_cell.outputs()) if isinstance(w, IRTensor)]
        whole, shape = shapes[0]
        axis = next((a for a, (w, t) in enumerate(zip(whole, shape)) if w != t), None)
        names = {BATCH: "batch", SEQUENCE: "sequence", HEADS: "heads", BATCH * SEQUENCE: "tokens"}
        splits["whole" if part.is_replicated() else "sums" if axis is None else names.get(whole[axis], "width")] += 1
    return ", ".join(f"{n} {what}" for what, n in splits.most_common())


CLUSTER = f"""
name: node
software: autopar # one kernel for an op, as nnScaler has, but for attention, which every plan splits by as much
device:
  name: node
  memory: 80GiB
  flops: {{f32: {PEAK / 16}, bf16: {PEAK}}}
  memory_bandwidth: {BANDWIDTH}
  launch_overhead: {LAUNCH}
  efficiency: {{matmul: {PRODUCTS / PEAK}, matmul_half_flops: 0, attention: {PRODUCTS / PEAK}, vector: 1, memory: {MEMORY / BANDWIDTH}}}
devices_per_node: {GPUS}
intra_node: {{bandwidth: {LINK}, efficiency: 1, latency: {LATENCY}}}
inter_node: {{bandwidth: 25e9, efficiency: 1, latency: 15e-6}}
"""


def ours(layers, gib):
    """autopar's plans of one axis of all devices, the fastest by it first, its processor seconds, and its choice of all.

    Data-parallel ranks split every op along the batch, tensor-parallel ones along the width, or if they share the batch along that
    and the vocabulary. None communicates beside its kernels, of which nnScaler has no term, but in the choice of all.
    """
    config = f"""
model: {{n_layer: {layers}, n_head: {HEADS}, n_embd: {WIDTH}, vocab_size: {VOCAB}, block_size: {SEQUENCE}, dropout: 0.1, bias: false, tie_embeddings: false}}
batch: {{global: {BATCH}}}
train: {{dtype: bfloat16}}
"""
    limit = ["--memory-limit", f"{gib}GiB"]
    plans, took = [], 0
    width = ["--tp", GPUS, "--dp", 1, "--micro-batch", BATCH]
    for flags in (["--dp", GPUS, "--tp", 1, "--micro-batch", BATCH // GPUS, "--zero", 1, "--replicate", "none"],
                  [*width, "--batch-parallel", "off", "--replicate", "none"], *([*width, "--batch-parallel", "on", "--replicate", whole, "--zero", 1] for whole in ("attn+mlp", "attn"))):
        found, seconds = autopar.search(binary, config, CLUSTER, GPUS, "--pp", "1", "--cp", "1", "--offload", "none", "--recompute", "none",
                                        "--overlap", "off", "--overlap-tp", "off", "--schedule", "1f1b", *limit, *map(str, flags), unit=GPUS)
        plans += found
        took += seconds
    free, seconds = autopar.search(binary, config, CLUSTER, GPUS, "--overlap-p2p", "off", *limit, unit=GPUS)
    return sorted(plans, key=lambda p: p["seconds"]), took, free, seconds


def main():
    print(f"nnScaler, GPTs of width {WIDTH}, {BATCH} sequences of {SEQUENCE} tokens, {GPUS} devices\n")
    print("| layers | ops | GiB | plan | ms a step by nnScaler | GiB by it | times nnScaler's | processor s of the search | |\n|---|---|---|---|---|---|---|---|---|")
    for layers in LAYERS:
        with tempfile.TemporaryDirectory() as folder:
            graph = trace(layers, folder)
            profile(graph, folder)
            limit = MEMORY_LIMIT
            times = []
            for _ in range(REPEATS):  # one after the other, for a machine that is not idle
                start = time.process_time()
                planner = solver(graph, folder, limit)
                costs = time.process_time()
                found = planner.do_dp([(0, planner.graph.op_num - 1)], 1)[0]
                end = time.process_time()
                plans, took, free, wide = ours(layers, limit)
                times.append((costs - start, end - costs, took, wide))
            costs, searched, took, wide = (statistics.median(t) for t in zip(*times))
            ops, best = planner.graph.op_num, found[0]
            row = lambda *cells: print(f"| {layers} | {ops} | {limit} | " + " | ".join(cells) + " |", flush=True)
            row("nnScaler's", f"{1e3 * best.all_time:.3f}", f"{best.memory:.2f}", "1", f"{costs:.1f} for the costs, {searched:.2f}", describe(planner, best))
            fast = solver(graph, folder, limit, memory=False)
            exact, cost, needed = judge(fast, planner)
            row("the least of its times", f"{1e3 * cost:.3f}", f"{needed:.2f}", f"{cost / best.all_time:.3f}", "", describe(fast, exact))
            for p in plans[:4]:
                _, cost, needed = judge(fast, planner, p)
                row("autopar's", f"{1e3 * cost:.3f}", f"{needed:.2f}", f"{cost / best.all_time:.3f}", f"{took:.2f}, 4 searches",
                    f"{autopar.words(p)}; {1e3 * p['seconds']:.3f} ms by autopar")
            row("autopar's of all", "", "", "", f"{wide:.2f}", f"{autopar.words(free[0])}; {1e3 * free[0]['seconds']:.3f} ms by autopar")


if __name__ == "__main__":
    main()
