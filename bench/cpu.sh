#!/usr/bin/env bash
# Training steps on the CPU beside PyTorch and JAX, in one run: each round times autopar on one rank and then every peer, with
# the peak of the processor before each, so that a busy neighbour slows all of them. Prints Markdown: medians over the rounds,
# ratios to autopar, shares of the peak, memory, matrix products by shape and form; then plans of several ranks beside one rank,
# processes beside goroutines, attention and collectives. bench/cpu.md has these tables and text written by hand: write to another
# file, as make peers does (bin/cpu.md), and carry the tables over by hand.
#
# usage: bench/cpu.sh AUTOPAR > bin/cpu.md
# PEERS lists peers as name=kind:python, kind being eager, compile or jax. Without it the newest torch and jax of PyPI are
# installed into a virtual environment that is thrown away, and Debian's python3-torch joins where it is installed. MODELS
# lists some of the models of bench/models.py; without it all are timed, in about twenty minutes. ROUNDS is how often.
set -euo pipefail
cd "$(dirname "$0")/.."
autopar=$(realpath "$1")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export PYTHONDONTWRITEBYTECODE=1 TORCHINDUCTOR_CACHE_DIR=$work/inductor

if [ -z "${PEERS:-}" ]; then
	python3 -m venv "$work/venv"
	"$work/venv/bin/pip" install -q torch jax
	python=$work/venv/bin/python
	PEERS="torch-eager=eager:$python torch-compile=compile:$python jax=jax:$python"
	if /usr/bin/python3 -c 'import torch' 2>/dev/null; then PEERS="$PEERS debian-torch=eager:/usr/bin/python3"; fi
fi
go test -c -o "$work/kernel.test" ./runtime/cpu/kernel
go test -c -o "$work/cpu.test" ./runtime/cpu

cat <<-TEXT
	# A training step on the CPU beside its peers

	Made by \`make peers\`: float32, two threads; a step is forward, loss, backward, clip and AdamW.

	| model | |
	|---|---|
	| quick | nanoGPT's CPU model: 4 layers, 4 heads, C 128, T 64, batch 12 |
	| baby | 6 layers, 6 heads, C 384, T 256, batch 12 and 64 |
	| gpt2 | the 124M of GPT-2, batch 4 |

	The peak is that of float32 multiply-adds in registers, measured before each visit. Model FLOP count the causal half of
	attention. Where the processor has AMX, products use it and can exceed that peak: runtime/cpu/kernel/tiles.go says how, and how
	exact results are.

	$(date -u +%F), $(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs), $(nproc) cores, $(grep -m1 flags /proc/cpuinfo | tr ' ' '\n' | grep -x 'avx2\|avx512f\|amx_bf16' | xargs), $(go version | cut -d' ' -f3)
TEXT
for peer in $PEERS; do
	name=${peer%%=*} rest=${peer#*=}
	module=torch
	if [ "${rest%%:*}" = jax ]; then module=jax; fi
	echo "- $name: $module $("${rest#*:}" -c "import $module; print($module.__version__)" 2>/dev/null)"
done
echo
# shellcheck disable=SC2086
python3 bench/peers.py "$autopar" "$work/kernel.test" $PEERS
python3 bench/ranks.py "$autopar" "$work/kernel.test" "$work/cpu.test"
printf '\n%s UTC at the end.\n' "$(date -u "+%F %H:%M")"
