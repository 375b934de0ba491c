#!/usr/bin/env bash
# Trains nanoGPT's CPU model for 300 steps, with dropout, under one rank and five very different plans of eight or fewer ranks,
# and draws the losses over each other: bench/curves.png and bench/curves.md.
#
# usage: bench/curves.sh AUTOPAR
set -euo pipefail
autopar=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

text=../shared/data/shakespeare/input.txt
if [ -f "$text" ]; then source="--input $text"; else source=--or-go-source; fi
vocab=$("$autopar" data prepare shakespeare_char $source -o "$work/data" --format json | sed -n 's/.*"vocab_size": \([0-9]*\).*/\1/p')

runs=()
train() { # NAME FLAGS...: one run
	local name=$1 dir=$work/run$((${#runs[@]}))
	shift
	"$autopar" plan examples/quick.yaml -q --set data.dir="$work/data" --set model.vocab_size="$vocab" --set model.dropout=0.1 \
		--set train.max_iters=300 --set train.eval_interval=300 --set train.log_interval=1 --set train.out_dir="$dir" \
		--set optimizer.lr_decay_iters=300 "$@" -o "$dir.json" > /dev/null
	"$autopar" run "$dir.json" -q > /dev/null
	runs+=("$name=$dir/metrics.jsonl")
}
train "one rank" --plan-ngpus 1 --runtime-ngpus 1 --micro-batch 12
train "dp 4, ZeRO 3, overlap" --dp 4 --tp 1 --pp 1 --zero 3 --overlap on --micro-batch 1 --runtime-ngpus 4
train "tp 4, sequence parallel, full recomputation" --dp 1 --tp 4 --pp 1 --sequence-parallel on --recompute full --micro-batch 5 --runtime-ngpus 4
train "cp 3 x pp 2, interleaved" --dp 1 --cp 3 --tp 1 --pp 2 --schedule interleaved --interleave 2 --micro-batch 5 --runtime-ngpus 6
train "pp 4, zero-bubble" --dp 1 --tp 1 --pp 4 --schedule zero-bubble --micro-batch 1 --runtime-ngpus 4
train "dp 2 x tp 2 x pp 2, ZeRO 1, selective recomputation, offload" --dp 2 --tp 2 --pp 2 --zero 1 --recompute selective --offload optimizer --schedule 1f1b --micro-batch 2 --runtime-ngpus 8

{
	echo "# Five plans, one curve"
	echo
	echo "\`make curves\`, $(date -u +%F): nanoGPT's CPU model with dropout 0.1, 300 steps in fp32, the same batches. $(nproc) cores, $(go version | cut -d' ' -f3)."
	echo
	go run ./bench/curves bench/curves.png "${runs[@]}"
	echo
	echo "![losses](curves.png)"
} > "$work/curves.md"
mv "$work/curves.md" bench/curves.md
cat bench/curves.md
