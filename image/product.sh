#!/usr/bin/env bash
# Stage `image`: our code in /opt/roundhouse, the command, what pip may not replace, and build.json; then the checks
# without which there is no image.
set -Eeuo pipefail
umask 022
context=/context home=/opt/roundhouse lock=/context/requirements/$VARIANT.txt
export DS_ACCELERATOR=$VARIANT # else DeepSpeed guesses, and says so with the time

# What tools leave in the folders of their user is no part of the image.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export HOME=$scratch TMPDIR=$scratch

mkdir -p "$home"
cp -r "$context"/{entrypoint,train,templates,LICENSE,pyproject.toml} "$home"
install -m 755 "$context/image/roundhouse" /opt/venv/bin/roundhouse
python "$context/image/constraints.py" "$lock" "$context/requirements/toolkit.txt" >"$home/constraints.txt"
python "$context/image/build_info.py" "$context/requirements" "$home/build.json"
# Shells get the container's variables. At the top, for Debian's file returns early where nobody types.
install -m 644 "$context/image/shell.sh" "$home"
install -m 644 "$context/image/profile.sh" /etc/profile.d/roundhouse.sh
sed -i '1i . /opt/roundhouse/shell.sh' /etc/bash.bashrc
# A checkout's umask is no property of the image.
chmod -R u=rwX,go=rX "$home"
python -m compileall -q --invalidation-mode checked-hash "$home"
# Any uid may train in a container without a volume; nothing of the image lies here for a volume to hide.
mkdir /workspace
chmod 1777 /workspace

# The name under which notebooks see this interpreter.
python -m ipykernel install --prefix /opt/venv --display-name "Python 3.11 (/opt/venv)"

pip check
python "$context/image/deepspeed_ops.py" load
