#!/usr/bin/env bash
# Times whole searches on one core, each in a process of its own so that its peak memory can be told: bench/planner.md on
# standard output. Searches that take longer than two minutes or 10 GB of address space are left out, and said to be.
#
# usage: bench/planner.sh > bench/planner.md
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go test -c -o "$work/planner.test" ./planner
cd planner

search() { # NAME CASE: one row of a table
	local line
	line=$( (ulimit -v 10000000; GOMAXPROCS=1 timeout 120 "$work/planner.test" -test.run '^$' -test.bench "^$1\$/^${2//\//\$/^}\$" -test.benchtime 1x) 2>/dev/null | grep ns/op) || line=
	awk -v name="$2" -v line="$line" 'BEGIN {
		n = split(line, f)
		for (i = 4; i <= n; i += 2) v[f[i]] = f[i-1]
		if (n == 0) { printf "| %s | gave up | | | | | |\n", name; exit }
		printf "| %s | %.0f ms | %s | %s | %.0f MB | %d | %s |\n", name, v["ns/op"] / 1e6, (v["plans"] == "" ? "" : sprintf("%d", v["plans"])), v["%gap"], v["B/op"] / 1e6, v["allocs/op"], (v["peak-MB"] == "" ? "" : sprintf("%.0f MB", v["peak-MB"]))
	}'
}
table() { # TITLE COLUMN BENCHMARK CASE...
	printf '\n## %s\n\n| %s | time | plans and groups of plans considered | gap, %% | allocated | allocations | peak memory of the process |\n|---|---|---|---|---|---|---|\n' "$1" "$2"
	local benchmark=$3
	shift 3
	for x in "$@"; do search "$benchmark" "$x"; done
}

cpu=$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1)
echo "# How long a search takes"
echo
echo "\`make bench-planner\`, $(date -u +%F): one core of $cpu (load $(cut -d' ' -f1 /proc/loadavg) on $(nproc) cores), $(go version | cut -d' ' -f3), on the H100 cluster in bf16."
echo "The time is that of \`planner.Search\` on a traced graph, of which tracing is a table of its own; the peak is that of the whole process. One run each."
table "Models as they are trained" "model / devices" BenchmarkSearch gpt2-xl/64 llama-3-70b/512 gpt3-175b/1024 1t/16384
table "Options that leave few degrees: GPT-2 xl on 8 devices, batch 32, with five alternatives" "options" BenchmarkSearchOptions none tp-2 pp-4 dp-2
table "No plan fits" "model / devices" BenchmarkSearchInfeasible gpt3-175b/8 llama-3.1-405b/16
table "Layers: GPT-3 175B with other numbers of layers on 1,024 devices, batch 1,536" "layers" BenchmarkSearchLayers 12 24 48 96 128
table "Devices: GPT-3 13B, batch 16,384" "devices" BenchmarkSearchDevices 8 16 32 64 128 256 512 1024 2048 4096 8192 16384
table "Micro-batches: GPT-3 175B on 1,024 devices" "global batch" BenchmarkSearchBatch 256 1024 4096 16384
table "Tracing the training step" "model" BenchmarkTraceModel gpt2-xl gpt3-175b 1t
cat << 'END'

## Where it stands

Since parts of tensor-parallel overlap are searched, GPT-3 175B takes 118 to 136 ms where it took 94 (by turns, 2026-11-22), over its goal of 100, 1T 279 ms (235),
GPT-2 xl 41 ms (36), Llama 3 70B 0.22 s (0.13), the batch of 16,384 0.81 s (0.46). With four parts fixed it took 125 ms: the winner recomputes, which has to be compiled. The rest is from before.

The goals are 100 ms for GPT-3 175B on 1,024 devices and a second for 1T on 16,384, in 200 MB, and 128 layers in 1.2 times the
time of 12. On 2026-11-22, nothing else on the machine, GPT-3 175B takes 94 ms (median of seven processes, 86 to 120), 1T 0.23 s, Llama 3 70B 0.12 s,
12 layers 78 ms and 128 layers 94 ms (medians of seven by turns, 1.21 times; the least of each are 72.5 and 91.6 ms, 1.26 times). No gap is left.
What memory makes necessary costs most: the batch of 16,384, 13B on 64 and 128 devices and models that fit nowhere. With a batch of 16,384 the search takes 0.43 s and
160 to 175 MB in fourteen processes of fifteen and 243 MB in one, by when the heap is collected, as it looks at the loss in slices beside each of the many pipelines whose last stage recomputes. The bound of interleaved
memory counts the inbox of each chunk as codegen lays it out. The winner's memory is told from five chunks where a rank has more, and what
trunks take is priced once for outlines that differ in how data-parallel ranks communicate.
Of 24 layers a quarter goes to programs of zero-bubble pipelines that then do not fit: their memory is known only from programs of every recomputation.
With some thousand layers the time is quadratic: half of it places buffers by size (codegen's pack), a third bounds stages of every number of blocks.

It takes no longer as bounds know streams: after the last pass over its blocks a position waits until the stream has reduced their
gradients, and after AdamW until it has gathered their weights, which floors have per block (passage.go) and bounds of cuts to the picosecond
where the stream waits for nobody (outlast.go). With a batch of 16,384 options
that do as little as another in no stretch are left out
where a number of blocks is asked for, and 71.07 s are proven. Zero-bubble slots are
bounded by what gradients of weights read across the end of the backward pass, in programs that have it in two: with recomputation that is up to
a quarter more than what the others show, and what does not fit is not looked at again and again.

Most of the space is left by tracts: outlines in any unit and order of ranks, bounded with the best place that there is for every axis by
itself, what data-parallel ranks communicate and what memory makes necessary; interleaved ones with any number of chunks before each number
is looked at by itself, which leaves 1,241 tracts of 175B instead of 2,546. What only spares memory is bounded where memory is
what slows down a tract, and looked at with the micro-batches and schedules that it slows down. Floors need no program of an outline: they know
the accumulation of gradients, updates, copies of weights, what streams gather, and transfers between positions. Outlines and cuts are looked
at best first, interleaved ones, of which the time is known, before those of which it is bounded; their recomputation is compiled where memory
makes it necessary.
Before any size of micro-batches is priced a tract is bounded by what its blocks exchange, which leaves all tensor parallelism across nodes
(27 s for 64 ranks of 175B), and chains of events are followed only where simpler bounds leave something. The heap begins with
64 MB that are never touched, here as in `autopar plan`, as most of what a search makes lasts to its end: collecting the first megabytes took a fifth of it.
`go test ./planner -run '^$' -bench BenchmarkSearch/gpt3-175b -benchtime 10x -cpuprofile cpu` shows where the rest goes: a third
compiles some 45 programs (23 of them, a tenth of the time, to find out how tensor-parallel ranks divide the weights), a twelfth lays out the
winner's memory, as much what the last zero-bubble pipeline keeps, a quarter bounds tracts.

Where options leave fewer degrees than alternatives are asked for, the best plan of each degrees limits what is looked at of these. On
2026-11-22 `autopar plan examples/gpt2-xl.yaml --set batch.global=32 --cluster h100 --plan-ngpus 8 --runtime-ngpus 8 --tp 2` takes 0.65 s (three runs,
0.64 to 0.67), which took 56 s of processor time when all outlines were compiled and priced. Alternatives still are what is slow where memory
is short: GPT-3 13B on 64 V100s with a batch of 8 and `--schedule gpipe` takes 1.2 s of processor time with `--top 0` and 11 s with five, as some degrees have no plan that fits, or none
that is near the best, and all ways to replicate modules or lay them on grids are compiled there to know their memory; on 16 A10Gs with a
batch of 60, `--schedule zero-bubble --zero 1`, it is 1.4 s and more than 20 s, as cuts of which the bound says that they fit are laid out one by one.

13B on 16,384 devices leaves no gap because bounds of cuts know how updates wait for each other: all positions for the norm of the gradients
between the two halves of an update, and the last for the first one's share of a tied table (planner/tail.go).

## Grids of tensor-parallel ranks

Weights cut in two dimensions (`--tp-rows`, [`grid.go`](../planner/grid.go)), 2026-11-22, before tensor-parallel ranks communicated beside products, predicted steps in bf16 of the whole search with and without
grids (`--tp-rows 1`); nodes of 64 or 16 devices are the cluster's links and devices with `devices_per_node` changed:

| model | devices | batch | | without | with | faster by |
|---|---|---|---|---|---|---|
| GPT-3 175B | 1,024 B200, 64 a node | 64 | everything searched | 324.9 ms (cp 2 x tp 8) | 317.0 ms (tp 16, 2 rows) | 2.4 % |
| GPT-3 175B | the same | 256 | tp 16 | 941.4 ms | 828.8 ms (2 rows) | 12.0 % |
| GPT-3 175B | 1,024 H100, 16 a node | 1,536 | tp 16 | 9.67 s | 8.76 s (2 rows) | 9.4 % |
| GPT-3 13B | 64 V100-32G, 16 a node | 32 | tp 16 | 10.08 s | 9.29 s (attention, 4 rows) | 7.9 % |
| GPT-3 175B | 1,024 B200, 64 a node | 1,536 | everything searched, or tp 16 | | the same plan | 0 |
| GPT-2 | 8 H100 or 8 A10G | 8 | tp 8, 12 heads | | the same plan, attention and MLP replicated | 0 |

Of one step of two blocks of 175B on one sequence, tp 16 in a node of H100s, 12.7 % are gained, but 8.2 % of that also where every weight stays
cut in one dimension and each collective is made over columns and then over rows: rings over fewer ranks have fewer hops, and a library whose
collectives take fewer steps than a ring's leaves only the rest, the bytes. On A10Gs, where bytes are what counts, it is 9.1 % and 1.0 %. With
eight ranks grids of one block gain 0.4 to 3.4 %, mostly hops, so that they are searched from sixteen on (or where the batch has no sequence for
each of dp x tp, or with `--tp`). Attention cut over columns alone, beside an MLP cut over all ranks or on a grid, was never the fastest
of these. The search for 175B on 1,024 H100s, which meets no grid, allocates 0.9 % more.
END
