"""The two scripts of docs/own-script.md, as they are there: killed, stopped, and gone on with the same losses."""

import os
import re
import signal

import psutil
import pytest
import runs

pytestmark = [pytest.mark.torch, pytest.mark.slow]
DOCUMENT = (runs.ROOT / "docs" / "own-script.md").read_text()
STEPS = "60"


def script_of(folder, name):
    text = re.search(rf"^```python {name}\n(.*?)^```", DOCUMENT, re.MULTILINE | re.DOTALL)[1]
    return runs.write_script(folder, text)


def newest(run):
    steps = [int(path.parent.name[5:]) for path in (run / "checkpoints").glob("step-*/manifest.json")]
    return max(steps, default=0)


def losses(run):
    """step → loss, of all attempts; a step that was trained twice must have given the same."""
    found = {}
    for log in sorted((run / "logs").glob("attempt-*/n0r0.log")):
        for step, loss in re.findall(r"^step (\d+) loss (\S+)", log.read_text(), re.MULTILINE):
            assert found.setdefault(step, loss) == loss
    return found


def training_process(launcher):
    """One of the training processes, which a keeper has started."""
    for process in psutil.Process(launcher.pid).children(recursive=True):
        words = " ".join(process.cmdline())
        if "own.py" in words and not any(ours in words for ours in ("worker.py", "elastic.py")):
            return process
    raise AssertionError("no training process")


@pytest.mark.parametrize("name", ["plain", "trainer"])
def test_a_killed_process_costs_the_steps_since_the_checkpoint_and_no_more(tmp_path, name):
    undisturbed = tmp_path / "undisturbed"
    undisturbed.mkdir()
    script = script_of(tmp_path, name)
    if name == "plain":
        assert runs.train(undisturbed, script, STEPS)[0] == 0
        kept = (undisturbed / "runs" / "own" / "checkpoints").iterdir()
        assert sorted(path.name for path in kept) == ["step-40", "step-60"]  # of 20, 40 and 60
    process = runs.start(tmp_path, script, "2000" if name == "trainer" else "4000")
    run = tmp_path / "runs" / "own"
    runs.wait_for(lambda: newest(run) >= 20, "no checkpoint came", seconds=90)
    training_process(process).kill()
    runs.wait_for((run / "logs" / "attempt-1").exists, "it was not started again")
    before = newest(run)
    runs.wait_for(lambda: newest(run) > before, "it did not go on", seconds=90)
    process.send_signal(signal.SIGTERM)
    code, output = runs.finish(process)
    assert code == 143, output
    assert "first to fail: node 0 rank" in output
    assert "exit code 137 (SIGKILL); starting again" in output
    stopped_at = newest(run)
    assert stopped_at >= before
    assert int((run / "step").read_text()) == stopped_at  # saved in the step in which it was asked
    if name == "plain":
        assert f"going on from step {before}" in output
        same, found = losses(undisturbed / "runs" / "own"), losses(run)
        common = same.keys() & found.keys()
        assert len(common) > min(before, 20)
        assert {step: found[step] for step in common} == {step: same[step] for step in common}


@pytest.mark.parametrize("name", ["plain", "trainer"])
def test_the_stop_file_saves_and_the_next_start_goes_on(tmp_path, name):
    script = script_of(tmp_path, name)
    run = tmp_path / "runs" / "own"
    process = runs.start(tmp_path, script, "4000")
    runs.wait_for_step(run, 5)
    (run / "stop").touch()
    code, output = runs.finish(process)
    assert code == 143, output
    step = newest(run)
    code, output = runs.train(tmp_path, script, str(step + 5))
    assert code == 0, output
    assert int((run / "step").read_text()) == step + 5
    assert os.path.exists(run / "exit.json")
