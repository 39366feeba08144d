#!/usr/bin/env bash
# Trains under a real Slurm: every way to start the ranks, every way to end them, and every failure.
# Starts a cluster of four nodes on this machine (scripts/slurm-cluster.sh) and stops it at the end.
#
#   slurm-test.sh FOLDER   tests the programs in FOLDER: trainer-plain, and, if they exist,
#                          trainer-openmpi and trainer-mpich (scripts/mpi.sh build makes them)
#
#   BURN_DIST_DATA   folder with mnist/; without it generated digits are trained instead
#   ONLY             runs only the tests whose names match this pattern
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() { sed -n '2,/^set /{/^set /d; s/^# \{0,1\}//; p}' scripts/slurm-test.sh; }
case ${1:-} in
  -h | --help) usage; exit ;;
  '' | -*) usage >&2; exit 2 ;;
esac
folder=$(realpath "$1")
[[ -f $folder/trainer-plain && -x $folder/trainer-plain ]] ||
  { printf 'slurm-test.sh: %s holds no program trainer-plain\n' "$folder" >&2; exit 2; }
cluster=scripts/slurm-cluster.sh
work=$(mktemp -d)
# A separate key for the secrets of the runs.
export XDG_CONFIG_HOME=$work/config
# Root starts MPI programs here.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# More ranks than CPUs: a waiting rank must not hold one.
export OMPI_MCA_mpi_yield_when_idle=1
passed=0 failed=0 skipped=0 started=

finish() {
  [[ -z $started ]] || "$cluster" stop || true
  pkill -KILL -f -- "--run-dir $work/" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

in_cluster() { "$cluster" exec "$@"; }

# --- what is trained --------------------------------------------------------------------------------

common=(--set log.report=false --set log.tensorboard=false --set data.workers=1)
if [[ -n ${BURN_DIST_DATA:-} && -d $BURN_DIST_DATA/mnist ]]; then
  config=(--config mnist-cnn.toml --set "data.dir=$BURN_DIST_DATA/mnist" "${common[@]}")
else
  echo 'SKIPPED: real MNIST: BURN_DIST_DATA names no folder with mnist/; digits are trained instead'
  config=(--config digits.toml "${common[@]}")
fi
short=("${config[@]}" --set train.limit_batches=6 --set train.epochs=1)
# Long enough to be stopped in its middle.
long=(--config digits.toml "${common[@]}" --set data.test_samples=96 --set train.batch_size=48
  --set train.limit_batches=150 --set train.epochs=2)

# --- tools ------------------------------------------------------------------------------------------

# Runs a command with a run folder of that name; its output goes to NAME.log, its exit code to NAME.rc.
# Open MPI itself fails to connect its ranks once in a while, where the system is slow ("connect() ... failed:
# Operation now in progress"): what it starts gets a second try.
run() {
  local name=$1 code=0
  shift
  attempt "$name" "$@" || code=$?
  if [[ $code -ne 0 && -z $(losses "$name") ]] && openmpi_is_to_blame "$name"; then
    echo "Open MPI did not connect its ranks: once more"
    rm -rf "${work:?}/$name"
    code=0
    attempt "$name" "$@" || code=$?
  fi
  echo "$code" >"$work/$name.rc"
}
attempt() {
  local name=$1
  shift
  timeout -k 5 120 "$cluster" exec "$@" --run-dir "$work/$name" >"$work/$name.log" 2>&1 </dev/null
}
openmpi_is_to_blame() { grep -aq 'Your Open MPI job may now hang or fail' "$work/$1.log"; }

code() { cat "$work/$1.rc"; }
losses() { sed -n '/"kind":"train"/s/.*"loss":\([^,]*\).*/\1/p' "$work/$1/metrics.jsonl" 2>/dev/null; }
checksum() { sed -n 's/.*checksum \([0-9a-f]*\)$/\1/p' "$work/$1.log" | tail -n 1; }
says() { grep -aqE -- "$2" "$work/$1.log" || { echo "not in the output: $2"; return 1; }; }
is() { [[ $1 == "$2" ]] || { echo "expected: $2"; echo "found:    $1"; return 1; }; }

# Ranks that have written N lines of metrics are in the middle of training.
wait_for_steps() {
  local name=$1 steps=$2 limit=$((SECONDS + 120))
  until [[ $(losses "$name" | wc -l) -ge $steps ]]; do
    [[ ! -e $work/$name.rc ]] || { echo "over before step $steps"; return 1; }
    ((SECONDS < limit)) || { echo "no $steps steps within 120 s"; return 1; }
    sleep 0.05
  done
}

pid_of_rank() {
  local pid
  for pid in $(pgrep -f -- "--run-dir $work/$1"); do
    if [[ $(readlink "/proc/$pid/exe") == "$folder"/* ]] &&
      tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx "SLURM_PROCID=$2"; then
      echo "$pid"
      return
    fi
  done
  return 1
}

# Nothing of a run may live on.
no_orphans() {
  local limit=$((SECONDS + 20))
  while pgrep -f -- "--run-dir $work/$1" >/dev/null; do
    ((SECONDS < limit)) || { echo "left behind:"; pgrep -af -- "--run-dir $work/$1"; return 1; }
    sleep 0.1
  done
}

job_state() { in_cluster scontrol -o show job "$1" | sed -n 's/.*JobState=\([A-Z_]*\).*/\1/p'; }
wait_for_job() {
  local job=$1 wanted=$2 limit=$((SECONDS + ${3:-60}))
  until [[ $(job_state "$job") == "$wanted" ]]; do
    ((SECONDS < limit)) || { echo "job $job is $(job_state "$job"), not $wanted"; return 1; }
    sleep 0.1
  done
}

submit() {
  local name=$1 script=$2
  shift 2
  local options=()
  while [[ $1 != -- ]]; do options+=("$1"); shift; done
  shift
  TRAINER=$folder/trainer-plain RUN_DIR=$work/$name in_cluster sbatch --parsable --nodes=2 \
    --ntasks-per-node=2 --gpus-per-node=2 --cpus-per-task=1 --output="$work/$name.log" \
    "${options[@]}" "configs/slurm/$script.sbatch" "$@"
}

# Runs a test: a function of that name, whose output is shown if it fails.
check() {
  local name=$1 start=$SECONDS
  [[ $name == ${ONLY:-*} ]] || return 0
  local code
  # The first command that fails ends the subshell; in the condition of an `if` it would not.
  set +e
  (set -e; "$name") >"$work/output" 2>&1
  code=$?
  set -e
  if [[ $code -eq 0 ]]; then
    echo "ok      $name ($((SECONDS - start)) s)"
    passed=$((passed + 1))
  else
    echo "FAILED  $name ($((SECONDS - start)) s)"
    sed 's/^/    /' "$work/output"
    for log in "$work"/*.log; do
      [[ $log -nt $work/begin ]] || continue
      echo "    --- $(basename "$log")"
      tail -n 15 "$log" | cut -c1-300 | sed 's/^/    /'
    done
    failed=$((failed + 1))
  fi
  touch "$work/begin"
}

# With a build that may be missing.
check_with() {
  local library=$1
  shift
  local name
  for name in "$@"; do
    if [[ -x $folder/trainer-$library ]]; then
      check "$name"
    elif [[ $name == ${ONLY:-*} ]]; then
      echo "SKIPPED: $name: $folder holds no trainer-$library"
      skipped=$((skipped + 1))
    fi
  done
}

# --- the same training, however the ranks are started ------------------------------------------------

four_nodes() {
  run plain srun --kill-on-bad-exit=1 -N4 -n4 "$folder/trainer-plain" "${short[@]}"
  is "$(code plain)" 0
  says plain '4 ranks on 4 nodes, launcher Slurm step [0-9]+\.0, transport TCP'
  is "$(losses plain | wc -l)" 6
}

# Like `four_nodes`, to the last bit.
same_as_plain() {
  is "$(code "$1")" 0
  is "$(losses "$1")" "$(losses plain)"
  is "$(checksum "$1")" "$(checksum plain)"
  no_orphans "$1"
}

three_and_one() {
  run uneven srun --kill-on-bad-exit=1 -N2 -n4 "$folder/trainer-plain" "${short[@]}"
  says uneven '4 ranks on 2 nodes, launcher Slurm step'
  same_as_plain uneven
}

two_and_two() {
  run even srun --kill-on-bad-exit=1 -N2 -n4 --ntasks-per-node=2 "$folder/trainer-plain" "${short[@]}"
  says even '4 ranks on 2 nodes, launcher Slurm step .* transport shared memory and TCP'
  same_as_plain even
}

# The same bytes from any ranks, and nothing else on standard output.
predicts_alike() {
  run model srun -n1 "$folder/trainer-plain" "${short[@]}" --set checkpoint.every_epochs=1
  local number
  mkdir "$work/images"
  for number in {100..249}; do
    { printf 'P5 28 28 255\n'; head -c 784 /dev/urandom; } >"$work/images/$number.pgm"
  done
  predict() { timeout -k 5 60 "$cluster" exec "$@" predict "$work/model" "$work/images" --jsonl -; }
  predict srun -n1 "$folder/trainer-plain" >"$work/one.jsonl"
  is "$(wc -l <"$work/one.jsonl")" 150
  predict srun --kill-on-bad-exit=1 -N2 -n4 --ntasks-per-node=2 "$folder/trainer-plain" >"$work/four.jsonl"
  cmp "$work/one.jsonl" "$work/four.jsonl"
}

# Rank 0 is not on the first node of the list.
placed_by_hand() {
  printf '%s\n' node3 node1 node1 node2 >"$work/hosts"
  run placed env SLURM_HOSTFILE="$work/hosts" srun --kill-on-bad-exit=1 -n4 --distribution=arbitrary \
    "$folder/trainer-plain" "${short[@]}"
  says placed '4 ranks on 3 nodes, launcher Slurm step'
  same_as_plain placed
}

# Sums are taken in another order.
node_first() {
  run node_first srun --kill-on-bad-exit=1 -N2 -n4 --ntasks-per-node=2 "$folder/trainer-plain" "${short[@]}" \
    --set parallel.algorithm=node-first
  says node_first '4 ranks on 2 nodes, launcher Slurm step .* transport shared memory and TCP'
  close_to_plain node_first
  no_orphans node_first
}

# Gradients are added inside the nodes first.
nodes_that_hold_copies() {
  run hybrid srun --kill-on-bad-exit=1 -N2 -n4 --ntasks-per-node=2 "$folder/trainer-plain" "${short[@]}" \
    --set parallel.strategy=zero-3 --set parallel.shard_within=node
  says hybrid '4 ranks on 2 nodes, launcher Slurm step .* transport shared memory and TCP'
  says hybrid 'zero-3 shards over 2 ranks \(shared memory\), 2 replicas \(TCP\)'
  close_to_plain hybrid
  no_orphans hybrid
  run lopsided srun --kill-on-bad-exit=1 -N2 -n4 "$folder/trainer-plain" "${short[@]}" \
    --set parallel.strategy=zero-3 --set parallel.shard_within=node
  [[ $(code lopsided) != 0 ]]
  says lopsided 'the nodes have 3, 1. Start the same number on each'
}

plain_build_with_pmix() {
  run plain_pmix srun --mpi=pmix -N2 -n4 "$folder/trainer-plain" "${short[@]}"
  says plain_pmix 'launcher Slurm step'
  same_as_plain plain_pmix
}

openmpi_by_pmix() {
  run pmix srun --kill-on-bad-exit=1 --mpi=pmix -N4 -n4 "$folder/trainer-openmpi" "${short[@]}"
  says pmix '4 ranks on 4 nodes, launcher MPI \(Open MPI .*, transport MPI'
  same_as_plain pmix
  run pmix31 srun --kill-on-bad-exit=1 --mpi=pmix -N2 -n4 "$folder/trainer-openmpi" "${short[@]}"
  says pmix31 '4 ranks on 2 nodes'
  same_as_plain pmix31
  run pmix22 srun --kill-on-bad-exit=1 --mpi=pmix -N2 -n4 --ntasks-per-node=2 "$folder/trainer-openmpi" "${short[@]}"
  says pmix22 '4 ranks on 2 nodes, launcher MPI .*, transport shared memory and MPI'
  same_as_plain pmix22
}

openmpi_build_without_mpi() {
  run without srun --mpi=none -N4 -n4 "$folder/trainer-openmpi" "${short[@]}"
  says without 'launcher Slurm step'
  same_as_plain without
}

openmpi_by_mpirun_in_a_job() {
  run mpirun_in salloc -Q -N2 -n4 mpirun -n 4 "$folder/trainer-openmpi" "${short[@]}"
  says mpirun_in '4 ranks on 2 nodes, launcher MPI \(Open MPI'
  same_as_plain mpirun_in
}

openmpi_by_mpirun_outside() {
  run mpirun_out mpirun --oversubscribe -n 4 "$folder/trainer-openmpi" "${short[@]}" \
    --set parallel.transport=mpi
  says mpirun_out '4 ranks on 1 node, launcher MPI'
  same_as_plain mpirun_out
}

# MPI's own reductions add in another order.
close_to_plain() {
  is "$(code "$1")" 0
  paste <(losses "$1") <(losses plain) | awk '
    { difference = $1 - $2; if (difference < 0) difference = -difference }
    difference > 1e-5 * $2 { print "loss", $1, "instead of", $2; wrong = 1 }
    END { if (NR != 6) { print NR, "losses"; wrong = 1 } exit wrong }'
}

copies_over_openmpi() {
  run hybrid_mpi srun --kill-on-bad-exit=1 --mpi=pmix -N2 -n4 --ntasks-per-node=2 \
    "$folder/trainer-openmpi" "${short[@]}" --set parallel.strategy=zero-3 --set parallel.shard_within=node
  says hybrid_mpi '4 ranks on 2 nodes, launcher MPI .*, transport shared memory and MPI'
  says hybrid_mpi '\(shared memory\), 2 replicas \(MPI\)'
  close_to_plain hybrid_mpi
  is "$(losses hybrid_mpi)" "$(losses hybrid)"
  no_orphans hybrid_mpi
}

collectives_of_openmpi() {
  run own srun --mpi=pmix -N2 -n4 "$folder/trainer-openmpi" "${short[@]}" --set parallel.algorithm=mpi
  close_to_plain own
}

mpich_by_pmi2() {
  run pmi2 srun --kill-on-bad-exit=1 --mpi=pmi2 -N4 -n4 "$folder/trainer-mpich" "${short[@]}"
  says pmi2 '4 ranks on 4 nodes, launcher MPI \(MPICH .*, transport MPI'
  same_as_plain pmi2
  run pmi2_31 srun --kill-on-bad-exit=1 --mpi=pmi2 -N2 -n4 "$folder/trainer-mpich" "${short[@]}"
  same_as_plain pmi2_31
  run pmi2_22 srun --kill-on-bad-exit=1 --mpi=pmi2 -N2 -n4 --ntasks-per-node=2 "$folder/trainer-mpich" "${short[@]}"
  says pmi2_22 '4 ranks on 2 nodes, launcher MPI .*, transport shared memory and MPI'
  same_as_plain pmi2_22
}

mpich_by_mpirun_in_a_job() {
  run hydra salloc -Q -N2 -n4 mpirun.mpich -n 4 "$folder/trainer-mpich" "${short[@]}"
  says hydra '4 ranks on 2 nodes, launcher MPI \(MPICH'
  same_as_plain hydra
}

mpich_by_mpirun_outside() {
  run hydra_out mpirun.mpich -n 4 "$folder/trainer-mpich" "${short[@]}" --set parallel.transport=mpi
  same_as_plain hydra_out
}

collectives_of_mpich() {
  run own_mpich srun --mpi=pmi2 -N2 -n4 "$folder/trainer-mpich" "${short[@]}" --set parallel.algorithm=mpi
  close_to_plain own_mpich
}

# --- what is wrong is named ------------------------------------------------------------------------------

wrong_pmi_for_mpich() {
  run wrong_mpich srun --mpi=pmix -N2 -n4 "$folder/trainer-mpich" "${short[@]}"
  is "$(code wrong_mpich)" 2
  says wrong_mpich 'MPICH .* sees 1: .*--mpi=pmi2'
}

wrong_pmi_for_openmpi() {
  run wrong_openmpi srun --mpi=pmi2 -N2 -n4 "$folder/trainer-openmpi" "${short[@]}"
  [[ $(code wrong_openmpi) != 0 ]]
  says wrong_openmpi '--mpi=pmix'
  [[ ! -e $work/wrong_openmpi ]]
}

mpirun_of_a_build_without_mpi() {
  run no_mpi mpirun --oversubscribe -n 2 "$folder/trainer-plain" "${short[@]}"
  is "$(code no_mpi)" 2
  says no_mpi 'built without *MPI.*--features mpi'
}

missing_library() {
  sed 's/libmpi\.so\.40/libmpx.so.40/g' "$folder/trainer-openmpi" >"$work/trainer-unlinked"
  chmod +x "$work/trainer-unlinked"
  run unlinked srun --mpi=pmix -n2 "$work/trainer-unlinked" "${short[@]}"
  is "$(code unlinked)" 127
  says unlinked 'error while loading shared libraries: libmpx.so.40'
}

wrong_nodelist() {
  run list srun -N2 -n2 env 'SLURM_STEP_NODELIST=node[1-' "$folder/trainer-plain" "${short[@]}"
  is "$(code list)" 2
  says list 'SLURM_STEP_NODELIST is not a Slurm host list'
  run nowhere srun --kill-on-bad-exit=1 -N2 -n2 env SLURM_STEP_NODELIST=nowhere "$folder/trainer-plain" "${short[@]}"
  [[ $(code nowhere) != 0 ]]
  says nowhere "cannot resolve nowhere"
}

# Each task of `srun` runs the script with its number.
task_script() {
  printf '#!/bin/bash\n%s\n' "$1" >"$work/task.sh"
  chmod +x "$work/task.sh"
}

other_program_on_a_node() {
  cp "$folder/trainer-plain" "$work/trainer-other"
  echo >>"$work/trainer-other"
  # shellcheck disable=SC2016
  task_script 'if [ "$SLURM_PROCID" = 2 ]; then shift; exec "$0.other" "$@"; fi; exec "$@"'
  cp "$work/trainer-other" "$work/task.sh.other"
  run other srun --kill-on-bad-exit=1 -N3 -n3 "$work/task.sh" "$folder/trainer-plain" "${short[@]}"
  is "$(code other)" 1
  says other 'rank 2 runs another executable than rank 0'
}

other_configuration_on_a_rank() {
  # shellcheck disable=SC2016
  task_script 'if [ "$SLURM_PROCID" = 1 ]; then exec "$@" --set optimizer.lr=0.5; fi; exec "$@"'
  run config srun --kill-on-bad-exit=1 -N2 -n2 "$work/task.sh" "$folder/trainer-plain" "${short[@]}"
  is "$(code config)" 1
  says config 'rank 1 has another configuration than rank 0: optimizer.lr is 0.5 there'
}

batch_script_without_srun() {
  run forgotten salloc -Q -N2 -n4 "$folder/trainer-plain" "${short[@]}"
  is "$(code forgotten)" 0
  says forgotten 'warning: Slurm job [0-9]+ has 4 tasks, .* Put srun before'
}

# The shell that `salloc` opens is a step of its own on the first node.
shell_of_an_allocation() {
  {
    printf '%q ' "$folder/trainer-plain" "${short[@]}" --run-dir "$work/shell"
    printf '\nexit $?\n'
  } >"$work/typed"
  # salloc hands $SHELL to srun, which wants a command: it may be unset where no one has logged in.
  SHELL=/bin/bash timeout -k 5 60 "$cluster" exec script -qec 'salloc -Q -N2 -n4' /dev/null <"$work/typed" >"$work/shell.log" 2>&1
  # In a terminal, the word in front has a color.
  says shell 'Slurm job [0-9]+ has 4 tasks, .* Put srun before'
}

nproc_in_a_task() {
  run nproc srun -n2 "$folder/trainer-plain" "${short[@]}" --nproc 2
  is "$(code nproc)" 2
  says nproc 'Omit --nproc, or unset SLURM_STEP_ID$'
  # Somewhere else, with what a task has left behind.
  run leftovers env SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NTASKS=4 PMI_RANK=0 PMI_SIZE=4 \
    "$folder/trainer-plain" "${short[@]}" --nproc 2
  is "$(code leftovers)" 0
  says leftovers '2 ranks on 1 node, launcher built-in'
}

one_component() {
  run component salloc -Q -N1 -n2 : -N1 -n1 srun --kill-on-bad-exit=1 --het-group=0 \
    "$folder/trainer-plain" "${short[@]}"
  is "$(code component)" 0
  says component '2 ranks on 1 node, launcher Slurm step'
  run second salloc -Q -N1 -n1 : -N2 -n4 srun --kill-on-bad-exit=1 --het-group=1 "$folder/trainer-plain" "${short[@]}"
  says second '4 ranks on 2 nodes, launcher Slurm step'
  same_as_plain second
}

# Slurm 22.05 numbers the tasks component after component, and sorts the nodes by name.
several_components() {
  run joint salloc -Q -N1 -n3 : -N1 -n1 srun --kill-on-bad-exit=1 --het-group=0,1 "$folder/trainer-plain" "${short[@]}"
  says joint '4 ranks on 2 nodes, launcher Slurm step'
  same_as_plain joint
  run reversed salloc -Q -w node3 -N1 -n3 : -w node1 -N1 -n1 srun --kill-on-bad-exit=1 --het-group=0,1 \
    "$folder/trainer-plain" "${short[@]}"
  says reversed '4 ranks on 2 nodes, launcher Slurm step'
  same_as_plain reversed
  run some salloc -Q -w node2 -n1 : -w node4 -n3 : -w node3 -n1 srun --kill-on-bad-exit=1 --het-group=1,2 \
    "$folder/trainer-plain" "${short[@]}"
  says some '4 ranks on 2 nodes, launcher Slurm step'
  same_as_plain some
  run colon srun --kill-on-bad-exit=1 -N1 -n3 "$folder/trainer-plain" "${short[@]}" --run-dir "$work/colon" : \
    -N1 -n1 "$folder/trainer-plain" "${short[@]}"
  same_as_plain colon
}

devices_of_a_task() {
  # All devices for every task, then one for each.
  run all srun -N2 --ntasks-per-node=2 --gpus-per-node=2 env RUST_LOG=burn_dist=debug \
    "$folder/trainer-plain" "${short[@]}"
  says all 'rank 3 of 4.*device 1 of CUDA_VISIBLE_DEVICES=0,1'
  run each srun -N2 --ntasks-per-node=2 --gpus-per-task=1 env RUST_LOG=burn_dist=debug \
    "$folder/trainer-plain" "${short[@]}"
  says each 'rank 3 of 4.*device 0 of CUDA_VISIBLE_DEVICES=[01]'
}

# --- stopped and continued --------------------------------------------------------------------------------

uninterrupted() {
  submit whole several-nodes -- "${long[@]}" >"$work/job"
  wait_for_job "$(cat "$work/job")" COMPLETED 90
  says whole 'checksum'
}

continued_like_uninterrupted() {
  says "$1" 'continues from'
  is "$(checksum "$1")" "$(checksum whole)"
  is "$(losses "$1")" "$(losses whole)"
}

requeued_by_hand() {
  local job
  job=$(submit requeue several-nodes -- "${long[@]}")
  wait_for_steps requeue 20
  in_cluster scontrol requeue "$job"
  wait_for_job "$job" COMPLETED 90
  says requeue 'stopped after step .* because of SIGTERM'
  says requeue 'restart 1'
  continued_like_uninterrupted requeue
}

cancelled_and_submitted_again() {
  local job
  job=$(submit cancel one-node --nodes=1 --ntasks-per-node=4 -- "${long[@]}")
  wait_for_steps cancel 20
  in_cluster scancel "$job"
  wait_for_job "$job" CANCELLED
  no_orphans cancel
  says cancel 'step .* saved in'
  job=$(submit cancel one-node --nodes=1 --ntasks-per-node=4 -- "${long[@]}")
  wait_for_job "$job" COMPLETED 90
  says cancel 'continues from'
  is "$(losses cancel | wc -l)" "$(losses whole | wc -l)"
}

preempted_by_a_higher_partition() {
  local job
  job=$(submit preempt preemptible --nodes=4 --exclusive -- "${long[@]}")
  wait_for_steps preempt 20
  in_cluster srun -Q -p urgent -N4 --exclusive sleep 1
  wait_for_job "$job" COMPLETED 90
  says preempt 'stopped after step .* because of SIGTERM'
  says preempt 'restart 1'
  says preempt 'continues from'
  is "$(losses preempt | wc -l)" 300
}

warned_before_the_time_limit() {
  local job
  # Slurm's limits are whole minutes; the signal comes 55 seconds before the end. No CPU finishes
  # that many epochs earlier.
  job=$(submit limit several-nodes --time=1 --signal=USR1@55 -- "${long[@]}" --set train.epochs=100)
  wait_for_steps limit 5
  wait_for_job "$job" PENDING 40
  says limit 'stopped after step .* because of SIGUSR1'
  # What it does next comes after what it had done.
  local steps
  steps=$(losses limit | wc -l)
  wait_for_steps limit $((steps + 5))
  says limit 'continues from'
  says limit 'restart 1'
  in_cluster scancel "$job"
  wait_for_job "$job" CANCELLED
  no_orphans limit
}

# The elements run one after the other; the second is stopped when the first has ended.
element_of_an_array() {
  local array limit=$((SECONDS + 90))
  array=$(TRAINER=$folder/trainer-plain in_cluster sbatch --parsable --chdir="$work" --array=0-1%1 --nodes=1 \
    --ntasks-per-node=2 --gpus-per-node=0 --cpus-per-task=1 --job-name=array --output="$work/array-%a.log" \
    "$PWD/configs/slurm/one-node.sbatch" "${long[@]}" --set train.epochs=1)
  # The last element has the number of the array.
  wait_for_steps "runs/array-$array" 20
  in_cluster scancel --signal=USR1 "${array}_1"
  until [[ -z $(in_cluster squeue -h -j "$array" -o %A 2>/dev/null) ]]; do
    ((SECONDS < limit)) || { echo 'the array does not end'; return 1; }
    sleep 0.5
  done
  says array-1 'restart [0-9]'
  says array-1 'checksum'
  is "$(grep -c checksum "$work/array-0.log")" 1
  if says array-0 'restart [0-9]'; then echo 'an element that had ended was put back'; return 1; fi
}

# As `--signal=B:USR1@…` does it.
script_that_is_told() {
  local job
  job=$(submit told several-nodes -- "${long[@]}")
  wait_for_steps told 20
  in_cluster scancel --signal=USR1 --batch "$job"
  wait_for_job "$job" COMPLETED 90
  says told 'stopped after step .* because of SIGUSR1'
  says told 'restart 1'
  continued_like_uninterrupted told
}

# Two wrappers as docs/multi-node.md has them, and the one that loses the checkpoint.
wrappers() {
  local name step
  for name in becomes waits loses; do
    case $name in
      # shellcheck disable=SC2016
      becomes) task_script 'exec "$@"' ;;
      # shellcheck disable=SC2016
      waits) task_script 'trap : USR1 TERM
        "$@" &
        while wait $!; kill -0 $! 2>/dev/null; do :; done
        wait $!' ;;
      # shellcheck disable=SC2016
      loses) task_script '"$@"; exit $?' ;;
    esac
    start_run "$name" -N1 -n2 --job-name="$name" "$work/task.sh" "$folder/trainer-plain"
    step=$(in_cluster squeue -h --steps --name="$name" -o %i | head -n 1)
    [[ -n $step ]] || step=$(in_cluster squeue -h --name="$name" -o %A).0
    in_cluster scancel --signal=USR1 "$step"
    wait
    case $name in
      loses) [[ $(code loses) != 75 ]] ;;
      *)
        is "$(code "$name")" 75
        says "$name" 'step .* saved in'
        ;;
    esac
    no_orphans "$name"
  done
}

# The ranks are nobody's then.
killed_daemon_of_the_tasks() {
  local tasks name rank limit
  for tasks in 1 2; do
    name=daemon$tasks
    start_run "$name" -N1 -n "$tasks" "$folder/trainer-plain"
    rank=$(pid_of_rank "$name" 0)
    kill -KILL "$(awk '{ print $4 }' "/proc/$rank/stat")"
    limit=$((SECONDS + 20))
    while pid_of_rank "$name" 0 || pid_of_rank "$name" 1; do
      ((SECONDS < limit)) || { echo 'ranks live on after 20 s'; return 1; }
      sleep 0.1
    done
    grep -q 'which started this rank, is gone' "$work/$name/logs/rank-$((tasks - 1)).log"
    grep -q 'stopped after step .* because of a dead launcher' "$work/$name/logs/rank-0.log"
    in_cluster scancel --name=trainer-plain || true
    wait
  done
}

# --- ranks, nodes and links that fail ------------------------------------------------------------------------

# Starts a long run in the background and waits until it trains.
start_run() {
  local name=$1
  shift
  run "$name" srun "$@" "${long[@]}" --set parallel.timeout_seconds=20 &
  wait_for_steps "$name" 10
}

# Three ranks on the first node, and as many on both.
killed_rank() {
  local name begin
  for name in kill kill22; do
    case $name in
      kill) start_run "$name" -N2 -n4 "$folder/trainer-plain" ;;
      kill22) start_run "$name" -N2 -n4 --ntasks-per-node=2 "$folder/trainer-plain" ;;
    esac
    kill -KILL "$(pid_of_rank "$name" 2)"
    begin=$SECONDS
    wait
    ((SECONDS - begin <= 5)) || { echo "took $((SECONDS - begin)) s"; return 1; }
    [[ $(code "$name") != 0 ]]
    says "$name" 'error: .*rank 2'
    no_orphans "$name"
  done
}

# Under MPI the library's own end of the job may come first, with its own words.
killed_rank_under() {
  local name=kill_$1
  start_run "$name" "--mpi=$2" -N2 -n4 "$folder/trainer-$1"
  kill -KILL "$(pid_of_rank "$name" 2)"
  local begin=$SECONDS
  wait
  ((SECONDS - begin <= 10)) || { echo "took $((SECONDS - begin)) s"; return 1; }
  [[ $(code "$name") != 0 ]]
  no_orphans "$name"
}

killed_rank_of_openmpi() { killed_rank_under openmpi pmix; }
killed_rank_of_mpich() { killed_rank_under mpich pmi2; }

link_cut_for_eight_seconds() {
  start_run blink -N4 -n4 "$folder/trainer-plain"
  "$cluster" cut node3
  sleep 8
  "$cluster" mend node3
  wait
  is "$(code blink)" 0
  is "$(losses blink)" "$(losses whole)"
}

link_cut_for_good() {
  start_run gone -N4 -n4 "$folder/trainer-plain"
  "$cluster" cut node3
  local begin=$SECONDS
  # The ranks on the other nodes, and then the one that is cut off.
  local rank
  for rank in 0 1 3 2; do
    while pid_of_rank gone "$rank" >/dev/null; do
      ((SECONDS - begin <= 60)) || { echo "rank $rank lives on after 60 s"; "$cluster" mend node3; return 1; }
      sleep 0.2
    done
  done
  echo "all ranks ended after $((SECONDS - begin)) s"
  "$cluster" mend node3
  wait
  [[ $(code gone) != 0 ]]
  says gone 'error.*rank 2'
  no_orphans gone
}

killed_node_under() {
  local name=node_$1 begin rank
  start_run "$name" "--mpi=$2" -N4 -n4 "$folder/trainer-$1"
  "$cluster" kill-node node2
  begin=$SECONDS
  for rank in 0 2 3; do
    while pid_of_rank "$name" "$rank" >/dev/null; do
      ((SECONDS - begin <= 40)) || { echo "rank $rank lives on after 40 s"; return 1; }
      sleep 0.2
    done
  done
  echo "all ranks ended after $((SECONDS - begin)) s"
  says "$name" 'error.*rank 1'
  pkill -TERM -f -- "--run-dir $work/$name" || true
  wait
  no_orphans "$name"
  "$cluster" start-node node2
  node_is_back() { [[ $(in_cluster sinfo -h -n node2 -t idle -o %D) == 1 ]]; }
  local limit=$((SECONDS + 60))
  until node_is_back; do ((SECONDS < limit)) || { echo 'node2 does not come back'; return 1; }; sleep 0.5; done
}

killed_node() { killed_node_under plain none; }
killed_node_of_openmpi() { killed_node_under openmpi pmix; }

# One of four nodes is set down: the agents of the others go on in the same job, and nothing differs from one rank.
node_set_down() {
  local job set options=()
  for set in parallel.virtual_ranks=4 train.max_steps=1200 train.epochs=1000 'model.filters=[8, 16]' model.hidden=32 \
    data.train_samples=2400 train.batch_size=48 checkpoint.every_steps=20; do options+=(--set "$set"); done
  "$folder/trainer-plain" --config digits.toml --run-dir "$work/one-rank" "${options[@]}" >"$work/one-rank.log" 2>&1
  job=$(TRAINER=$folder/trainer-plain RUN_DIR=$work/set-down MIN_NODES=2 RANKS_PER_NODE=1 in_cluster sbatch --parsable \
    --nodes=4 --gpus-per-node=0 --cpus-per-task=1 --output="$work/set-down.log" configs/slurm/elastic.sbatch \
    --config digits.toml "${options[@]}")
  wait_for_steps set-down 100
  in_cluster scontrol update nodename=node3 state=down reason=test
  # The task of the node has failed, so the job does not count as completed.
  wait_for_job "$job" FAILED 120
  # Slurm may have taken it back already.
  in_cluster scontrol update nodename=node3 state=resume || true
  says set-down 'generation 2: 3 ranks on 3 nodes, because node node3 is gone'
  is "$(checksum set-down)" "$(checksum one-rank)"
  is "$(losses set-down)" "$(losses one-rank)"
  no_orphans set-down
}

# --- the commands of the documentation ----------------------------------------------------------------------

# The `sh,slurm` blocks of README.md and docs/, as a user types them. Every job gets two nodes with two tasks each, whatever
# the page asks for, and small-trainer.sh makes its training short.
documented_commands() {
  local bin=$work/bin program page place
  mkdir "$bin"
  ln -s "$PWD/scripts/small-trainer.sh" "$bin/trainer"
  for program in srun sbatch salloc; do
    {
      printf '#!/bin/bash\noptions=()\n'
      # shellcheck disable=SC2016
      printf 'while [[ ${1:-} == -* ]]; do options+=("$1"); shift; done\n'
      printf 'exec %s "${options[@]}" --nodes=2 --ntasks=4 --ntasks-per-node=2 --gpus-per-node=2 ' "$(command -v "$program")"
      # shellcheck disable=SC2016
      printf '%s"$@"\n' "$([[ $program != sbatch ]] || echo '--cpus-per-task=1 --wait ')"
    } >"$bin/$program"
    chmod +x "$bin/$program"
  done
  for page in $(scripts/docs.py --blocks sh,slurm); do
    place=$work/documented/$page
    mkdir -p "$place/target/release"
    ln -s "$PWD/configs" "$PWD/scripts" "$place"
    ln -s "$bin/trainer" "$place/target/release/trainer"
    scripts/docs.py --blocks sh,slurm "$page" >"$place/commands"
    echo "--- $page"
    (cd "$place" && timeout -k 5 180 "$OLDPWD/$cluster" exec env -u CARGO_TARGET_DIR PATH="$bin:$PATH" \
      REAL_TRAINER="$folder/trainer-plain" SMALL_DATA=generated bash -eu commands) 2>&1 </dev/null |
      tee "$place/said"
    cat "$place"/*.log 2>/dev/null >>"$place/said" || true
    grep -q '4 ranks on 2 nodes, launcher Slurm step' "$place/said" || { echo "no training on two nodes"; return 1; }
  done
}

# --- all of them --------------------------------------------------------------------------------------------

"$cluster" start 4
started=yes
touch "$work/begin"
check four_nodes
check three_and_one
check two_and_two
check predicts_alike
check placed_by_hand
check node_first
check nodes_that_hold_copies
check plain_build_with_pmix
check_with openmpi openmpi_by_pmix openmpi_build_without_mpi openmpi_by_mpirun_in_a_job \
  openmpi_by_mpirun_outside collectives_of_openmpi copies_over_openmpi
check_with mpich mpich_by_pmi2 mpich_by_mpirun_in_a_job mpich_by_mpirun_outside collectives_of_mpich
check_with mpich wrong_pmi_for_mpich
check_with openmpi wrong_pmi_for_openmpi missing_library mpirun_of_a_build_without_mpi
check wrong_nodelist
check other_program_on_a_node
check other_configuration_on_a_rank
check batch_script_without_srun
check shell_of_an_allocation
check nproc_in_a_task
check one_component
check several_components
check devices_of_a_task
check uninterrupted
check requeued_by_hand
check cancelled_and_submitted_again
check preempted_by_a_higher_partition
check warned_before_the_time_limit
check script_that_is_told
check element_of_an_array
check wrappers
check documented_commands
check killed_rank
check_with openmpi killed_rank_of_openmpi
check_with mpich killed_rank_of_mpich
check link_cut_for_eight_seconds
check link_cut_for_good
check killed_node
check node_set_down
check_with openmpi killed_node_of_openmpi
# Slurm may take the node out of service.
check killed_daemon_of_the_tasks

echo "slurm-test.sh: $passed passed, $failed failed, $skipped skipped"
[[ $failed -eq 0 ]]
