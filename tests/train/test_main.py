"""How a recipe ends: its code, and what is told."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.slow]
TRAIN = Path(__file__).resolve().parents[2] / "train"
# Rank 1 fails while rank 0 waits for it; to end the group wants both, as with NCCL.
ONE_FAILS = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import main, process_group
import torch.distributed as dist

def stop():
    print("the group is ended", flush=True)
    dist.barrier()

def train(run):
    if run.process.rank == 1:
        raise ZeroDivisionError("of rank 1")
    dist.barrier()

process_group.stop = stop
main.main("ddp", train)
"""

# Rank 1 is on a node where the folder of --model is not there.
ONE_LACKS = """
import os, sys, runpy
sys.path.insert(0, sys.argv.pop(1))
if os.environ["RANK"] == "1":
    sys.argv[sys.argv.index("--model") + 1] = "/no/such/folder"
runpy.run_path(os.path.join(sys.path[0], sys.argv.pop(1)), run_name="__main__")
"""


@pytest.mark.parametrize("recipe", ["ddp.py", "fsdp.py"])
def test_what_is_wrong_on_one_node_alone_is_told(tmp_path, llama, recipe):
    (tmp_path / "script.py").write_text(ONE_LACKS)
    (tmp_path / "text.txt").write_text("a line of text\n" * 1000)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    script = [tmp_path / "script.py", TRAIN, recipe, "--data", tmp_path / "text.txt", "--model", llama]
    done = subprocess.run([*command, *script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stderr.count("error: rank 1: --model /no/such/folder: no such folder\n  fix: ") == 1


def test_an_error_of_one_rank_is_told_at_once_and_nobody_waits_for_the_others(tmp_path):
    (tmp_path / "script.py").write_text(ONE_FAILS)
    (tmp_path / "text.txt").write_text("a line of text\n" * 1000)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    script = [tmp_path / "script.py", TRAIN, "--data", tmp_path / "text.txt"]
    done = subprocess.run([*command, *script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert "ZeroDivisionError: of rank 1" in done.stderr
    assert "exitcode  : 1 " in done.stderr
    assert "the group is ended" not in done.stdout
