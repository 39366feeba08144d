#!/usr/bin/env bash
# Runs the most important parts of tools/gpu-lab/gpu-check.sh, one after another, on a GPU machine that is lent for
# minutes. After each part it packs all results again, so that nothing is lost when the machine is gone. From the file
# of tools/gpu-lab/gpu-pack.sh:
#
#   tar xf gpu-check.tar.xz && gpu-check/tools/gpu-lab/gpu-lease.sh OUT SECONDS [PART...]
#
#   OUT       folder for found.tar.gz: JSON, logs, profiles, metrics of the training, description of the machine
#   SECONDS   all parts end before this limit; prints the parts that do not begin because of it
#   PART      in their order; default: first bf16 olivia wide profile mma train
#               first     devices, NCCL, memory over 300 steps
#               olivia    images/s of the Olivia WideResNet in bf16, here and in PyTorch, eager and compiled
#               bf16      every model against the golden files in bf16; exact: in f32 and f16
#               mma       the Olivia WideResNet again, without wgmma
#               profile   time of the Olivia WideResNet per kernel; profile-RECIPE: of another recipe
#               counters  work of an SM in its convolutions, by Nsight Compute: counters-convolve.details.csv,
#                         and .source.csv.gz, instruction by instruction; the same for multiply_parts
#               wide      images/s of WRN-28-10 as of olivia; vits: of ViT-Tiny and ViT-B/16; resnet: of ResNet-50
#               start     seconds to the first step of the Olivia WideResNet in bf16: with the packed kernels, with all
#                         kernels kept, with an empty cache
#               train     WRN-28-10 on the CIFAR-100 in DATA, as many epochs as fit, after wide; train-CONFIG: another
#                         configuration, such as train-olivia.toml, for MINUTES (default 1)
#               torch-train    the Olivia recipe on the CIFAR-100 in DATA for MINUTES in PyTorch
#               ranks     two ranks on one GPU against one
#               memory    device memory over 2,000 steps
#
#   FOUND     folder for the parts, which later calls continue; default burn-dist-found in TMPDIR
#   KERNELS   folder for compiled kernels; default FOUND/kernels
#   DATA      folder of CIFAR-100; without it, train does not run
#   DEVICE    as --device; default cuda. ALSO: more arguments of gpu-check.sh, such as --quick
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
say() { printf '%s\n' "gpu-lease.sh: $*" >&2; }
case ${1:-} in
  -h | --help) sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[0]}"; exit ;;
esac
[[ $# -ge 2 && $2 =~ ^[0-9]+$ ]] || { say "wants OUT SECONDS [PART...]; see --help"; exit 2; }
mkdir -p "$1"
out=$(realpath "$1")
seconds=$((10#$2))
shift 2
parts=("$@")
[[ $# -gt 0 ]] || parts=(first bf16 olivia wide profile mma train)
found=$(realpath -m "${FOUND:-${TMPDIR:-/tmp}/burn-dist-found}")
KERNELS=$(realpath -m "${KERNELS:-$found/kernels}")
DATA=${DATA:+$(realpath -m "$DATA")}
export KERNELS TORCHINDUCTOR_CACHE_DIR=$KERNELS/inductor
mkdir -p "$found"
cd "$found"
read -ra also <<<"${ALSO:-}"
check=("$here/gpu-check.sh" --device "${DEVICE:-cuda}" "${also[@]}")
minutes=${MINUTES:-1}

left() { echo $((seconds - SECONDS)); }

# Packs all but the kernels and the checkpoints, so that the file is small. Writes the whole file or none.
pack() {
  local status=0
  # The fastest tiles, which a later gpu-pack.sh takes as TILES.
  mkdir -p tiles
  [[ ! -d $KERNELS ]] || find "$KERNELS" -path '*/start-*' -prune -o -name '*.note' -size +32c -exec cp -pt tiles {} + ||
    say "could not copy the tiles"
  # 1: a file has changed meanwhile, because an ended process may still write.
  tar --exclude=./kernels --exclude='./runs/*/checkpoints' --exclude='*found.tar.gz' \
    -czf "$out/.found.tar.gz" . || status=$?
  if ((status > 1)) || ! mv "$out/.found.tar.gz" "$out/found.tar.gz"; then
    say "could not pack what is known"
  fi
}

# part NAME LIMIT ARGUMENT...: gpu-check.sh for at most LIMIT seconds, with its output in NAME.txt.
part() { limited "$1" "$2" "${check[@]}" "${@:3}"; }

# The same for any program.
limited() { # NAME LIMIT PROGRAM ARGUMENT...
  local name=$1 limit=$2 status=0 begin=$SECONDS
  shift 2
  if (($(left) < 20)); then
    say "$name: not begun, $(left) s are left"
    return
  fi
  # Leaves time to write the results and to pack them.
  ((limit <= $(left) - 10)) || limit=$(($(left) - 10))
  timeout --kill-after=5 "$limit" "$@" >"$name.txt" 2>&1 </dev/null || status=$?
  say "$name: exit code $status after $((SECONDS - begin)) s"
  tail -n 30 "$name.txt"
  pack
}

# The recipes that a part also times in PyTorch.
timed() {
  case $1 in
    olivia) echo olivia ;;
    wide) echo wrn-28-10 ;;
    vits) printf '%s\n' vit-tiny vit-b-16 ;;
    resnet) echo resnet-50 ;;
  esac
}

# speed NAME LIMIT LIMIT_OF_EACH: images/s of a part's recipes, here, in PyTorch, and in PyTorch compiled.
speed() {
  part "$1" "$2" --parts speed,torch --torch-compile --recipes "$(timed "$1" | paste -sd,)" --precisions bf16 \
    --limit "$3" --json "$1.json"
}

# torch.compile keeps its results: while a part runs that times nothing, it compiles the models of later parts, two at a
# time.
compiling=''
compile_torch() { # PART...
  local name recipes=()
  for name in "$@"; do
    if times_nothing "$name"; then break; fi
    mapfile -t -O "${#recipes[@]}" recipes < <(timed "$name")
  done
  [[ ${#recipes[@]} -gt 0 ]] || return 0
  printf '%s\n' "${recipes[@]}" | timeout --kill-after=5 240 xargs -P 2 -I{} "${PYTHON:-python3}" \
    "$here/../../bench/torch/train.py" --device "${DEVICE:-cuda}" --recipe {} --precision bf16 --batch "${BATCH:-256}" \
    --steps 1 --warm-up 1 --tf32 --compile >>compile.txt 2>&1 &
  compiling=$!
}

# Waits for it at most LIMIT seconds, then ends it, so that nothing runs beside a timed part.
compiled() { # LIMIT
  local begin=$SECONDS
  [[ -n $compiling ]] || return 0
  while kill -0 "$compiling" 2>/dev/null; do
    if ((SECONDS - begin >= $1 || $(left) < 20)); then kill -TERM "$compiling" 2>/dev/null || true; break; fi
    sleep 0.2
  done
  wait "$compiling" || say "torch.compile has not made all ahead, see compile.txt"
  compiling=''
  say "waited $((SECONDS - begin)) s for torch.compile"
}

times_nothing() { [[ $1 == first || $1 == bf16 || $1 == exact || $1 == ranks || $1 == memory ]]; }

# Epochs of CIFAR-100 that fit into SECONDS at the rate that `wide` measured.
epochs_in() {
  local rate
  rate=$(sed -n 's/.*"images_per_second": *\([0-9]*\).*/\1/p' wide.json 2>/dev/null | sed -n 1p)
  [[ -z $rate ]] || echo $(($1 * rate / $(images)))
}

# Training images in DATA, which may be a part of CIFAR-100.
images() {
  local bytes
  bytes=$(stat -c %s "$DATA/cifar-100-binary/train.bin" 2>/dev/null) || bytes=$((50000 * 3074))
  echo $((bytes / 3074))
}

train() {
  local limit=$(($(left) - 20)) epochs milestones
  [[ -n ${DATA:-} ]] || { say "train: DATA names no folder of CIFAR-100"; return; }
  # A fifth of the time is for loading, evaluations and checkpoints.
  epochs=${EPOCHS:-$(epochs_in $((limit * 4 / 5)))}
  [[ ${epochs:-0} -ge 5 ]] || { say "train: no time for 5 epochs, or wide has not been measured"; return; }
  # As in the recipe with its 200 epochs.
  milestones=[$((epochs * 3 / 10)),$((epochs * 6 / 10)),$((epochs * 8 / 10))]
  say "train: $epochs epochs, milestones $milestones"
  part train "$((limit + 10))" --train wrn-28-10.toml --set "data.dir=$DATA" --set train.precision=bf16 \
    --set "train.epochs=$epochs" --set "schedule.milestones=$milestones" \
    --set "train.max_minutes=$((limit / 60)).$((limit % 60 * 10 / 60))"
}

torch_train() {
  [[ -n ${DATA:-} ]] || { say "torch-train: DATA names no folder of CIFAR-100"; return; }
  limited torch-train $((60 * minutes + 20)) "${PYTHON:-python3}" "$here/../../bench/torch/cifar.py" --data "$DATA" \
    --device "${DEVICE:-cuda}" --seconds $((60 * minutes))
}

# Seconds to the first step: with the packed kernels, with all kernels that this run left, and with none.
start() {
  local measure=(--parts start --recipes olivia --precisions bf16) at=$KERNELS
  rm -rf "$at"/start-{packed,empty}
  KERNELS=$at/start-packed part start-packed 70 "${measure[@]}" --limit 60 --json start-packed.json
  KERNELS=$at/start-packed part start-again 70 "${measure[@]}" --limit 60 --json start-again.json
  KERNELS=$at/start-empty BURN_DIST_KERNELS=$at/start-empty/nvrtc part start-empty 150 "${measure[@]}" --limit 140 \
    --json start-empty.json
}

# Hardware counters of the third launch of each kernel with this name.
counters() {
  local out=$found/counters-$1 bench=${BENCH:-$here/../../bench-gpu}
  command -v ncu >/dev/null || { say "counters: there is no ncu"; return; }
  {
    echo '#!/usr/bin/env bash'
    printf '[[ $1 == training-trained ]] || exec %q "$@"\n' "$bench"
    printf 'exec timeout -s INT 60 ncu --target-processes all --clock-control none --kernel-id %q' "::regex:$1:3"
    printf ' --launch-count 24'
    printf ' --section %s' LaunchStats Occupancy SpeedOfLight SchedulerStats WarpStateStats MemoryWorkloadAnalysis SourceCounters
    printf ' -f -o %q %q "$@"\n' "$out" "$bench"
  } >"$out.sh"
  chmod +x "$out.sh"
  BENCH=$out.sh part "counters-$1" 80 --profile olivia
  [[ -e $out.ncu-rep ]] || return 0
  # An unreadable report does not end the later parts.
  { ncu -i "$out.ncu-rep" --page details --csv >"$out.details.csv" &&
    ncu -i "$out.ncu-rep" --page source --csv | gzip >"$out.source.csv.gz"; } || say "counters: ncu cannot read $out.ncu-rep"
  rm "$out.ncu-rep"
  pack
}

machine() {
  date -u +%Y-%m-%dT%H:%M:%SZ
  uname -a
  nvidia-smi || true
  df -h . || true
  free -g || true
  if [[ -x $here/../../bench-gpu ]]; then ldd "$here/../../bench-gpu" || true; fi
}

# cubecl's tuner writes the times of the tried tiles here; tools/gpu-lab/tiles-tried.py reads them.
printf '[autotune.decisions]\nfile = "%s"\n' "$found/decisions.log" >cubecl.toml
# Reads PyTorch from a cold disk while our program begins.
timeout --kill-after=5 60 "${PYTHON:-python3}" -c '
import torch
print(torch.__version__, torch.backends.cudnn.version(), torch.ones(1, device="cuda"))' >torch.txt 2>&1 </dev/null &
machine >machine.txt 2>&1 </dev/null
pack
for number in "${!parts[@]}"; do
  name=${parts[number]}
  if times_nothing "$name"; then compile_torch "${parts[@]:number + 1}"; fi
  case $name in
    first) part first 90 --parts devices,nccl,memory --memory-steps 300 --limit 45 --json first.json ;;
    olivia) speed olivia 200 90 ;;
    bf16) part bf16 150 --parts parity --precisions bf16 --limit 140 --json bf16.json ;;
    exact) part exact 300 --parts parity --precisions f32,f16 --limit 145 --json exact.json ;;
    mma) BURN_DIST_WGMMA=off part mma 60 --parts speed --recipes olivia --precisions bf16 --limit 50 --json mma.json ;;
    profile) part profile 45 --profile olivia ;;
    counters) for kernel in convolve multiply_parts; do counters "$kernel"; done ;;
    profile-*) part "$name" 45 --profile "${name#profile-}" ;;
    wide) speed wide 150 60 ;;
    vits) speed vits 240 75 ;;
    resnet) speed resnet 150 75 ;;
    start) start ;;
    ranks) part ranks 120 --parts ranks --limit 30 --json ranks.json ;;
    memory) part memory 300 --parts memory --memory-steps 2000 --limit 290 --json memory.json ;;
    train) train ;;
    train-*) part "$name" $((60 * minutes + 20)) --train "${name#train-}" ${DATA:+--set "data.dir=$DATA"} \
      --set train.precision=bf16 --set "train.max_minutes=$minutes" ;;
    torch-train) torch_train ;;
    *) say "$name is no part; see --help" ;;
  esac
  compiled 60
done
pack
