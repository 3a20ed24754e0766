"""The rendered Compose files under a real engine: one node, and two on two networks of which one is killed."""

import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from uuid import uuid4

import pytest
import trial
from containers import IMAGE, Container, complaints, docker
from leave_out import leave_out

ROOT = Path(__file__).resolve().parents[2]
SMALL = "--steps 3 --seq-length 32 --global-batch 2 --log-every 1"
# The one thing of the files that a busy machine may lack is the port: any free one will do.
ANY_PORT = "services: {{ {service}: {{ ports: !override ['127.0.0.1::8888'] }} }}\n"


class Project:
    """What `docker compose` makes of a file of ours; all of it is gone at the end."""

    def __init__(self, folder, *words, service, **keys):
        self.name = f"rh-{uuid4().hex[:12]}"
        self._files = [folder / "compose.yaml", folder / "port.yaml"]
        settings = [f"--set={key}={value}" for key, value in ({"name": self.name, "image": IMAGE} | keys).items()]
        render = [sys.executable, "-m", "entrypoint", "render", "compose", *words, *settings]
        subprocess.run([*render, "-o", str(self._files[0])], cwd=ROOT, check=True)
        self._files[1].write_text(ANY_PORT.format(service=service))

    def __call__(self, *words, check=True, **options):
        files = [word for file in self._files for word in ("-f", file)]
        return docker("compose", *files, *words, check=check, **options)

    def container(self, service):
        return Container(f"{self.name}-{service}-1")

    def clear(self):
        self("--profile", "*", "down", "--volumes", "--timeout", "1", "--remove-orphans")


@pytest.fixture
def project(engine, tmp_path):
    if docker("compose", "version", check=False).returncode != 0:
        leave_out("no docker compose")
    made = []

    def make(*words, **keys):
        made.append(Project(tmp_path, *words, **keys))
        return made[-1]

    yield make
    for each in made:
        each.clear()


def test_one_node_trains_in_the_foreground_and_a_second_up_says_that_it_is_finished(project):
    one = project("--script", "ddp", "--gpus", "0", args=SMALL, service="cpu")
    first = one("up", "--no-color", "--exit-code-from", "cpu", "cpu", check=False)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "[n0r0] step 3/3" in first.stdout
    assert complaints(first.stdout) == []
    again = one("up", "--no-color", "--exit-code-from", "cpu", "cpu", check=False)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "ddp has finished" in again.stdout.partition("Attaching")[2]


def test_the_gpu_profile_is_taken_by_compose(project):
    one = project("--script", "ddp", service="gpu")
    service = json.loads(one("--profile", "gpu", "config", "--format", "json").stdout)["services"]["gpu"]
    assert service["ulimits"]["memlock"] == -1
    (device,) = service["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["count"], device["capabilities"]) == ("nvidia", 8, ["gpu"])


class Cluster:
    """Two nodes of one file, with steps.py on their volume."""

    def __init__(self, project):
        words = ("--script", "/workspace/steps.py", "--nodes", "2", "--gpus", "0")
        self.project = project(*words, service="node0", **{"args": trial.STEPS, "env.TRAIN_NPROC": "1"})
        self.nodes = [self.project.container(f"node{rank}") for rank in range(2)]
        self.project("create")
        docker("cp", "-", f"{self.nodes[0].name}:/workspace", text=False, input=packed(trial.SCRIPT))

    def up(self, *services):
        self.project("up", "--detach", *services)

    def slow_down(self, node, network):
        """As the way out of a cloud's cluster is: an engine's two networks would be equally fast."""
        shape = ["tc", "qdisc", "add", "dev", self.sent(node, network)[0], "root"]
        enter = ["nsenter", "-t", str(node.pid), "-n"]
        subprocess.run([*enter, *shape, *["tbf", "rate", "20mbit", "burst", "32kbit", "latency", "400ms"]], check=True)

    def read(self, name):
        return self.nodes[0].read(f"/workspace/runs/steps/{name}")

    def records(self):
        return [json.loads(line) for line in (self.read("metrics.jsonl") or "").splitlines()]

    def sent(self, node, network):
        """Bytes that a node has sent into a network; interfaces are known by their addresses."""
        networks = json.loads(docker("inspect", "-f", "{{json .NetworkSettings.Networks}}", node.name).stdout)
        address = networks[f"{self.project.name}_{network}"]["IPAddress"]
        (name,) = [
            line.split()[1] for line in node.execute("ip", "-o", "-4", "address").splitlines() if f" {address}/" in line
        ]
        return name, int(node.execute("cat", f"/sys/class/net/{name}/statistics/tx_bytes"))


def packed(path):
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.add(path, path.name)
    return data.getvalue()


@pytest.mark.skipif(
    os.getuid() != 0 or not all(shutil.which(program) for program in ("nsenter", "tc")),
    reason="killing a container and slowing a network down from outside want root, nsenter and tc",
)
def test_of_two_nodes_one_is_killed_and_comes_back_and_both_end_well(project):
    undisturbed = trial.undisturbed(trial.STEPS)
    cluster = Cluster(project)
    first, second = cluster.nodes
    cluster.up("node0")
    cluster.slow_down(first, "front")  # while it waits for the other
    cluster.up()
    first.wait_until(lambda: cluster.read(f"checkpoints/step-{trial.HOLD}/manifest.json"), "no step")
    settings = {one["name"]: one["value"] for one in json.loads(cluster.read("plan.json"))["settings"]}
    fabric, sent = cluster.sent(first, "fabric")
    assert settings["GLOO_SOCKET_IFNAME"] == fabric
    _, elsewhere = cluster.sent(first, "front")
    first.wait_until(lambda: cluster.sent(first, "fabric")[1] > sent + 10_000, "nothing is sent over the fabric")
    assert cluster.sent(first, "front")[1] < elsewhere + 1000
    assert [complaints(node.logs()) for node in cluster.nodes] == [[], []]
    os.kill(second.pid, 9)  # `docker kill` would start no restart policy
    second.wait_until(lambda: second.restarts == 1 and second.pid, "it did not come back")
    assert [node.wait(300) for node in cluster.nodes] == [0, 0], cluster.nodes
    assert (first.restarts, second.restarts) == (0, 1)
    records = cluster.records()
    assert {record["step"]: record["loss"] for record in records} == pytest.approx(undisturbed, rel=1e-4)
    assert len(records) == len(undisturbed), "a step was made twice"
    assert {record["attempt"] for record in records} == {0, 1}
    said = [node.logs() for node in cluster.nodes]
    cluster.up()
    assert [node.wait(60) for node in cluster.nodes] == [0, 0], cluster.nodes
    for node, before in zip(cluster.nodes, said, strict=True):
        assert "steps has finished" in node.logs().removeprefix(before)
    assert cluster.records() == records
