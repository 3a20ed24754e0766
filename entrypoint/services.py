"""What runs beside training: the list of services, the variables for shells, and the process that watches over them.

That process is no thread of `up`, because `up` forks the agent; and it is not `up` itself, so that a volume or a screen
that hangs holds up neither the training nor its end.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from entrypoint import jupyter_files, private_folder, shells, sshd, supervisor
from entrypoint.errors import OWN_BUG, MachineError, SettingError
from entrypoint.reasons import Setting
from entrypoint.run_folder import RunFolder, read_json
from entrypoint.service import Service
from entrypoint.stay import DOORS
from entrypoint.watch import Watch

_STOP_SECONDS = 10.0  # more than the watch gives supervisor
_PR_SET_PDEATHSIG = 1
_MANAGED = Path("/.launch")  # where Vast.ai starts us, it runs ssh and Jupyter itself
Say = Callable[[str], None]


def wanted(variables: Mapping[str, str], volume: Path, folder: Path, say: Say) -> tuple[Service, ...]:
    """The services of this start. `folder`: a private one, for their files. A line tells of one that is left out."""
    if _MANAGED.exists():
        say("no ssh and no Jupyter of ours: the platform runs its own here")
        return ()
    ssh = sshd.service(variables, folder, say)
    try:
        jupyter = jupyter_files.prepare(variables, volume, folder / "jupyter", say)
    except (SettingError, OSError) as problem:
        say(f"no JupyterLab: {problem}")
        jupyter = ()
    return (ssh, *jupyter) if ssh else jupyter


def variables_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The container's variables for our command, wherever it was typed: a shell's lack some (shells.py)."""
    if shells.MARK not in environment:
        return dict(environment)
    folder = private_folder.find(private_folder.places(os.geteuid()))
    document = read_json(folder / "environment.json") if folder else None
    return shells.restored(environment, shells.from_document(document))


def told_here() -> list[dict[str, Any]]:
    """This machine's services as their watch noted them last: name, state, reach and last words."""
    folder = private_folder.find(private_folder.places(os.geteuid()))
    told: list[dict[str, Any]] | None = read_json(folder / "services.json") if folder else None
    return told or []


@contextlib.contextmanager
def beside(
    variables: Mapping[str, str], volume: Path, settings: Callable[[], Sequence[Setting]], say: Say, *, always: bool
) -> Iterator["Beside"]:
    """Services and the variables for shells, until the end of the block; nothing that fails here ends it.

    `always`: also without a service, since whoever comes into this container wants its variables. `settings`: the
    plan's, as far as they can be known now.
    """
    with contextlib.ExitStack() as stack:
        folder = _folder(stack, say) if always or not DOORS.isdisjoint(variables) else None
        side = Beside(folder, variables)
        stack.callback(side.stop)
        if folder is not None:
            try:
                _begin(side, wanted(variables, volume, folder, say), settings, say)
            except OSError as error:  # a full disk
                say(f"no services: {error.filename or folder}: {error.strerror}")
        yield side


def _begin(side: "Beside", services: Sequence[Service], settings: Callable[[], Sequence[Setting]], say: Say) -> None:
    environment = side.show(settings() if services else ())
    if services and not supervisor.is_installed():
        say("no services: supervisor is not installed here\n  fix: pip install supervisor")
    elif services:
        side.start(services, environment)
        for service in services:
            say(f"{service.name}: {service.reach}")


def _folder(stack: contextlib.ExitStack, say: Say) -> Path | None:
    """This machine's private folder, for this process alone; None: a line has told why not."""
    try:
        folder = private_folder.make(private_folder.places(os.geteuid()))
        alone = stack.enter_context(private_folder.alone(folder))
    except (MachineError, OSError) as problem:
        say(f"no services: {problem}")
        return None
    if not alone:
        say(f"the services are another process's, which has {folder}")
        return None
    for name in ("run.json", "services.json"):  # an earlier start's
        (folder / name).unlink(missing_ok=True)
    return folder


class Beside:
    """What `up` holds of them. `folder` None: there are none, and nothing is written."""

    def __init__(self, folder: Path | None, variables: Mapping[str, str]) -> None:
        self._folder, self._variables = folder, variables
        self._start = str(time.time_ns())
        self._pid = 0

    def show(self, settings: Sequence[Setting]) -> Mapping[str, str]:
        """Give the shells to come the container's variables and these settings; returns what they get."""
        made = shells.make_shells(self._variables, settings, self._start)
        if self._folder is not None:
            private_folder.write_json(self._folder / "environment.json", shells.to_document(made))
            private_folder.write(self._folder / "environment.sh", shells.to_script(made))
        return made.shown

    def join(self, run: RunFolder, settings: Sequence[Setting]) -> None:
        """There is a run: its folder gets what the services say, and shells the settings of its plan."""
        if self._folder is None:
            return
        try:
            self.show(settings)
            private_folder.write_json(self._folder / "run.json", {"path": str(run.path), "node": run.node})
        except OSError as error:
            print(f"shells do not get the settings of the plan: {error.filename}: {error.strerror}", flush=True)

    def start(self, services: Sequence[Service], environment: Mapping[str, str]) -> None:
        """Write what supervisor and the services read, and fork their watch."""
        assert self._folder is not None
        prepare(self._folder, services, environment)
        sys.stdout.flush()
        sys.stderr.flush()
        self._pid = os.fork()
        if not self._pid:
            _be_watch(self._folder, services)

    def ended(self, pid: int) -> None:
        """A child of this process has ended, which somebody waited for."""
        if pid and pid == self._pid:
            self._pid = 0
            print("the services' watch has ended, and they with it; everything else goes on", flush=True)
            print("  fix: start the container again when it can be stopped", flush=True)

    def stop(self) -> None:
        """After the training. What will not end is killed."""
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            if self._pid:
                ending = os.pidfd_open(self._pid)
                os.kill(self._pid, signal.SIGTERM)
                if not select.select([ending], [], [], _STOP_SECONDS)[0]:
                    os.killpg(self._pid, signal.SIGKILL)
                    select.select([ending], [], [], 1)  # one that waits for a volume that is gone ends never
                os.close(ending)
                os.waitpid(self._pid, os.WNOHANG)
        self._pid = 0


def prepare(folder: Path, services: Sequence[Service], environment: Mapping[str, str]) -> None:
    """The files that supervisor and `serve.py` read. `environment`: of every service."""
    for name in ("logs", "services"):
        shutil.rmtree(folder / name, ignore_errors=True)  # an earlier start's
        (folder / name).mkdir(mode=0o700)
    for service in services:
        document = {
            "command": service.command,
            "folder": str(service.folder),
            "environment": {"SHELL": "/bin/bash", **environment, **service.environment},
        }
        private_folder.write_json(supervisor.file_of(folder, service.name), document)
    names = [service.name for service in services]
    supervisor.write(folder, names)


def _be_watch(folder: Path, services: Sequence[Service]) -> None:
    """The child; it never returns, for the rest of this stack belongs to the parent."""
    try:
        os.setsid()  # tini signals the group of `up`: the services are to end after the training
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        Watch(folder, services).run()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(OWN_BUG)
