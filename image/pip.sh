#!/usr/bin/env bash
# Install from locks, with hashes, into /opt/venv: the packages whose names match, or with `!` in front all others that
# are not there yet. One call is one layer, or part of one.
#
#   image/pip.sh 'torch|triton' LOCK…        image/pip.sh '!deepspeed' LOCK…
#
# pip writes the .pyc files itself, by hash because SOURCE_DATE_EPOCH is set, and each one once: two layers that hold
# the same .pyc would hold it twice.
set -Eeuo pipefail
names=$1
shift

chosen=$(mktemp)
trap 'rm -f "$chosen"' EXIT
awk -v names="^(${names#!})==" -v others="$([[ $names == !* ]] && echo 1 || echo 0)" \
  '/^[A-Za-z0-9]/ {take = ($1 ~ names) != others} take' "$@" >"$chosen"

options=(--no-deps --require-hashes --only-binary :all:)
# torch's CPU wheels have an index of their own, which is not asked where the wheelhouse has them; the hashes in cpu.txt
# fit no other build.
if grep -q '^torch==' "$chosen" && [[ -n ${TORCH_CPU_INDEX-} ]] && ! compgen -G '/wheelhouse/torch-*' >/dev/null; then
  options+=(--extra-index-url "$TORCH_CPU_INDEX")
fi
pip install --progress-bar off "${options[@]}" -r "$chosen"

# Static libraries that nothing links: extensions take CUDA's runtime, the rest of a wheel is shared.
find /opt/venv/lib -name '*.a' ! -name libcudadevrt.a ! -name libcudart_static.a -delete
