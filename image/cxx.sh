#!/usr/bin/env bash
# The C++ compiler of DeepSpeed's ops. DeepSpeed asks for the processor that compiles; the image runs on others.
set -Eeuo pipefail
arguments=()
for argument in "$@"; do
  case $argument in
    -march=native) argument=-march=x86-64-v3 ;;
    -D__AVX512__ | -D__SCALAR__) argument=-D__AVX256__ ;;
    -g) continue ;; # stripped anyway
  esac
  arguments+=("$argument")
done
exec g++ "${arguments[@]}"
