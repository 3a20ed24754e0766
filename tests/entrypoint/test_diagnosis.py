"""After a hang at the first collective: one trial without P2P, one without shared memory, a verdict, and no more."""

from itertools import product

import pytest

from entrypoint.diagnosis import Attempted, Diagnosis, diagnostic_settings

HUNG = Attempted(first_collective=True, stepped=False)
CRASHED = Attempted(first_collective=False, stepped=False)
TRAINED = Attempted(first_collective=False, stepped=True)


def trial(of: Attempted, switch: str) -> Attempted:
    return Attempted(of.first_collective, of.stepped, switch)  # type: ignore[arg-type]


P2P, SHM = "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"


@pytest.mark.parametrize(
    ("history", "switch", "suspect"),
    [
        ([], None, None),
        ([CRASHED], None, None),
        ([TRAINED], None, None),
        ([HUNG], P2P, None),
        ([TRAINED, HUNG], P2P, None),
        ([HUNG, TRAINED], None, None),
        ([HUNG, trial(TRAINED, P2P)], None, "P2P"),
        ([HUNG, trial(HUNG, P2P)], SHM, None),
        ([HUNG, trial(HUNG, P2P), trial(TRAINED, SHM)], None, "shared memory between processes"),
        ([HUNG, trial(HUNG, P2P), trial(HUNG, SHM)], None, "neither"),
        ([HUNG, trial(CRASHED, P2P)], None, None),  # it says nothing
        ([HUNG, trial(HUNG, P2P), trial(CRASHED, SHM)], None, None),
        ([HUNG, trial(TRAINED, P2P), HUNG], None, "P2P"),  # once named, not tried for again
        ([HUNG, trial(HUNG, P2P), trial(HUNG, SHM), HUNG, HUNG], None, "neither"),
    ],
)
def test_the_next_attempt_follows_from_what_was_tried(history, switch, suspect):
    diagnosis = diagnostic_settings(history)
    assert diagnosis.switch == switch
    assert (diagnosis.suspect is None) == (suspect is None)
    assert suspect is None or suspect in (diagnosis.suspect or "")
    assert (diagnosis.fix is None) == (suspect is None)


def test_whatever_happens_there_are_at_most_two_trials_and_no_switch_stays():
    for outcomes in product((HUNG, CRASHED, TRAINED), repeat=6):
        history: list[Attempted] = []
        for outcome in outcomes:
            switch = diagnostic_settings(history).switch
            history.append(trial(outcome, switch) if switch else outcome)
        switches = [attempt.switch for attempt in history if attempt.switch]
        assert switches in ([], [P2P], [P2P, SHM])
        assert HUNG in outcomes or switches == []


def test_a_trial_sets_one_variable_and_says_that_it_is_one():
    (setting,) = Diagnosis("NCCL_P2P_DISABLE").settings
    assert (setting.name, setting.value) == (P2P, "1")
    assert "a trial" in setting.reason
    assert Diagnosis().settings == ()
