"""Runs inside each training process, before the script: its output goes to its own file, and it dies with its launcher.

    python -P worker.py LOGS COMMAND [ARGUMENT…]

A file of its own, run by path, so that nothing of ours is on the script's sys.path.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    logs, *command = sys.argv[1:]
    # A launcher killed with SIGKILL cannot end its children; the kernel can (prctl(2)). exec keeps this setting.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    name = f"n{os.environ['GROUP_RANK']}r{os.environ['LOCAL_RANK']}.log"
    log = os.open(os.path.join(logs, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
