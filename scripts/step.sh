#!/usr/bin/env bash
# usage: step.sh TITLE COMMAND [ARGUMENT...]
# Runs a command between two lines that say since when `make` runs and how long this part took.
# HITHER_START is the second at which make began.
set -u
start=$(date +%s)
begin=${HITHER_START:-$start}
title=$1
shift
# It names a job server of make that is not open to cargo, which would complain.
unset MAKEFLAGS MFLAGS
printf '[%4d s] %s\n' "$((start - begin))" "$title"
"$@"
status=$?
now=$(date +%s)
if [ "$status" -ne 0 ]; then
  printf '[%4d s] %s: FAILED with status %d after %d s\n' \
    "$((now - begin))" "$title" "$status" "$((now - start))" >&2
  exit "$status"
fi
printf '[%4d s] %s: done in %d s\n' "$((now - begin))" "$title" "$((now - start))"
