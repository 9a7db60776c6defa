#!/usr/bin/env bash
# usage: link.sh LIBHITHER_A FOLDER
# Links the shared library that is installed, with soname and symbol versions, from the static one.
#
# Why not the libhither.so that cargo links: rustc hands the linker a version script of its own
# without a version name, and GNU ld refuses a second one beside it ("anonymous version tag cannot
# be combined with other version tags"), as it refuses a .symver directive whose version no script
# names. So cargo's has neither; it serves dlopen() and languages that need no versions.
set -euo pipefail
[ "$#" -eq 2 ] || { sed -n 's/^# usage: /usage: /p' "$0" >&2; exit 2; }
archive=$1 folder=$2
here=$(dirname "${BASH_SOURCE[0]}")
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/../../Cargo.toml")
soname=libhither.so.${version%%.*}

mapfile -t names < <(sed -n 's/^ *\(hither_[a-z_]*\);$/\1/p' "$here/hither.map")
# Each name pulls its object out of the archive; sections that nothing reaches are left out.
"${CC:-gcc}" -shared -o "$folder/libhither.so.$version" "${names[@]/#/-Wl,-u,}" "$archive" \
  -Wl,-soname,"$soname" -Wl,--version-script="$here/hither.map" \
  -Wl,--gc-sections -Wl,--no-undefined -Wl,-z,relro,-z,now -Wl,--as-needed \
  -lgcc_s -lrt -lpthread -lm -ldl -lc
ln -sfn "libhither.so.$version" "$folder/$soname"
ln -sfn "$soname" "$folder/libhither.so"
