#!/usr/bin/env bash
# Compares settings on a slow network: trains on two nodes with a link of a given rate between them, with several settings
# in turns. Each node is a network namespace, each rank has one thread. Needs root, ip and tc (iproute2), and the trainer's
# release build. Usage:
#
#   scripts/slow-link.sh RATE --config FILE [options of the trainer]
#
#   RATE     as tc(8) reads it, such as 1gbit
#   COMPARE  the settings, key=value, several of one turn joined by commas; unless set, gradients in full and in half the
#            bytes ("parallel.compression=none parallel.compression=bf16")
#   RANKS    ranks on each node, 1 unless set
#   ROUNDS   how often each setting is run, 3 unless set
#   TRAINER  the program; target/release/trainer, or that below CARGO_TARGET_DIR, unless set
set -euo pipefail

if [[ $# -lt 2 || $1 == -* ]]; then
  sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' "${BASH_SOURCE[0]}" >&2
  [[ ${1:-} == -h || ${1:-} == --help ]] || exit 2
  exit
fi
rate=$1
shift
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
trainer=${TRAINER:-${CARGO_TARGET_DIR:-$root/target}/release/trainer}
spaces=("burn-dist-$$-0" "burn-dist-$$-1")
folder=$(mktemp -d)

clean() {
  local space
  for space in "${spaces[@]}"; do
    ip netns pids "$space" 2>/dev/null | xargs -r kill -KILL 2>/dev/null || true
    ip netns del "$space" 2>/dev/null || true
  done
  rm -rf "$folder"
}
trap clean EXIT
trap 'exit 130' INT TERM

for space in "${spaces[@]}"; do ip netns add "$space"; done
ip -n "${spaces[0]}" link add link0 type veth peer name link0 netns "${spaces[1]}"
for rank in 0 1; do
  space=${spaces[rank]}
  ip -n "$space" addr add "10.9.0.$((rank + 1))/24" dev link0
  ip -n "$space" link set lo up
  ip -n "$space" link set link0 up
  tc -n "$space" qdisc add dev link0 root tbf rate "$rate" burst 256kb latency 50ms
done

secret=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \n')
each=${RANKS:-1}
# Namespaces count as separate hosts: they share nothing.
train() {
  local settings=$1 rank node pids=() options=() failed=0
  shift
  for setting in ${settings//,/ }; do options+=(--set "$setting"); done
  for ((rank = 0; rank < 2 * each; rank++)); do
    node=$((rank / each))
    RANK=$rank GROUP_RANK=$node LOCAL_RANK=$((rank % each)) WORLD_SIZE=$((2 * each)) LOCAL_WORLD_SIZE=$each \
      MASTER_ADDR=10.9.0.1 MASTER_PORT=29500 BURN_DIST_SECRET=$secret RAYON_NUM_THREADS=1 \
      ip netns exec "${spaces[node]}" timeout -k 10 600 "$trainer" "$@" "${options[@]}" \
      --run-dir "$folder/$settings-$round" >"$folder/rank-$rank" 2>&1 &
    pids+=($!)
  done
  for rank in "${pids[@]}"; do wait "$rank" || failed=1; done
  if [[ $failed -ne 0 ]]; then
    cat "$folder"/rank-* >&2
    return 1
  fi
  printf '%s, %s, %s: %s\n' "$rate" "$settings" "$(grep -o 'transport [^;]*' "$folder/rank-0" | head -n 1)" \
    "$(grep -o 'throughput [0-9]* images/s' "$folder/rank-0")"
}

for ((round = 1; round <= ${ROUNDS:-3}; round++)); do
  for settings in ${COMPARE:-parallel.compression=none parallel.compression=bf16}; do train "$settings" "$@"; done
done
