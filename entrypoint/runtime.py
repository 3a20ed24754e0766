"""What this container knows of itself, beside its volume: its state for the health check, and the banner of shells.

The folder belongs to this user: `/run/roundhouse` for root in the image, else one in the temporary folder.
"""

import contextlib
import json
import os
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

_OF_ROOT = Path("/run/roundhouse")
_BUILD = Path(__file__).resolve().parent.parent / "build.json"  # only the image has it


@dataclass(frozen=True, slots=True)
class State:
    """What runs here, or how it ended."""

    run: str | None = None  # the folder of the run; None: it never got that far
    node: int = 0
    exit_code: int | None = None  # None: it is being trained
    trouble: str | None = None  # what a person has to see to
    token: str = ""  # of the start: a later one has another


class Runtime:
    """The folder's files. A folder that cannot be made costs the health check and the banner, never the training."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def banner(self) -> Path:
        """Shown by each new shell; not there: nothing to say."""
        return self.folder / "banner"

    @property
    def keep(self) -> Path:
        """Made by a person: this machine is not stopped, although it was said."""
        return self.folder / "keep"

    def make(self) -> bool:
        """Whether the folder is there, and ours alone to write."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = os.lstat(self.folder)
        except OSError:
            return False
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022

    def begin(self, run: Path | None, node: int) -> State:
        """Note a start; what an earlier one left to say is taken away."""
        state = State(None if run is None else str(run), node, token=uuid4().hex)
        self.write(state)
        for path in (self.banner, self.keep):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        return state

    def write(self, state: State) -> None:
        self._put(self.folder / "state.json", json.dumps(asdict(state)))

    def read(self) -> State | None:
        try:
            document: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
            return State(**document)
        except (OSError, ValueError, TypeError):
            return None

    def tell(self, text: str) -> None:
        """What each new shell is to show."""
        self._put(self.banner, text)

    def _put(self, path: Path, text: str) -> None:
        partial = path.with_name(f"{path.name}.{uuid4().hex}.partial")
        with contextlib.suppress(OSError):
            if self.make():
                partial.write_text(text)
                os.replace(partial, path)


def runtime_of(variables: Mapping[str, str]) -> Runtime:
    """Where a start, the health check and the shells of one container look; TRAIN_RUNTIME is for tests."""
    if named := variables.get("TRAIN_RUNTIME"):
        return Runtime(Path(named))
    user = os.geteuid()
    if user == 0 and _BUILD.exists() and os.access(_OF_ROOT.parent, os.W_OK):
        return Runtime(_OF_ROOT)
    return Runtime(Path(f"/tmp/roundhouse-{user}/run"))
