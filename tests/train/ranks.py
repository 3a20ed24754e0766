"""One function of a test file, called on several processes of one group: what fails there fails the test. And what a
checkpoint of such processes holds.

torchrun ranks.py FILE FUNCTION FOLDER
"""

import inspect
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def on_ranks(count: int, function: Callable[[Path], None], folder: Path) -> None:
    """Call `function(folder)` on so many ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    program = [__file__, inspect.getsourcefile(function), function.__name__, str(folder)]
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *program], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]


def read_tensors(folder: Path) -> dict[str, Any]:
    """All tensors of a checkpoint of ours, of the model and of the optimizer, in this process alone."""
    import torch
    import torch.distributed.checkpoint as dcp

    reader = dcp.FileSystemReader(folder)
    kept = reader.read_metadata().state_dict_metadata
    state = {name: torch.empty(info.size) for name, info in kept.items() if hasattr(info, "size")}
    with warnings.catch_warnings(action="ignore"):  # that it is done by one process
        dcp.load(state, storage_reader=reader, no_dist=True)
    return state


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "train"), str(ROOT / "tests" / "entrypoint")]
    import process_group

    process_group.start()
    run_path(sys.argv[1])[sys.argv[2]](Path(sys.argv[3]))
    process_group.stop()
    process_group.leave(0)
