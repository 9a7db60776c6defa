#!/usr/bin/env bash
# usage: sched-ext.sh [COUNT]
# What a move to another CPU costs in the laboratory by sched_setaffinity(2) and by a sched_ext scheduler, alone and in the fault
# of a closed protection key: ns, and instructions of all CPUs (from two runs, one with eleven times the moves).
# Needs clang, bpftool, libbpf-dev 1.2 or newer (Debian 12: from bookworm-backports), libelf-dev and zlib1g-dev.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
count=${1:-2000}
kernel=${HITHER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hither}/kernels/newest/vmlinux
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
bpftool btf dump file "$kernel" format c > "$built/vmlinux.h"
clang -w -O2 -g -target bpf -I "$built" -c scripts/sched-ext/trial.bpf.c -o "$built/trial.bpf.o"
cc -O2 -Wall -static scripts/sched-ext/trial.c -o "$built/trial" -lbpf -lelf -lz

run() {
  target/release/hither lab run --machine machines/clovertown.toml --cpus 4 --timeout 10m \
    --file "$built/trial.bpf.o" -- "$built/trial" "$built/trial.bpf.o" "$@" 2>&1
}
executed() { sed -n 's/^lab: \([0-9]*\) instructions.*/\1/p' <<< "$1"; }
for way in affinity sched_ext; do
  for where in alone keys; do
    few=$(run $way $where "$count")
    many=$(run $way $where $((11 * count)))
    line=$(grep 'half below' <<< "$many") || { echo "$many" >&2; exit 1; }
    echo "$line, $((($(executed "$many") - $(executed "$few")) / (10 * count))) instructions"
  done
done
