#!/usr/bin/env bash
# One GPU, at most five minutes: each recipe for 20 steps on about 1B parameters, bf16 and compiled; JSON lines with
# tokens/s, MFU and peak memory. Without a GPU it tries itself on a tiny model.
#
# The figures are those of the last record, of steps 11 to 20. A run is ended when it has written that: its checkpoint
# (13 GB) and its sample come after it, and are not what is measured here.
#
#     bench/gpu.sh              # PYTHON=python3.12 OUT=new-folder RECIPES="ddp fsdp" choose
set -Eeuo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
devices=${CUDA_VISIBLE_DEVICES:-0}
export CUDA_VISIBLE_DEVICES=${devices%%,*} # one: without a launcher the Trainer takes all that it sees
out=${OUT:-$(mktemp -d)}
steps=20
options=(--steps "$steps" --log-every 10 --eval-every 1000 --warmup 5 --lr 3e-4)
if "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
  options+=(--model-size 1b --seq-length 2048 --global-batch 8 --micro-batch 4 --compile)
else
  options+=(--seq-length 64 --global-batch 8)
fi

pid=
trap '[[ -z $pid ]] || kill -KILL -- "-$pid" 2>/dev/null || true' EXIT

# Sets `outcome` to measured, ended (by itself, without the last record) or late.
watch() {
  local until=$((SECONDS + $2))
  outcome=late
  while ((SECONDS < until)); do
    if grep -q "\"step\": $steps," "$1" 2>/dev/null; then outcome=measured; return; fi
    if ! kill -0 "$pid" 2>/dev/null; then outcome=ended; return; fi
    sleep 0.2
  done
}

read -ra recipes <<<"${RECIPES:-ddp fsdp zero hf}"
left=${#recipes[@]}
for recipe in "${recipes[@]}"; do
  share=$(((290 - SECONDS) / left)) # what one recipe does not need is for those after it
  left=$((left - 1))
  if [[ $recipe == zero ]] && ! "$python" -c 'import importlib.util, sys; sys.exit(not importlib.util.find_spec("deepspeed"))'; then
    printf '{"recipe": "zero", "left_out": "deepspeed is not installed"}\n'
    continue
  fi
  run=$out/$recipe
  mkdir -p "$out"
  mkdir "$run" # an old one would go on from its checkpoint
  TRAIN_RUN_DIR=$run setsid "$python" "train/$recipe.py" "${options[@]}" >"$run/log" 2>&1 &
  pid=$!
  watch "$run/metrics.jsonl" "$share"
  kill -KILL -- "-$pid" 2>/dev/null || true # compilers too
  wait "$pid" 2>/dev/null || true
  pid=
  "$python" - "$recipe" "$run" "$outcome" <<'PYTHON'
import json, pathlib, sys

recipe, run, outcome = sys.argv[1], pathlib.Path(sys.argv[2]), sys.argv[3]
path = run / "metrics.jsonl"
records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
last = records[-1] if outcome == "measured" else {}  # an earlier record would be that of the compiler
names = ("step", "loss", "tokens_per_second", "mfu", "peak_memory_gib")
print(json.dumps({"recipe": recipe, "outcome": outcome} | {name: last.get(name) for name in names}))
if outcome != "measured":
    print("".join((run / "log").read_text().splitlines(keepends=True)[-15:]), file=sys.stderr)
PYTHON
done
