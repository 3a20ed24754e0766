#!/usr/bin/env bash
# The lock of a folder of .deb files: `name version sha256`, one a line.
set -Eeuo pipefail
for file in "$1"/*.deb; do
  printf '%s %s\n' "$(dpkg-deb --show --showformat '${Package} ${Version}' "$file")" "$(sha256sum "$file" | cut -d ' ' -f 1)"
done | LC_ALL=C sort
