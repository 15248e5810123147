#!/usr/bin/env bash
# usage: [GGML_NATIVE=ON] build_dump_llama_cpp.sh VENV
#
# Builds VENV/bin/dump_llama_cpp from nothing: a virtual environment, llama.cpp from source in it (about ten minutes
# on two cores), and the program, linked against that llama.cpp. Needs Python 3, a C compiler and a C++17 compiler.
# Run again, it only compiles the program.

set -euo pipefail

if [[ $# -ne 1 ]]; then
    echo "usage: $0 VENV" >&2
    exit 2
fi
scripts=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
venv=$(cd "$1" && pwd)
python=$venv/bin/python
compiler=${CXX:-c++}

# GGML_NATIVE=OFF: not the kernels of this machine's CPU, but on every x86-64 those for AVX2, FMA and F16C. Otherwise
# a machine with AVX-512 sums in another order, and its dump is another dump. GGML_NATIVE=ON measures how far that is.
build_flags=GGML_NATIVE=${GGML_NATIVE:-OFF}
recipe="$build_flags $(cat "$scripts/../requirements-llama-cpp.txt")"

# --no-cache-dir: pip's cache may hold a wheel that was built here before, with whatever flags.
install_llama_cpp() {
    python3 -m venv "$venv"
    echo '*' > "$venv/.gitignore"
    export CMAKE_ARGS="-D$build_flags -DLLAVA_BUILD=OFF"
    export CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$(getconf _NPROCESSORS_ONLN)}
    "$python" -m pip install --no-cache-dir --requirement "$scripts/../requirements-llama-cpp.txt"
    echo "$recipe" > "$venv/recipe"
}

if [[ -z $(ls -A "$venv") ]]; then
    install_llama_cpp
elif [[ $(cat "$venv/recipe" 2> /dev/null) != "$recipe" ]]; then
    echo "error: $venv holds something else than this script's build: delete it, or name another directory" >&2
    exit 1
fi

site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
package=$("$python" -c 'import importlib.metadata as m; print("llama-cpp-python", m.version("llama-cpp-python"))')
cmake_value() { sed -n "s/^set($1 *\(.*\))/\1/p" "$site/lib/cmake/llama/llama-config.cmake"; }
version="$(cmake_value LLAMA_VERSION) $(cmake_value LLAMA_BUILD_COMMIT) ($package)"

# The library is found from the program's own place: the environment may move.
origin="\$ORIGIN"
[[ $(uname) == Darwin ]] && origin=@loader_path

"$compiler" -std=c++17 -O2 -Wall -Wextra \
    -DXCHECK_PRODUCER_VERSION="\"$version\"" \
    -DXCHECK_BUILD_FLAGS="\"$build_flags, $("$compiler" --version | head -n 1)\"" \
    -I"$site/include" "$scripts/dump_llama_cpp.cpp" -o "$venv/bin/dump_llama_cpp" \
    -L"$site/llama_cpp/lib" -Wl,-rpath,"$origin/..${site#"$venv"}/llama_cpp/lib" -lllama -lggml -lggml-base

echo "built $venv/bin/dump_llama_cpp"
