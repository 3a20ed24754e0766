#!/usr/bin/env bash
# DeepSpeed's wheel with its ops compiled: for any x86-64-v3 processor, the same bytes every time.
#
#   image/deepspeed_wheel.sh cpu|cuda OUT_DIR
#
# `python` on PATH has the packages of the lock (for cuda also `cuda-toolkit[nvcc,cccl,crt,nvvm]` of the release that
# torch pins); g++, binutils and for AIO libaio-dev are installed. Objects hold the paths of headers, so the same bytes
# want the same paths: of that Python and of BUILD_DIR.
#
#   DS_OPS                 ops to compile, by the names of DeepSpeed's DS_BUILD_* variables
#   TORCH_CUDA_ARCH_LIST   architectures of the CUDA ops
#   MAX_JOBS               compilers at a time (each of the CUDA ops takes up to 4 GB of memory)
#   SOURCE_DATE_EPOCH      time of the files in the wheel
#   BUILD_DIR              where to compile; emptied before; removed after, unless the build failed
set -Eeuo pipefail
umask 022

CPU_OPS="CPU_ADAM CPU_ADAGRAD CPU_LION FUSED_ADAM PIN_MEMORY SHM_COMM"
CUDA_OPS="FUSED_ADAM FUSED_LAMB FUSED_LION CPU_ADAM CPU_ADAGRAD CPU_LION AIO PIN_MEMORY UTILS QUANTIZER DEEP_COMPILE"

fail() { # MESSAGE FIX
  printf '%s\nfix: %s\n' "$1" "$2" >&2
  exit 1
}

here=$(cd "$(dirname "$0")" && pwd)
variant=${1-} out=${2-}
case $variant in
  cpu) ops=${DS_OPS-$CPU_OPS} ;;
  cuda) ops=${DS_OPS-$CUDA_OPS} ;;
  *) fail "no variant '$variant'" "$0 cpu|cuda OUT_DIR" ;;
esac
[[ $out ]] || fail "no folder for the wheel is given" "$0 $variant OUT_DIR"
mkdir -p "$out"
out=$(cd "$out" && pwd)
build=${BUILD_DIR:-/build/deepspeed}
arch_list=${TORCH_CUDA_ARCH_LIST:-8.0;8.6;8.9;9.0;10.0;12.0+PTX}

print_torch='
import sysconfig, torch
print(sysconfig.get_path("purelib"), torch.__version__.partition("+")[0], torch.version.cuda)'
torch=$(python -c "$print_torch") || fail "python cannot import torch" "put the environment of the lock first on PATH"
read -r site torch_release cuda_release <<<"$torch"
label=cpu
if [[ $variant == cuda ]]; then
  [[ $cuda_release != None ]] || fail "torch $torch_release of $site is a CPU build" "install requirements/cuda.txt"
  label=cu${cuda_release//./}
  cuda_home=$site/nvidia/cu${cuda_release%%.*}
  [[ -x $cuda_home/bin/nvcc ]] || fail "no nvcc in $cuda_home/bin" "install cuda-toolkit[nvcc,cccl,crt,nvvm]"
fi

# ---- the source, by the hash in the lock ----
mkdir -p "$build"
exec {lock}<"$build"
flock -n "$lock" || fail "another build is in $build" "wait for it, or set BUILD_DIR"
marker=$build/of-deepspeed_wheel.sh # so that a BUILD_DIR given by mistake keeps what it has
[[ -e $marker || ! $(ls -A "$build") ]] || fail "BUILD_DIR=$build holds something else" "name a new or empty folder"
find "$build" -mindepth 1 -delete
touch "$marker"
mkdir "$build"/{archive,source,lib,home}
awk '/^[a-z]/ {ours = /^deepspeed==/} ours' "$here/../requirements/$variant.txt" >"$build/lock.txt"
python -m pip --disable-pip-version-check download --quiet --no-deps --no-binary deepspeed --no-build-isolation \
  --require-hashes --dest "$build/archive" --requirement "$build/lock.txt"
tar -xf "$build"/archive/deepspeed-*.tar.gz --strip-components 1 --no-same-owner -C "$build/source"
cd "$build/source"

known=$(grep -hoP '^ *BUILD_VAR = .DS_BUILD_\K\w+' op_builder/*.py op_builder/cpu/*.py | sort -u)
for op in $ops; do
  grep -qx "$op" <<<"$known" || fail "DS_OPS has '$op', which DeepSpeed does not know" "one of: ${known//$'\n'/ }"
done
# The sums of SHM_COMM are compiled for AVX-512 by attributes, whatever -march says.
replaced=csrc/cpu/comm/x86_64/shm.h
sha256sum --check --status <<<"83a4138bc0313062da0a636059221f923b9225092885c694694ee6a8a26245da  $replaced" ||
  fail "DeepSpeed's $replaced has changed" "see whether $here/shm_avx2.h can still stand for it, then give its new sum"
cp "$here/shm_avx2.h" "$replaced"

# ---- compile ----
# The environment is built, not inherited: a CFLAGS or DS_BUILD_* of the caller would be in the bytes.
# PYTHONHASHSEED: the order of extras in METADATA comes from a set. DS_BUILD_STRING: the local version, else git's hash.
environment=(
  "PATH=$PATH" "HOME=$build/home" LC_ALL=C.UTF-8 PYTHONHASHSEED=0 "SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-315532800}"
  "CXX=$here/cxx.sh" "LDFLAGS=-Wl,--strip-all -Wl,--as-needed"
  "MAX_JOBS=${MAX_JOBS:-2}" DS_ENABLE_NINJA=1 DS_BUILD_OPS=0 "DS_ACCELERATOR=$variant"
  "DS_BUILD_STRING=+${label}torch${torch_release%.*}"
)
for op in $ops; do environment+=("DS_BUILD_$op=1"); done
if [[ $variant == cuda ]]; then
  # The wheels have libcudart.so.13 and no libcudart.so, and libcuda belongs to the driver of the machine that runs.
  for library in "$cuda_home"/lib/lib*.so.*; do
    name=${library##*/}
    ln -sf "$library" "$build/lib/${name%%.so*}.so"
  done
  gcc -shared -Wl,-soname,libcuda.so.1 -x c /dev/null -o "$build/lib/libcuda.so"
  environment+=(
    "CUDA_HOME=$cuda_home" "PYTORCH_NVCC=$here/nvcc.sh" "TORCH_CUDA_ARCH_LIST=$arch_list" DS_NVCC_THREADS=1
    "LIBRARY_PATH=$build/lib" "CPATH=$site/nvidia/nccl/include"
  )
fi
echo "compiling for $variant: $ops"
env -i "${environment[@]}" python setup.py --quiet bdist_wheel --dist-dir "$build/wheel"

# ---- the wheel leaves only if it is what was asked for ----
python "$here/deepspeed_ops.py" wheel "$build"/wheel/deepspeed-*.whl $ops
(cd "$build/wheel" && sha256sum deepspeed-*.whl)
mv "$build"/wheel/deepspeed-*.whl "$out/"
rm -rf "$build"
