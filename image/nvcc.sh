#!/usr/bin/env bash
# nvcc whose output depends on its input alone. Left alone it takes names of symbols from random numbers and names of
# temporary files; its manual wants another seed for each file.
set -Eeuo pipefail
seed=deepspeed
for argument in "$@"; do
  [[ $argument != *.cu ]] || seed=$argument
done
exec "$CUDA_HOME/bin/nvcc" "$@" --frandom-seed="$seed" -objtemp
