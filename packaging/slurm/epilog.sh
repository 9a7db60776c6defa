#!/bin/sh
# Epilog= of slurm.conf: ends what prolog.sh started for a job, lets it write its report, and removes the
# rest. It takes 10 s at most and always exits with 0, since Slurm drains a node whose epilog fails.

PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin
LC_ALL=C
export PATH LC_ALL
set -u

readonly STATE_ROOT=/run/hither-slurm
job=${SLURM_JOB_ID:-}
state=$STATE_ROOT/$job

# The time at which a process started, in ticks since boot. With the PID it identifies a process.
started() {
  sed 's/^.*) //' "/proc/$1/stat" 2> /dev/null | cut -d ' ' -f 20
}

watcher_lives() {
  [ -n "$pid" ] && [ -n "$start" ] && [ "$(started "$pid")" = "$start" ]
}

end_watcher() {
  case $job in '' | *[!0-9]*) return ;; esac
  [ -d "$state" ] || return
  pid='' start=''
  # shellcheck disable=SC2034
  read -r pid start < "$state/watcher" || :
  case $pid in *[!0-9]*) pid='' ;; esac
  tries=0
  while [ "$tries" -lt 95 ] && watcher_lives; do
    case $tries in
      0) kill -INT "$pid" ;;
      20) kill -TERM "$pid" ;;
    esac
    sleep 0.1
    tries=$((tries + 1))
  done
  # What is left of the watcher's session. A PID in use by another process cannot be a session of the
  # watcher's: the kernel gives out no number that a session still has.
  if [ -n "$pid" ] && { watcher_lives || ! [ -e "/proc/$pid" ]; }; then
    pkill -KILL -s "$pid" && logger -t hither-slurm "job $job: the watcher did not end in time and was killed"
  fi
  rm -rf "$state"
  rmdir "$STATE_ROOT"
}

end_watcher < /dev/null > /dev/null 2>&1
exit 0
