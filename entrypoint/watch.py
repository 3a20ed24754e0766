"""The process that keeps supervisor: it shows what the services say, and tells when one has given up."""

import contextlib
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from entrypoint import private_folder, supervisor
from entrypoint.relay import Relay
from entrypoint.run_folder import RunFolder, last_lines, read_json, write_json
from entrypoint.service import Service
from entrypoint.supervisor import State
from entrypoint.values import shown

_LOOK_SECONDS = 0.5
_ASK_EVERY = 4  # looks: supervisor is asked every 2 s
_STOP_SECONDS = 8.0  # more than supervisor gives a service
_STARTS = 3  # of supervisor itself


class Watch:
    """`folder`: a private one with the files that `services` wrote."""

    def __init__(self, folder: Path, services: Sequence[Service]) -> None:
        self._folder = folder
        self._reach = {service.name: service.reach for service in services}
        self._relay = Relay(folder / "logs")
        self._known: dict[str, State] = {}
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._starts = 0
        self._stopping = False

    def run(self) -> None:
        """Until SIGTERM."""
        signal.signal(signal.SIGTERM, self._on_stop)
        self._start()
        looks = 0
        while not self._stopping:
            time.sleep(_LOOK_SECONDS)
            self._look(ask=looks % _ASK_EVERY == 0)
            looks += 1
        self._stop()

    def _on_stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _start(self) -> None:
        self._starts += 1
        self._known = {}
        self._supervisor = supervisor.start(self._folder)

    def _look(self, *, ask: bool) -> None:
        if self._relay.run is None and (told := read_json(self._folder / "run.json")):
            self._relay.run = RunFolder(Path(told["path"]), told["node"])
            self._note()
        self._relay.step()
        if self._supervisor is not None and (code := self._supervisor.poll()) is not None:
            self._supervisor = None
            self._tell_end(code)
        if self._supervisor is not None and ask:
            for state in supervisor.states(self._folder) or ():
                self._compare(state)

    def _tell_end(self, code: int) -> None:
        how = f"was killed by signal {-code}" if code < 0 else f"ended with {code}: {self._words(self._errors)}"
        if self._starts < _STARTS:
            self._relay.say(f"supervisor {how}; it and its services are started again")
            self._start()
            return
        self._known = {name: State(name, "gave up", 0) for name in self._reach}
        self._relay.say(
            f"supervisor {how}, {self._starts} times; there are no services now, and training goes on\n"
            f"  fix: read {self._folder / 'supervisord.log'}; start the container again when it can be stopped"
        )
        self._note()

    @property
    def _errors(self) -> Path:
        return self._folder / "supervisord.err"

    def _compare(self, state: State) -> None:
        before = self._known.get(state.name)
        if before == state:
            return
        self._known[state.name] = state
        if state.word == "gave up":
            self._relay.step()  # its last words come first
            self._relay.say(self._gave_up(state))
        elif before is not None and before.word == "running" and before.pid != state.pid:
            self._relay.say(f"{state.name} ended and is started again")
        self._note()

    def _gave_up(self, state: State) -> str:
        log = supervisor.log_of(self._folder, state.name)
        control = f"supervisorctl -c {self._folder / 'supervisord.conf'} start {state.name}"
        return (
            f"{state.name} gave up after {supervisor.STARTS} starts: {self._words(log)}; everything else goes on\n"
            f"  fix: read {log}, then `{control}`"
        )

    def _words(self, log: Path) -> str:
        lines = [line.strip() for line in last_lines(log, 10) if line.strip()]
        return shown(lines[-1]) if lines else "it said nothing"

    def _note(self) -> None:
        """For `status`, here and in the run's folder."""
        document = [
            {"name": name, "state": state.word, "reach": self._reach.get(name, ""), "text": self._text(state)}
            for name, state in self._known.items()
        ]
        with contextlib.suppress(OSError):
            private_folder.write_json(self._folder / "services.json", document)
        if self._relay.run is not None:
            with contextlib.suppress(OSError):
                write_json(self._relay.run.of_node("services.json"), document)

    def _text(self, state: State) -> str | None:
        return self._words(supervisor.log_of(self._folder, state.name)) if state.word == "gave up" else None

    def _stop(self) -> None:
        if self._supervisor is not None:
            self._supervisor.terminate()
            try:
                self._supervisor.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._supervisor.kill()  # its services get a SIGTERM by that, and no more time
        self._known = {name: State(name, "stopped", 0) for name in self._known}
        self._relay.end()
        self._note()
