#!/bin/bash
# Runs the tests that reach unsafe code with LLVM's address sanitizer, which needs a nightly toolchain. See SECURITY.md.
set -euo pipefail
cd "$(dirname "$0")/.."
host=$(rustc -vV | sed -n 's/^host: //p')
# quant: vector instructions against their twins. parts, remote, format: maps of files. robust: the allocator and the handler of
# signals, but for what limits the address space, of which the sanitizer reserves terabytes.
export ASAN_OPTIONS=handle_sigbus=0 # that signal is the program's
export CARGO_PROFILE_DEV_DEBUG_ASSERTIONS=true # the standard library's own checks of unsafe code
tests=(quant:: lazy_bytes:: remote:: format:: bit_identity:: kld:: robust::interruptions:: robust::fuzz::)
RUSTFLAGS="-Zsanitizer=address ${RUSTFLAGS-}" cargo +nightly test --no-fail-fast --target-dir target/sanitized --target "$host" --test all --test engine -- "${tests[@]}"
