#!/usr/bin/env bash
# One GPU, at most five minutes: each recipe for 20 steps on about 1B parameters, bf16 and compiled; JSON lines with
# tokens/s, MFU and peak memory. Without a GPU it tries itself on a tiny model.
#
#     bench/gpu.sh              # PYTHON=python3.12 OUT=folder RECIPES="ddp fsdp" choose
set -Eeuo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
out=${OUT:-$(mktemp -d)}
options=(--steps 20 --log-every 10 --eval-every 1000 --warmup 5 --lr 3e-4)
if "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  options+=(--model-size 1b --seq-length 2048 --global-batch 8 --micro-batch 4 --compile)
else
  options+=(--seq-length 64 --global-batch 8)
fi

for recipe in ${RECIPES:-ddp fsdp zero hf}; do
  if [[ $recipe == zero ]] && ! "$python" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("deepspeed"))'; then
    printf '{"recipe": "zero", "left_out": "deepspeed is not installed"}\n'
    continue
  fi
  run=$out/$recipe
  mkdir -p "$run"
  code=0
  TRAIN_RUN_DIR=$run timeout 75 "$python" -m torch.distributed.run --standalone --nproc-per-node 1 \
    "train/$recipe.py" "${options[@]}" >"$run/log" 2>&1 || code=$?
  "$python" - "$recipe" "$run" "$code" <<'PYTHON'
import json, pathlib, sys

recipe, run, code = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
path = run / "metrics.jsonl"
records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
last = records[-1] if records else {}
names = ("step", "loss", "tokens_per_second", "mfu", "peak_memory_gib")
print(json.dumps({"recipe": recipe, "exit_code": code} | {name: last.get(name) for name in names}))
if code:
    print("".join((run / "log").read_text().splitlines(keepends=True)[-15:]), file=sys.stderr)
PYTHON
done
