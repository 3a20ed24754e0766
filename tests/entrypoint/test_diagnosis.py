"""After a hang at the first collective: one trial without P2P, one without shared memory, a verdict, and no more."""

from itertools import product

import pytest
import runs

from entrypoint.diagnosis import Attempted, Trial, diagnostic_settings

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
    (setting,) = Trial(P2P, seconds=700).settings
    assert (setting.name, setting.value) == (P2P, "1")
    assert "a trial" in setting.reason


# What a GPU whose peer-to-peer access, or whose shared memory, is broken does, as far as a launcher sees of it: no GPU
# is needed to see our side of it. The dump is in the form that torch's NCCL process group writes.
STAND_IN = """
import os, pickle, sys, time
from pathlib import Path

cure, rank = sys.argv[1], int(os.environ["RANK"])
print({name: os.environ.get(name) for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE")}, flush=True)
if os.environ.get(cure) == "1":
    for step in range(1, 1000):
        time.sleep(0.1)
        if rank == 0:
            Path(os.environ["TRAIN_STEP_FILE"]).write_text(str(step))
time.sleep(1)
entry = {"process_group": ("0", "default_pg"), "collective_seq_id": 1, "profiling_name": "nccl:all_reduce",
         "input_sizes": [[8]], "state": "started", "is_p2p": False, "time_created_ns": 1}
Path(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + str(rank)).write_bytes(pickle.dumps({"entries": [entry]}, protocol=2))
print(f"[rank{rank}]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE)", flush=True)
os.abort()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cure", "switches", "suspect"),
    [
        (P2P, [None, P2P], "suspect: direct access between GPUs (P2P)"),
        (SHM, [None, P2P, SHM], "suspect: shared memory between processes"),
        ("NCCL_NEITHER", [None, P2P, SHM], "suspect: neither P2P nor shared memory"),
    ],
)
def test_a_hang_at_the_first_collective_is_tried_twice_and_ends_with_the_suspect(cure, switches, suspect, tmp_path):
    (tmp_path / "tmp").mkdir()
    folder = {"TMPDIR": str(tmp_path / "tmp")}
    code, output = runs.train(tmp_path, runs.write_script(tmp_path, STAND_IN), cure, TRAIN_NPROC="2", **folder)
    assert list((tmp_path / "tmp").glob("roundhouse-*-*")) == []  # the keepers of a trial were killed
    assert code == 69, output
    assert suspect in output
    assert "fix: " in output
    run = tmp_path / "runs" / "own"
    assert [record["switch"] for record in runs.read(run / "attempts.json")] == switches
    for number, switch in enumerate(switches):
        said = (run / "logs" / f"attempt-{number}" / "n0r1.log").read_text().splitlines()[0]
        assert said == str({name: "1" if name == switch else None for name in (P2P, SHM)})
    assert "all ranks were in number 1 of group 0:default_pg (nccl:all_reduce [8])" in output
