#!/usr/bin/env bash
# A real Slurm cluster on this machine, for tests: one controller and several nodes from Debian's
# packages, each in its own network, host name and mount namespaces. It is not reachable from outside,
# and changes nothing outside its folder and its namespaces. Needs root.
#
#   slurm-cluster.sh packages         names the Debian packages that it needs
#   slurm-cluster.sh install          installs them (apt-get)
#   slurm-cluster.sh start [nodes]    starts it with that many nodes, 4 unless said
#   slurm-cluster.sh exec COMMAND...  runs a command where srun, sbatch and scontrol reach the cluster
#   slurm-cluster.sh on NODE COMMAND  runs a command on a node, as if logged in there
#   slurm-cluster.sh kill-node NODE   kills every process of a node at once, as a power cut would;
#                                     `start-node NODE` starts it again
#   slurm-cluster.sh cut NODE         cuts a node's cable; `mend NODE` plugs it in again
#   slurm-cluster.sh status           says whether it runs
#   slurm-cluster.sh stop             ends it and removes everything
#
#   BURN_DIST_CLUSTER   its folder, which must not be there before; /run/burn-dist-cluster unless set
#
# Nodes are called node1, node2, ...; each has 8 CPUs (as configured, whatever the machine has),
# 2 GPUs that are only device files, and its own /dev/shm. The partition `main`
# can be preempted by `urgent`: its jobs get SIGTERM, 10 seconds, and a new place in the queue.
set -euo pipefail

state=${BURN_DIST_CLUSTER:-/run/burn-dist-cluster}
# This script puts it into the folders that it makes, and removes no others.
marker=$state/made-by-slurm-cluster.sh
prefix=bdist
network=10.213.77

packages=(slurm-wlm munge openmpi-bin libopenmpi-dev mpich libmpich-dev libclang-dev gcc iproute2)

fail() { printf 'slurm-cluster.sh: %s\n' "$*" >&2; exit 1; }

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

as_root() { [[ $(id -u) -eq 0 ]] || fail "needs root: it makes network namespaces"; }

# --- the parts --------------------------------------------------------------------------------------

nodes() { seq -f 'node%g' 1 "$(cat "$state/nodes")"; }
address() { if [[ $1 == ctl ]]; then echo "$network.254"; else echo "$network.${1#node}"; fi; }
in_network() { local host=$1; shift; nsenter --net="/run/netns/$prefix-$host" -- "$@"; }

write_configuration() {
  local count=$1 host
  {
    printf '127.0.0.1 localhost\n'
    for host in ctl $(nodes); do printf '%s %s\n' "$(address "$host")" "$host"; done
  } >"$state/hosts"
  cat >"$state/slurm.conf" <<EOF
ClusterName=burn-dist-test
SlurmctldHost=ctl($(address ctl))
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$state/munge/socket,cred_expire=5
CredType=cred/munge
StateSaveLocation=$state/ctld
SlurmdSpoolDir=$state/spool/%n
SlurmctldPidFile=$state/slurmctld.pid
SlurmdPidFile=$state/slurmd-%n.pid
SlurmctldLogFile=$state/log/slurmctld.log
SlurmdLogFile=$state/log/slurmd-%n.log
TmpFS=$state/tmp/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
KillWait=5
SlurmdTimeout=15
SlurmctldTimeout=15
InactiveLimit=0
SchedulerParameters=bf_interval=2,batch_sched_delay=1,sched_interval=2
JobRequeue=1
LaunchParameters=use_interactive_step
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=DEFAULT CPUs=8 Boards=1 SocketsPerBoard=1 CoresPerSocket=8 ThreadsPerCore=1 RealMemory=20000 Gres=gpu:2
EOF
  for host in $(nodes); do
    printf 'NodeName=%s NodeAddr=%s\n' "$host" "$(address "$host")" >>"$state/slurm.conf"
  done
  cat >>"$state/slurm.conf" <<EOF
PartitionName=main Nodes=ALL Default=YES State=UP PriorityTier=1 GraceTime=10 MaxTime=INFINITE
PartitionName=urgent Nodes=ALL State=UP PriorityTier=2 PreemptMode=OFF MaxTime=INFINITE
EOF
  printf 'Name=gpu File=%s/dev/nvidia[0-1]\n' "$state" >"$state/gres.conf"
  mknod -m 666 "$state/dev/nvidia0" c 1 3
  mknod -m 666 "$state/dev/nvidia1" c 1 3
}

# The bridge lives in the controller's namespace, so this machine's own network stays as it is.
make_network() {
  local host
  ip netns add "$prefix-ctl"
  in_network ctl ip link set lo up
  in_network ctl ip link add br0 type bridge
  in_network ctl ip address add "$(address ctl)/24" dev br0
  in_network ctl ip link set br0 up
  for host in $(nodes); do
    ip netns add "$prefix-$host"
    in_network ctl ip link add "to-$host" type veth peer name eth0 netns "$prefix-$host"
    in_network ctl ip link set "to-$host" master br0 up
    in_network "$host" ip link set lo up
    in_network "$host" ip address add "$(address "$host")/24" dev eth0
    in_network "$host" ip link set eth0 up
  done
}

# Runs a daemon as a separate host: its processes inherit the namespaces.
start_host() {
  local host=$1
  shift
  # shellcheck disable=SC2016
  nsenter --net="/run/netns/$prefix-$host" unshare --mount --uts --propagation private -- \
    bash -c 'hostname "$1" && mount -t tmpfs tmpfs /dev/shm && mount --bind "$2/hosts" /etc/hosts &&
             shift 2 && exec "$@"' - "$host" "$state" "$@" \
    </dev/null >>"$state/log/$host.out" 2>&1 9>&- &
  echo $! >"$state/host-$host.pid"
}

start_munge() {
  dd if=/dev/urandom of="$state/munge/key" bs=128 count=1 status=none
  chmod 400 "$state/munge/key"
  chmod 711 "$state/munge"
  munged --force --foreground --socket="$state/munge/socket" --key-file="$state/munge/key" \
    --log-file="$state/log/munged.log" --pid-file="$state/munge/pid" --seed-file="$state/munge/seed" \
    </dev/null >>"$state/log/munged.out" 2>&1 9>&- &
  echo $! >"$state/munge/daemon.pid"
}

alive() { [[ -f $1 ]] && kill -0 "$(cat "$1")" 2>/dev/null; }

inside() {
  local host=$1
  shift
  alive "$state/host-$host.pid" || fail "the cluster does not run: $0 start"
  SLURM_CONF=$state/slurm.conf nsenter --target "$(cat "$state/host-$host.pid")" --net --mount --uts \
    --wd="$PWD" -- "$@"
}

wait_for() {
  local what=$1 limit=$((SECONDS + 30))
  shift
  until "$@" >/dev/null 2>&1; do
    if ((SECONDS >= limit)); then
      tail -n 5 "$state"/log/* >&2
      fail "$what did not come up in 30 s"
    fi
    sleep 0.05
  done
}

all_idle() {
  local idle
  idle=$(inside ctl sinfo -h -p main -t idle -o %D)
  [[ $idle == "$(cat "$state/nodes")" ]]
}

# --- the commands -----------------------------------------------------------------------------------

start() {
  local count=${1:-4} host
  as_root
  [[ $count =~ ^[1-9][0-9]?$ ]] || fail "the number of nodes must be 1 to 99, not '$count'"
  for program in slurmctld slurmd munged srun ip nsenter unshare; do
    command -v "$program" >/dev/null || fail "$program is not installed: $0 install"
  done
  alive "$state/host-ctl.pid" && fail "the cluster runs already: $0 stop"
  stop
  mkdir -p "$(dirname "$state")"
  mkdir "$state"
  touch "$marker"
  chmod 755 "$state"
  mkdir -p "$state"/{log,ctld,spool,tmp,dev,munge}
  for ((number = 1; number <= count; number++)); do mkdir -p "$state"/{spool,tmp}/node$number; done
  echo "$count" >"$state/nodes"
  write_configuration "$count"
  make_network
  start_munge
  wait_for munged test -S "$state/munge/socket"
  start_host ctl slurmctld -D -i -f "$state/slurm.conf"
  wait_for slurmctld inside ctl scontrol ping
  for host in $(nodes); do start_host "$host" slurmd -D -N "$host" -f "$state/slurm.conf"; done
  wait_for 'not every node' all_idle
  printf 'slurm-cluster.sh: %s nodes are up\n' "$count" >&2
}

# All processes in one of our network namespaces.
kill_all() {
  local host=$1
  for _ in {1..50}; do
    local pids
    pids=$(ip netns pids "$prefix-$host" 2>/dev/null || true)
    [[ -z $pids ]] && return
    # shellcheck disable=SC2086
    kill -KILL $pids 2>/dev/null || true
    sleep 0.02
  done
}

stop() {
  as_root
  [[ ! -e $state || -f $marker ]] ||
    fail "$state is not of this script's making, so it stays: remove it, or name another with BURN_DIST_CLUSTER="
  local name
  for name in $(ip netns list | awk '{ print $1 }' | grep "^$prefix-" || true); do
    kill_all "${name#"$prefix-"}"
    ip netns delete "$name"
  done
  if alive "$state/munge/daemon.pid"; then kill "$(cat "$state/munge/daemon.pid")" || true; fi
  rm -rf "$state"
}

# A node of the cluster.
node() {
  [[ -n ${1:-} ]] || fail "which node?"
  [[ -f $state/nodes ]] || fail "the cluster does not run: $0 start"
  nodes | grep -qx -- "$1" || fail "there is no node '$1'; there are: $(nodes | xargs)"
  echo "$1"
}

command=${1:-help}
[[ $# -eq 0 ]] || shift
case $command in
  packages) echo "${packages[@]}" ;;
  install) "$(dirname "${BASH_SOURCE[0]}")/apt.sh" "${packages[@]}" ;;
  start) start "$@" ;;
  stop) stop ;;
  exec | on | kill-node | start-node | cut | mend)
    as_root
    host=ctl
    if [[ $command != exec ]]; then
      host=$(node "$@")
      shift
    fi
    case $command in
      exec | on) [[ $# -gt 0 ]] || fail "which command?"; inside "$host" "$@" ;;
      kill-node) kill_all "$host" ;;
      start-node) start_host "$host" slurmd -D -N "$host" -f "$state/slurm.conf" ;;
      cut) in_network ctl ip link set "to-$host" down ;;
      mend) in_network ctl ip link set "to-$host" up ;;
    esac
    ;;
  status)
    alive "$state/host-ctl.pid" || { echo 'not running'; exit 1; }
    inside ctl sinfo
    ;;
  help | -h | --help) usage ;;
  *) usage >&2; exit 2 ;;
esac
