#!/usr/bin/env bash
# A Debian bookworm root file system for the build to start from, where there is no container registry (`make base`).
#
#   image/base.sh OUT_DIR      # rootfs.tar and base.txt, which lists each package with its version and sha256
#
# SOURCE_DATE_EPOCH must be set; the packages come from the mirror that this machine's own apt uses.
set -Eeuo pipefail
out=$1
: "${SOURCE_DATE_EPOCH:?the date of the files; make sets it from docker-bake.hcl}"

command -v mmdebstrap >/dev/null || { apt-get update -qq && apt-get install -qq -y --no-install-recommends mmdebstrap >&2; }
mapfile -t sources < <(apt-get indextargets --format 'deb $(REPO_URI) $(CODENAME) $(COMPONENT)' 'Created-By: Packages' |
  grep -E ' bookworm(-updates|-security)? main$' | sort -u)
if [[ ${sources[*]} == *@* ]]; then
  printf "error: apt's sources hold a name or password, which would be in the image\nfix: put it into /etc/apt/auth.conf\n" >&2
  exit 78
fi

mkdir -p "$out"
export PACKAGES=$out/packages
# As in Debian's own slim images: no manuals and no translations, here or in what is installed later. Licences stay.
# mmdebstrap copies this machine's name and name servers for apt, and leaves them.
mmdebstrap --variant=minbase --include=ca-certificates \
  --dpkgopt=force-unsafe-io \
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright' \
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/info/*' \
  --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/lintian/*' \
  --customize-hook='rm -f "$1/etc/hostname" "$1/etc/resolv.conf"' \
  --customize-hook='chroot "$1" dpkg-query -W -f "\${Package}=\${Version}\n" |
    xargs chroot "$1" apt-cache show --no-all-versions >"$PACKAGES"' \
  bookworm "$out/rootfs.part.tar" "${sources[@]}"
awk '/^Package:/ {name = $2} /^Version:/ {version = $2} /^SHA256:/ {print name, version, $2}' "$PACKAGES" |
  LC_ALL=C sort >"$out/base.txt"
rm "$PACKAGES"
mv "$out/rootfs.part.tar" "$out/rootfs.tar"
