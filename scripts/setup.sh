#!/usr/bin/env bash
# usage: setup.sh [--evidence|--drawings]
# Gets what building, testing and the laboratory need. Installs only what is missing: as root by
# apt, otherwise it prints the command and stops with status 2. A second run takes no time.
# --evidence adds the third-party programs that `make evidence` measures, --drawings the browser
# (300 MB) in which `make drawings` looks at charts and pages.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# gcc and libc6-dev link Rust programs, g++ builds programs that tests start; busybox-static and
# numactl go into the guest; strace counts system calls in a test; programs with other allocators
# (jemalloc, mimalloc) are tested under the shim; valgrind, groff-base and pkgconf test the C library
# and its manual; python3-venv tests the Python package; e2fsprogs makes disks of guests (`--disk`).
packages=(gcc g++ libc6-dev make busybox-static numactl strace valgrind groff-base e2fsprogs pkgconf libjemalloc2
  libmimalloc2.0 python3-venv)
evidence_packages=(sqlite3 redis-server python3-numpy postgresql golang-go zstd stress-ng mbw sysbench likwid
  linux-perf jq bsdextrautils)
drawings_packages=(chromium fonts-dejavu-core)
qemu_package=qemu-system-x86
# The laboratory is built for plugin interface version 4 and tested with QEMU 10.0, which has it.
qemu_least=10.0
backports=bookworm-backports

stop() {
  printf 'set-up: %s\n' "$@" >&2
  exit 2
}

installed() {
  [ "$(dpkg-query -W -f='${db:Status-Abbrev}' "$1" 2>/dev/null)" = "ii " ]
}

qemu_is_new_enough() {
  local version
  version=$(qemu-system-x86_64 --version 2>/dev/null | sed -n 's/^QEMU emulator version \([0-9.]*\).*/\1/p')
  [ -n "$version" ] && [ "$(printf '%s\n' "$qemu_least" "$version" | sort -V | head -n 1)" = "$qemu_least" ]
}

# The address of this machine's own Debian mirror, which has the backports too.
mirror() {
  apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' |
    sed -n 's/ bookworm$//p' | head -n 1
}

has_backports() {
  apt-get indextargets --format '$(CODENAME)' 'Created-By: Packages' | grep -qx "$backports"
}

as_root() {
  if [ "$(id -u)" -ne 0 ]; then
    stop "this needs root: $what" "run as root, then repeat:" "  $*"
  fi
  printf 'set-up: %s\n' "$*"
  "$@"
}

install_packages() {
  local missing=() package
  for package in "$@"; do
    installed "$package" || missing+=("$package")
  done
  [ "${#missing[@]}" -eq 0 ] && return
  what="Debian packages are missing: ${missing[*]}"
  if [ "$(id -u)" -ne 0 ]; then
    as_root apt-get install --yes --no-install-recommends "${missing[@]}"
  fi
  as_root apt-get update -q
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install --yes -q --no-install-recommends "${missing[@]}"
}

install_qemu() {
  qemu_is_new_enough && return
  local list=/etc/apt/sources.list.d/hither-backports.list uri command
  command="apt-get install --yes --no-install-recommends -t $backports $qemu_package"
  what="QEMU $qemu_least or newer is missing (it is in $backports)"
  if ! has_backports; then
    uri=$(mirror)
    [ -n "$uri" ] || stop "$what" "and apt knows no Debian 12 mirror: add one that has" \
      "$backports to /etc/apt/sources.list, then repeat"
    if [ "$(id -u)" -ne 0 ]; then
      stop "this needs root: $what" "run as root, then repeat:" \
        "  echo 'deb $uri $backports main' > $list && apt-get update && $command"
    fi
    printf 'set-up: adding %s to %s\n' "$backports" "$list"
    printf 'deb %s %s main\n' "$uri" "$backports" > "$list"
  fi
  [ "$(id -u)" -eq 0 ] && as_root apt-get update -q
  as_root env DEBIAN_FRONTEND=noninteractive $command
  qemu_is_new_enough || stop "QEMU is still older than $qemu_least:" \
    "look at \`apt-cache policy $qemu_package\`"
}

check_rust() {
  local wanted
  wanted=$(sed -n 's/^channel = "\(.*\)"/\1/p' rust-toolchain.toml)
  if ! command -v cargo > /dev/null; then
    stop "Rust is missing: get rustup as www.rust-lang.org/tools/install describes," \
      "or unpack the toolchain $wanted and put its bin folder into PATH; then repeat"
  fi
  # Under rustup this fetches the pinned toolchain where it is not there yet.
  if ! rustc --version > /dev/null 2>&1; then
    stop "rustc does not run: install the pinned toolchain with" \
      "  rustup toolchain install $wanted --profile minimal --component clippy,rustfmt"
  fi
  case "$(rustc --version)" in
    "rustc $wanted "*) ;;
    *) stop "rustc is $(rustc --version), but this builds with $wanted (rust-toolchain.toml):" \
      "  rustup toolchain install $wanted --profile minimal --component clippy,rustfmt" ;;
  esac
}

case "${1:-}" in
  "") ;;
  --evidence) packages+=("${evidence_packages[@]}") ;;
  --drawings) packages+=("${drawings_packages[@]}") ;;
  *) stop "there is no option $1: --evidence, --drawings, or nothing" ;;
esac
if [ "$(uname -m)" != x86_64 ]; then
  stop "this is $(uname -m); the laboratory emulates x86-64 on x86-64: use such a machine"
fi
if command -v apt-get > /dev/null && command -v dpkg-query > /dev/null; then
  install_packages "${packages[@]}"
  install_qemu
else
  for program in gcc make busybox numactl strace valgrind groff pkg-config python3 qemu-system-x86_64; do
    command -v "$program" > /dev/null || stop "$program is missing, and without apt it is not" \
      "installed from here: install it (Debian's packages: ${packages[*]} $qemu_package)"
  done
  qemu_is_new_enough || stop "QEMU $qemu_least or newer is needed: install it"
fi
check_rust
