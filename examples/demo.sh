#!/bin/sh
# A GPT from its configuration to the text it writes, on four ranks of this machine, in less than five minutes.
# usage: demo.sh AUTOPAR
set -eu
autopar=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
cd "$(dirname "$0")/.."
out=demo
iters=${DEMO_ITERS:-2000}     # updates to make
seconds=${DEMO_SECONDS:-180}  # of training, on a machine where they take longer

say() { printf '\n== %s\n' "$*"; }
run() { printf '$ autopar %s\n' "$*"; "$autopar" "$@"; }

mkdir -p "$out"
say "data"
text=../shared/data/shakespeare/input.txt
if [ -f "$text" ]; then set -- --input "$text"; else set -- --or-go-source; fi
run data prepare shakespeare_char "$@" -o "$out/data" --format json | tee "$out/data.json"
vocab=$(sed -n 's/.*"vocab_size": \([0-9]*\).*/\1/p' "$out/data.json")

say "plan: how should four ranks share this model?"
run plan examples/quick.yaml --set data.dir="$out/data" --set model.vocab_size="$vocab" --set train.out_dir="$out/run" \
	--set train.max_iters="$iters" --set optimizer.lr_decay_iters="$iters" --set train.log_interval=50 -o "$out/plan.json"

say "explain: what does each rank hold, and what does it cost?"
run explain "$out/plan.json"

say "train"
printf '$ autopar run %s\n' "$out/plan.json"
"$autopar" run "$out/plan.json" &
training=$!
# A stopped run saves itself, so a slow machine samples from what it has.
(
	sleep "$seconds" &
	trap 'kill $!' TERM
	wait $! && kill -TERM $training
) 2>/dev/null &
clock=$!
wait $training
kill $clock 2>/dev/null || true

say "sample"
run sample --from "$out/run" --num-samples 1 --max-new-tokens 300
