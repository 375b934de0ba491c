#!/bin/sh
# Searches of other planners and autopar's for the same jobs, each judged by the other's own evaluator: bench/rivals.md.
#
#   bench/rivals.sh bin/autopar [calculon|simumax|piper]...
#
# Each is cloned at the commit below into a folder that is thrown away. CALCULON, SIMUMAX and PIPER say where from, such as a
# clone at hand. PYTHON is an interpreter that has their packages; without it they are installed into a virtual environment
# that is thrown away, too. It takes half an hour.
set -eu
autopar=$(realpath "$1")
shift
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "${PYTHON:-}" ]; then
	python3 -m venv "$work/venv"
	PYTHON=$work/venv/bin/python
	"$PYTHON" -m pip install -q numpy pandas psutil sympy tabulate tqdm graphviz matplotlib
fi
export PYTHONDONTWRITEBYTECODE=1 TMPDIR="$work" SIMUMAX_TMP_PATH="$work/simumax-tmp"
checkout() { # NAME FROM COMMIT
	git clone -q --no-checkout "$2" "$work/$1"
	git -C "$work/$1" checkout -q "$3"
}
for name in ${*:-calculon simumax piper}; do
	case $name in
	calculon) checkout calculon "${CALCULON:-https://github.com/calculon-ai/calculon}" caa4b11f8fe1fee3ba57adaacb7590d7deabd053 ;;
	simumax) checkout simumax "${SIMUMAX:-https://github.com/MooreThreads/SimuMax}" 4dcaae513ba7679d56c116a17cd4a691ec41e252 ;;
	piper) checkout piper "${PIPER:-https://github.com/msr-fiddle/piper}" d7fc8cf91048f4b71dc2f9182fa14ebf720c016e ;;
	*) echo "rivals.sh: no rival $name; there are calculon, simumax, piper" >&2; exit 2 ;;
	esac
	"$PYTHON" "rivals/with_$name.py" "$work/$name" "$autopar"
	echo
done
