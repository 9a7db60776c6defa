#!/usr/bin/env bash
# Gets the numactl of Debian 13 with the libraries that it needs into target/numactl, for the boot
# test that compares `--weighted-interleave`, which Debian 12's has not. Installs nothing: apt works
# in a folder of its own. A second run takes no time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

suite=trixie
packages=(numactl libnuma1 libc6)
folder=$PWD/target/numactl
[ -x "$folder/numactl" ] && exit

mirror=$(apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' |
  sed -n 's/ bookworm$//p' | head -n 1)
[ -n "$mirror" ] || mirror=http://deb.debian.org/debian/
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{state/lists/partial,cache/archives/partial,empty,root}
touch "$work/status"
echo "deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" \
  > "$work/sources.list"
cat > "$work/apt.conf" << END
#clear APT::Update;
#clear DPkg;
Dir::State "$work/state";
Dir::State::status "$work/status";
Dir::Cache "$work/cache";
Dir::Etc::SourceList "$work/sources.list";
Dir::Etc::SourceParts "$work/empty";
Dir::Etc::PreferencesParts "$work/empty";
Acquire::Languages "none";
Acquire::Retries "2";
APT::Architecture "amd64";
APT::Architectures { "amd64"; };
APT::Sandbox::User "root";
END
cd "$work"
apt-get -c apt.conf -qq update --error-on=any
apt-get -c apt.conf -qq download "${packages[@]}"
for package in *.deb; do
  dpkg-deb --extract "$package" root
done
# The program's own loader and libraries, beside it.
mkdir -p "$folder"
library=root/usr/lib/x86_64-linux-gnu
cp -L "$library"/{ld-linux-x86-64.so.2,libc.so.6,libm.so.6,libnuma.so.1} "$folder/"
# Last: whoever finds it finds the rest.
cp root/usr/bin/numactl "$folder/numactl"
