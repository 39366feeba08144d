#!/usr/bin/env bash
# Finds out what a GPU does: devices, agreement of every model with PyTorch (f32, bf16, f16), two ranks
# on one GPU against one, NCCL, images per second of the recipes here and in PyTorch, memory. One table
# on stdout, JSON in results/. Needs a driver, and nothing else: from the file of scripts/gpu-pack.sh
#
#   tar xf gpu-check.tar.xz && gpu-check/scripts/gpu-check.sh
#
# or in the repository, where it builds `bench` with FEATURES (default: none, so the processor).
#
#   --device cuda|wgpu|cpu   default: the first of these that the program is built for
#   --quick                  few steps of small models: whether all of it works at all
#   --profile RECIPE         where the time of RECIPE goes, per kernel, instead of the check
#   --train CONFIG           trains a configuration in runs/, and goes on with it when called again
#   everything else          goes to `bench gpu`, such as --parts speed,torch --recipes olivia; with
#                            --profile to `bench training-trained`, such as --set train.kernels=burn;
#                            with --train to the trainer, such as --set train.max_minutes=9
#   PYTHON                   a Python with PyTorch; python3 unless set
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
usage() { sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[0]}"; }
say() { printf '%s\n' "gpu-check.sh: $*" >&2; }

device=''
quick=''
profile=''
train=''
rest=()
while [[ $# -gt 0 ]]; do
  case $1 in
    --device) device=${2:?--device needs a value}; shift 2 ;;
    -h | --help) usage; exit ;;
    --quick) quick=1; shift ;;
    --profile) profile=${2:?--profile needs a recipe}; shift 2 ;;
    --train) train=${2:?--train needs a configuration}; shift 2 ;;
    *) rest+=("$1"); shift ;;
  esac
done

if [[ -n ${BENCH:-} ]]; then
  bench=$BENCH
elif [[ -x $here/bench-gpu ]]; then
  bench=$here/bench-gpu
else
  command -v cargo >/dev/null || { say "MISSING: neither $here/bench-gpu nor cargo"; exit 2; }
  selected=()
  IFS=, read -ra list <<<"${FEATURES:-}"
  for feature in "${list[@]}"; do selected+=("trainer/$feature" "bench/$feature"); done
  (cd "$here" && cargo build --release --workspace --bins ${selected[0]:+--features "$(IFS=,; echo "${selected[*]}")"} >&2)
  bench=${CARGO_TARGET_DIR:-$here/target}/release/bench
fi
[[ ! -f $here/VERSION ]] || sed 's/^/gpu-check.sh: /' "$here/VERSION" >&2

# Finds what compiles kernels, and NCCL: packed along, in a CUDA toolkit, or with PyTorch's packages.
libraries() {
  local python=${PYTHON:-python3} nvcc folder name file places=()
  [[ ! -d $here/cuda ]] || export CUDA_PATH=${CUDA_PATH:-$here/cuda}
  if [[ -z ${CUDA_PATH:-} && ! -d /usr/local/cuda ]] && nvcc=$(command -v nvcc); then
    CUDA_PATH=$(dirname "$(dirname "$(realpath "$nvcc")")")
    export CUDA_PATH
  fi
  places=("${CUDA_PATH:-/usr/local/cuda}"/{lib64,lib,targets/x86_64-linux/lib})
  if command -v "$python" >/dev/null; then
    while IFS= read -r folder; do
      places+=("$folder")
      if [[ -z ${CUDA_PATH:-} && ! -d /usr/local/cuda && -e ${folder%/lib}/include/cuda_runtime.h &&
        -e ${folder%/lib}/include/crt/mma.h ]]; then
        export CUDA_PATH=${folder%/lib}
      fi
    done < <("$python" -c '
import glob, site
for place in [*site.getsitepackages(), site.getusersitepackages()]:
    for folder in sorted(glob.glob(place + "/nvidia/*/lib")): print(folder)
' 2>/dev/null)
  fi
  # Programs look for names with the versions they know; a link has a name that all know.
  for name in libnvrtc.so libnccl.so; do
    for folder in "${places[@]}"; do
      for file in "$folder/$name" "$folder/$name".[0-9]*; do
        [[ ! -e $file || -e $scratch/$name ]] || ln -s "$(realpath "$file")" "$scratch/$name"
      done
    done
  done
  for folder in "${places[@]}" "$scratch"; do
    [[ ! -d $folder ]] || LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
  done
  export LD_LIBRARY_PATH
}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# A device that is built in and does not work is an error further below, and no reason to take another.
built_for() {
  local device said
  for device in cuda wgpu; do
    said=$("$bench" gpu-part devices --device "$device" --out "$scratch/devices.json" 2>&1) || true
    [[ $said == *"built without $device"* ]] || { echo "$device"; return; }
  done
  echo cpu
}
[[ -f $bench && -x $bench ]] || { say "$bench is no program"; exit 2; }
[[ -n $device ]] || device=$(built_for)
if [[ -n $profile && $device == cpu ]]; then
  say "--profile times the kernels of a GPU: build with FEATURES=cuda-nvrtc,tune or FEATURES=wgpu, or name a --device"
  exit 2
fi
[[ $device != cuda ]] || libraries
# What the driver has translated for one process is kept for the next.
export CUDA_CACHE_PATH=${CUDA_CACHE_PATH:-${TMPDIR:-/tmp}/nv-cache} CUDA_CACHE_MAXSIZE=${CUDA_CACHE_MAXSIZE:-4294967296}

say "device $device on $(uname -n), $(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null || echo 'no nvidia-smi')"

if [[ -n $profile ]]; then
  mkdir -p results
  out=$(cd results && pwd)
  rm -f "$out/profile.log"
  # cubecl times every kernel then and waits for it: shares are right, the sum is not.
  printf '[profiling.logger]\nlevel = "medium"\nfile = "%s"\n' "$out/profile.log" >"$scratch/cubecl.toml"
  bench=$(realpath "$bench")
  (cd "$scratch" && "$bench" training-trained \
    --model "$profile" --ranks 1 --batch "${BATCH:-256}" --steps 8 --images 2048 \
    --set "train.device=$device" --set "train.precision=${PRECISION:-bf16}" \
    --out "$out/profile-seconds.json" "${rest[@]}")
  say "kernels in $out/profile.log; by their names:"
  # Kernels are compiled for shapes, which the end of a name stands for.
  awk -F'|' '{
    time = $2; gsub(/ /, "", time)
    unit = time ~ /ns$/ ? 1e-6 : time ~ /[µu]s$/ ? 1e-3 : time ~ /ms$/ ? 1 : 1e3
    name = $3 ($4 == "" ? "" : " " $4); gsub(/_[0-9a-f]+ *$/, "", name); gsub(/^ +| +$/, "", name)
    total[name] += time * unit; runs[name]++; all += time * unit; every++
  }
  END {
    for (name in total) printf "%10.1f ms %5.1f %% %7d %s\n", total[name], 100 * total[name] / all, runs[name], name
    printf "%10.1f ms 100.0 %% %7d all\n", all, every
  }' "$out/profile.log" | sort -rn | tee "$out/profile.txt"
  exit
fi

if [[ -n $train ]]; then
  name=$(basename "$train" .toml)
  "$bench" trainer --config "$train" --run-dir "runs/$name" --resume auto --set "train.device=$device" "${rest[@]}"
  exit
fi

arguments=(--device "$device" --golden "$here/models/tests/golden" --torch-script "$here/bench/torch/train.py")
[[ -z ${PYTHON:-} ]] || arguments+=(--python "$PYTHON")
# What was asked for by name stays as it was asked for.
unless_given() {
  [[ " ${rest[*]:-} " == *" $1 "* || " ${rest[*]:-} " == *" $1="* ]] || arguments+=("$1" "$2")
}
if [[ -n $quick ]]; then
  unless_given --recipes wrn-16-4,vit-tiny
  unless_given --precisions f32,f16
  unless_given --batch 4
  unless_given --steps 1
  unless_given --warm-up 1
  unless_given --memory-steps 300
fi
"$bench" gpu "${arguments[@]}" "${rest[@]}"
