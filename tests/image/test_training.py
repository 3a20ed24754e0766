"""Training in a container: the first minute, stops and starts, exit codes, and who sees it."""

import os
import re
import time

import containers
import pexpect
import pytest
import runs

SMALL = "--seq-length 32 --global-batch 2 --log-every 1"
LONG = f"--steps 1000000 {SMALL} --save-every 1000000"
NO_COMPILER = "rm -f /usr/bin/*g++* /usr/bin/*gcc* /usr/bin/c++* /usr/bin/cc /usr/bin/*clang*; exec roundhouse train "


def test_a_bare_docker_run_trains_without_a_network_and_with_the_engines_64_mib_of_shared_memory(engine):
    result = engine.run("train", "ddp", "--steps", "50", options=("--network", "none"))
    assert result.code == 0, result
    assert "[n0r0] step 50/50" in result.output
    assert "a bigram model of the same data" in result.output
    assert "/dev/shm has 64 MiB" in result.output
    assert containers.complaints(result.output + result.errors) == []


@pytest.mark.parametrize(
    "words",
    ["fsdp", "zero --zero-stage 2 --offload", "hf --strategy ddp"],
)
def test_each_recipe_runs_where_no_compiler_is(engine, words):
    if "--offload" in words and containers.variant() != "cpu":
        pytest.skip("DeepSpeed takes the ops of a cuda build on a GPU only")
    command = f"{NO_COMPILER}{words} --steps 2 {SMALL}"
    result = engine.run("bash", "-c", command, options=("--network", "none"))
    assert result.code == 0, result
    assert "step 2/2" in result.output
    assert containers.complaints(result.output + result.errors) == []


def test_a_stop_saves_within_the_grace_and_the_next_start_goes_on(engine):
    volume = engine.volume()
    container = engine.start(
        options=("-v", f"{volume}:/workspace"), variables={"TRAIN_SCRIPT": "ddp", "TRAIN_ARGS": LONG}
    )
    container.wait_until(lambda: container.step() > 2, "no step")
    assert containers.complaints(container.logs()) == []
    assert "[n0r0] " not in (log := container.read("/workspace/runs/ddp/logs/attempt-0/n0r0.log"))
    assert re.search(r"^step +3/", log, re.MULTILINE)
    assert container.execute("tmux", "-L", "roundhouse", "list-sessions", "-F", "#{session_name}") == "train\n"
    assert "[n0r0] step" in container.execute("tmux", "-L", "roundhouse", "capture-pane", "-pt", "train")
    assert container.listening() <= {29500}, "the processes' meeting point, and nothing else"
    began = time.monotonic()
    container.stop(60)
    assert time.monotonic() - began < 45
    assert container.state["ExitCode"] == 143, container
    saved = re.findall(r"saved /workspace/runs/ddp/checkpoints/step-(\d+)", container.logs())
    assert len(saved) == 1
    container.start()
    container.wait_for(f"going on from /workspace/runs/ddp/checkpoints/step-{saved[0]}")
    container.wait_until(lambda: container.step() > int(saved[0]) + 1, "no step after the second start")
    container.stop(60)
    assert container.state["ExitCode"] == 143
    steps = [line.split('"step":')[1].split(",")[0] for line in metrics(container)]
    assert len(steps) == len(set(steps)), "a step was told twice"


def metrics(container):
    return [line for line in container.read("/workspace/runs/ddp/metrics.jsonl").splitlines() if '"loss":' in line]


def test_a_finished_run_is_not_trained_again_and_a_second_start_changes_nothing(engine):
    volume = engine.volume(own_py=runs.SCRIPT)
    container = engine.start(
        options=("-v", f"{volume}:/workspace"),
        variables={"TRAIN_SCRIPT": "/workspace/own.py", "TRAIN_ARGS": "steps=3 every=2"},
    )
    assert container.wait() == 0, container
    said, files = container.logs(), container.files("/workspace/runs/own")
    assert said.count("[n0r0] step 3") == 1
    container.start()
    assert container.wait() == 0
    assert "own has finished" in container.logs().removeprefix(said)
    assert container.files("/workspace/runs/own") == files
    elsewhere = engine.run("train", "/workspace/own.py", "steps=3", "every=2", options=("-v", f"{volume}:/workspace"))
    assert elsewhere.code == 0
    assert "own has finished" in elsewhere.output


def test_the_containers_exit_code_is_the_trainings_and_the_last_words_are_its_own(engine):
    volume = engine.volume(own_py=runs.SCRIPT)
    variables = {"TRAIN_SCRIPT": "/workspace/own.py", "TRAIN_ARGS": "do=raise", "TRAIN_RESTARTS": "1"}
    container = engine.start(options=("-v", f"{volume}:/workspace"), variables=variables)
    assert container.wait() == 1, container
    assert container.logs().rstrip().splitlines()[-1].startswith("first to fail: node 0 rank 1")
    assert "ValueError: bad data" in container.logs()
    replaced = ("--entrypoint", "/bin/sh", "-v", f"{volume}:/workspace", "-e", "TRAIN_RESTARTS=1")
    command = "roundhouse train /workspace/own.py do=exit code=42"  # as dstack and SkyPilot start it
    assert engine.run("-c", command, options=replaced).code == 42


ORPHANS = "for i in $(seq 100); do (sleep 0.2 &) ; done"
COUNT = "sleep 1; ps -eo stat= | grep -c '^Z' || true"


def test_a_hundred_orphans_leave_no_zombie(engine):
    container = engine.start(variables={"TRAIN_SCRIPT": "/workspace/orphans.sh", "TRAIN_NPROC": "1"}, options=(
        "-v", f"{engine.volume(orphans_sh=f'{ORPHANS}; {COUNT}; sleep 600')}:/workspace"))  # fmt: skip
    container.wait_for("[n0r0] ")
    assert re.findall(r"^\[n0r0\] (.*)$", container.logs(), re.MULTILINE) == ["0"]
    container.execute("bash", "-c", ORPHANS)  # these come to process 1
    assert container.execute("bash", "-c", COUNT) == "0\n"


def test_a_user_without_name_or_rights_trains_on_a_read_only_root(engine):
    volume = engine.volume()
    options = (
        *("--user", "1234", "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL"),
        *("--security-opt", "no-new-privileges", "-v", f"{volume}:/workspace"),
    )
    variables = {"TRAIN_SCRIPT": "ddp", "TRAIN_ARGS": f"--steps 40 {SMALL}"}
    container = engine.start(options=options, variables=variables)
    container.wait_until(lambda: container.step(), "no step")
    assert container.execute("tmux", "-L", "roundhouse", "list-sessions", "-F", "#{session_name}") == "train\n"
    assert container.wait() == 0, container
    assert containers.complaints(container.logs()) == []


def spawn(words):
    return pexpect.spawn(
        "docker", [*map(str, words)], env=containers.ENVIRONMENT, encoding="utf-8", timeout=240, dimensions=(30, 120)
    )


def test_attach_shows_a_run_live_and_leaving_it_leaves_the_run(engine):
    volume = engine.volume(own_py=runs.SCRIPT)
    container = engine.start(
        options=("-v", f"{volume}:/workspace"),
        variables={"TRAIN_SCRIPT": "/workspace/own.py", "TRAIN_ARGS": "steps=100000"},
    )
    container.wait_for("[n0r0] step 2")
    terminal = spawn(["exec", "-it", container.name, "roundhouse", "attach"])
    terminal.expect(r"\[n0r1\] step \d+")
    terminal.send("\x02d")
    terminal.expect("own goes on")
    terminal.expect(pexpect.EOF)
    again = spawn(["exec", "-it", container.name, "roundhouse", "attach"])
    again.expect(r"\[n0r1\] step \d+")
    assert container.execute("tmux", "-L", "roundhouse", "list-sessions", "-F", "#{session_name}") == "train\n"
    container.stop(60)
    assert container.state["ExitCode"] == 143
    again.expect(pexpect.EOF)


def test_a_terminal_that_is_left_or_closed_does_not_end_the_container(engine):
    volume = engine.volume(own_py=runs.SCRIPT)
    container, words = engine.terminal(
        *("train", "/workspace/own.py", "steps=100000", "do=exit", "at=100", "code=42"),
        options=("-v", f"{volume}:/workspace", "-e", "TRAIN_RESTARTS=1"),
    )
    terminal = spawn(words)
    terminal.expect(r"\[n0r0\] step 3")
    terminal.send("\x02d")  # tmux: detach
    terminal.expect("own goes on, and this container with it")
    terminal.close(force=True)  # the laptop is shut
    shown = container.logs().count("[n0r0] step")
    container.wait_until(lambda: container.logs().count("[n0r0] step") > shown + 5, "it stands still")
    assert container.wait() == 42, container


def test_a_stop_saves_too_while_a_terminal_shows_the_run(engine):
    volume = engine.volume(own_py=runs.SCRIPT)
    container, words = engine.terminal(
        "train", "/workspace/own.py", "steps=100000", options=("-v", f"{volume}:/workspace")
    )
    terminal = spawn(words)
    terminal.expect(r"\[n0r0\] step 3")
    container.stop(60)
    terminal.expect(pexpect.EOF)
    assert container.state["ExitCode"] == 143
    assert any("/step-" in name for name in container.files("/workspace/runs/own/checkpoints"))


@pytest.mark.skipif(os.getuid() != 0, reason="killing a container from outside wants root")
def test_after_a_crash_the_restart_policy_brings_the_run_back_to_its_checkpoint(engine):
    volume = engine.volume()
    container = engine.start(
        options=("-v", f"{volume}:/workspace", "--restart", "on-failure:2"),
        variables={"TRAIN_SCRIPT": "ddp", "TRAIN_ARGS": f"--steps 1000000 {SMALL} --save-every 2"},
    )
    container.wait_for("checkpoints/step-2")
    os.kill(container.pid, 9)  # `docker kill` would start no policy
    container.wait_for("going on from /workspace/runs/ddp/checkpoints/step-")
    assert container.restarts == 1
