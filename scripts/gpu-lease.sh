#!/usr/bin/env bash
# What is worth most of scripts/gpu-check.sh, part after part, on a machine with a GPU that is lent for minutes. After each
# part all that is known is packed anew, so that nothing is lost when the machine is gone. From the file of
# scripts/gpu-pack.sh:
#
#   tar xf gpu-check.tar.xz && gpu-check/scripts/gpu-lease.sh OUT SECONDS [PART...]
#
#   OUT       folder for found.tar.gz: JSON, logs, profiles, numbers of the training, what the machine is
#   SECONDS   all parts end before; what does not begin because of that is said
#   PART      in their order; default: first bf16 olivia wide profile mma train
#               first     devices, NCCL, memory over 300 steps
#               olivia    images/s of the Olivia WideResNet in bf16, here and in PyTorch
#               bf16      every model against the golden files in bf16; exact: in f32 and f16
#               mma       the Olivia WideResNet again, without wgmma
#               profile   where the time of the Olivia WideResNet goes; profile-RECIPE: that of another
#               counters  what a processor does in its convolutions, by Nsight Compute: counters-convolve.details.csv,
#                         and .source.csv.gz, instruction by instruction; the same for multiply_parts
#               wide      images/s of WRN-28-10 as of olivia; vits: of ViT-Tiny and ViT-B/16
#               train     WRN-28-10 on the CIFAR-100 in DATA, as many epochs as fit, after wide
#               ranks     two ranks on one GPU against one
#               memory    device memory over 2,000 steps
#
#   FOUND     where the parts write, and later calls go on; default burn-dist-found in TMPDIR
#   KERNELS   where compiled kernels are kept; default FOUND/kernels
#   DATA      folder of CIFAR-100; without it there is no train
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
export KERNELS
mkdir -p "$found"
cd "$found"
read -ra also <<<"${ALSO:-}"
check=("$here/gpu-check.sh" --device "${DEVICE:-cuda}" "${also[@]}")

left() { echo $((seconds - SECONDS)); }

# All but the kernels and the checkpoints, small enough to be brought back. Whole or not at all.
pack() {
  local status=0
  # 1: a file has changed meanwhile, as who was ended may still write.
  tar --exclude=./kernels --exclude='./runs/*/checkpoints' --exclude='*found.tar.gz' \
    -czf "$out/.found.tar.gz" . || status=$?
  if ((status > 1)) || ! mv "$out/.found.tar.gz" "$out/found.tar.gz"; then
    say "could not pack what is known"
  fi
}

# part NAME LIMIT ARGUMENT...: gpu-check.sh for at most LIMIT seconds, said in NAME.txt.
part() {
  local name=$1 limit=$2 status=0 begin=$SECONDS
  shift 2
  if (($(left) < 20)); then
    say "$name: not begun, $(left) s are left"
    return
  fi
  # Time to write what is known, and to pack it.
  ((limit <= $(left) - 10)) || limit=$(($(left) - 10))
  timeout --kill-after=5 "$limit" "${check[@]}" "$@" >"$name.txt" 2>&1 </dev/null || status=$?
  say "$name: exit code $status after $((SECONDS - begin)) s"
  tail -n 30 "$name.txt"
  pack
}

# Epochs of CIFAR-100 that fit into SECONDS at the rate that `wide` has found.
epochs_in() {
  local rate
  rate=$(sed -n 's/.*"images_per_second": *\([0-9]*\).*/\1/p' wide.json 2>/dev/null | sed -n 1p)
  [[ -z $rate ]] || echo $(($1 * rate / 50000))
}

train() {
  local limit=$(($(left) - 20)) epochs milestones
  [[ -n ${DATA:-} ]] || { say "train: DATA names no folder of CIFAR-100"; return; }
  # Of the time a fifth is left to loading, evaluations and checkpoints.
  epochs=${EPOCHS:-$(epochs_in $((limit * 4 / 5)))}
  [[ ${epochs:-0} -ge 5 ]] || { say "train: no time for 5 epochs, or wide has not been measured"; return; }
  # Those of the recipe, of its 200 epochs.
  milestones=[$((epochs * 3 / 10)),$((epochs * 6 / 10)),$((epochs * 8 / 10))]
  say "train: $epochs epochs, milestones $milestones"
  part train "$((limit + 10))" --train wrn-28-10.toml --set "data.dir=$DATA" --set train.precision=bf16 \
    --set "train.epochs=$epochs" --set "schedule.milestones=$milestones" \
    --set "train.max_minutes=$((limit / 60)).$((limit % 60 * 10 / 60))"
}

# What hardware counters say of the third launch of each kernel of this name.
counters() {
  local out=$found/counters-$1 bench=${BENCH:-$here/../bench-gpu}
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
  # What cannot be read does not end the parts behind it.
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
  if [[ -x $here/../bench-gpu ]]; then ldd "$here/../bench-gpu" || true; fi
}

# Of the tiles that were tried for a product, cubecl's tuner writes here what each took; scripts/tiles-tried.py reads it.
printf '[autotune.decisions]\nfile = "%s"\n' "$found/decisions.log" >cubecl.toml
# PyTorch is read from a cold disk while ours begins.
timeout --kill-after=5 60 "${PYTHON:-python3}" -c '
import torch
print(torch.__version__, torch.backends.cudnn.version(), torch.ones(1, device="cuda"))' >torch.txt 2>&1 </dev/null &
machine >machine.txt 2>&1 </dev/null
pack
for name in "${parts[@]}"; do
  case $name in
    first) part first 90 --parts devices,nccl,memory --memory-steps 300 --limit 45 --json first.json ;;
    olivia) part olivia 130 --parts speed,torch --recipes olivia --precisions bf16 --limit 90 --json olivia.json ;;
    bf16) part bf16 150 --parts parity --precisions bf16 --limit 140 --json bf16.json ;;
    exact) part exact 300 --parts parity --precisions f32,f16 --limit 145 --json exact.json ;;
    mma) BURN_DIST_WGMMA=off part mma 60 --parts speed --recipes olivia --precisions bf16 --limit 50 --json mma.json ;;
    profile) part profile 45 --profile olivia ;;
    counters) for kernel in convolve multiply_parts; do counters "$kernel"; done ;;
    profile-*) part "$name" 45 --profile "${name#profile-}" ;;
    wide) part wide 100 --parts speed,torch --recipes wrn-28-10 --precisions bf16 --limit 60 --json wide.json ;;
    vits) part vits 160 --parts speed,torch --recipes vit-tiny,vit-b-16 --precisions bf16 --limit 75 --json vits.json ;;
    ranks) part ranks 120 --parts ranks --limit 30 --json ranks.json ;;
    memory) part memory 300 --parts memory --memory-steps 2000 --limit 290 --json memory.json ;;
    train) train ;;
    *) say "$name is no part; see --help" ;;
  esac
done
pack
