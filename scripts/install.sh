#!/usr/bin/env bash
# usage: install.sh BUILT
# Installs the command from the folder that cargo built it in: program, shim, the laboratory's plugin,
# machine files, manual pages, completions. `make install` calls it. Folders come from the environment:
# PREFIX (/usr/local), MANDIR, and DESTDIR before all of them, for packagers. The parts lie in
# $PREFIX/lib/hither and $PREFIX/share/hither, where the program looks from its own place (crates/linux,
# parts.rs).
set -euo pipefail
[ "$#" -eq 1 ] || { sed -n 's/^# usage: /usage: /p' "$0" >&2; exit 2; }
built=$1
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
prefix=${PREFIX:-/usr/local}
mandir=${MANDIR:-$prefix/share/man}
root=${DESTDIR:-}
share=$root$prefix/share

for file in hither libhither_preload.so libhither_plugin.so; do
  [ -f "$built/$file" ] || { echo "$built/$file is not there; run \`make build\` first" >&2; exit 2; }
done
install -d "$root$prefix/bin" "$root$prefix/lib/hither" "$share/hither/machines" "$root$mandir/man1" \
  "$share/bash-completion/completions" "$share/zsh/site-functions" "$share/fish/vendor_completions.d"
install -m 755 "$built/hither" "$root$prefix/bin/hither"
install -m 644 "$built/libhither_preload.so" "$built/libhither_plugin.so" "$root$prefix/lib/hither/"
install -m 644 "$tree"/machines/*.toml "$share/hither/machines/"

made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"$built/hither" generate man "$made"
install -m 644 "$made"/*.1 "$root$mandir/man1/"
completions() {
  "$built/hither" generate completions "$1" > "$made/completions"
  install -m 644 "$made/completions" "$share/$2"
}
completions bash bash-completion/completions/hither
completions zsh zsh/site-functions/_hither
completions fish fish/vendor_completions.d/hither.fish
