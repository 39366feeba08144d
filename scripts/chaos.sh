#!/usr/bin/env bash
# Kills ranks and nodes of a training at random, and compares it with an undisturbed run on one rank: the parameters and
# all losses must be the same, bit by bit. Two nodes with two ranks each are network namespaces. An event kills one rank,
# or everything on a node, which comes back after 1 to 3 s. Both nodes are hit, also that of rank 0.
# Needs root, ip (iproute2), and the trainer's release build. Usage:
#
#   scripts/chaos.sh [--seeds FIRST:LAST] [--steps N] [--in-memory] [section.key=value ...]
#
#   --in-memory  keeps copies of the state in memory, none on disk, and waits for both nodes before each event: at most the
#             step in flight may be done again
#   --seeds   the runs, one for each seed; 1:1 unless given
#   --steps   steps of each run; 400 unless given, about 20 s with a few events
#   TRAINER   the program; target/release/trainer, or that below CARGO_TARGET_DIR, unless set
set -euo pipefail

usage() { sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[0]}"; }
fail() {
  tail -n 30 ${folder:+"$folder"/node-*.txt} >&2 2>/dev/null </dev/null || true
  printf 'chaos.sh: %s\n' "$*" >&2
  exit "${code:-1}"
}

first=1 last=1 steps=400 in_memory=false settings=()
while [[ $# -gt 0 ]]; do
  case $1 in
    -h | --help) usage; exit ;;
    --seeds)
      [[ ${2:-} =~ ^([0-9]{1,6}):([0-9]{1,6})$ ]] || code=2 fail "--seeds wants FIRST:LAST, not '${2:-}'"
      first=$((10#${BASH_REMATCH[1]})) last=$((10#${BASH_REMATCH[2]}))
      shift 2
      ;;
    --steps)
      [[ ${2:-} =~ ^[0-9]{1,6}$ ]] || code=2 fail "--steps wants a number, not '${2:-}'"
      steps=$((10#$2))
      shift 2
      ;;
    --in-memory) in_memory=true && shift ;;
    *=*) settings+=("$1") && shift ;;
    *) usage >&2; exit 2 ;;
  esac
done
[[ $first -le $last && $steps -ge 50 ]] || code=2 fail '--seeds wants FIRST at most LAST, --steps at least 50'
[[ $(id -u) -eq 0 ]] || code=2 fail 'network namespaces need root'
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
trainer=${TRAINER:-${CARGO_TARGET_DIR:-$root/target}/release/trainer}
[[ -f $trainer && -x $trainer ]] || code=2 fail "$trainer is no program: build it, or name another with TRAINER="

spaces=("burn-dist-$$-0" "burn-dist-$$-1")
folder=$(mktemp -d)
pids_of() { ip netns pids "${spaces[$1]}" 2>/dev/null || true; }
kill_node() { pids_of "$1" | xargs -r kill -KILL 2>/dev/null || true; }
clean() {
  local node
  for node in 0 1; do
    kill_node "$node"
    ip netns del "${spaces[node]}" 2>/dev/null || true
  done
  rm -rf "$folder"
}
trap clean EXIT
trap 'exit 130' INT TERM

for space in "${spaces[@]}"; do ip netns add "$space"; done
ip -n "${spaces[0]}" link add link0 type veth peer name link0 netns "${spaces[1]}"
for node in 0 1; do
  ip -n "${spaces[node]}" addr add "10.9.0.$((node + 1))/24" dev link0
  ip -n "${spaces[node]}" link set lo up
  ip -n "${spaces[node]}" link set link0 up
done

export RAYON_NUM_THREADS=1
BURN_DIST_SECRET=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
export BURN_DIST_SECRET
# A model with dropout; augmented images; four virtual ranks; a checkpoint after every few steps, or none on disk.
every_steps=5 most_again=400
! $in_memory || every_steps=0 most_again=1
# Most seconds of a run.
limit=$((900 + steps / 20))
options=()
for set in 'model.filters=[8, 16]' model.hidden=32 data.train_samples=2400 data.test_samples=200 \
  data.augment=shift:2+mixup:0.8:0.5+erase:0.3 data.workers=1 train.batch_size=48 "train.max_steps=$steps" \
  "train.epochs=$steps" train.evaluate_every_steps=100 schedule.name=constant \
  "checkpoint.every_steps=$every_steps" "checkpoint.every_epochs=$steps" checkpoint.best=false "checkpoint.in_memory=$in_memory" \
  parallel.virtual_ranks=4 ${settings[@]+"${settings[@]}"}; do
  options+=(--set "$set")
done

agents=(0 0)
start_agent() {
  ip netns exec "${spaces[$1]}" "$trainer" launch --nnodes 1:2 --nproc 2 --rendezvous 10.9.0.1:29500 \
    --join-wait 1 --join-after 1 --max-restarts 1000 -- --run-dir "$folder/chaos" --resume auto "${options[@]}" \
    >>"$folder/node-$1.txt" 2>&1 &
  agents[$1]=$!
}
running() { kill -0 "${agents[$1]}" 2>/dev/null; }
lines() { grep -c '"kind":"train"' "$folder/chaos/metrics.jsonl" 2>/dev/null || true; }
numbers() {
  sed -n 's/.*"kind":"train",\("step":[^}]*"lr":[^,]*\),.*/\1/p; s/.*"kind":"eval",\(.*"samples":[0-9]*\),.*/\1/p' "$1/metrics.jsonl"
}
checksum() { sed -n 's/^parameters .*checksum \([0-9a-f]*\)$/\1/p' "$1"; }
# The last line that tells a change of the world.
world() { grep '"kind":"world"' "$folder/chaos/metrics.jsonl" 2>/dev/null | tail -n 1 || true; }

"$trainer" --nproc 1 --run-dir "$folder/whole" "${options[@]}" >"$folder/whole.txt" 2>&1 || { cat "$folder/whole.txt" >&2; exit 1; }
expected=$(checksum "$folder/whole.txt")

# Waits until the run has done more steps than the $1 before an event, at most a minute. If another generation than $2 has
# begun, notes the longest wait and the most steps that were done again. Ranks that were not of the generation change nothing.
go_on() {
  local tries begin took now step
  begin=$(date +%s%N)
  for ((tries = 0; tries < 600; tries++)); do
    running 0 || running 1 || return 0
    took=$((($(date +%s%N) - begin) / 100000000))
    now=$(world)
    if [[ $(lines) -gt $1 && $now != "$2" ]]; then
      step=${now#*\"step\":} step=${step%%,*}
      ((took <= slowest)) || slowest=$took
      ((took <= 100)) || printf 'slow: seed %d, %s: %d.%d s, %s\n' "$seed" "$event" $((took / 10)) $((took % 10)) "$now" >&2
      (($1 - step + 1 <= again)) || again=$(($1 - step + 1))
      return 0
    fi
    [[ $took -lt 50 || $(lines) -le $(($1 + 50)) ]] || return 0
    sleep 0.1
  done
  fail "seed $seed: no step within 60 s after event $events ($event)"
}

# Waits until both nodes train, at most a minute: only then does each have a copy of what the other has.
both_train() {
  local tries now step
  for ((tries = 0; tries < 600; tries++)); do
    running 0 && running 1 || return 0
    now=$(world)
    step=${now#*\"step\":} step=${step%%,*}
    [[ $now != *'"nodes":2'* || $(lines) -lt ${step:-0} ]] || return 0
    sleep 0.1
  done
  fail "seed $seed: no training on two nodes within 60 s after event $events ($event)"
}

one_run() {
  local node ranks victim before generation tries begin=$SECONDS
  RANDOM=$seed
  events=0 ranks_killed=0 nodes_killed=0 slowest=0 again=0 event=start
  rm -rf "$folder/chaos" "$folder"/node-*.txt
  start_agent 0
  start_agent 1
  go_on 0 ''
  slowest=0 again=0
  while running 0 && running 1; do
    [[ $((SECONDS - begin)) -lt $limit ]] || fail "seed $seed: not done after $limit s"
    sleep "$((RANDOM % 2)).$((RANDOM % 10))"
    ! $in_memory || both_train
    [[ $(lines) -lt $((steps - 20)) ]] || break
    node=$((RANDOM % 2))
    generation=$(world)
    if ((RANDOM % 2)); then
      event="node $node killed"
      kill_node "$node"
      before=$(lines)
      wait "${agents[node]}" 2>/dev/null || true
      nodes_killed=$((nodes_killed + 1))
      sleep "$((1 + RANDOM % 2)).$((RANDOM % 10))"
      start_agent "$node"
    else
      # Processes of the node that are no agent.
      mapfile -t ranks < <(pids_of "$node" | grep -vx "${agents[node]}" || true)
      [[ ${#ranks[@]} -gt 0 ]] || continue
      victim=${ranks[RANDOM % ${#ranks[@]}]}
      event="a rank of node $node killed"
      kill -KILL "$victim" 2>/dev/null || continue
      before=$(lines)
      ranks_killed=$((ranks_killed + 1))
    fi
    events=$((events + 1))
    go_on "$before" "$generation"
  done
  for ((tries = 0; tries < 1200; tries++)); do running 0 && running 1 || break; sleep 0.1; done
  for node in 0 1; do
    for ((tries = 0; tries < 50; tries++)); do running "$node" || break; sleep 0.1; done
    # An agent that returned after the end finds no group and waits for one.
    if running "$node" && ! running $((1 - node)) && [[ $(pids_of "$node") == "${agents[node]}" ]]; then
      kill_node "$node"
      wait "${agents[node]}" 2>/dev/null || true
      continue
    fi
    ! running "$node" || fail "seed $seed: the agent of node $node did not end"
    wait "${agents[node]}" || fail "seed $seed: the agent of node $node ended with $?"
  done
  ((again <= most_again)) || fail "seed $seed: $again steps were done again after an event"
  local after
  # The run is complete; this reads its last checkpoint.
  "$trainer" --nproc 1 --run-dir "$folder/chaos" --resume auto "${options[@]}" >"$folder/after.txt" 2>&1 || fail "$(cat "$folder/after.txt")"
  after=$(checksum "$folder/after.txt")
  [[ -n $expected && $after == "$expected" ]] || fail "seed $seed: the parameters are $after, they should be $expected"
  diff <(numbers "$folder/whole") <(numbers "$folder/chaos") >&2 || fail "seed $seed: the numbers of the steps differ"
  [[ -z $(pids_of 0)$(pids_of 1) ]] || fail "seed $seed: processes are left"
  printf 'seed %d: %d ranks and %d nodes killed, %d s, %d.%d s to go on and %d steps again at most: %s\n' \
    "$seed" "$ranks_killed" "$nodes_killed" $((SECONDS - begin)) $((slowest / 10)) $((slowest % 10)) "$again" \
    "parameters $after and all losses as undisturbed"
}

for ((seed = first; seed <= last; seed++)); do one_run; done
