#!/usr/bin/env bash
# Builds the wheel, installs it in a new environment, and runs the tests of the package against it. Without maturin or cargo it
# prints SKIPPED.
#
#   python/tests/run.sh [PACKAGE...]     # packages to install too, such as: pandas torch transformers
#
# XCHECK_PYTHON names the Python [default: python3].
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${XCHECK_PYTHON:-python3}
largest=15000000 # bytes of the wheel

for needed in maturin cargo "$python"; do
    command -v "$needed" >/dev/null || { echo "SKIPPED: no $needed on PATH" && exit 0; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet pytest safetensors "$@" ||
    { echo "SKIPPED: pip cannot install pytest and safetensors" && exit 0; }

maturin build --release --out "$work/wheel"
wheel=$(echo "$work"/wheel/*.whl)
size=$(wc -c <"$wheel")
echo "${wheel##*/}: $size bytes"
[ "$size" -le "$largest" ] || { echo "error: the wheel has more than $largest bytes" && exit 1; }
"$work/venv/bin/pip" install --quiet "$wheel"

unset XCHECK PYTHONPATH
cd "$work" # so that nothing but the installed package is imported
"$work/venv/bin/python" -m xcheck --version
"$work/venv/bin/python" -m pytest -q --override-ini "pythonpath=tests examples" "$OLDPWD/python"
