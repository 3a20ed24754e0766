"""The small child that starts the training processes, through torch's own launcher API.

    python -P elastic.py OUTCOME LOGS GRACE TORCHRUN-ARGUMENT…

The `torchrun` command ends with 1 whatever happened; this writes OUTCOME as JSON: `exit_code` of the process that
failed first (128 + n for signal n), `rank`, `local_rank` and `message` of it. A file of its own, run by path: it
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
    # SIGKILL of the process that shows our output would leave us training unseen, beside the next start of the run.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    outcome, logs, grace, *torchrun_arguments = sys.argv[1:]
    result = launch(torchrun_arguments, Path(logs), int(grace))
    partial = Path(f"{outcome}.partial")
    partial.write_text(json.dumps(result))
    os.replace(partial, outcome)
    return int(result["exit_code"])


def launch(arguments: list[str], logs: Path, grace_seconds: int) -> dict[str, Any]:
    os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(grace_seconds)
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import elastic_launch
    from torch.distributed.run import config_from_args, parse_args

    config, command, command_arguments = config_from_args(parse_args(arguments))  # type: ignore[no-untyped-call]
    if config.max_nodes == 1:
        config.rdzv_endpoint = with_free_port(config.rdzv_endpoint)
    worker = str(Path(__file__).with_name("worker.py"))
    shim = ["-P", worker, str(logs), str(command), *command_arguments]
    try:
        elastic_launch(config, sys.executable)(*shim)
    except ChildFailedError as error:
        return _first_failure(error)
    except SignalException as error:  # the processes are gone: by themselves, or by SIGKILL after the grace
        return {"exit_code": 128 + error.sigval, "stopped": True}
    return {"exit_code": 0}


def with_free_port(endpoint: str) -> str:
    """The endpoint, or another port where this one was taken since the plan: importing torch took seconds.

    For one node only; several have to agree on a port beforehand.
    """
    host, _, port = endpoint.rpartition(":")
    try:
        socket.create_server(("", int(port))).close()
    except OSError:
        with socket.create_server(("", 0)) as free:
            return f"{host}:{free.getsockname()[1]}"
    return endpoint


def _first_failure(error: Any) -> dict[str, Any]:
    rank, failure = error.get_first_failure()
    code = failure.exitcode
    return {
        "exit_code": 128 - code if code < 0 else code,
        "rank": rank,
        "local_rank": failure.local_rank,
        "message": failure.message if isinstance(failure.message, str) else json.dumps(failure.message),
    }


if __name__ == "__main__":
    sys.exit(main())
