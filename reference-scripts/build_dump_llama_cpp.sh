#!/usr/bin/env bash
# usage: build_dump_llama_cpp.sh VENV
#
# Builds VENV/bin/dump_llama_cpp from nothing: a virtual environment, llama.cpp from source in it (about ten minutes
# on two cores), and the program, linked against that llama.cpp. Needs Python 3, a C compiler and a C++17 compiler.

set -euo pipefail

if [[ $# -ne 1 ]]; then
    echo "usage: $0 VENV" >&2
    exit 2
fi
scripts=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
venv=$(cd "$1" && pwd)

# GGML_NATIVE=OFF: not the kernels of this machine's CPU, but on every x86-64 those of the usual release builds
# (AVX2, FMA, F16C). Otherwise a machine with AVX-512 sums in another order, and its dump is another dump.
build_flags=GGML_NATIVE=OFF

# pip would take a wheel that it built before, with whatever flags, from its cache: hence --no-cache-dir. An
# environment that holds llama-cpp-python already is only accepted if this script made it.
built=$venv/built-by-build_dump_llama_cpp
if ! cmp -s "$built" "$scripts/requirements-llama-cpp.txt"; then
    python3 -m venv --clear "$venv"
    CMAKE_ARGS="-D$build_flags -DLLAVA_BUILD=OFF" CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(getconf _NPROCESSORS_ONLN)} \
        "$venv/bin/pip" install --no-cache-dir --requirement "$scripts/requirements-llama-cpp.txt"
    cp "$scripts/requirements-llama-cpp.txt" "$built"
fi

site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
libraries=$site/llama_cpp/lib
cmake_value() { sed -n "s/^set($1 *\(.*\))/\1/p" "$site/lib/cmake/llama/llama-config.cmake"; }
version="$(cmake_value LLAMA_VERSION) $(cmake_value LLAMA_BUILD_COMMIT) (from llama-cpp-python 0.3.36)"
compiler=${CXX:-c++}

"$compiler" -std=c++17 -O2 -Wall -Wextra \
    -DXCHECK_PRODUCER_VERSION="\"$version\"" \
    -DXCHECK_BUILD_FLAGS="\"$build_flags, $("$compiler" --version | head -n 1)\"" \
    -I"$site/include" "$scripts/dump_llama_cpp.cpp" -o "$venv/bin/dump_llama_cpp" \
    -L"$libraries" -Wl,-rpath,"$libraries" -lllama -lggml -lggml-base

echo "built $venv/bin/dump_llama_cpp"
