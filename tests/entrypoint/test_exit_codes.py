"""The exit codes that are promised, each by a run of real processes, and that nothing of it is left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import runs

pytestmark = [pytest.mark.torch, pytest.mark.slow]


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path):
    segments = set(os.listdir("/dev/shm"))
    yield
    run = tmp_path / "runs" / "own"
    runs.wait_for(lambda: not runs.processes_of(run), f"left: {runs.processes_of(run)}", seconds=10)
    ours = {name for name in set(os.listdir("/dev/shm")) - segments if Path("/dev/shm", name).exists()}
    assert not {name for name in ours if name.startswith(("torch_", "sem.", "gloo"))}


@pytest.mark.parametrize(
    ("words", "code", "last", "lines"),
    [
        (("do=exit", "code=42"), 42, "first to fail: node 0 rank 1, exit code 42", "step 2"),
        (("do=kill",), 137, "first to fail: node 0 rank 1, exit code 137 (SIGKILL)", "step 2"),
        (("do=raise",), 1, "first to fail: node 0 rank 1, exit code 1", "ValueError: bad data"),
        (("do=segfault",), 139, "first to fail: node 0 rank 1, exit code 139 (SIGSEGV)", "Fatal Python error"),
        (("do=exit", "code=42", "others=hang"), 42, "first to fail: node 0 rank 1, exit code 42", "step 2"),
        (("do=exit", "code=0"), 0, None, None),
        (("steps=3",), 0, None, None),
        (("do=exit", "code=78"), 78, "first to fail: node 0 rank 1, exit code 78", "step 2"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_the_code_is_the_first_failing_process_own_and_its_words_come_last(tmp_path, words, code, last, lines):
    began = time.monotonic()
    found, output = runs.train(tmp_path, runs.write_script(tmp_path), *words, TRAIN_RESTARTS="1")
    run = tmp_path / "runs" / "own"
    assert found == code, output
    ended = runs.read(run / "exit.json")
    assert (ended["exit_code"], ended["text"]) == (code, last)
    if last is None:
        assert not (run / "failure.json").exists()
        return
    assert output.splitlines()[-1] == last
    failure = runs.read(run / "failure.json")
    assert (failure["node"], failure["rank"], failure["exit_code"]) == (0, 1, code)
    assert failure["signal"] == {137: "SIGKILL", 139: "SIGSEGV"}.get(code)
    assert any(lines in line for line in failure["lines"])
    assert any(line.startswith("[n0r1]") and lines in line for line in output.splitlines()[-25:])
    if code == 1:
        assert failure["traceback"].endswith("ValueError: bad data")
    assert time.monotonic() - began < 30  # torch's own agent would wait 30 s for a process that hangs


FOLLOWS = """
import os
from pathlib import Path
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(1, 6):
    Path(os.environ["TRAIN_STEP_FILE"]).write_text(f"{step}\\n")
    if step == 3 and dist.get_rank() == 1:
        raise ValueError("bad data")
    dist.all_reduce(torch.ones(1))
"""


def test_the_last_words_are_of_who_failed_and_not_of_who_lost_its_peer(tmp_path):
    """l-03: rank 0 fails too, on the connection that rank 1 leaves behind."""
    script = runs.write_script(tmp_path, FOLLOWS)
    code, output = runs.train(tmp_path, script, TRAIN_RESTARTS="1")
    run = tmp_path / "runs" / "own"
    assert code == 1, output
    assert "Traceback" in (run / "logs" / "attempt-0" / "n0r0.log").read_text()
    failure = runs.read(run / "failure.json")
    assert failure["rank"] == 1
    assert f'File "{script}", line 11' in failure["traceback"]
    *_, cause, last = output.splitlines()
    assert cause == "[n0r1] [rank1]: ValueError: bad data"
    assert last == "first to fail: node 0 rank 1, exit code 1"


def test_an_import_error_is_not_tried_again(tmp_path):
    script = runs.write_script(tmp_path, "import no_such_module\n")
    code, output = runs.train(tmp_path, script)
    assert code == 1
    assert "ModuleNotFoundError: No module named 'no_such_module'" in output
    assert output.splitlines()[-1].endswith("not started again: it failed before its first step")
    assert len(runs.read(tmp_path / "runs" / "own" / "attempts.json")) == 1


def test_the_launchers_child_may_be_killed_and_leaves_no_orphan(tmp_path):
    process = runs.start(tmp_path, runs.write_script(tmp_path), "steps=1000", TRAIN_RESTARTS="1")
    runs.wait_for_step(tmp_path / "runs" / "own", 2)
    child = next(p for p in psutil.Process(process.pid).children() if "elastic.py" in " ".join(p.cmdline()))
    child.kill()
    code, output = runs.finish(process)
    assert code == 137, output
    assert output.splitlines()[-1] == "the launcher itself ended with 137"


def test_a_keeper_may_be_killed_and_its_process_goes_with_it(tmp_path):
    process = runs.start(tmp_path, runs.write_script(tmp_path), "steps=1000", TRAIN_RESTARTS="1")
    run = tmp_path / "runs" / "own"
    runs.wait_for_step(run, 2)
    os.kill(runs.read(run / "logs" / "attempt-0" / "n0r1.started.json")["pid"], signal.SIGKILL)
    code, output = runs.finish(process)
    assert code == 137, output
    assert output.splitlines()[-1] == "first to fail: node 0 rank 1, exit code 137 (SIGKILL)"


def test_the_launcher_may_be_killed_and_leaves_no_orphan(tmp_path):
    process = runs.start(tmp_path, runs.write_script(tmp_path), "steps=1000")
    runs.wait_for_step(tmp_path / "runs" / "own", 2)
    process.kill()
    process.communicate()


LOADER = """
import os, signal, sys, time
from pathlib import Path
import torch
from torch.utils.data import DataLoader

def deaf(worker):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

if __name__ == "__main__":
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    folder = Path(os.environ["TRAIN_CHECKPOINT_DIR"])
    begun = max((int(path.name[5:]) for path in folder.glob("step-*[0-9]")), default=0)
    print("begins after", begun, flush=True)
    data = DataLoader(torch.ones(100_000, 8), 4, num_workers=2, worker_init_fn=deaf if "deaf" in sys.argv else None)
    for step, _ in enumerate(data, begun + 1):
        time.sleep(0.05)
        if os.environ["RANK"] == "0":
            Path(os.environ["TRAIN_STEP_FILE"]).write_text(f"{step}\\n")
        if asked:
            if os.environ["RANK"] == "0":
                partial = folder / f"step-{step}.partial"
                partial.mkdir()
                (partial / "manifest.json").write_text("{}")
                partial.rename(folder / f"step-{step}")
            sys.exit(143)
        if step == begun + 5 and "short" in sys.argv:
            break
"""


def test_loader_workers_go_with_a_launcher_that_is_killed_and_others_stay(tmp_path):
    """l-06"""
    script = runs.write_script(tmp_path, LOADER)
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", script]) as foreign:
        process = runs.start(tmp_path, script)
        run = tmp_path / "runs" / "own"
        runs.wait_for_step(run, 2)
        process.kill()
        process.communicate()
        runs.wait_for(lambda: not runs.processes_of(run), f"left: {runs.processes_of(run)}", seconds=10)
        assert foreign.poll() is None
        foreign.kill()
    assert runs.train(tmp_path, script, "short")[0] == 0


def to_the_group(process):
    os.killpg(process.pid, signal.SIGTERM)


def to_every_process(process):
    """As Slurm sends it: to the launcher, its child, the keepers and the training."""
    for one in (psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)):
        one.terminate()


@pytest.mark.parametrize(("words", "ask"), [((), to_the_group), (("deaf",), to_every_process)])
def test_loader_workers_live_to_the_last_batch_of_a_stop(words, ask, tmp_path):
    """l-08. What is sent to every process also reaches the workers: docs/own-script.md has the line against that."""
    script = runs.write_script(tmp_path, LOADER)
    process = runs.start(tmp_path, script, *words, start_new_session=True)
    run = tmp_path / "runs" / "own"
    runs.wait_for_step(run, 7)
    ask(process)
    code, output = runs.finish(process)
    assert code == 143, output
    (saved,) = (run / "checkpoints").glob("step-*/manifest.json")
    step = int(saved.parent.name[5:])
    assert step >= 7
    code, output = runs.train(tmp_path, script, "short")
    assert code == 0, output
    assert f"begins after {step}" in output


def test_a_requested_stop_has_the_time_to_save_that_a_fault_has_not(tmp_path):
    script = runs.write_script(tmp_path)
    process = runs.start(tmp_path, script, "steps=1000", "save=8", TRAIN_GRACE="20")
    run = tmp_path / "runs" / "own"
    runs.wait_for_step(run, 2)
    process.send_signal(signal.SIGTERM)
    code, output = runs.finish(process)
    assert code == 143, output
    assert "the training has 20 s to save" in output
    assert len(list((run / "checkpoints").glob("step-*/manifest.json"))) == 1
    assert runs.read(run / "exit.json")["exit_code"] == 143


def test_a_stop_that_reaches_every_process_saves_too(tmp_path):
    process = runs.start(tmp_path, runs.write_script(tmp_path), "steps=1000", "save=4", TRAIN_GRACE="20")
    run = tmp_path / "runs" / "own"
    runs.wait_for_step(run, 2)
    to_every_process(process)
    code, output = runs.finish(process)
    assert code == 143, output
    assert len(list((run / "checkpoints").glob("step-*/manifest.json"))) == 1


def test_who_does_not_save_in_time_is_killed_and_that_is_said(tmp_path):
    process = runs.start(tmp_path, runs.write_script(tmp_path), "steps=1000", "term=ignore", TRAIN_GRACE="2")
    runs.wait_for_step(tmp_path / "runs" / "own", 2)
    process.send_signal(signal.SIGTERM)
    code, output = runs.finish(process)
    assert code == 137, output
    assert output.splitlines()[-1].startswith("killed: the training was not gone 2 s after the request to stop")
    assert runs.read(tmp_path / "runs" / "own" / "failure.json")["signal"] == "SIGKILL"


def test_a_second_interrupt_does_not_wait(tmp_path):
    process = runs.start(tmp_path, runs.write_script(tmp_path), "steps=1000", "term=ignore")
    runs.wait_for_step(tmp_path / "runs" / "own", 2)
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    code, output = runs.finish(process, seconds=10)
    assert code == 137, output
    assert output.splitlines()[-1] == "killed at once, as asked"


def test_the_stop_file_stops_it(tmp_path):
    process = runs.start(tmp_path, runs.write_script(tmp_path), "steps=1000", "save=1")
    run = tmp_path / "runs" / "own"
    runs.wait_for_step(run, 2)
    (run / "stop").touch()
    code, output = runs.finish(process)
    assert code == 143, output
    assert len(list((run / "checkpoints").glob("step-*/manifest.json"))) == 1


def test_a_stop_before_anything_began_is_a_stop(tmp_path):
    process = runs.start(tmp_path, runs.write_script(tmp_path))
    runs.wait_for((tmp_path / "runs" / "own" / "attempts.json").exists, "it did not start")
    time.sleep(0.5)
    process.send_signal(signal.SIGTERM)
    code, output = runs.finish(process, seconds=20)
    assert code == 143, output


@pytest.mark.parametrize(
    ("words", "variables", "code", "quoted"),
    [
        (("no-such.py",), {}, 78, "no-such.py: no such file"),
        ((".",), {}, 78, "no recipe"),
        (("ddp", "--steps", "-1"), {}, 78, "--steps"),
        (("own.py",), {"TRAIN_VOLUME": "/proc/nowhere"}, 69, "/proc/nowhere"),
    ],
)
def test_settings_and_machine_come_before_anything_starts(tmp_path, words, variables, code, quoted):
    runs.write_script(tmp_path)
    found, output = runs.train(tmp_path, *words, cwd=tmp_path, **variables)
    assert found == code, output
    assert quoted in output
    assert "fix:" in output
    assert "Traceback" not in output


HANG = "from entrypoint import launch; launch.HANG_SECONDS = 2.0\nfrom entrypoint.__main__ import main; main()"


def test_a_hang_leaves_the_stacks_of_all_ranks_and_ends_the_attempt(tmp_path):
    script = runs.write_script(tmp_path)
    words = ("do=hang", "rank=0", "term=ignore", "steps=9999")
    code, output = runs.train(tmp_path, script, *words, program=("-c", HANG), TRAIN_RESTARTS="1")
    run = tmp_path / "runs" / "own"
    assert code == 137, output
    assert "hang: no new step for" in output.splitlines()[-1]
    for rank in (0, 1):
        stacks = (run / "logs" / "attempt-0" / f"n0r{rank}.stacks").read_text()
        assert "in the kernel at" in stacks
        assert "Fatal Python error: Aborted" in stacks
        assert str(script) in stacks


STOPS = """
import os, signal
from pathlib import Path
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(1, 6):
    Path(os.environ["TRAIN_STEP_FILE"]).write_text(f"{step}\\n")
    if step == 3 and dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(1))
"""


def test_a_rank_that_is_stopped_is_the_one_that_is_named(tmp_path):
    """l-04: the others would wait for it as long as their group's timeout is, half an hour by default."""
    script = runs.write_script(tmp_path, STOPS)
    code, output = runs.train(tmp_path, script, program=("-c", HANG), TRAIN_RESTARTS="1")
    assert code == 137, output
    assert f"rank 1 left no stack (stopped?); rank 0 waited at {script}:12" in output.splitlines()[-1]


def test_a_script_without_a_step_file_is_not_judged(tmp_path):
    words = ("quiet=1", "steps=8", "pace=1")
    code, output = runs.train(tmp_path, runs.write_script(tmp_path), *words, program=("-c", HANG))
    assert code == 0, output


def test_a_storm_of_output_blocks_nothing_and_fills_no_disk(tmp_path):
    line = "x" * 1023
    storm = f"import os\nfor _ in range(400 * 1024): os.write(1, b'{line}\\n')\nos.write(1, b'the end\\n')\n"
    began = time.monotonic()
    code, _ = runs.train(tmp_path, runs.write_script(tmp_path, storm), TRAIN_NPROC="1")
    seconds = time.monotonic() - began
    assert code == 0
    assert seconds < 60
    logs = tmp_path / "runs" / "own" / "logs"
    assert sum(path.stat().st_size for path in logs.rglob("*")) < 210 << 20
    assert (logs / "attempt-0" / "n0r0.log").read_bytes().endswith(b"the end\n")
    print(f"400 MB in {seconds:.1f} s", file=sys.stderr)
