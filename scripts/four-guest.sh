#!/usr/bin/env bash
# usage: four-guest.sh MB UPDATES OPERATIONS PRODUCTS
# In the laboratory: four programs at once, each with MB of memory: the one that ends last tells how long all took.
set -euo pipefail
mb=$1 updates=$2 operations=$3 products=$4
jobs=()
start() { "$@" --mb "$mb" | sed "s/^/${1##*/}: /" & jobs+=($!); }
start target/release/hotspot --threads 1 --no-pin --updates "$updates"
start target/release/gups --threads 1 --no-pin --hot 10 --updates "$updates"
start target/release/kvstore --threads 1 --no-pin --operations "$operations"
start target/release/cg --threads 1 --no-pin --products "$products"
for job in "${jobs[@]}"; do wait "$job"; done
