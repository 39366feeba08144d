#!/usr/bin/env bash
# Builds `bench` for CUDA and packs all that scripts/gpu-check.sh needs on a machine without network
# and toolchain: the stripped program, golden files, the PyTorch script. Prints the file.
#
#   scripts/gpu-pack.sh [FILE]        default: target/gpu-check.tar.xz
#
#   FEATURES   cuda (kernels compiled by the LLVM inside and CUDA's libdevice), cuda-nvrtc (by the CUDA
#              toolkit's libnvrtc), wgpu, tune, autotune; joined by commas. Default cuda-nvrtc,tune
#   ALSO       features of a second program in the same file, bench-gpu-2, for a machine on which the
#              first does not run. Default none; sensible: cuda,tune
#   LIMIT_MIB  largest size of the file. Default 40
#   NVRTC      folder with include/ and, if it is to be packed too, lib/libnvrtc*.so*, for machines without a
#              toolkit; both of one version, which the driver knows; what NVIDIA's Python packages nvidia-cuda-nvrtc, -runtime, -crt and -cccl hold
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' scripts/gpu-pack.sh; }
case ${1:-} in
  -h | --help) usage; exit ;;
  -*) usage >&2; exit 2 ;;
esac
[[ $# -le 1 ]] || { usage >&2; exit 2; }

features=${FEATURES:-cuda-nvrtc,tune}
limit=${LIMIT_MIB:-40}
target=${CARGO_TARGET_DIR:-target}
say() { printf '%s\n' "gpu-pack.sh: $*" >&2; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
folder=$work/gpu-check
mkdir -p "$folder/models/tests" "$folder/bench" "$folder/scripts"

# build FEATURES NAME
build() {
  local list=() feature
  IFS=, read -ra list <<<"$1"
  local selected=()
  # With the trainer's features too: one build of the dependencies serves tests and this.
  for feature in "${list[@]}"; do selected+=("trainer/$feature" "bench/$feature"); done
  if [[ $1 == *cuda* ]]; then
    local prepared
    prepared=$(scripts/cuda-llvm.sh) || { say "no LLVM to build with"; exit 1; }
    eval "$prepared"
  fi
  say "building bench with $1"
  cargo build --release --workspace --bins --features "$(IFS=,; echo "${selected[*]}")" >&2
  strip -o "$folder/$2" "$target/release/bench"
}

build "$features" bench-gpu
[[ -z ${ALSO:-} ]] || build "$ALSO" bench-gpu-2

cp -r models/tests/golden "$folder/models/tests/"
rm -f "$folder"/models/tests/golden/*.rs "$folder"/models/tests/golden/*.pt
cp -r bench/torch "$folder/bench/"
mkdir -p "$folder/scripts/golden"
cp scripts/golden/*.py "$folder/scripts/golden/"
cp scripts/gpu-check.sh "$folder/scripts/"
if [[ -n ${NVRTC:-} ]]; then
  mkdir -p "$folder/cuda"
  cp -rL "$NVRTC/include" "$folder/cuda/"
  [[ ! -d $NVRTC/lib ]] || cp -rL "$NVRTC/lib" "$folder/cuda/"
fi
{
  echo "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
  echo "features $features${ALSO:+; second program $ALSO}"
  echo "built $(date -u +%Y-%m-%dT%H:%M:%SZ)"
} >"$folder/VERSION"

file=${1:-$target/gpu-check.tar.xz}
mkdir -p "$(dirname "$file")"
tar -C "$work" -cf - gpu-check | xz -6 -T0 >"$file"
bytes=$(stat -c %s "$file")
say "$file: $((bytes / 1024)) KiB, program $(($(stat -c %s "$folder/bench-gpu") / 1024)) KiB unpacked"
if ((bytes > limit * 1024 * 1024)); then
  say "FAILED: larger than $limit MiB"
  exit 1
fi
printf '%s\n' "$file"
