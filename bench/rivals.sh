#!/bin/sh
# Searches of other planners and autopar's for the same jobs, all plans judged by the other's own evaluator: bench/rivals.md.
#
#   bench/rivals.sh bin/autopar [calculon|simumax|piper]...
#
# Each is cloned at the commit below into a folder that is thrown away, from CALCULON, SIMUMAX and PIPER if they are set, such as a
# clone at hand. Nothing of theirs is compiled: what Piper's program printed for DEVICES is read from PIPER_LOG, if that is set.
# PYTHON is an interpreter that has their packages; without it they are installed into a virtual environment that is thrown away,
# too. WHOLE=1 runs Calculon's search, which takes an hour. Without it all takes ten minutes of processor time.
set -eu
autopar=$(realpath "$1")
shift
[ -z "${PIPER_LOG:-}" ] || PIPER_LOG=$(realpath "$PIPER_LOG")
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -z "${PYTHON:-}" ]; then
	python3 -m venv "$work/venv"
	PYTHON=$work/venv/bin/python
	"$PYTHON" -m pip install -q numpy pandas psutil sympy tabulate tqdm graphviz matplotlib
fi
export PYTHONDONTWRITEBYTECODE=1 TMPDIR="$work" SIMUMAX_TMP_PATH="$work/simumax-tmp"
checkout() { # FROM COMMIT
	git clone -q --no-checkout "$1" "$work/source"
	git -C "$work/source" checkout -q "$2"
}
for name in ${*:-calculon simumax piper}; do
	set --
	case $name in
	calculon) checkout "${CALCULON:-https://github.com/calculon-ai/calculon}" caa4b11f8fe1fee3ba57adaacb7590d7deabd053 ;;
	simumax) checkout "${SIMUMAX:-https://github.com/MooreThreads/SimuMax}" 4dcaae513ba7679d56c116a17cd4a691ec41e252 ;;
	piper)
		checkout "${PIPER:-https://github.com/msr-fiddle/piper}" d7fc8cf91048f4b71dc2f9182fa14ebf720c016e
		set -- "${DEVICES:-1024}" ${PIPER_LOG:+"$PIPER_LOG"}
		;;
	*)
		echo "rivals.sh: no rival $name; there are calculon, simumax, piper" >&2
		exit 2
		;;
	esac
	"$PYTHON" "rivals/with_$name.py" "$work/source" "$autopar" "$@"
	rm -rf "$work/source"
	echo
done
