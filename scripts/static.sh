#!/usr/bin/env bash
# Builds the trainer as one static program. It needs no library of the target machine, so it can be copied to any Linux
# with the same kind of CPU, for example to a cluster with an older C library. It computes on the CPU only, because the
# driver of a GPU and MPI are libraries.
#
#   scripts/static.sh [--install] [FILE]     default: target/static/trainer
#
#   --install   first installs what is missing: the musl target of Rust's toolchain, and musl-gcc (Debian's musl-tools)
#               for the parts in C
set -euo pipefail

usage() { sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[0]}"; }
say() { printf 'static.sh: %s\n' "$*" >&2; }
install=''
[[ ${1:-} != --install ]] || { install=1; shift; }
case ${1:-} in
  -h | --help) usage; exit ;;
  -*) usage >&2; exit 2 ;;
esac
[[ $# -le 1 ]] || { usage >&2; exit 2; }
output=$(realpath -m "${1:-${CARGO_TARGET_DIR:-$(dirname "${BASH_SOURCE[0]}")/../target}/static/trainer}")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

target=$(uname -m)-unknown-linux-musl
sysroot=$(rustc --print sysroot)
has_target() { [[ -d $sysroot/lib/rustlib/$target ]]; }
has_target || [[ -z $install ]] || timeout 120 rustup target add "$target" >&2 || true
has_target || { say "MISSING: Rust's target $target: scripts/static.sh --install, or: rustup target add $target"; exit 3; }
has_gcc() { command -v musl-gcc >/dev/null; }
has_gcc || [[ -z $install ]] || scripts/apt.sh musl-tools gcc || true
has_gcc || { say "MISSING: musl-gcc: scripts/static.sh --install, or: apt-get install musl-tools"; exit 3; }

cargo build --release --target "$target" -p burn-dist-trainer --bin trainer >&2
mkdir -p "$(dirname "$output")"
strip -o "$output" "${CARGO_TARGET_DIR:-target}/$target/release/trainer"
if readelf --program-headers "$output" | grep -q INTERP; then
  say "FAILED: $output asks for a dynamic linker"
  exit 1
fi
say "$(($(stat -c %s "$output") / 1024)) KiB"
printf '%s\n' "$output"
