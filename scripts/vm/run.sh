#!/usr/bin/env bash
# usage: run.sh FOLDER [OPTIONS OF hither attach]
# A virtual machine as a program in the laboratory, on a machine of two tiers; FOLDER holds hither and grow
# (target/release). Without options nobody moves its memory.
set -euo pipefail
folder=$(realpath "$1")
shift
cd "$(dirname "${BASH_SOURCE[0]}")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
gcc -m32 -nostdlib -static -Wl,-Ttext=0xffff0000 -Wl,--build-id=none -Wl,--oformat=binary -x assembler-with-cpp \
  -o "$work/guest.bin" guest.S
"$folder/hither" lab run --machine ../../machines/westmere-m2.toml --cpus 2 --memory 256,1024 --timeout 20m \
  --file "$work/guest.bin" --file in-guest.sh --file "$folder/grow" --file /usr/bin/qemu-system-x86_64 \
  -- sh -c "PATH=\$PATH:$folder exec ./in-guest.sh $work/guest.bin $*"
