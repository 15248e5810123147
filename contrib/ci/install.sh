#!/bin/sh
# Puts xcheck on the PATH of a job.
#
#   install.sh release   downloads a release, and checks its SHA-256; does nothing where the source has none
#   install.sh build     builds the source that this script is part of, unless that was built before
#
# XCHECK_REPOSITORY  owner/name whose releases are asked for; empty: none is
# XCHECK_VERSION     the release's tag, which has to be there; empty: v and the version of the source, which is built where it
#                    is not released
# XCHECK_HOME        where xcheck goes [default: a folder of the runner]
#
# On GitHub the PATH of later steps is extended, and the outputs are `installed` (true or false) and, where it is false,
# `key`, which names a build of this source in a cache.
set -eu

source=$(cd "$(dirname "$0")/../.." && pwd)
home=${XCHECK_HOME:-${RUNNER_TEMP:-${TMPDIR:-/tmp}}/xcheck}

output() { printf '%s=%s\n' "$1" "$2" >>"${GITHUB_OUTPUT:-/dev/null}"; }

fail() {
    echo "error: $1" >&2
    exit 2
}

hasher=$(if command -v sha256sum >/dev/null; then echo sha256sum; else echo shasum -a 256; fi)
# shellcheck disable=SC2086 # it may be two words and a number
sha256() { $hasher | cut -d ' ' -f 1; }

# As Rust names it; nothing where no release is made for it.
target() {
    case "$(uname -s) $(uname -m)" in
    "Linux x86_64") echo x86_64-unknown-linux-gnu ;;
    "Linux aarch64") echo aarch64-unknown-linux-gnu ;;
    "Darwin x86_64") echo x86_64-apple-darwin ;;
    "Darwin arm64") echo aarch64-apple-darwin ;;
    esac
}

# The server's answer, 200 or 404 and so on, and curl's own error.
download() {
    code=0
    answer=$(curl --location --silent --show-error --retry 3 --proto =https --write-out '%{http_code}' --output "$2" "$1") || code=$?
}

# That it came; else what may be the reason.
arrived() {
    [ "$code" -eq 0 ] || fail "$1: curl ended with $code"
    [ "$answer" = 200 ] || fail "$1: the server answers $answer: $2"
}

# Of all that is compiled in, names and contents: tests/ci.rs holds the list against what the source includes.
key() {
    cd "$source"
    # shellcheck disable=SC2086
    find Cargo.lock Cargo.toml engine judge src checkpoints python/src reference-scripts -type f | LC_ALL=C sort | tr '\n' '\0' | xargs -0 $hasher | sha256
}

on_path() {
    "$home/bin/xcheck" --version
    echo "$home/bin" >>"${GITHUB_PATH:-/dev/null}"
    output installed true
}

# The source stands for its own version alone.
none() {
    [ -z "${XCHECK_VERSION:-}" ] || fail "version $XCHECK_VERSION was asked for: $1"
    echo "$1: it is built from its source"
    output installed false
    output key "$(key)"
}

release() {
    [ -n "${XCHECK_REPOSITORY:-}" ] || { none "no repository is named for releases" && return; }
    [ -n "$(target)" ] || { none "there are no releases for $(uname -s) $(uname -m)" && return; }
    version=${XCHECK_VERSION:-v$(sed -n 's/^version = "\(.*\)"/\1/p' "$source/Cargo.toml" | head -n 1)}
    url=https://github.com/$XCHECK_REPOSITORY/releases/download/$version/xcheck-$(target).tar.gz
    mkdir -p "$home/bin"
    download "$url" "$home/release.tar.gz"
    [ "$code $answer" != "0 404" ] || { none "$url is not there" && return; }
    arrived "$url" "try again later"
    download "$url.sha256" "$home/release.sha256"
    arrived "$url.sha256" "a release comes with its checksum"
    expected=$(cut -d ' ' -f 1 "$home/release.sha256")
    found=$(sha256 <"$home/release.tar.gz")
    [ "$expected" = "$found" ] || fail "$url: SHA-256 is $found, its checksum says $expected; nothing was installed"
    tar -xzf "$home/release.tar.gz" -C "$home/bin" xcheck
    on_path
}

build() {
    [ -x "$home/bin/xcheck" ] || cargo install --locked --path "$source" --root "$home"
    on_path
}

case "${1:-}" in
release | build) "$1" ;;
*) fail "usage: install.sh release|build" ;;
esac
