#!/usr/bin/env bash
# Make the folder of the CUDA wheels a CUDA_HOME that compilers accept: the wheels have lib/libcudart.so.13, and builds
# look for lib64/libcudart.so.
set -Eeuo pipefail
home=$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia/cu13
ln -s lib "$home/lib64"
for library in "$home"/lib/lib*.so.*; do
  name=${library##*/}
  ln -sf "$name" "$home/lib/${name%%.so*}.so"
done
