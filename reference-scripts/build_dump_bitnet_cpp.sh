#!/usr/bin/env bash
# usage: build_dump_bitnet_cpp.sh BITNET OUT
#
# Builds OUT/dump_bitnet_cpp: dump_llama_cpp.cpp, linked against the llama.cpp of a bitnet.cpp source tree. BITNET is a
# checkout of microsoft/BitNet with its submodules. Two minutes on two cores; needs CMake, clang (bitnet.cpp's
# own choice) and a C++17 compiler. Options for CMake go into CMAKE_ARGS: -DBITNET_X86_TL2=ON for TL2 files, after
# bitnet.cpp's utils/codegen_tl2.py has written kernels for the shapes of the model.
#
# The header of this llama.cpp is older than the one of build_dump_llama_cpp.sh; the program fits both.

set -euo pipefail

if [[ $# -ne 2 ]]; then
    echo "usage: $0 BITNET OUT" >&2
    exit 2
fi
scripts=$(cd "$(dirname "$0")" && pwd)
bitnet=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
fork=$bitnet/3rdparty/llama.cpp
version=${BITNET_VERSION:-$(git -C "$bitnet" rev-parse --short HEAD 2> /dev/null || echo unknown)}
export CC=${CC:-clang} CXX=${CXX:-clang++}

# As for llama.cpp: kernels for AVX2, FMA and F16C, whatever this machine has. One thread pool less without OpenMP.
flags=(-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON -DGGML_OPENMP=OFF)
read -ra more <<< "${CMAKE_ARGS:-}"
cmake -S "$bitnet" -B "$out/build" -DBUILD_SHARED_LIBS=ON "${flags[@]}" "${more[@]}"
cmake --build "$out/build" --target llama --parallel "${CMAKE_BUILD_PARALLEL_LEVEL:-$(getconf _NPROCESSORS_ONLN)}"

libraries=("$out/build/3rdparty/llama.cpp/src" "$out/build/3rdparty/llama.cpp/ggml/src")
"$CXX" -std=c++17 -O2 -Wall -Wextra \
    -DXCHECK_PRODUCER='"bitnet.cpp"' \
    -DXCHECK_PRODUCER_VERSION="\"microsoft/BitNet $version\"" \
    -DXCHECK_BUILD_FLAGS="\"${flags[*]} ${more[*]}, $("$CXX" --version | head -n 1)\"" \
    -I"$fork/include" -I"$fork/ggml/include" "$scripts/dump_llama_cpp.cpp" -o "$out/dump_bitnet_cpp" \
    "${libraries[@]/#/-L}" "${libraries[@]/#/-Wl,-rpath,}" -lllama -lggml

echo "built $out/dump_bitnet_cpp"
