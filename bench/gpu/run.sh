#!/bin/sh
# Everything that is measured and checked on a machine with an NVIDIA GPU. It needs no Go:
# `make gpu` puts it in a folder with all it uses. Results go to $OUT as a Markdown table
# (gpu.md) and what every section printed; a section that fails does not stop the others.
#
#   OUT=results ./run.sh [SECTION...]     sections: versions conformance kernels nccl loopback rates step train
#
# BATCHES (default "8 16 32 64"), STEPS (20) and PYTHON (python3) may be set.
set -u
cd "$(dirname "$0")" || exit 1
OUT=${OUT:-results}
mkdir -p "$OUT" || exit 1
OUT=$(cd "$OUT" && pwd)
BATCHES=${BATCHES:-8 16 32 64}
STEPS=${STEPS:-20}
PYTHON=${PYTHON:-python3}
AUTOPAR_TEST_CACHE=${AUTOPAR_TEST_CACHE:-$OUT/cache}
XDG_CACHE_HOME=${XDG_CACHE_HOME:-$OUT/cache}
# The CUDA libraries that come with PyTorch are found beside it.
PYTHONPATH=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' 2>/dev/null)${PYTHONPATH:+:$PYTHONPATH}
export AUTOPAR_TEST_CACHE XDG_CACHE_HOME PYTHONPATH
table=$OUT/gpu.md
failed=0

note() { printf '%s\n' "$*"; }
row() { printf '| %s | %s | %s |\n' "$1" "$2" "$3" >>"$table"; }

# bounded SECONDS LOG COMMAND...: runs a command with a time limit, its output in a file.
bounded() {
	limit=$1 to=$OUT/$2
	shift 2
	timeout -k 10 "$limit" "$@" >"$to" 2>&1
	status=$?
	[ $status -eq 124 ] && note "stopped after $limit seconds" >>"$to"
	return $status
}

# checked NAME SECONDS LOG COMMAND...: a section that passes or fails. A test that was
# skipped has not passed.
checked() {
	name=$1 log=$3
	shift
	start=$(date +%s)
	if bounded "$@"; then
		took=$(($(date +%s) - start))
		if grep -q -e '--- SKIP' -e 'no tests to run' "$OUT/$log"; then
			row "$name" "skipped" "$(grep -m1 -B1 -e '--- SKIP' -e 'no tests to run' "$OUT/$log" | head -n 1 | tr '|\n' '  ' | cut -c1-300), $log"
		else
			row "$name" "passed" "$took s, $log"
		fi
	else
		failed=1
		row "$name" "**failed**" "$(grep -m1 -E 'Error:|FAIL|error|panic|stopped' "$OUT/$log" | tr '|\n' '  ' | cut -c1-200), $log"
	fi
	note "$name: $(tail -n 1 "$table")"
}

# section TITLE LOG: the table that a test printed.
section() {
	if grep -q '^|' "$OUT/$2"; then
		{ note; note "## $1"; note; grep '^|' "$OUT/$2"; } >>"$OUT/tables.md"
	fi
}

# field KEY FILE: a number of a JSON object that has one key a line.
field() { sed -n "s/^ *\"$1\": *\\([-0-9.e+]*\\),*\$/\\1/p" "$2" | head -n 1; }

versions() {
	{
		date -u
		uname -srm
		nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv || note "no nvidia-smi"
		"$PYTHON" -c 'import torch; print("PyTorch", torch.__version__, "CUDA", torch.version.cuda, "cuDNN", torch.backends.cudnn.version(), "NCCL", torch.cuda.nccl.version())' || note "no PyTorch"
		cat commit 2>/dev/null
	} >"$OUT/versions.txt" 2>&1
	row "machine" "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1)" "versions.txt"
}

conformance() {
	checked "driver: libraries found and called" 300 driver.txt sh -c 'cd cuda/driver && exec ../../tests/driver.test -test.v -test.timeout 4m'
	checked "conformance suite on the GPU" 900 conformance.txt sh -c 'cd cuda && exec ../tests/cuda.test -test.v -test.run "^TestGPUConformance$" -test.timeout 14m'
}

kernels() {
	[ -x tests/kernel.test ] || { row "kernels" "skipped" "not in the bundle"; return; }
	checked "kernels against float64" 900 kernels.txt sh -c 'cd cuda/kernel && exec ../../tests/kernel.test -test.v -test.run "GPU" -test.timeout 14m'
	if command -v compute-sanitizer >/dev/null; then
		checked "compute-sanitizer, conformance of ops" 1200 sanitizer.txt sh -c 'cd cuda && exec compute-sanitizer --error-exitcode 9 ../tests/cuda.test -test.run "^TestGPUConformance$/^ops$/layer_norm|attention|adamw" -test.timeout 19m'
	else
		row "compute-sanitizer" "skipped" "not on this machine"
	fi
}

nccl() {
	checked "NCCL with one rank" 300 nccl.txt sh -c 'cd cuda && exec ../tests/cuda.test -test.v -test.run "^TestGPUOneRankNCCL$" -test.timeout 4m'
}

loopback() {
	checked "loopback, 1 to 8 ranks, against the CPU" 900 loopback.txt ./tests/autopar.test -test.v -test.run '^TestGPULoopbackParity$' -test.timeout 14m
	section "Losses of plans whose ranks share the GPU, against one rank on the CPU, 20 steps" loopback.txt
}

rates() {
	checked "matrix products" 600 rates.txt env AUTOPAR_TEST_RATES=1 sh -c 'cd cuda && exec ../tests/cuda.test -test.v -test.run "^TestGPUProductRates$" -test.timeout 9m'
	section "Matrix products of GPT-2 124M by cuBLASLt" rates.txt
}

step() {
	torch=$OUT/torch.txt
	# shellcheck disable=SC2086 # a list of numbers
	bounded 1200 torch.txt "$PYTHON" gpt2.py $BATCHES --steps "$STEPS" || note "no figures of PyTorch: $(tail -n 1 "$torch")"
	{
		note
		note "## A training step of GPT-2 124M beside PyTorch"
		note
		note "bfloat16, T = 1024, median of $STEPS steps. MFU as nanoGPT counts it: 6N + 12LCT operations a token, of 989 TFLOP/s."
		note
		note '| batch | ms a step | tokens/s | MFU | predicted ms | PyTorch ms | PyTorch / autopar |'
		note '|---|---|---|---|---|---|---|'
	} >>"$OUT/tables.md"
	for b in $BATCHES; do
		if bounded 600 "step-$b.json" ./autopar bench gpt2.yaml --device cuda --set "batch.global=$b" --steps "$STEPS" --format json -q; then
			ms=$(field median_ms "$OUT/step-$b.json")
			predicted=$(field predicted_ms "$OUT/step-$b.json")
		else
			failed=1
			ms= predicted=
			row "step, batch $b" "**failed**" "$(tail -n 1 "$OUT/step-$b.json" | tr '|\n' '  ' | cut -c1-200)"
		fi
		peer=$(awk -v b="$b" '$1 == b { print $2 }' "$torch" 2>/dev/null)
		awk -v b="$b" -v ms="$ms" -v predicted="$predicted" -v peer="$peer" 'BEGIN {
			n = 124373760 - 1024 * 768; flop = 6 * n + 12 * 12 * 768 * 1024
			if (ms > 0) own = sprintf("%.2f | %.0f | %.1f %% | %s", ms, b * 1024e3 / ms, 100 * flop * b * 1024e3 / ms / 989e12, predicted)
			else own = "- | - | - | -"
			if (peer > 0) other = sprintf("%s | %s", peer, ms > 0 ? sprintf("%.2f", peer / ms) : "-")
			else other = "- | -"
			printf "| %s | %s | %s |\n", b, own, other
		}' >>"$OUT/tables.md"
	done
	row "step times" "$(grep -c '"median_ms"' "$OUT"/step-*.json 2>/dev/null | awk -F: '{ n += $NF } END { print n + 0 }') of $(echo $BATCHES | wc -w)" "below"
}

train() {
	if [ ! -f data/shakespeare_char/train.bin ]; then
		row "shakespeare_char" "skipped" "no data in the bundle (autopar data prepare shakespeare_char)"
		return
	fi
	if bounded 300 plan.txt ./autopar plan shakespeare_char.yaml --cluster h200 --plan-ngpus 1 --runtime-ngpus 1 --set train.dtype=bfloat16 -o "$OUT/plan.json" -q &&
		bounded 1500 train.txt ./autopar run "$OUT/plan.json" --device cuda --out "$OUT/shakespeare" -q; then
		best=$(sed -n 's/^step .*val loss \([0-9.]*\).*/\1/p' "$OUT/train.txt" | sort -n | head -n 1)
		row "shakespeare_char, best val loss (want at most 1.48)" "$best" "train.txt"
	else
		failed=1
		row "shakespeare_char" "**failed**" "$(cat "$OUT/plan.txt" "$OUT/train.txt" 2>/dev/null | tail -n 1 | tr '|' ' ' | cut -c1-200)"
	fi
}

printf '# On a GPU, %s\n\n| what | result | details |\n|---|---|---|\n' "$(date -u +%Y-%m-%d)" >"$table"
: >"$OUT/tables.md"
for name in ${*:-versions conformance kernels nccl loopback rates step train}; do
	case $name in
	versions | conformance | kernels | nccl | loopback | rates | step | train) "$name" ;;
	*) note "no section $name"; failed=1 ;;
	esac
done
cat "$OUT/tables.md" >>"$table"
cat "$table"
exit $failed
