#!/usr/bin/env bash
# usage: examples.sh
# Makes docs/examples/report.html and heat.svg anew: a recording of `cluster shared` in the laboratory,
# as `hither report` shows it. Needs the release build and the laboratory's kernel (make lab).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

hither=$PWD/target/release/hither
cluster=$PWD/target/release/cluster
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Names of the guest alone: what is shown must not depend on where this repository lies.
"$hither" lab run --machine machines/opteron8385.toml --cpus 8 --timeout 9m \
  --file "$hither" --file "$cluster" --back="/tmp/cluster-shared:$work/cluster-shared" \
  -- /bin/sh -c "cp $cluster /tmp/cluster && cd /tmp &&
     $hither record --overhead 5 -o cluster-shared -- ./cluster shared --rounds 16"
examples=$PWD/docs/examples
cd "$work"
"$hither" report cluster-shared --html "$examples/report.html" --svg "$examples/heat.svg" >/dev/null
