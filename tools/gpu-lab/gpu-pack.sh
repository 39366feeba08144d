#!/usr/bin/env bash
# Builds `bench` for CUDA and packs the needs of tools/gpu-lab/gpu-check.sh for a machine without network
# and toolchain: the stripped program, golden files, the PyTorch script. Prints the file.
#
#   tools/gpu-lab/gpu-pack.sh [FILE]        default: target/gpu-check.tar.xz
#
#   FEATURES   cuda (kernels compiled by the LLVM inside and CUDA's libdevice), cuda-nvrtc (by the CUDA
#              toolkit's libnvrtc), wgpu, tune, autotune; joined by commas. Default cuda-nvrtc,tune
#   ALSO       features of a second program in the same file, bench-gpu-2, for a machine on which the
#              first does not run: BENCH=gpu-check/bench-gpu-2, with a toolkit in CUDA_PATH. Default none;
#              sensible: cuda,tune
#   LIMIT_MIB  largest size of the file. Default 40
#   CUDA_HEADERS   versions of CUDA whose headers are packed. NVRTC reads them, and neither a driver nor
#              PyTorch's packages have all of them. A machine needs those of its libnvrtc. 1.4 MiB each, from
#              NVIDIA's packages for Python. Default with cuda-nvrtc NVRTC's, or 12.8,13.0,13.2; '' for none
#   NVRTC      a version whose libnvrtc is packed with its headers, 31 MiB, for a machine that has none, or
#              one that is newer than its driver. Default none
#   KEPT       folder of compiled kernels, as scripts/cuda-software.sh keeps them, with the same SOFT_CUDA_TOOLKIT.
#              They are packed assembled, and used as they are on a machine with the same NVRTC. Default none
#   TILES      folder of the fastest tiles, `tiles` in what gpu-lease.sh found. They are packed beside KEPT, and used on
#              the same model of GPU with a driver of the same CUDA version. Default none
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

usage() { sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' tools/gpu-lab/gpu-pack.sh; }
case ${1:-} in
  -h | --help) usage; exit ;;
  -*) usage >&2; exit 2 ;;
esac
[[ $# -le 1 ]] || { usage >&2; exit 2; }

features=${FEATURES:-cuda-nvrtc,tune}
limit=${LIMIT_MIB:-40}
headers=''
[[ ,$features,${ALSO:-}, != *,cuda-nvrtc,* ]] || headers=${NVRTC:-12.8,13.0,13.2}
headers=${CUDA_HEADERS-$headers}
[[ -z ${NVRTC:-} || ,$headers, == *",$NVRTC,"* ]] || headers=${headers:+$headers,}$NVRTC
target=${CARGO_TARGET_DIR:-target}
say() { printf '%s\n' "gpu-pack.sh: $*" >&2; }

[[ -z ${TILES:-} || -n $(find "$TILES" -name '*.note' -print -quit) ]] || { say "TILES=$TILES has no tiles"; exit 2; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
folder=$work/gpu-check
mkdir -p "$folder/models/tests" "$folder/bench" "$folder/tools/gpu-lab"

# build FEATURES NAME
build() {
  local list=() feature
  IFS=, read -ra list <<<"$1"
  local selected=()
  # With the trainer's features too, so that tests and this share one build of the dependencies.
  for feature in "${list[@]}"; do selected+=("burn-dist-trainer/$feature" "bench/$feature"); done
  if [[ $1 == *cuda* ]]; then
    local prepared
    prepared=$(scripts/cuda-llvm.sh) || { say "no LLVM to build with"; exit 1; }
    eval "$prepared"
  fi
  say "building bench with $1"
  cargo build --release --workspace --bins --lib --features "$(IFS=,; echo "${selected[*]}")" >&2
  strip -o "$folder/$2" "$target/release/bench"
}

# Puts the files of NVIDIA's packages of a version into the folders of a toolkit.
fetch_cuda() { # VERSION FOLDER
  local packages=() name suffix='' names=(nvrtc runtime crt cccl)
  # Until 12 the headers in crt/ were in the compiler's package.
  [[ ${1%%.*} -ge 13 ]] || { suffix=-cu${1%%.*} names=(nvrtc runtime nvcc cccl); }
  for name in "${names[@]}"; do packages+=("nvidia-cuda-$name$suffix==$1.*"); done
  say "fetching ${packages[*]}"
  timeout 600 python3 -m pip install --quiet --no-deps --no-compile --root-user-action ignore \
    --target "$work/packages" "${packages[@]}" >&2 ||
    { say "FAILED: pip could not install them; with CUDA_HEADERS='' none are packed"; exit 1; }
  mkdir -p "$2"
  cp -r "$work/packages/nvidia"/*/include "$2/"
  [[ -e $2/include/cuda_runtime.h && -e $2/include/crt/mma.h ]] ||
    { say "FAILED: they hold no cuda_runtime.h or crt/mma.h"; exit 1; }
  if [[ $1 == "${NVRTC:-}" ]]; then
    mkdir -p "$2/lib"
    cp "$work/packages/nvidia"/*/lib/libnvrtc{,-builtins}.so.* "$2/lib/"
  fi
  rm -rf "$work/packages"
}

IFS=, read -ra versions <<<"$headers"
for version in "${versions[@]}"; do fetch_cuda "$version" "$folder/cuda-$version"; done

build "$features" bench-gpu
[[ -z ${ALSO:-} ]] || build "$ALSO" bench-gpu-2

if [[ -n ${KEPT:-} ]]; then
  scripts/cuda-software.sh --assemble "$KEPT" "$folder/kept" || { say "FAILED: kernels of $KEPT were refused"; exit 1; }
  # tools/gpu-lab/gpu-libraries.sh recognizes the library that compiled them by this.
  toolkit=$(scripts/cuda-software.sh --toolkit) || { say "FAILED: no NVRTC is here that can have compiled $KEPT"; exit 1; }
  for library in "$toolkit"/{lib64,lib}/libnvrtc.so.[0-9]*; do
    [[ ! -e $library ]] || { sha256sum <"$library" >"$folder/kept/compiler.sha256"; break; }
  done
fi
if [[ -n ${TILES:-} ]]; then
  mkdir -p "$folder/kept"
  find "$TILES" -name '*.note' -exec cp -pt "$folder/kept" {} +
fi
cp -r models/tests/golden "$folder/models/tests/"
rm -f "$folder"/models/tests/golden/*.rs "$folder"/models/tests/golden/*.pt
cp -r bench/torch "$folder/bench/"
mkdir -p "$folder/scripts/golden"
cp scripts/golden/*.py "$folder/scripts/golden/"
cp tools/gpu-lab/gpu-{check,lease,libraries}.sh "$folder/tools/gpu-lab/"
{
  echo "commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
  echo "features $features${ALSO:+; second program $ALSO}"
  echo "headers of CUDA ${headers:-none}${NVRTC:+; NVRTC $NVRTC}${KEPT:+; compiled kernels}${TILES:+; fastest tiles}"
  echo "built $(date -u +%Y-%m-%dT%H:%M:%SZ)"
} >"$folder/VERSION"

file=${1:-$target/gpu-check.tar.xz}
mkdir -p "$(dirname "$file")"
tar -C "$work" -cf - gpu-check | xz -9 -T0 >"$file"
bytes=$(stat -c %s "$file")
say "$file: $((bytes / 1024)) KiB, program $(($(stat -c %s "$folder/bench-gpu") / 1024)) KiB unpacked"
if ((bytes > limit * 1024 * 1024)); then
  say "FAILED: larger than $limit MiB"
  exit 1
fi
printf '%s\n' "$file"
