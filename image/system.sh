#!/usr/bin/env bash
# Stage `system`: install every .deb of a folder, and leave nothing that no run needs or that two builds do not share.
#
#   image/system.sh DEBS LIST      # LIST: what image/check_debs.sh wrote, which the image keeps
set -Eeuo pipefail
debs=$1 list=$2

mkdir -p /opt/roundhouse
cp "$list" /opt/roundhouse/debs.txt

export DEBIAN_FRONTEND=noninteractive
apt-get install -y --no-install-recommends -o Dpkg::Options::=--force-unsafe-io "$debs"/*.deb

# Static libraries that nothing here links. Small ones are kept: libc's are empty or parts of a shared link.
find /usr/lib -name '*.a' -size +200k ! -name 'libgcc*.a' -delete
# Names of hardware for a udev that runs in no container, and a compiler's stage for -flto.
rm -rf /usr/lib/udev/hwdb.d /etc/udev/hwdb.bin /usr/lib/udev/hwdb.bin /usr/lib/gcc/*/*/lto1
# Keys that are in an image are everybody's: a container makes its own.
rm -f /etc/ssh/ssh_host_*
# Logs, caches and backups hold times; lists and .deb files are of no use later.
rm -rf /var/log/* /var/cache/apt/* /var/cache/debconf/*-old /var/cache/ldconfig/aux-cache /var/lib/apt/lists/*
rm -rf /var/lib/dpkg/*-old /etc/machine-id /var/lib/dbus/machine-id

# Debian's .pyc files hold the time of the source, which the export of the image clamps: by hash instead.
find /usr/lib/python3 /usr/share -name __pycache__ -prune -exec rm -rf {} +
PYTHONHASHSEED=0 python3.11 -m compileall -q -f --invalidation-mode checked-hash -x '/(test|tests|lib2to3)/' /usr/lib/python3.11
