#!/usr/bin/env bash
# usage: evidence.sh [--list] [TABLE...]
# Records comparisons in docs/evidence/: TABLE.json as the laboratory gives it, TABLE.md with date,
# commit, machine file and command. Without names it records every table. A table that fails
# leaves the old one as it was, and the others are still recorded. A table that this commit has recorded is
# left as it is, so that who was interrupted goes on where it stopped; AGAIN=1 records it again.
# MACHINE, CPUS, POLICIES and REPEAT come from the Makefile; MOVES, the least number of requests of
# each kind, and TORTURE, which multiplies its stores and deaths, from whoever wants them otherwise.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

MACHINE=${MACHINE:-machines/opteron8385.toml}
CPUS=${CPUS:-8}
POLICIES=${POLICIES:-first-touch,interleave,kernel,auto@pmu,auto@software}
REPEAT=${REPEAT:-3}
MOVES=${MOVES:-1000}
TORTURE=${TORTURE:-10}
folder=docs/evidence
# Before any table is written.
commit=$(git rev-parse --short HEAD 2> /dev/null || echo unknown)
[ -z "$(git status --porcelain --untracked-files=no 2> /dev/null)" ] || commit+=' with changes'
programs=target/release

sql='create table t(k integer primary key, v integer, s text);'
sql+='with recursive c(x) as (select 1 union all select x + 1 from c where x < 300000)'
sql+=' insert into t select x, (x * 7919) % 100003, printf("row %d", x) from c;'
sql+='create index i on t(v); select count(*), sum(a.v + b.v) from t a join t b on a.v = b.k;'

# name|what it shows|command, in the shell's words|options of the comparison that are not the usual ones. Rounds of our own programs give at least 10 s of
# guest time under the fastest policy, so that the kernel's balancing, which starts after 1 s, has
# its chance.
tables=(
  "cluster-shared|all threads read points that one thread wrote: a controller in overload|$programs/cluster shared --rounds 110"
  "cluster-partitioned|each thread reads its part of points that one thread wrote|$programs/cluster partitioned --rounds 1120"
  "cluster-mixed|as cluster-shared, with writes|$programs/cluster mixed --rounds 128"
  "cluster-local|each thread reads what it wrote: nothing to gain|$programs/cluster local --rounds 1200"
  "cg|sparse matrix-vector products on rows that each thread wrote: nothing to gain|$programs/cg --products 1040"
  "gups|random updates of a table that one thread wrote|$programs/gups --updates 40000000"
  "kvstore|a hash table that one thread loaded, Zipf-distributed keys|$programs/kvstore --operations 12000000"
  "sqlite|SQLite: rows inserted, indexed and joined in memory, one thread|/usr/bin/sqlite3 :memory: '$sql'"
  "zstd|Zstandard's own benchmark, eight compressing threads, then one that decompresses|/usr/bin/zstd -b9 -i0 -T8"
  "stress-ng|stress-ng's memory-bandwidth stressor, eight processes|/usr/bin/stress-ng --stream 8 --stream-ops 120 --stream-l3-size 4M"
)

# Where auto gains, and where it has to keep still, on two machines and once on an older kernel: runs of two to
# seven seconds on one CPU a node, which take half of the host's time of two.
for row in opteron8385:4:24:60:300:240: skylake8160:2:48:120:300:300: opteron8385:4:24:60:300:240:6.12; do
  IFS=: read -r machine cpus shared partitioned local cg kernel <<< "$row"
  options="--machine machines/$machine.toml --repeat 1 --cpus $cpus"
  name=$machine where=$machine
  if [ -n "$kernel" ]; then
    options+=" --kernel $kernel" name+=-$kernel where+=", Linux $kernel"
  fi
  options+=" --policies first-touch"
  gains=$options,interleave,kernel,auto@pmu,auto@software
  still=$options,interleave,auto@pmu,auto@software
  tables+=(
    "$name-shared|all threads read points that one thread wrote, on $where|$programs/cluster shared --rounds $shared|$gains"
    "$name-partitioned|each thread reads its part of points that one thread wrote, on $where|$programs/cluster partitioned --rounds $partitioned|$gains"
    "$name-local|each thread reads what it wrote: nothing to gain, on $where|$programs/cluster local --rounds $local|$still"
    "$name-cg|sparse matrix-vector products on rows that each thread wrote: nothing to gain, on $where|$programs/cg --products $cg|$still"
  )
done

# Fast memory for a part of 256 MB of data: what is given to the node holds the guest's kernel besides, some 144 MB.
# Some 12 s of guest time by first touch with 1/4 (of redis and the four the length is a guess). Programs that do not
# fit, one whose hot part moves, one whose hot part is the first that it touches, one beside a scan of everything, a
# server under its own benchmark (Debian's redis-server and redis-tools), four at once.
tiers=first-touch,weighted,kernel-tiering,damon,tiers@pmu,tiers@software,oracle
for row in 8:176 4:208 2:272; do
  IFS=: read -r part fast <<< "$row"
  options="--machine machines/westmere-m2.toml --repeat 1 --cpus 2 --memory $fast,1024 --policies $tiers"
  where="1/$part of its 256 MB in fast memory"
  redis="--file /usr/bin/redis-server --file /usr/bin/redis-benchmark --file /usr/bin/redis-cli"
  tables+=(
    "tiers-hotspot-$part|random updates of a tenth of memory, which moves every 5 s, with $where|$programs/hotspot --mb 256 --updates 80000000|$options"
    "tiers-kvstore-$part|a hash table that one thread loaded, Zipf-distributed keys, with $where|$programs/kvstore --mb 256 --operations 80000000|$options"
    "tiers-gups-$part|random updates of a table, nine of ten of its first tenth, with $where|$programs/gups --mb 256 --hot 10 --updates 42000000|$options"
    "tiers-redis-$part|redis-server with 240,000 values of 1 KB under its own benchmark, with $where|scripts/redis-guest.sh 240000 1024 2000000|$options $redis"
  )
  [ "$part" != 4 ] || tables+=(
    "tiers-scan-$part|random updates of a tenth of memory beside a thread that reads all of it, with $where|$programs/scan --mb 256 --updates 40000000|$options"
    "tiers-cg-$part|sparse matrix-vector products on rows that each thread wrote, with $where|$programs/cg --mb 256 --products 24|$options"
    "tiers-four-$part|a moving hot part, a fixed one, a hash table and matrix-vector products at once, 64 MB each, with $where|scripts/four-guest.sh 64 30000000 30000000 100|$options --file $programs/hotspot --file $programs/gups --file $programs/kvstore --file $programs/cg"
  )
done

bench="target/release/hither lab run --machine machines/skylake8160.toml --cpus 8 --timeout 12h -- \
target/release/hither bench service"
torture=target/release/examples/move_torture
# Boot tests by the names of their files, which follow.
boots="cargo test --quiet --release --workspace --exclude hither-python --exclude xtask --test boot -- --ignored --nocapture --test-threads=1"
streaming="target/release/examples/streaming --slow 1 --fast 0 --cpus 0 --mb 64 --huge --rounds 11 \
--block 512 --buffers 16 --workers 5 --copier-cpus 1-5"
hot="target/release/hither lab run --machine $MACHINE --cpus 4 --timeout 1h \
--file target/release/examples/hot_pages -- target/release/examples/hot_pages watch quiet=1"
daemon="target/release/hither lab run --machine machines/opteron8385.toml --cpus 8 --timeout 2h \
--file target/release/cluster --file scripts/daemon-guest.sh --evidence"
few="target/release/hither lab run --machine machines/opteron8385.toml --cpus 4 --timeout 3h \
--file target/release/memlat --file target/release/grow --file scripts/daemon-guest.sh --evidence"
full="target/release/hither lab run --machine machines/skylake8160.toml --cpus 4 --memory 512 --timeout 10m \
--evidence software --file target/release/grow --file scripts/guard-guest.sh"
# The same, of what prints its own figures: NAME.md alone.
reports=(
  "moves-small|requests of 4 KiB pages through the mover service, beside calls of move_pages|$bench --pages small --sizes 64K,1M,16M --repeat $MOVES"
  "moves-huge|requests of huge pages through the mover service, beside calls of move_pages|$bench --pages huge --sizes 2M,16M --repeat $MOVES"
  "moves-two-workers|two workers of the mover service, beside two threads that call move_pages|$bench --pages small --sizes 64K,1M,16M --repeat $MOVES --workers 2"
  "moves-two-copiers|requests of 16 MB of 4 KiB pages that two threads copy, beside calls of move_pages|$bench --pages small --sizes 16M --repeat $MOVES --copiers 2"
  "moves-in-place|requests of the mover service on this machine's own kernel, in place, as shares of a bare copy|target/release/hither bench service --repeat $MOVES"
  "probe-native|hither probe's kernels beside public benchmarks on this machine: the same bytes, CPU and pages|scripts/probe-native.sh"
  "streams|a stream of one thread through fast memory, five workers that copy, beside the plain loop|\
target/release/hither lab run --machine machines/spr-cxl-8.toml --cpus 8 --timeout 12h \
--file target/release/examples/streaming -- \
bash -c 'for kernel in triad add pgain; do for use in --none \"\" --always; do \
$streaming --kernel \$kernel \$use; done; done'"
  "hot-pages|the hottest pages as trackers find them, judged by the device's exact counts: 256 MB, four CPUs, 1 % of their time|\
for watch in opium:area:1 opium:moving:2 opium:two-phase:2 opium:zipf:1 opium:stride:1 damon:area:1 damon:moving:2 \
damon:two-phase:2; do IFS=: read -r tracker pattern phases <<< \$watch; settings=adaptive; load=threads=4; \
[ \$tracker = opium ] || { settings='adaptive thesis'; load=rest=5; }; \
for setting in \$settings; do words=\"tracker=\$tracker setting=\$setting pattern=\$pattern phases=\$phases \$load\"; \
echo \$words; $hot \$words; done; done"
  "attach|hither attach and hither run by software evidence alone, as on a machine without a PMU: seconds of work; and two programs at once, one helped and one harmed|\
set -o pipefail; for machine in opteron8385 skylake8160; do \
scripts/attach.sh gains machines/\$machine.toml software 1 2> /dev/null; done; \
scripts/attach.sh two machines/opteron8385.toml device 2> /dev/null"
  "attach-churn|hither attach to 200 processes of one name that fork, execute and exit all the time, with real moves and --undo, in the laboratory|\
set -o pipefail; scripts/attach.sh churn machines/opteron8385.toml software 2> /dev/null"
  "daemon|four programs of two users under two policies, by first touch, hither attach and hither daemon, in seconds of work; then what the daemon costs beside programs with nothing to do, in the laboratory|\
set -o pipefail; $daemon device -- sh -c \"PATH=\\\$PATH:\$PWD/target/release exec scripts/daemon-guest.sh gains 400 20\" 2> /dev/null"
  "daemon-idle|what hither daemon costs on this machine beside programs for which nothing is to be done|\
PATH=\$PWD/target/release:\$PATH scripts/daemon-idle.sh 60 100 500 1000 5000"
  "daemon-minutes|four programs of two users that start and end for two minutes of guest time, under two policies: seconds of each run by first touch, under hither attach and hither daemon; an undo; then what the daemon costs while nothing runs, in the laboratory|\
set -o pipefail; $few pmu -- sh -c \"PATH=\\\$PATH:\$PWD/target/release exec scripts/daemon-guest.sh minutes 12000000 120 carrefour auto\" 2> /dev/null"
  "daemon-kills|hither daemon killed 100 times while it moves pages of two programs, then undone by the next one: pages by node, and the checksums and longest gaps of the programs and of one that is left alone, in the laboratory|\
set -o pipefail; $few device -- sh -c \"PATH=\\\$PATH:\$PWD/target/release exec scripts/daemon-guest.sh kills 100 280000000\" 2> /dev/null"
  "guard|a program that grows on a node that another has filled: alone, under the policies guard and auto, in the laboratory|\
for policy in '' guard auto; do echo \"policy: \${policy:-none}\"; $full -- sh -c \"PATH=\\\$PATH:\$PWD/target/release exec scripts/guard-guest.sh 360 200 100 \$policy\" 2> /dev/null || true; done"
  "vm|a virtual machine as a program on a machine of two tiers, without hither and under the policy tiers, in the laboratory|\
set -o pipefail; for options in '' '--policy tiers'; do scripts/vm/run.sh target/release \$options 2> /dev/null; done"
  "replicated|Streamcluster's pattern on an array of the library, without copies, with copies built before, and during the run, in the laboratory|\
set -o pipefail; replicated='target/release/examples/replicated shared --mb 32 --rounds 16'; \
target/release/hither lab compare --machine machines/opteron8385.toml --cpus 4 --policies first-touch,interleave -- \$replicated --copies none \
--- \$replicated --copies replicated --build before --- \$replicated --copies replicated --build during 2>&1 | \
grep -E '[|] (seconds|build_seconds|copy_bytes|checksum|forecast)'"
  "file-replicas|four processes on four nodes read a part of a file that lies on one, without copies, with file replicas of what is used and of all, from private copies; and parts that are local already, in the laboratory|\
set -o pipefail; for words in '64 16 500 150 plain hot own' '64 16 1300 120 all apart apart-hot'; do \
target/release/hither lab run --machine machines/opteron8385.toml --cpus 4 --timeout 1h --file target/release/libhither_mirror.so \
--file target/release/examples/mapped --file scripts/files-guest.sh -- sh -c \"PATH=\\\$PATH:\$PWD/target/release/examples \
exec scripts/files-guest.sh \$PWD/target/release/libhither_mirror.so \$words\" 2> /dev/null; done"
  "quickstart|every step of docs/quickstart.md with its output compared, by a PMU's evidence and without a PMU, in the laboratory|\
set -o pipefail; for evidence in pmu software; do HITHER_EVIDENCE=\$evidence $boots quickstart::long 2> /dev/null | grep -e 'steps of'; done"
  "record-cost|what recording at default settings costs programs in the laboratory, in instructions of the whole machine|\
scripts/record-cost.sh $MACHINE 4 12"
  "shim|real programs whose memory and threads the preload shim places, beside the same programs alone|scripts/shim.sh"
  "binding|every memory and thread policy of hither run, page by page, and numactl's documented uses beside numactl, in the laboratory|\
HITHER_MACHINES=uniform,ibm-two-node,skylake8160,ibm-ccnuma,opteron8385,knl7250,knl7250-snc4,knl7250-snc4/5,spr-cxl-8,spr-2s-cxl \
$boots binding:: numactl:: 2> /dev/null | grep -e nodes -e lines | sed 's/^[.]//'"
  "ccnuma|the IBM ccNUMA paper's measurements on its machine files: memory here and elsewhere, and programs whose arrays are placed from outside, in the laboratory|\
set -o pipefail; json=\$(mktemp); HITHER_LONG=1 HITHER_JSON=\$json $boots ccnuma:: 2> /dev/null | grep -e '^|' -e '^ibm'; chmod 644 \$json; mv \$json docs/evidence/ccnuma.jsonl"
  "samples|local accesses and imbalance as hither's samples tell them, beside the device's exact counters, in the laboratory|\
set -o pipefail; HITHER_LONG=1 $boots policies::samples 2> /dev/null | grep -e 'exact '"
  "partitions|nodes that move between three partitions of an emulated machine of eight, under load and with faults: what was met, and what was wrong|\
set -o pipefail; HITHER_MOVES=$MOVES $boots partition:: 2> /dev/null | grep -e ': [0-9]' | \
grep -v -e '^after' -e '^hither'"
  "fuzz|readers of foreign files, fed with changed ones|\
set -o pipefail; export HITHER_FUZZ_INPUTS=\${HITHER_FUZZ_INPUTS:-200000}; \
for target in '-p hither-recording --test hostile' '-p hither-core --test machine_fuzz' '-p hither-linux --test all' '-p hither-daemon --test fuzz'; do \
cargo test --quiet --release \$target -- --nocapture changed mutated damaged 2> /dev/null | \
grep -e inputs -e 'test result' | sed 's/; finished.*//'; done"
  "torture|stores to pages on their way, and deaths of workers, monitors and processes, on this machine's own kernel|\
for form in '' --huge --no-stock; do $torture writers --stores $((TORTURE * 4000000)) \$form; \
$torture worker --rounds $((TORTURE * 34)) \$form; $torture process --rounds $((TORTURE * 34)) \$form; done"
  "torture-two-nodes|pages on their way between two nodes while programs, children and the kernel use them, in the laboratory|\
target/release/hither lab run --machine machines/skylake8160.toml --cpus 4 --timeout 12h --file $torture -- \
bash -c 'for scenario in writers forks changes discards kernel splice pinned ksm worker process pressure overlap own; do \
$torture \$scenario --nodes 2 --rounds 20 --stores 100000 --seed 7 --patience 600 || exit 1; done'"
)

# What `hither roofline` counts, on memory much larger than the last-level cache.
reports+=(
  "npb|operations and bytes that hither roofline counts of the kernels of npb, beside those of their formulas, in the laboratory|\
set -o pipefail; target/release/hither lab run --machine machines/knl7250-npb.toml --cpus 2 --memory 768,112 --timeout 1h \
--file target/release/npb --file scripts/roofline-guest.sh -- sh -c \"PATH=\\\$PATH:\$PWD/target/release exec scripts/roofline-guest.sh \
ft:48:1:4 is:96:1:3 ep:6144:1:3 cg:96:4:24 mg:96:1:5 lu:192:2:12 bt:96:2:10 sp:48:4:20\" 2> /dev/null"
)
for seed in 1 2 3 4 5; do
  reports+=("programs-$seed|mean seconds of sixteen programs with the HyDM paper's proportions, drawn by seed $seed, by who gets the fast memory, in the laboratory|\
set -o pipefail; target/release/hither lab compare --machine machines/knl7250-npb.toml --cpus 4 --memory 768,72 --timeout 12h \
--policies fast-first,interleave,kernel-tiering,hydm@device,value@device --file target/release/npb -- \
target/release/mix --programs 16 --seed $seed --scale-mb 24 2>&1 | grep -E '[|] mean_seconds'")
done

list() {
  echo 'Tables of evidence, all by default: make evidence TABLES="NAME..."'
  local row name what
  for row in "${tables[@]}" "${reports[@]}"; do
    IFS='|' read -r name what _ <<< "$row"
    printf '  %-20s %s\n' "$name" "$what"
  done
}

# What a table begins with: name, what it shows, seconds that it took.
heading() {
  printf '# %s\n\n%s.\n\n' "$1" "${2^}"
  printf -- '- date: %s\n' "$(date -u +%Y-%m-%d)"
  printf -- '- commit: %s\n' "$commit"
  printf -- '- host: %s CPUs, Linux %s, QEMU %s, %s s\n' "$(nproc)" "$(uname -r)" \
    "$(qemu-system-x86_64 --version | sed -n 's/^QEMU emulator version \([0-9.]*\).*/\1/p')" "$3"
}

# Writes the file of one report, or none.
report() {
  local name=$1 what=$2 command=$3 text start
  text=$(mktemp) || return
  start=$(date +%s)
  if ! bash -euc "$command" > "$text"; then
    cat "$text" >&2
    rm -f "$text"
    return 1
  fi
  mkdir -p "$folder"
  {
    heading "$name" "$what" "$(($(date +%s) - start))"
    printf -- '- command: `%s`\n\n```text\n' "$command"
    cat "$text"
    printf '```\n'
  } > "$folder/$name.md"
  rm -f "$text"
}

# Writes both files of one table, or neither.
record() {
  local name=$1 what=$2 command=$3 options=$4 words json text start machine=$MACHINE
  eval "words=($command)"
  options=${options:---machine $MACHINE --repeat $REPEAT --policies $POLICIES}
  read -ra options <<< "$options"
  machine=${options[1]}
  json=$(mktemp) && text=$(mktemp) || return
  start=$(date +%s)
  [[ " ${options[*]} " == *' --cpus '* ]] || options+=(--cpus "$CPUS")
  local compare=(target/release/hither lab compare "${options[@]}" --timeout 12h --json
    -- "${words[@]}")
  if ! "${compare[@]}" > "$json" || ! cargo xtask evidence "$json" > "$text.table"; then
    rm -f "$json" "$text" "$text.table"
    return 1
  fi
  {
    heading "$name" "$what" "$(($(date +%s) - start))"
    printf -- '- machine file: `%s` (sha256 %s)\n' "$machine" "$(sha256sum "$machine" | cut -c 1-12)"
    printf -- '- command: `%s`\n' "${compare[*]@Q}"
    cat "$text.table"
    printf '\nMedian of %s run(s) in one boot, in alternating order. Speed is first-touch'"'"'s seconds over\n' "${options[3]}"
    printf 'the policy'"'"'s, less one; the words are those of docs/ARCHITECTURE.md.\n'
  } > "$text"
  mkdir -p "$folder"
  mv "$json" "$folder/$name.json"
  mv "$text" "$folder/$name.md"
  chmod 644 "$folder/$name.json" "$folder/$name.md"
  rm -f "$text.table"
}

if [ "${1:-}" = --list ]; then
  list
  exit 0
fi
wanted=("$@")
for name in "${wanted[@]}"; do
  printf '%s\n' "${tables[@]}" "${reports[@]}" | cut -d '|' -f 1 | grep -qx -- "$name" && continue
  printf 'evidence: there is no table %s\n' "$name" >&2
  list >&2
  exit 2
done
# The laboratory ends its guest on an interrupt and exits; no further table is wanted then.
trap 'exit 130' INT
failed=0
# Tables that are to be recorded, what they took last time, and how many are new.
rows=() seconds=0 unknown=0
for row in "${tables[@]}" "${reports[@]}"; do
  name=${row%%|*}
  if [ "${#wanted[@]}" -gt 0 ] && ! printf '%s\n' "${wanted[@]}" | grep -qx -- "$name"; then
    continue
  fi
  if [ -z "${AGAIN:-}" ] && grep -qsx -- "- commit: $commit" "$folder/$name.md"; then
    printf 'evidence: %s is of this commit already\n' "$name"
    continue
  fi
  rows+=("$row")
  took=$(sed -n 's/^- host: .*, \([0-9]*\) s$/\1/p' "$folder/$name.md" 2> /dev/null | head -n 1)
  [ -n "$took" ] && seconds=$((seconds + took)) || unknown=$((unknown + 1))
done
awk -v all="${#rows[@]}" -v seconds="$seconds" -v unknown="$unknown" 'BEGIN {
  printf "evidence: %d tables, %.1f hours of the host by what they took last time; %d of them were never timed\n",
    all, seconds / 3600, unknown }'
for row in "${rows[@]}"; do
  IFS='|' read -r name what command <<< "$row"
  options=
  printf '[%4d s] evidence: %s\n' "$(($(date +%s) - ${HITHER_START:-$(date +%s)}))" "$name"
  kind=record
  printf '%s\n' "${reports[@]}" | cut -d '|' -f 1 | grep -qx -- "$name" && kind=report
  # Commands of reports may have pipes.
  [ "$kind" = report ] || IFS='|' read -r command options <<< "$command"
  if ! "$kind" "$name" "$what" "$command" "$options"; then
    printf 'evidence: %s FAILED; its old table stays\n' "$name" >&2
    failed=1
  fi
done
cargo xtask gen
exit "$failed"
