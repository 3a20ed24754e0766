#!/usr/bin/env bash
# Install from locks, with hashes, into /opt/venv: the packages whose names match, or with `!` in front all others.
#
#   image/pip.sh 'torch|triton' LOCK…        image/pip.sh '!torch|triton' LOCK…
#
# Each layer is one call. pip writes the .pyc files itself: by hash (SOURCE_DATE_EPOCH is set), in one fixed order.
set -Eeuo pipefail
names=$1
shift

chosen=$(mktemp)
trap 'rm -f "$chosen"' EXIT
awk -v names="^(${names#!})==" -v rest="$([[ $names == !* ]] && echo 1 || echo 0)" \
  '/^[A-Za-z0-9]/ {take = ($1 ~ names) != rest} take' "$@" >"$chosen"

export PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PYTHONHASHSEED=0
[[ ! -s /run/secrets/ca ]] || export PIP_CERT=/run/secrets/ca
[[ ! -s /run/secrets/pip ]] || export PIP_CONFIG_FILE=/run/secrets/pip
options=(--no-deps --require-hashes --only-binary :all: --find-links /wheelhouse)
# torch's CPU wheels are on an index of their own; the hashes in cpu.txt take no other build.
if grep -q '^torch==' "$chosen" && [[ -n ${TORCH_CPU_INDEX-} ]] && ! compgen -G '/wheelhouse/torch-*' >/dev/null; then
  options+=(--extra-index-url "$TORCH_CPU_INDEX")
fi
/opt/venv/bin/pip install "${options[@]}" -r "$chosen"
