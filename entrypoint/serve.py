"""What supervisor starts for a service, and how it is started itself: FILE. It becomes the command of that file.

A program of its own, because supervisor's configuration cannot hold every value of a variable, and because no service
may outlive a supervisor that was killed: the next one would find its port taken. It imports nothing of ours.
"""

import ctypes
import json
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    with open(sys.argv[1]) as file:
        service = json.load(file)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    try:
        os.chdir(service["folder"])
        os.execvpe(service["command"][0], service["command"], service["environment"])
    except OSError as error:
        sys.exit(f"cannot be started: {error}")


if __name__ == "__main__":
    main()
