#!/usr/bin/env bash
# usage: build_dump_bitnet_cpp.sh BITNET BUILD OUT
#
# Compiles OUT/dump_bitnet_cpp: dump_llama_cpp.cpp, linked against the llama.cpp inside a bitnet.cpp of yours. BITNET is its
# source tree with submodules, BUILD where you have built it, as its own documentation says and with shared libraries
# (-DBUILD_SHARED_LIBS=ON); the dumps of checkpoints/ come from builds with AVX2, FMA and F16C and without AVX-512 and OpenMP.
# For TL2 files it must have been built with -DBITNET_X86_TL2=ON and kernels for the shapes of the model.
# BUILD_FLAGS goes into the dumps as what the user says of that build.
#
# The header of this llama.cpp is older than the one of build_dump_llama_cpp.sh; the program fits both.

set -euo pipefail

if [[ $# -ne 3 ]]; then
    echo "usage: $0 BITNET BUILD OUT" >&2
    exit 2
fi
scripts=$(cd "$(dirname "$0")" && pwd)
bitnet=$(cd "$1" && pwd)
build=$(cd "$2" && pwd)
mkdir -p "$3"
out=$(cd "$3" && pwd)
fork=$bitnet/3rdparty/llama.cpp
version=${BITNET_VERSION:-$(git -C "$bitnet" rev-parse --short HEAD 2> /dev/null || echo unknown)}
compiler=${CXX:-clang++}

libraries=("$build/3rdparty/llama.cpp/src" "$build/3rdparty/llama.cpp/ggml/src")
"$compiler" -std=c++17 -O2 -Wall -Wextra \
    -DXCHECK_PRODUCER='"bitnet.cpp"' \
    -DXCHECK_PRODUCER_VERSION="\"microsoft/BitNet $version\"" \
    -DXCHECK_BUILD_FLAGS="\"${BUILD_FLAGS:-unknown}\"" \
    -I"$fork/include" -I"$fork/ggml/include" "$scripts/dump_llama_cpp.cpp" -o "$out/dump_bitnet_cpp" \
    "${libraries[@]/#/-L}" "${libraries[@]/#/-Wl,-rpath,}" -lllama -lggml

echo "built $out/dump_bitnet_cpp"
