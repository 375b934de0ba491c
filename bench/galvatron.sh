#!/bin/sh
# Galvatron's search and autopar's, on Galvatron's profile of Llama-2 7B (A100, a node of 8, 2,048 tokens), judged by
# Galvatron's own code and by autopar's cost model: bench/galvatron.md. Prints its tables. It takes an hour.
#
# CHECKOUT is a clone of PKU-DAIR/Hetu-Galvatron (GitHub) at commit cea12ffb146a220643c8f99f9cb84294755d29f8. Nothing of
# it is changed but for logs. PYTHON is an interpreter that has torch and what Galvatron installs, its extension
# galvatron_dp_core among it. CASES are pairs of GB and batch.
set -eu
: "${CHECKOUT:?set it to a clone of PKU-DAIR/Hetu-Galvatron}"
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: "${PYTHON:?set it to an interpreter in which Galvatron is installed}"
"$PYTHON" -c 'import torch, galvatron_dp_core'
export TMPDIR="$work"
go build -o "$work/galvatron" ./bench/galvatron
for case in ${CASES:-20,16 24,32 36,16 36,64}; do
	gb=${case%,*} batch=${case#*,}
	echo "## $gb GB, batch $batch"
	echo "Galvatron's search: $("$PYTHON" bench/galvatron.py search "$CHECKOUT" 1 8 "$gb" "$batch" "$work/theirs.json" 2>/dev/null | tail -1)"
	echo "autopar over the same space by the same cost: $("$work/galvatron" -checkout "$CHECKOUT" -memory "$gb" -batch "$batch" -mode search -o "$work/same.json")"
	echo "autopar over its own space by its own cost: $("$work/galvatron" -checkout "$CHECKOUT" -memory "$gb" -batch "$batch" -mode plan -o "$work/own.json" 2>&1)"
	for plan in theirs same; do
		echo "$plan: $("$work/galvatron" -checkout "$CHECKOUT" -memory "$gb" -batch "$batch" -mode price -o "$work/$plan.json")"
	done
	echo "judged by Galvatron's code:"
	"$PYTHON" bench/galvatron.py judge "$CHECKOUT" 1 8 "$gb" "$batch" "$work/theirs.json" "$work/same.json" "$work/own.json" 2>/dev/null | grep '^{"plan'
done
