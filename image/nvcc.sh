#!/usr/bin/env bash
# nvcc whose output depends on its input alone. Left alone it takes names of symbols from random numbers and names of
# temporary files; its manual wants another seed for each file.
set -Eeuo pipefail
seed=deepspeed
arguments=()
for argument in "$@"; do
  case $argument in
    *.cu) seed=$argument ;;
    -lineinfo) continue ;; # has the time of each header, which is when pip unpacked it
  esac
  arguments+=("$argument")
done
exec "$CUDA_HOME/bin/nvcc" "${arguments[@]}" --frandom-seed="$seed" -objtemp
