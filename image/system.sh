#!/usr/bin/env bash
# Stage `system`: install every .deb of a folder, and leave nothing that a run does not need or that differs between builds.
set -Eeuo pipefail
debs=$1

export DEBIAN_FRONTEND=noninteractive
apt-get install -y --no-install-recommends "$debs"/*.deb

# Static libraries nothing links here. Kept: those that are the only form of a -l that compilers pass (libc's empty ones,
# libgcc) and what a shared link itself takes from an archive (libc_nonshared).
find /usr/lib -name '*.a' ! -name 'libgcc*.a' ! -name '*_nonshared.a' ! -name 'lib[dpru]*.a' -size +64k -delete
rm -f /usr/lib/python3.11/config-*/libpython3.11*.a /usr/lib/gcc/*/*/lib{asan,tsan,ubsan,lsan,hwasan}.a

# A key that is in an image is everybody's: they are made at the first start.
rm -f /etc/ssh/ssh_host_*
# Logs, caches and backups hold times.
rm -rf /var/log/* /var/cache/apt/* /var/cache/debconf/*-old /var/cache/ldconfig/aux-cache /var/lib/apt/lists/* /var/lib/dpkg/*-old
rm -f /etc/machine-id /var/lib/dbus/machine-id

# Debian's .pyc files hold the source's time, which the build clamps later: by hash instead.
PYTHONHASHSEED=0 python3.11 -m compileall -q -f --invalidation-mode checked-hash /usr/lib/python3.11 -x '/(test|lib2to3/tests)/'
find /usr/lib/python3 /usr/share -name __pycache__ -prune -exec rm -rf {} +
