#!/usr/bin/env bash
# usage: deb.sh BUILT OUTDIR
# Makes OUTDIR/hither_VERSION_ARCH.deb of what `make install` installs, with PREFIX=/usr, from the folder
# that cargo built it in. Needs dpkg-deb, and strip where gcc is; dpkg-shlibdeps (dpkg-dev) computes what the
# package depends on, without it the C library that this machine has is asked for.
#
# Why not cargo-deb: it packages what cargo builds by a list of files in Cargo.toml. Manual pages,
# completions, the versioned C library and the units are made and placed by the install scripts, which
# packagers of other systems use too; the list would say all of that a second time.
#
# The same sources and tools make the same bytes: times are those of the last commit, or SOURCE_DATE_EPOCH.
set -euo pipefail
[ "$#" -eq 2 ] || { sed -n 's/^# usage: /usage: /p' "$0" >&2; exit 2; }
built=$(realpath "$1")
mkdir -p "$2"
out=$(realpath "$2")
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
from=$tree/packaging/debian
umask 022
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
stage=$made/stage

version=$("$built/hither" --version | sed 's/^hither //')
architecture=$(dpkg --print-architecture)
multiarch=$(dpkg-architecture -qDEB_HOST_MULTIARCH 2> /dev/null || echo "$(uname -m)-linux-gnu")
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$tree" log -1 --format=%ct 2> /dev/null || date +%s)}

# From the environment come names of folders for `make install`, which are others here.
unset MANDIR INCLUDEDIR
export PREFIX=/usr SYSCONFDIR=/etc LIBDIR=/usr/lib/$multiarch DESTDIR=$stage
"$tree/scripts/install.sh" "$built"
"$tree/crates/capi/install.sh" "$built/libhither.a"

# In Debian's way: no debug data, manual pages compressed without a time, zsh's folder for packages.
objects=("$stage/usr/bin/hither" "$stage"/usr/lib/hither/*.so "$stage$LIBDIR"/libhither.so.*.*)
strip --strip-unneeded --remove-section=.comment --remove-section=.note "${objects[@]}"
strip --strip-debug --remove-section=.comment --enable-deterministic-archives \
  "$stage$LIBDIR/libhither.a"
chmod 644 "$stage$LIBDIR"/libhither.so.*.*
mv "$stage/usr/share/zsh/site-functions" "$stage/usr/share/zsh/vendor-completions"
find "$stage/usr/share/man" -type f -exec gzip -9n {} +

# Copyright, changes: the project's own, and one entry in Debian's form.
doc=$stage/usr/share/doc/hither
install -d "$doc"
sed -n '/^Permission/,$ { s/^$/./; s/^/ /; p }' "$tree/LICENSE-MIT" > "$made/mit"
sed -e "s/@YEAR@/$(date -ud "@$SOURCE_DATE_EPOCH" +%Y)/" -e "/^@MIT@\$/{r $made/mit" -e 'd}' \
  "$from/copyright" > "$doc/copyright"
gzip -9nc "$tree/CHANGELOG.md" > "$doc/CHANGELOG.md.gz"
{
  printf 'hither (%s) unstable; urgency=medium\n\n' "$version"
  printf '  * What changed for users: CHANGELOG.md.gz beside this file.\n\n'
  printf ' -- %s  %s\n' "$(sed -n 's/^Maintainer: //p' "$from/control.in")" "$(date -uRd "@$SOURCE_DATE_EPOCH")"
} | gzip -9nc > "$doc/changelog.gz"
install -Dm 644 "$from/lintian-overrides" "$stage/usr/share/lintian/overrides/hither"

# What is linked says what is needed. The folder DEBIAN tells dpkg-shlibdeps where the package begins.
install -d "$stage/DEBIAN"
if command -v dpkg-shlibdeps > /dev/null; then
  mkdir "$made/debian"
  printf 'Source: hither\n\nPackage: hither\nArchitecture: any\n' > "$made/debian/control"
  depends=$(cd "$made" && dpkg-shlibdeps -O -xhither "${objects[@]/#/-e}" | sed -n 's/^shlibs:Depends=//p')
else
  depends="libc6 (>= $(ldd --version | sed -n '1s/.* //p')), libgcc-s1"
fi
[ -n "$depends" ] || { echo "what the package depends on could not be told" >&2; exit 1; }

# Sizes of files by KiB each, of links and folders 1 KiB: as Debian's tools count it.
size=$(find "$stage" -mindepth 1 -path "$stage/DEBIAN" -prune -o \( -type f -printf '%s\n' -o -printf '1\n' \) |
  awk '{n += int(($1 + 1023) / 1024)} END {print n}')
sed -e "s/@VERSION@/$version/; s/@ARCHITECTURE@/$architecture/; s/@SIZE@/$size/; s/@DEPENDS@/$depends/" \
  "$from/control.in" > "$stage/DEBIAN/control"
install -m 755 "$from/postinst" "$from/prerm" "$from/postrm" "$stage/DEBIAN/"
echo /etc/hither/hither.toml > "$stage/DEBIAN/conffiles"
# The C library is in a folder that programs are linked from.
echo 'activate-noawait ldconfig' > "$stage/DEBIAN/triggers"
printf 'libhither %s hither\n' "${version%%.*}" > "$stage/DEBIAN/shlibs"
(cd "$stage" && find . -path ./DEBIAN -prune -o -path ./etc -prune -o -type f -printf '%P\0' |
  LC_ALL=C sort -z | xargs -0 md5sum > DEBIAN/md5sums)

package=$out/hither_${version}_$architecture.deb
dpkg-deb --root-owner-group --build "$stage" "$package" > /dev/null
echo "$package"
