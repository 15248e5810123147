#!/usr/bin/env bash
# Builds the wheel, installs it into a new environment, and runs the tests of the package against it. Without Rust, Python 3.9 with
# venv, or PyPI it says SKIPPED and succeeds, unless XCHECK_REQUIRE_ALL=1.
#
#   python/tests/run.sh [PACKAGE...]     # packages to install too, such as: pandas nbclient ipykernel torch transformers
#
# XCHECK_PYTHON   the Python [default: python3]
# XCHECK_MATURIN  options of `maturin build` [default: --release]
# XCHECK_CARGO    see .ci/wheel
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${XCHECK_PYTHON:-python3}

skip() {
    echo "SKIPPED: the wheel and $(cat python/tests/test_*.py | grep -c '^def test_') tests of python/tests: $1"
    exit "${XCHECK_REQUIRE_ALL:-0}"
}

command -v cargo >/dev/null || skip "no cargo"
"$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 9))' 2>/dev/null || skip "no Python 3.9 with venv ($python)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --retries 0 --timeout 10 pytest safetensors "$@" ||
    skip "pip cannot install pytest, safetensors $*"

# shellcheck disable=SC2086 # they are several
.ci/wheel "$work/venv" ${XCHECK_MATURIN:---release}
unset XCHECK PYTHONPATH
export XCHECK_CAUSES_LIMIT=none # causes do not depend on the machine's load
cd "$work" # so that nothing but the installed package is imported
"$work/venv/bin/python" -m pytest -q -rs -p no:cacheprovider --override-ini "pythonpath=tests examples" "$OLDPWD/python"
