"""How a recipe is started: options, process group, run; and how what goes wrong is told."""

import os
import sys
from collections.abc import Callable
from typing import NoReturn

import process_group
from checkpoint import NotSaved, Stranded
from options import Options, Problem, parse
from run import Diverged, Run

_VOLUME = (
    "look for the first such line of all ranks, and at the room and health of the volume there; "
    "started again the run goes on from the last complete checkpoint, which is as it was"
)


def main(recipe: str, train: Callable[[Run], int], kind: type[Options] = Options) -> NoReturn:
    """Run `train` and leave with its exit code; a Problem is one line and its fix, of rank 0 alone."""
    try:
        options = parse(sys.argv[1:], kind)
        process = process_group.start()
        code = train(Run(recipe, options, process))
        process_group.stop()
    except Problem as problem:
        _tell(f"error: {problem}")
        code = problem.exit_code
    except NotSaved as error:
        _tell(f"error: {error}\n  fix: make room on the volume; started again it goes on from the last one")
        code = 1
    except Stranded as error:  # of this rank alone, whichever it is; the group is left as it is, as below
        print(f"error: {error}\n  fix: {_VOLUME}", file=sys.stderr, flush=True)
        code = 1
    except Diverged as error:
        _tell(f"error: {error}\n  fix: a lower --lr, a longer --warmup, or other data; the last checkpoint is good")
        code = 1
    except Exception:
        # Told before anything else, and the group is left as it is: NCCL takes its end for a collective, so one rank
        # that fails alone would wait in it for the others, and nobody would learn why (sgl-project/SpecForge#781).
        sys.excepthook(*sys.exc_info())
        code = 1
    process_group.leave(code)


def _tell(text: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        print(text, file=sys.stderr, flush=True)
