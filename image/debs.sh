#!/usr/bin/env bash
# Stage `debs`: download the .deb files that image/packages.txt wants, and what they bring, into OUT_DIR.
#
#   image/debs.sh PACKAGES OUT_DIR
#
# SNAPSHOT, if set, is Debian's archive of one day at its snapshot service (http://…/archive/debian/20261129T000000Z);
# otherwise the base's own mirrors are asked.
set -Eeuo pipefail
packages=$1 out=$2

if [[ -n ${SNAPSHOT-} ]]; then
  rm -f /etc/apt/sources.list.d/*
  # The base has security updates: without theirs, libc6-dev would want an older libc6 than is there.
  security=${SNAPSHOT/\/archive\/debian\//\/archive\/debian-security\/}
  printf 'deb [check-valid-until=no] %s main\n' "$SNAPSHOT bookworm" "$SNAPSHOT bookworm-updates" \
    "$security bookworm-security" >/etc/apt/sources.list
fi
options=(-o APT::Sandbox::User=root -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o "Dir::Cache::archives=$out")
mkdir -p "$out/partial"
apt-get "${options[@]}" update
grep -oE '^[a-z0-9][a-z0-9.+-]*' "$packages" |
  xargs apt-get "${options[@]}" install -y --no-install-recommends --download-only
rm -rf "$out/partial" "$out/lock"
