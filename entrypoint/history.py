"""The attempts of a run as the volume remembers them: their numbers, and whether another may follow."""

import time
from typing import Any

from entrypoint.diagnosis import Attempted, Diagnosis, Trial, diagnostic_settings
from entrypoint.errors import MachineError, StuckError
from entrypoint.restarts import Decision, Outcome, decide, in_a_row, refusal
from entrypoint.run_folder import RunFolder, note_json, read_json


class History:
    """Kept by node 0 for all nodes, in attempts.json."""

    def __init__(self, folder: RunFolder, allowed: int) -> None:
        self._folder, self._allowed = folder, allowed
        self._path = folder.path / "attempts.json"
        self._records: list[dict[str, Any]] = read_json(self._path) or []
        self.number = 0
        self.trial: Trial | None = None  # set: the attempt that has begun is one

    def refuse_more(self) -> None:
        """StuckError where the volume remembers too many attempts without a new checkpoint."""
        last = self._records[-1]["exit_code"] if self._records else None
        if refusal(self._failures(), self._allowed, last):
            raise self._stuck(last)

    def begin(self, *, anew: bool) -> int:
        """The number of a new attempt, noted before it starts: one that is lost with its node counts too."""
        taken = [record["attempt"] for record in self._records] + self._folder.attempts()
        self.number = max(taken, default=-1) + 1
        self.trial = None if anew else self._next_trial()
        record = {"attempt": self.number, "began_at": time.time(), "exit_code": None, "anew": anew}
        record["switch"] = self.trial.switch if self.trial else None
        self._records.append(record | {"checkpoint": self._folder.newest_checkpoint()})
        self._remember()
        return self.number

    def end(self, outcome: Outcome) -> Decision:
        """What follows; StuckError after one attempt too many, MachineError where trials have found a suspect."""
        self._records[-1] |= {"ended_at": time.time(), "exit_code": outcome.exit_code}
        self._records[-1] |= {"stepped": outcome.stepped, "first_collective": outcome.first_collective}
        self._remember()
        found = self._diagnosis()
        if self.trial and found.suspect:
            raise MachineError(f"NCCL hangs at its first collective; suspect: {found.suspect}", fix=found.fix or "")
        decision = decide(outcome, self._failures(), self._allowed)
        if decision.delay is None and decision.exit_code == StuckError.exit_code != outcome.exit_code:
            raise self._stuck(outcome.exit_code)
        return decision

    def _diagnosis(self) -> Diagnosis:
        """By the attempts since a person last began anew."""
        newest: list[Attempted] = []
        for record in reversed(self._records):
            told = (bool(record.get("first_collective")), bool(record.get("stepped")), record.get("switch"))
            newest.insert(0, Attempted(*told))
            if record.get("anew"):
                break
        return diagnostic_settings(newest)

    def _next_trial(self) -> Trial | None:
        """It may live a minute longer than the attempt that hung did: then what hung there has come through."""
        switch = self._diagnosis().switch
        if switch is None:
            return None
        last = self._records[-1]
        return Trial(switch, last.get("ended_at", 0.0) - last["began_at"] + 60.0)

    def counted(self) -> str:
        return f"{self._failures()} of {self._allowed} attempts without a new checkpoint"

    def _failures(self) -> int:
        return in_a_row(self._records, self._folder.newest_checkpoint())

    def _stuck(self, last_code: int | None) -> StuckError:
        return StuckError(
            refusal(self._failures(), self._allowed, last_code) or "no progress",
            fix=f"correct what {self._folder.path}/failure.json tells, then remove attempts.json beside it",
        )

    def _remember(self) -> None:
        note_json(self._path, self._records[-1000:])
