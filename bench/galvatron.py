"""Runs Galvatron's search, and judges plans by Galvatron's own cost model, for bench/galvatron.sh.

usage: galvatron.py search SOURCE NODES GPUS GB BATCH OUT     searches, writes the plan to OUT, prints seconds and cost
       galvatron.py judge SOURCE NODES GPUS GB BATCH PLAN...  prints milliseconds and MB by stage of plans

SOURCE is a checkout of Galvatron. The model is the one that its profile files cover, Llama-2 7B with sequences of
2,048 tokens. A plan is JSON: global_bsz, chunks, pp_division, and for every layer and for the embedding with the head
(index "embedding") an object of pp, tp, sp, dp, type (ddp, zero2, zero3) and checkpoint, and buffer_tp, the largest tp of its layers.

Nothing of Galvatron is replaced. Its package core.runtime imports flash_attn, which needs a GPU, though the search
uses only the argument schema in it: that package's __init__ is not run.
"""
import contextlib
import io
import json
import math
import os
import sys
import time
import types

source = os.path.abspath(sys.argv[2])
sys.path.insert(0, source)
runtime = types.ModuleType("galvatron.core.runtime")
runtime.__path__ = [os.path.join(source, "galvatron/core/runtime")]
sys.modules["galvatron.core.runtime"] = runtime

import galvatron.core.search_engine  # before the cost model, which imports it in turn
from galvatron.core.cost_model.components.embedding_lmhead_cost import EmbeddingLMHeadMemoryCostModel, EmbeddingLMHeadTimeCostModel
from galvatron.core.cost_model.components.layer_cost import MemoryCostModelBase
from galvatron.core.cost_model.cost_model_handler import pipeline_costmodel
from galvatron.core.search_engine.args_schema import GalvatronSearchArgs
from galvatron.core.search_engine.search_engine import GalvatronSearchEngine
from galvatron.utils.strategy_utils import DPType, EmbeddingLMHeadStrategy, LayerStrategy

LAYERS, HIDDEN, TOKENS = 32, 4096, 2048


def engine(nodes, gpus, gigabytes, batch):
    args = GalvatronSearchArgs()
    args.model_info.hidden_size = HIDDEN
    args.common_train_info.seq_length = TOKENS
    args.common_train_info.sequence_parallel = True
    args.common_train_info.global_memory_buffer = True
    args.parallelism_info.default_dp_type = "zero2"
    args.parallelism_info.pipeline_type = "pipedream_flush"
    args.parallelism_info.async_grad_reduce = True
    args.parallelism_info.mixed_precision = "bf16"
    args.hardware_info.num_nodes, args.hardware_info.num_gpus_per_node = nodes, gpus
    args.hardware_info.memory_constraint = gigabytes
    args.batch_size_info.settle_bsz = batch
    args.profiling_info.time_profile_mode = "batch"
    args.profiling_info.memory_profile_mode = "static"
    args.options_info.log_dir = os.path.join(os.environ.get("TMPDIR", "/tmp"), "galvatron-logs")
    args.options_info.output_config_path = args.options_info.log_dir
    e = GalvatronSearchEngine(args)
    e.set_search_engine_info(os.path.join(source, "galvatron/models/gpt"), [{"hidden_size": HIDDEN, "layer_num": LAYERS, "seq_len": TOKENS}], "llama2-7b")
    with contextlib.redirect_stdout(io.StringIO()):
        e.initialize_search_engine()
    return e


def describe(s):
    return {"pp": s.pp_size, "tp": s.tp_size, "sp": s.sp_size, "dp": s.dp_size, "type": s.dp_type.value, "checkpoint": getattr(s, "checkpoint", False)}


def strategy(x, kind):
    more = {"checkpoint": x["checkpoint"]} if kind is LayerStrategy else {}
    return kind(pp_size=x["pp"], tp_size=x["tp"], sp_size=x["sp"], dp_size=x["dp"], dp_type=DPType(x["type"]), **more)


def judge(e, plan):
    """The time that Galvatron ranks plans by, and its memory of every stage, which its search caps."""
    batch, chunks, division = plan["global_bsz"], plan["chunks"], plan["pp_division"]
    layers = [strategy(x, LayerStrategy) for x in plan["layers"]]
    ends = strategy(plan["embedding"], EmbeddingLMHeadStrategy)
    common = dict(global_batch_size=batch, chunks=chunks, model_args=e.model_args_list[0], train_args=e.train_args_list[0],
                  parallel_args=e.parallel_args_list[0], profile_model_args=e.profile_model_args_list[0])
    _, no_sync = EmbeddingLMHeadTimeCostModel(strategy=ends, sequence_length_list=[TOKENS], profile_hardware_args=e.profile_hardware_args_list[0], **common).gen_result()
    seconds = pipeline_costmodel(
        layer_num_list=[LAYERS], model_args_list=e.model_args_list, train_args_list=e.train_args_list, parallel_args_list=e.parallel_args_list,
        profile_model_args_list=e.profile_model_args_list, profile_hardware_args_list=e.profile_hardware_args_list,
        strategy_list=layers, partition=division, chunks=chunks, gbsz=batch, pp_size=len(division), other_time_cost=no_sync)
    memory = [math.ceil(x) for x in EmbeddingLMHeadMemoryCostModel(strategy=ends, **common).get_memory_cost()["enc_total"]]
    sp_only = all(x.tp_size == 1 for x in layers) and ends.tp_size == 1
    buffer = 0 if sp_only else int(batch / chunks / (e.world_size // len(division) // plan["buffer_tp"]) * HIDDEN * TOKENS * 4 / 1024 / 1024 / 2)
    first = 0
    for stage, n in enumerate(division):
        memory[stage] += buffer
        for x in layers[first:first + n]:
            memory[stage] += math.ceil(MemoryCostModelBase(strategy=x, stage_idx=stage, **common).get_memory_cost()["enc_total"])
        first += n
    cap = e.memory_constraint
    if cap // 1024 > 20:
        cap -= int(cap * 0.2)  # what its search keeps free
    return {"milliseconds": 1000 * float(seconds), "megabytes": [int(x) for x in memory], "limit": cap}


def search(e, out):
    start, cpu = time.perf_counter(), time.process_time()
    found = {}
    original = e.save_results
    e.save_results = lambda optimal, batch, chunks: found.update(optimal=optimal, batch=batch, chunks=chunks) or original(optimal, batch, chunks)
    with contextlib.redirect_stdout(io.StringIO()):
        e.parallelism_optimization()
    took = {"seconds": round(time.perf_counter() - start, 1), "cpu_seconds": round(time.process_time() - cpu, 1)}
    if not found:
        print(json.dumps(took | {"found": False}))
        return
    o = found["optimal"]
    vtp, vsp = o["embedding_lmhead_tp_sp_size"], o["embedding_lmhead_sp"]
    pp = o["pp_size"]
    dp = e.world_size // pp // vtp
    layers = [describe(s) for s in o["strategy_list"]]
    plan = {"global_bsz": found["batch"], "chunks": found["chunks"], "pp_division": [int(n) for n in o["pp_stage_list"]], "layers": layers,
            "embedding": {"pp": pp, "tp": 1 if vsp else vtp, "sp": vtp if vsp else 1, "dp": dp,
                          "type": "zero3" if o["embedding_lmhead_sdp"] else "zero2" if dp > 1 else "ddp", "checkpoint": False},
            "buffer_tp": max([max(x["tp"], x["sp"]) for x in layers] + [vtp])}
    with open(out, "w") as f:
        json.dump(plan, f)
    print(json.dumps(took | {"found": True, "milliseconds": 1000 * float(o["time_cost"]), "megabytes": [int(x) for x in o["memory_cost"]]}))


if __name__ == "__main__":
    nodes, gpus = int(sys.argv[3]), int(sys.argv[4])
    if sys.argv[1] == "search":
        search(engine(nodes, gpus, int(sys.argv[5]), int(sys.argv[6])), sys.argv[7])
    else:
        e = engine(nodes, gpus, int(sys.argv[5]), int(sys.argv[6]))
        for name in sys.argv[7:]:
            with open(name) as f:
                print(json.dumps({"plan": os.path.basename(name)} | judge(e, json.load(f))))
