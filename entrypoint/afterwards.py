"""What is done when training has ended: exit, stay with the services, or have this machine stopped, once."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from entrypoint import stop_machine
from entrypoint.ending import Action, Ending
from entrypoint.errors import STOPPED
from entrypoint.interrupts import Interrupts
from entrypoint.run_folder import RunFolder, note_json, read_json
from entrypoint.runtime import Runtime, State

SAY_SECONDS = 600.0
_LOOK_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class End:
    """How it ended here. `folder`: None where it never got that far; `text`: the last words of the training."""

    code: int
    folder: RunFolder | None = None
    text: str | None = None

    @property
    def what(self) -> str:
        name = self.folder.path.name if self.folder else "the start"
        if self.code == 0:
            return f"{name} has finished"
        if self.code == STOPPED:
            return f"{name} was stopped on request"
        return f"{name} has failed with exit code {self.code}"

    @property
    def has_failed(self) -> bool:
        return self.code not in (0, STOPPED)


class Afterwards:
    """`may_stay`: this process is the container's own, and what ends it ends the container."""

    def __init__(
        self,
        ending: Ending,
        variables: Mapping[str, str],
        runtime: Runtime,
        state: State,
        *,
        may_stay: bool,
        say: Callable[[str], None],
        interrupts: Interrupts,
        collect: Callable[[], None] = lambda: None,  # children that have ended
    ) -> None:
        self._ending, self._variables, self._runtime = ending, variables, runtime
        self._state, self._may_stay, self._say, self._interrupts = state, may_stay, say, interrupts
        self._collect = collect

    def conclude(self, end: End) -> int:
        """Do what is to follow, as long as it takes; returns the run's own exit code."""
        self._state = replace(self._state, exit_code=end.code)
        self._runtime.write(self._state)
        if self._interrupts.wait(0):
            return end.code  # whoever asked wants this container to end
        action = self._action(end)
        if action in ("stop", "terminate"):
            self._stop(end, action)
        elif action == "stay":
            self._stay(end, "")
        return end.code

    def _action(self, end: End) -> Action:
        if end.code == 0:
            return self._ending.success
        return self._ending.otherwise if end.code == STOPPED else self._ending.failure

    # ---- staying ----

    def _stay(self, end: End, then: str) -> None:
        """Until a signal. A failure is said again and again: a machine that costs must not look like one that works."""
        if not self._may_stay:
            return
        line = f"{end.what}{then}; this container stays, with its services, until it is stopped"
        self._say(line)
        if end.has_failed or self._state.trouble:
            self._runtime.tell(banner(end, self._state.trouble))
        said = time.monotonic()
        while not self._interrupts.wait(_LOOK_SECONDS):
            self._collect()
            if time.monotonic() - said >= SAY_SECONDS and (end.has_failed or self._state.trouble):
                said = time.monotonic()
                self._say(self._state.trouble or f"{line}; it costs meanwhile")

    # ---- stopping ----

    def _stop(self, end: End, action: Action) -> None:
        cloud = self._ending.cloud
        assert cloud is not None
        marker = _Marker(end.folder, f"{cloud.kind} {cloud.machine}")
        if (accepted := marker.accepted()) is not None:
            return self._otherwise(end, f", and this machine was stopped for it once ({accepted}): not again")
        if end.has_failed and self._ending.failure_seconds and not self._is_left_alone(end, action):
            return None
        marker.note(action, accepted=False)
        try:
            answer = stop_machine.ask(cloud, action, self._variables, say=self._say, wait=self._interrupts.wait)
        except stop_machine.Interrupted:  # the stop was faster than its answer, or somebody else's
            return marker.note(action, accepted=True)
        if answer.kind == "accepted":
            marker.note(action, accepted=True)
            self._say(f"{end.what}; {cloud.name} was asked to {action} this machine, and does: {answer.text}")
            return self._await_the_stop(end, f"{cloud.name} has taken the request at {_now()}")
        gave_up = "refuses" if answer.kind == "refused" else "was asked in vain"
        return self._in_trouble(end, f"this machine is NOT stopped and costs: {cloud.name} {gave_up}: {answer.text}")

    def _is_left_alone(self, end: End, action: Action) -> bool:
        """After a failure a person has time to look: False where somebody keeps the machine, or works on it."""
        seconds = self._ending.failure_seconds
        at = time.strftime("%H:%M UTC", time.gmtime(time.time() + seconds))
        line = f"{end.what}; this machine is asked to {action} at {at}; `touch {self._runtime.keep}` keeps it"
        self._runtime.tell(f"{banner(end, None)}{line}\n")
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._say(line)
            said = time.monotonic()
            while time.monotonic() - said < SAY_SECONDS and (left := until - time.monotonic()) > 0:
                if self._interrupts.wait(min(left, _LOOK_SECONDS)):
                    return False
                if (why := self._why_kept()) is not None:
                    self._otherwise(end, f"; this machine is not asked to {action}: {why}")
                    return False
        return True

    def _why_kept(self) -> str | None:
        if self._runtime.keep.exists():
            return f"{self._runtime.keep} is there"
        current = self._runtime.read()
        if current is not None and current.token != self._state.token:
            return "another training was started here"
        return None

    def _await_the_stop(self, end: End, taken: str) -> None:
        if not self._may_stay:
            return
        if not self._interrupts.wait(SAY_SECONDS):
            self._in_trouble(end, f"{taken}, and this machine still runs and costs: stop it by hand")

    def _in_trouble(self, end: End, text: str) -> None:
        self._say(text)
        self._state = replace(self._state, trouble=text)
        self._runtime.write(self._state)
        self._otherwise(end, "")

    def _otherwise(self, end: End, then: str) -> None:
        if self._ending.otherwise == "stay":
            self._stay(end, then)
        elif then:
            self._say(f"{end.what}{then}")


class _Marker:
    """On the volume: which ending of a run this machine was stopped for. A machine is stopped once for each."""

    def __init__(self, folder: RunFolder | None, machine: str) -> None:
        self._machine = machine
        self._path = folder.of_node("stop-request.json") if folder else None
        ended: dict[str, Any] = (read_json(folder.of_node("exit.json")) if folder else None) or {}
        self._ended_at = ended.get("ended_at")

    def accepted(self) -> str | None:
        """When, for this very ending; None: not yet."""
        told: dict[str, Any] = (read_json(self._path) if self._path else None) or {}
        same = (told.get("machine"), told.get("ended_at")) == (self._machine, self._ended_at)
        return told.get("accepted_at") if same and self._ended_at is not None else None

    def note(self, action: Action, *, accepted: bool) -> None:
        if self._path is not None:
            document = {"machine": self._machine, "action": action, "ended_at": self._ended_at}
            note_json(self._path, document | {"asked_at": _now(), "accepted_at": _now() if accepted else None})


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())


def banner(end: End, trouble: str | None) -> str:
    """What each new shell shows after a failure."""
    lines = [f"*** {end.what} ({_now()}); this machine stays, and costs ***"]
    lines += [trouble] if trouble else []
    lines += (end.text or "").splitlines()[:4]
    return "\n".join([*lines, "roundhouse status, roundhouse logs: what happened", ""])
