#!/usr/bin/env bash
# Stage `debs`: download the .deb files that image/packages.txt wants, and what they bring, into OUT_DIR.
# SNAPSHOT, if set, is the address of Debian's archive on one day (its snapshot service); else the base's own mirror.
set -Eeuo pipefail
packages=$1 out=$2

if [[ -n ${SNAPSHOT-} ]]; then
  rm -f /etc/apt/sources.list.d/debian.sources
  printf 'deb [check-valid-until=no] %s bookworm main\n' "$SNAPSHOT" >/etc/apt/sources.list
fi
# apt has no CA bundle yet in a bare base; the build's own is given to it.
options=(-o APT::Sandbox::User=root -o APT::Keep-Downloaded-Packages=true -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache=)
[[ ! -s /run/secrets/ca ]] || options+=(-o Acquire::https::CAInfo=/run/secrets/ca)
mkdir -p "$out/partial"
apt-get "${options[@]}" update
grep -oE '^[a-z0-9][a-z0-9.+-]*' "$packages" |
  xargs apt-get "${options[@]}" -o "Dir::Cache::archives=$out" install -y --no-install-recommends --download-only
rm -rf "$out/partial" "$out/lock"
