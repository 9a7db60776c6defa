#!/usr/bin/env bash
# usage: install.sh LIBHITHER_A
# Installs the C library: header, libraries, pkg-config file, manual pages. `make install` calls
# it. Folders come from the environment: PREFIX (/usr/local), LIBDIR, INCLUDEDIR, MANDIR, and
# DESTDIR before all of them, for packagers.
set -euo pipefail
[ "$#" -eq 1 ] || { sed -n 's/^# usage: /usage: /p' "$0" >&2; exit 2; }
archive=$1
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
prefix=${PREFIX:-/usr/local}
libdir=${LIBDIR:-$prefix/lib}
includedir=${INCLUDEDIR:-$prefix/include}
mandir=${MANDIR:-$prefix/share/man}
root=${DESTDIR:-}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/../../Cargo.toml")

install -d "$root$libdir/pkgconfig" "$root$includedir" "$root$mandir/man3" "$root$mandir/man7"
"$here/link.sh" "$archive" "$root$libdir"
install -m 644 "$archive" "$root$libdir/libhither.a"
install -m 644 "$here/include/hither.h" "$root$includedir/hither.h"
install -m 644 "$here/include/hither.hpp" "$root$includedir/hither.hpp"
sed -e "s|@PREFIX@|$prefix|; s|@LIBDIR@|$libdir|; s|@INCLUDEDIR@|$includedir|" \
  -e "s|@VERSION@|$version|" "$here/hither.pc.in" > "$root$libdir/pkgconfig/hither.pc"
chmod 644 "$root$libdir/pkgconfig/hither.pc"

# A page that describes several functions is found by the name of each.
for page in "$here"/../../docs/man/*.[37]; do
  file=${page##*/} section=${page##*.}
  install -m 644 "$page" "$root$mandir/man$section/$file"
  sed -n '/^\.SH NAME/,/^\.SH SYNOPSIS/ s/^\(hither_[a-z_]*\).*/\1/p' "$page" |
    while read -r name; do
      [ "$name.$section" = "$file" ] && continue
      echo ".so man$section/$file" > "$root$mandir/man$section/$name.$section"
    done
done
