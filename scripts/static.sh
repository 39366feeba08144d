#!/usr/bin/env bash
# Builds the trainer as one static program. It needs no library of the machine that it runs on, whose C library may be
# older than that of this one, as on clusters, so it can be copied to any Linux with the same kind of processor. It
# computes on the processor: the driver of a GPU and MPI are libraries.
#
#   scripts/static.sh [FILE]     default: target/static/trainer
#
# Needs the musl target of Rust's toolchain, which it adds where rustup is, and musl-gcc for the parts that are written
# in C (Debian's musl-tools, which it installs where it may; others: musl-gcc).
set -euo pipefail

usage() { sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[0]}"; }
say() { printf 'static.sh: %s\n' "$*" >&2; }
case ${1:-} in
  -h | --help) usage; exit ;;
  -*) usage >&2; exit 2 ;;
esac
[[ $# -le 1 ]] || { usage >&2; exit 2; }
output=$(realpath -m "${1:-${CARGO_TARGET_DIR:-$(dirname "${BASH_SOURCE[0]}")/../target}/static/trainer}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=$(uname -m)-unknown-linux-musl
sysroot=$(rustc --print sysroot)
if [[ ! -d $sysroot/lib/rustlib/$target ]]; then
  timeout 120 rustup target add "$target" >&2 || { say "MISSING: Rust's target $target: rustup target add $target"; exit 3; }
fi
if ! command -v musl-gcc >/dev/null && [[ $(id -u) -eq 0 ]] && command -v apt-get >/dev/null; then
  say "installing musl-tools"
  apt=(timeout 300 apt-get -q -o Acquire::Retries=1 -o Acquire::http::Timeout=15 -o DPkg::Lock::Timeout=60)
  export DEBIAN_FRONTEND=noninteractive
  { "${apt[@]}" update && "${apt[@]}" install -y --no-install-recommends musl-tools gcc; } </dev/null >&2 || say "apt-get failed"
fi
command -v musl-gcc >/dev/null || { say "MISSING: musl-gcc: install musl-tools"; exit 3; }

cargo build --release --target "$target" -p trainer --bin trainer >&2
mkdir -p "$(dirname "$output")"
strip -o "$output" "${CARGO_TARGET_DIR:-target}/$target/release/trainer"
if readelf --program-headers "$output" | grep -q INTERP; then
  say "FAILED: $output asks for a dynamic linker"
  exit 1
fi
say "$(($(stat -c %s "$output") / 1024)) KiB"
printf '%s\n' "$output"
