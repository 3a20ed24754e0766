"""Attempts: what is tried again, how often, and what the volume remembers."""

import os
import signal

import pytest
import runs

from entrypoint.restarts import Decision, Outcome, decide, in_a_row, refusal


def record(checkpoint, exit_code, **more):
    return {"checkpoint": checkpoint, "exit_code": exit_code, **more}


@pytest.mark.parametrize(
    ("history", "newest", "expected"),
    [
        ([], None, 0),
        ([record(None, 1)], None, 1),
        ([record(None, 1), record(None, 137)], None, 2),
        ([record(None, 1), record(None, None)], None, 2),  # the second was lost with its node
        ([record(None, 1)], 100, 0),  # it got further
        ([record(None, 1), record(100, 1)], 100, 1),
        ([record(100, 1), record(100, 143), record(100, 1)], 100, 2),  # a requested stop neither counts nor clears
        ([record(100, 1), record(100, 78)], 100, 1),
        ([record(100, 1), record(100, 0)], 100, 0),
        ([record(None, 1), record(None, 1, anew=True), record(None, 1)], None, 2),
        ([record(200, 1)], 100, 1),  # somebody deleted a checkpoint: that is no progress
    ],
)
def test_attempts_without_a_new_checkpoint_are_counted(history, newest, expected):
    assert in_a_row(history, newest) == expected


FAULT = Outcome(42, "it failed", stepped=True)


@pytest.mark.parametrize(
    ("outcome", "failures", "allowed", "expected"),
    [
        (Outcome(0, stepped=True), 0, 3, Decision(None, 0)),
        (Outcome(143, stepped=True, ours=True), 1, 3, Decision(None, 143)),
        (Outcome(78, "wrong", stepped=True), 1, 3, Decision(None, 78, "wrong")),
        (FAULT, 1, 3, Decision(1.0)),
        (FAULT, 2, 3, Decision(2.0)),
        (FAULT, 0, 3, Decision(1.0)),
        (FAULT, 8, 20, Decision(30.0)),
        (FAULT, 3, 3, Decision(None, 76, "it failed")),
        (FAULT, 1, 1, Decision(None, 42, "it failed")),
        (FAULT, 1, 0, Decision(None, 42, "it failed")),
        (Outcome(137, "killed", by_itself=False), 1, 3, Decision(1.0)),  # before its first step, but not by itself
        (Outcome(137, "late", stepped=True, by_itself=False, ours=True), 1, 3, Decision(None, 137, "late")),
    ],
)
def test_what_follows_an_attempt(outcome, failures, allowed, expected):
    assert decide(outcome, failures, allowed) == expected


def test_a_program_that_fails_before_its_first_step_is_not_started_again():
    decision = decide(Outcome(1, "it failed"), 1, 3)
    assert (decision.delay, decision.exit_code) == (None, 1)


@pytest.mark.parametrize(
    ("failures", "allowed", "refused"), [(2, 3, False), (3, 3, True), (9, 1, False), (9, 0, False)]
)
def test_no_attempt_is_made_where_the_volume_remembers_enough(failures, allowed, refused):
    assert bool(refusal(failures, allowed, 1)) == refused


def run_of(volume):
    return volume / "runs" / "own"


@pytest.mark.torch
@pytest.mark.slow
def test_attempts_go_on_while_checkpoints_come_and_end_with_76(tmp_path):
    script = runs.write_script(tmp_path)
    code, output = runs.train(tmp_path, script, "do=exit", "code=42", TRAIN_RESTARTS="2")
    assert code == 76, output
    assert "starting again in 1 s (1 of 2 attempts without a new checkpoint)" in output
    assert "no new complete checkpoint in 2 attempts in a row (TRAIN_RESTARTS=2); the last ended with 42" in output
    assert output.splitlines()[-1].startswith("  fix:")
    logs = run_of(tmp_path) / "logs"
    assert sorted(path.name for path in logs.glob("attempt-*")) == ["attempt-0", "attempt-1"]
    # a platform that starts it again is told so at once, and nothing is launched
    code, output = runs.train(tmp_path, script, "do=exit", "code=42", TRAIN_RESTARTS="2")
    assert code == 76, output
    assert not (logs / "attempt-2").exists()
    # as the fix says
    (run_of(tmp_path) / "attempts.json").unlink()
    code, output = runs.train(tmp_path, script, TRAIN_RESTARTS="2")
    assert code == 0, output
    assert (logs / "attempt-2" / "n0r0.log").exists()


@pytest.mark.torch
@pytest.mark.slow
def test_a_platform_that_starts_a_broken_script_for_ever_trains_it_twice(tmp_path):
    """l-10: it fails before its first step, so that each start is one attempt; the volume counts them."""
    script = runs.write_script(tmp_path, "raise SystemExit(1)\n")
    ended = [runs.train(tmp_path, script, TRAIN_RESTARTS="2") for _ in range(4)]
    assert [code for code, _ in ended] == [1, 1, 76, 76], ended
    assert all("no new complete checkpoint in 2 attempts in a row" in output for _, output in ended[2:])
    assert len(list((run_of(tmp_path) / "logs").glob("attempt-*"))) == 2


@pytest.mark.torch
@pytest.mark.slow
def test_a_new_checkpoint_begins_the_count_again(tmp_path):
    script = tmp_path / "own.py"
    # fails in attempts 0 to 2, each of which makes a checkpoint; the third would be one too many without them
    script.write_text(
        runs.SCRIPT + "\nif os.environ['TRAIN_ATTEMPT'] in '012' and rank == 1:\n    time.sleep(0.5); sys.exit(9)\n"
    )
    code, output = runs.train(tmp_path, script, "every=2", "steps=3", TRAIN_RESTARTS="2")
    assert code == 0, output
    assert output.count("starting again in 1 s (0 of 2 attempts") == 3


@pytest.mark.torch
@pytest.mark.slow
def test_a_killed_process_is_replaced_and_the_attempt_number_is_told(tmp_path):
    script = tmp_path / "own.py"
    script.write_text(
        "import os, signal, sys\n"
        "print('attempt', os.environ['TRAIN_ATTEMPT'])\n"
        "if os.environ['TRAIN_ATTEMPT'] == '0': os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    code, output = runs.train(tmp_path, script)
    assert code == 0, output
    assert "[n0r0] attempt 1" in output


@pytest.mark.torch
@pytest.mark.slow
def test_a_finished_run_is_left_alone_and_put_aside_when_it_is_trained_again(tmp_path):
    script = runs.write_script(tmp_path)
    assert runs.train(tmp_path, script, "steps=2")[0] == 0
    code, output = runs.train(tmp_path, script, "steps=2")
    assert code == 0
    assert "own has finished" in output
    assert "TRAIN_AGAIN=1" in output
    assert len(list((run_of(tmp_path) / "logs").glob("attempt-*"))) == 1
    for number in (1, 2):
        code, output = runs.train(tmp_path, script, "steps=2", TRAIN_AGAIN="1")
        assert code == 0, output
        assert (tmp_path / "runs" / f"own.{number}" / "exit.json").exists()
    code, output = runs.train(tmp_path, script, "steps=3")  # other arguments: it goes on
    assert (run_of(tmp_path) / "logs" / "attempt-1").exists()


@pytest.mark.torch
@pytest.mark.slow
def test_a_run_is_trained_once_at_a_time(tmp_path):
    script = runs.write_script(tmp_path)
    first = runs.start(tmp_path, script, "steps=3000")
    runs.wait_for_step(run_of(tmp_path), 2)
    code, output = runs.train(tmp_path, script, "steps=3000")
    assert code == 78, output
    assert f"own is trained already, by pid {first.pid} of {os.uname().nodename}" in output
    first.send_signal(signal.SIGKILL)
    first.communicate()
    code, output = runs.train(tmp_path, script, "steps=3")  # the lock went with its holder
    assert code == 0, output
