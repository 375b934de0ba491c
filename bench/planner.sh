#!/usr/bin/env bash
# Times whole searches on one core, each in a process of its own so that its peak memory can be told, and puts the tables into
# bench/planner.md, above what it says of them. Searches that take longer than two minutes or 10 GB of address space are left
# out, and said to be.
#
# usage: bench/planner.sh
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go test -c -o "$work/planner.test" ./planner
cd planner

search() { # NAME CASE: one row of a table
	local line
	line=$(for _ in 1 2 3; do
		(ulimit -v 10000000; GOMAXPROCS=1 timeout 120 "$work/planner.test" -test.run '^$' -test.bench "^$1\$/^${2//\//\$/^}\$" -test.benchtime 1x) 2>/dev/null | grep ns/op || true
	done | sort -n -k3 | sed -n 2p)
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
{
	echo "# How long a search takes"
	echo
	echo "\`make bench-planner\`, $(date -u +%F): one core of $cpu (load $(cut -d' ' -f1 /proc/loadavg) on $(nproc) cores), $(go version | cut -d' ' -f3), on the H100 cluster in bf16."
	echo "The time is that of \`planner.Search\` on a traced graph; tracing has a table of its own. The peak is that of the whole process. Of three processes the one with the median time is shown."
	table "Models as they are trained" "model / devices" BenchmarkSearch gpt2-xl/64 llama-3-70b/512 gpt3-175b/1024 1t/16384
	table "Options that leave few degrees: GPT-2 xl on 8 devices, batch 32, with five alternatives" "options" BenchmarkSearchOptions none tp-2 pp-4 dp-2
	table "No plan fits" "model / devices" BenchmarkSearchInfeasible gpt3-175b/8 llama-3.1-405b/16
	table "Layers: GPT-3 175B with other numbers of layers on 1,024 devices, batch 1,536" "layers" BenchmarkSearchLayers 12 24 48 96 128
	table "Devices: GPT-3 13B, batch 16,384" "devices" BenchmarkSearchDevices 8 16 32 64 128 256 512 1024 2048 4096 8192 16384
	table "Micro-batches: GPT-3 175B on 1,024 devices" "global batch" BenchmarkSearchBatch 256 1024 4096 16384
	table "Tracing the training step" "model" BenchmarkTraceModel gpt2-xl gpt3-175b 1t
	echo
	sed -n '/^## Where it stands/,$p' ../bench/planner.md
} > "$work/planner.md"
cp "$work/planner.md" ../bench/planner.md
