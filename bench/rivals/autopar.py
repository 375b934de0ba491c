"""Runs autopar's search for the scripts beside it, which have its plans judged by others."""
import json
import os
import resource
import subprocess
import tempfile


def search(binary, config, cluster, gpus, *flags, unit="auto", top=10):
    """The plans that a search returns, its choice first, and its processor seconds; none where no plan fits.

    config and cluster are the text of gpt.yaml and of a cluster file. A plan is that of plan.json, with the
    seconds of a step that autopar predicts as "seconds".
    """
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for name, text in (("gpt.yaml", config), ("cluster.yaml", cluster)):
            files.append(os.path.join(folder, name))
            with open(files[-1], "w") as f:
                f.write(text)
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        run = subprocess.run(
            [binary, "-q", "plan", files[0], "--cluster", files[1], "--runtime-ngpus", str(gpus), "--plan-ngpus", str(unit), "-o", "-",
             "--format", "json", "--top", str(top), *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        took = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    if run.returncode == 3:
        return [], took
    if run.returncode != 0:
        raise SystemExit(run.stderr)
    found = json.loads(run.stdout)
    return [x["plan"] | {"seconds": x["predicted"]["step_seconds"]} for x in [found, *found["search"]["alternatives"]]], took


def degrees(plan):
    """tp, pp, dp of the whole job, chunks of a rank, and blocks of every stage."""
    chunks = max(plan.get("interleave", 1), 1)
    return (plan["tp"], len(plan["stages"]) // chunks, plan["dp"] * plan["runtime_ngpus"] // plan["plan_ngpus"], chunks,
            [s["last"] - s["first"] for s in plan["stages"]])


def inside(plan, node):
    """By axis, whether its groups of ranks lie in nodes of so many devices."""
    tp, pp, _, _, _ = degrees(plan)
    sizes = {"tp": tp, "dp": plan["dp"], "pp": pp}
    order = (plan.get("rank_order") or "tp-cp-dp-pp").split("-")
    lies, apart = {}, 1
    for axis in [a for a in order if a in sizes] + [a for a in sizes if a not in order]:
        apart *= sizes[axis]
        lies[axis] = apart <= node
    units = plan["runtime_ngpus"] // plan["plan_ngpus"]
    lies["dp"] = lies["dp"] and (units == 1 or apart * units <= node)
    return lies


def words(plan):
    tp, pp, dp, chunks, blocks = degrees(plan)
    cut = f"{blocks[0]} blocks a stage" if min(blocks) == max(blocks) else f"{min(blocks)} to {max(blocks)} blocks a stage"
    again, attention = (sum(s[kind] for s in plan["stages"]) for kind in ("recompute", "selective"))
    return (f"tp {tp}, pp {pp}{f' x {chunks}' if chunks > 1 else ''}, dp {dp}, micro-batch {plan['micro_batch']}, ZeRO {plan['zero']}"
            + (", sequence parallel" if plan["sequence_parallel"] else "") + (", batch parallel over tp" if plan.get("batch_parallel") else "")
            + "".join(f", {module} whole" for module in ("attn", "mlp") if tp > 1 and any(module in p["match"] and "tp" not in p["spec"] for p in plan["placements"])) + (", overlap" if plan.get("overlap") else "")
            + (f", {again} blocks recomputed" if again else "") + (f", attention of {attention}" if attention else "") + (f", {plan['rank_order']}" if plan.get("rank_order") else "") + f", {cut}")
