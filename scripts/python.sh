#!/usr/bin/env bash
# usage: python.sh [--notebook]
# Builds the Python wheel, installs it in a fresh virtual environment, and runs its tests and
# examples there. --notebook runs docs/examples/placement.ipynb instead and keeps what it shows
# (needs Jupyter and matplotlib, some 60 packages).
#
# The wheel is built with the settings of `cargo test`, in target/: what that has built is used.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
python=${PYTHON:-python3}
maturin=1.16.0
folder=${CARGO_TARGET_DIR:-$root/target}/python
notebook=docs/examples/placement.ipynb
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1

stop() {
  printf 'python: %s\n' "$@" >&2
  exit 2
}

case "${1:-}" in
  "" | --notebook) ;;
  *) stop "there is no option $1: --notebook, or nothing" ;;
esac
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 9))' ||
  stop "$python is missing or older than 3.9: name another by PYTHON=..."
"$python" -c 'import ensurepip, venv' 2> /dev/null ||
  stop "$python makes no virtual environments: run scripts/setup.sh (Debian's python3-venv)"

# maturin stays from run to run: it is no part of what is tested.
mkdir -p "$folder"
if [ "$("$folder/tools/bin/maturin" --version 2> /dev/null)" != "maturin $maturin" ]; then
  "$python" -m venv --clear "$folder/tools"
  "$folder/tools/bin/pip" install --quiet "maturin==$maturin"
fi

rm -rf "$folder/wheels" "$folder/fresh"
PATH=$folder/tools/bin:$PATH maturin build --manifest-path python/Cargo.toml --profile dev \
  --compatibility linux --interpreter "$python" --out "$folder/wheels" 2> "$folder/build.txt" ||
  stop "the wheel cannot be built:" "$(cat "$folder/build.txt")"

"$python" -m venv "$folder/fresh"
pip=("$folder/fresh/bin/pip" install --quiet)
# From elsewhere, so that nothing is found here that was not installed.
cd "$folder"
if [ "${1:-}" = --notebook ]; then
  "${pip[@]}" "$folder"/wheels/*.whl matplotlib nbconvert ipykernel
  PATH=$folder/fresh/bin:$PATH "$folder/fresh/bin/jupyter" nbconvert --to notebook --execute --inplace \
    "$root/$notebook"
  exit
fi
"${pip[@]}" "$folder"/wheels/*.whl pytest
"$folder/fresh/bin/python" -m pytest -q -p no:cacheprovider "$root/python/tests"
for example in "$root"/python/examples/*.py; do
  printf '%s\n' "${example##*/}"
  "$folder/fresh/bin/python" "$example" > "$folder/example.txt" ||
    stop "$example failed; it printed:" "$(cat "$folder/example.txt")"
done
