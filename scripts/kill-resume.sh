#!/usr/bin/env bash
# Kills a training at random steps, again and again, and compares it with an undisturbed run: the
# parameters must be the same bit by bit, and so must the losses.
#
#   scripts/kill-resume.sh [--times N] [--nproc N] [--virtual N] [--seed N] [section.key=value ...]
#
# Each time, all processes of the run get SIGKILL at once, at a random step. Then the run is started
# again with `--resume auto`. The model has dropout, the images are augmented, the learning
# rate follows a schedule, and a checkpoint is written every 7 steps. With --virtual, a step has that
# many virtual ranks; every start has another strategy and 1 to that many ranks, at most 8, and the
# undisturbed run has one rank. TRAINER names the program; it is built if not given.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' scripts/kill-resume.sh; }
fail() { printf 'kill-resume.sh: %s\n' "$*" >&2; exit "${code:-1}"; }

strategy=() times=20 nproc=2 virtual=0 seed=$$ settings=()
while [[ $# -gt 0 ]]; do
  case $1 in
    -h | --help) usage; exit ;;
    --times | --nproc | --virtual | --seed)
      [[ ${2:-} =~ ^[0-9]{1,9}$ ]] || code=2 fail "$1 wants a number, not '${2:-}'"
      # Without leading zeros, which would make it octal.
      printf -v "${1#--}" %s "$((10#$2))"
      shift 2
      ;;
    -*) usage >&2; exit 2 ;;
    *=*) settings+=("$1") && shift ;;
    *) usage >&2; exit 2 ;;
  esac
done
[[ $times -gt 0 && $nproc -gt 0 ]] || code=2 fail '--times and --nproc want at least 1'
RANDOM=$seed
((virtual == 0)) || settings+=("parallel.virtual_ranks=$virtual") nproc=1

if [[ -z ${TRAINER:-} ]]; then
  cargo build --release --quiet
  TRAINER=$(cargo metadata --format-version 1 --no-deps | sed -n 's/.*"target_directory":"\([^"]*\)".*/\1/p')/release/trainer
fi
[[ -f $TRAINER && -x $TRAINER ]] || code=2 fail "$TRAINER is no program: build it, or name another with TRAINER="
folder=$(mktemp -d)
# Brackets, so that the search does not find itself.
mark="[/]${folder#/}/"
processes() { grep -lzs "$mark" /proc/[0-9]*/cmdline | sed -n 's|^/proc/\([0-9]*\)/.*|\1|p' || true; }
kill_all() {
  local pids
  mapfile -t pids < <(processes)
  [[ ${#pids[@]} -eq 0 ]] || kill -KILL "${pids[@]}" 2>/dev/null || true
}
trap 'kill_all; rm -rf "$folder"' EXIT

steps=200 # 4 epochs of 50
start() {
  local run_dir=$1 set args=()
  shift
  for set in 'model.filters=[8, 16]' model.hidden=32 data.train_samples=2400 data.test_samples=200 \
    data.augment=shift:2+mixup:0.8:0.5+erase:0.3 data.workers=1 train.batch_size=48 train.epochs=4 \
    schedule.name=cosine schedule.warmup_epochs=0.5 checkpoint.every_steps=7 \
    ${settings[@]+"${settings[@]}"}; do
    args+=(--set "$set")
  done
  exec "$TRAINER" --nproc "$nproc" --run-dir "$run_dir" "${args[@]}" ${strategy[@]+"${strategy[@]}"} "$@"
}
lines() { if [[ -f $1/metrics.jsonl ]]; then grep -c '"kind":"train"' "$1/metrics.jsonl" || true; else echo 0; fi; }
# The values that must not depend on the number of starts: step, epoch, loss and rate of every line.
numbers() {
  sed -n 's/.*"kind":"train",\("step":[^}]*"lr":[^,]*\),.*/\1/p; s/.*"kind":"eval",\(.*"samples":[0-9]*\),.*/\1/p' "$1/metrics.jsonl"
}
# The ranks and the strategy of the next start.
choose() {
  ((virtual > 0)) || return 0
  local strategies=(ddp zero-1 zero-2 zero-3)
  nproc=$((1 + RANDOM % (virtual < 8 ? virtual : 8)))
  strategy=(--set "parallel.strategy=${strategies[RANDOM % 4]}")
}
checksum() { sed -n 's/^parameters .*checksum \([0-9a-f]*\)$/\1/p' "$1"; }

(start "$folder/whole") >"$folder/whole.txt" 2>&1 || { cat "$folder/whole.txt" >&2; exit 1; }

killed=0
while [[ $killed -lt $times ]]; do
  choose
  (start "$folder/killed" --resume auto) >"$folder/killed.txt" 2>&1 &
  child=$!
  before=$(lines "$folder/killed")
  # Some runs are killed before they have done a step, most after some more.
  wanted=$((before - 7 + RANDOM % (2 * steps / times + 14)))
  [[ $wanted -lt $((steps - 3)) ]] || wanted=$((steps - 3))
  while kill -0 "$child" 2>/dev/null && [[ $(lines "$folder/killed") -lt $wanted ]]; do sleep 0.005; done
  if ! kill -0 "$child" 2>/dev/null; then
    wait "$child" || { cat "$folder/killed.txt" >&2; exit 1; }
    break
  fi
  kill_all
  wait "$child" 2>/dev/null || true
  while [[ -n $(processes) ]]; do sleep 0.01; done
  killed=$((killed + 1))
  printf 'killed %d ranks for the %d. of %d times, after %d steps\n' "$nproc" "$killed" "$times" "$(lines "$folder/killed")"
done

choose
(start "$folder/killed" --resume auto) >"$folder/killed.txt" 2>&1 || { cat "$folder/killed.txt" >&2; exit 1; }

# A run may end while this looks away, but it shows nothing if it was hardly killed.
if ((2 * killed < times)); then
  echo "FAILED (--seed $seed): the run ended when it had been killed $killed of $times times" >&2
  exit 1
fi
whole=$(checksum "$folder/whole.txt") after=$(checksum "$folder/killed.txt")
if [[ -z $whole || $whole != "$after" ]]; then
  echo "FAILED (--seed $seed): the parameters are $after, they should be $whole" >&2
  exit 1
fi
if ! diff <(numbers "$folder/whole") <(numbers "$folder/killed") >&2; then
  echo "FAILED (--seed $seed): the numbers of the steps differ" >&2
  exit 1
fi
[[ $(numbers "$folder/whole" | wc -l) -ge $steps ]] || { echo "FAILED: too few numbers" >&2; exit 1; }
ranks=$nproc
((virtual == 0)) || ranks="1 to $virtual"
echo "$ranks ranks killed $killed times: parameters $whole and all losses are those of the run that was left alone"
