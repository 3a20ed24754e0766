#!/usr/bin/env bash
#
# `fsdp` on one node with 8 GPUs, in Docker.
#
#   bash FILE   # in tmux, or with nohup
#
# /dev/shm has 64 MiB by default: data loaders and NCCL would die with a bus error. `docker stop` gives 10 s by
# default: too short for a last checkpoint. JupyterLab, where a password is set, is on 127.0.0.1 only: `ssh -L
# 8888:localhost:8888 MACHINE`.
set -Eeuo pipefail
volume="$HOME"/workspace
mkdir -p "$volume"

exec docker run --rm --name roundhouse \
  --gpus all \
  --publish 127.0.0.1:8888:8888 \
  --shm-size 16g \
  --ulimit memlock=-1 --ulimit stack=67108864 \
  --stop-timeout 75 \
  --mount type=bind,source="$volume",target=/workspace \
  --env TRAIN_SCRIPT=fsdp \
  --env TRAIN_GRACE=60 \
  ghcr.io/roundhouse-train/roundhouse:0.1.0-cuda
