#!/usr/bin/env bash
# Training steps on the CPU beside PyTorch, in one run: each round times autopar on one rank and then every peer, so that a busy
# neighbour slows all of them. Prints a Markdown table of medians over the rounds and the ratio to autopar.
#
# usage: bench/cpu.sh AUTOPAR [ROUNDS]
# PEERS lists Python interpreters that have torch, as name=path. Without it the newest torch of PyPI is installed into a
# virtual environment that is thrown away, and Debian's python3-torch joins where it is installed.
set -euo pipefail
cd "$(dirname "$0")/.."
autopar=$1
rounds=${2:-5}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if [ -z "${PEERS:-}" ]; then
	python3 -m venv "$work/venv"
	"$work/venv/bin/pip" install -q torch
	PEERS="pypi=$work/venv/bin/python"
	if /usr/bin/python3 -c 'import torch' 2>/dev/null; then PEERS="$PEERS debian=/usr/bin/python3"; fi
fi

cat > "$work/quick.yaml" <<-YAML
	model:    {n_layer: 4, n_head: 4, n_embd: 128, block_size: 64, vocab_size: 65, dropout: 0.0, bias: false}
	batch:    {global: 12, micro: 12}
	parallel: {plan_ngpus: 1, runtime_ngpus: 1}
YAML
cat > "$work/baby.yaml" <<-YAML
	model:    {n_layer: 6, n_head: 6, n_embd: 384, block_size: 256, vocab_size: 65, dropout: 0.0, bias: false}
	batch:    {global: 12, micro: 12}
	parallel: {plan_ngpus: 1, runtime_ngpus: 1}
YAML

median() { sort -n | awk '{x[NR]=$1} END {print (NR % 2) ? x[(NR+1)/2] : (x[NR/2] + x[NR/2+1]) / 2}'; }

echo "$(date -u +%F), $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs), $(nproc) cores, $(grep -m1 -o 'avx512f\|avx2' <<<"$(grep -m1 flags /proc/cpuinfo | tr ' ' '\n' | grep -x 'avx512f\|avx2' | tail -1)"), $rounds rounds, $(go version | cut -d' ' -f3)"
for peer in $PEERS; do echo "- ${peer%%=*}: torch $("${peer#*=}" -c 'import torch; print(torch.__version__)' 2>/dev/null), eager, 2 threads"; done
echo
echo "| model | who | ms/step, median | against autopar |"
echo "|---|---|---|---|"
for model in quick baby; do
	steps=50
	if [ $model = baby ]; then steps=5; fi
	for ((i = 0; i < rounds; i++)); do
		"$autopar" bench "$work/$model.yaml" --burn-in 3 --steps $steps --format json |
			sed -n 's/.*"median_ms": \([0-9.]*\).*/\1/p' >> "$work/$model.autopar"
		for peer in $PEERS; do
			OMP_NUM_THREADS=2 "${peer#*=}" bench/peer.py $model $steps 2>/dev/null >> "$work/$model.${peer%%=*}"
		done
	done
	ours=$(median < "$work/$model.autopar")
	printf "| %s | autopar, 1 rank | %.2f | 1 |\n" "$model" "$ours"
	for peer in $PEERS; do
		theirs=$(median < "$work/$model.${peer%%=*}")
		echo "| $model | torch (${peer%%=*}) | $theirs | $(awk "BEGIN {printf \"%.2f x the time\", $theirs/$ours}") |"
	done
done
