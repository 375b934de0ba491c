#!/bin/sh
# Searches of other planners and autopar's for the same jobs, all plans judged by the other's own evaluator: bench/rivals.md.
#
#   bench/rivals.sh bin/autopar [calculon|simumax|piper|nnscaler]...
#
# Each is cloned at the commit below into a folder that is thrown away, from CALCULON, SIMUMAX, PIPER and NNSCALER if they are set,
# such as a clone at hand. nnScaler's solver is compiled there, which takes a C++ compiler; what Piper's program printed for DEVICES is
# read from PIPER_LOG, if that is set. LAYERS are the depths of the GPTs for nnScaler. PYTHON is an interpreter that has their packages;
# without it they are installed into a virtual environment that is thrown away, too: 6 GB for nnScaler, which wants PyTorch.
# WHOLE=1 runs Calculon's search, which takes an hour. Without it all takes half an hour of processor time.
set -eu
autopar=$(realpath "$1")
shift
[ -z "${PIPER_LOG:-}" ] || PIPER_LOG=$(realpath "$PIPER_LOG")
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
install=false
if [ -z "${PYTHON:-}" ]; then
	install=true
	python3 -m venv "$work/venv"
	PYTHON=$work/venv/bin/python
	"$PYTHON" -m pip install -q numpy pandas psutil sympy tabulate tqdm graphviz matplotlib
fi
export PYTHONDONTWRITEBYTECODE=1 TMPDIR="$work" SIMUMAX_TMP_PATH="$work/simumax-tmp"
checkout() { # FROM COMMIT
	git clone -q --no-checkout "$1" "$work/source"
	git -C "$work/source" checkout -q "$2"
}
for name in ${*:-calculon simumax piper nnscaler}; do
	set --
	case $name in
	calculon) checkout "${CALCULON:-https://github.com/calculon-ai/calculon}" caa4b11f8fe1fee3ba57adaacb7590d7deabd053 ;;
	simumax) checkout "${SIMUMAX:-https://github.com/MooreThreads/SimuMax}" 4dcaae513ba7679d56c116a17cd4a691ec41e252 ;;
	piper)
		checkout "${PIPER:-https://github.com/msr-fiddle/piper}" d7fc8cf91048f4b71dc2f9182fa14ebf720c016e
		set -- "${DEVICES:-1024}" ${PIPER_LOG:+"$PIPER_LOG"}
		;;
	nnscaler)
		checkout "${NNSCALER:-https://github.com/microsoft/nnscaler}" 1585c15d4ca99e23a410c90f9bad2664125524d4
		! $install || "$PYTHON" -m pip install -q dill more-itertools 'pybind11<3' pulp pyyaml setuptools torch==2.6.0
		(cd "$work/source" && "$PYTHON" setup.py -q build_ext --inplace)
		set -- ${LAYERS:-1 6 12 24 27}
		;;
	*)
		echo "rivals.sh: no rival $name; there are calculon, simumax, piper, nnscaler" >&2
		exit 2
		;;
	esac
	"$PYTHON" "rivals/with_$name.py" "$work/source" "$autopar" "$@"
	rm -rf "$work/source"
	echo
done
