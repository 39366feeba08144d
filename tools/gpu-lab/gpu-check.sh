#!/usr/bin/env bash
# Finds out what a GPU does: devices, agreement of every model with PyTorch (f32, bf16, f16), two ranks
# on one GPU against one, NCCL, images per second of the recipes here and in PyTorch, memory. One table
# on stdout, JSON in results/. Needs a driver, and nothing else: from the file of tools/gpu-lab/gpu-pack.sh
#
#   tar xf gpu-check.tar.xz && gpu-check/tools/gpu-lab/gpu-check.sh
#
# or in the repository, where it builds `bench` with FEATURES (default: none, so the processor). Writes into
# the folder that it is called in, results/ and runs/, or --json FILE and FILE.logs beside it; ended early, as
# by `timeout`, it leaves what it has found out.
#
#   --device cuda|wgpu|cpu   default: the first of these that the program is built for
#   --quick                  few steps of small models: whether all of it works at all
#   --profile RECIPE         where the time of RECIPE goes, per kernel, instead of the check
#   --train CONFIG           trains a configuration in runs/, and goes on with it when called again
#   everything else          goes to `bench gpu`, such as --parts speed,torch --recipes olivia; with
#                            --profile to `bench training-trained`, such as --set train.kernels=burn;
#                            with --train to the trainer, such as --set train.max_minutes=9
#   PYTHON                   a Python with PyTorch, as --python; python3 unless set
#   KERNELS                  folder in which compiled kernels are kept for the next process, what NVRTC makes of
#                            them and what the driver makes of that; in a temporary folder unless set
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
usage() { sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[0]}"; }
say() { printf '%s\n' "gpu-check.sh: $*" >&2; }

device=''
cuda_variables=()
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
    --python) PYTHON=${2:?--python needs a program}; shift 2 ;;
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
  for feature in "${list[@]}"; do selected+=("burn-dist-trainer/$feature" "bench/$feature"); done
  (cd "$here" &&
    cargo build --release --workspace --bins ${selected[0]:+--features "$(IFS=,; echo "${selected[*]}")"} >&2)
  bench=${CARGO_TARGET_DIR:-$here/target}/release/bench
fi
[[ ! -f $here/VERSION ]] || sed 's/^/gpu-check.sh: /' "$here/VERSION" >&2

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# Runs our program. Who ends this script, as `timeout` does, ends that too, and it still writes what it knows.
ours() {
  local child status=0
  env "${cuda_variables[@]}" "$bench" "$@" &
  child=$!
  trap 'kill -TERM "$child" 2>/dev/null || true' TERM INT HUP
  # A signal that was handled ends the first of these.
  wait "$child" || status=$?
  while kill -0 "$child" 2>/dev/null; do status=0; wait "$child" || status=$?; done
  trap - TERM INT HUP
  return "$status"
}

# A device that is built in and does not work is an error further below, and no reason to take another.
built_for() {
  local device said
  for device in cuda wgpu; do
    said=$(ours gpu-part devices --device "$device" --out "$scratch/devices.json" 2>&1) || true
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
KERNELS=$(realpath -m "${KERNELS:-${TMPDIR:-/tmp}/burn-dist-kernels}")
# What the driver has translated for one process is kept for the next.
export CUDA_CACHE_PATH=${CUDA_CACHE_PATH:-$KERNELS/driver} CUDA_CACHE_MAXSIZE=${CUDA_CACHE_MAXSIZE:-4294967296}
if [[ $device == cuda ]]; then
  # shellcheck source=tools/gpu-lab/gpu-libraries.sh
  . "$here/tools/gpu-lab/gpu-libraries.sh"
  mkdir "$scratch/lib"
  cuda_environment "$here" "$scratch/lib"
fi
# PyTorch has libraries of its own, of other versions than those that our program finds.
if command -v "${PYTHON:-python3}" >/dev/null; then
  {
    echo '#!/usr/bin/env bash'
    for name in LD_LIBRARY_PATH CUDA_PATH; do
      if [[ -v $name ]]; then printf 'export %s=%q\n' "$name" "${!name}"; else echo "unset $name"; fi
    done
    printf 'exec %q "$@"\n' "$(command -v "${PYTHON:-python3}")"
  } >"$scratch/python"
  chmod +x "$scratch/python"
  PYTHON=$scratch/python
fi
gpu=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null) || gpu='no nvidia-smi'
say "device $device on $(uname -n), $gpu"

if [[ -n $profile ]]; then
  mkdir -p results
  precision=${PRECISION:-bf16}
  out=$(cd results && pwd)/profile-$profile-$precision
  profiled_steps=8
  rm -f "$out.log"
  # cubecl times every kernel then and waits for it: shares are right, the sum is not.
  printf '[profiling.logger]\nlevel = "medium"\nfile = "%s"\n' "$out.log" >"$scratch/cubecl.toml"
  bench=$(realpath "$bench")
  (cd "$scratch" && ours training-trained \
    --model "$profile" --ranks 1 --batch "${BATCH:-256}" --steps $profiled_steps --images 2048 \
    --set "train.device=$device" --set "train.precision=$precision" \
    --out "$out-seconds.json" "${rest[@]}")
  say "kernels in $out.log; by their names, per step:"
  # Kernels are compiled, and sizes of tiles tried out, when they are first launched, which takes longer than all else:
  # of the steps the second half counts, from one launch of the optimizer to another, or what comes second where that is
  # none of ours. Kernels are compiled for shapes, which the end of a name stands for.
  awk -F'|' -v steps=$((profiled_steps / 2)) '
  NR == FNR { lines = FNR; if ($3 ~ /^ (Sgd|Adam)/) at[++launches] = FNR; next }
  FNR == 1 {
    begin = launches > 1 ? at[int(launches / 2)] : int(lines / 2)
    end = launches > 1 ? at[launches] : lines
  }
  FNR > begin && FNR <= end {
    time = $2; gsub(/ /, "", time)
    unit = time ~ /ns$/ ? 1e-6 : time ~ /[µu]s$/ ? 1e-3 : time ~ /ms$/ ? 1 : 1e3
    name = $3 ($4 == "" ? "" : " " $4); gsub(/_[0-9a-f]+ *$/, "", name); gsub(/^ +| +$/, "", name)
    total[name] += time * unit; runs[name]++; all += time * unit; every++
  }
  END {
    if (!all) exit
    for (name in total)
      printf "%10.3f ms %5.1f %% %7.1f %s\n", total[name] / steps, 100 * total[name] / all, runs[name] / steps, name
    printf "%10.3f ms 100.0 %% %7.1f all\n", all / steps, every / steps
  }' "$out.log" "$out.log" | sort -rn | tee "$out.txt"
  exit
fi

if [[ -n $train ]]; then
  name=$(basename "$train" .toml)
  ours trainer --config "$train" --run-dir "runs/$name" --resume auto --set "train.device=$device" "${rest[@]}"
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
ours gpu "${arguments[@]}" "${rest[@]}"
