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

The goals are 100 ms for GPT-3 175B on 1,024 devices and a second for 1T on 16,384, in 200 MB, and 128 layers in 1.2 times the
time of 12. Earlier on 2026-11-22, nothing else on the machine, GPT-3 175B took 0.12 s (117 to 129 ms in five processes by turns), 1T 0.25 s, Llama 3 70B 0.18 s,
12 layers 138 ms and 128 layers 108 ms (medians of five). No gap is left. GPT-3 175B took 93 ms, 12 layers 77 and 128 layers 97 before the number of parts of tensor-parallel overlap was searched, Llama 3 70B 0.12 s:
more outlines are looked at, those in 4 parts have programs of their own (those in 2 are left out by what trunks take), and the winner recomputes, which has to be compiled; with four parts fixed the search before took 125 ms, too.
With programs that are made with fewer allocations (a fifth of the time was the system's, for memory touched for the first time), buffers of which none lives on when the next begin placed by themselves, and nothing priced twice, it is 0.86 to 0.89 of that: by turns
with the program before and beside other work 97 ms of 113 (medians of seven) and, on a busier machine, 110 of 123 (of nine); 12 layers take 131 ms of 141, 128 layers 97 of 110, Llama 3 70B 174 of 195, 1T 233 of 258 and the batch of 16,384 317 of 328 (of five); 50 MB are allocated of 57. On the machine with nothing else running, the table: 98 ms, and 101 where it is one of the numbers of layers.
What memory makes necessary costs most: the batch of 16,384, 13B on 64 and 128 devices and models that fit nowhere. The loss in slices is looked at only where a cut with which the last position is
short may be fast enough: before parts were searched that took the batch of 16,384 from 0.45 to 0.21 s, 13B on 64 devices from 0.29 to 0.16 and on 128 devices from 0.23 to 0.17 (by turns, one core). With parts the batch of 16,384 takes
0.31 s in 132 MB (203 MB in one process of five, by when the heap is collected). Where nothing fits it is 0.50 to 0.56 s, 0.33 to 0.37 before, as more outlines are compiled to name the closest plan. On a machine that has memory for none
of its ranks, as GPT-3 175B for 1,024 ranks on the built-in CPU, it takes 30 s of processor time to say so; it took 170 when the waits of crowded pipelines were kept in maps. The bound of interleaved
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
compiles 42 programs (22 of them, a twelfth of the time, to find out how tensor-parallel ranks divide the weights; the largest, 30 blocks of the winner, a tenth), a twentieth lays out the
winner's memory, as much what the last zero-bubble pipeline keeps, a quarter bounds tracts.

Where options leave fewer degrees than alternatives are asked for, the best plan of each degrees limits what is looked at of these. On
2026-11-22 `autopar plan examples/gpt2-xl.yaml --set batch.global=32 --cluster h100 --plan-ngpus 8 --runtime-ngpus 8 --tp 2` takes 0.95 s (three runs, 0.94 to 0.96; 0.65 before parts were searched), which took 56 s of processor time when all outlines were compiled and priced. Where memory is short
alternatives still take longest: GPT-3 13B (float32) on 64 V100s with a batch of 8 and `--schedule gpipe` takes 4.7 s of processor time and 0.7 GB (2026-11-22,
by turns with the program before, 10.9 s and 1.7 GB; 62,000 plans considered before, 31,000 now), most of it to compile programs of some 400 outlines of which bounds cannot tell
that they are slower; on 16 A10Gs with a batch of 60, `--schedule zero-bubble --zero 1`, 0.31 s (three runs; before it did not end in 20 s).

What memory bounds know of many blocks made the difference: what all blocks keep in an update until the norm of the gradients is there, or
until weights that came from the host are cast; what zero-bubble slots have in the middle of a backward pass; and in floors what a pass keeps at once. A search
of cuts begins with the cut that its bounds lead to, so that one that gives up has that at least. Of 127 random searches (14 models of 0.1 to 175B, six kinds of GPUs, 4 to 256
devices, three quarters of them short of memory by `--memory-limit`, most with options; 2026-11-22, beside other work, at most 15 s of processor time each) 51 took more
than 2 s or did not end before, 12 of them not in 15 s; now 27 take more than 2 s, five of these more than 6 s: most with modules on grids or with an offload in a few
hundred MB to 3 GB, or where nothing fits.
No plan changed that had been proven the fastest, and of 6 that had been left with a gap of 10 to 24 % the new ones are 8 to 15 % faster, one of them proven.

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
