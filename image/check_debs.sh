#!/usr/bin/env bash
# Stage `debs-checked`: list a folder of .deb files, and say which of them no lock has.
#
#   image/check_debs.sh DEBS LOCK...      # DEBS_LOCKED=1: such a file is an error
#
# A smaller base image than the locks were made on wants packages that the lock of the base has.
set -Eeuo pipefail
debs=$1
shift

list=$("$(dirname "$0")/list_debs.sh" "$debs")
if unlocked=$(grep -vxFf <(cat "$@") <<<"$list"); then
  printf '%s\n' "$unlocked" "these packages are not those of requirements/debs.txt: the mirror has moved on (docs/image.md)" >&2
  [[ ${DEBS_LOCKED:-0} == 0 ]] || exit 1
fi
printf '%s\n' "$list"
