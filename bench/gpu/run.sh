#!/bin/sh
# Everything that is measured and checked on a machine with an NVIDIA GPU. It needs no Go:
# `make gpu` puts it in a folder with all it uses. The page $OUT/gpu-STAGE.md, named after the
# first stage, is whole after every stage, beside what each stage printed; copy it to bench/gpu/.
#
#   OUT=results ./run.sh [STAGE...]
#
# Stages: versions driver nccl conformance step profile rates loopback train sanitizer kernels
# several.
# `first` (the default) is those up to step, in the order in which a failure tells most: is
# there a GPU, is NCCL called right, is every op right, how fast is a step. `second` is profile
# and rates, then steps of all BATCHES by the profile; `third` is the rest. `several`, of a
# machine with several GPUs, is in none of them. Each takes at most
# BUDGET seconds (570) in all; no stage needs another. A stage that fails or has no time left
# stops no other.
#
# Exit status: 0 all that ran passed, 1 something failed, 2 no GPU or library that can be used
# or no such stage.
#
# BATCHES (default "32", of second "8 16 32 64"), STEPS (20), PYTHON (python3) and AUTOPAR_TEST_SEED
# (of the inputs of ops; in versions.txt) may be set.
set -u
OUT=${OUT:-results}
mkdir -p "$OUT" || exit 2
OUT=$(cd "$OUT" && pwd)
cd "$(dirname "$0")" || exit 2
PAGE=$OUT/gpu-${1:-first}.md
STEPS=${STEPS:-20}
PYTHON=${PYTHON:-python3}
BUDGET=${BUDGET:-570}
# Kernels are compiled and products tuned once for tests and commands, and stay for the next call.
XDG_CACHE_HOME=${XDG_CACHE_HOME:-${TMPDIR:-/tmp}/autopar-gpu}
AUTOPAR_TEST_CACHE=${AUTOPAR_TEST_CACHE:-$XDG_CACHE_HOME/autopar/cuda}
PATH=$PATH:/usr/local/cuda/bin
# The CUDA libraries that come with PyTorch are found beside it.
PYTHONPATH=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' 2>/dev/null)${PYTHONPATH:+:$PYTHONPATH}
# Ops are tried on numbers that they have not seen before.
AUTOPAR_TEST_SEED=${AUTOPAR_TEST_SEED:-$(date +%s)}
export AUTOPAR_TEST_CACHE AUTOPAR_TEST_SEED XDG_CACHE_HOME PATH PYTHONPATH
began=$(date +%s)
failed=0

note() { printf '%s\n' "$*"; }
left() { echo $((BUDGET - $(date +%s) + began)); }

# row WHAT RESULT DETAILS: a line of the table, and of what is said on the way.
row() {
	printf '| %s | %s | %s |\n' "$1" "$2" "$3" >>"$OUT/rows.md"
	note "$(left) s left: $1: $2 ($3)"
	page
}

# page writes the table as far as it is known.
page() { cat "$OUT/head.md" "$OUT/rows.md" "$OUT/tables.md" >"$PAGE"; }

# table TITLE: what follows it, as a section.
table() {
	{ note; note "## $1"; note; cat; } >>"$OUT/tables.md"
	page
}

# last LOG: what a log says went wrong, as one cell.
last() {
	reason=$(grep -m1 -E 'Error:|^autopar|panic:|--- FAIL|stopped after' "$1")
	printf '%s' "${reason:-$(tail -n 1 "$1")}" | tr '|\n\t' '   ' | tr -s ' ' | cut -c1-250
}

# bounded SECONDS LOG COMMAND...: runs a command with a time limit, its output in a file.
# Status 125 is that there was no time to run it.
bounded() {
	limit=$1 to=$OUT/$2 most=$(left)
	shift 2
	[ "$most" -lt "$limit" ] && limit=$most
	if [ "$limit" -lt 10 ]; then
		note "no time left of $BUDGET seconds" >"$to"
		return 125
	fi
	timeout -k 5 "$limit" "$@" >"$to" 2>&1
	status=$?
	case $status in
	124 | 137) note "stopped after $limit seconds" >>"$to" ;;
	125) status=1 ;;
	esac
	return $status
}

# checked NAME SECONDS LOG COMMAND...: a stage that passes or fails. A test that was skipped
# has not passed.
checked() {
	name=$1 log=$3
	shift
	start=$(date +%s)
	bounded "$@"
	case $? in
	0)
		if grep -q -e '--- SKIP' -e 'no tests to run' "$OUT/$log"; then
			row "$name" "skipped" "$(grep -m1 -A1 -e '--- SKIP' -e 'no tests to run' "$OUT/$log" | tail -n 1 | tr '|' ' ' | sed 's/^ *//' | cut -c1-250), $log"
		else
			row "$name" "passed" "$(($(date +%s) - start)) s, $log"
		fi
		;;
	125) row "$name" "skipped" "no time left of $BUDGET s" ;;
	*)
		failed=1
		row "$name" "**failed**" "$(last "$OUT/$log"), $log"
		;;
	esac
}

# section TITLE LOG: the table that a test printed.
section() { if grep -q '^|' "$OUT/$2"; then grep '^|' "$OUT/$2" | table "$1"; fi; }

# field KEY FILE: a number of a JSON object that has one key a line.
field() { sed -n "s/^ *\"$1\": *\\([-0-9.e+]*\\),*\$/\\1/p" "$2" 2>/dev/null | head -n 1; }

versions() {
	{
		date -u
		uname -srm
		timeout 20 nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit --format=csv || note "no nvidia-smi"
		timeout 60 "$PYTHON" -c 'import torch; print("PyTorch", torch.__version__, "CUDA", torch.version.cuda, "cuDNN", torch.backends.cudnn.version(), "NCCL", torch.cuda.nccl.version())' || note "no PyTorch"
		cat commit
		note "AUTOPAR_TEST_SEED=$AUTOPAR_TEST_SEED"
	} >"$OUT/versions.txt" 2>&1
	row "machine" "$(timeout 20 nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1 | grep . || echo 'no nvidia-smi')" "versions.txt"
}

driver() { checked "driver: libraries found and called" 60 driver.txt sh -c 'cd cuda/driver && exec ../../tests/driver.test -test.v -test.run "^TestGPUDriver$"'; }

# nvrtc is the file of NVRTC: that of the toolkit, whose ptxas is used, or of PyTorch.
nvrtc() {
	for file in "${AUTOPAR_LIBNVRTC:-}" /usr/local/cuda/lib64/libnvrtc.so.1[0-9] "${PYTHONPATH%%:*}"/nvidia/*/lib/libnvrtc.so.1[0-9]; do
		[ -f "$file" ] && note "$file" && return
	done
}

kernels() {
	checked "kernels compiled, registers and spills" 180 kernels.txt env AUTOPAR_LIBNVRTC="$(nvrtc)" sh -c 'cd cuda/kernel && exec ../../tests/kernel.test -test.v -test.run "^TestNVRTC$"'
}

conformance() {
	# Every op against float64, collectives, transfers and streams. After a kernel's access that the GPU refuses, a process
	# gets nothing done: the tests after that one run in another, which leaves it out.
	skip='^$' without=
	: >"$OUT/failed-ops.txt"
	for turn in 1 2 3 4; do
		checked "conformance suite on the GPU$without" 240 "conformance-$turn.txt" env SKIP="$skip" sh -c 'cd cuda && exec ../tests/cuda.test -test.v -test.run "^TestGPU(Conformance|Epilogues)$" -test.skip "$SKIP"'
		log=$OUT/conformance-$turn.txt
		{ grep -E '^ {8}--- FAIL' "$log" || grep -E '^ +--- FAIL' "$log"; } | sed 's/^ *--- FAIL: //' | head -n 20 >>"$OUT/failed-ops.txt"
		lost=$(awk '/^=== (RUN|NAME|CONT)/ { test = $3 }
			/CUDA_ERROR_(ILLEGAL_|MISALIGNED_|INVALID_ADDRESS_SPACE|INVALID_PC|LAUNCH_FAILED|HARDWARE_STACK)/ { print test; exit }' "$log")
		case $lost in
		*/*) ;;
		*) break ;;
		esac
		skip="$skip|^$(printf '%s' "$lost" | sed 's/[][().*+?^$|\\{}]/\\&/g; s,/,$/^,g')\$"
		without=" without $(printf '%s' "$lost" | tr '|' ' ')"
	done
	row "libraries" "$(sed -n 's/.*\[\(driver for CUDA .*\)\]$/\1/p' "$OUT/conformance-1.txt" | head -n 1 | grep . || echo unknown)" "conformance-1.txt"
	[ -s "$OUT/failed-ops.txt" ] && row "the first of what failed" "$(head -n 1 "$OUT/failed-ops.txt" | tr '|' ' ')" "failed-ops.txt"
}

nccl() { checked "NCCL with one rank" 120 nccl.txt sh -c 'cd cuda && exec ../tests/cuda.test -test.v -test.run "^TestGPUOneRankNCCL$"'; }

profile() {
	checked "what this machine does (autopar profile)" 210 profile.txt ./autopar profile --device cuda --budget 30 -o "$OUT/cluster.yaml"
	[ -s "$OUT/cluster.yaml" ] && { note '```'; grep -v '^#' "$OUT/profile.txt"; sed -n '/^# Attention/,$s/^# //p' "$OUT/cluster.yaml"; note '```'; } | table "autopar profile --device cuda: cluster.yaml"
}

loopback() {
	checked "loopback, 1 to 8 ranks, against the CPU" 240 loopback.txt ./tests/autopar.test -test.v -test.run '^TestGPULoopbackParity$'
	section "Losses of plans whose ranks share the GPU, and have GPUs of their own where there are as many, against one rank on the CPU, 20 steps" loopback.txt
}

rates() {
	checked "matrix products" 90 rates.txt env AUTOPAR_TEST_RATES=1 sh -c 'cd cuda && exec ../tests/cuda.test -test.v -test.run "^TestGPUProductRates$"'
	section "Matrix products of GPT-2 124M by cuBLASLt" rates.txt
}

# bench BATCH: times steps, of a plan by the profile where there is one, and how much of the
# GPU is taken meanwhile.
bench() {
	target=gpt2.yaml of="--set batch.global=$1"
	if [ -s "$OUT/cluster.yaml" ] && bounded 60 "plan-$1.txt" ./autopar plan gpt2.yaml --cluster "$OUT/cluster.yaml" --set "batch.global=$1" -o "$OUT/plan-$1.json" -q; then
		target=$OUT/plan-$1.json of=
	fi
	nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits -lms 200 >"$OUT/memory-$1.txt" 2>/dev/null &
	watch=$!
	# shellcheck disable=SC2086 # none or two words
	bounded 120 "step-$1.json" ./autopar bench "$target" $of --device cuda --steps "$STEPS" --format json -q
	status=$?
	kill "$watch" 2>/dev/null
	wait "$watch" 2>/dev/null
	return $status
}

# measured BATCH: its line of the table, as far as it is known.
measured() {
	json=$OUT/step-$1.json
	awk -v b="$1" -v ms="$(field median_ms "$json")" -v predicted="$(field predicted_ms "$json")" -v arena="$(field arena_bytes "$json")" \
		-v used="$(sort -n "$OUT/memory-$1.txt" 2>/dev/null | tail -n 1)" -v peers="$OUT/torch.txt" 'BEGIN {
			while ((getline line < peers) > 0) if (split(line, p, " ") >= 2 && p[1] == b) { peer = p[2]; taken = p[4] }
			n = 124373760 - 1024 * 768; flop = 6 * n + 12 * 12 * 768 * 1024
			if (ms > 0) printf "| %s | %.2f | %.0f | %.1f %% | %.2f | %.2f | %s |", b, ms, b * 1024e3 / ms, 100 * flop * b * 1024e3 / ms / 989e12, predicted, arena / 1073741824, (used > 0 ? sprintf("%.2f", used / 1024) : "-")
			else printf "| %s | - | - | - | - | - | - |", b
			if (peer > 0) printf " %s | %s | %s |\n", peer, taken, (ms > 0 ? sprintf("%.2f", peer / ms) : "-")
			else print " - | - | - |"
		}'
}

# step times autopar first: PyTorch, which compiles for a minute, has the time that is left.
step() {
	: >"$OUT/torch.txt"
	for b in $BATCHES; do
		bench "$b"
		case $? in
		0) row "a step of GPT-2 124M, batch $b" "$(printf %.2f "$(field median_ms "$OUT/step-$b.json")") ms" "step-$b.json" ;;
		125) row "a step of GPT-2 124M, batch $b" "skipped" "no time left of $BUDGET s" ;;
		*)
			failed=1
			row "a step of GPT-2 124M, batch $b" "**failed**" "$(last "$OUT/step-$b.json"), step-$b.json"
			;;
		esac
	done
	bounded 60 torch.txt "$PYTHON" -c 'import torch, sys; sys.exit(not torch.cuda.is_available())'
	case $? in
	0)
		# shellcheck disable=SC2086 # a list of numbers
		bounded 240 torch.txt "$PYTHON" gpt2.py $BATCHES --steps "$STEPS" || row "PyTorch" "failed" "$(last "$OUT/torch.txt"), torch.txt"
		;;
	125) row "PyTorch" "skipped" "no time left of $BUDGET s" ;;
	*) row "PyTorch" "skipped" "$PYTHON has no torch that sees a GPU, torch.txt" ;;
	esac
	for b in $BATCHES; do measured "$b"; done >"$OUT/steps.md"
	{
		note "Commit $(cat commit), $(grep -m1 '^# PyTorch' "$OUT/torch.txt" | tail -c +3)."
		note
		note "bfloat16, T = 1024, median of $STEPS steps, the loss read a step late. MFU as nanoGPT counts it: 6N + 12LCT operations a token, of 989 TFLOP/s."
		note
		note '| batch | ms a step | tokens/s | MFU | predicted ms | arena GiB | of the GPU GiB | PyTorch ms | PyTorch GiB | PyTorch / autopar |'
		note '|---|---|---|---|---|---|---|---|---|---|'
		cat "$OUT/steps.md"
	} | table "A training step of GPT-2 124M beside PyTorch"
	row "steps" "$(grep -c '^| [0-9]* | [0-9]' "$OUT/steps.md") of $(echo "$BATCHES" | wc -w) batches" "below"
}

train() {
	if [ ! -f data/shakespeare_char/train.bin ]; then
		row "shakespeare_char" "skipped" "no data in the bundle (autopar data prepare shakespeare_char)"
		return
	fi
	out=${TMPDIR:-/tmp}/autopar-shakespeare
	bounded 60 plan.txt ./autopar plan shakespeare_char.yaml --cluster h200 --plan-ngpus 1 --runtime-ngpus 1 --set train.dtype=bfloat16 -o "$OUT/plan.json" -q &&
		bounded 300 train.txt ./autopar run "$OUT/plan.json" --device cuda --out "$out" -q
	case $? in
	0)
		best=$(sed -n 's/^step .*val loss \([0-9.]*\).*/\1/p' "$OUT/train.txt" | sort -n | head -n 1)
		verdict=$(awk -v best="${best:-9}" 'BEGIN { if (best <= 1.48) print "passed"; else print "**failed**" }')
		[ "$verdict" = passed ] || failed=1
		row "shakespeare_char, best val loss at most 1.48" "$verdict" "${best:-none}, train.txt"
		;;
	125) row "shakespeare_char" "skipped" "no time left of $BUDGET s" ;;
	*)
		failed=1
		log=$OUT/train.txt
		[ -s "$log" ] || log=$OUT/plan.txt
		row "shakespeare_char" "**failed**" "$(last "$log"), best so far $(sed -n 's/^step .*val loss \([0-9.]*\).*/\1/p' "$OUT/train.txt" 2>/dev/null | sort -n | head -n 1)"
		;;
	esac
	cp "$out/metrics.jsonl" "$OUT/shakespeare.jsonl" 2>/dev/null
	rm -rf "$out" # checkpoints
}

# losses FILE: the loss of every update in a metrics.jsonl.
losses() { sed -n 's/^{"iter":[0-9]*,"loss":\([^,]*\),.*/\1/p' "$1" 2>/dev/null; }

# apart FILE: by how much the losses of a run differ at most from those of one rank on the CPU; nothing if there are fewer.
apart() {
	losses "$1" | paste - "$OUT/several-cpu.txt" | awk 'NF != 2 { exit } { d = $1 - $2; if (d < 0) d = -d; if (d > most) most = d; n++ } END { if (n == 10) printf "%.1e", most }'
}

# several trains the character model for ten updates with a rank on each of some GPUs, in one process and in as many as there
# are ranks, and holds the losses in float32 to those of one rank on the CPU.
several() {
	gpus=$(timeout 20 nvidia-smi -L 2>/dev/null | grep -c '^GPU')
	if [ "$gpus" -lt 2 ] || [ ! -f data/shakespeare_char/train.bin ]; then
		row "several GPUs" "skipped" "$gpus GPUs; data in the bundle: $(ls data 2>/dev/null)"
		return
	fi
	plan="shakespeare_char.yaml --cluster h200 --set batch.global=8 --set train.eval_iters=1 --set train.log_interval=1 --set train.max_iters=9 -q"
	dir=${TMPDIR:-/tmp}/autopar-several
	# shellcheck disable=SC2086 # words
	bounded 60 several.txt ./autopar plan $plan --plan-ngpus 1 -o "$OUT/several.json" && bounded 120 several.txt ./autopar run "$OUT/several.json" --out "$dir" -q
	losses "$dir/metrics.jsonl" >"$OUT/several-cpu.txt"
	rm -rf "$dir"
	note '| plan | one process | a process for each GPU |
|---|---|---|' >"$OUT/several.md"
	for cut in "2 --dp 2 --zero 1" "2 --tp 2" "2 --pp 2" "4 --dp 2 --tp 2 --zero 3" "4 --dp 2 --pp 2 --zero 2" "4 --pp 4 --schedule zero-bubble" "8 --dp 2 --tp 2 --pp 2"; do
		n=${cut%% *} cut=${cut#* }
		[ "$n" -le "$gpus" ] || continue
		line="| $cut |"
		for way in run launch; do
			log=several-$way-$(note "$cut" | tr -d ' -').txt
			# shellcheck disable=SC2086 # words
			bounded 60 "$log" ./autopar plan $plan --plan-ngpus "$n" $cut -o "$OUT/several.json" && bounded 120 "$log" ./autopar $way "$OUT/several.json" --device cuda --timeout 60s --out "$dir" -q
			status=$?
			most=$(apart "$dir/metrics.jsonl")
			rm -rf "$dir"
			if [ "$status" -eq 125 ]; then
				most="no time left"
			elif [ "$status" -ne 0 ] || ! awk -v most="${most:-1}" 'BEGIN { exit !(most <= 1e-4) }'; then
				failed=1
				most="**${most:-failed}** $(last "$OUT/$log"), $log"
			fi
			line="$line $most |"
		done
		note "$line" >>"$OUT/several.md"
	done
	row "several GPUs" "$(grep -c '^| --' "$OUT/several.md") plans on up to $gpus" "below"
	table "Losses of ten updates in float32 with a rank on each GPU: by how much they differ at most from those of one rank on the CPU" <"$OUT/several.md"
}

# sanitizer looks for accesses outside of memory, and for races in the shared memory of a block, which no test on a CPU sees.
sanitizer() {
	if ! command -v compute-sanitizer >/dev/null; then
		row "compute-sanitizer" "skipped" "not on this machine"
		return
	fi
	for tool in memcheck racecheck; do
		checked "compute-sanitizer $tool, small ops" 200 "$tool.txt" env AUTOPAR_TEST_CUDA=1 TOOL="$tool" sh -c 'cd cuda && exec compute-sanitizer --tool "$TOOL" --error-exitcode 9 ../tests/cuda.test -test.v -test.run "^TestGPUConformance$/^(ops|wide_heads)$/^(layer_norm|layer_norm_grad|attention|attention_grad|embedding_grad|cross_entropy_grad|adamw)$"'
	done
}

first="versions driver nccl conformance step"
second="versions profile rates step"
third="versions loopback train sanitizer kernels"
stages=${*:-first}
case $stages in
first) stages=$first BATCHES=${BATCHES:-32} ;;
second) stages=$second ;;
third) stages=$third ;;
esac
BATCHES=${BATCHES:-8 16 32 64}
for name in $stages; do
	case " $first $second $third several " in
	*" $name "*) ;;
	*) note "no stage $name; there are $first profile rates loopback train sanitizer kernels several, and first, second and third" >&2; exit 2 ;;
	esac
done
printf '# On a GPU, %s\n\n| what | result | details |\n|---|---|---|\n' "$(date -u +%Y-%m-%d)" >"$OUT/head.md"
: >"$OUT/rows.md"
: >"$OUT/tables.md"

# Nothing can be learned without a driver and a GPU: say so once, in the driver's words.
bounded 60 gpu.txt env AUTOPAR_TEST_CUDA=1 sh -c 'cd cuda/driver && exec ../../tests/driver.test -test.v -test.run "^TestGPUDriver$"'
if grep -q 'AUTOPAR_TEST_CUDA is set' "$OUT/gpu.txt"; then
	versions
	row "GPU" "**none that can be used**" "$(sed -n 's/.*AUTOPAR_TEST_CUDA is set: *//p' "$OUT/gpu.txt" | head -n 1 | tr '|' ' ' | cut -c1-400)"
	note
	cat "$PAGE"
	exit 2
fi
for name in $stages; do "$name"; done
rm -f "$OUT/head.md" "$OUT/rows.md" "$OUT/tables.md" "$OUT/steps.md" "$OUT"/memory-*.txt
note
cat "$PAGE"
exit $failed
