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
if grep -q '^torch==' "$chosen" && [[ -s /run/torch-cpu-index ]] && ! compgen -G '/wheelhouse/torch-*' >/dev/null; then
  options+=(--extra-index-url "$(</run/torch-cpu-index)")
fi
pip install "${options[@]}" -r "$chosen"

# What no run needs. Static libraries that nothing links (extensions take CUDA's runtime, the rest of a wheel is shared);
# programs and libraries of torch's own C++ tests; tests of packages that are large. Not numpy's: numpy.testing imports them.
cd /opt/venv/lib/python3.11/site-packages
find . -name '*.a' ! -name libcudadevrt.a ! -name libcudart_static.a -delete
rm -rf torch/test pyarrow/tests supervisor/tests tornado/test
[[ ! -d torch/bin ]] || find torch/bin -type f ! -name torch_shm_manager -delete
for package in sympy networkx; do
  [[ ! -d $package ]] || find "$package" -name tests -prune -exec rm -rf {} +
done
