#!/usr/bin/env bash
# Runs a training command for a platform that knows only exit statuses.
#
#   launch/recipes/until_finished.sh WORKDIR python -m looped_jax.train --workdir=WORKDIR …
#
# Training that is told to stop (SIGTERM) saves a checkpoint and exits 0, which Kubernetes and
# SkyPilot take for the end of the work. This exits 0 only when the run is finished, 75 when it was
# stopped in good order (start it again), and otherwise as the command did. SIGTERM is passed on.
set -uo pipefail

readonly STOPPED=75 # EX_TEMPFAIL of sysexits.h
readonly SECONDS_TO_SHOW=10

if (($# < 2)); then
  echo "usage: $0 WORKDIR COMMAND…" >&2
  exit 2
fi
workdir=$1
shift

stopped=false
"$@" &
child=$!
trap 'stopped=true; signalled=true; kill -TERM "$child" 2>/dev/null' TERM

# A signal ends `wait`, but not the command.
signalled=true
while $signalled; do
  signalled=false
  wait "$child"
  status=$?
done
((status == 0)) || exit "$status"

# Network file systems show what another host wrote a little later.
for ((second = 0; second < SECONDS_TO_SHOW; second++)); do
  [[ -e $workdir/summary.json ]] && exit 0
  if $stopped; then break; fi
  sleep 1
done
[[ -e $workdir/summary.json ]] && exit 0
echo "$workdir has no summary.json: stopped before its end, start it again" >&2
exit "$STOPPED"
