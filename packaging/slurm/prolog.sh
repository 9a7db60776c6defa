#!/bin/sh
# Prolog= of slurm.conf: starts `hither attach` for a job on this node. epilog.sh ends it.
# Setup, options and rights are in docs/jobs.md.
#
# `prolog.sh` starts a watcher in a session of its own and returns. `prolog.sh watch` is the watcher.
# It finds the job's slurmstepd processes. Where Slurm gave the job a control group (cgroup v2), one
# `hither attach --cgroup` covers the job. Elsewhere one `hither attach -p` covers the steps that run; when a
# step is new, another one takes over that covers it, too. Never do two of them run for a job, as only one
# hither at a time can use NUMA hint faults. When the epilog ends the watcher, it writes hither-JOBID.json and
# hither-JOBID.txt beside the job's output.
#
# Slurm drains a node whose prolog fails. Therefore this script always exits with 0 and logs errors.

# Slurm sets no PATH for a prolog.
PATH=/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin
LC_ALL=C
export PATH LC_ALL
set -u
umask 077

readonly CONF="${HITHER_SLURM_CONF:-/etc/hither/slurm.conf}"
readonly STATE_ROOT=/run/hither-slurm

policy=auto
dry_run=no
jobs=all
steps=8
hither=
log_file=

job=${SLURM_JOB_ID:-}
uid=${SLURM_JOB_UID:-}
state=$STATE_ROOT/$job

log() {
  if [ -n "$log_file" ]; then
    printf '%s hither prolog: job %s: %s\n' "$(date '+%F %T')" "$job" "$*" >> "$log_file"
  else
    logger -t hither-slurm "job $job: $*"
  fi 2> /dev/null || :
}

# Reads KEY=VALUE lines. The file is not run as shell code.
read_options() {
  [ -r "$CONF" ] || return 0
  while IFS='=' read -r key value || [ -n "$key" ]; do
    value=$(printf '%s' "$value" | sed 's/^[[:space:]]*//; s/[[:space:]]*$//')
    case $(printf '%s' "$key" | tr -d '[:space:]') in
      '' | '#'*) ;;
      policy) policy=$value ;;
      dry_run) dry_run=$value ;;
      jobs) jobs=$value ;;
      steps) steps=$value ;;
      hither) hither=$value ;;
      log) log_file=$value ;;
      *) log "$CONF: unknown option $key" ;;
    esac
  done < "$CONF"
  case $dry_run in yes | no) ;; *) log "$CONF: dry_run must be yes or no, taken as yes"; dry_run=yes ;; esac
  case $jobs in all | opt-in) ;; *) log "$CONF: jobs must be all or opt-in, taken as opt-in"; jobs=opt-in ;; esac
  case $steps in '' | *[!0-9]*) log "$CONF: steps must be a number, taken as 8"; steps=8 ;; esac
  case $policy in '' | *[!A-Za-z0-9@_-]*) log "$CONF: policy is no name, taken as auto"; policy=auto ;; esac
  [ -n "$hither" ] || hither=$(command -v hither) || hither=
}

# The time at which a process started, in ticks since boot. With the PID it identifies a process.
started() {
  sed 's/^.*) //' "/proc/$1/stat" 2> /dev/null | cut -d ' ' -f 20
}

start_watcher() {
  case $job in '' | *[!0-9]*) log "SLURM_JOB_ID is not set"; return ;; esac
  case $uid in '' | *[!0-9]*) log "SLURM_JOB_UID is not set"; return ;; esac
  read_options
  if [ -z "$hither" ] || ! [ -x "$hither" ]; then
    log "hither is not installed (${hither:-not in $PATH}); the job runs without it"
    return
  fi
  if grep -q "/job_$job\(/\|\$\)" /proc/self/cgroup; then
    log "this prolog runs inside the job (PrologFlags=RunInJob), which is not supported; the job runs without hither"
    return
  fi
  if [ -d "$state" ]; then
    read -r pid start < "$state/watcher" 2> /dev/null || { pid=; start=; }
    if [ -n "$pid" ] && [ "$(started "$pid")" = "$start" ]; then
      return
    fi
    rm -rf "$state"
  fi
  # The epilog of another job may remove the empty parent between two calls.
  mkdir -p "$state" 2> /dev/null || mkdir -p "$state" 2> /dev/null || mkdir -p "$state" \
    || { log "cannot make $state"; return; }
  # Not by `&`, which would make the watcher ignore SIGINT.
  setsid -f "$0" watch < /dev/null > /dev/null 2>&1
  # slurmd kills the prolog's process group when the prolog returns: wait for the new session.
  tries=40
  while [ "$tries" -gt 0 ] && [ -d "$state" ] && ! [ -s "$state/watcher" ]; do
    sleep 0.05
    tries=$((tries - 1))
  done
  # No folder: the job is not to be watched, and the watcher has ended.
  [ "$tries" -gt 0 ] || log "the watcher did not start within 2 s"
}

# Runs a command so that a signal is handled at once, not after the command.
interruptible() {
  "$@" &
  wait $!
}

# Asks Slurm for the job's output file, folder, state and comment.
ask_slurm() {
  interruptible timeout -k 1 10 scontrol show job "$job" > "$state/job" 2> /dev/null
}

field() {
  sed -n "s/^.*[[:space:]]$1=//p" "$state/job" 2> /dev/null | tail -n 1
}

choose_folder() {
  output=$(field StdOut)
  folder=${output%/*}
  # Newer versions of Slurm leave patterns such as %j in.
  case $folder in *%*) output= ;; esac
  case $output in
    /dev/null | /dev/std* | '' | [!/]*) folder=$(field WorkDir) ;;
  esac
}

# Does the job's user want hither? `--comment=hither=off` and `--comment=hither=on` tell.
wanted() {
  case " $(field Comment | tr ',;' '  ') " in
    *' hither=off '*) return 1 ;;
    *' hither=on '*) return 0 ;;
  esac
  [ "$jobs" = all ]
}

# PID and step of the job's slurmstepd processes. A user can give a process of theirs the same command
# line; the real user ID 0 cannot be imitated.
job_stepds() {
  pgrep -U 0 -x slurmstepd | while read -r pid; do
    step=$(tr '\0' ' ' < "/proc/$pid/cmdline" 2> /dev/null \
      | sed -n "s/^slurmstepd: \[$job\.\([A-Za-z0-9_+]\{1,32\}\)\].*/\1/p")
    case $step in '' | extern) ;; *) echo "$pid $step" ;; esac
  done
}

# Starts `hither attach`; its report, exit status, PID and steps go to the folder of a part.
start_part() {
  part_count=$((part_count + 1))
  part=$state/parts/$(printf '%03d' "$part_count")
  mkdir -p "$part" || return
  echo "$1" > "$part/steps"
  shift
  set -- "$hither" attach "$@" --policy "$policy" --json "$part/attach.json"
  [ "$dry_run" = no ] || set -- "$@" --dry-run
  (
    {
      # shellcheck disable=SC2016
      sh -c 'echo $$ > "$0/pid"; exec "$@"' "$part" "$@" 2>&1
      echo $? > "$part/status"
    } | awk '!/^hither: +[0-9.]+ s  / && n++ < 1000 { print; fflush() }' > "$part/text"
  ) &
}

# Has the step's program started, and was it started with HITHER=off? Prints on, off, or wait.
step_choice() {
  first=$(pgrep -P "$1" | head -n 1)
  if [ -z "$first" ] || [ "$(cat "/proc/$first/comm" 2> /dev/null)" = slurmstepd ]; then
    echo wait
  elif tr '\0' '\n' < "/proc/$first/environ" 2> /dev/null | grep -qx 'HITHER=off'; then
    echo off
  else
    echo on
  fi
}

# Looks whether a step is new and whether it is to be watched; then its PID and name go to state/steps.
take_step() {
  pid=$1 step=$2
  [ ! -e "$state/known/$step" ] || return
  case $(step_choice "$pid") in
    wait)
      # A step whose program does not start in five looks is taken as it is.
      echo >> "$state/soon.$step"
      [ "$(wc -l < "$state/soon.$step")" -ge 5 ] || return
      ;;
    off)
      : > "$state/known/$step"
      log "step $step was started with HITHER=off and is not watched"
      return
      ;;
  esac
  : > "$state/known/$step"
  echo "$pid $step" >> "$state/steps"
  new=yes
  [ -n "$group" ] \
    || group=$(sed -n "s|^0::/\(.*/job_$job\)\(/.*\)\{0,1\}\$|\1|p" "/proc/$pid/cgroup" 2> /dev/null)
}

# Has `hither attach` cover the steps that are new.
cover_steps() {
  if [ -n "$group" ] && [ -d "/sys/fs/cgroup/$group" ]; then
    [ "$part_count" -gt 0 ] || start_part job --cgroup "$group"
    return
  fi
  if [ "$part_count" -ge "$steps" ]; then
    : > "$state/more-steps"
    return
  fi
  end_parts
  pids='' names=''
  while read -r pid step; do
    case " $1 " in *" $pid $step "*) pids=$pids,$pid names="$names $step" ;; esac
  done < "$state/steps"
  [ -z "$pids" ] || [ "$stop" != no ] || start_part "${names# }" -p "${pids#,}"
}

# Notes the job's processes, as `STEP PID NAME`, each once and at most 500 of them.
note_processes() {
  ps -e -o pid=,ppid=,comm= | awk -v stepds="$1" '
    BEGIN {
      count = split(stepds, word, " ")
      for (i = 1; i < count; i += 2) step[word[i]] = word[i + 1]
    }
    {
      parent[$1] = $2
      name = $0
      sub(/^ *[0-9]+ +[0-9]+ /, "", name)
      gsub(/[^A-Za-z0-9._+:@\/ -]/, "?", name)
      of[$1] = name
    }
    END {
      for (pid in parent) {
        up = parent[pid]
        for (depth = 0; depth < 100 && up > 1 && !(up in step); depth++) up = parent[up]
        if ((up in step) && of[pid] != "slurmstepd") print step[up], pid, of[pid]
      }
    }' | sort -k 1,1 -k 2,2n > "$state/seen"
  # A process that changed its name since (exec) stays under both names.
  sort -u "$state/seen" "$state/processes" 2> /dev/null | sort -s -k 1,1 -k 2,2n | head -n 500 > "$state/merged"
  mv "$state/merged" "$state/processes"
}

look() {
  found=$(job_stepds)
  if [ -z "$found" ]; then
    idle=$((idle + pause))
    return
  fi
  idle=0
  set -f
  # shellcheck disable=SC2086
  set -- $found
  set +f
  all=$*
  new=no
  while [ $# -ge 2 ]; do
    take_step "$1" "$2"
    shift 2
  done
  [ "$new" = no ] || cover_steps "$all"
  note_processes "$all"
}

# Ends the command that is attached and waits for its report: 3 s at most.
end_parts() {
  for part in "$state"/parts/*; do
    [ -e "$part/status" ] || kill -INT "$(cat "$part/pid")"
  done 2> /dev/null
  tries=30
  for part in "$state"/parts/*; do
    [ -d "$part" ] || continue
    while [ "$tries" -gt 0 ] && ! [ -s "$part/status" ]; do
      sleep 0.1
      tries=$((tries - 1))
    done
    if ! [ -s "$part/status" ]; then
      log "hither did not end in time (part ${part##*/})"
      kill -KILL "$(cat "$part/pid")" 2> /dev/null
      echo null > "$part/status"
      rm -f "$part/attach.json"
    fi
  done
}

json_report() {
  bool=false
  [ "$dry_run" = no ] || bool=true
  more=false
  [ ! -e "$state/more-steps" ] || more=true
  printf '{"schema": "hither.job/1", "job": %s, "uid": %s, "user": "%s", "node": "%s",\n' \
    "$job" "$uid" "$user" "$node"
  printf ' "policy": "%s", "dry_run": %s, "more_steps": %s,\n "processes": [' "$policy" "$bool" "$more"
  awk '{
    step = $1; pid = $2
    sub(/^[^ ]+ [^ ]+ /, "")
    printf "%s\n  {\"step\": \"%s\", \"pid\": %s, \"name\": \"%s\"}", (NR > 1 ? "," : ""), step, pid, $0
  }' "$state/processes"
  printf '],\n "parts": ['
  comma=
  for part in "$state"/parts/*; do
    [ -d "$part" ] || continue
    printf '%s\n {"steps": "%s", "status": %s, "attach": ' "$comma" "$(cat "$part/steps")" \
      "$(cat "$part/status" 2> /dev/null || echo null)"
    if [ -s "$part/attach.json" ]; then cat "$part/attach.json"; else echo null; fi
    printf '}'
    comma=,
  done
  printf '\n]}\n'
}

text_report() {
  echo "hither: job $job of $user on $node, policy $policy, dry run: $dry_run"
  echo "processes (step, PID, name):"
  sed 's/^/  /' "$state/processes"
  for part in "$state"/parts/*; do
    [ -d "$part" ] || continue
    echo
    echo "steps: $(cat "$part/steps")"
    cat "$part/text" 2> /dev/null
    status=$(cat "$part/status" 2> /dev/null)
    [ "$status" = 0 ] || echo "hither ended with status ${status:-unknown}"
  done
  if [ -e "$state/more-steps" ]; then
    echo
    echo "More than $steps times steps were new; those after that were not watched."
  fi
}

# Writes standard input to a file of the job's folder as the job's user: 2 s at most. The new file has a
# random name first and then replaces what has its name, so that no link is followed.
deliver() {
  gid=$(id -g "$user" 2> /dev/null) || { log "user $uid has no entry; no report"; return 1; }
  # shellcheck disable=SC2016
  timeout -k 1 2 setpriv --reuid "$uid" --regid "$gid" --init-groups --no-new-privs \
    env -i PATH=/usr/bin:/bin sh -c '
      umask 077
      cd -- "$1" || exit 1
      new=$(mktemp .hither-XXXXXXXXXX) || exit 1
      cat > "$new" && mv -fT -- "$new" "$2" && exit 0
      rm -f -- "$new"
      exit 1' sh "$folder" "$1" 2> "$state/deliver" \
    || { log "$1 could not be written to $folder as user $user: $(head -c 200 "$state/deliver")"; return 1; }
}

report() {
  [ -d "$state/parts" ] || return
  user=$(id -nu "$uid" 2> /dev/null | tr -cd 'A-Za-z0-9._@-')
  [ -n "$user" ] || user=$uid
  node=$(printf '%s' "${SLURMD_NODENAME:-$(uname -n)}" | tr -cd 'A-Za-z0-9._-')
  name=hither-$job
  # Each node of a job with several writes its own report.
  case ${SLURM_JOB_NODELIST:-$node} in "$node") ;; *) name=$name.$node ;; esac
  json_report > "$state/report.json"
  text_report > "$state/report.txt"
  case $folder in /*) ;; *) log "Slurm does not tell where the job's output goes; no report"; return ;; esac
  deliver "$name.json" < "$state/report.json" && deliver "$name.txt" < "$state/report.txt"
}

nap() {
  sleep "$1" &
  sleep_pid=$!
  wait "$sleep_pid"
  kill "$sleep_pid" 2> /dev/null
}

# Does Slurm still know the job as one that runs?
job_lives() {
  ask_slurm || return 1
  case $(sed -n 's/^[[:space:]]*JobState=\([A-Z_]*\).*/\1/p' "$state/job") in
    RUNNING | CONFIGURING | SUSPENDED | STOPPED | RESIZING | COMPLETING | PENDING) return 0 ;;
  esac
  return 1
}

watch_job() {
  stop=no
  trap 'stop=yes' INT TERM
  trap '' HUP
  # slurmd may protect itself and its children from the out-of-memory killer.
  echo 0 > /proc/self/oom_score_adj 2> /dev/null
  read_options
  mkdir -p "$state/known" && echo "$$ $(started $$)" > "$state/watcher.new" \
    && mv "$state/watcher.new" "$state/watcher" || exit 0
  cd "$state" || exit 0
  : > "$state/processes"
  part_count=0 idle=0 looks=0 pause=1 folder='' group=''
  ask_slurm || log "scontrol does not tell of the job"
  choose_folder
  if wanted; then
    while [ "$stop" = no ] && [ -s "$state/watcher" ]; do
      look
      looks=$((looks + 1))
      [ "$looks" -lt 30 ] || pause=5
      # The epilog ends the watcher. Where it never comes, the watcher ends with the job.
      if [ "$idle" -ge 600 ]; then
        idle=0
        job_lives || stop=lost
      fi
      [ "$stop" != no ] || nap "$pause"
    done
    end_parts
    report
    [ "$stop" != lost ] || log "the epilog did not come; the watcher ends"
  fi
  cd / || :
  rm -rf "$state"
  rmdir "$STATE_ROOT" 2> /dev/null
}

case ${1:-} in
  watch) watch_job ;;
  *) start_watcher < /dev/null > /dev/null 2>&1 ;;
esac
exit 0
