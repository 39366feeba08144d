#!/usr/bin/env bash
# Checks a GPU: devices, agreement of every model with PyTorch (f32, bf16, f16), two ranks on one GPU against
# one, NCCL, images per second of the recipes here and in PyTorch, memory. Prints one table, writes JSON to
# results/. Needs only a driver: from the file of tools/gpu-lab/gpu-pack.sh
#
#   tar xf gpu-check.tar.xz && gpu-check/tools/gpu-lab/gpu-check.sh
#
# or in the repository, where it builds `bench` with FEATURES (default: none, so the CPU). Writes into
# results/ and runs/ of the current folder, or into --json FILE and FILE.logs beside it. If it is ended early,
# for example by `timeout`, its results so far remain.
#
#   --device cuda|wgpu|cpu   default: the first of these that the program is built for
#   --quick                  few steps of small models, to try the script
#   --profile RECIPE         instead of the check, the time of RECIPE per kernel
#   --train CONFIG           trains a configuration in runs/; another call continues it
#   other arguments          go to `bench gpu`, such as --parts speed,torch --recipes olivia; with
#                            --profile to `bench training-trained`, such as --set train.kernels=burn;
#                            with --train to the trainer, such as --set train.max_minutes=9
#   PYTHON                   a Python with PyTorch, as --python; python3 unless set
#   KERNELS                  folder that keeps kernels compiled by NVRTC and by the driver for the next process;
#                            a temporary folder unless set
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

# Runs our program. A signal to this script, for example by `timeout`, ends the program too, which then writes its results.
ours() {
  local child status=0
  env "${cuda_variables[@]}" "$bench" "$@" &
  child=$!
  trap 'kill -TERM "$child" 2>/dev/null || true' TERM INT HUP
  # A handled signal ends the first wait.
  wait "$child" || status=$?
  while kill -0 "$child" 2>/dev/null; do status=0; wait "$child" || status=$?; done
  trap - TERM INT HUP
  return "$status"
}

# A built-in device that does not work is an error further below, not a reason to choose another.
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
# Keeps the translations of the driver for the next process.
export CUDA_CACHE_PATH=${CUDA_CACHE_PATH:-$KERNELS/driver} CUDA_CACHE_MAXSIZE=${CUDA_CACHE_MAXSIZE:-4294967296}
if [[ $device == cuda ]]; then
  # shellcheck source=tools/gpu-lab/gpu-libraries.sh
  . "$here/tools/gpu-lab/gpu-libraries.sh"
  mkdir "$scratch/lib"
  cuda_environment "$here" "$scratch/lib"
fi
# PyTorch has its own libraries, of other versions than our program finds.
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
  # cubecl then times every kernel and waits for it: the shares are right, the sum is not.
  printf '[profiling.logger]\nlevel = "medium"\nfile = "%s"\n' "$out.log" >"$scratch/cubecl.toml"
  bench=$(realpath "$bench")
  (cd "$scratch" && ours training-trained \
    --model "$profile" --ranks 1 --batch "${BATCH:-256}" --steps $profiled_steps --images 2048 \
    --set "train.device=$device" --set "train.precision=$precision" \
    --out "$out-seconds.json" "${rest[@]}")
  say "kernels in $out.log; by their names, per step:"
  # The first launch of a kernel compiles it and tries tile sizes, which takes longer than all else. So only the second
  # half of the steps counts, from one launch of the optimizer to another; without our optimizer, the second half of the
  # lines. Kernels are compiled for shapes, which are the end of a name.
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
# Keeps arguments that the caller gave.
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
