#!/bin/sh
# Puts xcheck on the PATH of a job.
#
#   install.sh release   downloads a release, and checks its SHA-256; does nothing where there is none
#   install.sh build     builds the source that this script is part of, unless that was built before
#
# XCHECK_REPOSITORY  owner/name whose releases are asked for; empty: none is
# XCHECK_VERSION     the release's tag; empty: v and the version of the source
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

sha256() { if command -v sha256sum >/dev/null; then sha256sum; else shasum -a 256; fi | cut -d ' ' -f 1; }

# As Rust names it; nothing where no release is made for it.
target() {
    case "$(uname -s) $(uname -m)" in
    "Linux x86_64") echo x86_64-unknown-linux-gnu ;;
    "Linux aarch64") echo aarch64-unknown-linux-gnu ;;
    "Darwin x86_64") echo x86_64-apple-darwin ;;
    "Darwin arm64") echo aarch64-apple-darwin ;;
    esac
}

# curl's 22: the server has no such file.
get() { curl --fail --location --silent --show-error --retry 3 --proto =https --output "$2" "$1"; }

on_path() {
    "$home/bin/xcheck" --version
    echo "$home/bin" >>"${GITHUB_PATH:-/dev/null}"
    output installed true
}

none() {
    echo "$1: it is built from its source"
    output installed false
    output key "$( (cd "$source" && find Cargo.lock Cargo.toml src maps checkpoints -type f | LC_ALL=C sort | xargs cat) | sha256)"
}

release() {
    [ -n "${XCHECK_REPOSITORY:-}" ] || { none "no repository is named for releases" && return; }
    [ -n "$(target)" ] || { none "there are no releases for $(uname -s) $(uname -m)" && return; }
    version=${XCHECK_VERSION:-v$(sed -n 's/^version = "\(.*\)"/\1/p' "$source/Cargo.toml" | head -n 1)}
    url=https://github.com/$XCHECK_REPOSITORY/releases/download/$version/xcheck-$(target).tar.gz
    mkdir -p "$home/bin"
    code=0
    get "$url" "$home/release.tar.gz" || code=$?
    [ "$code" -ne 22 ] || { none "$url is not there" && return; }
    [ "$code" -eq 0 ] || fail "$url: curl ended with $code"
    get "$url.sha256" "$home/release.sha256" || fail "$url.sha256: a release comes with its checksum"
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
