#!/usr/bin/env bash
# usage: deb-test.sh [--no-daemon] DEB [bookworm|trixie]
# Installs a package in a fresh Debian (bookworm unless named), uses it, upgrades, removes and purges it, and
# checks that nothing is left. The Debian is made once by debootstrap, from the mirror that apt has here, and
# kept in ~/.cache/hither. It runs under systemd-nspawn with systemd as its first process, so that the units are
# tested as they are; it has this machine's kernel, /sys and /proc/sys read-only, and no network.
#
# Needs root, the packages debootstrap and systemd-container, and a machine on which systemd-nspawn can start
# (a virtual machine does, an ordinary container does not). --no-daemon leaves out what needs `hither daemon`.
set -euo pipefail
stop() {
  printf 'deb-test: %s\n' "$@" >&2
  exit 2
}
daemon=yes
[ "${1:-}" != --no-daemon ] || { daemon=no; shift; }
suite=${2:-bookworm}
[[ $# = [12] ]] || { sed -n 's/^# usage: /usage: /p' "$0" >&2; exit 2; }
case $suite in bookworm | trixie) ;; *) stop "there is no suite $suite: bookworm or trixie" ;; esac
deb=$(realpath "$1")
[ -f "$deb" ] || stop "$deb is not there; run \`make deb\` first"
[ "$(id -u)" -eq 0 ] || stop "this makes a root folder of Debian and starts it: run as root"
for program in debootstrap systemd-nspawn; do
  command -v "$program" > /dev/null ||
    stop "$program is missing: apt-get install --no-install-recommends debootstrap systemd-container"
done

cache=${HITHER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/hither}
made=$(mktemp -d /var/tmp/hither-deb-test.XXXXXX)
root=$made/root
nspawn=
leader=
finish() {
  status=$?
  if [ -n "$nspawn" ]; then
    # The first signal ends it in order, the second at once.
    kill "$nspawn" 2> /dev/null && sleep 1 && kill "$nspawn" 2> /dev/null || true
    wait "$nspawn" 2> /dev/null || true
  fi
  if [ "$status" -ne 0 ]; then
    tail -n 20 "$made/console.txt" >&2 2> /dev/null || true
    echo "deb-test: $suite: FAILED" >&2
  fi
  rm -rf --one-file-system "$made"
}
trap finish EXIT

step() {
  printf 'deb-test: %s: %s\n' "$suite" "$1"
}
fail() {
  printf 'deb-test: %s: %s\n' "$suite" "$1" >&2
  if [ -n "$leader" ]; then
    inside systemctl --no-pager --full status hither.service hither.socket >&2 || true
    inside journalctl --no-pager -n 40 -u hither.service >&2 || true
  fi
  exit 1
}
inside() {
  nsenter --target "$leader" --all --root --wd -- env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root \
    LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive "$@"
}
# expect TEXT COMMAND...: the command succeeds and prints TEXT.
expect() {
  local text=$1 got
  shift
  got=$("$@" 2>&1) || fail "$*: status $?: $got"
  case $got in *"$text"*) ;; *) fail "$*: \"$text\" is not in: $got" ;; esac
}
# until_true SECONDS COMMAND...
until_true() {
  local end=$((SECONDS + $1))
  shift
  until "$@" > /dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.2
  done
}
unit() {
  inside systemctl show --value --property="$1" hither.service
}
is_pid_other() {
  [ "$(unit ActiveState)" = active ] && [ "$(unit MainPID)" != "$1" ] && [ "$(unit MainPID)" != 0 ]
}
metrics() {
  inside curl --silent --show-error --fail --max-time 10 --unix-socket /run/hither/metrics.sock \
    http://localhost/metrics
}
has_metric() {
  metrics | grep -Eq "$1"
}
# All names below the root but those of logs, caches, apt's own records and dpkg's copies of older states.
names() {
  cd "$root"
  {
    find . -xdev \( -path ./var/log -o -path ./var/cache -o -path ./var/lib/apt -o -path ./var/lib/dpkg/info \) \
      -prune -o -print | grep -Ev '^\./(var/lib/dpkg/([a-z]*-old|triggers)|run/|tmp/)'
    find ./var/lib/dpkg/info -name 'hither*'
  } | LC_ALL=C sort
  cd "$OLDPWD"
}

base=$cache/debian-$suite.tar
if [ ! -f "$base" ]; then
  step 'make a Debian'
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Codename: bookworm' | head -n 1)
  mkdir -p "$cache"
  debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,man-db,procps,curl "$suite" "$root" \
    "${mirror:-http://deb.debian.org/debian}" > "$made/console.txt"
  rm -f "$root"/var/cache/apt/archives/*.deb
  tar -C "$root" --numeric-owner --xattrs -cf "$base.part" .
  mv "$base.part" "$base"
else
  mkdir "$root"
  tar -C "$root" --numeric-owner --xattrs -xf "$base"
fi
cp "$deb" "$root/hither.deb"

step 'start it'
# What the daemon needs and a container has not by itself: perf's events. Control groups as Debian has them.
SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1 systemd-nspawn --directory="$root" --machine="hither-$suite-$$" --register=no \
  --keep-unit --private-network --console=pipe --capability=CAP_PERFMON --system-call-filter='perf_event_open move_pages' --boot \
  < /dev/null > "$made/console.txt" 2>&1 &
nspawn=$!
until_true 20 pgrep -P "$nspawn" || fail 'systemd-nspawn does not start here'
leader=$(pgrep -P "$nspawn" | head -n 1)
is_up() {
  case $(inside systemctl is-system-running) in running | degraded) ;; *) return 1 ;; esac
}
until_true 60 is_up || fail 'systemd does not come up'
names > "$made/before.txt"

step 'install'
expect 'Setting up hither' inside apt-get install --yes /hither.deb
for file in bin/hither lib/hither/libhither_preload.so lib/hither/libhither_mirror.so lib/systemd/system/hither.service \
  share/man/man1/hither.1.gz share/bash-completion/completions/hither share/doc/hither/copyright \
  share/hither/machines/opteron8385.toml; do
  [ -e "$root/usr/$file" ] || fail "/usr/$file is missing"
done
[ -f "$root/etc/hither/hither.toml" ] || fail 'the configuration is missing'
version=$(dpkg-deb --field "$deb" Version)
expect "hither $version" inside hither --version
expect node inside hither topo
expect 'Put memory where it is used' inside sh -c 'MANPAGER=cat man hither'
inside systemctl is-enabled --quiet hither.service && fail 'the service is enabled by itself'
inside systemctl is-active --quiet hither.service hither.socket && fail 'the service runs by itself'
expect "" inside systemd-analyze verify --man=no /usr/lib/systemd/system/hither.service
rating=$(inside systemd-analyze security --offline=true --no-pager /usr/lib/systemd/system/hither.service |
  sed -n 's/.*exposure level for hither.service: \([0-9.]*\).*/\1/p')
awk -v rating="$rating" 'BEGIN {exit !(rating > 0 && rating <= 2.5)}' ||
  fail "systemd rates the service $rating, which is not 2.5 or less"
step "systemd rates the service $rating"

if [ "$daemon" = yes ]; then
  step 'the daemon'
  expect "" inside hither config check
  expect "" inside systemctl start hither.service
  first=$(unit MainPID)
  expect "" inside hither status
  expect "" inside runuser -u nobody -- hither status
  has_metric '^hither_build_info\{' || fail 'metrics have no hither_build_info'
  has_metric '^# EOF' || fail 'metrics have no end'

  # A program of another user that asks for it is seen: that takes most of the capabilities.
  printf '\n[[target]]\nname = "volunteers"\nopt_in = true\ndry_run = true\n' >> "$root/etc/hither/hither.toml"
  expect "" inside hither config check
  expect "" inside systemd-run --quiet --uid=nobody --setenv=HITHER=on sleep 600
  expect "" inside systemctl reload hither.service
  until_true 20 has_metric '^hither_scope_processes\{.*target="volunteers".*\} [1-9]' ||
    fail 'a program of another user with HITHER=on is not in the target'
  [ "$(unit MainPID)" = "$first" ] || fail 'reload has started another daemon'

  step 'the daemon: kill -9, watchdog, socket'
  folder=$(inside stat -c %i /run/hither)
  inside kill -9 "$first"
  until_true 20 is_pid_other "$first" || fail 'after kill -9 it is not started again'
  [ "$(inside stat -c '%i %a' /run/hither)" = "$folder 711" ] || fail '/run/hither has not survived the restart'
  expect "" inside hither status
  inside mkdir -p /run/systemd/system/hither.service.d
  inside sh -c 'printf "[Service]\nWatchdogSec=3s\n" > /run/systemd/system/hither.service.d/test.conf'
  inside systemctl daemon-reload
  inside systemctl restart hither.service
  second=$(unit MainPID)
  sleep 7
  [ "$(unit MainPID)" = "$second" ] || fail 'the watchdog ends a daemon that works'
  inside kill -STOP "$second"
  until_true 40 is_pid_other "$second" || fail 'the watchdog does not end a daemon that hangs'
  inside rm -r /run/systemd/system/hither.service.d
  inside systemctl daemon-reload
  expect "" inside systemctl stop hither.service
  expect "" inside hither status
  [ "$(unit ActiveState)" = active ] || fail 'a request does not start the daemon'
  expect "" inside systemctl enable hither.service
fi

step 'upgrade'
echo '# an administrator was here' >> "$root/etc/hither/hither.toml"
before=$(unit MainPID)
expect 'Setting up hither' inside apt-get install --yes --reinstall /hither.deb
is_kept() {
  grep -q 'an administrator was here' "$root/etc/hither/hither.toml"
}
is_kept || fail 'the upgrade has overwritten the configuration'
if [ "$daemon" = yes ]; then
  until_true 20 is_pid_other "$before" || fail 'the upgrade has not replaced the daemon'
  expect enabled inside systemctl is-enabled hither.service
  expect "" inside hither status
fi

step 'remove'
expect 'Removing hither' inside apt-get remove --yes hither
[ -f "$root/etc/hither/hither.toml" ] || fail 'removing has taken the configuration'
[ ! -e "$root/usr/bin/hither" ] || fail 'removing has left the command'
inside pgrep -x hither > /dev/null && fail 'the daemon still runs'

step 'install again, purge'
expect 'Setting up hither' inside apt-get install --yes /hither.deb
is_kept || fail 'the configuration is not kept over remove and install'
[ "$daemon" = no ] || expect enabled inside systemctl is-enabled hither.service
expect 'Purging configuration files for hither' inside apt-get purge --yes hither
inside test ! -e /run/hither || fail '/run/hither is left'
expect "" inside systemctl daemon-reload
[ "$(unit LoadState)" = not-found ] || fail 'systemd still knows the service'
names > "$made/after.txt"
diff "$made/before.txt" "$made/after.txt" > "$made/left.txt" ||
  fail "files have come or gone: $(cat "$made/left.txt")"
step 'passed: nothing is left'
