"""Times plans of several ranks beside one rank, processes beside goroutines, attention and collectives. See bench/cpu.sh.

usage: ranks.py AUTOPAR KERNEL.TEST CPU.TEST

All ranks share two cores. Turns alternate; figures are medians. ROUNDS, in the environment, takes the place of the rounds.
"""

import os
import json
import re
import statistics
import subprocess
import sys
import tempfile

from models import config

# Flags of a plan, besides its ranks, by the number of these.
PLANS = [
    (1, "one rank, two threads", []),
    (2, "dp 2, ZeRO 1", ["--dp", "2", "--zero", "1"]),
    (2, "tp 2, sequence parallel", ["--tp", "2", "--sequence-parallel", "on"]),
    (2, "pp 2, 1F1B", ["--pp", "2", "--schedule", "1f1b", "--micro-batch", "3"]),
    (4, "dp 4, ZeRO 1", ["--dp", "4", "--zero", "1"]),
    (4, "dp 2, tp 2", ["--dp", "2", "--tp", "2"]),
    (4, "dp 2, pp 2, 1F1B", ["--dp", "2", "--pp", "2", "--schedule", "1f1b", "--micro-batch", "3"]),
    (4, "as autopar chooses", []),
]
STEPS = {"quick": 40, "baby": 6}


def out(*command, cwd=None):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=cwd).stdout


def ranks(autopar, where, rounds):
    """Steps of plans of several ranks against those of one."""
    print("\n## Ranks that share two cores, the same global batch\n\n| model | plan | ms/step | against one rank | arena of all ranks, MiB | resident, MiB |\n|---|---|---|---|---|---|")
    for model in STEPS:
        yaml = os.path.join(where, f"{model}.yaml")
        with open(yaml, "w") as f:
            f.write(config(model) + "data: {dataset: text, dir: data}\n"
                    f"train: {{max_iters: {2 * STEPS[model]}, eval_interval: 1000000, eval_iters: 1, log_interval: 1, always_save_checkpoint: false}}\n")
        times, held = {}, {}
        for number, (n, name, flags) in enumerate(PLANS):
            unit = [] if n > 1 else ["--dp", "1"]
            out(autopar, "plan", yaml, "-o", os.path.join(where, f"{model}{number}.json"), "--plan-ngpus", str(n), "--runtime-ngpus", str(n), *unit, *flags)
        for _ in range(rounds):
            for number, (n, name, _) in enumerate(PLANS):
                plan = os.path.join(where, f"{model}{number}.json")
                with open(plan) as f:
                    stages = json.load(f)["predicted"]["peak_bytes"]
                child = subprocess.Popen([autopar, "bench", plan, "--burn-in", "3", "--steps", str(STEPS[model]), "--format", "json"],
                                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
                text = child.stdout.read()
                _, status, usage = os.wait4(child.pid, 0)
                if status != 0:
                    raise SystemExit(f"ranks.py: {plan} failed")
                times.setdefault(name, []).append(json.loads(text)["median_ms"])
                held[name] = sum(stages) * n / len(stages) / 2**20, max(usage.ru_maxrss / 1024, held.get(name, (0, 0))[1])
        one = statistics.median(times[PLANS[0][1]])
        for _, name, _ in PLANS:
            ms = statistics.median(times[name])
            print(f"| {model} | {name} | {ms:.1f} | {ms / one:.2f} x the time | {held[name][0]:.0f} | {held[name][1]:.0f} |", flush=True)


def processes(autopar, where, rounds):
    """The steps of one plan by a goroutine for each rank and by a process for each."""
    with open(os.path.join(where, "text.txt"), "w") as f:
        f.write("".join(chr(33 + i * i % 61) + ("\n" if i % 50 == 0 else "") for i in range(100000)))
    out(autopar, "data", "prepare", "--input", "text.txt", "-o", "data", cwd=where)
    print("\n## A process for each rank: dp 2, ZeRO 1\n\n| model | two goroutines, ms/step | two processes | ratio of the medians |\n|---|---|---|---|")
    for model in STEPS:
        got = {"run": [], "launch": []}
        for _ in range(rounds):
            for command in got:
                lines = out(autopar, command, f"{model}1.json", "--out", f"{command}-{model}", cwd=where)
                steps = [float(ms) for ms in re.findall(r"^iter .* time ([\d.]+)ms", lines, re.M)]
                got[command].append(statistics.median(steps[3:]))
        text = [", ".join(f"{ms:.1f}" for ms in times) for times in got.values()]
        print(f"| {model} | {text[0]} | {text[1]} | {statistics.median(got['launch']) / statistics.median(got['run']):.2f} |", flush=True)


def attention(test):
    """Rates of causal attention, of which the masked half is not computed, against the peak of multiply-adds."""
    text = out(test, "-test.run", "^$", "-test.bench", "^BenchmarkPeak$|Attention/T.*/G1/.*/.*/.*-2$", "-test.benchtime", "100ms")
    rates = re.findall(r"BenchmarkAttention/T(\d+)/G1/p([\d.]+)/(\w+)/(\w+)-2\S*\s.*?([\d.]+) GFLOP/s", text)
    sets, table = [], {}
    for t, p, way, isa, rate in rates:
        if isa not in sets:
            sets.append(isa)
        table.setdefault((t, p), {})[way, isa] = float(rate)
    print("\n## Attention on two threads, GFLOP/s of the causal half, fwd / grad\n\n| T | dropout |" + "".join(f" {s} |" for s in sets) + "\n|---|---|" + "---|" * len(sets))
    for (t, p), by in table.items():
        print(f"| {t} | {p} |" + "".join(f" {by.get(('fwd', s), 0):.0f} / {by.get(('grad', s), 0):.0f} |" for s in sets))


def collectives(test):
    text = out(test, "-test.run", "^$", "-test.bench", "Collectives/.*/(ranks|processes)=2/bytes=(65536|10485760)$", "-test.benchtime", "100x")
    table = {}
    for op, who, size, share in re.findall(r"BenchmarkCollectives/(\w+)/(\w+)=2/bytes=(\d+)\S*\s.*?([\d.]+) %copy", text):
        table.setdefault(op, {})[who, int(size)] = float(share)
    print("\n## Collectives of two ranks, % of the rate of copying, both counted as bytes read and written\n\n"
          "| | goroutines, 64 KiB | processes, 64 KiB | goroutines, 10.5 MB | processes, 10.5 MB |\n|---|---|---|---|---|")
    for op, by in table.items():
        print(f"| {op} |" + "".join(f" {by[who, size]:.0f} |" for size in (65536, 10485760) for who in ("ranks", "processes")))


def main():
    autopar, kernel, cpu = (os.path.abspath(p) for p in sys.argv[1:])
    rounds = int(os.environ.get("ROUNDS", 3))
    with tempfile.TemporaryDirectory() as where:
        ranks(autopar, where, rounds)
        processes(autopar, where, rounds)
    attention(kernel)
    collectives(cpu)


main()
