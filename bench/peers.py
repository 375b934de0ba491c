"""Times training steps of autopar and its peers in turn, and prints the tables of bench/cpu.md. See bench/cpu.sh.

usage: peers.py AUTOPAR KERNEL_TEST NAME=KIND:PYTHON...

KIND is eager, compile or jax. KERNEL_TEST is the compiled test of runtime/cpu/kernel, whose benchmarks give the peak and the
table of products. A peer that takes more than 1.5 times as long as another in the first round of a model sits out the rest of
it, and one that has taken more than 2.5 times as long in two models the models that follow. ROUNDS, in the environment, takes
the place of the rounds of every model, and MODELS that of all models.
"""
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile

from models import MODELS, config, flops

# Rounds, and steps of warm-up and under the clock of each visit.
VISITS = {"quick": (3, 10, 50), "baby": (3, 2, 4), "baby-b64": (2, 1, 2), "gpt2-t64": (2, 1, 4),
          "gpt2-t256": (2, 1, 2), "gpt2-t1024": (2, 1, 1)}

HERE = os.path.dirname(os.path.abspath(__file__))


def run(command, **environment):
    """Returns what a command prints and its largest resident memory in MiB, or None where it fails."""
    with tempfile.TemporaryFile("w+") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.DEVNULL, env={**os.environ, **environment})
        _, status, usage = os.wait4(child.pid, 0)
        out.seek(0)
        return (out.read(), usage.ru_maxrss / 1024) if status == 0 else None


def peak(test):
    """The rate of multiply-adds in registers on all cores, in GFLOP/s."""
    out, _ = run([test, "-test.run", "^$", "-test.bench", "^BenchmarkPeak$", "-test.benchtime", "20x"])
    return max(float(x) for x in re.findall(r"([\d.]+) GFLOP/s", out))


def products(test):
    """Prints the shares of the peak by shape and form, for each instruction set."""
    out, _ = run([test, "-test.run", "^$", "-test.bench", "MatMul/.*/.*/.*/(avx2|avx512|amx)-2$", "-test.benchtime", "50ms"])
    table, sets = {}, []
    for shape, form, kind, share in re.findall(r"BenchmarkMatMul/(\S+/\S+)/(\w+)/(\w+)-2\S*\s.*?([\d.]+) %peak", out):
        if kind not in sets:
            sets.append(kind)
        table.setdefault(shape, {}).setdefault(kind, {})[form] = float(share)
    print("\n## Products by instruction set, % of its peak of multiply-adds (amx: of that of avx512), fwd / dX / dW\n")
    print("| shape |" + "".join(f" {s} |" for s in sets) + "\n|---|" + "---|" * len(sets))
    for shape, by in table.items():
        print(f"| {shape} |" + "".join(" " + " / ".join(f"{by[s].get(f, 0):.0f}" for f in ("fwd", "dX", "dW")) + " |" for s in sets))


def visit(autopar, yaml, model, kind, python, warmup, steps):
    """Times steps of one contestant: the median in ms and the memory in MiB, or None where it fails."""
    if kind == "autopar":
        done = run([autopar, "bench", yaml, "--burn-in", str(warmup), "--steps", str(steps), "--format", "json"])
        return done and (json.loads(done[0])["median_ms"], done[1])
    script = "peer_jax.py" if kind == "jax" else "peer.py"
    done = run([python, os.path.join(HERE, script), model, str(warmup), str(steps)] + ["compile"] * (kind == "compile"), OMP_NUM_THREADS="2")
    return done and (statistics.median(float(x) for x in done[0].split()), done[1])


def main():
    autopar, test, *peers = sys.argv[1:]
    contestants = [("autopar", "autopar", "")]
    for peer in peers:
        name, rest = peer.split("=", 1)
        contestants.append((name, *rest.split(":", 1)))
    only = os.environ.get("MODELS", "").split() or list(MODELS)
    print("| model | who | ms/step | against autopar | model FLOP/s, % of the peak | memory, MiB |\n|---|---|---|---|---|---|")
    slow = {}  # in how many models
    for model in only:
        rounds, warmup, steps = VISITS[model]
        rounds = int(os.environ.get("ROUNDS", rounds))
        times, memory, peaks, out = {}, {}, [], {name for name, n in slow.items() if n >= 2}
        absent = set(out)
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as yaml:
            yaml.write(config(model, whole=True) + "parallel: {plan_ngpus: 1, runtime_ngpus: 1}\n")
            yaml.flush()
            for number in range(rounds):
                for name, kind, python in contestants:
                    if name in out:
                        continue
                    peaks.append(peak(test))
                    got = visit(autopar, yaml.name, model, kind, python, warmup, steps)
                    if got is None:
                        out.add(name)
                        continue
                    times.setdefault(name, []).append(got[0])
                    memory[name] = max(memory.get(name, 0), got[1])
                if number == 0:
                    least = min((t[0] for name, t in times.items() if name != "autopar"), default=0)
                    for name, t in times.items():
                        if name != "autopar" and t[0] > 1.5 * least:
                            out.add(name)
                            slow[name] = slow.get(name, 0) + (t[0] > 2.5 * least)
        limit, ours = statistics.median(peaks), statistics.median(times["autopar"])
        for name, _, _ in contestants:
            if name not in times:
                print(f"| {model} | {name} | {'left out' if name in absent else 'failed'} | | | |")
                continue
            ms = statistics.median(times[name])
            print(f"| {model} | {name} | {ms:.1f} | {ms / ours:.2f} x the time | {flops(*MODELS[model]) / ms / 1e4 / limit:.0f} of {limit:.0f} GFLOP/s | {memory[name]:.0f} |",
                  flush=True)
    products(test)


main()
