#!/usr/bin/env bash
# usage: install.sh BUILT
# Installs the command from the folder that cargo built it in: program, shim, the laboratory's plugin,
# machine files, manual pages, completions, Slurm's scripts, and what the daemon needs: its units, its
# configuration, the dashboard and alerts over its metrics. `make install` calls it. Folders come from the environment: PREFIX
# (/usr/local), MANDIR, SYSCONFDIR, and DESTDIR before all of them, for packagers. The parts lie in
# $PREFIX/lib/hither and $PREFIX/share/hither, where the program looks from its own place (crates/linux,
# parts.rs). SYSCONFDIR is /etc where PREFIX is /usr or /usr/local, else $PREFIX/etc, so that an installation
# elsewhere stays in one folder. A configuration that is there is left alone. No unit is enabled.
set -euo pipefail
[ "$#" -eq 1 ] || { sed -n 's/^# usage: /usage: /p' "$0" >&2; exit 2; }
built=$1
tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
prefix=${PREFIX:-/usr/local}
mandir=${MANDIR:-$prefix/share/man}
case $prefix in
  /usr | /usr/local) sysconfdir=${SYSCONFDIR:-/etc} ;;
  *) sysconfdir=${SYSCONFDIR:-$prefix/etc} ;;
esac
root=${DESTDIR:-}
share=$root$prefix/share

for file in hither libhither_preload.so libhither_mirror.so libhither_plugin.so; do
  [ -f "$built/$file" ] || { echo "$built/$file is not there; run \`make build\` first" >&2; exit 2; }
done
install -d "$root$prefix/bin" "$root$prefix/lib/hither" "$share/hither/machines" "$root$mandir/man1" \
  "$share/bash-completion/completions" "$share/zsh/site-functions" "$share/fish/vendor_completions.d"
install -m 755 "$built/hither" "$root$prefix/bin/hither"
install -m 644 "$built/libhither_preload.so" "$built/libhither_mirror.so" "$built/libhither_plugin.so" "$root$prefix/lib/hither/"
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

# The units name the program by its path, and the configuration where it is not the program's own choice.
units=$root$prefix/lib/systemd/system
daemon="$prefix/bin/hither daemon"
[ "$sysconfdir" = /etc ] || daemon+=" --config $sysconfdir/hither/hither.toml"
install -d "$units" "$share/hither/systemd" "$root$sysconfdir/hither"
sed -e "s|^ExecStart=.*|ExecStart=$daemon|" -e "s|/usr/bin/hither daemon --restore|$prefix/bin/hither daemon --restore|" \
  "$tree/packaging/systemd/hither.service" > "$made/unit"
install -m 644 "$made/unit" "$units/hither.service"
install -m 644 "$tree/packaging/systemd/hither.socket" "$units/"
install -m 644 "$tree"/packaging/systemd/*.conf "$share/hither/systemd/"
[ -e "$root$sysconfdir/hither/hither.toml" ] ||
  install -m 644 "$tree/packaging/hither.toml" "$root$sysconfdir/hither/hither.toml"

for kind in grafana prometheus; do
  for file in "$tree/packaging/$kind"/*.{json,yml}; do
    [[ -f $file && $file != *-test.yml ]] || continue
    install -d "$share/hither/$kind"
    install -m 644 "$file" "$share/hither/$kind/"
  done
done
install -d "$share/hither/slurm"
install -m 755 "$tree"/packaging/slurm/{prolog,epilog}.sh "$share/hither/slurm/"
