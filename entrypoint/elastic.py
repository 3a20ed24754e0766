"""The small child that starts the training processes, through torch's own launcher API.

    python -P elastic.py OUTCOME FOLDER TORCHRUN-ARGUMENT…

Each process runs under worker.py, which tells in FOLDER how it ended; what torch's agent says of the first failure
comes into the file OUTCOME, for the processes whose keeper could not tell. A file of its own, run by path: it
imports torch and nothing of ours.
"""

import ctypes
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1


def main() -> int:
    outcome, folder, *torchrun_arguments = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # dies with the agent, its children with it
    # A request to stop is the agent's to pass on. A Slurm sends it to every process: torch would take it for the end.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    result = launch(["--signals-to-handle=SIGQUIT", *torchrun_arguments], Path(folder))
    partial = Path(f"{outcome}.partial")
    partial.write_text(json.dumps(result))
    os.replace(partial, outcome)
    return int(result["exit_code"])


def launch(arguments: list[str], folder: Path) -> dict[str, Any]:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch
    from torch.distributed.run import config_from_args, parse_args

    options = parse_args(arguments)  # type: ignore[no-untyped-call]
    if options.nnodes == "1":
        options.master_port = _free_port(options.master_port)
    config, command, command_arguments = config_from_args(options)
    worker = str(Path(__file__).with_name("worker.py"))
    shim = ["-P", worker, str(folder), str(command), *command_arguments]
    try:
        elastic_launch(config, sys.executable)(*shim)
    except ChildFailedError as error:
        return _first_failure(error)
    return {"exit_code": 0}


def _free_port(wanted: int) -> int:
    """The plan's port, or on one node any other where a program has taken it since the plan was made."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", wanted))
            return wanted
        except OSError:
            probe.bind(("", 0))
            port: int = probe.getsockname()[1]
            print(f"port {wanted} is taken by another program; this attempt uses {port}", file=sys.stderr)
            return port


def _first_failure(error: Any) -> dict[str, Any]:
    rank, failure = error.get_first_failure()
    code = failure.exitcode
    return {"exit_code": 128 - code if code < 0 else code, "rank": rank, "local_rank": failure.local_rank}


if __name__ == "__main__":
    sys.exit(main())
