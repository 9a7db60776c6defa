#!/usr/bin/env bash
# usage: shim.sh [ROUNDS]
# Real programs with the preload shim placing their memory and threads, beside the same programs
# alone: output, instructions of user mode as Valgrind counts them, blocks placed, what a start costs,
# instructions of user and kernel in the laboratory, fork/exec rounds. Programs that are not installed
# are named as such. A difference, or a library that starts need and should not, ends with status 1.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
rounds=${1:-10000}
hither=$PWD/target/release/hither
folder=$(mktemp -d)
chmod 777 "$folder"
trap 'rm -rf "$folder"' EXIT
# Debian has the server of PostgreSQL outside of PATH.
PATH=$PATH:$(ls -d /usr/lib/postgresql/*/bin 2> /dev/null | tail -n 1)
libraries=/usr/lib/x86_64-linux-gnu
everything=(--threads fill --place 'size>=1: local')
large=(--threads fill --place 'size>=64K: striped')
failed=0

cat > "$folder/script.bash" << 'END'
declare -A seen; for i in {1..3000}; do seen[$((i * 7919 % 1009))]+=$i; done
for i in {1..40}; do (echo "$i") & done > /dev/null; wait
s=$(printf '%0.sx' {1..200000}); echo ${#s} ${#seen[@]}
END
cat > "$folder/programs.bash" << 'END'
for i in {1..40}; do (echo "$i" | cat) & done | sort -n | tail -n 1; wait
END
cat > "$folder/arrays.py" << 'END'
import numpy, threading, zlib
a = numpy.arange(1500000, dtype=numpy.float64).reshape(1000, 1500)
for _ in range(20): a = numpy.sqrt(a * a + 1.0)
b = numpy.linalg.qr(a[:200, :200])[1]
rows = {str(i): [i] * (i % 50) for i in range(60000)}
def work(k): sums[k] = sum(len(v) for i, v in enumerate(rows.values()) if i % 4 == k)
sums = [0] * 4
threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
[t.start() for t in threads]; [t.join() for t in threads]
print(round(float(a.sum()), 3), b.shape, sums, zlib.crc32(bytes(3000000)))
END
cat > "$folder/redis.sh" << 'END'
cd "$1"; rm -f dump.rdb; redis-server --hz 1 --port 0 --unixsocket "$1/s" --save '' --daemonize no --logfile /dev/null & server=$!
until [ -S "$1/s" ]; do sleep 0.1; done
awk 'BEGIN { for (i = 0; i < 30000; i++) printf "SET key:%d %d\r\nLPUSH list:%d %0200d\r\n", i, i * 7919, i % 300, i }' \
  | redis-cli -s "$1/s" --pipe | tail -n 1
redis-cli -s "$1/s" dbsize; redis-cli -s "$1/s" debug digest; redis-cli -s "$1/s" save
redis-cli -s "$1/s" shutdown nosave 2> /dev/null; wait $server; echo "server $?"; cksum < dump.rdb | cut -d ' ' -f 2 | wc -l
END
cat > "$folder/rows.sql" << 'END'
create table t(k integer primary key, v integer, s text);
insert into t select x, (x * 7919) % 100003, 'row ' || x from (with recursive c(x) as (select 1 union all select x + 1 from c where x < 60000) select x from c) as g;
create index i on t(v);
select count(*), sum(a.v + b.v) from t a join t b on a.v = b.k;
select substr(s, 1, 5) as head, count(*) from t group by 1 order by 2 desc, 1 limit 3;
END
tr '\n' ' ' < "$folder/rows.sql" | sed 's/; /;\n/g' > "$folder/rows.line"
cat > "$folder/main.go" << 'END'
package main

import ("fmt"; "hash/crc32"; "sort"; "sync")
func main() {
	var group sync.WaitGroup
	sums := make([]uint32, 8)
	for k := range sums {
		k := k
		group.Add(1)
		go func() {
			defer group.Done()
			rows := map[string][]byte{}
			for i := 0; i < 20000; i++ { rows[fmt.Sprint(i*k)] = make([]byte, i%3000) }
			keys := []string{}
			for key := range rows { keys = append(keys, key) }
			sort.Strings(keys)
			for _, key := range keys { sums[k] = crc32.Update(sums[k], crc32.IEEETable, []byte(key)) }
		}()
	}
	group.Wait()
	fmt.Println(sums)
}
END
{
  sed 's/^package main$/package main\n\n\/\/ #include <stdlib.h>\nimport "C"/; s/^func main() {/func main() {\n\tfor i := 0; i < 2000; i++ { C.free(C.malloc(C.size_t(i * 100 + 1))) }/' \
    "$folder/main.go"
} > "$folder/cgo.go"
for i in $(seq 300); do
  echo "pub fn f$i(a: &mut Vec<u64>, b: u64) -> u64 { a.iter_mut().for_each(|x| *x = x.wrapping_mul($i) ^ b); a.iter().sum() }"
done > "$folder/source.rs"
gcc -O1 -w -pthread crates/preload/tests/placed.c -o "$folder/placed"
command -v go > /dev/null && (cd "$folder" && CGO_ENABLED=0 go build -o go-static main.go && CGO_ENABLED=1 go build -o go-cgo cgo.go)

# Runs a command by hither with rules, or alone; by another user where `as` says so.
words=() as=()
run() {
  local rules=$1
  rm -f "$folder/report"
  case $rules in
    alone) "${as[@]}" "${words[@]}" ;;
    everything) "${as[@]}" "$hither" run "${everything[@]}" --json "$folder/report" -- "${words[@]}" 2> "$folder/said" ;;
    large) "${as[@]}" "$hither" run "${large[@]}" --json "$folder/report" -- "${words[@]}" 2> "$folder/said" ;;
  esac
}

# Instructions in millions: of every program that is started, without what forked children do before
# they become one.
instructions() {
  local valgrind=(valgrind --tool=cachegrind --cache-sim=no --cachegrind-out-file=/dev/null --trace-children=yes
    --child-silent-after-fork=yes --log-file="$folder/counts.%p")
  rm -f "$folder"/counts.*
  local plain=("${words[@]}") before=${#words[@]}
  words=("${valgrind[@]}" "${plain[@]}")
  run "$1" > "$folder/counted" 2>&1
  words=("${plain[@]}")
  cat "$folder"/counts.* | sed -n 's/.*I  *refs: *//p' | tr -d , | awk '{ sum += $1 } END { printf "%.3f", sum / 1e6 }'
}

printf '%-26s %8s %8s %8s %12s %11s %11s %10s\n' program beneath 'size>=1' '>=64K' 'blocks >=64K' \
  'alone, M' '>=64K, M' more
program() {
  local name=$1 needs=$2 count=$3
  shift 3
  words=("$@")
  if ! command -v "$needs" > /dev/null; then
    printf '%-26s not measured: %s is not installed\n' "$name" "$needs"
    return
  fi
  local beneath kind same figures
  for beneath in glibc jemalloc mimalloc; do
    unset LD_PRELOAD
    case $beneath in
      jemalloc) export LD_PRELOAD=$libraries/libjemalloc.so.2 ;;
      mimalloc) export LD_PRELOAD=$libraries/libmimalloc.so.2 ;;
    esac
    run alone > "$folder/expected" 2>&1
    figures=()
    for kind in everything large; do
      run $kind > "$folder/found" 2>&1
      same=same
      if ! cmp -s "$folder/expected" "$folder/found"; then
        same=OTHER failed=1
        diff "$folder/expected" "$folder/found" | head -n 5 >&2
        cat "$folder/said" >&2
      fi
      figures+=("$same")
    done
    figures+=("$(jq '[.placed.shim.rules[].blocks] | add' "$folder/report")")
    unset LD_PRELOAD
    if [ "$beneath" = glibc ] && [ "$count" = count ]; then
      local alone more
      alone=$(instructions alone) more=$(instructions large)
      figures+=("$alone" "$more" "$(awk -v a="$alone" -v m="$more" 'BEGIN { printf "%+.2f %%", 100 * (m / a - 1) }')")
    fi
    printf '%-26s %8s %8s %8s %12s %11s %11s %10s\n' "$name" "$beneath" "${figures[@]}"
  done
}

export LC_ALL=C PGDATA=$folder/db
program bash bash count bash "$folder/script.bash"
program 'bash, 42 programs' bash count bash "$folder/programs.bash"
program 'python3, numpy' /usr/bin/python3 count env OPENBLAS_NUM_THREADS=1 PYTHONHASHSEED=1 /usr/bin/python3 "$folder/arrays.py"
program redis-server redis-server count bash "$folder/redis.sh" "$folder"
program sqlite3 sqlite3 count sh -c "sqlite3 :memory: < $folder/rows.sql"
if command -v initdb > /dev/null; then
  # The server does not run as root.
  mkdir "$PGDATA" && chown nobody "$PGDATA"
  initdb=$(readlink -f "$(command -v initdb)") postgres=$(readlink -f "$(command -v postgres)")
  setpriv --reuid=nobody --clear-groups "$initdb" -A trust -N > /dev/null 2>&1
  as=(setpriv --reuid=nobody --clear-groups)
  program 'postgres, single user' postgres count sh -c \
    "(cat $folder/rows.line; echo 'drop table t;') | $postgres --single -D $PGDATA postgres 2> /dev/null | sed 's/[^ -~]//g'"
  as=()
else
  printf '%-26s not measured: initdb is not installed\n' postgres
fi
program 'Go, static' go same "$folder/go-static"
program 'Go, with C' go same "$folder/go-cgo"
rustc=$(rustup which rustc 2> /dev/null || command -v rustc)
program 'rustc' rustc same "$rustc" -C opt-level=2 -A warnings --crate-type lib --emit=asm -o - "$folder/source.rs"
program '64 threads, 20,000 each' gcc same "$folder/placed" storm 64 20000

printf '\nWhat every start pays for: /bin/true.\n'
shim=$PWD/target/release/libhither_preload.so
needed=$(readelf -dW "$shim" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | xargs)
[ "$needed" = libc.so.6 ] || failed=1
echo "$needed needed, $(nm -D --undefined-only "$shim" | wc -l) functions looked up," \
  "$(readelf -rW "$shim" | grep -c R_X86_64_RELATIVE) addresses relocated, $(readelf -lW "$shim" | grep -c '^ *LOAD') mappings of the file"
words=(/bin/true)
alone=$(instructions alone) more=$(instructions large)
awk -v a="$alone" -v m="$more" 'BEGIN { printf "user mode: %.3f M instructions alone, %.3f M with the shim\n", a, m }'

# User and kernel, all CPUs and processes, in turns in one boot. Without `hither run` itself: with the
# variables that it gives to programs, as the first turn finds them.
printf '\nInstructions of user and kernel in the laboratory (%s), medians of 3 runs each.\n' 'opteron8385, 4 CPUs'
# The files that a command uses, one a line.
used_by() {
  strace -f -qq -e trace=%file -o "$folder/trace" sh -c "$1" > /dev/null 2>&1
  grep -o '"/[^"]*"' "$folder/trace" | tr -d '"' | sort -u | grep -v -e ^/proc/ -e ^/sys/ -e ^/dev/ -e "^$PGDATA/" \
    | while read -r file; do [ ! -f "$file" ] || echo "$file"; done
}
in_lab() {
  local qemu=${HITHER_QEMU:-qemu-system-x86_64} name needs before command used='' prepare='' files=() names=() turns=()
  local number word
  if ! command -v "$qemu" > /dev/null; then
    echo "not measured: $qemu is not installed"
    return
  fi
  truncate -s 1M "$folder/board"
  chmod 666 "$folder/board"
  [ ! -d "$PGDATA" ] || files+=(--file "$PGDATA")
  while IFS='|' read -r name needs before command; do
    for word in $needs; do
      if ! command -v "$word" > /dev/null; then
        printf '%-26s not measured: %s is not installed\n' "$name" "$word"
        continue 2
      fi
    done
    used+=$'\n'$(used_by "$command")
    names+=("$name")
    prepare+="${before:-true}; "
    turns+=("$command" "HITHER_PLACE_BOARD=$folder/board HITHER_PLACE_PLAN=\"\$(cat /tmp/plan)\" LD_PRELOAD=$shim $command")
  done << END
bash, /bin/true 100 times|bash||bash -c 'for i in {1..100}; do /bin/true; done'
bash|bash||bash $folder/script.bash
bash, 42 programs|bash||bash $folder/programs.bash
python3, numpy|/usr/bin/python3|/usr/bin/python3 $folder/few.py|OPENBLAS_NUM_THREADS=1 PYTHONHASHSEED=1 /usr/bin/python3 $folder/few.py
redis-server|redis-server||bash $folder/few-redis.sh $folder
sqlite3|sqlite3||sqlite3 :memory: '.read $folder/few.sql'
postgres, single user|postgres|chown -R nobody $PGDATA|setpriv --reuid=nobody --clear-groups bash $folder/few-postgres.sh
64 threads, 2,000 each|$folder/placed||$folder/placed storm 64 2000
END
  while read -r word; do files+=(--file "$word"); done < <(sort -u <<< "$used" | grep .)
  local script="n=0; [ ! -f /tmp/turn ] || read -r n < /tmp/turn; echo \$((n + 1)) > /tmp/turn; case \$n in
    0) { $prepare } > /dev/null 2>&1; exec env HITHER_PRELOAD=$shim /hither/hither run --threads fill --place 'size>=64K: striped' -- sh -c 'echo \"\$HITHER_PLACE_PLAN\" | sed \"s/^board [^;]*/board \$(stat -c \"%d %i\" $folder/board) 0/\" > /tmp/plan';; esac
    case \$(((n - 1) % ${#turns[@]})) in "
  for number in "${!turns[@]}"; do script+="$number) ${turns[number]};; "; done
  if ! "$hither" lab compare --machine machines/opteron8385.toml --cpus 4 --timeout 20m --policies first-touch \
    --repeat $((3 * ${#turns[@]} + 1)) --json "$folder/report" --file "$shim" --file "$folder/board" "${files[@]}" \
    -- sh -c "$script esac" > /dev/null 2> "$folder/said"; then
    echo "not measured: the laboratory failed"
    tail -n 5 "$folder/said" >&2
    failed=1
    return
  fi
  printf '%-26s %12s %12s %10s\n' program 'alone, M' '>=64K, M' more
  for number in "${!names[@]}"; do
    jq -r --argjson turns ${#turns[@]} --argjson at $((2 * number)) '
      def median(at): [.rows[0].runs[1:] | to_entries[] | select(.key % $turns == at) | .value.instructions] | sort | .[1] / 1e6;
      "\(median($at)) \(median($at + 1))"' "$folder/report" \
      | awk -v name="${names[number]}" '{ printf "%-26s %12.3f %12.3f %+8.2f %%\n", name, $1, $2, 100 * ($2 / $1 - 1) }'
  done
}
# Less to do than above, for time there is modelled; what finds other rows fails. The guest has no compiled
# Python files of the right date: a first run, which is not measured, compiles them.
sed 's/60000/15000/' "$folder/rows.sql" > "$folder/few.sql"
sed 's/1500000/300000/; s/1000, 1500/600, 500/; s/range(20)/range(4)/; s/60000/10000/' "$folder/arrays.py" > "$folder/few.py"
awk 'BEGIN { for (i = 0; i < 30000; i++) printf "SET key:%d %d\r\nLPUSH list:%d %0200d\r\n", i, i * 7919, i % 300, i }' \
  > "$folder/few.redis"
# Waiting starts no program, for their number would differ from run to run.
cat > "$folder/few-redis.sh" << 'END'
cd "$1"; rm -f dump.rdb s wait; mkfifo wait; exec 9<> wait
redis-server --hz 1 --port 0 --unixsocket "$1/s" --save '' --daemonize no --logfile /dev/null & server=$!
until [ -S "$1/s" ]; do read -rt 0.02 -u 9; done
redis-cli -s "$1/s" --pipe < "$1/few.redis"; redis-cli -s "$1/s" dbsize | grep 30300 || exit 1; redis-cli -s "$1/s" save
redis-cli -s "$1/s" shutdown nosave; wait $server
END
sed 's/60000/10000/' "$folder/rows.line" > "$folder/few.line"
echo 'drop table t;' >> "$folder/few.line"
cat > "$folder/few-postgres.sh" << END
${postgres:-postgres} --single -D $PGDATA -c dynamic_shared_memory_type=mmap postgres < $folder/few.line 2>&1 \\
  | grep 'count = "999"'
END
in_lab

# glibc gives the freed end of an arena back to the kernel, and the next block there faults anew. With the
# shim the large blocks are in none of the 64 threads' arenas.
words=(/usr/bin/python3 -c 'import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt)' "$folder/placed" storm 64 2000)
echo "page faults of the 64 threads on this machine: $(run alone) alone, $(run large) with the shim," \
  "$(MALLOC_TRIM_THRESHOLD_=1000000000 run alone) alone where glibc is told to keep what is freed"

printf '\nLeaks: a stress of 64 threads that frees all it allocates, from 5,000 bytes on.\n'
"$hither" run --place 'heap,size>=5000: bind machine' --json "$folder/report" -- "$folder/placed" storm 64 20000 2> /dev/null
jq -r '.placed.shim | "\(.rules[0].blocks) blocks placed, \(.freed_blocks) given back, \(.rules[0].unplaced_blocks) went elsewhere"' \
  "$folder/report" || failed=1
jq -e '.placed.shim | .rules[0].blocks == .freed_blocks' "$folder/report" > /dev/null || failed=1

printf '\nForks while three threads allocate and a timer interrupts; every other child becomes a new program.\n'
start=$(date +%s)
timeout 3000 "$hither" run "${everything[@]}" --json "$folder/report" -- "$folder/placed" forks "$rounds" 2> /dev/null || failed=1
jq -r '"\(.placed.shim.processes) programs loaded the shim, \(.placed.shim.threads) threads placed"' "$folder/report"
echo "$(($(date +%s) - start)) s"
exit $failed
