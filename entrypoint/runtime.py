"""What this container knows of itself, beside its volume: its state for the health check, and the banner of shells."""

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from entrypoint import private_folder
from entrypoint.errors import MachineError

_BUILD = Path(__file__).resolve().parent.parent / "build.json"  # only the image has it


@dataclass(frozen=True, slots=True)
class State:
    """What runs here, or how it ended."""

    run: str | None = None  # the folder of the run; None: it never got that far
    node: int = 0
    exit_code: int | None = None  # None: it is being trained
    trouble: str | None = None  # what a person has to see to
    token: str = ""  # of the start: a later one has another
    pid: int = 0


class Runtime:
    """Files in a private folder. One that cannot be made costs the health check and the banner, never the training."""

    def __init__(self, candidates: tuple[Path, ...]) -> None:
        self._candidates = candidates

    @property
    def folder(self) -> Path:
        return private_folder.find(self._candidates) or self._candidates[0]

    @property
    def banner(self) -> Path:
        """Shown by each new shell (image/shell.sh); not there: nothing to say."""
        return self.folder / "banner"

    @property
    def keep(self) -> Path:
        """Made by a person: this machine is not stopped, although it was said."""
        return self.folder / "keep"

    def begin(self, run: Path | None, node: int) -> State:
        """Note a start; what an earlier one left to say is taken away."""
        state = State(None if run is None else str(run), node, token=uuid4().hex, pid=os.getpid())
        self.write(state)
        for path in (self.banner, self.keep):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        return state

    def write(self, state: State) -> None:
        self._put("state.json", json.dumps(asdict(state)))

    def read(self) -> State | None:
        try:
            document: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
            return State(**document)
        except (OSError, ValueError, TypeError):
            return None

    def refused(self) -> int | None:
        """The exit code of the container's own start, where it came to nothing and stays; None: it did not."""
        state = self.read()
        if state is None or state.run is not None or not Path(f"/proc/{state.pid}").exists():
            return None
        return state.exit_code

    def tell(self, text: str) -> None:
        """What each new shell is to show."""
        self._put("banner", text)

    def _put(self, name: str, text: str) -> None:
        with contextlib.suppress(OSError, MachineError):
            private_folder.write(private_folder.make(self._candidates) / name, text)


def runtime_of(variables: Mapping[str, str]) -> Runtime:
    """Where a start, the health check and the shells of one container look; TRAIN_RUNTIME is for tests."""
    if named := variables.get("TRAIN_RUNTIME"):
        return Runtime((Path(named),))
    places = private_folder.places(os.geteuid())
    return Runtime(places if _BUILD.exists() else places[-1:])
