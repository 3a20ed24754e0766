"""A container as a cloud's pod: its health, what follows its training, its hooks, and without rights."""

import json
import shlex

import containers
import pytest
import runs
from clouds import Api

POD = {"VAST_CONTAINERLABEL": "C.4711", "TRAIN_SCRIPT": "/workspace/own.py"}  # a platform that starts what has ended
QUICK = ("--health-interval", "1s", "--health-retries", "2", "--health-start-period", "1ms")
RANKS = """for file in /workspace/runs/own/logs/attempt-0/*.started.json; do
  ps -o pid= --ppid "$(grep -oP '"pid": *\\K[0-9]+' "$file")"
done"""


def health(container):
    return container.state["Health"]["Status"]


def test_the_images_check_is_the_one_that_is_tried_here(engine):
    config = json.loads(containers.docker("image", "inspect", "-f", "{{json .Config}}", containers.IMAGE).stdout)
    assert config["Healthcheck"]["Test"] == ["CMD", "roundhouse", "health"]


def test_health_follows_the_steps(engine):
    container = engine.start(
        options=(
            *("-v", f"{engine.volume(own_py=runs.SCRIPT)}:/workspace"),
            *(*QUICK, "--health-cmd", "roundhouse health --seconds 4"),
        ),
        variables={"TRAIN_SCRIPT": "/workspace/own.py", "TRAIN_ARGS": "steps=100000"},
    )
    container.wait_for("[n0r0] step 5")
    container.wait_until(lambda: health(container) == "healthy", "it is not healthy while it trains", 60)
    container.execute("bash", "-c", f"kill -STOP $({RANKS})")
    container.wait_until(lambda: health(container) == "unhealthy", "it stays healthy without steps", 60)
    assert "no step is made any more" in container.state["Health"]["Log"][-1]["Output"]
    container.execute("bash", "-c", f"kill -CONT $({RANKS})")
    container.wait_until(lambda: health(container) == "healthy", "it stays unhealthy with steps", 60)
    container.stop(60)
    assert container.state["ExitCode"] == 143


def test_a_container_without_training_is_healthy(engine):
    container = engine.start("sleep", "100", options=QUICK)
    container.wait_until(lambda: health(container) == "healthy", "it is not healthy", 60)


def test_a_failed_run_keeps_the_pod_unhealthy_and_says_so_to_whoever_comes_in(engine):
    container = engine.start(
        options=("-v", f"{engine.volume(own_py=runs.SCRIPT)}:/workspace", *QUICK),
        variables={**POD, "TRAIN_ARGS": "do=exit code=42", "TRAIN_RESTARTS": "1"},
    )
    container.wait_for("this container stays")
    container.wait_until(lambda: health(container) == "unhealthy", "it looks well", 60)
    for words in (("bash", "-ic", "true"), ("bash", "-lic", "true")):
        assert "*** own has failed with exit code 42" in container.execute(*words), words
    assert "***" not in container.execute("bash", "-c", "true")
    status = containers.docker("exec", container.name, "roundhouse", "status", check=False)
    assert (status.returncode, "exit code 42" in status.stdout) == (42, True)
    container.stop(30)
    assert container.state["ExitCode"] == 42
    attempts = container.read("/workspace/runs/own/attempts.json")
    assert len(json.loads(attempts)) == 1


def test_a_wrong_setting_keeps_the_pod_for_a_person_to_look_at(engine):
    container = engine.start(variables={**POD, "TRAIN_NPROC": "many"}, options=QUICK)
    container.wait_for("this container stays")
    assert "error: TRAIN_NPROC" in container.execute("bash", "-ic", "true")
    container.wait_until(lambda: health(container) == "unhealthy", "it looks well", 60)
    container.stop(30)
    assert container.state["ExitCode"] == 78


def test_a_finished_run_has_its_machine_stopped_once_and_is_not_trained_again(engine):
    volume = engine.volume(own_py=runs.SCRIPT)
    container = engine.start(
        options=("-v", f"{volume}:/workspace"),
        variables={
            **POD,
            "TRAIN_ARGS": "steps=3",
            "TRAIN_ON_EXIT": "stop",
            "TRAIN_STOP_COMMAND": "echo $TRAIN_SCRIPT >> /workspace/asked",
        },
    )
    container.wait_for("was asked to stop this machine, and does")
    assert "after success: run TRAIN_STOP_COMMAND to stop this machine" in container.logs()
    assert container.state["Running"]
    container.stop(30)
    assert container.state["ExitCode"] == 0
    said = container.logs()
    container.start()
    container.wait_until(lambda: "not again" in container.logs().removeprefix(said), "it never said why it stays")
    container.stop(30)
    assert container.read("/workspace/asked") == "/workspace/own.py\n"
    assert container.logs().count("[n0r0] step 3") == 1


RUNPOD = {"RUNPOD_POD_ID": "abc123", "RUNPOD_API_KEY": "rpa_TOPSECRET", "TRAIN_SCRIPT": "/workspace/own.py"}


def test_a_pod_of_runpod_is_stopped_by_the_api_that_takes_its_own_key(engine):
    gateway = "{{(index .IPAM.Config 0).Gateway}}"
    host = containers.docker("network", "inspect", "bridge", "-f", gateway).stdout.strip()
    answers = [(503, ""), (401, {"error": "not with rpa_TOPSECRET"}), (200, {"data": {"podStop": {"id": "abc123"}}})]
    volume = engine.volume(own_py=runs.SCRIPT)
    with Api(answers, host=host) as api:
        container = engine.start(
            options=("-v", f"{volume}:/workspace"),
            variables={**RUNPOD, "TRAIN_ARGS": "steps=3", "TRAIN_ON_EXIT": "stop", "TRAIN_CLOUD_API": api.url},
        )
        container.wait_for("Runpod was asked to stop this machine, and does: api.runpod.io answers 200")
    assert [seen.path for seen in api.seen] == [
        *["/rest.runpod.io/v1/pods/abc123/stop"] * 2,
        "/api.runpod.io/graphql",
    ]
    assert "rpa_TOPSECRET" not in container.logs()
    held = container.execute("grep", "-rl", "rpa_TOPSECRET", "/workspace", "/tmp", "/run", check=False).split()
    assert all(path.startswith("/run/roundhouse/environment.") for path in held), held  # 0600, for shells
    container.stop(30)
    assert container.state["ExitCode"] == 0


HOOKS = {
    "pre_start.sh": "echo before the services",
    "etc/roundhouse/hooks.d/10-fails.sh": "echo why >&2; exit 3",
    "post_start.sh": "echo $WORD > /workspace/hooked\r\necho done\r\n",
}


def test_hooks_run_before_the_training_and_one_that_fails_does_not_keep_it(engine):
    lines = ["mkdir -p /etc/roundhouse/hooks.d"]
    lines += [f"printf %s {shlex.quote(text)} > /{name}" for name, text in HOOKS.items()]
    volume = engine.volume(own_py=runs.SCRIPT)
    result = engine.run(
        *("bash", "-c", "; ".join([*lines, "exec roundhouse up"])),
        options=("-v", f"{volume}:/workspace"),
        variables={
            "TRAIN_SCRIPT": "/workspace/own.py",
            "TRAIN_ARGS": "steps=3",
            "WORD": "a b",
            "TRAIN_SETUP": "cat /workspace/hooked",
        },
    )
    assert result.code == 0, result
    assert "[pre_start.sh] before the services" in result.errors
    assert "[10-fails.sh] why" in result.errors
    assert "failed: exit code 3; the boot goes on" in result.errors
    assert "[setup] a b" in result.output
    assert "step 3" in result.output


@pytest.mark.parametrize("keys", [{}, {"PUBLIC_KEY": "null"}])
def test_root_without_any_right_trains(engine, keys):
    """No capability at all: files of others, mounts, sshd are out of reach, training is not."""
    volume = engine.volume(own_py=runs.SCRIPT)
    container = engine.start(
        options=("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "-v", f"{volume}:/workspace"),
        variables={"TRAIN_SCRIPT": "/workspace/own.py", "TRAIN_ARGS": "steps=3", **keys},
    )
    assert container.wait() == 0, container
    assert "[n0r0] step 3" in container.logs()
    assert containers.complaints(container.logs()) == []


def test_what_listens_while_it_trains_is_declared(engine):
    declared = json.loads(containers.docker("image", "inspect", "-f", "{{json .Config}}", containers.IMAGE).stdout)
    ports = {int(port.partition("/")[0]) for port in declared["ExposedPorts"]}
    assert ports == {22, 8888}
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGKUBSUxhnz8+6sGkvkG1U7VMUGoB1VbAbHG1KdCTzYy someone"
    container = engine.start(
        options=("-v", f"{engine.volume(own_py=runs.SCRIPT)}:/workspace"),
        variables={
            "TRAIN_SCRIPT": "/workspace/own.py",
            "TRAIN_ARGS": "steps=100000",
            "PUBLIC_KEY": key,
            "JUPYTER_PASSWORD": "a pass word",
        },
    )
    container.wait_for("[n0r0] step 3")
    container.wait_until(lambda: ports <= container.listening(), "a service does not listen", 120)
    meeting = {29500}  # of the processes of one node (torch's store), for as long as it trains
    assert container.listening() - meeting == ports
    assert "a pass word" not in container.logs() + container.execute("ps", "-eo", "args")
