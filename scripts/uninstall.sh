#!/usr/bin/env bash
# usage: uninstall.sh BUILT
# Removes what `make install` of these sources put there, and the folders that are empty then. Takes the
# same variables. A configuration that differs from the one that is installed stays, and is named.
set -euo pipefail
[ "$#" -eq 1 ] || { sed -n 's/^# usage: /usage: /p' "$0" >&2; exit 2; }
built=$1
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
root=${DESTDIR:-}
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

# The list is what an installation into an empty folder holds.
DESTDIR=$made "$tree/scripts/install.sh" "$built"
DESTDIR=$made "$tree/crates/capi/install.sh" "$built/libhither.a"
cd "$made"
find . ! -type d | while read -r file; do
  installed=$root/${file#./}
  if [ "${file##*/}" = hither.toml ] && [ -e "$installed" ] && ! cmp -s "$file" "$installed"; then
    echo "$installed was changed, and stays"
    continue
  fi
  rm -f "$installed"
done
# Folders that are empty now, but for those that a system has before anything is installed.
prefix=${PREFIX:-/usr/local}
find . -mindepth 1 -depth -type d | while read -r folder; do
  case ${folder#.} in
    /etc | "$prefix" | "$prefix"/bin | "$prefix"/lib | "$prefix"/include | "$prefix"/share | "$prefix"/share/man) ;;
    *) rmdir "$root/${folder#./}" 2> /dev/null || true ;;
  esac
done
