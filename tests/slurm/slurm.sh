#!/usr/bin/env bash
# A real Slurm on this machine alone, for the tests: its own key, sockets, ports and folder.
#
#   tests/slurm/slurm.sh install         Debian's packages, as root (about 15 seconds)
#   tests/slurm/slurm.sh start DIR       starts it in DIR, an empty folder with a short path
#   tests/slurm/slurm.sh stop DIR        ends its jobs and daemons
#
# Once started, whatever has SLURM_CONF=DIR/slurm.conf in its environment talks to it. One node
# of two CPUs, one partition, no accounting. Running it needs no root.
set -euo pipefail
export PATH=$PATH:/usr/sbin:/sbin # where Debian puts the daemons

programs=(munged slurmctld slurmd sbatch srun squeue scancel scontrol)

fail() {
  printf 'error: %s\n' "$*" >&2
  exit 2
}

is_installed() {
  local program
  for program in "${programs[@]}"; do
    command -v "$program" >/dev/null || return 1
  done
}

install() {
  is_installed && return
  ((EUID == 0)) || fail "only root can install Slurm"
  command -v apt-get >/dev/null || fail "no apt-get here to install Slurm with"
  # Networks fail, and registries with them: a start that hangs is worse than tests left out.
  local get=(timeout 300 apt-get -qq -o DPkg::Lock::Timeout=60 -o Acquire::Retries=2)
  export DEBIAN_FRONTEND=noninteractive
  "${get[@]}" update || fail "apt-get update does not work here"
  "${get[@]}" install -y --no-install-recommends slurm-wlm munge >/dev/null ||
    fail "apt-get cannot install slurm-wlm and munge"
  is_installed || fail "slurm-wlm and munge are installed, but not all of: ${programs[*]}"
}

start() {
  local dir=$1 host user ports
  is_installed || fail "Slurm is not installed: run $0 install"
  mkdir -p -- "$dir"
  dir=$(cd -- "$dir" && pwd)
  ((${#dir} < 80)) || fail "$dir is too long a path for sockets"
  [[ ! -e $dir/slurm.conf ]] || fail "$dir holds a slurm.conf already"
  host=$(hostname -s)
  user=$(id -un)
  read -r -a ports <<<"$(free_ports 2)"
  mkdir -p -- "$dir/state" "$dir/spool"
  chmod 0755 -- "$dir"

  (umask 077 && head -c 1024 /dev/urandom >"$dir/munge.key")
  munged --force --key-file="$dir/munge.key" --socket="$dir/munge.socket" \
    --pid-file="$dir/munge.pid" --seed-file="$dir/munge.seed" --log-file="$dir/munge.log"

  # config_overrides: two CPUs also where there is one. cred_expire: a requeued job waits until its
  # credential expires; two minutes are Slurm's default.
  cat >"$dir/slurm.conf" <<CONF
ClusterName=local
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmdPort=${ports[1]}
AuthType=auth/munge
AuthInfo=socket=$dir/munge.socket,cred_expire=5
SlurmUser=$user
SlurmdUser=$user
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=2,batch_sched_delay=1,bf_interval=5
KillWait=20
ReturnToService=2
NodeName=localhost NodeHostname=$host NodeAddr=127.0.0.1 CPUs=2 RealMemory=500 State=UNKNOWN
PartitionName=main Nodes=localhost Default=YES MaxTime=INFINITE State=UP
CONF
  # From 23.11 on, slurmd needs cgroups even where nothing uses them, unless it is told otherwise.
  if [[ $(printf '%s\n' 23.11 "$(slurmd -V)" | awk '{ print $NF }' | sort -V | head -n 1) == 23.11 ]]
  then
    echo "CgroupPlugin=disabled" >"$dir/cgroup.conf"
  fi
  export SLURM_CONF=$dir/slurm.conf
  slurmctld -f "$SLURM_CONF"
  slurmd -f "$SLURM_CONF"
  local tries
  for tries in {1..60}; do
    if [[ $(sinfo --noheader --format=%T 2>/dev/null) == idle ]]; then
      return
    fi
    sleep 0.5
  done
  tail -n 5 -- "$dir"/*.log >&2
  stop "$dir"
  fail "the node did not become idle within 30 seconds"
}

stop() {
  local dir=$1 daemon pid tries
  [[ -e $dir/slurm.conf ]] || fail "no Slurm was started in $dir"
  export SLURM_CONF=$dir/slurm.conf
  # Ends what still runs, so that nothing outlives the daemons.
  timeout 10 scancel --user="$(id -un)" 2>/dev/null || true
  for tries in {1..50}; do
    [[ -n $(timeout 10 squeue --noheader 2>/dev/null || true) ]] || break
    sleep 0.5
  done
  for daemon in slurmd slurmctld munge; do
    pid=$(cat -- "$dir/$daemon.pid" 2>/dev/null) || continue
    kill -- "$pid" 2>/dev/null || true
    for tries in {1..50}; do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.2
    done
  done
}

# So many TCP ports that nobody listens on.
free_ports() {
  python3 - "$1" <<'PYTHON'
import socket
import sys

sockets = [socket.socket() for _ in range(int(sys.argv[1]))]
for each in sockets:
    each.bind(("127.0.0.1", 0))
print(*(each.getsockname()[1] for each in sockets))
PYTHON
}

case ${1-}:$# in
  install:1) install ;;
  start:2) start "$2" ;;
  stop:2) stop "$2" ;;
  *) fail "usage: $0 install | start DIR | stop DIR" ;;
esac
